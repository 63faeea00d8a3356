/* What the tests of fused kernels share. They are held to the plain kernels that they stand for, on the same
 * instruction set: the same bits, for any number of workers. Outputs and scratch are NaN before, and so is
 * what lies between rows; nothing outside may be written. The reference's fused kernels are held to its plain
 * ones in float64. */
#ifndef FB_TESTS_FUSED_HARNESS_H
#define FB_TESTS_FUSED_HARNESS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"
#include "kernel_harness.h"

#ifndef FUSED_ROWS
#define FUSED_ROWS 7
#endif
enum { ROWS = FUSED_ROWS, SCRATCH = FB_LINEAR_WORK * 4 + (1 << 18) + ROWS * 1024, POOL = 256 };

static fbt_guard pool[POOL];
static int pooled;
static fbt_random random_numbers;

static inline void *take(int64_t bytes) {
    assert_true(pooled < POOL);
    pool[pooled] = fbt_guard_create((size_t)bytes, 0);
    return pool[pooled++].data;
}

static inline void give_back(void) {
    while (pooled) fbt_guard_free(&pool[--pooled]);
}

/* NaN everywhere; `gap` elements between rows. */
static inline fb_view view(fb_dtype t, int64_t heads, int64_t width, int64_t gap) {
    int64_t stride = heads * width + gap;
    return (fb_view){take(ROWS * stride * fb_dtype_size(t)), t, heads, width, stride, width};
}

static inline fb_view filled(fb_dtype t, int64_t heads, int64_t width, int64_t gap) {
    fb_view v = view(t, heads, width, gap);
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t i = 0; i < heads * width; i++)
            fb_dtype_set(t, fb_view_at(&v, row, 0), i, 0.3 + 1.5 * fbt_random_normal(&random_numbers));
    return v;
}

/* The rows of a call. */
static inline const fb_row *rows_at(int64_t first, spacing spaced) {
    fb_row *row = take(ROWS * (int64_t)sizeof *row);
    place_rows(row, ROWS, first, spaced);
    return row;
}

static inline fb_weight weight(fb_dtype t, int64_t rows, int64_t cols, double mean) {
    void *data = take(fb_dtype_bytes(t, rows * cols));
    if (!fb_dtype_is_float(t)) {
        fbt_random_blocks(&random_numbers, t, rows * cols, 0.4, data);
        return (fb_weight){.data = data, .dtype = t, .rows = rows, .cols = cols};
    }
    for (int64_t i = 0; i < rows * cols; i++)
        fb_dtype_set(t, data, i, mean + 0.4 * fbt_random_normal(&random_numbers));
    return (fb_weight){.data = data, .dtype = t, .rows = rows, .cols = cols};
}

static inline fb_weight packed(fb_weight w) {
    void *data = take(fb_pack_bytes(w.dtype, w.rows, w.cols));
    memset(data, 0, (size_t)fb_pack_bytes(w.dtype, w.rows, w.cols));
    for (int64_t row = 0; row < w.rows; row++)
        fb_pack_row(w.dtype, (const uint8_t *)w.data + row * fb_dtype_bytes(w.dtype, w.cols), w.cols, row,
                    data);
    return (fb_weight){.data = data, .dtype = w.dtype, .rows = w.rows, .cols = w.cols, .packed = true};
}

/* How `run` divides ops among workers: by_head and apart. */
static fb_worker sharing;
/* Whether all workers prepare the inputs of a linear_group before one of them multiplies. */
static bool prepare_together;

/* Runs the last worker first: a worker that needs another's result finds NaN. All runs share one scratch:
 * allocating a megabyte for each took most of the time under AddressSanitizer. */
static inline void run(const fb_isa *isa, fb_op_kind kind, fb_call call, int32_t workers) {
    static fbt_guard scratch;
    if (!scratch.data) scratch = fbt_guard_create(SCRATCH, 0);
    call.rows = call.rows ? call.rows : ROWS;
    fbt_guard prepared = {0};
    if (prepare_together) prepared = fbt_guard_create(SCRATCH, 0);
    for (int phase = !prepare_together; phase < 2; phase++)
        for (int32_t worker = workers - 1; worker >= 0; worker--) {
            memset(scratch.data, 0xff, SCRATCH);
            fb_worker self = sharing;
            self.index = worker;
            self.count = workers;
            self.scratch = scratch.data;
            self.prepared = prepared.data;
            (phase ? isa->kernels[kind] : isa->prepare)(&call, &self);
        }
    assert_true(fbt_guard_intact(&scratch));
    if (prepare_together) fbt_guard_free(&prepared);
}

/* Each row by itself, as a decode step runs it. */
static inline void run_alone(const fb_isa *isa, fb_op_kind kind, const fb_call *call, int32_t workers) {
    for (int64_t row = 0; row < ROWS; row++) {
        fb_call one = *call;
        one.rows = 1;
        if (call->row) one.row = call->row + row;
        for (int k = 0; k < FB_MAX_IN; k++)
            if (call->in[k].data) one.in[k].data = fb_view_at(&call->in[k], row, 0);
        for (int k = 0; k < FB_MAX_OUT; k++)
            if (call->out[k].data) one.out[k].data = fb_view_at(&call->out[k], row, 0);
        run(isa, kind, one, workers);
    }
}

/* Checks for the same bits (in float64 all but the last ones), and for NaN in the gaps. */
static inline void same(const fb_isa *isa, const char *what, const fb_view *have, const fb_view *want) {
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

static inline void poison(const fb_view *v) {
    memset(v->data, 0xff, (size_t)(ROWS * v->row_stride * fb_dtype_size(v->dtype)));
}

/* Runs the body for every instruction set and each of its activation dtypes. An emulator leaves out the
 * reference, which is the same everywhere. */
#define FOR_KERNELS(isa, t)                                                                                  \
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++)                                                 \
        for (int t##_ = FB_F32; isa->available() && t##_ <= FB_F64 - FBT_EMULATED; t##_++)                   \
            for (fb_dtype t = (fb_dtype)t##_, *once = &t;                                                    \
                 once && (strcmp(isa->name, "ref") == 0) == (t == FB_F64); once = NULL, give_back())

/* For ops without integer products. */
static inline bool passed_over(const fb_isa *isa) {
    static int64_t turns;
    return emulated_again(isa, &turns);
}
#define FOR_FLOAT_KERNELS(isa, t)                                                                            \
    FOR_KERNELS(isa, t)                                                                                      \
    if (!passed_over(isa))

static const int64_t widths[] = {1, 7, 16, 33, 100};
#define FOR_WIDTHS(n) for (size_t n##_ = 0, n = 0; n##_ < 5 && (n = (size_t)widths[n##_]); n##_++)
static const int32_t some_workers[] = {1, 2, 3, 5};
#define FOR_WORKERS(l) for (int32_t l##_ = 0, l = 0; l##_ < 4 && (l = some_workers[l##_]); l##_++)

static inline fb_view op2(const fb_isa *isa, fb_op_kind kind, fb_view a, fb_view b) {
    fb_view out = view(a.dtype, a.heads, a.width, 0);
    run(isa, kind, (fb_call){.in = {a, b}, .out = {out}}, 1);
    return out;
}

static inline fb_view op1(const fb_isa *isa, fb_op_kind kind, fb_view a) { return op2(isa, kind, a, a); }

static inline fb_view quantized(const fb_isa *isa, fb_view x) {
    fb_view q = view(FB_F32, 1, fb_q8_floats(x.width), 0);
    run(isa, FB_OP_QUANTIZE, (fb_call){.in = {x}, .out = {q}}, 2);
    return q;
}

/* Before a program's tests. */
static inline int start(void **state) {
    (void)state;
    random_numbers = fbt_random_start(41);
    return 0;
}

#endif
