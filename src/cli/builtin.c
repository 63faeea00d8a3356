/* The built-in model is found from the program's own place, never from the working directory. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/model.h"
#include "cli/output.h"

typedef struct place {
    int up; /* directories above the program's */
    const char *below;
} place;

static const place places[] = {
    {1, "share/fusebox/models/storyteller"}, /* PREFIX/bin/fusebox */
    {1, "models/storyteller"},               /* build/fusebox in the source tree */
    {2, "models/storyteller"},               /* build/san/fusebox */
};

enum { PLACES = sizeof places / sizeof *places };

/* `program` without its last 1 + up parts; "" stands for the root. */
static void path_of(const char *program, const place *where, char path[PATH_MAX]) {
    size_t length = strlen(program);
    for (int i = 0; i <= where->up; i++)
        while (length > 0 && program[--length] != '/') {
        }
    snprintf(path, PATH_MAX, "%.*s/%s", (int)length, program, where->below);
}

static bool has_config(const char *directory) {
    char config[PATH_MAX + 16];
    snprintf(config, sizeof config, "%s/config.json", directory);
    return access(config, F_OK) == 0;
}

char *cli_builtin_find(int *status) {
    char program[PATH_MAX], path[PLACES][PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program);
    if (length <= 0 || length >= (ssize_t)sizeof program) {
        *status = cli_fail(CLI_USAGE, "built-in model: cannot read /proc/self/exe (give MODEL)");
        return NULL;
    }
    program[length] = '\0';
    for (int i = 0; i < PLACES; i++) {
        path_of(program, &places[i], path[i]);
        if (!has_config(path[i])) continue;
        char *found = strdup(path[i]);
        if (!found) *status = cli_fail(CLI_FAILED, "built-in model: no memory");
        return found;
    }
    *status = cli_fail(CLI_USAGE, "built-in model: not found (looked for %s, %s and %s; give MODEL)", path[0],
                       path[1], path[2]);
    return NULL;
}
