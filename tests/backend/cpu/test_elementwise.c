#include <stdio.h>

#include "kernel_harness.h"

/* One operation on two numbers, rounded once: there is only one right answer, also in 16 bits, because
 * float32 has more than twice their digits. */
static void sums_and_products(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 3, 7, 15, 16, 17, 31, 33, 64, 65, 100, 257};
    fbt_random random = fbt_random_start(17);
    for (int kind = FB_OP_MUL; kind <= FB_OP_ADD; kind++)
        for (int act = FB_F32; act <= FB_BF16; act++)
            for (size_t i = 0; i < 2 * sizeof widths / sizeof *widths; i++) {
                int64_t width = widths[i / 2];
                rig r;
                rig_start(&r, (fb_op_kind)kind, &random, i % 2);
                snprintf(r.text, sizeof r.text, "%s, width %lld", fb_dtype_name((fb_dtype)act),
                         (long long)width);
                r.exact = true;
                for (int k = 0; k < 2; k++) {
                    r.call.in[k] = rig_input(&r, (fb_dtype)act, 1, width, (gaps){0, (int64_t)i % (3 + k)}, 0);
                    rig_fill(&r, &r.call.in[k], 0.1, k ? 1 : 30);
                }
                r.call.out[0] = rig_output(&r, (fb_dtype)act, 1, width, (gaps){0, (int64_t)i % 5}, 0);
                rig_check(&r);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_and_products)};
    return kernel_run_family("elementwise", tests, sizeof tests / sizeof *tests);
}
