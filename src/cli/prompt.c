#include "cli/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/output.h"

/* Far beyond any context; a device file never ends. */
#define MAX_PROMPT_BYTES ((size_t)256 << 20)

/* ---- from the command line ------------------------------------------------------------------- */

static bool ends_in(const char *text, const char *ending) {
    size_t length = strlen(text), wanted = strlen(ending);
    return length >= wanted && strcmp(text + length - wanted, ending) == 0;
}

/* A mistyped path must not become a prompt. */
static bool looks_like_path(const char *text) {
    static const char *const begins[] = {"/", "./", "../", "~/"};
    static const char *const ends[] = {".gguf", ".safetensors", ".json", ".bin", "/"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(text, begins[i], strlen(begins[i])) == 0) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_in(text, ends[i])) return true;
    return false;
}

static bool surely_prompt(const char *text) {
    return strpbrk(text, " \t\n") && !looks_like_path(text) && access(text, F_OK) != 0;
}

/* A single word that names nothing: rather a prompt than a model. */
static bool is_lost_word(const char *text) {
    return *text && !strpbrk(text, "/.") && access(text, F_OK) != 0 && errno == ENOENT;
}

int cli_prompt_take(const cli_args *args, const char **model, const char **text, const char **file) {
    for (int i = 0; i < args->positional_count; i++) {
        const char *value = args->positionals[i];
        const char **to = text;
        if (i == 0 && args->model_given)
            to = model;
        else if (strcmp(value, "-") == 0)
            to = file;
        else if (!*model && !surely_prompt(value))
            to = model;
        if (*to || (to == text && *file) || (to == file && *text))
            return cli_fail(
                CLI_USAGE,
                "prompt: given twice, the second time as %.80s (one of -p TEXT, -f FILE, - and TEXT)", value);
        if (to == model && !args->model_given && !*text && !*file && is_lost_word(value))
            return cli_fail(CLI_USAGE, "MODEL: %s: no such file or folder (if it is the prompt: -p \"%s\")",
                            value, value);
        *to = value;
    }
    if (*text && *file) return cli_fail(CLI_USAGE, "prompt: given twice (one of -p TEXT, -f FILE and -)");
    return CLI_OK;
}

/* ---- its text and its ids -------------------------------------------------------------------- */

static int read_all(cli_prompt *prompt, const char *name, FILE *in) {
    size_t room = 0;
    for (;;) {
        if (prompt->bytes + 1 >= room) {
            room = room ? room * 2 : 4096;
            char *larger = realloc(prompt->text, room);
            if (!larger) return cli_fail(CLI_FAILED, "%s: no memory for %zu bytes", name, room);
            prompt->text = larger;
        }
        size_t got = fread(prompt->text + prompt->bytes, 1, room - prompt->bytes - 1, in);
        prompt->bytes += got;
        prompt->text[prompt->bytes] = '\0';
        if (ferror(in)) return cli_fail(CLI_USAGE, "%s: %s", name, strerror(errno));
        if (prompt->bytes > MAX_PROMPT_BYTES)
            return cli_fail(CLI_USAGE, "%s: too long for a prompt (at most %zu bytes)", name,
                            MAX_PROMPT_BYTES);
        if (got == 0) break;
    }
    if (prompt->bytes > 0 && prompt->text[prompt->bytes - 1] == '\n') prompt->text[--prompt->bytes] = '\0';
    return CLI_OK;
}

int cli_prompt_read(cli_prompt *prompt, const char *text, const char *file) {
    if (text || !file) {
        prompt->text = strdup(text ? text : "");
        if (!prompt->text) return cli_fail(CLI_FAILED, "prompt: no memory");
        prompt->bytes = strlen(prompt->text);
        return CLI_OK;
    }
    if (strcmp(file, "-") == 0) return read_all(prompt, "standard input", stdin);
    FILE *in = fopen(file, "rb");
    if (!in) return cli_fail(errno == ENOMEM ? CLI_FAILED : CLI_USAGE, "%s: %s", file, strerror(errno));
    int status = read_all(prompt, file, in);
    fclose(in);
    return status;
}

int cli_prompt_tokenize(cli_prompt *prompt, const fb_model *model) {
    fb_error err;
    if (fb_tokenize(model, prompt->text, prompt->bytes, true, &prompt->ids, &prompt->count, &err) != FB_OK)
        return cli_fail_error(&err);
    if (prompt->count == 0)
        return cli_fail(CLI_USAGE, "prompt: 0 tokens (at least 1: give -p TEXT, -f FILE or -)");
    return CLI_OK;
}

void cli_prompt_free(cli_prompt *prompt) {
    free(prompt->text);
    fb_free(prompt->ids);
}
