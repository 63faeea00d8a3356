/* What a benchmark found, for people and for programs. */
#ifndef FB_CLI_BENCH_H
#define FB_CLI_BENCH_H

#include "cli/busy.h"
#include "cli/cli.h"

typedef struct cli_bench_setting {
    const char *path;         /* of the model */
    const char *const *names; /* of the variants, as the user wrote them */
    fb_dtype act, kv;
    bool exact;
    const fb_model *model;
    cli_busy *busy; /* the machine while it was timed; NULL: others were meant to run (--turns) */
} cli_bench_setting;

void cli_bench_print(const cli_bench_setting *setting, const fb_bench_report *report);
void cli_bench_json(const cli_bench_setting *setting, const fb_bench_report *report);
void cli_bench_ops_print(const cli_bench_setting *setting, const fb_bench_ops_report *report);
void cli_bench_ops_json(const cli_bench_setting *setting, const fb_bench_ops_report *report);

/* Runs and reports it; returns the exit status. */
int cli_bench_stream(const fb_model *model, fb_bench_stream_options *options,
                     const cli_bench_setting *setting, bool as_json);

/* The same; `batches` is the list that the user gave, `svg` the file of a picture, or NULL. */
int cli_bench_batch(const fb_model *model, fb_bench_batch_options *options, const char *batches,
                    const cli_bench_setting *setting, const char *svg, bool as_json);

/* The same for drafts, whose sources are a list, too. */
int cli_bench_draft(const fb_model *model, fb_bench_draft_options *options, const char *list,
                    const cli_bench_setting *setting, const char *svg, bool as_json);

/* What the reports share. "2 threads, avx2, act f32, kv f16\n" ends the line that says what was measured. */
void cli_bench_print_run(const cli_bench_setting *setting, const char *isa, int32_t threads);
/* "1.234 (1.201 to 1.310)": the median and the 10th and 90th percentile. */
void cli_bench_print_spread(const fb_spread *spread, double scale);
/* Whether measurements of the same work differ by no more than an undisturbed machine's, and the line about
 * those ("repetitions") that do not. */
bool cli_bench_quiet(const fb_spread *spread);
void cli_bench_print_noise(const char *what);
/* The members that say where and with what it ran, and {"median", "p10", "p90"} without its end. */
void cli_bench_write_setting(cli_json *json, const cli_bench_setting *setting, const char *isa,
                             int32_t threads);
void cli_bench_open_times(cli_json *json, const char *key, const fb_spread *spread, double scale);

#endif
