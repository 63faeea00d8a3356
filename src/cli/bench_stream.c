/* fusebox bench --cache: what a stream costs as it goes on. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "cli/bench.h"
#include "cli/output.h"

static bool is_dense(const fb_bench_stream_report *r) { return r->cache == FB_CACHE_DENSE; }

static bool was_quiet(const fb_bench_stream_report *r) {
    bool quiet = true;
    for (int32_t i = 0; i < r->line_count; i++) quiet = quiet && cli_bench_quiet(&r->lines[i]->tpot);
    return quiet;
}

/* ---- for people ------------------------------------------------------------------------------ */

static void print_cache(const fb_bench_stream_report *r) {
    printf("cache %s", fb_cache_name(r->cache));
    if (r->cache == FB_CACHE_SINKS) printf(" %" PRId64, r->sinks);
    if (!is_dense(r)) printf("%s window %" PRId64, r->cache == FB_CACHE_SINKS ? " +" : ",", r->window);
}

static void print_line(const fb_bench_stream_line *line) {
    char bytes[CLI_NUMBER_BYTES], resident[CLI_NUMBER_BYTES] = "-";
    cli_format_scaled((double)line->cache_bytes, bytes);
    if (line->resident_bytes) cli_format_scaled((double)line->resident_bytes, resident);
    printf("%-10" PRId64, line->position);
    cli_bench_print_spread(&line->tpot, 1e3);
    printf("  %10.1f  %7sB  %7sB", 1 / line->tpot.median, bytes, resident);
    if (isnan(line->ttft))
        printf("  %15s\n", "-");
    else
        printf("  %15.3f\n", line->ttft * 1e3);
}

static void print_recompute(const fb_bench_stream_report *r) {
    bool faster = r->ratio >= 1;
    printf("\nrecomputing the window at each step costs %.3f ms a token: the stream is %.1fx %s\n",
           r->recompute.median * 1e3, faster ? r->ratio : 1 / r->ratio, faster ? "faster" : "slower");
}

static void print_notes(const fb_bench_stream_report *r, double ttft_limit) {
    printf("\nper token: median (10th to 90th percentile) of %" PRId64 " steps from that position on; first "
           "token: of a prompt of that length\n",
           r->steps);
    bool late = false;
    for (int32_t i = 0; i < r->line_count; i++) late = late || isnan(r->lines[i]->ttft);
    if (late) printf("-: not waited for: a prompt of that length takes more than %g s\n", ttft_limit);
    if (is_dense(r) && r->gen > r->lines[r->line_count - 1]->position)
        printf("a dense cache ends at the model's context, %" PRId64 " tokens\n", r->context);
    if (!was_quiet(r)) cli_bench_print_noise("steps at one position");
}

static void print_report(const cli_bench_setting *setting, const fb_bench_stream_options *options,
                         const fb_bench_stream_report *r) {
    cli_put(setting->path);
    fputs(": ", stdout);
    print_cache(r);
    printf(", gen %" PRId64 ", fuse %s, ", r->gen, options->fuse);
    cli_bench_print_run(setting, r->isa, r->threads);
    if (!is_dense(r))
        printf("check: %" PRId64 " of %" PRId64
               " greedy tokens as with a dense cache, before any is forgotten\n",
               r->checked, r->checked);
    printf("\n%-10s  %-27s  %10s  %8s  %8s  %15s\n", "position", "per token, ms", "tokens/s", "cache",
           "resident", "first token, ms");
    for (int32_t i = 0; i < r->line_count; i++) print_line(r->lines[i]);
    if (!is_dense(r)) print_recompute(r);
    print_notes(r, options->ttft_limit);
    cli_busy_print(setting->busy, stdout);
}

/* ---- for programs ---------------------------------------------------------------------------- */

static void write_times(cli_json *json, const char *key, const fb_spread *spread) {
    cli_bench_open_times(json, key, spread, 1e3);
    cli_json_close(json, '}');
}

static void write_line(cli_json *json, const fb_bench_stream_line *line) {
    cli_json_open(json, NULL, '{');
    cli_json_int(json, "position", line->position);
    write_times(json, "tpot_ms", &line->tpot);
    cli_json_real(json, "tokens_per_s", 1 / line->tpot.median);
    cli_json_real(json, "ttft_ms", line->ttft * 1e3);
    cli_json_int(json, "cache_bytes", line->cache_bytes);
    cli_json_real(json, "rss_bytes", line->resident_bytes ? (double)line->resident_bytes : NAN);
    cli_json_close(json, '}');
}

static void write_report(const cli_bench_setting *setting, const fb_bench_stream_options *options,
                         const fb_bench_stream_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", true);
    cli_bench_write_setting(&json, setting, r->isa, r->threads);
    cli_json_string(&json, "fuse", options->fuse);
    cli_json_string(&json, "cache", fb_cache_name(r->cache));
    cli_json_int(&json, "sinks", r->sinks);
    cli_json_int(&json, "window", r->window);
    cli_json_int(&json, "gen", r->gen);
    cli_json_int(&json, "steps", r->steps);
    cli_json_int(&json, "tokens_checked", r->checked);
    cli_json_bool(&json, "quiet", was_quiet(r));
    cli_json_open(&json, "lines", '[');
    for (int32_t i = 0; i < r->line_count; i++) write_line(&json, r->lines[i]);
    cli_json_close(&json, ']');
    if (is_dense(r)) {
        cli_json_string(&json, "recompute", NULL);
    } else {
        cli_json_open(&json, "recompute", '{');
        cli_json_int(&json, "steps", r->recompute_steps);
        write_times(&json, "tpot_ms", &r->recompute);
        cli_json_close(&json, '}');
    }
    cli_json_real(&json, "ratio", r->ratio);
    cli_json_close(&json, '}');
    putchar('\n');
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool on_progress(void *user, int64_t done, int64_t total) {
    (void)user;
    cli_progress("stream", done, total, "tokens");
    return true;
}

int cli_bench_stream(const fb_model *model, fb_bench_stream_options *options,
                     const cli_bench_setting *setting, bool as_json) {
    fb_error err;
    fb_bench_stream_report *report;
    options->on_progress = on_progress;
    cli_busy_begin(setting->busy);
    fb_status status = fb_bench_stream_run(model, options, &report, &err);
    cli_busy_end(setting->busy);
    cli_progress_clear();
    if (status != FB_OK) return cli_fail_error(&err);
    (as_json ? write_report : print_report)(setting, options, report);
    fb_bench_stream_free(report);
    return CLI_OK;
}
