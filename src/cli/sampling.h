/* The options of how tokens are drawn. */
#ifndef FB_CLI_SAMPLING_H
#define FB_CLI_SAMPLING_H

#include "cli/args.h"

typedef struct cli_sampling_options {
    int64_t top_k;
    double temp, top_p, min_p, repeat_penalty;
    uint64_t seed;
    bool seed_given;
} cli_sampling_options;

/* Sets the defaults and writes the rows whose targets are in `options`. */
enum { CLI_SAMPLING_ROWS = 6 };
void cli_sampling_rows(cli_sampling_options *options, cli_option rows[CLI_SAMPLING_ROWS]);

/* Draws a seed unless one was given. CLI_OK, or an exit status after printing why. */
int cli_sampling_seed(cli_sampling_options *options);
void cli_sampling_take(const cli_sampling_options *options, fb_sampler_options *out);

#endif
