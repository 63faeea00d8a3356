#include <math.h>
#include <stdio.h>

#include "base/quant.h"
#include "kernel_harness.h"

/* The bits of ref: integers, scales and sums. */
static void blocks(void **state) {
    (void)state;
    static const int64_t widths[] = {32, 64, 96, 320, 1024};
    fbt_random random = fbt_random_start(31);
    for (int act = FB_F32; act <= FB_BF16; act++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int zero = 0; zero < 2; zero++) {
                rig r;
                rig_start(&r, FB_OP_QUANTIZE, &random, i % 2);
                snprintf(r.text, sizeof r.text, "act %s, %lld wide", fb_dtype_name((fb_dtype)act),
                         (long long)widths[i]);
                r.exact = true;
                r.scratch_floats = widths[i];
                r.call.in[0] = rig_input(&r, (fb_dtype)act, 1, widths[i], (gaps){0, (int64_t)i % 3}, 0);
                rig_fill(&r, &r.call.in[0], 0, zero ? 0 : 1);
                r.call.out[0] = rig_output(&r, FB_F32, 1, fb_q8_floats(widths[i]), (gaps){0, 0}, 0);
                rig_check(&r);
            }
}

/* What is not finite stays so, and does not touch the blocks beside it. */
static void not_finite(void **state) {
    (void)state;
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++)
        for (int bad = 0; isa->available() && bad < 3; bad++) {
            float x[96], scratch[96] __attribute__((aligned(64)));
            fb_q8 out[3];
            for (int i = 0; i < 96; i++) x[i] = (float)(i % 11) - 5;
            x[40] = bad == 0 ? NAN : bad == 1 ? INFINITY : -INFINITY;
            fb_call call = {.rows = 1,
                            .in = {{x, FB_F32, 1, 96, 96, 96}},
                            .out = {{out, FB_F32, 1, fb_q8_floats(96), fb_q8_floats(96), fb_q8_floats(96)}}};
            isa->kernels[FB_OP_QUANTIZE](&call, &(fb_lane){0, 1, scratch});
            assert_true(out[1].scale != out[1].scale);
            for (int b = 0; b < 3; b += 2) assert_true(out[b].scale == 5.0f / 127);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks), cmocka_unit_test(not_finite)};
    return kernel_run_family("quantize", tests, sizeof tests / sizeof *tests);
}
