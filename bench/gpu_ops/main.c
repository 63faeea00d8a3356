/* Times single ops of the CUDA backend at fixed shapes, without a model.
 *
 *   gpu_ops [--json] [--tiny] [--only TEXT]
 *
 * Each case is checked against a float64 computation on the host, then recorded as a graph of many launches
 * that rotate among several sets of inputs, weights and outputs, together four times the L2 where a set is
 * not tiny, and timed: median and 10 to 90 percent of REPEATS launches of the graph, divided by the launches
 * in it. The ceilings (bandwidth of `add`, of a matrix of 2 GB times a vector, rate of a 16-bit product) are
 * measured first in the same run. The exit status is 1 if a result is wrong.
 *
 * The library is $FUSEBOX_CUDA_LIBRARY, or libfusebox_cuda.so beside the program or in the folder above.
 * --tiny makes everything small, for the emulated library; --only runs the cases whose name has TEXT (and the
 * ceilings). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stats.h"
#include "gpu_ops.h"

#define REPEATS      11
#define WARM         3
#define WARM_CEILING 100 /* until clocks are what they are under load */
#define MOST_SETS    128
#define GRAPH_TIME   2e-3 /* that a graph should take, so that starting it does not count */

static int64_t scratch_of(const set *s) {
    int64_t most = FB_CUDA_COUNTERS;
    for (int i = 0; i < s->count; i++) {
        const fb_call *call = &s->step[i].call;
        switch (s->step[i].kind) {
        case FB_OP_LINEAR:
        case FB_OP_LINEAR_GROUP:
        case FB_OP_HEAD_ARGMAX:
            most = max_of(most, cuda.fb_cuda_linear_scratch(call, call->rows));
            break;
        case FB_OP_ATTN_FLASH:
            most = max_of(most, cuda.fb_cuda_attention_scratch(call, call->rows, call->kv.capacity));
            break;
        default:
            break;
        }
    }
    return most;
}

static void launch(const set *s, const fb_cuda_context *cx) {
    fb_error err;
    for (int i = 0; i < s->count; i++) {
        fb_op_kind kind = s->step[i].kind;
        must(cuda.fb_gpu_check(cuda.launches[kind](&s->step[i].call, cx), fb_op_table[kind].name, &err),
             &err);
    }
}

/* The case's rows, which all sets share: those of a step are in the second-level cache, too. */
static void take_rows(const spec *c) {
    int64_t bytes = c->m * (int64_t)sizeof(fb_row);
    fb_row *row = calloc((size_t)c->m, sizeof *row);
    if (!row) die("no memory for %lld rows", (long long)c->m);
    for (int64_t r = 0; r < c->m; r++) row[r].position = c->position + r;
    uint8_t *at = take(bytes);
    fb_error err;
    upload(at, row, bytes);
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    bench.row = (const fb_row *)(const void *)at;
    free(row);
}

/* The context of the case's launches, with fresh scratch. The arena is the one sequence's cache. */
static fb_cuda_context context_of(const spec *c, const set *s) {
    fb_cuda_context cx = bench.cx;
    fb_error err;
    cx.scratch_bytes = scratch_of(s);
    cx.scratch = take(cx.scratch_bytes);
    must(cuda.fb_gpu_zero(bench.gpu, cx.scratch, cx.scratch_bytes, &err), &err);
    uint8_t *caches = take(sizeof bench.arena);
    upload(caches, &bench.arena, sizeof bench.arena);
    cx.sequences = 1;
    cx.tables = (uint8_t *const *)(const void *)caches;
    cx.context =
        c->m == 1 && c->capacity ? c->capacity : c->position + c->m; /* as a recorded step, or a direct one */
    cx.overlap = cx.limits->major >= 9;
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    return cx;
}

static double floor_seconds(const spec *c, int64_t bytes) {
    double rate = c->family == MAPS ? bench.copy_rate : bench.read_rate;
    return fmax((double)bytes / rate, flops_of(c) / bench.matmul_rate);
}

/* As many as make four times the L2, if they fit. */
static int64_t sets_of(const set *s, int64_t bytes_taken) {
    if (bench.tiny) return 2;
    int64_t l2 = max_of(bench.info.limits.l2_bytes, 32 << 20), wanted = (4 * l2 + s->bytes - 1) / s->bytes;
    wanted = max_of(min_of(wanted, MOST_SETS), s->bytes > 1 << 30 ? 1 : 2);
    int64_t fit = 1 + (bench.arena_bytes - bench.used) / (bytes_taken + 65536);
    return min_of(wanted, fit);
}

static void measure(const set *sets, int64_t count, int64_t launches, const fb_cuda_context *cx, int warm,
                    double *quantiles) {
    fb_error err;
    fb_gpu_graph *graph;
    double seconds[REPEATS];
    int repeats = bench.tiny ? 3 : REPEATS;
    must(cuda.fb_gpu_record_begin(bench.gpu, &err), &err);
    for (int64_t i = 0; i < launches; i++) launch(&sets[i % count], cx);
    must(cuda.fb_gpu_record_end(bench.gpu, &graph, &err), &err);
    for (int i = 0; i < warm; i++) must(cuda.fb_gpu_graph_launch(bench.gpu, graph, &err), &err);
    for (int i = 0; i < repeats; i++) {
        must(cuda.fb_gpu_mark(bench.gpu, 2 * i, &err), &err);
        must(cuda.fb_gpu_graph_launch(bench.gpu, graph, &err), &err);
        must(cuda.fb_gpu_mark(bench.gpu, 2 * i + 1, &err), &err);
    }
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    for (int i = 0; i < repeats; i++) {
        must(cuda.fb_gpu_between(bench.gpu, 2 * i, 2 * i + 1, &seconds[i], &err), &err);
        seconds[i] /= (double)launches;
    }
    cuda.fb_gpu_graph_free(graph);
    fb_stats_sort(seconds, repeats);
    quantiles[0] = fb_stats_quantile(seconds, repeats, 0.1);
    quantiles[1] = fb_stats_quantile(seconds, repeats, 0.5);
    quantiles[2] = fb_stats_quantile(seconds, repeats, 0.9);
}

static void shape_text(const spec *c, char *text, size_t size) {
    long long m = c->m;
    int at;
    switch (c->family) {
    case MAPS:
        snprintf(text, size, "[%lld, %lld]", m, (long long)c->n[0]);
        break;
    case LINEARS:
        at = snprintf(text, size, "M=%lld", m);
        for (int i = 0; i < c->segments; i++)
            at += snprintf(text + at, size - (size_t)at, "%s%lldx%lld", i ? "+" : " ", (long long)c->n[i],
                           (long long)c->k[i]);
        break;
    case ATTENTION:
        snprintf(text, size, "M=%lld heads=%lld/%lld width=%lld position=%lld", m, (long long)c->heads,
                 (long long)c->kv_heads, (long long)c->width, (long long)c->position);
        break;
    }
}

static void report(const spec *c, const set *s, int64_t sets, int64_t launches, const double *q,
                   double error) {
    char shape[96];
    double flops = flops_of(c), percent = 100 * floor_seconds(c, s->bytes) / q[1];
    double rate = c->family == MAPS ? bench.copy_rate : bench.read_rate;
    bool reads = (double)s->bytes / rate >= flops / bench.matmul_rate;
    const char *dtype = c->family != LINEARS || c->weight == FB_F16 ? "f16"
                        : c->weight == FB_Q4_0                      ? "q4_0"
                                                                    : "q8_0";
    shape_text(c, shape, sizeof shape);
    if (bench.json)
        printf(
            "%s{\"name\": \"%s\", \"shape\": \"%s\", \"dtype\": \"%s\", \"us\": %.3f, \"us_p10\": %.3f, "
            "\"us_p90\": %.3f, "
            "\"bytes\": %lld, \"flops\": %.0f, \"gb_per_s\": %.1f, \"tflop_per_s\": %.2f, \"bound\": \"%s\", "
            "\"percent\": %.1f, \"error\": %.2e, \"ops\": %d, \"sets\": %lld, \"launches\": %lld}",
            bench.printed ? ",\n " : "[", c->name, shape, dtype, 1e6 * q[1], 1e6 * q[0], 1e6 * q[2],
            (long long)s->bytes, flops, 1e-9 * (double)s->bytes / q[1], 1e-12 * flops / q[1],
            reads ? "bandwidth" : "matmul", percent, error == error ? error : 9.99e99, s->count,
            (long long)sets, (long long)launches);
    else {
        printf("%-22s %-52s %-4s %9.2f us [%.2f, %.2f] ", c->name, shape, dtype, 1e6 * q[1], 1e6 * q[0],
               1e6 * q[2]);
        if (reads)
            printf("%7.1f GB/s", 1e-9 * (double)s->bytes / q[1]);
        else
            printf("%7.1f TFLOP/s", 1e-12 * flops / q[1]);
        printf(" %5.1f %%  error %.1e%s\n", percent, error, error <= tolerance_of(c) ? "" : "  WRONG");
    }
    fflush(stdout);
    bench.printed++;
}

static void run(const spec *c) {
    static set sets[MOST_SETS];
    fb_error err;
    bench.used = 0;
    take_rows(c);
    make_set(c, &sets[0]);
    int64_t taken = bench.used;
    fb_cuda_context cx = context_of(c, &sets[0]);
    launch(&sets[0], &cx);
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    double error = check(c, &sets[0]), q[3];
    if (!(error <= tolerance_of(c))) bench.wrong++;
    int64_t count = sets_of(&sets[0], taken);
    for (int64_t i = 1; i < count; i++) make_set(c, &sets[i]);
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    double about = fmax((double)sets[0].bytes / 4e12, flops_of(c) / 6e14) + 2e-6 * sets[0].count;
    int64_t rounds = (int64_t)ceil(GRAPH_TIME / about / (double)count);
    int64_t launches = bench.tiny ? count : count * max_of(1, rounds);
    measure(sets, count, launches, &cx, bench.tiny ? 1 : c->ceiling ? WARM_CEILING : WARM, q);
    if (c->ceiling)
        *c->ceiling = (c->m > 8 && c->family == LINEARS ? flops_of(c) : (double)sets[0].bytes) / q[1];
    report(c, &sets[0], count, launches, q, error);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            bench.json = true;
        else if (strcmp(argv[i], "--tiny") == 0)
            bench.tiny = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            bench.only = argv[++i];
        else
            die("%s (usage: gpu_ops [--json] [--tiny] [--only TEXT])", argv[i]);
    }
    open_device();
    if (!bench.json)
        printf("%s, sm_%d%d\n", bench.info.name, bench.info.limits.major, bench.info.limits.minor);
    const spec *cases;
    int count = make_cases(&cases);
    for (int i = 0; i < count; i++)
        if (cases[i].ceiling || !bench.only || strstr(cases[i].name, bench.only)) run(&cases[i]);
    if (bench.json) puts("]");
    if (bench.wrong) fprintf(stderr, "gpu_ops: %d of %d results are wrong\n", bench.wrong, bench.printed);
    close_device();
    return bench.wrong != 0;
}
