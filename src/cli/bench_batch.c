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

/* A prompt whose beginning was cached must give the same bits, where bits are promised. */
static bool is_ok(const fb_bench_batch_options *o, const fb_bench_batch_report *r) {
    return !r->cached_tokens || r->cached_same || o->any_order;
}

static void print_gaps(const char *when, const fb_bench_gaps *g, const fb_bench_gaps *before) {
    printf("  %-8s  %9.3f  %9.3f  %9.3f", when, g->median * 1e3, g->p99 * 1e3, g->most * 1e3);
    if (before)
        printf("  (%.2fx, %.2fx, %.2fx)", g->median / before->median, g->p99 / before->p99,
               g->most / before->most);
    putchar('\n');
}

static void print_prompts(const fb_bench_batch_report *r) {
    if (r->cached_tokens)
        printf("\nfirst token of a prompt of %" PRId64 " tokens: %.3f ms; with %" PRId64
               " of them in the prefix cache %.3f ms (%.1fx), %s\n",
               r->prompt, r->first * 1e3, r->cached_tokens, r->first_cached * 1e3, r->first / r->first_cached,
               r->cached_same ? "the same bits" : "other bits");
    if (!r->during.count) return;
    printf("\nfrom token to token of one answer, ms: median, 99th percentile, most\n");
    print_gaps("alone", &r->before, NULL);
    print_gaps("meanwhile", &r->during, &r->before);
    printf("meanwhile: while a prompt of %" PRId64 " tokens is read, in %" PRId64 " steps\n", r->arrival,
           r->during.count);
}

static void write_gaps(cli_json *json, const char *key, const fb_bench_gaps *g) {
    cli_json_open(json, key, '{');
    cli_json_int(json, "count", g->count);
    cli_json_real(json, "median", g->median * 1e3);
    cli_json_real(json, "p99", g->p99 * 1e3);
    cli_json_real(json, "max", g->most * 1e3);
    cli_json_close(json, '}');
}

static void write_prompts(cli_json *json, const fb_bench_batch_report *r) {
    if (r->cached_tokens) {
        cli_json_open(json, "cached_prompt", '{');
        cli_json_int(json, "tokens", r->cached_tokens);
        cli_json_real(json, "first_ms", r->first_cached * 1e3);
        cli_json_real(json, "first_uncached_ms", r->first * 1e3);
        cli_json_real(json, "ratio", r->first / r->first_cached);
        cli_json_bool(json, "same_bits", r->cached_same);
        cli_json_close(json, '}');
    }
    if (!r->during.count) return;
    cli_json_open(json, "arrival", '{');
    cli_json_int(json, "tokens", r->arrival);
    write_gaps(json, "before_ms", &r->before);
    write_gaps(json, "during_ms", &r->during);
    cli_json_close(json, '}');
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
    print_prompts(r);
    if (!is_ok(o, r)) puts("FAILED: the prefix cache changes bits");
    if (!quiet) cli_bench_print_noise("steps of one size");
    cli_busy_print(setting->busy, stdout);
}

static void write_report(const cli_bench_setting *setting, const fb_bench_batch_options *o,
                         const fb_bench_batch_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", is_ok(o, r));
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
    write_prompts(&json, r);
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
    bool ok = is_ok(options, report);
    fb_bench_batch_free(report);
    return ran != FB_OK ? cli_fail_error(&err) : ok ? CLI_OK : CLI_FAILED;
}
