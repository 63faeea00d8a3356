/* Fused elementwise kernels, norms and groups of projections. */
#include "fused_harness.h"

static void elementwise(void **state) {
    (void)state;
    FOR_WIDTHS(n) FOR_FLOAT_KERNELS(isa, t) {
        fb_view a = filled(t, 1, (int64_t)n, 3), b = filled(t, 1, (int64_t)n, 0),
                c = filled(t, 1, (int64_t)n, 1);
        fb_view sum = op2(isa, FB_OP_ADD, op2(isa, FB_OP_ADD, a, b), c);
        static const fb_op_kind acts[] = {FB_OP_SILU, FB_OP_GELU, FB_OP_GELU_TANH};
        fb_view products[3], out = view(t, 1, (int64_t)n, 2);
        for (int k = 0; k < 3; k++) products[k] = op2(isa, FB_OP_MUL, op1(isa, acts[k], a), b);
        FOR_WORKERS(workers) {
            poison(&out);
            run(isa, FB_OP_ADD3, (fb_call){.in = {a, b, c}, .out = {out}}, workers);
            same(isa, "add3", &out, &sum);
            for (int k = 0; k < 3; k++) {
                poison(&out);
                run(isa, FB_OP_SWIGLU, (fb_call){.in = {a, b}, .out = {out}, .attr.act = acts[k]}, workers);
                same(isa, "swiglu", &out, &products[k]);
            }
        }
    }
}

static fb_view norm_of(const fb_isa *isa, fb_op_kind kind, fb_view x, fb_weight w, fb_weight b, float eps) {
    fb_view out = view(x.dtype, x.heads, x.width, 0);
    run(isa, kind, (fb_call){.in = {x}, .out = {out}, .weights = {w, b}, .attr.eps = eps}, 1);
    return out;
}

/* Norms 0: after the last layer, where the final norm is another one, there are no weights. */
static void add_norm(void **state) {
    (void)state;
    for (int c = 0; c < 12; c++) FOR_WIDTHS(n) FOR_FLOAT_KERNELS(isa, t) {
            fb_op_kind kind = c & 1 ? FB_OP_RMSNORM : FB_OP_LAYERNORM;
            int terms = c & 2 ? 3 : 2, norms = c / 4;
            int64_t cols = (int64_t)n;
            fb_view in[3], want[3], out[3];
            fb_call call = {.attr = {.terms = terms, .norms = norms ? norms : 1, .norm = kind, .eps = 1e-3f}};
            for (int k = 0; k < 3; k++) call.in[k] = in[k] = filled(t, 1, cols, k);
            want[0] = op2(isa, FB_OP_ADD, in[0], in[1]);
            if (terms == 3) want[0] = op2(isa, FB_OP_ADD, want[0], in[2]);
            for (int k = 0; k < norms; k++) {
                call.weights[2 * k] = weight(k ? FB_F16 : FB_F32, 1, cols, 1);
                if (kind == FB_OP_LAYERNORM)
                    call.weights[2 * k + 1] = weight(k ? FB_F16 : FB_F32, 1, cols, 0);
                want[1 + k] =
                    norm_of(isa, kind, want[0], call.weights[2 * k], call.weights[2 * k + 1], 1e-3f);
            }
            for (int k = 0; k < 3; k++) call.out[k] = out[k] = view(t, 1, cols, 2 - k);
            FOR_WORKERS(workers) {
                for (int k = 0; k < 3; k++) poison(&out[k]);
                run(isa, FB_OP_ADD_NORM, call, workers);
                for (int k = 0; k <= norms; k++)
                    same(isa, k ? "add_norm: norm" : "add_norm: sum", &out[k], &want[k]);
            }
            /* The sum over its last term. */
            call.out[0] = in[terms - 1];
            run(isa, FB_OP_ADD_NORM, call, 2);
            same(isa, "add_norm: in place", &in[terms - 1], &want[0]);
        }
}

/* A norm, with a bias or without one, and an addition; also over either input. */
static void norm_add(void **state) {
    (void)state;
    for (int c = 0; c < 3; c++) FOR_WIDTHS(n) FOR_FLOAT_KERNELS(isa, t) {
            fb_op_kind kind = c == 1 ? FB_OP_RMSNORM : FB_OP_LAYERNORM;
            int64_t cols = (int64_t)n;
            fb_view x = filled(t, 1, cols, 1), r = filled(t, 1, cols, 2), out = view(t, 1, cols, 3);
            fb_weight w = weight(FB_F16, 1, cols, 1), none = {0}, b = c ? none : weight(FB_BF16, 1, cols, 0);
            fb_view want = op2(isa, FB_OP_ADD, norm_of(isa, kind, x, w, b, 1e-3f), r);
            fb_call call = {
                .in = {x, r}, .out = {out}, .weights = {w, b}, .attr = {.norm = kind, .eps = 1e-3f}};
            FOR_WORKERS(workers) {
                poison(&out);
                run(isa, FB_OP_NORM_ADD, call, workers);
                same(isa, "norm_add", &out, &want);
            }
            fb_view over[2] = {x, r};
            for (int k = 0; k < 2; k++) {
                fb_view copy = view(t, 1, cols, 1 + k);
                memcpy(copy.data, over[k].data, (size_t)(ROWS * copy.row_stride * fb_dtype_size(t)));
                fb_call in_place = call;
                in_place.in[k] = in_place.out[0] = copy;
                run(isa, FB_OP_NORM_ADD, in_place, 2);
                same(isa, "norm_add: in place", &copy, &want);
            }
        }
}

/* ---- linear_group ---- */

typedef struct group_case {
    int segments;
    fb_combine combine;
    fb_op_kind norm[3], act[3];
    enum { APART, SHARED, OWN_NORMS } inputs; /* one for all, with one norm or with a norm for each */
} group_case;

#define NO FB_OP_COUNT
static const group_case groups[] = {
    {1, FB_COMBINE_NONE, {NO}, {FB_OP_GELU}, APART},
    {1, FB_COMBINE_NONE, {FB_OP_LAYERNORM}, {FB_OP_GELU_TANH}, APART},
    {1, FB_COMBINE_NONE, {FB_OP_RMSNORM}, {FB_OP_SILU}, APART},
    {2, FB_COMBINE_NONE, {FB_OP_LAYERNORM, FB_OP_LAYERNORM}, {NO, FB_OP_GELU}, APART},
    {3, FB_COMBINE_NONE, {FB_OP_RMSNORM, FB_OP_RMSNORM, FB_OP_RMSNORM}, {NO, NO, NO}, SHARED},
    {2, FB_COMBINE_NONE, {FB_OP_LAYERNORM, FB_OP_LAYERNORM}, {NO, FB_OP_GELU}, OWN_NORMS},
    {3, FB_COMBINE_NONE, {NO, FB_OP_LAYERNORM, FB_OP_RMSNORM}, {FB_OP_SILU, NO, FB_OP_GELU}, APART},
    {2, FB_COMBINE_MUL, {NO, NO}, {FB_OP_SILU, NO}, SHARED},
    {2, FB_COMBINE_MUL, {FB_OP_RMSNORM, FB_OP_RMSNORM}, {FB_OP_SILU, NO}, SHARED},
    {1, FB_COMBINE_ADD, {NO}, {NO}, APART},
    {1, FB_COMBINE_ADD, {FB_OP_LAYERNORM}, {FB_OP_GELU}, APART},
    {2, FB_COMBINE_ADD, {NO, NO}, {NO, NO}, APART},
};

/* Segment s by plain kernels. */
static fb_view plain_segment_of(const fb_isa *isa, fb_dtype t, const fb_call *call, int s) {
    fb_view x = call->in[s];
    const fb_weight *w = &call->weights[4 * s];
    const fb_segment *seg = &call->attr.segment[s];
    if (seg->norm != NO) x = norm_of(isa, seg->norm, x, w[2], w[3], seg->eps);
    fb_view y = view(t, 1, w->rows, 0);
    fb_call linear = {.in = {x}, .out = {y}, .weights = {w[0], w[1]}};
    if (call->attr.segment[s].dot != FB_DOT_FLOAT) {
        linear.attr.segment[0].dot = FB_DOT_GIVEN;
        if (call->attr.segment[s].dot == FB_DOT_QUANTIZE) linear.in[0] = quantized(isa, x);
    }
    run(isa, FB_OP_LINEAR, linear, 1);
    return call->attr.segment[s].act == NO ? y : op1(isa, call->attr.segment[s].act, y);
}

static void make_group(const group_case *g, fb_dtype t, int64_t shape, bool bias, fb_call *call) {
    *call = (fb_call){.attr = {.segments = g->segments, .combine = g->combine}};
    for (int s = 0; s < g->segments; s++) {
        bool again = g->inputs && s;
        int64_t k = 5 + 13 * shape + (g->inputs ? 0 : 3 * s), n = 3 + 41 * shape + (g->combine ? 0 : 7 * s);
        fb_weight *w = &call->weights[4 * s];
        call->in[s] = again ? call->in[0] : filled(t, 1, k, s);
        w[0] = weight(s ? FB_F16 : FB_BF16, n, k, 0);
        if (bias) w[1] = weight(s ? FB_F32 : FB_F16, 1, n, 1);
        call->attr.segment[s] = (fb_segment){g->norm[s], g->act[s], 1e-3f, FB_DOT_FLOAT};
        if (g->norm[s] == NO) continue;
        w[2] = again && g->inputs == SHARED ? call->weights[2] : weight(FB_F16, 1, k, 1);
        if (g->norm[s] == FB_OP_LAYERNORM)
            w[3] = again && g->inputs == SHARED ? call->weights[3] : weight(FB_F16, 1, k, 0);
    }
}

static void linear_group(void **state) {
    (void)state;
    for (size_t c = 0; c < 2 * 3 * sizeof groups / sizeof *groups; c++) FOR_KERNELS(isa, t) {
            if (fbt_passes_over(2) || fbt_emulated_passes_over(5)) continue;
            const group_case *g = &groups[c / 6];
            fb_call call;
            make_group(g, t, (int64_t)(c / 2 % 3), c % 2, &call);
            int outputs = g->combine ? 1 : g->segments;
            fb_view want[3], residual = filled(t, 1, call.weights[0].rows, 4);
            for (int s = 0; s < g->segments; s++) want[s] = plain_segment_of(isa, t, &call, s);
            if (g->combine == FB_COMBINE_MUL) want[0] = op2(isa, FB_OP_MUL, want[0], want[1]);
            if (g->combine == FB_COMBINE_ADD) {
                if (g->segments == 2) want[0] = op2(isa, FB_OP_ADD, want[0], want[1]);
                want[0] = op2(isa, FB_OP_ADD, want[0], residual);
                call.in[FB_RESIDUAL] = residual;
            }
            for (int s = 0; s < outputs; s++) call.out[s] = view(t, 1, call.weights[4 * s].rows, s + 1);
            char what[64];
            snprintf(what, sizeof what, "linear_group case %zu, shape %zu", c / 6, c / 2 % 3);
            FOR_WORKERS(workers) for (int apart = 0; apart < 2; apart++) {
                sharing.apart = apart && !g->combine;
                for (int s = 0; s < outputs; s++) poison(&call.out[s]);
                run(isa, FB_OP_LINEAR_GROUP, call, workers);
                for (int s = 0; s < outputs; s++) same(isa, what, &call.out[s], &want[s]);
                for (int s = 0; s < outputs; s++) poison(&call.out[s]);
                run_alone(isa, FB_OP_LINEAR_GROUP, &call, workers);
                for (int s = 0; s < outputs; s++) same(isa, what, &call.out[s], &want[s]);
            }
            if (g->combine != FB_COMBINE_ADD) continue;
            call.out[0] = residual;
            run(isa, FB_OP_LINEAR_GROUP, call, 3);
            same(isa, "linear_group over its residual", &residual, &want[0]);
        }
}

/* With `apart`, a worker writes its own part of every projection and nothing of another worker's. rope_kv,
 * which follows without a barrier, relies on this. */
static void workers_apart(void **state) {
    (void)state;
    FOR_KERNELS(isa, t) {
        if (strcmp(isa->name, "ref") == 0) continue; /* worker 0 does all of it there, and all that follows */
        fbt_guard scratch = fbt_guard_create(SCRATCH, 0);
        fb_call call = {.rows = ROWS, .attr.segments = 3};
        for (int s = 0; s < 3; s++) {
            call.in[s] = filled(t, 1, 40, s);
            call.weights[4 * s] = weight(FB_F16, s ? 64 : 192, 40, 0);
            call.attr.segment[s] = (fb_segment){NO, NO, 0, FB_DOT_FLOAT};
            call.out[s] = view(t, 1, call.weights[4 * s].rows, 1);
            poison(&call.out[s]);
        }
        isa->kernels[FB_OP_LINEAR_GROUP](
            &call, &(fb_worker){.index = 1, .count = 4, .scratch = scratch.data, .apart = true});
        for (int s = 0; s < 3; s++)
            for (int64_t row = 0, n = call.weights[4 * s].rows; row < ROWS; row++)
                for (int64_t i = 0; i < n; i++) {
                    double value = fb_dtype_get(t, fb_view_at(&call.out[s], row, 0), i);
                    assert_int_equal(value == value, i >= n / 4 && i < n / 2);
                }
        fbt_guard_free(&scratch);
        give_back();
    }
}

/* The same with quantised weights of every type: decoded to floats; or packed, with inputs quantised before
 * the op or inside it; or inside it for every other segment while the others have floats, as in a file of
 * several types. The reference is not tested: it quantises values that it has not rounded. */
static void quantised_group(void **state) {
    (void)state;
    enum { CASES = sizeof groups / sizeof *groups, MIXED = FB_DOT_QUANTIZE + 1 };
    enum { TYPES = FB_DTYPE_COUNT - FB_Q8_0 };
    for (size_t c = 0; c < TYPES * CASES; c++) FOR_KERNELS(isa, t) {
            if (fbt_passes_over(2) || fbt_emulated_passes_over(5)) continue;
            const group_case *g = &groups[c / TYPES];
            fb_dtype type = (fb_dtype)(FB_Q8_0 + c % TYPES);
            bool packs = fb_pack_has(type);
            if (t == FB_F64 || (!packs && t == FB_F16)) continue;
            for (int dot = FB_DOT_FLOAT; dot <= (packs ? (int)MIXED : (int)FB_DOT_FLOAT); dot++) {
                if (dot == FB_DOT_GIVEN && g->norm[0] != NO) continue;
                fb_call call = {.attr = {.segments = g->segments, .combine = g->combine}};
                fb_view want[3], residual = {0};
                for (int s = 0; s < g->segments; s++) {
                    int64_t k = g->inputs ? 96 : 64 + 32 * s, n = 50 + (g->combine ? 0 : 23 * s);
                    if (fb_dtype_block(type) == 256) k = 256;
                    fb_weight *w = &call.weights[4 * s];
                    bool again = g->inputs && s;
                    fb_dot mine = dot == FB_DOT_GIVEN && g->norm[s] != NO ? FB_DOT_QUANTIZE : (fb_dot)dot;
                    if (dot == MIXED) mine = s % 2 ? FB_DOT_FLOAT : FB_DOT_QUANTIZE;
                    call.in[s] = again ? call.in[0] : filled(t, 1, k, s);
                    if (mine == FB_DOT_GIVEN && !again) call.in[s] = quantized(isa, call.in[s]);
                    w[0] = weight(type, n, k, 0);
                    if (packs) w[0] = packed(w[0]);
                    w[1] = weight(FB_F16, 1, n, 1);
                    call.attr.segment[s] = (fb_segment){g->norm[s], g->act[s], 1e-3f, mine};
                    if (g->norm[s] != NO)
                        w[2] = again && g->inputs == SHARED ? call.weights[2] : weight(FB_F32, 1, k, 1);
                    if (g->norm[s] == FB_OP_LAYERNORM)
                        w[3] = again && g->inputs == SHARED ? call.weights[3] : weight(FB_F32, 1, k, 0);
                    want[s] = plain_segment_of(isa, t, &call, s);
                }
                if (g->combine == FB_COMBINE_MUL) want[0] = op2(isa, FB_OP_MUL, want[0], want[1]);
                if (g->combine == FB_COMBINE_ADD) {
                    residual = filled(t, 1, call.weights[0].rows, 4);
                    if (g->segments == 2) want[0] = op2(isa, FB_OP_ADD, want[0], want[1]);
                    want[0] = op2(isa, FB_OP_ADD, want[0], residual);
                    call.in[FB_RESIDUAL] = residual;
                }
                int outputs = g->combine ? 1 : g->segments;
                for (int s = 0; s < outputs; s++) call.out[s] = view(t, 1, call.weights[4 * s].rows, s + 1);
                char what[64];
                snprintf(what, sizeof what, "%s linear_group case %zu, dot %d", fb_dtype_name(type),
                         c / TYPES, dot);
                FOR_WORKERS(workers) {
                    for (int together = 0; together < 2; together++) {
                        for (int s = 0; s < outputs; s++) poison(&call.out[s]);
                        prepare_together = together;
                        run(isa, FB_OP_LINEAR_GROUP, call, workers);
                        prepare_together = false;
                        for (int s = 0; s < outputs; s++) same(isa, what, &call.out[s], &want[s]);
                    }
                    if (workers > 1) continue;
                    for (int s = 0; s < outputs; s++) poison(&call.out[s]);
                    run_alone(isa, FB_OP_LINEAR_GROUP, &call, workers);
                    for (int s = 0; s < outputs; s++) same(isa, what, &call.out[s], &want[s]);
                }
            }
        }
}

/* One row with more outputs than fit in a block, and with weight rows that are prefetched singly or decoded
 * in panels. The result must equal that of the plain kernels on several rows. */
static void one_row(void **state) {
    (void)state;
    enum { TYPES = 4 };
    static const fb_dtype types[TYPES] = {FB_F32, FB_F16, FB_BF16, FB_Q6_K};
    static const int64_t shapes[][2] = {{6203, 20}, {12400, 8}, {13, 1031}, {60, 1280}}; /* outputs, inputs */
    for (size_t c = 0; c < TYPES * 2 * sizeof shapes / sizeof *shapes; c++) FOR_KERNELS(isa, t) {
            if (fbt_passes_over(2) || fbt_emulated_passes_over(5)) continue;
            fb_dtype type = types[c % TYPES];
            bool both = c / TYPES % 2, decoded = !fb_dtype_is_float(type);
            int64_t n = shapes[c / TYPES / 2][0], k = shapes[c / TYPES / 2][1];
            if (t == FB_F64 || (decoded && k % 256)) continue;
            fb_call call = {
                .attr = {.segments = both ? 2 : 1, .combine = both ? FB_COMBINE_ADD : FB_COMBINE_NONE}};
            fb_view want[2];
            for (int s = 0; s <= both; s++) {
                call.in[s] = filled(t, 1, k + (decoded ? 0 : s), 0);
                call.weights[4 * s] = weight(type, n, k + (decoded ? 0 : s), 0);
                call.attr.segment[s] = (fb_segment){NO, NO, 0, FB_DOT_FLOAT};
                want[s] = plain_segment_of(isa, t, &call, s);
            }
            if (both) {
                call.in[FB_RESIDUAL] = filled(t, 1, n, 0);
                want[0] = op2(isa, FB_OP_ADD, op2(isa, FB_OP_ADD, want[0], want[1]), call.in[FB_RESIDUAL]);
            }
            call.out[0] = view(t, 1, n, 1);
            for (int32_t workers = 1; workers <= 2; workers++) {
                poison(&call.out[0]);
                run_alone(isa, FB_OP_LINEAR_GROUP, &call, workers);
                same(isa, "one row", &call.out[0], &want[0]);
            }
        }
}

/* Two projections of one x that differ in one property: the second must not reuse the input that the first
 * prepared. */
static void one_difference(void **state) {
    (void)state;
    enum { COLUMNS, NORM, EPS, WEIGHT, BIAS, DOT, DIFFERENCES };
    for (int what = 0; what < DIFFERENCES; what++) FOR_KERNELS(isa, t) {
            if (t == FB_F64) continue;
            fb_view x = filled(t, 1, 64, 0), want[2];
            fb_call call = {.attr = {.segments = 2, .combine = FB_COMBINE_NONE}, .in = {x, x}};
            for (int s = 0; s < 2; s++) {
                fb_weight *w = &call.weights[4 * s];
                int64_t k = what == COLUMNS && s ? 32 : 64;
                call.attr.segment[s] = (fb_segment){FB_OP_LAYERNORM, NO, 1e-3f, FB_DOT_QUANTIZE};
                call.in[s].width = call.in[s].head_stride = k;
                w[0] = packed(weight(FB_Q8_0, 19, k, 0));
                w[2] = s && what != WEIGHT ? call.weights[2] : weight(FB_F32, 1, 64, 1);
                w[3] = s && what != BIAS ? call.weights[3] : weight(FB_F32, 1, 64, 0);
                w[2].cols = w[3].cols = k;
            }
            if (what == NORM) call.attr.segment[1].norm = FB_OP_RMSNORM;
            if (what == EPS) call.attr.segment[1].eps = 1;
            if (what == DOT) call.attr.segment[1].dot = FB_DOT_FLOAT;
            for (int s = 0; s < 2; s++) {
                want[s] = plain_segment_of(isa, t, &call, s);
                call.out[s] = view(t, 1, 19, 0);
            }
            for (int together = 0; together < 2; together++) {
                for (int s = 0; s < 2; s++) poison(&call.out[s]);
                prepare_together = together;
                run(isa, FB_OP_LINEAR_GROUP, call, 2);
                prepare_together = false;
                for (int s = 0; s < 2; s++) same(isa, "segments of one input", &call.out[s], &want[s]);
            }
        }
}

/* The reference gives the same result when it quantises inside the op and before it, if nothing is rounded in
 * between. */
static void reference_quantises(void **state) {
    (void)state;
    const fb_isa *isa = fb_isa_table;
    while (isa->name && strcmp(isa->name, "ref") != 0) isa++;
    assert_non_null(isa->name);
    for (int64_t k = 32; k <= 608; k += 288) { /* 608: more columns than it decodes at once */
        fb_view x = filled(FB_F32, 1, k, 0), out = view(FB_F32, 1, 21, 0);
        fb_call call = {.attr = {.segments = 1}, .in = {x}, .out = {out}};
        call.attr.segment[0] = (fb_segment){NO, NO, 0, FB_DOT_QUANTIZE};
        call.weights[0] = packed(weight(FB_Q4_0, 21, k, 0));
        fb_view want = plain_segment_of(isa, FB_F32, &call, 0);
        run(isa, FB_OP_LINEAR_GROUP, call, 1);
        same(isa, "linear_group", &out, &want);
        /* And that is not the product of floats. */
        call.attr.segment[0].dot = FB_DOT_FLOAT;
        run(isa, FB_OP_LINEAR_GROUP, call, 1);
        assert_memory_not_equal(out.data, want.data, ROWS * 21 * sizeof(float));
        give_back();
    }
}

/* More rows than a block holds: each row gives the same bits as alone. */
static void many_rows(void **state) {
    (void)state;
    enum { MANY = 133, K = 64, N = 20 };
    static const int64_t rows[] = {0, 127, 128, MANY - 1};
    FOR_KERNELS(isa, t) for (int c = 0; c < 4 && t != FB_F64; c++) {
        fb_dot dot = c < 2 ? FB_DOT_FLOAT : c == 2 ? FB_DOT_GIVEN : FB_DOT_QUANTIZE;
        fb_view x = {take(MANY * K * fb_dtype_size(t)), t, 1, K, K, K};
        fb_view y = {take(MANY * N * fb_dtype_size(t)), t, 1, N, N, N};
        for (int64_t i = 0; i < MANY * K; i++) fb_dtype_set(t, x.data, i, fbt_random_normal(&random_numbers));
        fb_call call = {.rows = MANY, .in = {x}, .out = {y}, .attr.segment[0].dot = dot};
        call.weights[0] = c ? packed(weight(FB_Q8_0, N, K, 0)) : weight(FB_F16, N, K, 0);
        if (dot == FB_DOT_GIVEN) {
            int64_t width = fb_q8_floats(K);
            call.in[0] = (fb_view){take(MANY * width * 4), FB_F32, 1, width, width, width};
            run(isa, FB_OP_QUANTIZE, (fb_call){.rows = MANY, .in = {x}, .out = {call.in[0]}}, 1);
        }
        run(isa, FB_OP_LINEAR, call, 2);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            int64_t row = rows[i];
            fb_call one = call;
            fb_view alone = view(t, 1, N, 0);
            one.rows = 1;
            one.in[0].data = fb_view_at(&call.in[0], row, 0);
            one.out[0] = alone;
            run(isa, FB_OP_LINEAR, one, 1);
            if (memcmp(alone.data, fb_view_at(&y, row, 0), (size_t)(N * fb_dtype_size(t))) != 0)
                fail_msg("%s, %s, case %d: row %lld of many", isa->name, fb_dtype_name(t), c, (long long)row);
        }
        give_back();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise),
        cmocka_unit_test(add_norm),
        cmocka_unit_test(norm_add),
        cmocka_unit_test(linear_group),
        cmocka_unit_test(workers_apart),
        cmocka_unit_test(quantised_group),
        cmocka_unit_test(one_row),
        cmocka_unit_test(one_difference),
        cmocka_unit_test(reference_quantises),
        cmocka_unit_test(many_rows),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
