#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cli/model.h"

/* The folder above ours is made if it is missing; ours the library makes. */
const char *cli_cache_folder(void) {
    static char folder[PATH_MAX];
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (base && *base == '/')
        length = snprintf(folder, sizeof folder, "%s", base);
    else if (home && *home == '/')
        length = snprintf(folder, sizeof folder, "%s/.cache", home);
    else
        return NULL;
    if (length < 0 || (size_t)length + sizeof "/fusebox" > sizeof folder) return NULL;
    mkdir(folder, 0777);
    snprintf(folder + length, sizeof folder - (size_t)length, "/fusebox");
    return folder;
}
