/* Mixtures of experts, for the CPU's kernels and for those of CUDA: plain ops against the reference, fused
 * ops against the plain ones, to the bit; each row alone gives what it gives among others. The file that
 * includes this has included a harness, and says how a weight becomes a device's. */
#ifndef FB_TESTS_EXPERT_CASES_H
#define FB_TESTS_EXPERT_CASES_H

#include "backend/cpu/fused_harness.h"

typedef struct expert_case {
    int64_t experts, used, hidden, mlp;
    fb_dtype weights;
    fb_dot dot;
} expert_case;

static const expert_case expert_cases[] = {
    {4, 2, 40, 33, FB_F32, FB_DOT_FLOAT},     {5, 3, 64, 16, FB_F16, FB_DOT_FLOAT},
    {1, 1, 9, 7, FB_BF16, FB_DOT_FLOAT},      {37, 4, 24, 50, FB_F16, FB_DOT_FLOAT},
    {4, 2, 64, 32, FB_Q8_0, FB_DOT_GIVEN},    {6, 3, 32, 96, FB_Q4_0, FB_DOT_GIVEN},
    {6, 3, 32, 96, FB_Q8_0, FB_DOT_QUANTIZE}, {4, 2, 64, 64, FB_Q4_0, FB_DOT_QUANTIZE},
    {3, 2, 64, 32, FB_Q8_0, FB_DOT_FLOAT},    {3, 2, 64, 32, FB_Q4_0, FB_DOT_FLOAT},
};
enum { EXPERT_CASES = sizeof expert_cases / sizeof *expert_cases };

static fb_weight device_weight(fb_weight w);

static fb_weight matrices(const expert_case *c, int64_t rows, int64_t cols) {
    fb_weight w = weight(c->weights, c->experts * rows, cols, 0);
    w.experts = c->experts;
    return device_weight(w);
}

static fb_dtype pair_dtype(fb_dtype t) { return t == FB_F64 ? FB_F64 : FB_F32; }

static const fb_isa *reference(void) {
    const fb_isa *isa = fb_isa_table;
    while (strcmp(isa->name, "ref") != 0) isa++;
    return isa;
}

/* Runs an op on `workers` workers, then each row alone: the same bits. `have` is an output of it. */
static void run_both(const fb_isa *isa, fb_op_kind kind, fb_call call, int out, int32_t workers) {
    fb_view *have = &call.out[out], first = view(have->dtype, have->heads, have->width, 0);
    run(isa, kind, call, workers);
    for (int64_t row = 0; row < ROWS; row++)
        memcpy(fb_view_at(&first, row, 0), fb_view_at(have, row, 0),
               (size_t)(have->heads * have->width * fb_dtype_size(have->dtype)));
    poison(have);
    run_alone(isa, kind, &call, workers);
    same(isa, fb_op_table[kind].name, have, &first);
}

/* Within the rounding of the outputs. */
static void near_reference(const fb_isa *isa, fb_op_kind kind, fb_call call, int out) {
    static const double units[] = {[FB_F32] = 1e-5, [FB_F16] = 1e-3, [FB_BF16] = 8e-3, [FB_F64] = 1e-12};
    fb_view have = call.out[out];
    if (ROWS > 7) return; /* the reference is slow; with few rows it was asked */
    call.out[out] = view(FB_F64, have.heads, have.width, 0);
    call.rows = ROWS;
    run(reference(), kind, call, 1);
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t i = 0; i < have.heads * have.width; i++) {
            double a = fb_dtype_get(have.dtype, fb_view_at(&have, row, 0), i);
            double b = fb_dtype_get(FB_F64, fb_view_at(&call.out[out], row, 0), i);
            if (!(fabs(a - b) <= units[have.dtype] * (2 + fabs(b))))
                fail_msg("%s, %s: row %lld, column %lld: %.9g, reference %.9g", isa->name,
                         fb_op_table[kind].name, (long long)row, (long long)i, a, b);
        }
}

/* Distinct experts in their order, and shares of 1 in all if they are divided by their sum. */
static void check_pairs(const expert_case *c, const fb_view *pairs, bool one) {
    for (int64_t row = 0; row < ROWS; row++) {
        double sum = 0, last = -1;
        for (int64_t k = 0; k < c->used; k++) {
            double expert = fb_dtype_get(pairs->dtype, fb_view_at(pairs, row, 0), 2 * k);
            assert_true(expert > last && expert < (double)c->experts);
            last = expert;
            sum += fb_dtype_get(pairs->dtype, fb_view_at(pairs, row, 0), 2 * k + 1);
        }
        assert_true(one ? fabs(sum - 1) < 1e-5 : sum > 0 && sum < 1 + 1e-5);
    }
}

typedef struct routed {
    fb_view x, normed, pairs;
} routed;

/* norm, linear and top_k, and the same fused. */
static routed route(const fb_isa *isa, fb_dtype t, const expert_case *c, int32_t workers) {
    bool one = c->used % 2 == 0;
    fb_weight norm = weight(FB_F32, 1, c->hidden, 1), router = weight(FB_F16, c->experts, c->hidden, 0);
    fb_op_attr attr = {.used = (int32_t)c->used, .shares_sum_to_one = one};
    attr.segment[0] = (fb_segment){FB_OP_RMSNORM, FB_OP_COUNT, 1e-3f, FB_DOT_FLOAT};
    routed r = {.x = filled(t, 1, c->hidden, 3)};
    fb_view scores = view(t, 1, c->experts, 1), out = view(t, 1, c->hidden, 1),
            pairs = view(pair_dtype(t), 1, 2 * c->used, 2);
    r.normed = view(t, 1, c->hidden, 0);
    r.pairs = view(pair_dtype(t), 1, 2 * c->used, 0);
    run(isa, FB_OP_RMSNORM, (fb_call){.in = {r.x}, .out = {r.normed}, .weights = {norm}, .attr.eps = 1e-3f},
        workers);
    run(isa, FB_OP_LINEAR, (fb_call){.in = {r.normed}, .out = {scores}, .weights = {router}}, workers);
    fb_call choice = {.in = {scores}, .out = {r.pairs}, .attr = attr};
    run_both(isa, FB_OP_TOP_K, choice, 0, workers);
    near_reference(isa, FB_OP_TOP_K, choice, 0);
    check_pairs(c, &r.pairs, one);
    fb_call fused = {.in = {r.x}, .out = {out, pairs}, .weights = {router, {0}, norm}, .attr = attr};
    run(isa, FB_OP_ROUTER, fused, workers);
    same(isa, "router: norm", &out, &r.normed);
    same(isa, "router: pairs", &pairs, &r.pairs);
    if (ROWS > 7 && strcmp(isa->name, "cuda") == 0)
        return r; /* there, linears of many rows add up otherwise */
    poison(&pairs);
    run_alone(isa, FB_OP_ROUTER, &fused, workers);
    same(isa, "router, a row alone", &pairs, &r.pairs);
    return r;
}

static fb_view quantized_view(const fb_isa *isa, fb_view x, fb_dot dot) {
    if (dot != FB_DOT_GIVEN) return x;
    fb_view q = view(FB_F32, 1, fb_q8_floats(x.heads * x.width), 0);
    run(isa, FB_OP_QUANTIZE, (fb_call){.in = {x}, .out = {q}}, 1);
    return q;
}

static void one_expert_case(const fb_isa *isa, fb_dtype t, const expert_case *c, int32_t workers) {
    routed r = route(isa, t, c, workers);
    fb_weight gate = matrices(c, c->mlp, c->hidden), up = matrices(c, c->mlp, c->hidden),
              down = matrices(c, c->hidden, c->mlp);
    fb_view x = quantized_view(isa, r.normed, c->dot), residual = filled(t, 1, c->hidden, 1);
    fb_view gated[2], product = view(t, c->used, c->mlp, 0), parts = view(t, c->used, c->hidden, 2),
                      sum = view(t, 1, c->hidden, 0), out = view(t, 1, c->hidden, 3);
    fb_op_attr attr = {.used = (int32_t)c->used};
    attr.segment[0] = attr.segment[1] = (fb_segment){FB_OP_COUNT, FB_OP_COUNT, 0, c->dot};
    for (int k = 0; k < 2; k++) {
        fb_call call = {.in = {x, r.pairs}, .weights = {k ? up : gate}, .attr = attr};
        call.out[0] = gated[k] = view(t, c->used, c->mlp, 1);
        run_both(isa, FB_OP_EXPERT_LINEAR, call, 0, workers);
        near_reference(isa, FB_OP_EXPERT_LINEAR, call, 0);
    }
    fb_view want = op2(isa, FB_OP_MUL, op1(isa, FB_OP_SILU, gated[0]), gated[1]);
    fb_call dual = {.in = {x, r.pairs}, .out = {product}, .attr = attr};
    dual.weights[0] = gate;
    dual.weights[4] = up;
    dual.attr.segments = 2;
    dual.attr.combine = FB_COMBINE_MUL;
    dual.attr.segment[0].act = FB_OP_SILU;
    run_both(isa, FB_OP_EXPERT_GROUP, dual, 0, workers);
    same(isa, "experts: gate and up", &product, &want);

    fb_call last = {.in = {quantized_view(isa, product, c->dot), r.pairs}, .weights = {down}, .attr = attr};
    last.attr.each = true;
    last.out[0] = parts;
    run_both(isa, FB_OP_EXPERT_LINEAR, last, 0, workers);
    near_reference(isa, FB_OP_EXPERT_LINEAR, last, 0);
    fb_call adding = {.in = {parts, r.pairs}, .out = {sum}, .attr = attr};
    run_both(isa, FB_OP_EXPERT_SUM, adding, 0, workers);
    near_reference(isa, FB_OP_EXPERT_SUM, adding, 0);
    want = op2(isa, FB_OP_ADD, residual, sum);
    last.attr.segments = 1;
    last.attr.combine = FB_COMBINE_SUM;
    last.out[0] = out;
    run_both(isa, FB_OP_EXPERT_GROUP, last, 0, workers);
    same(isa, "experts: down and sum", &out, &sum);
    last.in[FB_RESIDUAL] = residual;
    poison(&out);
    run_both(isa, FB_OP_EXPERT_GROUP, last, 0, workers);
    same(isa, "experts: down, sum and residual", &out, &want);
}

#endif
