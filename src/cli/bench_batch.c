/* fusebox bench --batch: several sequences in one step. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench.h"
#include "cli/json_out.h"
#include "cli/output.h"

#define MAX_BATCHES 16

static double tokens_per_second(const fb_bench_batch_line *line) {
    return (double)line->sequences / line->step.median;
}

static void print_line(const fb_bench_batch_line *line, const fb_bench_batch_report *r) {
    printf("%-9" PRId64, line->sequences);
    cli_bench_print_spread(&line->step, 1e3);
    if (r->any_order) cli_bench_print_spread(&line->any_order, 1e3);
    printf("  %9.3f  %10.1f  %12.1f  %7.2fx  %10.1f\n", line->floor * 1e3, tokens_per_second(line),
           1 / line->step.median, tokens_per_second(line) / tokens_per_second(r->lines[0]),
           line->read_bytes / line->step.median * 1e-9);
}

static void print_report(const cli_bench_setting *setting, const fb_bench_batch_options *o,
                         const fb_bench_batch_report *r) {
    bool quiet = true;
    cli_put(setting->path);
    printf(": prompts of %" PRId64 " tokens, %" PRId64 " more, fuse %s, ", o->prompt, o->gen, o->fuse);
    cli_bench_print_run(setting, r->isa, r->threads);
    printf("\n%-9s  %-27s", "sequences", "step, ms");
    if (r->any_order) printf("  %-27s", "with --invariant off, ms");
    printf("  %9s  %10s  %12s  %8s  %10s\n", "floor, ms", "tokens/s", "per sequence", "against",
           "read, GB/s");
    for (int64_t i = 0; i < r->line_count; i++) {
        print_line(r->lines[i], r);
        quiet = quiet && cli_bench_quiet(&r->lines[i]->step);
    }
    printf(
        "\nstep: median (10th to 90th percentile) of steps in which all sequences decode; floor: the weights "
        "once and all\ncaches, at the bandwidth that this machine has for so many bytes; against: tokens/s "
        "over "
        "the first line's;\nread: the same bytes over the time of a step\n");
    if (!quiet) cli_bench_print_noise("steps of one size");
    cli_busy_print(setting->busy, stdout);
}

static void write_report(const cli_bench_setting *setting, const fb_bench_batch_options *o,
                         const fb_bench_batch_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", true);
    cli_bench_write_setting(&json, setting, r->isa, r->threads);
    cli_json_string(&json, "fuse", o->fuse);
    cli_json_int(&json, "prompt", o->prompt);
    cli_json_int(&json, "gen", o->gen);
    cli_json_open(&json, "lines", '[');
    for (int64_t i = 0; i < r->line_count; i++) {
        const fb_bench_batch_line *line = r->lines[i];
        cli_json_open(&json, NULL, '{');
        cli_json_int(&json, "sequences", line->sequences);
        cli_bench_open_times(&json, "step_ms", &line->step, 1e3);
        cli_json_close(&json, '}');
        cli_json_real(&json, "tokens_per_second", tokens_per_second(line));
        cli_json_real(&json, "tokens_per_second_each", 1 / line->step.median);
        cli_json_real(&json, "prompts_ms", line->prompts * 1e3);
        cli_json_real(&json, "read_bytes", line->read_bytes);
        cli_json_real(&json, "floor_ms", line->floor * 1e3);
        if (r->any_order) {
            cli_bench_open_times(&json, "any_order_step_ms", &line->any_order, 1e3);
            cli_json_close(&json, '}');
        }
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    putchar('\n');
}

/* "1,2,4" as numbers. */
static int parse_list(const char *list, int64_t *out, int64_t *count) {
    const char *at = list;
    for (*count = 0;; at++) {
        char *end;
        errno = 0;
        long long value = strtoll(at, &end, 10);
        if (end == at || errno || (*end && *end != ',') || value < 1 || value > 1024)
            return cli_fail(CLI_USAGE, "--batch: \"%.64s\" (numbers from 1 to 1024, as 1,2,4,8)", list);
        if (*count == MAX_BATCHES)
            return cli_fail(CLI_USAGE, "--batch: more than %d numbers (at most %d)", MAX_BATCHES,
                            MAX_BATCHES);
        out[(*count)++] = value;
        at = end;
        if (!*at) return CLI_OK;
    }
}

static bool on_progress(void *user, int64_t done, int64_t total) {
    (void)user;
    cli_progress("bench", done, total, "batches");
    return true;
}

int cli_bench_batch(const fb_model *model, fb_bench_batch_options *options, const char *list,
                    const cli_bench_setting *setting, const char *svg, bool as_json) {
    int64_t batches[MAX_BATCHES];
    fb_bench_batch_report *report;
    fb_error err;
    int status = parse_list(list, batches, &options->batch_count);
    if (status != CLI_OK) return status;
    options->batches = batches;
    options->on_progress = on_progress;
    cli_busy_begin(setting->busy);
    fb_status ran = fb_bench_batch(model, options, &report, &err);
    cli_busy_end(setting->busy);
    cli_progress_clear();
    if (ran != FB_OK) return cli_fail_error(&err);
    if (svg) ran = fb_bench_batch_svg(report, svg, &err);
    if (ran == FB_OK) (as_json ? write_report : print_report)(setting, options, report);
    fb_bench_batch_free(report);
    return ran == FB_OK ? CLI_OK : cli_fail_error(&err);
}
