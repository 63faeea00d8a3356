/* The options of how tokens are drawn. */
#ifndef FB_CLI_SAMPLING_H
#define FB_CLI_SAMPLING_H

#include "cli/args.h"

typedef struct cli_sampling_options {
    int64_t top_k;
    double temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;
    bool seed_given;
    cli_list logit_bias;               /* as given */
    fb_logit_bias bias[CLI_LIST_ROOM]; /* the same, by cli_sampling_parse */
    const char *schema_file;           /* NULL: none; "any": any JSON object */
    fb_schema *schema;                 /* the same, by cli_sampling_settle */
} cli_sampling_options;

/* Sets the defaults and writes the rows whose targets are in `options`. */
enum { CLI_SAMPLING_ROWS = 10 };
void cli_sampling_rows(cli_sampling_options *options, cli_option rows[CLI_SAMPLING_ROWS]);

/* Both return CLI_OK, or an exit status after printing why. The first parses the biases, the second needs the
 * model: its vocabulary limits them. It draws a seed unless one was given, and compiles the schema. */
int cli_sampling_parse(cli_sampling_options *options);
int cli_sampling_settle(cli_sampling_options *options, const fb_model *model);
void cli_sampling_free(cli_sampling_options *options);

/* Whether the token with the highest logit is chosen, so that a session needs no other. */
bool cli_sampling_takes_best(const cli_sampling_options *options);

/* `options` must outlive `out`, which points to its biases and its schema. */
void cli_sampling_take(const cli_sampling_options *options, fb_sampler_options *out);

#endif
