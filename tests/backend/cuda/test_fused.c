/* Fused CUDA kernels against the plain ones that they replace: the same bits, at every number of rows that a
 * kernel may handle differently. Gaps between rows are NaN before and after. attn_flash promises no bits; it
 * is compared with the reference. The last test fails if an op of the table was never launched. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/cuda_harness.h"

enum { POOL = 160 };
#define NO FB_OP_COUNT

static fbt_guard pool[POOL];
static int pooled;
static fbt_random random_numbers;
static int64_t rows; /* of all calls */

static const int64_t few_rows[] = {1, 2, 5, 8, 9, 24, 0};
static const int64_t many_rows[] = {1, 2, 5, 8, 9, 24, 130, 0};
#define FOR_ROWS(list) for (const int64_t *at_ = list; (rows = *at_) != 0; at_++)
#define FOR_ACTS(t)                                                                                          \
    for (int t##_ = FB_F32; t##_ <= FB_BF16; t##_++)                                                         \
        for (fb_dtype t = (fb_dtype)t##_, *once_ = &t; once_; once_ = NULL, give_back())

/* Every case on a GPU, otherwise one in so many; which one differs with the loops' inner variables. */
static int64_t cases;
static bool passed_over(int emulated) { return cases++ % cuda_every(emulated) != 0; }

static void *take(int64_t bytes) {
    assert_true(pooled < POOL);
    pool[pooled] = fbt_guard_create((size_t)bytes, 0);
    return pool[pooled++].data;
}

static void give_back(void) {
    while (pooled) fbt_guard_free(&pool[--pooled]);
}

static fb_view view(fb_dtype t, int64_t heads, int64_t width, int64_t gap) {
    int64_t stride = heads * width + gap;
    return (fb_view){take(rows * stride * fb_dtype_size(t)), t, heads, width, stride, width};
}

static fb_view filled(fb_dtype t, int64_t heads, int64_t width, int64_t gap) {
    fb_view v = view(t, heads, width, gap);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < heads * width; i++)
            fb_dtype_set(t, fb_view_at(&v, row, 0), i, 0.3 + 1.5 * fbt_random_normal(&random_numbers));
    return v;
}

/* The rows of a call. */
static const fb_row *rows_at(int64_t first, spacing spaced) {
    fb_row *row = take(rows * (int64_t)sizeof *row);
    place_rows(row, rows, first, spaced);
    return row;
}

static fb_weight weight(fb_dtype t, int64_t n, int64_t k, double mean) {
    void *data = take(fb_dtype_bytes(t, n * k));
    if (!fb_dtype_is_float(t)) fbt_random_blocks(&random_numbers, t, n * k, 0.4, data);
    for (int64_t i = 0; fb_dtype_is_float(t) && i < n * k; i++)
        fb_dtype_set(t, data, i, mean + 0.4 * fbt_random_normal(&random_numbers));
    return (fb_weight){.data = data, .dtype = t, .rows = n, .cols = k};
}

static void poison(const fb_view *v) {
    memset(v->data, 0xff, (size_t)(rows * v->row_stride * fb_dtype_size(v->dtype)));
}

static void run(fb_op_kind kind, fb_call call) {
    call.rows = call.rows ? call.rows : rows;
    cuda_isas[0].kernels[kind](&call, &(fb_worker){.count = 1});
}

/* The same bits; and NaN in the gaps. */
static void same(const char *what, const fb_view *have, const fb_view *want) {
    int64_t cols = want->heads * want->width, size = fb_dtype_size(want->dtype);
    for (int64_t row = 0; row < rows; row++) {
        const void *h = fb_view_at(have, row, 0), *w = fb_view_at(want, row, 0);
        for (int64_t i = 0; i < cols; i++) {
            double a = fb_dtype_get(want->dtype, h, i), b = fb_dtype_get(want->dtype, w, i);
            if (a != a || memcmp((const char *)h + i * size, (const char *)w + i * size, (size_t)size) != 0)
                fail_msg("%s, %s: row %lld of %lld, column %lld of %lld: %.9g, plain %.9g",
                         fb_dtype_name(want->dtype), what, (long long)row, (long long)rows, (long long)i,
                         (long long)cols, a, b);
        }
        for (int64_t i = cols; row + 1 < rows && i < have->row_stride; i++) {
            double gap = fb_dtype_get(have->dtype, h, i);
            if (gap == gap) fail_msg("%s: wrote between rows", what);
        }
    }
}

static fb_view op2(fb_op_kind kind, fb_view a, fb_view b) {
    fb_view out = view(a.dtype, a.heads, a.width, 0);
    run(kind, (fb_call){.in = {a, b}, .out = {out}});
    return out;
}

static fb_view op1(fb_op_kind kind, fb_view a) {
    fb_view out = view(a.dtype, a.heads, a.width, 0);
    run(kind, (fb_call){.in = {a}, .out = {out}});
    return out;
}

static const int64_t widths[] = {1, 7, 16, 33, 100, 264, 1030};
enum { WIDTHS = sizeof widths / sizeof *widths };

/* ---- elementwise, norms ---- */

static void elementwise(void **state) {
    (void)state;
    for (int w = 0; w < WIDTHS; w++) FOR_ROWS(few_rows) FOR_ACTS(t) {
            if (passed_over(5)) continue;
            int64_t n = widths[w];
            fb_view a = filled(t, 1, n, 3), b = filled(t, 1, n, 0), c = filled(t, 1, n, 8),
                    out = view(t, 1, n, 2);
            fb_view sum = op2(FB_OP_ADD, op2(FB_OP_ADD, a, b), c);
            run(FB_OP_ADD3, (fb_call){.in = {a, b, c}, .out = {out}});
            same("add3", &out, &sum);
            fb_view product = op2(FB_OP_MUL, op1(FB_OP_SILU, a), b);
            static const fb_op_kind gelus[] = {FB_OP_GELU, FB_OP_GELU_TANH};
            for (int k = 0; k < 2; k++) {
                fb_view gated = op2(FB_OP_MUL, op1(gelus[k], a), b);
                poison(&out);
                run(FB_OP_SWIGLU, (fb_call){.in = {a, b}, .out = {out}, .attr.act = gelus[k]});
                same("swiglu", &out, &gated);
            }
            poison(&out);
            run(FB_OP_SWIGLU, (fb_call){.in = {a, b}, .out = {out}});
            same("swiglu", &out, &product);
            run(FB_OP_SWIGLU, (fb_call){.in = {a, b}, .out = {b}});
            same("swiglu in place", &b, &product);
            run(FB_OP_ADD3, (fb_call){.in = {a, a, c}, .out = {a}});
        }
}

static fb_view norm_of(fb_op_kind kind, fb_view x, fb_weight w, fb_weight b, float eps) {
    fb_view out = view(x.dtype, x.heads, x.width, 0);
    run(kind, (fb_call){.in = {x}, .out = {out}, .weights = {w, b}, .attr.eps = eps});
    return out;
}

/* Norms 0: after the last layer there are no weights if the final norm is another one. */
static void add_norm(void **state) {
    (void)state;
    for (int c = 0; c < 12; c++)
        for (int w = 0; w < WIDTHS; w++) FOR_ROWS(few_rows) FOR_ACTS(t) {
                if (passed_over(17)) continue;
                fb_op_kind kind = c & 1 ? FB_OP_RMSNORM : FB_OP_LAYERNORM;
                int terms = c & 2 ? 3 : 2, norms = c / 4;
                int64_t n = widths[w];
                fb_view in[3], want[3];
                fb_call call = {
                    .attr = {.terms = terms, .norms = norms ? norms : 1, .norm = kind, .eps = 1e-3f}};
                for (int k = 0; k < 3; k++) in[k] = filled(t, 1, n, k);
                for (int k = 0; k < terms; k++) call.in[k] = in[k];
                want[0] = op2(FB_OP_ADD, in[0], in[1]);
                if (terms == 3) want[0] = op2(FB_OP_ADD, want[0], in[2]);
                for (int k = 0; k < norms; k++) {
                    call.weights[2 * k] = weight(k ? FB_F16 : FB_F32, 1, n, 1);
                    if (kind == FB_OP_LAYERNORM)
                        call.weights[2 * k + 1] = weight(k ? FB_BF16 : FB_F32, 1, n, 0);
                    want[1 + k] = norm_of(kind, want[0], call.weights[2 * k], call.weights[2 * k + 1], 1e-3f);
                }
                for (int k = 0; k <= (norms ? norms : 1); k++) call.out[k] = view(t, 1, n, 2 - k);
                run(FB_OP_ADD_NORM, call);
                for (int k = 0; k <= norms; k++)
                    same(k ? "add_norm: norm" : "add_norm: sum", &call.out[k], &want[k]);
                call.out[0] = in[terms - 1]; /* the sum over its last term */
                run(FB_OP_ADD_NORM, call);
                same("add_norm: in place", &in[terms - 1], &want[0]);
            }
}

static void norm_add(void **state) {
    (void)state;
    for (int c = 0; c < 3; c++)
        for (int w = 0; w < WIDTHS; w++) FOR_ROWS(few_rows) FOR_ACTS(t) {
                if (passed_over(7)) continue;
                fb_op_kind kind = c == 1 ? FB_OP_RMSNORM : FB_OP_LAYERNORM;
                int64_t n = widths[w];
                fb_view x = filled(t, 1, n, 1), r = filled(t, 1, n, 2);
                fb_weight none = {0};
                fb_call call = {.in = {x, r},
                                .out = {view(t, 1, n, 1)},
                                .weights = {weight(FB_F32, 1, n, 1), c ? none : weight(FB_F16, 1, n, 0)},
                                .attr = {.norm = kind, .eps = 1e-3f}};
                fb_view want = op2(FB_OP_ADD, norm_of(kind, x, call.weights[0], call.weights[1], 1e-3f), r);
                run(FB_OP_NORM_ADD, call);
                same("norm_add", &call.out[0], &want);
                call.out[0] = r; /* over what is added */
                run(FB_OP_NORM_ADD, call);
                same("norm_add: in place", &r, &want);
            }
}

/* ---- linear_group ---- */

typedef struct group_case {
    int segments;
    fb_combine combine;
    fb_op_kind norm[3], act[3];
    enum { APART, SHARED, OWN_NORMS } inputs; /* one for all, with one norm or with a norm for each */
} group_case;

static const group_case groups[] = {
    {1, FB_COMBINE_NONE, {NO}, {NO}, APART},
    {1, FB_COMBINE_NONE, {NO}, {FB_OP_GELU}, APART},
    {1, FB_COMBINE_NONE, {FB_OP_LAYERNORM}, {FB_OP_GELU_TANH}, APART},
    {1, FB_COMBINE_NONE, {FB_OP_RMSNORM}, {FB_OP_SILU}, APART},
    {2, FB_COMBINE_NONE, {FB_OP_LAYERNORM, FB_OP_LAYERNORM}, {NO, FB_OP_GELU}, APART},
    {3, FB_COMBINE_NONE, {NO, NO, NO}, {NO, NO, NO}, SHARED},
    {3, FB_COMBINE_NONE, {FB_OP_RMSNORM, FB_OP_RMSNORM, FB_OP_RMSNORM}, {NO, NO, NO}, SHARED},
    {2, FB_COMBINE_NONE, {FB_OP_LAYERNORM, FB_OP_LAYERNORM}, {NO, FB_OP_GELU}, OWN_NORMS},
    {3, FB_COMBINE_NONE, {NO, FB_OP_LAYERNORM, FB_OP_RMSNORM}, {FB_OP_SILU, NO, FB_OP_GELU}, APART},
    {2, FB_COMBINE_MUL, {NO, NO}, {FB_OP_SILU, NO}, SHARED},
    {2, FB_COMBINE_MUL, {FB_OP_RMSNORM, FB_OP_RMSNORM}, {FB_OP_SILU, NO}, SHARED},
    {1, FB_COMBINE_ADD, {NO}, {NO}, APART},
    {1, FB_COMBINE_ADD, {FB_OP_LAYERNORM}, {FB_OP_GELU}, APART},
    {2, FB_COMBINE_ADD, {NO, NO}, {NO, NO}, APART},
};
enum { GROUPS = sizeof groups / sizeof *groups };

static fb_view quantized(fb_view x) {
    fb_view q = view(FB_F32, 1, fb_q8_floats(x.width), 0);
    run(FB_OP_QUANTIZE, (fb_call){.in = {x}, .out = {q}});
    return q;
}

/* Segment s by plain kernels. */
static fb_view plain_segment(fb_dtype t, const fb_call *call, int s) {
    fb_view x = call->in[s];
    const fb_weight *w = &call->weights[4 * s];
    const fb_segment *seg = &call->attr.segment[s];
    if (seg->norm != NO) x = norm_of(seg->norm, x, w[2], w[3], seg->eps);
    fb_view y = view(t, 1, w->rows, 0);
    fb_call linear = {.in = {x}, .out = {y}, .weights = {w[0], w[1]}};
    if (seg->dot != FB_DOT_FLOAT) {
        linear.attr.segment[0].dot = FB_DOT_GIVEN;
        if (seg->dot == FB_DOT_QUANTIZE) linear.in[0] = quantized(x);
    }
    run(FB_OP_LINEAR, linear);
    return seg->act == NO ? y : op1(seg->act, y);
}

/* Runs the filled call; if it has a residual, also with the output over it. */
static void check_group(const group_case *g, fb_dtype t, fb_call *call, const char *what) {
    int outputs = g->combine ? 1 : g->segments;
    fb_view want[3], residual = {0};
    for (int s = 0; s < g->segments; s++) want[s] = plain_segment(t, call, s);
    if (g->combine == FB_COMBINE_MUL) want[0] = op2(FB_OP_MUL, want[0], want[1]);
    if (g->combine == FB_COMBINE_ADD) {
        residual = filled(t, 1, call->weights[0].rows, 4);
        if (g->segments == 2) want[0] = op2(FB_OP_ADD, want[0], want[1]);
        want[0] = op2(FB_OP_ADD, want[0], residual);
        call->in[FB_RESIDUAL] = residual;
    }
    for (int s = 0; s < outputs; s++) call->out[s] = view(t, 1, call->weights[4 * s].rows, s + 1);
    run(FB_OP_LINEAR_GROUP, *call);
    for (int s = 0; s < outputs; s++) same(what, &call->out[s], &want[s]);
    if (g->combine != FB_COMBINE_ADD) return;
    call->out[0] = residual;
    run(FB_OP_LINEAR_GROUP, *call);
    same(what, &residual, &want[0]);
}

/* Columns and outputs: odd numbers, and some that allow reads of 16 bytes. */
static const struct {
    int64_t k, n;
} sizes[] = {{5, 3}, {18, 44}, {31, 85}, {64, 48}, {128, 136}, {320, 64}, {1027, 19}};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Weights: 16 bits of both kinds, or the activations' own type, or float32. */
static void linear_group(void **state) {
    (void)state;
    for (int g = 0; g < GROUPS; g++)
        for (int size = 0; size < SIZES; size++)
            for (int variant = 0; variant < 3; variant++) FOR_ROWS(many_rows) FOR_ACTS(t) {
                    if (passed_over(59)) continue;
                    const group_case *c = &groups[g];
                    fb_call call = {.attr = {.segments = c->segments, .combine = c->combine}};
                    for (int s = 0; s < c->segments; s++) {
                        bool again = c->inputs && s;
                        int64_t k = sizes[size].k + (c->inputs ? 0 : 8 * s),
                                n = sizes[size].n + (c->combine ? 0 : 7 * s);
                        fb_weight *w = &call.weights[4 * s];
                        fb_dtype type = variant == 0 ? (s ? FB_F16 : FB_BF16) : variant == 1 ? t : FB_F32;
                        call.in[s] = again ? call.in[0] : filled(t, 1, k, s);
                        w[0] = weight(type, n, k, 0);
                        if ((g + size + variant) % 3) w[1] = weight(s ? FB_F32 : FB_F16, 1, n, 1);
                        call.attr.segment[s] = (fb_segment){c->norm[s], c->act[s], 1e-3f, FB_DOT_FLOAT};
                        if (c->norm[s] == NO) continue;
                        w[2] = again && c->inputs == SHARED ? call.weights[2] : weight(FB_F16, 1, k, 1);
                        if (c->norm[s] == FB_OP_LAYERNORM)
                            w[3] = again && c->inputs == SHARED ? call.weights[3] : weight(FB_F16, 1, k, 0);
                    }
                    char what[80];
                    snprintf(what, sizeof what, "linear_group case %d, %lld to %lld, variant %d", g,
                             (long long)sizes[size].k, (long long)sizes[size].n, variant);
                    check_group(c, t, &call, what);
                }
}

/* Quantised types: multiplied as floats, or with inputs quantised before or within the op, or mixed. */
static void quantised_group(void **state) {
    (void)state;
    enum { MIXED = FB_DOT_QUANTIZE + 1, DOTS };
    for (int g = 0; g < GROUPS; g++)
        for (int dot = 0; dot < DOTS; dot++)
            for (int type = FB_Q8_0; type < FB_DTYPE_COUNT; type++)
                for (int wide = 0; wide < 2; wide++) FOR_ROWS(many_rows) FOR_ACTS(t) {
                        const group_case *c = &groups[g];
                        const int64_t unit = fb_dtype_block((fb_dtype)type);
                        if (dot == FB_DOT_GIVEN && c->norm[0] != NO) continue;
                        if (passed_over(type <= FB_Q4_0 ? 59 : 251)) continue;
                        cuda_records = cases / 2 % 2;
                        fb_call call = {.attr = {.segments = c->segments, .combine = c->combine}};
                        for (int s = 0; s < c->segments; s++) {
                            int64_t k = unit * ((wide ? unit == 32 ? 17 : 9 : 2) + (c->inputs ? 1 : s)),
                                    n = 50 + (c->combine ? 0 : 23 * s);
                            fb_weight *w = &call.weights[4 * s];
                            bool again = c->inputs && s;
                            fb_dot mine =
                                dot == FB_DOT_GIVEN && c->norm[s] != NO ? FB_DOT_QUANTIZE : (fb_dot)dot;
                            if (dot == MIXED) mine = s % 2 ? FB_DOT_FLOAT : FB_DOT_QUANTIZE;
                            call.in[s] = again ? call.in[0] : filled(t, 1, k, s);
                            if (mine == FB_DOT_GIVEN && !again) call.in[s] = quantized(call.in[s]);
                            w[0] = weight((fb_dtype)type, n, k, 0);
                            w[1] = weight(FB_F16, 1, n, 1);
                            call.attr.segment[s] = (fb_segment){c->norm[s], c->act[s], 1e-3f, mine};
                            if (c->norm[s] != NO)
                                w[2] =
                                    again && c->inputs == SHARED ? call.weights[2] : weight(FB_F32, 1, k, 1);
                            if (c->norm[s] == FB_OP_LAYERNORM)
                                w[3] =
                                    again && c->inputs == SHARED ? call.weights[3] : weight(FB_F32, 1, k, 0);
                        }
                        char what[80];
                        snprintf(what, sizeof what, "%s linear_group case %d, dot %d, %s",
                                 fb_dtype_name((fb_dtype)type), g, dot, wide ? "wide" : "narrow");
                        check_group(c, t, &call, what);
                    }
    cuda_records = false;
}

/* Each segment has a type of its own, some float and some quantised. */
static void several_types(void **state) {
    (void)state;
    static const fb_dtype types[] = {FB_Q4_0, FB_F16,  FB_Q8_0, FB_F32,   FB_BF16,
                                     FB_Q5_K, FB_Q6_K, FB_Q4_K, FB_MXFP4, FB_Q2_K};
    enum { TYPES = sizeof types / sizeof *types };
    for (int g = 0; g < GROUPS; g++)
        for (int first = 0; first < TYPES; first++) FOR_ROWS(few_rows) FOR_ACTS(t) {
                const group_case *c = &groups[g];
                if (c->segments == 1 || passed_over(29)) continue;
                fb_call call = {.attr = {.segments = c->segments, .combine = c->combine}};
                for (int s = 0; s < c->segments; s++) {
                    fb_dtype type = types[(first + s) % TYPES];
                    fb_weight *w = &call.weights[4 * s];
                    bool again = c->inputs && s;
                    call.in[s] = again ? call.in[0] : filled(t, 1, 256, s);
                    w[0] = weight(type, 50 + (c->combine ? 0 : 23 * s), 256, 0);
                    call.attr.segment[s] = (fb_segment){
                        c->norm[s], c->act[s], 1e-3f, fb_pack_gpu_has(type) ? FB_DOT_QUANTIZE : FB_DOT_FLOAT};
                    if (c->norm[s] != NO)
                        w[2] = again && c->inputs == SHARED ? call.weights[2] : weight(FB_F32, 1, 256, 1);
                    if (c->norm[s] == FB_OP_LAYERNORM)
                        w[3] = again && c->inputs == SHARED ? call.weights[3] : weight(FB_F32, 1, 256, 0);
                }
                char what[80];
                snprintf(what, sizeof what, "linear_group case %d, types from %s on", g,
                         fb_dtype_name(types[first]));
                check_group(c, t, &call, what);
            }
}

/* Two projections of one x that differ in one thing: the input prepared for the first does not fit the
 * second. */
static void one_difference(void **state) {
    (void)state;
    static const int64_t one_and_more[] = {1, 5, 24, 0};
    static const group_case two = {2, FB_COMBINE_NONE, {NO, NO}, {NO, NO}, APART};
    enum { COLUMNS, NORM, EPS, WEIGHT, BIAS, DOT, DIFFERENCES };
    for (int what = 0; what < DIFFERENCES; what++) FOR_ROWS(one_and_more) FOR_ACTS(t) {
            if (passed_over(5)) continue;
            fb_view x = filled(t, 1, 64, 0);
            fb_call call = {.attr = {.segments = 2, .combine = FB_COMBINE_NONE}, .in = {x, x}};
            for (int s = 0; s < 2; s++) {
                fb_weight *w = &call.weights[4 * s];
                int64_t k = what == COLUMNS && s ? 32 : 64;
                call.attr.segment[s] = (fb_segment){FB_OP_LAYERNORM, NO, 1e-3f, FB_DOT_QUANTIZE};
                call.in[s].width = call.in[s].head_stride = k;
                w[0] = weight(FB_Q8_0, 19, k, 0);
                w[2] = s && what != WEIGHT && what != COLUMNS ? call.weights[2] : weight(FB_F32, 1, k, 1);
                w[3] = s && what != BIAS && what != COLUMNS ? call.weights[3] : weight(FB_F32, 1, k, 0);
            }
            if (what == NORM) call.attr.segment[1].norm = FB_OP_RMSNORM;
            if (what == EPS) call.attr.segment[1].eps = 1;
            if (what == DOT) call.attr.segment[1].dot = FB_DOT_FLOAT;
            check_group(&two, t, &call, "segments of one input");
        }
}

/* ---- head_argmax ---- */

/* The plain head's scores. Its kernel takes 8 rows at a time, and so does this. */
static fb_view head_of(fb_dtype t, fb_call call) {
    fb_view logits = view(t, 1, call.weights[0].rows, 0);
    if (call.attr.segment[0].dot == FB_DOT_QUANTIZE) {
        call.in[0] = quantized(call.in[0]);
        call.attr.segment[0].dot = FB_DOT_GIVEN;
    }
    fb_call part = call;
    for (int64_t row = 0; row < rows; row += 8) {
        part.rows = rows - row < 8 ? rows - row : 8;
        part.in[0].data = fb_view_at(&call.in[0], row, 0);
        part.out[0] = logits;
        part.out[0].data = fb_view_at(&logits, row, 0);
        run(FB_OP_LINEAR, part);
    }
    return logits;
}

static void check_best(fb_dtype t, fb_call call, const char *what) {
    fb_view logits = head_of(t, call);
    call.out[0] = view(FB_F32, 1, 2, 3);
    call.act = t;
    run(FB_OP_HEAD_ARGMAX, call);
    for (int64_t row = 0; row < rows; row++) {
        const void *l = fb_view_at(&logits, row, 0);
        const float *b = fb_view_at(&call.out[0], row, 0);
        int64_t want = 0;
        bool nan = false;
        for (int64_t i = 0; i < logits.width; i++) {
            nan = nan || isnan(fb_dtype_get(t, l, i));
            if (fb_dtype_get(t, l, i) > fb_dtype_get(t, l, want)) want = i;
        }
        if (nan ? b[1] != -1 : b[1] != (float)want || (double)b[0] != fb_dtype_get(t, l, want))
            fail_msg("head_argmax, %s, %s: row %lld of %lld: %.9g at %.0f, plain %.9g at %lld",
                     fb_dtype_name(t), what, (long long)row, (long long)rows, (double)b[0], (double)b[1],
                     fb_dtype_get(t, l, want), nan ? -1 : (long long)want);
    }
}

/* Equal columns: the first one wins. */
static void head_ties(void **state) {
    (void)state;
    for (int w = 0; w < WIDTHS; w++) FOR_ROWS(few_rows) FOR_ACTS(t) {
            if (passed_over(7)) continue;
            int64_t k = widths[w], vocab = 397;
            fb_weight head = weight(w % 2 ? FB_F32 : FB_F16, vocab, k, 0);
            for (int64_t copy = 3; copy < vocab; copy += 31)
                for (int64_t i = 0; i < k; i++)
                    fb_dtype_set(head.dtype, (void *)(uintptr_t)head.data, copy * k + i,
                                 3 * fb_dtype_get(head.dtype, head.data, i) + (i == 0));
            check_best(t, (fb_call){.in = {filled(t, 1, k, 1)}, .weights = {head}}, "equal columns");
        }
}

static void head_quantised(void **state) {
    (void)state;
    for (int dot = FB_DOT_FLOAT; dot <= FB_DOT_QUANTIZE; dot++)
        for (int type = FB_Q8_0; type < FB_DTYPE_COUNT; type++) FOR_ROWS(few_rows) FOR_ACTS(t) {
                if (passed_over(type <= FB_Q4_0 ? 7 : 31)) continue;
                cuda_records = cases / 2 % 2;
                fb_call call = {.in = {filled(t, 1, 256, 0)}, .attr.segment[0].dot = (fb_dot)dot};
                call.weights[0] = weight((fb_dtype)type, 120, 256, 0);
                if (dot == FB_DOT_GIVEN) call.in[0] = quantized(call.in[0]);
                check_best(t, call, fb_dtype_name((fb_dtype)type));
            }
    cuda_records = false;
}

/* The first and the last column of the vocabulary and of a block's share can win, and so can NaN. */
static void head_edges(void **state) {
    (void)state;
    enum { K = 7, VOCAB = 600 };
    static const int64_t edges[] = {0, 1, 7, 8, 31, 32, 63, 64, 511, 512, 598, 599};
    static const int64_t one_and_more[] = {1, 8, 0};
    for (size_t e = 0; e < 2 * sizeof edges / sizeof *edges; e++) FOR_ROWS(one_and_more) FOR_ACTS(t) {
            if (passed_over(5)) continue;
            fb_weight head = weight(FB_F32, VOCAB, K, 0);
            fb_view x = view(t, 1, K, 0);
            for (int64_t i = 0; i < rows * K; i++) fb_dtype_set(t, x.data, i, 1);
            for (int64_t i = 0; i < K; i++)
                fb_dtype_set(FB_F32, (void *)(uintptr_t)head.data, edges[e / 2] * K + i, e % 2 ? NAN : 8);
            check_best(t, (fb_call){.in = {x}, .weights = {head}}, e % 2 ? "a NaN" : "edges");
        }
}

/* ---- around the cache ---- */

static const struct shape {
    int64_t heads, kv_heads, width;
    int32_t rotary;
    int64_t position;
} shapes[] = {{1, 1, 2, 2, 0},     {4, 2, 7, 4, 3},      {6, 6, 16, 16, 0},   {6, 3, 33, 32, 9},
              {5, 5, 64, 16, 40},  {2, 1, 16, 8, 121},   {4, 4, 64, 32, 126}, {10, 2, 24, 8, 127},
              {3, 1, 64, 64, 250}, {12, 1, 20, 20, 254}, {1, 1, 80, 20, 380}, {2, 2, 128, 128, 63},
              {1, 1, 256, 64, 17}, {2, 1, 80, 20, 700}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int64_t cache_bytes(const fb_kv *kv) {
    return kv->heads * kv->capacity * kv->width * fb_dtype_size(kv->dtype);
}

/* NaN beyond what is filled. */
static fb_kv cache(fb_dtype t, const struct shape *s, const fb_row *row, bool fill) {
    int64_t end = row[rows - 1].position + 1, capacity = (end + FB_KV_GROUP) / FB_KV_GROUP * FB_KV_GROUP;
    fb_kv kv = {.dtype = t, .heads = s->kv_heads, .capacity = capacity, .width = s->width};
    kv.k = take(cache_bytes(&kv));
    kv.v = take(cache_bytes(&kv));
    for (int64_t h = 0; fill && h < s->kv_heads; h++)
        for (int64_t position = 0; position < end; position++)
            for (int64_t i = 0; i < s->width; i++) {
                fb_dtype_set(t, fb_key_at(&kv, h, position), i * FB_KV_GROUP,
                             fbt_random_normal(&random_numbers));
                fb_dtype_set(t, fb_value_at(&kv, h, position), i, fbt_random_normal(&random_numbers));
            }
    return kv;
}

static void rope_kv(void **state) {
    (void)state;
    for (int i = 0; i < SHAPES; i++)
        for (int c = FB_F32; c <= FB_BF16; c++) FOR_ROWS(few_rows) FOR_ACTS(t) {
                if (passed_over(7)) continue;
                const struct shape *s = &shapes[i];
                const fb_row *row = rows_at(s->position, (i + c + t) % 2 ? IN_ORDER : WITH_GAPS);
                fb_view q = filled(t, s->heads, s->width, 5), k = filled(t, s->kv_heads, s->width, 0);
                fb_view v = filled(t, s->kv_heads, s->width, 1), angles = filled(FB_F32, 1, s->rotary, 2);
                fb_view want = view(t, s->heads, s->width, 0), turned = view(t, s->kv_heads, s->width, 0);
                fb_call rope = {.in = {q, angles}, .out = {want}, .attr.rotary = s->rotary, .row = row};
                run(FB_OP_ROPE, rope);
                rope.in[0] = k;
                rope.out[0] = turned;
                run(FB_OP_ROPE, rope);
                fb_call append = {.in = {turned, v}, .kv = cache((fb_dtype)c, s, row, false), .row = row};
                run(FB_OP_KV_APPEND, append);
                fb_call call = {.in = {q, k, v, angles},
                                .out = {view(t, s->heads, s->width, 3)},
                                .kv = cache((fb_dtype)c, s, row, false),
                                .attr.rotary = s->rotary,
                                .row = row};
                run(FB_OP_ROPE_KV, call);
                same("rope_kv", &call.out[0], &want);
                assert_memory_equal(call.kv.k, append.kv.k, (size_t)cache_bytes(&call.kv));
                assert_memory_equal(call.kv.v, append.kv.v, (size_t)cache_bytes(&call.kv));
            }
}

/* The q, k and v of a joint projection, head by head in one buffer, as an architecture has them. */
static void joint_projection(void **state) {
    (void)state;
    static const struct shape s = {3, 3, 16, 8, 5};
    FOR_ROWS(few_rows) FOR_ACTS(t) {
        fb_view all = filled(t, 1, 3 * 3 * 16, 0), angles = filled(FB_F32, 1, s.rotary, 0), part[3], own[3];
        for (int p = 0; p < 3; p++) {
            part[p] = (fb_view){fb_at(all.data, t, 16 * p), t, 3, 16, all.row_stride, 48};
            own[p] = view(t, 3, 16, 0);
            for (int64_t row = 0; row < rows; row++)
                for (int64_t h = 0; h < 3; h++)
                    memcpy(fb_view_at(&own[p], row, h), fb_view_at(&part[p], row, h),
                           (size_t)(16 * fb_dtype_size(t)));
        }
        const fb_row *row = rows_at(s.position, IN_ORDER);
        fb_call call[2];
        for (int joint = 0; joint < 2; joint++) {
            const fb_view *in = joint ? part : own;
            call[joint] = (fb_call){.in = {in[0], in[1], in[2], angles},
                                    .out = {view(t, 3, 16, 0)},
                                    .kv = cache(t, &s, row, false),
                                    .attr.rotary = s.rotary,
                                    .row = row};
            run(FB_OP_ROPE_KV, call[joint]);
        }
        same("rope_kv of a joint projection", &call[1].out[0], &call[0].out[0]);
        assert_memory_equal(call[1].kv.k, call[0].kv.k, (size_t)cache_bytes(&call[0].kv));
        assert_memory_equal(call[1].kv.v, call[0].kv.v, (size_t)cache_bytes(&call[0].kv));
    }
}

/* Runs the plain kernels on the call. */
static fb_view plain_attention(const fb_call *call) {
    const fb_view *q = &call->in[0];
    fb_view scores = view(q->dtype, q->heads, call->kv.capacity, 0),
            probs = view(q->dtype, q->heads, call->kv.capacity, 0);
    fb_view out = view(q->dtype, q->heads, q->width, 0);
    scores.width = probs.width = 0;
    fb_call step = *call;
    step.out[0] = scores;
    run(FB_OP_ATTN_SCORES, step);
    step.in[0] = scores;
    step.out[0] = probs;
    run(FB_OP_SOFTMAX, step);
    step.in[0] = probs;
    step.out[0] = out;
    run(FB_OP_ATTN_VALUES, step);
    return out;
}

/* The largest sum of |q k| of a score. Its rounding error is about that times u. */
static double largest_terms(const fb_call *call) {
    const fb_view *q = &call->in[0];
    const fb_kv *kv = &call->kv;
    double most = 0;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < q->heads; head++)
            for (int64_t p = 0; p <= call->row[row].position; p++) {
                double sum = 0;
                for (int64_t i = 0; i < q->width; i++)
                    sum += fabs(fb_dtype_get(q->dtype, fb_view_at(q, row, head), i) *
                                fb_dtype_get(kv->dtype, fb_key_at(kv, head / (q->heads / kv->heads), p),
                                             i * FB_KV_GROUP));
                most = fmax(most, sum * (double)call->attr.scale);
            }
    return most;
}

/* The error of attn_flash. A score is a sum that rounds by its terms' size times u, and its exponential
 * changes by as much. A probability has two of them, and values are up to 4. On tensor cores the
 * probabilities are rounded to 16 bits, an error of the values' size. Last comes one rounding to the
 * activation dtype. */
static void near(const fb_call *call, const fb_view *have, const fb_view *truth) {
    double terms = largest_terms(call), unit = have->dtype == FB_F16    ? 0x1p-11
                                               : have->dtype == FB_BF16 ? 0x1p-8
                                                                        : 0x1p-24;
    double limit = 2 * terms * 0x1p-24 * 4;
    if (have->dtype != FB_F32) limit += 4 * unit;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < have->heads * have->width; i++) {
            double a = fb_dtype_get(have->dtype, fb_view_at(have, row, 0), i);
            double b = fb_dtype_get(FB_F64, fb_view_at(truth, row, 0), i);
            if (!(fabs(a - b) <= limit + unit * fabs(b)))
                fail_msg("%s, cache %s: attn_flash, %lld heads of %lld on %lld, from position %lld on: row "
                         "%lld of "
                         "%lld, column "
                         "%lld: %.9g, should be %.9g (limit %.3g)",
                         fb_dtype_name(have->dtype), fb_dtype_name(call->kv.dtype), (long long)have->heads,
                         (long long)have->width, (long long)call->kv.heads, (long long)call->row[0].position,
                         (long long)row, (long long)rows, (long long)i, a, b, limit + unit * fabs(b));
        }
}

/* attn_flash against the reference. */
static void check_flash(fb_call *call) {
    const fb_view *out = &call->out[0];
    fb_view truth = view(FB_F64, out->heads, out->width, 0);
    fb_call reference = *call;
    reference.out[0] = truth;
    reference.rows = rows;
    float *scratch = take(4 * fb_attention_scratch(out->width, call->kv.capacity));
    fb_cpu_kernels_ref[FB_OP_ATTN_FLASH](&reference, &(fb_worker){.count = 1, .scratch = scratch});
    poison(out);
    run(FB_OP_ATTN_FLASH, *call);
    near(call, out, &truth);
}

static void attention(void **state) {
    (void)state;
    for (int i = 0; i < 2 * SHAPES; i++)
        for (int c = FB_F32; c <= FB_BF16; c++) FOR_ROWS(few_rows) FOR_ACTS(t) {
                if (passed_over(19)) continue;
                const struct shape *s = &shapes[i / 2];
                const fb_row *row = rows_at(s->position, (i + c + t) % 2 ? IN_ORDER : WITH_GAPS);
                fb_call call = {.in = {filled(t, s->heads, s->width, 2)},
                                .kv = cache((fb_dtype)c, s, row, true),
                                .attr.scale = i % 2 ? 1 : 0.2f,
                                .row = row};
                fb_view want = plain_attention(&call);
                call.out[0] = view(t, s->heads, s->width, 1);
                run(FB_OP_ATTN_ROWS, call);
                same("attn_rows", &call.out[0], &want);
                check_flash(&call);
            }
}

/* In a cache of more than 4096 positions, two, four or eight items of a decode share their keys. */
static void long_caches(void **state) {
    (void)state;
    static const struct shape one = {1, 1, 16, 0, 4200}, group = {4, 1, 24, 0, 4225};
    static const int64_t a_few[] = {1, 2, 5, 0};
    FOR_ROWS(a_few) FOR_ACTS(t) {
        const struct shape *s = rows == 1 ? &group : &one;
        const fb_row *row = rows_at(s->position, WITH_GAPS);
        fb_call call = {.in = {filled(t, s->heads, s->width, 2)},
                        .out = {view(t, s->heads, s->width, 1)},
                        .kv = cache(t, s, row, true),
                        .attr.scale = 0.2f,
                        .row = row};
        check_flash(&call);
    }
}

/* ---- coverage ---- */

static void every_op_was_launched(void **state) {
    (void)state;
    for (int kind = 0; kind < FB_OP_COUNT; kind++) {
        char *path = fbt_format("tests/backend/cuda/test_%s.c", kernel_family[kind]);
        if (access(path, R_OK)) fail_msg("%s: no %s", fb_op_table[kind].name, path);
        if (strcmp(kernel_family[kind], "fused") == 0 && !cuda_launched[kind])
            fail_msg("%s was not launched", fb_op_table[kind].name);
        free(path);
    }
}

static int start(void **state) {
    (void)state;
    random_numbers = fbt_random_start(41);
    return 0;
}

int main(void) {
    /* The emulated device has one multiprocessor here, so that every warp of a matvec has several pieces of
     * every segment. (test_linear has more multiprocessors, and so several blocks.) */
    setenv("FUSEBOX_EMULATE_SMS", "1", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise),
        cmocka_unit_test(add_norm),
        cmocka_unit_test(norm_add),
        cmocka_unit_test(linear_group),
        cmocka_unit_test(quantised_group),
        cmocka_unit_test(several_types),
        cmocka_unit_test(one_difference),
        cmocka_unit_test(head_ties),
        cmocka_unit_test(head_quantised),
        cmocka_unit_test(head_edges),
        cmocka_unit_test(rope_kv),
        cmocka_unit_test(joint_projection),
        cmocka_unit_test(attention),
        cmocka_unit_test(long_caches),
        cmocka_unit_test(every_op_was_launched),
    };
    return cuda_run_group("fused", tests, sizeof tests / sizeof *tests, start);
}
