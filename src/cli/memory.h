/* The options of what a session remembers. */
#ifndef FB_CLI_MEMORY_H
#define FB_CLI_MEMORY_H

#include "cli/args.h"

typedef struct cli_memory_options {
    const char *cache; /* "dense", "window" or "sinks" */
    int64_t sinks, window;
    bool cache_given, sinks_given, window_given;
} cli_memory_options;

/* Sets the defaults and writes the rows whose targets are in `options`. */
enum { CLI_MEMORY_ROWS = 3 };
void cli_memory_rows(cli_memory_options *options, cli_option rows[CLI_MEMORY_ROWS]);

/* What was asked for. CLI_OK, or an exit status after printing what does not go together. */
int cli_memory_take(const cli_memory_options *options, fb_cache_kind *cache, int64_t *sinks, int64_t *window);

#endif
