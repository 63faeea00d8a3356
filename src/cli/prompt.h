/* The prompt: from the command line, a file or standard input, and as token ids. */
#ifndef FB_CLI_PROMPT_H
#define FB_CLI_PROMPT_H

#include "cli/args.h"

typedef struct cli_prompt {
    char *text; /* `bytes` of them, NUL-terminated, may hold others */
    size_t bytes;
    int32_t *ids;
    int64_t count;
} cli_prompt;

/* The lines of --help about a prompt without -p. */
#define CLI_PROMPT_NOTES                                                                                     \
    "The prompt may stand alone, behind MODEL or in quotes: fusebox run \"Once upon a time\". An argument\n" \
    "with a space in it that is no file is the prompt. A single - reads the prompt from standard input.\n"

/* Which positional is MODEL, which the prompt, and which is "-", the prompt from standard input. The first
 * that is neither "-" nor surely a prompt is MODEL, unless -m gave one; the next is the prompt. Surely a
 * prompt is what has a space in it, names nothing in the file system, and looks like no path. CLI_OK, or an
 * exit status after printing that something is given twice. */
int cli_prompt_take(const cli_args *args, const char **model, const char **text, const char **file);

/* Reads the text: `text` itself, else the file, "-" for standard input, else nothing. One newline at the end
 * of a file belongs to the file, not to the prompt. Return CLI_OK, or an exit status after printing why. */
int cli_prompt_read(cli_prompt *prompt, const char *text, const char *file);
int cli_prompt_tokenize(cli_prompt *prompt, const fb_model *model);
void cli_prompt_free(cli_prompt *prompt);

#endif
