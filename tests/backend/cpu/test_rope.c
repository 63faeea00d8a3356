#include <math.h>
#include <stdio.h>

#include "kernel_harness.h"

/* Heads as in the architectures: contiguous, interleaved with k and v of a joint projection, partly rotated.
 */
static const struct layout {
    int64_t heads, width;
    int32_t rotary;
    gaps between;
} layouts[] = {{1, 2, 2, {0, 0}},    {3, 4, 4, {0, 1}},     {4, 16, 4, {32, 0}},   {2, 16, 16, {32, 5}},
               {5, 17, 6, {3, 2}},   {3, 33, 32, {1, 0}},   {2, 64, 64, {128, 0}}, {1, 65, 0, {7, 1}},
               {2, 100, 50, {0, 0}}, {3, 80, 34, {160, 0}}, {1, 257, 256, {0, 3}}};

static float at(const fb_view *view, int64_t row, int64_t head, int64_t i) {
    return (float)fb_dtype_get(view->dtype, fb_view_at(view, row, head), i);
}

static void naive(const fb_call *c) {
    int64_t half = c->attr.rotary / 2;
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t head = 0; head < c->in[0].heads; head++)
            for (int64_t i = 0; i < c->in[0].width; i++) {
                float y = at(&c->in[0], row, head, i), cosine = at(&c->in[1], row, 0, i % (half ? half : 1)),
                      sine = at(&c->in[1], row, 0, half + i % (half ? half : 1));
                if (i < half)
                    y = y * cosine - at(&c->in[0], row, head, half + i) * sine;
                else if (i < 2 * half)
                    y = y * cosine + at(&c->in[0], row, head, i - half) * sine;
                fb_dtype_set(FB_F32, fb_view_at(&c->out[0], row, head), i, (double)y);
            }
}

static void rotations(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(20);
    for (int act = FB_F32; act <= FB_BF16; act++)
        for (size_t i = 0; i < 2 * sizeof layouts / sizeof *layouts; i++) {
            const struct layout *l = &layouts[i / 2];
            rig r;
            rig_start(&r, FB_OP_ROPE, &random, i % 2);
            snprintf(r.text, sizeof r.text, "%s, %lld heads of %lld, %d turn", fb_dtype_name((fb_dtype)act),
                     (long long)l->heads, (long long)l->width, l->rotary);
            r.naive = naive;
            r.call.attr.rotary = l->rotary;
            r.call.in[0] = rig_input(&r, (fb_dtype)act, l->heads, l->width, l->between, 0);
            rig_fill(&r, &r.call.in[0], 0, 1);
            r.call.in[1] = rig_input(&r, FB_F32, 1, l->rotary ? l->rotary : 1, (gaps){0, (int64_t)i % 3}, 0);
            for (int64_t row = 0; row < RIG_ROWS; row++)
                for (int64_t k = 0; k < l->rotary / 2; k++) {
                    double angle = fbt_random_uniform(&random, -7, 7);
                    fb_dtype_set(FB_F32, fb_view_at(&r.call.in[1], row, 0), k, cos(angle));
                    fb_dtype_set(FB_F32, fb_view_at(&r.call.in[1], row, 0), l->rotary / 2 + k, sin(angle));
                }
            r.call.out[0] = rig_output(&r, (fb_dtype)act, l->heads, l->width, (gaps){(int64_t)i % 2, 1}, 0);
            rig_check(&r);
        }
}

/* Positions up to where position * frequency has no fraction left in float32. */
static void angles(void **state) {
    (void)state;
    static const int64_t positions[] = {0, 1, 1000, 131072, 16000000, (1ll << 24) + 1, (1ll << 40) + 3};
    static double frequencies[64];
    fbt_random random = fbt_random_start(21);
    for (int i = 0; i < 64; i++) frequencies[i] = pow(10000, -i / 64.0);
    for (size_t p = 0; p < sizeof positions / sizeof *positions; p++)
        for (int32_t rotary = 2; rotary <= 128; rotary = rotary * 2 + 2) {
            rig r;
            rig_start(&r, FB_OP_ROPE_ANGLES, &random, p % 2);
            snprintf(r.text, sizeof r.text, "position %lld, %d turn", (long long)positions[p], rotary);
            r.exact = true;
            rig_rows(&r, positions[p], WITH_GAPS);
            /* In the middle of the rows, before them, behind them, or none. */
            const int64_t limits[] = {0, positions[p] + 5, 1, positions[p] + 100};
            r.call.attr = (fb_op_attr){
                .rotary = rotary, .frequencies = frequencies, .limit = limits[(size_t)rotary / 2 % 4]};
            if (p % 3 == 1) r.call.attr.scale = 1.25f;
            r.call.out[0] = rig_output(&r, FB_F32, 1, rotary, (gaps){0, (int64_t)p % 3}, 0);
            rig_check(&r);
        }
}

/* Appends to a dense cache, and to rings that fill and wrap. */
static void append_to(const fb_ring *rings, int64_t spare, uint64_t seed) {
    static const int64_t positions[] = {0, 1, 13};
    fbt_random random = fbt_random_start(seed);
    for (int pair = 0; pair < 9; pair++) /* of activations' and cache's dtypes */
        for (size_t i = 0; i < 2 * sizeof layouts / sizeof *layouts; i++) {
            int act = pair / 3, kv = pair % 3;
            const struct layout *l = &layouts[i / 2];
            const fb_ring *ring = &rings[i % 3];
            int64_t position = positions[i % 3] + spare * (int64_t)i * 1000,
                    capacity = ring->begin + ring->size;
            rig r;
            rig_start(&r, FB_OP_KV_APPEND, &random, i % 2);
            snprintf(r.text, sizeof r.text, "%s, cache %s, %lld heads of %lld, position %lld",
                     fb_dtype_name((fb_dtype)act), fb_dtype_name((fb_dtype)kv), (long long)l->heads,
                     (long long)l->width, (long long)position);
            r.exact = true;
            rig_rows(&r, position, ring->window ? IN_ORDER : WITH_GAPS);
            if (!ring->window) capacity = end_of_rows(&r.call) + (int64_t)i % 4;
            for (int k = 0; k < 2; k++) {
                gaps between = k ? (gaps){0, 1} : l->between;
                r.call.in[k] = rig_input(&r, (fb_dtype)act, l->heads, l->width, between, 0);
                rig_fill(&r, &r.call.in[k], 0, 1);
            }
            r.call.kv.ring = *ring;
            r.call.kv = rig_cache(&r, (fb_dtype)kv, l->heads, capacity, l->width, 1, true);
            rig_check(&r);
        }
}

static void appended(void **state) {
    (void)state;
    append_to((fb_ring[3]){{0}, {0}, {0}}, 0, 22);
}

static void appended_to_a_ring(void **state) {
    (void)state;
    const fb_ring rings[3] = {{0, 1, 0, 25}, {2, 20, 16, 44}, {17, 9, 32, 40}};
    append_to(rings, 0, 26);
    append_to(rings, 1, 27);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotations),
        cmocka_unit_test(angles),
        cmocka_unit_test(appended),
        cmocka_unit_test(appended_to_a_ring),
    };
    return kernel_run_family("rope", tests, sizeof tests / sizeof *tests);
}
