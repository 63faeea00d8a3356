/* Fused kernels against the plain kernels that they stand for, on the same instruction set: the same bits,
 * for any number of lanes. Outputs and scratch are NaN before, and so is what lies between rows; nothing
 * outside may be written. The reference's fused kernels are held to its plain ones in float64. attn_flash,
 * which promises no bits, is held to the reference. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel_harness.h"

enum { ROWS = 7, SCRATCH = FB_LINEAR_WORK * 4 + (1 << 18), POOL = 128 };

static fbt_guard pool[POOL];
static int pooled;
static fbt_random random_numbers;

static void *take(int64_t bytes) {
    assert_true(pooled < POOL);
    pool[pooled] = fbt_guard_create((size_t)bytes, 0);
    return pool[pooled++].data;
}

static void give_back(void) {
    while (pooled) fbt_guard_free(&pool[--pooled]);
}

/* NaN everywhere; `gap` elements between rows. */
static fb_view view(fb_dtype t, int64_t heads, int64_t width, int64_t gap) {
    int64_t stride = heads * width + gap;
    return (fb_view){take(ROWS * stride * fb_dtype_size(t)), t, heads, width, stride, width};
}

static fb_view filled(fb_dtype t, int64_t heads, int64_t width, int64_t gap) {
    fb_view v = view(t, heads, width, gap);
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t i = 0; i < heads * width; i++)
            fb_dtype_set(t, fb_view_at(&v, row, 0), i, 0.3 + 1.5 * fbt_random_normal(&random_numbers));
    return v;
}

static fb_weight weight(fb_dtype t, int64_t rows, int64_t cols, double mean) {
    void *data = take(fb_dtype_bytes(t, rows * cols));
    if (!fb_dtype_is_float(t)) {
        fbt_random_blocks(&random_numbers, t, rows * cols, 0.4, data);
        return (fb_weight){data, t, rows, cols, false};
    }
    for (int64_t i = 0; i < rows * cols; i++)
        fb_dtype_set(t, data, i, mean + 0.4 * fbt_random_normal(&random_numbers));
    return (fb_weight){data, t, rows, cols, false};
}

static fb_weight packed(fb_weight w) {
    void *data = take(fb_pack_bytes(w.dtype, w.rows, w.cols));
    memset(data, 0, (size_t)fb_pack_bytes(w.dtype, w.rows, w.cols));
    for (int64_t row = 0; row < w.rows; row++)
        fb_pack_row(w.dtype, (const uint8_t *)w.data + row * fb_dtype_bytes(w.dtype, w.cols), w.cols, row,
                    data);
    return (fb_weight){data, w.dtype, w.rows, w.cols, true};
}

/* The last lane first: a lane that needs what another one computes finds NaN. */
static void run(const fb_isa *isa, fb_op_kind kind, fb_call call, int32_t lanes) {
    fbt_guard scratch = fbt_guard_create(SCRATCH, 0);
    call.rows = call.rows ? call.rows : ROWS;
    for (int32_t lane = lanes - 1; lane >= 0; lane--) {
        memset(scratch.data, 0xff, SCRATCH);
        isa->kernels[kind](&call, &(fb_lane){lane, lanes, scratch.data});
    }
    fbt_guard_free(&scratch);
}

/* The same bits, or in float64 all but the last ones; and NaN in the gaps. */
static void same(const fb_isa *isa, const char *what, const fb_view *have, const fb_view *want) {
    int64_t cols = want->heads * want->width, size = fb_dtype_size(want->dtype);
    for (int64_t row = 0; row < ROWS; row++) {
        const void *h = fb_view_at(have, row, 0), *w = fb_view_at(want, row, 0);
        for (int64_t i = 0; i < cols; i++) {
            double a = fb_dtype_get(want->dtype, h, i), b = fb_dtype_get(want->dtype, w, i);
            bool equal = want->dtype == FB_F64 ? fabs(a - b) <= 1e-12 * (1 + fabs(b))
                                               : memcmp((const char *)h + i * size,
                                                        (const char *)w + i * size, (size_t)size) == 0;
            if (!equal || a != a)
                fail_msg("%s, %s, %s: row %lld, column %lld of %lld: %.9g, plain %.9g", isa->name,
                         fb_dtype_name(want->dtype), what, (long long)row, (long long)i, (long long)cols, a,
                         b);
        }
        for (int64_t i = cols; row + 1 < ROWS && i < have->row_stride; i++) {
            double gap = fb_dtype_get(have->dtype, h, i);
            if (gap == gap) fail_msg("%s, %s: wrote between rows", isa->name, what);
        }
    }
}

static void poison(const fb_view *v) {
    memset(v->data, 0xff, (size_t)(ROWS * v->row_stride * fb_dtype_size(v->dtype)));
}

/* Runs `body` for every instruction set, and the activation dtypes that it has. */
#define FOR_KERNELS(isa, t)                                                                                  \
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++)                                                 \
        for (int t##_ = FB_F32; isa->available() && t##_ <= FB_F64; t##_++)                                  \
            for (fb_dtype t = (fb_dtype)t##_, *once = &t;                                                    \
                 once && (strcmp(isa->name, "ref") == 0) == (t == FB_F64); once = NULL, give_back())

static const int64_t widths[] = {1, 7, 16, 33, 100};
#define FOR_WIDTHS(n) for (size_t n##_ = 0, n = 0; n##_ < 5 && (n = (size_t)widths[n##_]); n##_++)
static const int32_t some_lanes[] = {1, 2, 3, 5};
#define FOR_LANES(l) for (int32_t l##_ = 0, l = 0; l##_ < 4 && (l = some_lanes[l##_]); l##_++)

static fb_view op2(const fb_isa *isa, fb_op_kind kind, fb_view a, fb_view b) {
    fb_view out = view(a.dtype, a.heads, a.width, 0);
    run(isa, kind, (fb_call){.in = {a, b}, .out = {out}}, 1);
    return out;
}

static fb_view op1(const fb_isa *isa, fb_op_kind kind, fb_view a) { return op2(isa, kind, a, a); }

static void elementwise(void **state) {
    (void)state;
    FOR_WIDTHS(n) FOR_KERNELS(isa, t) {
        fb_view a = filled(t, 1, (int64_t)n, 3), b = filled(t, 1, (int64_t)n, 0),
                c = filled(t, 1, (int64_t)n, 1);
        fb_view sum = op2(isa, FB_OP_ADD, op2(isa, FB_OP_ADD, a, b), c);
        fb_view product = op2(isa, FB_OP_MUL, op1(isa, FB_OP_SILU, a), b), out = view(t, 1, (int64_t)n, 2);
        FOR_LANES(lanes) {
            poison(&out);
            run(isa, FB_OP_ADD3, (fb_call){.in = {a, b, c}, .out = {out}}, lanes);
            same(isa, "add3", &out, &sum);
            poison(&out);
            run(isa, FB_OP_SWIGLU, (fb_call){.in = {a, b}, .out = {out}}, lanes);
            same(isa, "swiglu", &out, &product);
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
    for (int c = 0; c < 12; c++) FOR_WIDTHS(n) FOR_KERNELS(isa, t) {
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
            FOR_LANES(lanes) {
                for (int k = 0; k < 3; k++) poison(&out[k]);
                run(isa, FB_OP_ADD_NORM, call, lanes);
                for (int k = 0; k <= norms; k++)
                    same(isa, k ? "add_norm: norm" : "add_norm: sum", &out[k], &want[k]);
            }
            /* The sum over its last term. */
            call.out[0] = in[terms - 1];
            run(isa, FB_OP_ADD_NORM, call, 2);
            same(isa, "add_norm: in place", &in[terms - 1], &want[0]);
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

static fb_view quantized(const fb_isa *isa, fb_view x) {
    fb_view q = view(FB_F32, 1, fb_q8_floats(x.width), 0);
    run(isa, FB_OP_QUANTIZE, (fb_call){.in = {x}, .out = {q}}, 2);
    return q;
}

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
            FOR_LANES(lanes) for (int apart = 0; apart < 2; apart++) {
                call.apart = apart && !g->combine;
                for (int s = 0; s < outputs; s++) poison(&call.out[s]);
                run(isa, FB_OP_LINEAR_GROUP, call, lanes);
                for (int s = 0; s < outputs; s++) same(isa, what, &call.out[s], &want[s]);
            }
            if (g->combine != FB_COMBINE_ADD) continue;
            call.out[0] = residual;
            run(isa, FB_OP_LINEAR_GROUP, call, 3);
            same(isa, "linear_group over its residual", &residual, &want[0]);
        }
}

/* Apart, a lane writes its own part of every projection, and none of another's: what rope_kv relies on, which
 * follows without a barrier. */
static void lanes_apart(void **state) {
    (void)state;
    FOR_KERNELS(isa, t) {
        if (strcmp(isa->name, "ref") == 0) continue; /* lane 0 does all of it there, and all that follows */
        fbt_guard scratch = fbt_guard_create(SCRATCH, 0);
        fb_call call = {.rows = ROWS, .apart = true, .attr.segments = 3};
        for (int s = 0; s < 3; s++) {
            call.in[s] = filled(t, 1, 40, s);
            call.weights[4 * s] = weight(FB_F16, s ? 64 : 192, 40, 0);
            call.attr.segment[s] = (fb_segment){NO, NO, 0, FB_DOT_FLOAT};
            call.out[s] = view(t, 1, call.weights[4 * s].rows, 1);
            poison(&call.out[s]);
        }
        isa->kernels[FB_OP_LINEAR_GROUP](&call, &(fb_lane){1, 4, scratch.data});
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

/* The same with quantised weights of every type: decoded to floats, or packed, with inputs that are quantised
 * before or within; or within for every other segment, while its neighbours have floats, as in a file of
 * several types. The reference takes no part: it quantises what it has not rounded. */
static void quantised_group(void **state) {
    (void)state;
    enum { CASES = sizeof groups / sizeof *groups, MIXED = FB_DOT_QUANTIZE + 1 };
    enum { TYPES = FB_DTYPE_COUNT - FB_Q8_0 };
    for (size_t c = 0; c < TYPES * CASES; c++) FOR_KERNELS(isa, t) {
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
                FOR_LANES(lanes) {
                    for (int s = 0; s < outputs; s++) poison(&call.out[s]);
                    run(isa, FB_OP_LINEAR_GROUP, call, lanes);
                    for (int s = 0; s < outputs; s++) same(isa, what, &call.out[s], &want[s]);
                }
            }
        }
}

/* Two projections of one x that differ in one thing: what the first one prepared will not do for the second.
 */
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
            run(isa, FB_OP_LINEAR_GROUP, call, 2);
            for (int s = 0; s < 2; s++) same(isa, "segments of one input", &call.out[s], &want[s]);
        }
}

/* The reference quantises within as it does before, where nothing is rounded in between. */
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

/* More rows than are taken at once: each gives the bits that it gives alone. */
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

/* Equal columns, in one lane's part and in another's: the first one wins. */
static void head_argmax(void **state) {
    (void)state;
    FOR_WIDTHS(n) FOR_KERNELS(isa, t) {
        int64_t k = (int64_t)n, vocab = 97;
        fb_weight w = weight(FB_F32, vocab, k, 0);
        for (int64_t copy = 3; copy < vocab; copy += 31)
            for (int64_t i = 0; i < k; i++)
                fb_dtype_set(FB_F32, (void *)(uintptr_t)w.data, copy * k + i,
                             3 * fb_dtype_get(FB_F32, w.data, i) + (i == 0));
        fb_view x = filled(t, 1, k, 1), logits = view(t, 1, vocab, 0);
        run(isa, FB_OP_LINEAR, (fb_call){.in = {x}, .out = {logits}, .weights = {w}}, 1);
        FOR_LANES(lanes) {
            fb_view best = view(t == FB_F64 ? FB_F64 : FB_F32, 1, 2 * lanes, 3);
            run(isa, FB_OP_HEAD_ARGMAX, (fb_call){.in = {x}, .out = {best}, .weights = {w}, .act = x.dtype},
                lanes);
            for (int64_t row = 0; row < ROWS; row++) {
                int64_t want = 0, winner = 0;
                const void *l = fb_view_at(&logits, row, 0), *b = fb_view_at(&best, row, 0);
                for (int64_t i = 1; i < vocab; i++)
                    if (fb_dtype_get(t, l, i) > fb_dtype_get(t, l, want)) want = i;
                for (int64_t lane = 1; lane < lanes; lane++)
                    if (fb_dtype_get(best.dtype, b, 2 * lane) > fb_dtype_get(best.dtype, b, 2 * winner))
                        winner = lane;
                assert_int_equal((int64_t)fb_dtype_get(best.dtype, b, 2 * winner + 1), want);
                assert_true(fb_dtype_get(best.dtype, b, 2 * winner) == fb_dtype_get(t, l, want));
            }
        }
    }
}

/* With packed weights: the best of what the plain head stores. */
static void head_argmax_packed(void **state) {
    (void)state;
    enum { K = 96, VOCAB = 120 };
    FOR_KERNELS(isa, t)
    for (int dot = FB_DOT_FLOAT; dot <= FB_DOT_QUANTIZE && t != FB_F64; dot++) FOR_LANES(lanes) {
            fb_view x = filled(t, 1, K, 0), best = view(FB_F32, 1, 2 * lanes, 0);
            fb_call call = {.in = {x}, .out = {best}, .act = t, .attr.segment[0].dot = (fb_dot)dot};
            call.weights[0] = packed(weight(dot == FB_DOT_GIVEN ? FB_Q4_0 : FB_Q8_0, VOCAB, K, 0));
            if (dot == FB_DOT_GIVEN) call.in[0] = quantized(isa, x);
            fb_call plain = call;
            fb_view logits = plain.out[0] = view(t, 1, VOCAB, 0);
            if (dot == FB_DOT_QUANTIZE) {
                plain.in[0] = quantized(isa, x);
                plain.attr.segment[0].dot = FB_DOT_GIVEN;
            }
            run(isa, FB_OP_LINEAR, plain, 1);
            run(isa, FB_OP_HEAD_ARGMAX, call, lanes);
            for (int64_t row = 0; row < ROWS; row++) {
                const float *b = fb_view_at(&best, row, 0);
                const void *l = fb_view_at(&logits, row, 0);
                for (int32_t lane = 0; lane < lanes; lane++) {
                    int64_t begin, end, want;
                    fb_pool_share(VOCAB, 16, lane, lanes, &begin, &end);
                    for (int64_t i = want = begin; i < end; i++)
                        if (fb_dtype_get(t, l, i) > fb_dtype_get(t, l, want)) want = i;
                    assert_int_equal((int64_t)b[2 * lane + 1], want);
                    assert_true((double)b[2 * lane] == fb_dtype_get(t, l, want));
                }
            }
            give_back();
        }
}

/* The first and the last column of the vocabulary, of a block and of a lane's part can win. */
static void head_argmax_edges(void **state) {
    (void)state;
    enum { K = 7, VOCAB = 97 };
    static const int64_t edges[] = {0, 15, 16, 47, 48, 95, 96};
    FOR_KERNELS(isa, t) for (size_t e = 0; e < sizeof edges / sizeof *edges; e++) {
        fb_weight w = weight(FB_F32, VOCAB, K, 0);
        fb_view x = view(t, 1, K, 0);
        for (int64_t i = 0; i < ROWS * K; i++) fb_dtype_set(t, x.data, i, 1);
        for (int64_t i = 0; i < K; i++) fb_dtype_set(FB_F32, (void *)(uintptr_t)w.data, edges[e] * K + i, 8);
        fb_view best = view(t == FB_F64 ? FB_F64 : FB_F32, 1, 2 * 3, 0);
        run(isa, FB_OP_HEAD_ARGMAX, (fb_call){.in = {x}, .out = {best}, .weights = {w}, .act = x.dtype}, 3);
        for (int64_t row = 0; row < ROWS; row++) {
            const void *b = fb_view_at(&best, row, 0);
            int64_t winner = 0;
            for (int64_t lane = 1; lane < 3; lane++)
                if (fb_dtype_get(best.dtype, b, 2 * lane) > fb_dtype_get(best.dtype, b, 2 * winner))
                    winner = lane;
            assert_int_equal((int64_t)fb_dtype_get(best.dtype, b, 2 * winner + 1), edges[e]);
        }
        give_back();
    }
}

/* A lane that has a NaN column says NaN, so that whoever looks for the best of all can tell. */
static void head_argmax_nan(void **state) {
    (void)state;
    enum { K = 16, VOCAB = 97 };
    FOR_KERNELS(isa, t) {
        if (strcmp(isa->name, "ref") == 0) continue;
        for (int64_t bad = 0; bad < VOCAB; bad += 48) {
            fb_weight w = weight(FB_F32, VOCAB, K, 0);
            fb_dtype_set(FB_F32, (void *)(uintptr_t)w.data, bad * K, NAN);
            fb_view x = filled(t, 1, K, 0), best = view(FB_F32, 1, 2, 0);
            run(isa, FB_OP_HEAD_ARGMAX, (fb_call){.in = {x}, .out = {best}, .weights = {w}, .act = x.dtype},
                1);
            for (int64_t row = 0; row < ROWS; row++) {
                const float *b = fb_view_at(&best, row, 0);
                if (!isnan(b[0]) || b[1] != (float)bad)
                    fail_msg("%s, %s: column %lld is NaN: best %.9g of column %.0f", isa->name,
                             fb_dtype_name(t), (long long)bad, (double)b[0], (double)b[1]);
            }
        }
    }
}

/* ---- around the cache ---- */

static const struct shape {
    int64_t heads, kv_heads, width;
    int32_t rotary;
    int64_t position;
} shapes[] = {{1, 1, 2, 2, 0},     {4, 2, 7, 4, 3},      {6, 6, 16, 16, 0},   {6, 3, 33, 32, 9},
              {5, 5, 64, 16, 40},  {2, 1, 16, 8, 121},   {4, 4, 64, 32, 126}, {10, 2, 24, 8, 127},
              {3, 1, 64, 64, 250}, {12, 1, 20, 20, 254}, {1, 1, 80, 8, 380}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* What a cache may be under activations of `t`. */
static const fb_dtype *caches(fb_dtype t) {
    static const fb_dtype vector[] = {FB_F32, FB_F16, FB_BF16, FB_DTYPE_COUNT};
    static const fb_dtype reference[] = {FB_F64, FB_F16, FB_DTYPE_COUNT};
    return t == FB_F64 ? reference : vector;
}
#define FOR_CACHES(t, c) for (const fb_dtype *c = caches(t); *c != FB_DTYPE_COUNT; c++)

static int64_t cache_bytes(const fb_kv *kv) {
    return kv->heads * kv->capacity * kv->width * fb_dtype_size(kv->dtype);
}

/* Whether one of the step's tokens sees the slot. */
static bool slot_is_seen(const fb_ring *ring, int64_t position, int64_t slot) {
    for (int64_t row = 0; row < ROWS; row++)
        if (fb_ring_sees(ring, position + row, slot)) return true;
    return false;
}

/* Filled, it has numbers in every slot that a token of the step sees, and NaN elsewhere. */
static fb_kv ring_cache(fb_dtype t, const struct shape *s, const fb_ring *ring, int64_t position, bool fill) {
    int64_t slots = ring->window ? ring->begin + ring->size : position + ROWS + 1;
    int64_t capacity = (slots + FB_KV_LANES - 1) / FB_KV_LANES * FB_KV_LANES;
    fb_kv kv = {.dtype = t, .heads = s->kv_heads, .capacity = capacity, .width = s->width, .ring = *ring};
    kv.k = take(cache_bytes(&kv));
    kv.v = take(cache_bytes(&kv));
    for (int64_t h = 0; fill && h < s->kv_heads; h++)
        for (int64_t slot = 0; slot < fb_ring_count(ring, position + ROWS - 1); slot++) {
            double size = slot_is_seen(ring, position, slot) ? 1 : (double)NAN;
            for (int64_t i = 0; i < s->width; i++) {
                fb_dtype_set(t, fb_key_at(&kv, h, slot), i * FB_KV_LANES,
                             size * fbt_random_normal(&random_numbers));
                fb_dtype_set(t, fb_value_at(&kv, h, slot), i, size * fbt_random_normal(&random_numbers));
            }
        }
    return kv;
}

static const fb_ring dense;

/* Small and large, of one turn and of many, sinks in one block and in two; steps at the beginning, where the
 * ring fills, where it has turned often, and at positions that no 32 bits hold. The shape says heads and
 * widths. */
static const struct ring_case {
    fb_ring ring;
    int64_t position;
    int shape;
} ring_cases[] = {
    {{0, 1, 0, 8}, 0, 0},
    {{0, 5, 0, 12}, 100, 1},
    {{1, 9, 16, 16}, 3, 2},
    {{2, 10, 16, 17}, 11, 3},
    {{2, 10, 16, 17}, 5000, 4},
    {{4, 120, 16, 128}, 119, 5},
    {{4, 120, 16, 140}, 401, 6},
    {{4, 252, 16, 300}, 900, 7},
    {{20, 40, 32, 50}, 15, 8},
    {{20, 40, 32, 50}, 19, 0},
    {{130, 100, 144, 110}, 126, 1},
    {{130, 100, 144, 110}, 70000, 2},
    {{3, 300, 16, 310}, (1ll << 24) + 13, 3},
    {{16, 33, 16, 47}, (1ll << 33) + 7, 4},
    /* Rows that see nothing of the first block, beside rows that do. */
    {{0, 3, 0, 260}, 124, 5},
    {{0, 3, 0, 260}, 260 * 5 + 125, 8},
};
enum { RINGS = sizeof ring_cases / sizeof *ring_cases };

static void same_bytes(const fb_isa *isa, const char *what, const void *have, const void *want,
                       int64_t bytes) {
    if (memcmp(have, want, (size_t)bytes) != 0) fail_msg("%s: %s: the caches differ", isa->name, what);
}

static void rope_kv_into(const fb_isa *isa, fb_dtype t, fb_dtype c, const struct shape *s,
                         const fb_ring *ring, int64_t position) {
    fb_view q = filled(t, s->heads, s->width, 5), k = filled(t, s->kv_heads, s->width, 0);
    fb_view v = filled(t, s->kv_heads, s->width, 1);
    fb_dtype a = t == FB_F64 ? FB_F64 : FB_F32;
    fb_view angles[2] = {filled(a, 1, s->rotary, 2), filled(a, 1, s->rotary, 0)};
    fb_view want[2] = {view(t, s->heads, s->width, 0), view(t, s->heads, s->width, 0)};
    fb_view turned = view(t, s->kv_heads, s->width, 0);
    fb_call rope = {.attr.rotary = s->rotary, .position = position};
    int queries = ring->sinks ? 2 : 1;
    for (int n = 0; n < queries; n++) {
        rope.in[0] = q;
        rope.in[1] = angles[n];
        rope.out[0] = want[n];
        run(isa, FB_OP_ROPE, rope, 1);
    }
    rope.in[0] = k;
    rope.in[1] = angles[0];
    rope.out[0] = turned;
    run(isa, FB_OP_ROPE, rope, 1);
    fb_call append = {.in = {turned, v}, .kv = ring_cache(c, s, ring, position, false), .position = position};
    run(isa, FB_OP_KV_APPEND, append, 1);
    FOR_LANES(lanes) {
        fb_call call = {.in = {q, k, v, angles[0]},
                        .kv = ring_cache(c, s, ring, position, false),
                        .attr.rotary = s->rotary,
                        .position = position,
                        .by_head = true};
        for (int n = 0; n < queries; n++) {
            call.in[3 + n] = angles[n];
            call.out[n] = view(t, s->heads, s->width, 3);
        }
        run(isa, FB_OP_ROPE_KV, call, lanes);
        for (int n = 0; n < queries; n++) same(isa, "rope_kv", &call.out[n], &want[n]);
        same_bytes(isa, "rope_kv: k", call.kv.k, append.kv.k, cache_bytes(&call.kv));
        same_bytes(isa, "rope_kv: v", call.kv.v, append.kv.v, cache_bytes(&call.kv));
    }
}

static void rope_kv(void **state) {
    (void)state;
    for (int i = 0; i < SHAPES; i++) FOR_KERNELS(isa, t) FOR_CACHES(t, c) {
            rope_kv_into(isa, t, *c, &shapes[i], &dense, shapes[i].position);
            give_back();
        }
}

static void rope_kv_ring(void **state) {
    (void)state;
    for (int i = 0; i < RINGS; i++) FOR_KERNELS(isa, t) FOR_CACHES(t, c) {
            const struct ring_case *r = &ring_cases[i];
            rope_kv_into(isa, t, *c, &shapes[r->shape % SHAPES], &r->ring, r->position);
            give_back();
        }
}

/* The error of attn_flash: a score is a sum of terms that rounds by their size times u and moves its
 * exponential by as much, and there are two of them in a probability, of values up to 4; then one rounding to
 * the activation dtype. */
static void near(const fb_isa *isa, const char *what, const fb_view *have, const fb_view *truth,
                 double terms) {
    double limit = 2 * terms * 0x1p-24 * 4;
    double unit = have->dtype == FB_F16 ? 0x1p-11 : have->dtype == FB_BF16 ? 0x1p-8 : 0x1p-24;
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t i = 0; i < have->heads * have->width; i++) {
            double a = fb_dtype_get(have->dtype, fb_view_at(have, row, 0), i);
            double b = fb_dtype_get(FB_F64, fb_view_at(truth, row, 0), i);
            if (!(fabs(a - b) <= limit + unit * fabs(b)))
                fail_msg("%s, %s: %s: row %lld, column %lld: %.9g, should be %.9g", isa->name,
                         fb_dtype_name(have->dtype), what, (long long)row, (long long)i, a, b);
        }
}

/* What the plain kernels make of the call. */
static fb_view plain_attention(const fb_isa *isa, const fb_call *call) {
    const fb_view *q = &call->in[0];
    fb_view scores = view(q->dtype, q->heads, call->kv.capacity, 0);
    fb_view probs = view(q->dtype, q->heads, call->kv.capacity, 0);
    fb_view out = view(q->dtype, q->heads, q->width, 0);
    scores.width = probs.width = 0;
    fb_call step = *call;
    step.out[0] = scores;
    run(isa, FB_OP_ATTN_SCORES, step, 1);
    step.in[0] = scores;
    step.out[0] = probs;
    run(isa, FB_OP_SOFTMAX, step, 1);
    step.in[0] = probs;
    step.out[0] = out;
    run(isa, FB_OP_ATTN_VALUES, step, 1);
    return out;
}

/* The op on all rows, on any number of lanes, and on each row alone. */
static void check_attention(const fb_isa *isa, fb_op_kind kind, fb_call call, const fb_view *want) {
    call.out[0] = view(want->dtype, want->heads, want->width, 1);
    FOR_LANES(lanes) for (int by_head = 0; by_head < 2; by_head++) {
        call.by_head = by_head;
        poison(&call.out[0]);
        run(isa, kind, call, lanes);
        same(isa, fb_op_table[kind].name, &call.out[0], want);
    }
    poison(&call.out[0]);
    for (int64_t row = 0; row < ROWS; row++) {
        fb_call one = call;
        one.rows = 1;
        one.position += row;
        one.in[0].data = fb_view_at(&call.in[0], row, 0);
        if (call.in[1].data) one.in[1].data = fb_view_at(&call.in[1], row, 0);
        one.out[0].data = fb_view_at(&call.out[0], row, 0);
        run(isa, kind, one, 2);
    }
    same(isa, fb_op_table[kind].name, &call.out[0], want);
}

/* The largest sum of |q k| of a score, whose rounding errors are of that size times u. */
static double largest_terms(const fb_call *call) {
    const fb_kv *kv = &call->kv;
    double most = 0;
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t head = 0; head < call->in[0].heads; head++)
            for (int64_t slot = 0; slot < fb_ring_count(&kv->ring, call->position + row); slot++) {
                const fb_view *q = &call->in[slot < kv->ring.sinks];
                double sum = 0;
                if (!fb_ring_sees(&kv->ring, call->position + row, slot)) continue;
                for (int64_t i = 0; i < q->width; i++)
                    sum += fabs(fb_dtype_get(q->dtype, fb_view_at(q, row, head), i) *
                                fb_dtype_get(kv->dtype, fb_key_at(kv, head / (q->heads / kv->heads), slot),
                                             i * FB_KV_LANES));
                most = fmax(most, sum * (double)call->attr.scale);
            }
    return most;
}

static void attention_over(const fb_isa *isa, fb_dtype t, fb_dtype c, const struct shape *s,
                           const fb_ring *ring, int64_t position, float scale) {
    const fb_isa *ref;
    assert_int_equal(fb_isa_find("ref", &ref, NULL), FB_OK);
    fb_call call = {.in = {filled(t, s->heads, s->width, 2)},
                    .kv = ring_cache(c, s, ring, position, true),
                    .attr.scale = scale,
                    .position = position};
    if (ring->sinks) call.in[1] = filled(t, s->heads, s->width, 1);
    fb_view want = plain_attention(isa, &call);
    check_attention(isa, FB_OP_ATTN_ROWS, call, &want);
    fb_view truth = view(FB_F64, s->heads, s->width, 0), flash = view(t, s->heads, s->width, 0);
    call.out[0] = truth;
    run(ref, FB_OP_ATTN_FLASH, call, 1);
    if (t == FB_F32) near(isa, "plain", &want, &truth, largest_terms(&call));
    call.out[0] = flash;
    run(isa, FB_OP_ATTN_FLASH, call, 1);
    near(isa, "attn_flash", &flash, &truth, largest_terms(&call));
    check_attention(isa, FB_OP_ATTN_FLASH, call, &flash);
}

static void attention_ring(void **state) {
    (void)state;
    for (int i = 0; i < RINGS; i++) FOR_KERNELS(isa, t) FOR_CACHES(t, c) {
            const struct ring_case *r = &ring_cases[i];
            attention_over(isa, t, *c, &shapes[r->shape % SHAPES], &r->ring, r->position, 0.2f);
            give_back();
        }
}

static void attention(void **state) {
    (void)state;
    for (int i = 0; i < 2 * SHAPES; i++) FOR_KERNELS(isa, t) FOR_CACHES(t, c) {
            attention_over(isa, t, *c, &shapes[i / 2], &dense, shapes[i / 2].position, i % 2 ? 1 : 0.2f);
            give_back();
        }
}

static int start(void **state) {
    (void)state;
    random_numbers = fbt_random_start(41);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise),
        cmocka_unit_test(add_norm),
        cmocka_unit_test(linear_group),
        cmocka_unit_test(lanes_apart),
        cmocka_unit_test(quantised_group),
        cmocka_unit_test(one_difference),
        cmocka_unit_test(reference_quantises),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(head_argmax),
        cmocka_unit_test(head_argmax_packed),
        cmocka_unit_test(head_argmax_edges),
        cmocka_unit_test(head_argmax_nan),
        cmocka_unit_test(rope_kv),
        cmocka_unit_test(rope_kv_ring),
        cmocka_unit_test(attention_ring),
        cmocka_unit_test(attention),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
