#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/pack_blocks.h"
#include "kernel_harness.h"

/* To which type a kernel may round weights and inputs before it multiplies them, for activations of `act`. A
 * GPU's tensor cores multiply decoded weights as 16-bit floats. */
#ifndef MULTIPLIED_AS
#define MULTIPLIED_AS(act) FB_F32
#endif
static fb_dtype multiplied_as = FB_F32;

static float multiplied(float x) {
    uint8_t bytes[4];
    fb_dtype_set(multiplied_as, bytes, 0, (double)x);
    return (float)fb_dtype_get(multiplied_as, bytes, 0);
}

/* Column k of a row of x, quantised or not. */
static float input(const fb_call *c, int64_t row, int64_t k) {
    const void *x = fb_view_at(&c->in[0], row, 0);
    if (c->attr.segment[0].dot == FB_DOT_FLOAT) return (float)fb_dtype_get(c->in[0].dtype, x, k);
    const fb_q8 *block = (const fb_q8 *)x + k / 32;
    return multiplied((float)block->q[k % 32] * block->scale);
}

/* A row of weights is decoded once: one element of a quantised type costs as much as its block. */
static void naive(const fb_call *c) {
    const fb_weight *w = &c->weights[0], *bias = &c->weights[1];
    float *weights = malloc((size_t)w->cols * sizeof *weights);
    assert_non_null(weights);
    for (int64_t n = 0; n < w->rows; n++) {
        fb_weight_row(w, n, 0, w->cols, weights);
        for (int64_t k = 0; k < w->cols; k++) weights[k] = multiplied(weights[k]);
        for (int64_t row = 0; row < c->rows; row++) {
            float sum = 0;
            for (int64_t k = 0; k < w->cols; k++) sum += input(c, row, k) * weights[k];
            if (bias->data) sum += (float)fb_dtype_get(bias->dtype, bias->data, n);
            fb_dtype_set(FB_F32, fb_view_at(&c->out[0], row, 0), n, (double)sum);
        }
    }
    free(weights);
}

/* Inputs and outputs around the tiles of rows, outputs and vectors, and the grain of the workers. */
static const struct shape {
    int64_t k, n;
} shapes[] = {{1, 1},  {3, 17},  {7, 64},  {15, 3},   {16, 100}, {17, 16}, {31, 33},
              {33, 7}, {64, 65}, {65, 31}, {100, 15}, {257, 80}, {16, 1},  {129, 40}};

/* The bias: none, of the weights' dtype, of another one. */
static void products(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(12);
    for (int act = FB_F32; act <= FB_BF16; act++)
        for (int weight = FB_F32; weight <= FB_BF16; weight++)
            for (int bias = 0; bias < 3; bias++)
                for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                    if (fbt_emulated_passes_over(11)) continue;
                    struct shape s = shapes[i];
                    fb_dtype bias_dtype = (fb_dtype)((weight + bias - 1) % 3);
                    rig r;
                    rig_start(&r, FB_OP_LINEAR, &random, (i + (size_t)bias) % 2);
                    snprintf(r.text, sizeof r.text, "act %s, weight %s, bias %s, %lld to %lld",
                             fb_dtype_name((fb_dtype)act), fb_dtype_name((fb_dtype)weight),
                             bias ? fb_dtype_name(bias_dtype) : "none", (long long)s.k, (long long)s.n);
                    r.naive = naive;
                    r.scratch_floats = FB_LINEAR_WORK + (act == FB_F32 ? 0 : RIG_ROWS * s.k + 64);
                    r.call.in[0] = rig_input(&r, (fb_dtype)act, 1, s.k, (gaps){0, (int64_t)i % 3}, 0);
                    rig_fill(&r, &r.call.in[0], 0.25, 1);
                    r.call.weights[0] = rig_weight(&r, (fb_dtype)weight, s.n, s.k, 0, 0.2);
                    if (bias) r.call.weights[1] = rig_weight(&r, bias_dtype, 1, s.n, 0.5, 1);
                    r.call.out[0] = rig_output(&r, (fb_dtype)act, 1, s.n, (gaps){0, (int64_t)(i + 1) % 4}, 0);
                    rig_check(&r);
                }
}

/* So many inputs that the rows are taken in several blocks. */
static void long_rows(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(13);
    for (int act = FB_F32; act <= FB_BF16; act++) {
        rig r;
        rig_start(&r, FB_OP_LINEAR, &random, true);
        snprintf(r.text, sizeof r.text, "act %s, 5003 to 19", fb_dtype_name((fb_dtype)act));
        r.naive = naive;
        r.scratch_floats = FB_LINEAR_WORK + (act == FB_F32 ? 0 : RIG_ROWS * 5003 + 64);
        r.call.in[0] = rig_input(&r, (fb_dtype)act, 1, 5003, (gaps){0, 1}, 0);
        rig_fill(&r, &r.call.in[0], 0, 1);
        r.call.weights[0] = rig_weight(&r, FB_BF16, 19, 5003, 0, 0.02);
        r.call.weights[1] = rig_weight(&r, FB_F16, 1, 19, 0, 1);
        r.call.out[0] = rig_output(&r, (fb_dtype)act, 1, 19, (gaps){0, 1}, 0);
        rig_check(&r);
    }
}

/* Quantised weights: every type as it lies in a file and packed, with floats and with integers. Widths of one
 * block, of several, and of more than a panel. */
static void quantised(void **state) {
    (void)state;
    static const struct shape some[] = {{32, 3},   {64, 16},  {256, 33}, {512, 18},
                                        {1280, 5}, {768, 49}, {96, 50}};
    enum { FILE_ORDER, PACKED, INTEGERS, WAYS };
    int cases[FB_DTYPE_COUNT][WAYS] = {{0}};
    fbt_random random = fbt_random_start(14);
    for (int act = FB_F32; act <= FB_BF16; act++)
        for (int weight = FB_Q8_0; weight < FB_DTYPE_COUNT; weight++)
            for (int how = FILE_ORDER; how <= INTEGERS; how++)
                for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
                    struct shape s = some[i];
                    if (s.k % fb_dtype_block((fb_dtype)weight)) continue;
                    /* How a sum is stored has nothing to do with its weights: a third of the rest. */
                    if (act != FB_F32 && (i + (size_t)weight + (size_t)act) % 3) continue;
                    /* An emulator checks each type in each way, two or three times. */
                    if (FBT_EMULATED ? cases[weight][how]++ % 4 : fbt_passes_over(7)) continue;
                    rig r;
                    rig_start(&r, FB_OP_LINEAR, &random, i % 2);
                    snprintf(r.text, sizeof r.text, "act %s, weight %s%s, %lld to %lld",
                             fb_dtype_name((fb_dtype)act), fb_dtype_name((fb_dtype)weight),
                             how == FILE_ORDER ? ""
                             : how == PACKED   ? ", packed"
                                               : ", packed, integers",
                             (long long)s.k, (long long)s.n);
                    r.naive = naive;
                    multiplied_as = MULTIPLIED_AS((fb_dtype)act);
                    r.naive_is_near = multiplied_as == FB_BF16 ? 1e-2 : 0;
                    r.scratch_floats = FB_LINEAR_WORK + fb_linear_input(RIG_ROWS, s.k) + 64;
                    if (how == INTEGERS) {
                        r.call.attr.segment[0].dot = FB_DOT_GIVEN;
                        r.call.in[0] = rig_quantized(&r, s.k);
                    } else {
                        r.call.in[0] = rig_input(&r, (fb_dtype)act, 1, s.k, (gaps){0, (int64_t)i % 3}, 0);
                        rig_fill(&r, &r.call.in[0], 0.25, 1);
                    }
                    fb_weight w = rig_weight(&r, (fb_dtype)weight, s.n, s.k, 0, 0.2);
                    r.call.weights[0] = how == FILE_ORDER ? w : rig_packed(&r, w);
                    if (i % 3) r.call.weights[1] = rig_weight(&r, FB_F32, 1, s.n, 0.5, 1);
                    r.call.out[0] = rig_output(&r, (fb_dtype)act, 1, s.n, (gaps){0, (int64_t)(i + 1) % 4}, 0);
                    rig_check(&r);
                }
    multiplied_as = FB_F32;
}

/* Sets all bits of a packed weight's integers, or the bits of the least one. */
static void fill_integers(const fb_weight *w, bool least) {
    const quant_type *t = &quant_types[w->dtype];
    uint8_t *at = (uint8_t *)(uintptr_t)w->data, *end = at + fb_pack_bytes(w->dtype, w->rows, w->cols);
    int scales = pack_scale_bytes(t) + pack_minimum_bytes(t), planes = pack_plane_bytes(t->low + t->high);
    while (at < end) {
        at += pack_head_bytes(t);
        for (int first = 0; first < t->columns; first += 32, at += scales + planes)
            memset(at + scales, t->low == 8 ? least ? 0x80 : 0x7f : least ? 0 : 0xff, (size_t)planes);
    }
}

/* The largest integers on both sides, of one sign and of both: sums of few bits would overflow. */
static void extremes(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(15);
    for (int weight = FB_Q8_0; weight < FB_DTYPE_COUNT; weight++)
        for (int which = 0; which < 4; which++) {
            if (fbt_emulated_passes_over(3)) continue;
            rig r;
            rig_start(&r, FB_OP_LINEAR, &random, 0);
            snprintf(r.text, sizeof r.text, "weight %s, the %s integers, x %s",
                     fb_dtype_name((fb_dtype)weight), which % 2 ? "least" : "largest",
                     which / 2 ? "negative" : "positive");
            r.naive = naive;
            r.scratch_floats = FB_LINEAR_WORK + fb_linear_input(RIG_ROWS, 256) + 64;
            r.call.attr.segment[0].dot = FB_DOT_GIVEN;
            r.call.in[0] = rig_quantized(&r, 256);
            for (int64_t row = 0; row < RIG_ROWS; row++)
                for (int64_t b = 0; b < 8; b++) {
                    fb_q8 *block = (fb_q8 *)fb_view_at(&r.call.in[0], row, 0) + b;
                    memset(block->q, which / 2 ? -127 : 127, 32);
                    block->sum = which / 2 ? -127 * 32 : 127 * 32;
                }
            r.call.weights[0] = rig_packed(&r, rig_weight(&r, (fb_dtype)weight, 17, 256, 0, 0.2));
            fill_integers(&r.call.weights[0], which % 2);
            r.call.out[0] = rig_output(&r, FB_F32, 1, 17, (gaps){0, 0}, 0);
            rig_check(&r);
        }
}

/* Weights that begin within a cache line, and whose rows all do so at the same place: as in most files. */
static void within_lines(void **state) {
    (void)state;
    static const struct shape some[] = {{32, 3}, {64, 5}, {96, 4}, {1056, 3}, {2080, 2}};
    static const int64_t elements[] = {1, 4, 12, 16, 31};
    fbt_random random = fbt_random_start(17);
    for (size_t i = 0; i < 25; i++) {
        struct shape s = some[i / 5];
        int64_t before = elements[i % 5];
        rig r;
        rig_start(&r, FB_OP_LINEAR, &random, false);
        snprintf(r.text, sizeof r.text, "%lld to %lld, weights from element %lld of a line on",
                 (long long)s.k, (long long)s.n, (long long)before);
        r.naive = naive;
        r.scratch_floats = FB_LINEAR_WORK + RIG_ROWS * s.k + 64;
        r.call.in[0] = rig_input(&r, FB_BF16, 1, s.k, (gaps){0, 0}, 0);
        rig_fill(&r, &r.call.in[0], 0, 1);
        fb_weight w = rig_weight(&r, FB_BF16, 1, before + s.n * s.k, 0, 0.2);
        w.data = (const uint8_t *)w.data + 2 * before;
        w.rows = s.n;
        w.cols = s.k;
        r.call.weights[0] = w;
        r.call.out[0] = rig_output(&r, FB_BF16, 1, s.n, (gaps){0, 0}, 0);
        rig_check(&r);
    }
}

/* Beside other numbers nobody sees that an instruction set takes bfloat16 below 2^-126 for 0. */
static void tiny_numbers(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(16);
    for (int which = 1; which < 4; which++) {
        rig r;
        rig_start(&r, FB_OP_LINEAR, &random, which % 2);
        snprintf(r.text, sizeof r.text, "tiny%s%s", which & 1 ? " weights" : "", which & 2 ? " inputs" : "");
        r.naive = naive;
        r.scratch_floats = FB_LINEAR_WORK + RIG_ROWS * 100 + 64;
        r.call.in[0] = rig_input(&r, FB_BF16, 1, 100, (gaps){0, 1}, 0);
        rig_fill(&r, &r.call.in[0], 0, 1);
        r.call.weights[0] = rig_weight(&r, FB_BF16, 33, 100, 0, 0.2);
        for (int64_t i = 0; which & 1 && i < 33 * 100; i += 3)
            fb_dtype_set(FB_BF16, r.inputs[1].data, i, ldexp((double)(i % 7 - 3), -130));
        for (int64_t row = 0; which & 2 && row < RIG_ROWS; row++)
            for (int64_t i = row % 4; i < 100; i += 4)
                fb_dtype_set(FB_BF16, fb_view_at(&r.call.in[0], row, 0), i, ldexp((double)(i % 9 - 4), -131));
        r.call.out[0] = rig_output(&r, FB_BF16, 1, 33, (gaps){0, 0}, 0);
        rig_check(&r);
    }
}

/* A linear of bfloat16, on each instruction set. */
typedef struct plain_linear {
    uint16_t x[RIG_ROWS][77], w[21][77], y[RIG_ROWS][21];
} plain_linear;

static void run_plain(const fb_isa *isa, plain_linear *l, int64_t rows) {
    static fbt_guard scratch;
    if (!scratch.data) scratch = fbt_guard_create((FB_LINEAR_WORK + RIG_ROWS * 77 + 64) * sizeof(float), 0);
    fb_call call = {.rows = rows};
    call.in[0] = (fb_view){l->x, FB_BF16, 1, 77, 77, 77};
    call.out[0] = (fb_view){l->y, FB_BF16, 1, 21, 21, 21};
    call.weights[0] = (fb_weight){.data = l->w, .dtype = FB_BF16, .rows = 21, .cols = 77};
    isa->kernels[FB_OP_LINEAR](&call, &(fb_worker){.count = 1, .scratch = scratch.data});
}

/* Compares with ref. Finite results may differ by `most`. */
static void check_plain(plain_linear *l, int64_t rows, double most, const char *text) {
    static plain_linear want;
    const fb_isa *ref = fb_isa_table;
    while (strcmp(ref->name, "ref") != 0) ref++;
    want = *l;
    run_plain(ref, &want, rows);
    for (const fb_isa *isa = fb_isa_table; isa < ref; isa++) {
        if (!isa->available()) continue;
        run_plain(isa, l, rows);
        for (int64_t m = 0; m < rows; m++)
            for (int64_t n = 0; n < 21; n++) {
                double a = fb_dtype_get(FB_BF16, l->y[m], n), b = fb_dtype_get(FB_BF16, want.y[m], n);
                bool same = isnan(b) ? isnan(a) : isinf(b) ? a == b : fabs(a - b) <= most;
                if (!same)
                    fail_msg("%s: %s, row %lld of %lld, output %lld: %g, should be %g", isa->name, text,
                             (long long)m, (long long)rows, (long long)n, a, b);
            }
    }
}

/* An infinity or NaN in any column of every other row of x or of the weights reaches the outputs. Some are
 * multiplied with 0. */
static void not_finite(void **state) {
    (void)state;
    static const double numbers[] = {INFINITY, -INFINITY, NAN};
    static const int64_t some_rows[] = {1, 2, 7, 13, RIG_ROWS};
    static plain_linear l;
    if (kernel_device_under_test) return;
    for (int c = 0; c < 77 * 6; c++) {
        const int column = c / 6, in_x = c % 2;
        const double number = numbers[c / 2 % 3];
        const int64_t rows = some_rows[c % 5];
        char text[80];
        snprintf(text, sizeof text, "%g in column %d of the %s", number, column, in_x ? "inputs" : "weights");
        for (int i = 0; i < RIG_ROWS * 77; i++) fb_dtype_set(FB_BF16, l.x, i, i % 5 - 2);
        for (int i = 0; i < 21 * 77; i++) fb_dtype_set(FB_BF16, l.w, i, i % 7 - 3);
        for (int i = 0; i < (in_x ? RIG_ROWS : 21); i += 2)
            fb_dtype_set(FB_BF16, in_x ? l.x[i] : l.w[i], column, number);
        check_plain(&l, rows, 0, text);
    }
}

/* Nothing but bfloat16 below 2^-126, which may count as 0, times large and small ones; and products of larger
 * ones that are below it. */
static void only_tiny_numbers(void **state) {
    (void)state;
    static const int exponents[][2] = {{-131, 0}, {20, -131}, {-131, 100}, {-64, -64}, {-131, -131}};
    static plain_linear l;
    if (kernel_device_under_test) return;
    for (size_t c = 0; c < sizeof exponents / sizeof *exponents; c++)
        for (int64_t rows = 1; rows <= RIG_ROWS; rows += 6) {
            const int of_x = exponents[c][0], of_w = exponents[c][1], more = of_x > of_w ? of_x : of_w;
            char text[80];
            snprintf(text, sizeof text, "inputs of 2^%d, weights of 2^%d", of_x, of_w);
            for (int i = 0; i < RIG_ROWS * 77; i++) fb_dtype_set(FB_BF16, l.x, i, ldexp(i % 5 - 2, of_x));
            for (int i = 0; i < 21 * 77; i++) fb_dtype_set(FB_BF16, l.w, i, ldexp(i % 7 - 3, of_w));
            check_plain(&l, rows, ldexp(77 * 3, (more > 0 ? more : 0) - 126), text);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products),     cmocka_unit_test(long_rows),
                                       cmocka_unit_test(quantised),    cmocka_unit_test(within_lines),
                                       cmocka_unit_test(extremes),     cmocka_unit_test(not_finite),
                                       cmocka_unit_test(tiny_numbers), cmocka_unit_test(only_tiny_numbers)};
    return kernel_run_family("linear", tests, sizeof tests / sizeof *tests);
}
