/* --draft: where guesses of the next tokens come from. */
#ifndef FB_CLI_DRAFT_H
#define FB_CLI_DRAFT_H

#include <stdio.h>

#include "cli/args.h"
#include "cli/json_out.h"

typedef struct cli_draft {
    const char *source; /* NULL: no guesses */
    int64_t most;       /* at once; 0: as many as are worth it */
} cli_draft;

enum { CLI_DRAFT_ROWS = 2 };
void cli_draft_rows(cli_draft *draft, cli_option rows[CLI_DRAFT_ROWS]);

/* *out is NULL without a source. Returns CLI_OK, or an exit status after printing why. */
int cli_draft_open(const cli_draft *draft, const fb_model *model, fb_draft **out);

/* The line of --stats, and its numbers. */
void cli_draft_print(const cli_draft *draft, const fb_draft_stats *stats, FILE *out);
void cli_draft_json(const fb_draft_stats *stats, cli_json *json);

#endif
