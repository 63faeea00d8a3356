/* The prompt: from the command line, a file or standard input, and as token ids. */
#ifndef FB_CLI_PROMPT_H
#define FB_CLI_PROMPT_H

#include "cli/cli.h"

typedef struct cli_prompt {
    char *text; /* `bytes` of them, NUL-terminated, may hold others */
    size_t bytes;
    int32_t *ids;
    int64_t count;
} cli_prompt;

/* Reads the text: `text` itself, else the file, "-" for standard input, else nothing. One newline at the end
 * of a file belongs to the file, not to the prompt. Return CLI_OK, or an exit status after printing why. */
int cli_prompt_read(cli_prompt *prompt, const char *text, const char *file);
int cli_prompt_tokenize(cli_prompt *prompt, const fb_model *model);
void cli_prompt_free(cli_prompt *prompt);

#endif
