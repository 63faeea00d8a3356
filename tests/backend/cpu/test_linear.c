#include <stdio.h>

#include "base/pack_blocks.h"
#include "kernel_harness.h"

/* Column k of a row of x, quantised or not. */
static float input(const fb_call *c, int64_t row, int64_t k) {
    const void *x = fb_view_at(&c->in[0], row, 0);
    if (c->attr.segment[0].dot == FB_DOT_FLOAT) return (float)fb_dtype_get(c->in[0].dtype, x, k);
    const fb_q8 *block = (const fb_q8 *)x + k / 32;
    return (float)block->q[k % 32] * block->scale;
}

static void naive(const fb_call *c) {
    const fb_weight *w = &c->weights[0], *bias = &c->weights[1];
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t n = 0; n < w->rows; n++) {
            float sum = 0;
            for (int64_t k = 0; k < w->cols; k++) sum += input(c, row, k) * (float)fb_weight_get(w, n, k);
            if (bias->data) sum += (float)fb_dtype_get(bias->dtype, bias->data, n);
            fb_dtype_set(FB_F32, fb_view_at(&c->out[0], row, 0), n, (double)sum);
        }
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
    static const struct shape some[] = {{32, 1},   {64, 16},  {256, 33}, {512, 18},
                                        {1280, 5}, {768, 49}, {96, 50}};
    enum { FILE_ORDER, PACKED, INTEGERS };
    fbt_random random = fbt_random_start(14);
    for (int act = FB_F32; act <= FB_BF16; act++)
        for (int weight = FB_Q8_0; weight < FB_DTYPE_COUNT; weight++)
            for (int how = FILE_ORDER; how <= INTEGERS; how++)
                for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
                    struct shape s = some[i];
                    if (s.k % fb_dtype_block((fb_dtype)weight)) continue;
                    /* How a sum is stored has nothing to do with its weights: a third of the rest. */
                    if (act != FB_F32 && (i + (size_t)weight + (size_t)act) % 3) continue;
                    if (fbt_passes_over(7)) continue;
                    rig r;
                    rig_start(&r, FB_OP_LINEAR, &random, i % 2);
                    snprintf(r.text, sizeof r.text, "act %s, weight %s%s, %lld to %lld",
                             fb_dtype_name((fb_dtype)act), fb_dtype_name((fb_dtype)weight),
                             how == FILE_ORDER ? ""
                             : how == PACKED   ? ", packed"
                                               : ", packed, integers",
                             (long long)s.k, (long long)s.n);
                    r.naive = naive;
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products), cmocka_unit_test(long_rows),
                                       cmocka_unit_test(quantised), cmocka_unit_test(extremes)};
    return kernel_run_family("linear", tests, sizeof tests / sizeof *tests);
}
