/* fusebox bench --draft: guesses of the next tokens. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/json_out.h"
#include "cli/output.h"

#define MAX_SOURCES 16

static bool is_ok(const fb_bench_draft_report *r) {
    for (int64_t i = 0; i < r->line_count; i++)
        if (!r->lines[i]->same) return false;
    return true;
}

static double tokens_a_step(const fb_bench_draft_line *line) {
    return line->stats.steps ? (double)line->stats.tokens / (double)line->stats.steps : 0;
}

/* Of guesses that were compared at this depth. */
static double right_at(const fb_draft_stats *s, int depth) {
    return s->tried[depth] ? (double)s->right[depth] / (double)s->tried[depth] : 0;
}

static double guess_seconds(const fb_draft_stats *s) {
    return s->drafted ? s->draft_seconds / (double)s->drafted : 0;
}

static void print_line(const fb_bench_draft_line *line) {
    printf("%-16s", line->source);
    if (!line->same) {
        puts("  FAILED: other tokens than one by one");
        return;
    }
    printf("  %9.0f%%  %8.2f  %10.1f  %10.1f  %7.2fx (%.2f to %.2f)  %8.2fx  %8.1f\n", 100 * line->acceptance,
           tokens_a_step(line), 1 / line->plain_spread.median, 1 / line->drafted_spread.median,
           line->ratio.median, line->ratio.p10, line->ratio.p90, line->predicted, line->create_seconds * 1e3);
}

/* A second table: where guesses stop being right, and what they take. */
static void print_depths(const fb_bench_draft_report *r) {
    printf("\n%-16s  %-*s  %10s  %7s\n", "right, by depth", 6 * FB_MAX_DRAFT - 1, "1, 2, …", "a guess, ms",
           "without");
    for (int64_t i = 0; i < r->line_count; i++) {
        const fb_bench_draft_line *line = r->lines[i];
        const fb_draft_stats *s = &line->stats;
        if (!line->same) continue;
        printf("%-16s ", line->source);
        for (int d = 0; d < FB_MAX_DRAFT; d++)
            if (s->tried[d])
                printf(" %4.0f%%", 100 * right_at(s, d));
            else
                printf("     -");
        printf("  %11.3f  %6.0f%%\n", 1e3 * guess_seconds(s),
               s->steps ? 100 * (double)s->plain_steps / (double)s->steps : 0);
    }
    puts("\nright, by depth: of first guesses, of second ones after a right first one, …; without: steps "
         "without a guess");
}

static void print_report(const cli_bench_setting *setting, const fb_bench_draft_report *r) {
    cli_put(setting->path);
    printf(": a prompt of %" PRId64 " tokens, %" PRId64 " more, ", r->prompt, r->gen);
    cli_bench_print_run(setting, r->isa, r->threads);
    fputs("steps of 1, 2, … rows, ms:", stdout);
    for (int i = 0; i <= FB_MAX_DRAFT; i++) printf(" %.3f", r->step_seconds[i] * 1e3);
    printf("\n\n%-16s  %10s  %8s  %10s  %10s  %-23s  %9s  %8s\n", "draft", "right", "a step", "plain, /s",
           "draft, /s", "faster", "predicted", "made, ms");
    bool quiet = true;
    for (int64_t i = 0; i < r->line_count; i++) {
        print_line(r->lines[i]);
        quiet = quiet && (!r->lines[i]->same || cli_bench_quiet(&r->lines[i]->plain_spread));
    }
    puts("\nright: guesses that were compared; a step: tokens; plain, draft: tokens/s, in turns; faster: "
         "median "
         "(10th to\n90th percentile); predicted: from the steps' times, the guesses' and how many are right");
    print_depths(r);
    if (!quiet) cli_bench_print_noise("repetitions");
    cli_busy_print(setting->busy, stdout);
}

static void write_report(const cli_bench_setting *setting, const fb_bench_draft_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", is_ok(r));
    cli_bench_write_setting(&json, setting, r->isa, r->threads);
    cli_json_int(&json, "prompt", r->prompt);
    cli_json_int(&json, "gen", r->gen);
    cli_json_open(&json, "step_ms", '[');
    for (int i = 0; i <= FB_MAX_DRAFT; i++) cli_json_real(&json, NULL, r->step_seconds[i] * 1e3);
    cli_json_close(&json, ']');
    cli_json_open(&json, "lines", '[');
    for (int64_t i = 0; i < r->line_count; i++) {
        const fb_bench_draft_line *line = r->lines[i];
        cli_json_open(&json, NULL, '{');
        cli_json_string(&json, "draft", line->source);
        cli_json_bool(&json, "same", line->same);
        cli_json_real(&json, "right", line->acceptance);
        cli_json_real(&json, "tokens_a_step", tokens_a_step(line));
        cli_json_int(&json, "drafted", line->stats.drafted);
        cli_json_int(&json, "kept", line->stats.kept);
        cli_json_int(&json, "steps", line->stats.steps);
        cli_json_int(&json, "plain_steps", line->stats.plain_steps);
        cli_json_real(&json, "guess_ms", guess_seconds(&line->stats) * 1e3);
        cli_json_open(&json, "tried_by_depth", '[');
        for (int d = 0; d < FB_MAX_DRAFT; d++) cli_json_int(&json, NULL, line->stats.tried[d]);
        cli_json_close(&json, ']');
        cli_json_open(&json, "right_by_depth", '[');
        for (int d = 0; d < FB_MAX_DRAFT; d++) cli_json_int(&json, NULL, line->stats.right[d]);
        cli_json_close(&json, ']');
        if (line->same) {
            cli_json_real(&json, "plain_tokens_per_second", 1 / line->plain_spread.median);
            cli_json_real(&json, "tokens_per_second", 1 / line->drafted_spread.median);
            cli_bench_open_times(&json, "faster", &line->ratio, 1);
            cli_json_close(&json, '}');
            cli_json_real(&json, "predicted", line->predicted);
        }
        cli_json_real(&json, "made_ms", line->create_seconds * 1e3);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    putchar('\n');
}

/* "ngram,q4" as a list; returns how many there are. */
static int32_t split(char *list, const char *sources[MAX_SOURCES]) {
    int32_t count = 0;
    for (char *at = list, *end; at && count < MAX_SOURCES; at = end) {
        end = strchr(at, ',');
        if (end) *end++ = '\0';
        sources[count++] = at;
    }
    return count;
}

int cli_bench_draft(const fb_model *model, fb_bench_draft_options *options, const char *list,
                    const cli_bench_setting *setting, const char *svg, bool as_json) {
    fb_error err;
    fb_bench_draft_report *report;
    const char *sources[MAX_SOURCES];
    char *copy = strdup(list);
    if (!copy) return cli_fail(CLI_FAILED, "--draft: no memory");
    options->sources = sources;
    options->source_count = split(copy, sources);
    if (setting->busy) cli_busy_begin(setting->busy);
    if (fb_bench_draft(model, options, &report, &err) != FB_OK) {
        free(copy);
        return cli_fail_error(&err);
    }
    if (setting->busy) cli_busy_end(setting->busy);
    (as_json ? write_report : print_report)(setting, report);
    int status = is_ok(report) ? CLI_OK : CLI_FAILED;
    if (svg && fb_bench_draft_svg(report, svg, &err) != FB_OK) status = cli_fail_error(&err);
    fb_bench_draft_free(report);
    free(copy);
    return status;
}
