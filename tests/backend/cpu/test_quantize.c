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
            isa->kernels[FB_OP_QUANTIZE](&call, &(fb_worker){.count = 1, .scratch = scratch});
            assert_true(out[1].scale != out[1].scale);
            for (int b = 0; b < 3; b += 2) assert_true(out[b].scale == 5.0f / 127);
        }
}

/* Numbers whose reciprocals overflow: the last that has integers, and the first that is all zeros. Zeros and
 * smaller ones beside it are 0 either way. */
static void tiny(void **state) {
    (void)state;
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++)
        for (int least = 0; isa->available() && least < 3; least++) {
            static const float most[] = {0x1p-120f, 0x1.fffffep-121f, 0x1p-149f};
            float x[32] = {[5] = 0x1p-149f, [7] = -most[least]}, scratch[32] __attribute__((aligned(64)));
            fb_q8 out;
            fb_call call = {.rows = 1,
                            .in = {{x, FB_F32, 1, 32, 32, 32}},
                            .out = {{&out, FB_F32, 1, fb_q8_floats(32), fb_q8_floats(32), fb_q8_floats(32)}}};
            isa->kernels[FB_OP_QUANTIZE](&call, &(fb_worker){.count = 1, .scratch = scratch});
            for (int i = 0; i < 32; i++) assert_int_equal(out.q[i], i == 7 && least == 0 ? -127 : 0);
            assert_int_equal(out.sum, least == 0 ? -127 : 0);
            assert_true(out.scale >= 0 && out.scale <= 0x1p-120f);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks), cmocka_unit_test(not_finite),
                                       cmocka_unit_test(tiny)};
    return kernel_run_family("quantize", tests, sizeof tests / sizeof *tests);
}
