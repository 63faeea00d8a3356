/* A row of a linear has the same bits alone and among any number of rows: for every type of weights and x,
 * for groups with norms and combinations, and for sums of one piece and of several groups. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_harness.h"
#include "base/pack_gpu.h"

enum { POOL = 64, MOST = 67 };
#define NO FB_OP_COUNT

static fbt_guard pool[POOL];
static int pooled;
static fbt_random random_numbers;
static bool prompt; /* the role of all rows */

static void *take(int64_t bytes) {
    assert_true(pooled < POOL);
    pool[pooled] = fbt_guard_create((size_t)bytes, 0);
    return pool[pooled++].data;
}

static void give_back(void) {
    while (pooled) fbt_guard_free(&pool[--pooled]);
}

static fb_view view(fb_dtype t, int64_t rows, int64_t width, int64_t gap) {
    return (fb_view){take(rows * (width + gap) * fb_dtype_size(t)), t, 1, width, width + gap, width};
}

static fb_view filled(fb_dtype t, int64_t width, int64_t gap) {
    fb_view v = view(t, MOST, width, gap);
    for (int64_t i = 0; i < MOST * (width + gap); i++)
        fb_dtype_set(t, v.data, i, 0.3 + 1.5 * fbt_random_normal(&random_numbers));
    return v;
}

static fb_weight weight(fb_dtype t, int64_t n, int64_t k) {
    void *data = take(fb_dtype_bytes(t, n * k));
    if (!fb_dtype_is_float(t)) fbt_random_blocks(&random_numbers, t, n * k, 0.4, data);
    for (int64_t i = 0; fb_dtype_is_float(t) && i < n * k; i++)
        fb_dtype_set(t, data, i, 0.4 * fbt_random_normal(&random_numbers));
    return (fb_weight){.data = data, .dtype = t, .rows = n, .cols = k};
}

/* Rows [first, first + rows) of the call. */
static void run_rows(const fb_call *whole, int64_t first, int64_t rows) {
    fb_call call = *whole;
    call.rows = rows;
    for (int i = 0; i < FB_MAX_IN; i++)
        if (call.in[i].data) call.in[i].data = fb_view_at(&whole->in[i], first, 0);
    for (int i = 0; i < FB_MAX_OUT; i++)
        if (call.out[i].data) call.out[i].data = fb_view_at(&whole->out[i], first, 0);
    const fb_cuda_rows run = {.rows = rows, .prompt = prompt};
    cuda_next_step = (cuda_step){.runs = &run, .run_count = 1};
    cuda_isas[0].kernels[FB_OP_LINEAR_GROUP](&call, &(fb_worker){.count = 1});
}

static void poison(const fb_view *v) {
    memset(v->data, 0xff, (size_t)(MOST * v->row_stride * fb_dtype_size(v->dtype)));
}

static uint8_t *copy_of(const fb_view *v) {
    size_t bytes = (size_t)(MOST * v->row_stride * fb_dtype_size(v->dtype));
    uint8_t *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, v->data, bytes);
    return copy;
}

static void compare(const char *what, const fb_view *have, const uint8_t *alone, int64_t first,
                    int64_t rows) {
    int64_t size = fb_dtype_size(have->dtype);
    for (int64_t row = first; row < first + rows; row++)
        for (int64_t i = 0; i < have->width; i++) {
            int64_t at = (row * have->row_stride + i) * size;
            if (memcmp((const uint8_t *)have->data + at, alone + at, (size_t)size) == 0) continue;
            fail_msg("%s: row %lld of %lld rows from %lld, column %lld: %.9g, alone %.9g", what,
                     (long long)row, (long long)rows, (long long)first, (long long)i,
                     fb_dtype_get(have->dtype, (const uint8_t *)have->data + at, 0),
                     fb_dtype_get(have->dtype, alone + at, 0));
        }
}

/* Runs the call with all numbers of rows, each from another row on, and compares with single rows. */
static void all_numbers_of_rows(const char *what, const fb_call *call, int outs) {
    static const int64_t numbers[] = {5, 9, 17, MOST, 40, 64, 2, 8, 16, 31, 65};
    const size_t count = !cuda_is_emulated() ? sizeof numbers / sizeof *numbers : prompt ? 4 : 6;
    uint8_t *alone[FB_MAX_OUT];
    for (int o = 0; o < outs; o++) poison(&call->out[o]);
    for (int64_t row = 0; row < MOST; row += 1 + row % 11) run_rows(call, row, 1);
    for (int o = 0; o < outs; o++) alone[o] = copy_of(&call->out[o]);
    for (size_t n = 0; n < count; n++) {
        int64_t rows = numbers[n], first = (MOST - rows) / 2;
        for (int o = 0; o < outs; o++) poison(&call->out[o]);
        run_rows(call, first, rows);
        for (int64_t row = 0; row < MOST; row += 1 + row % 11)
            for (int o = 0; o < outs && row >= first && row < first + rows; o++)
                compare(what, &call->out[o], alone[o], row, 1);
    }
    for (int o = 0; o < outs; o++) free(alone[o]);
}

typedef struct kind_of_product {
    const char *name;
    fb_dtype x, w;
    fb_dot dot;
} kind_of_product;

static const kind_of_product kinds[] = {{"f16", FB_F16, FB_F16, FB_DOT_FLOAT},
                                        {"bf16", FB_BF16, FB_BF16, FB_DOT_FLOAT},
                                        {"Q4_0", FB_F16, FB_Q4_0, FB_DOT_QUANTIZE},
                                        {"Q8_0", FB_F16, FB_Q8_0, FB_DOT_QUANTIZE},
                                        {"Q4_K", FB_F16, FB_Q4_K, FB_DOT_QUANTIZE},
                                        {"Q6_K", FB_F16, FB_Q6_K, FB_DOT_QUANTIZE},
                                        {"f32", FB_F32, FB_F32, FB_DOT_FLOAT},
                                        {"f16 with x f32", FB_F32, FB_F16, FB_DOT_FLOAT},
                                        {"Q4_0 as floats", FB_F16, FB_Q4_0, FB_DOT_FLOAT},
                                        {"Q8_0 with x f32", FB_F32, FB_Q8_0, FB_DOT_QUANTIZE},
                                        {"Q5_K", FB_BF16, FB_Q5_K, FB_DOT_QUANTIZE},
                                        {"Q3_K", FB_F16, FB_Q3_K, FB_DOT_QUANTIZE},
                                        {"Q2_K", FB_F16, FB_Q2_K, FB_DOT_QUANTIZE},
                                        {"IQ4_XS", FB_F16, FB_IQ4_XS, FB_DOT_QUANTIZE},
                                        {"Q4_1", FB_F16, FB_Q4_1, FB_DOT_QUANTIZE},
                                        {"Q5_0", FB_F16, FB_Q5_0, FB_DOT_QUANTIZE},
                                        {"Q5_1", FB_F16, FB_Q5_1, FB_DOT_QUANTIZE},
                                        {"IQ4_NL", FB_F16, FB_IQ4_NL, FB_DOT_QUANTIZE},
                                        {"MXFP4", FB_F32, FB_MXFP4, FB_DOT_QUANTIZE},
                                        {"Q4_K as floats", FB_F16, FB_Q4_K, FB_DOT_FLOAT},
                                        {"Q4_0 in records", FB_F16, FB_Q4_0, FB_DOT_QUANTIZE},
                                        {"Q8_0 in records", FB_BF16, FB_Q8_0, FB_DOT_QUANTIZE}};
enum {
    KINDS = sizeof kinds / sizeof *kinds,
    RECORDS = 4,           /* the first of them */
    IN_RECORDS = KINDS - 2 /* the first whose type has a layout of its own */
};

/* One segment, with a norm before it or not, for sums of all shapes. */
static void linears_in(bool role) {
    static const int64_t columns[] = {32, 288, 2048, 2624, 4160};
    prompt = role;
    for (int k = 0; k < KINDS; k++)
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
            const kind_of_product *of = &kinds[k];
            const bool records = fb_record_has(of->w) || k >= IN_RECORDS, first = k < RECORDS;
            if (cuda_is_emulated() && (prompt    ? c != 1 || k > RECORDS
                                       : records ? c != (k == RECORDS ? 3 : 1)
                                       : first   ? c % 2 != (size_t)k % 2
                                                 : c != 1))
                continue;
            int64_t cols = records ? columns[c] / 256 * 256 : columns[c], n = 24 + 7 * (int64_t)c;
            if (cols == 0) continue;
            cuda_records = k >= IN_RECORDS;
            char what[64];
            snprintf(what, sizeof what, "%s, %lld x %lld", of->name, (long long)n, (long long)cols);
            fb_call call = {
                .in = {filled(of->x, cols, c % 2 ? 8 : 0)}, .out = {view(of->x, MOST, n, 3)}, .act = of->x};
            call.weights[0] = weight(of->w, n, cols);
            call.weights[1] = weight(FB_F32, 1, n);
            call.attr.segments = 1;
            call.attr.segment[0] = (fb_segment){.norm = NO, .act = NO, .dot = of->dot};
            if (c % 2) {
                call.attr.segment[0].norm = FB_OP_RMSNORM;
                call.attr.segment[0].eps = 1e-5f;
                call.weights[2] = weight(FB_F32, 1, cols);
            }
            all_numbers_of_rows(what, &call, 1);
            give_back();
        }
    cuda_records = false;
}

/* Q8_0 and Q4_0 have the same products in records as in their own layout, but for the order of sums: of one
 * row, of a few and of a prompt's. */
static void records_of_blocks(void **state) {
    (void)state;
    enum { MANY = 20, K = 2624, N = 24 };
    static const fb_dtype types[] = {FB_Q4_0, FB_Q8_0};
    for (int t = 0; t < 2; t++)
        for (int dot = FB_DOT_FLOAT; dot <= FB_DOT_QUANTIZE; dot += FB_DOT_QUANTIZE - FB_DOT_FLOAT)
            for (int form = 0; form < 3; form++) {
                const int64_t count = form == 0 ? 1 : MANY;
                fb_call call = {
                    .in = {filled(FB_F32, K, 0)}, .out = {view(FB_F32, MOST, N, 0)}, .act = FB_F32};
                call.weights[0] = weight(types[t], N, K);
                call.attr.segments = 1;
                call.attr.segment[0] = (fb_segment){.norm = NO, .act = NO, .dot = (fb_dot)dot};
                prompt = form == 2;
                run_rows(&call, 0, count);
                float *own = (float *)(void *)copy_of(&call.out[0]), most = 0, *have = call.out[0].data;
                cuda_records = true;
                run_rows(&call, 0, count);
                cuda_records = false;
                for (int64_t i = 0; i < count * N; i++) most = fmaxf(most, fabsf(own[i]));
                for (int64_t i = 0; i < count * N; i++)
                    if (!(fabsf(have[i] - own[i]) <= 4e-6f * most))
                        fail_msg("%s, dot %d, form %d: %.9g, in records %.9g", fb_dtype_name(types[t]), dot,
                                 form, (double)own[i], (double)have[i]);
                free(own);
                give_back();
            }
    prompt = false;
}

/* So many outputs that a block has several tiles of them, and sums of several pieces. */
static void tiles(void **state) {
    (void)state;
    prompt = false;
    for (int k = 0; k < (cuda_is_emulated() ? 4 : 6); k++) {
        const kind_of_product *of = &kinds[k];
        const int64_t cols = 4096, n = cuda_is_emulated() ? 200 : 7000;
        fb_call call = {.in = {filled(of->x, cols, 0)}, .out = {view(of->x, MOST, n, 0)}, .act = of->x};
        call.weights[0] = weight(of->w, n, cols);
        call.attr.segments = 1;
        call.attr.segment[0] = (fb_segment){.norm = NO, .act = NO, .dot = of->dot};
        if (!cuda_is_emulated() || k != 1) all_numbers_of_rows(of->name, &call, 1);
        give_back();
    }
}

/* Two segments that are multiplied, or added to a residual; three with an output each. Those of Q4_K have
 * neighbours of Q6_K, as in a mix. */
static void groups_in(bool role) {
    prompt = role;
    for (int k = 0; k < 6; k++)
        for (int form = 0; form < 3; form++) {
            const kind_of_product *of = &kinds[k];
            int64_t cols = 2304, n = 40, segments = form == 2 ? 3 : 2;
            char what[64];
            if (cuda_is_emulated() && (prompt ? form != (k == RECORDS ? 0 : k) : k > 0 && form != k % 3))
                continue;
            snprintf(what, sizeof what, "%s, form %d", of->name, form);
            fb_view x = filled(of->x, cols, 0);
            fb_call call = {.act = of->x};
            call.attr.segments = (int32_t)segments;
            call.attr.combine = form == 0 ? FB_COMBINE_MUL : form == 1 ? FB_COMBINE_ADD : FB_COMBINE_NONE;
            for (int s = 0; s < segments; s++) {
                call.in[s] = x;
                call.weights[4 * s] =
                    weight(of->w == FB_Q4_K && s == 1 ? FB_Q6_K : of->w, form == 2 ? n + 8 * s : n, cols);
                call.attr.segment[s] =
                    (fb_segment){.norm = NO, .act = form == 0 && s == 0 ? FB_OP_SILU : NO, .dot = of->dot};
                if (s == 0 || form == 2) call.out[s] = view(of->x, MOST, form == 2 ? n + 8 * s : n, 0);
            }
            if (form == 1) call.in[FB_RESIDUAL] = filled(of->x, n, 0);
            all_numbers_of_rows(what, &call, form == 2 ? 3 : 1);
            give_back();
        }
}

static void linears(void **state) {
    (void)state;
    linears_in(false);
}
static void groups(void **state) {
    (void)state;
    groups_in(false);
}
static void linears_of_prompts(void **state) {
    (void)state;
    linears_in(true);
}
static void groups_of_prompts(void **state) {
    (void)state;
    groups_in(true);
}

static int setup(void **state) {
    (void)state;
    cuda_invariant = true;
    random_numbers = fbt_random_start(51);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linears), cmocka_unit_test(records_of_blocks),  cmocka_unit_test(tiles),
        cmocka_unit_test(groups),  cmocka_unit_test(linears_of_prompts), cmocka_unit_test(groups_of_prompts)};
    return cuda_run_group("rows", tests, sizeof tests / sizeof *tests, setup);
}
