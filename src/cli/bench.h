/* What a benchmark found, for people and for programs. */
#ifndef FB_CLI_BENCH_H
#define FB_CLI_BENCH_H

#include "cli/cli.h"

typedef struct cli_bench_setting {
    const char *path;         /* of the model */
    const char *const *names; /* of the variants, as the user wrote them */
    fb_dtype act, kv;
    bool exact;
} cli_bench_setting;

void cli_bench_print(const cli_bench_setting *setting, const fb_bench_report *report);
void cli_bench_json(const cli_bench_setting *setting, const fb_bench_report *report);
void cli_bench_ops_print(const cli_bench_setting *setting, const fb_bench_ops_report *report);
void cli_bench_ops_json(const cli_bench_setting *setting, const fb_bench_ops_report *report);

#endif
