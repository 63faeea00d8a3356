/* Small programs that are no architecture of ours, and a run of any program on the CPU backend. */
#ifndef FB_TESTS_FUSE_TOY_H
#define FB_TESTS_FUSE_TOY_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/single.h"
#include "fuse/match.h"
#include "program/build.h"
#include "support/support.h"

enum { TOY_LAYERS = 3, TOY_HIDDEN = 20, TOY_WIDE = 36, TOY_VOCAB = 40, TOY_TOKENS = 9, TOY_CAPACITY = 16 };
#define TOY_EPS 1e-5

typedef struct toy {
    fb_program program;
    fb_build b;
    int32_t x; /* the layer's input; the builder is in the body */
    int number;
} toy;

static inline int32_t toy_matrix(toy *t, int64_t rows, int64_t cols) {
    char name[32];
    snprintf(name, sizeof name, "m{}%d", t->number++);
    return fb_build_matrix(&t->b, name, rows, cols);
}

static inline int32_t toy_vector(toy *t, int64_t cols) {
    char name[32];
    snprintf(name, sizeof name, "v{}%d", t->number++);
    return fb_build_vector(&t->b, name, cols);
}

static inline toy *toy_start(void) {
    toy *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->program = (fb_program){.layers = TOY_LAYERS,
                              .hidden = TOY_HIDDEN,
                              .vocab = TOY_VOCAB,
                              .context = TOY_CAPACITY,
                              .kv_heads = 2,
                              .head_dim = 10};
    t->b = (fb_build){.program = &t->program, .section = FB_PROLOGUE};
    t->x = fb_build_embed(&t->b, "x", fb_build_matrix(&t->b, "embed", TOY_VOCAB, TOY_HIDDEN), 1);
    t->b.section = FB_BODY;
    return t;
}

static inline int32_t toy_norm(toy *t, const char *name, int32_t x) {
    return fb_build_layernorm(&t->b, name, x, toy_vector(t, TOY_HIDDEN), toy_vector(t, TOY_HIDDEN), TOY_EPS);
}

static inline int32_t toy_linear(toy *t, const char *name, int32_t x, int64_t rows, int64_t cols) {
    return fb_build_linear(&t->b, name, x, toy_matrix(t, rows, cols), toy_vector(t, rows));
}

static inline int32_t toy_add(toy *t, const char *name, int32_t a, int32_t b) {
    return fb_build_binary(&t->b, FB_OP_ADD, name, a, b);
}

/* q, k, v as views of a joint projection of `n`, without rope; the attention's result. */
static inline int32_t toy_attention(toy *t, int32_t n) {
    int32_t qkv = toy_linear(t, "qkv", n, 60, TOY_HIDDEN);
    int32_t q = fb_build_view(&t->b, "q", qkv, 2, 10, 0, 30),
            k = fb_build_view(&t->b, "k", qkv, 2, 10, 10, 30),
            v = fb_build_view(&t->b, "v", qkv, 2, 10, 20, 30);
    fb_build_kv_append(&t->b, k, v);
    return fb_build_attention(&t->b, "context", q, 1 / sqrt(10), 0);
}

/* The body ends with `out`; the final norm has this epsilon. */
static inline void toy_end_eps(toy *t, int32_t out, double eps) {
    fb_program *p = &t->program;
    fb_error err;
    fb_build_carry(&t->b, t->x, out);
    t->b.section = FB_EPILOGUE;
    p->residual = t->x;
    p->final_norm = fb_build_layernorm(&t->b, "final", t->x, fb_build_vector(&t->b, "fw", TOY_HIDDEN),
                                       fb_build_vector(&t->b, "fb", TOY_HIDDEN), eps);
    p->logits = fb_build_linear(&t->b, "logits", p->final_norm,
                                fb_build_matrix(&t->b, "head", TOY_VOCAB, TOY_HIDDEN), FB_NONE);
    assert_ok(fb_build_end(&t->b, &err), &err);
}

static inline void toy_end(toy *t, int32_t out) { toy_end_eps(t, out, TOY_EPS); }

/* The plan with the fuses of `spec`, bit variants only. */
static inline fb_plan *toy_plan(const fb_program *program, const char *spec) {
    fb_plan *plan = malloc(sizeof *plan);
    fb_plan_options options = {.exact = true};
    bool automatic;
    fb_error err;
    assert_non_null(plan);
    assert_ok(fb_fuse_parse(spec, &options.fuses, &automatic, &err), &err);
    assert_ok(fb_plan_make(program, &options, plan, &err), &err);
    return plan;
}

/* Ops of a kind in a section. */
static inline int toy_count(const fb_program *p, fb_section section, fb_op_kind kind) {
    int count = 0;
    for (int32_t i = 0; i < p->op_count[section]; i++) count += p->ops[section][i].kind == kind;
    return count;
}

static inline fb_weight *toy_weights(const fb_program *p) {
    fbt_random random = {4711};
    fb_weight *weights = calloc((size_t)(p->slot_count * p->layers), sizeof *weights);
    assert_non_null(weights);
    for (int32_t s = 0; s < p->slot_count; s++)
        for (int64_t layer = 0; layer < p->layers; layer++) {
            fb_weight *w = &weights[s * p->layers + layer];
            if (layer && !p->slots[s].per_layer) {
                *w = weights[s * p->layers];
                continue;
            }
            int64_t count = p->slots[s].rows * p->slots[s].cols;
            float *data = malloc((size_t)count * sizeof *data);
            assert_non_null(data);
            for (int64_t i = 0; i < count; i++) data[i] = (float)fbt_random_normal(&random) * 0.3f;
            *w = (fb_weight){
                .data = data, .dtype = FB_F32, .rows = p->slots[s].rows, .cols = p->slots[s].cols};
        }
    return weights;
}

static inline void toy_weights_free(const fb_program *p, fb_weight *weights) {
    for (int32_t s = 0; s < p->slot_count; s++)
        for (int64_t layer = 0; layer < (p->slots[s].per_layer ? p->layers : 1); layer++)
            free((void *)(uintptr_t)weights[s * p->layers + layer].data);
    free(weights);
}

/* Logits [TOY_TOKENS, TOY_VOCAB]: 6 tokens at once, then one by one. */
static inline void toy_run(const fb_program *p, const fb_weight *weights, fb_dtype act, int32_t threads,
                           float *logits) {
    fb_bound bound = {p, weights};
    fb_executor_options options = {
        .threads = threads, .act = act, .kv = act, .capacity = TOY_CAPACITY, .chunk = 6, .epilogue_rows = 6};
    fb_single single;
    fb_error err;
    assert_ok(fb_single_open(&fb_backend_cpu, 0, &bound, &options, &single, &err), &err);
    fb_row rows[TOY_TOKENS];
    for (int i = 0; i < TOY_TOKENS; i++)
        rows[i] = (fb_row){.position = i, .token = (i * 11 + 3) % TOY_VOCAB, .wanted = 1};
    for (int64_t at = 0, count; at < TOY_TOKENS; at += count) {
        count = at ? 1 : 6;
        assert_ok(fb_single_run(&single, rows + at, count, count, logits + at * TOY_VOCAB, NULL, &err), &err);
    }
    fb_single_close(&single);
}

/* Asserts that the plan gives the plain program's bits in every dtype, on one thread and on three. */
static inline void toy_check(const fb_program *plain, const fb_plan *plan, const char *what) {
    fb_weight *weights = toy_weights(plain);
    for (int act = FB_F32; act <= FB_BF16; act++)
        for (int32_t threads = 1; threads <= 3; threads += 2) {
            float want[TOY_TOKENS * TOY_VOCAB], have[TOY_TOKENS * TOY_VOCAB];
            toy_run(plain, weights, (fb_dtype)act, 1, want);
            toy_run(&plan->program, weights, (fb_dtype)act, threads, have);
            assert_int_equal(fbt_count_nan(want, TOY_TOKENS * TOY_VOCAB), 0);
            if (memcmp(want, have, sizeof want) != 0)
                fail_msg("%s: %s, %d threads: the logits differ", what, fb_dtype_name((fb_dtype)act),
                         threads);
        }
    toy_weights_free(plain, weights);
}

#endif
