#include "cli/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/model.h"
#include "cli/output.h"

/* ---- for people ------------------------------------------------------------------------------ */

static void print_ratio(const fb_spread *ratio) {
    printf("  %7.3fx [%.3f, %.3f]", ratio->median, ratio->low, ratio->high);
}

void cli_bench_print_spread(const fb_spread *spread, double scale) {
    char text[64];
    snprintf(text, sizeof text, "%.3f (%.3f to %.3f)", spread->median * scale, spread->p10 * scale,
             spread->p90 * scale);
    printf("  %-27s", text);
}

static void print_check(const cli_bench_setting *setting, const fb_bench_report *r) {
    for (int32_t i = 1; i < r->variant_count; i++) {
        const fb_bench_variant *v = r->variants[i];
        printf("check: %s against %s: %" PRId64 " of %" PRId64 " greedy tokens equal, logits ",
               setting->names[i], setting->names[0], v->tokens_equal, r->gen + 1);
        if (v->bit_identical)
            fputs("bit-identical", stdout);
        else
            printf("within %.1e", fabs(v->max_abs));
        puts(v->agrees ? "" : "  FAILED");
    }
}

static int name_width(const cli_bench_setting *setting, int32_t count) {
    int width = 7;
    for (int32_t i = 0; i < count; i++) {
        int length = (int)strlen(setting->names[i]);
        if (length > width) width = length;
    }
    return width;
}

void cli_bench_print_run(const cli_bench_setting *setting, const char *isa, int32_t threads) {
    char where[32] = "cuda";
    if (threads) snprintf(where, sizeof where, "%d thread%s", threads, threads == 1 ? "" : "s");
    printf("%s, %s, act %s, kv %s%s\n", where, isa, fb_dtype_name(setting->act), fb_dtype_name(setting->kv),
           setting->exact ? ", exact" : "");
}

static void print_setting(const cli_bench_setting *setting, const char *isa, int32_t threads, int64_t prompt,
                          int64_t gen, int64_t reps) {
    cli_put(setting->path);
    printf(": prompt %" PRId64 ", gen %" PRId64 ", %" PRId64 " repetition%s, ", prompt, gen, reps,
           reps == 1 ? "" : "s");
    cli_bench_print_run(setting, isa, threads);
}

static void print_prefill(const cli_bench_setting *setting, const fb_bench_report *r, int width) {
    printf("%-*s  %-27s  %10s  %s\n", width, "prefill", "first token, ms", "tokens/s",
           "faster than the first");
    for (int32_t i = 0; i < r->variant_count; i++) {
        const fb_bench_variant *v = r->variants[i];
        printf("%-*s", width, setting->names[i]);
        cli_bench_print_spread(&v->ttft_spread, 1e3);
        printf("  %10.1f", (double)r->prompt / v->prefill_spread.median);
        if (i) print_ratio(&v->prefill_ratio);
        putchar('\n');
    }
}

static void print_decode(const cli_bench_setting *setting, const fb_bench_report *r, int width) {
    printf("%-*s  %-27s  %10s  %8s  %s\n", width, "decode", "per token, ms", "tokens/s", "barriers",
           "faster than the first");
    for (int32_t i = 0; i < r->variant_count; i++) {
        const fb_bench_variant *v = r->variants[i];
        printf("%-*s", width, setting->names[i]);
        cli_bench_print_spread(&v->tpot_spread, 1e3);
        printf("  %10.1f  %8" PRId64, 1 / v->tpot_spread.median, v->barriers_a_step);
        if (i) print_ratio(&v->tpot_ratio);
        putchar('\n');
    }
}

/* Repetitions of the same work that differ this much were disturbed: with a second busy process on the cores,
 * barriers take milliseconds, and whoever has fewer of them wins by more than is due. */
#define QUIET_SPREAD 1.5

bool cli_bench_quiet(const fb_spread *spread) { return spread->p90 <= QUIET_SPREAD * spread->p10; }

void cli_bench_print_noise(const char *what) {
    printf("note: the %s differ by more than half: something else was using this machine\n", what);
}

static bool was_quiet(const fb_bench_report *r) {
    bool quiet = true;
    for (int32_t i = 0; i < r->variant_count; i++)
        quiet = quiet && cli_bench_quiet(&r->variants[i]->tpot_spread);
    return quiet;
}

void cli_bench_print(const cli_bench_setting *setting, const fb_bench_report *r) {
    int width = name_width(setting, r->variant_count);
    print_setting(setting, r->isa, r->threads, r->prompt, r->gen, r->reps);
    print_check(setting, r);
    if (!r->agree) {
        puts("FAILED: the variants disagree: nothing was timed");
        return;
    }
    putchar('\n');
    print_prefill(setting, r, width);
    putchar('\n');
    print_decode(setting, r, width);
    printf(
        "\ntimes: median (10th to 90th percentile); ratios: median of the repetitions' [%.0f%% confidence]\n",
        100 * r->variants[0]->tpot_spread.confidence);
    if (!was_quiet(r)) cli_bench_print_noise("repetitions");
    char faster[160];
    cli_faster_type(setting->model, r->isa, faster, sizeof faster);
    if (*faster) puts(faster);
    if (setting->busy) cli_busy_print(setting->busy, stdout);
}

static void print_op(const fb_bench_op *op) {
    printf("%-12s  %-7s  ", op->fuse, op->rows == 1 ? "decode" : "prefill");
    if (!op->agrees)
        printf("FAILED: disagrees with the plain operators, logits within %.1e", fabs(op->max_abs));
    else {
        printf("%10.1f  %10.1f", op->plain_spread.median * 1e6, op->fused_spread.median * 1e6);
        print_ratio(&op->ratio);
    }
    putchar('\n');
}

void cli_bench_ops_print(const cli_bench_setting *setting, const fb_bench_ops_report *r) {
    print_setting(setting, r->isa, r->threads, r->prompt, r->gen, r->reps);
    printf("\n%-12s  %-7s  %10s  %10s  %s\n", "fuse", "step", "plain, us", "fused, us", "  faster");
    for (int64_t i = 0; i < r->count; i++) print_op(r->ops[i]);
    puts("\ntime a step of the operators that a fuse replaces, and of what it puts in their place; all "
         "layers");
    if (!r->agree) puts("FAILED: a fuse disagrees with the plain operators");
    if (setting->busy) cli_busy_print(setting->busy, stdout);
}

/* ---- for programs ---------------------------------------------------------------------------- */

/* The value of the first line of a file in /proc that begins with `key`; false if there is none. */
static bool read_proc(const char *file, const char *key, char *value, size_t size) {
    char line[256];
    bool found = false;
    FILE *in = fopen(file, "r");
    while (in && !found && fgets(line, sizeof line, in)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
        snprintf(value, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        value[strcspn(value, "\n")] = '\0';
        found = true;
    }
    if (in) fclose(in);
    return found;
}

static void write_machine(cli_json *json) {
    char cpu[256];
    cli_json_open(json, "machine", '{');
    cli_json_string(json, "cpu", read_proc("/proc/cpuinfo", "model name", cpu, sizeof cpu) ? cpu : NULL);
    cli_json_int(json, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    cli_json_int(json, "memory_bytes", (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    cli_json_close(json, '}');
}

void cli_bench_write_setting(cli_json *json, const cli_bench_setting *setting, const char *isa,
                             int32_t threads) {
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    write_machine(json);
    cli_json_string(json, "version", FB_VERSION);
    cli_json_string(json, "commit", fb_commit());
    cli_json_string(json, "date", date);
    cli_json_string(json, "model", setting->path);
    cli_json_int(json, "threads", threads);
    cli_json_string(json, "isa", isa);
    cli_json_string(json, "act", fb_dtype_name(setting->act));
    cli_json_string(json, "kv", fb_dtype_name(setting->kv));
    cli_json_bool(json, "exact", setting->exact);
    if (setting->busy) cli_busy_json(setting->busy, json);
}

static void write_samples(cli_json *json, const char *key, const double *samples, int64_t count,
                          double scale) {
    cli_json_open(json, key, '[');
    for (int64_t i = 0; i < count; i++) cli_json_real(json, NULL, samples[i] * scale);
    cli_json_close(json, ']');
}

void cli_bench_open_times(cli_json *json, const char *key, const fb_spread *spread, double scale) {
    cli_json_open(json, key, '{');
    cli_json_real(json, "median", spread->median * scale);
    cli_json_real(json, "p10", spread->p10 * scale);
    cli_json_real(json, "p90", spread->p90 * scale);
}

/* {"median", "p10", "p90"}, and the samples behind them. */
static void write_times(cli_json *json, const char *key, const fb_spread *spread, const double *samples,
                        int64_t count, double scale) {
    cli_bench_open_times(json, key, spread, scale);
    write_samples(json, "samples", samples, count, scale);
    cli_json_close(json, '}');
}

static void write_ratio(cli_json *json, const char *key, const fb_spread *ratio) {
    cli_json_open(json, key, '{');
    cli_json_real(json, "median", ratio->median);
    cli_json_open(json, "ci", '[');
    cli_json_real(json, NULL, ratio->low);
    cli_json_real(json, NULL, ratio->high);
    cli_json_close(json, ']');
    cli_json_real(json, "confidence", ratio->confidence);
    cli_json_close(json, '}');
}

static void write_variant(cli_json *json, const char *name, const fb_bench_variant *v,
                          const fb_bench_report *r) {
    cli_json_open(json, NULL, '{');
    cli_json_string(json, "fuse", name);
    cli_json_bool(json, "agrees", v->agrees);
    cli_json_int(json, "tokens_equal", v->tokens_equal);
    cli_json_bool(json, "bit_identical", v->bit_identical);
    cli_json_real(json, "max_abs", v->max_abs);
    cli_json_int(json, "barriers_per_step", v->barriers_a_step);
    if (r->agree) {
        write_times(json, "ttft_ms", &v->ttft_spread, v->ttft, r->reps, 1e3);
        write_times(json, "prefill_ms", &v->prefill_spread, v->prefill, r->reps, 1e3);
        cli_json_real(json, "prefill_tokens_per_s", (double)r->prompt / v->prefill_spread.median);
        write_times(json, "tpot_ms", &v->tpot_spread, v->tpot, r->reps, 1e3);
        cli_json_real(json, "tokens_per_s", 1 / v->tpot_spread.median);
        write_ratio(json, "ttft_ratio", &v->ttft_ratio);
        write_ratio(json, "prefill_ratio", &v->prefill_ratio);
        write_ratio(json, "tpot_ratio", &v->tpot_ratio);
    }
    cli_json_close(json, '}');
}

void cli_bench_json(const cli_bench_setting *setting, const fb_bench_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", r->agree);
    cli_bench_write_setting(&json, setting, r->isa, r->threads);
    cli_json_int(&json, "prompt", r->prompt);
    cli_json_int(&json, "gen", r->gen);
    cli_json_int(&json, "reps", r->reps);
    if (r->agree) cli_json_bool(&json, "quiet", was_quiet(r));
    cli_json_open(&json, "variants", '[');
    for (int32_t i = 0; i < r->variant_count; i++) write_variant(&json, setting->names[i], r->variants[i], r);
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    putchar('\n');
}

void cli_bench_ops_json(const cli_bench_setting *setting, const fb_bench_ops_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", r->agree);
    cli_bench_write_setting(&json, setting, r->isa, r->threads);
    cli_json_int(&json, "prompt", r->prompt);
    cli_json_int(&json, "gen", r->gen);
    cli_json_int(&json, "reps", r->reps);
    cli_json_open(&json, "ops", '[');
    for (int64_t i = 0; i < r->count; i++) {
        const fb_bench_op *op = r->ops[i];
        cli_json_open(&json, NULL, '{');
        cli_json_string(&json, "fuse", op->fuse);
        cli_json_int(&json, "rows", op->rows);
        cli_json_bool(&json, "agrees", op->agrees);
        cli_json_bool(&json, "bit_identical", op->bit_identical);
        cli_json_real(&json, "max_abs", op->max_abs);
        if (op->agrees) {
            write_times(&json, "plain_us", &op->plain_spread, op->plain, r->reps, 1e6);
            write_times(&json, "fused_us", &op->fused_spread, op->fused, r->reps, 1e6);
            write_ratio(&json, "ratio", &op->ratio);
        }
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    putchar('\n');
}
