/* Lines from the user: with editing and history on a terminal, else as they come. */
#ifndef FB_CLI_LINE_H
#define FB_CLI_LINE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cli_line cli_line;

typedef enum cli_line_kind {
    CLI_LINE_TEXT,
    CLI_LINE_CANCELLED, /* Ctrl-C: the line is given up */
    CLI_LINE_END        /* Ctrl-D, or the end of the input */
} cli_line_kind;

/* NULL: no memory. */
cli_line *cli_line_open(const char *prompt);
void cli_line_free(cli_line *line);

/* Reads a line without its newline; it is valid until the next call. */
cli_line_kind cli_line_read(cli_line *line, const char **text, size_t *bytes);
bool cli_line_is_terminal(const cli_line *line);

#endif
