/* Mixtures of experts with more rows than an expert takes at a time: the bits of each row alone. */
#define FUSED_ROWS 150
#include "backend/expert_cases.h"

static fb_weight device_weight(fb_weight w) {
    void *data;
    if (!fb_pack_has(w.dtype)) return w;
    data = take(w.experts * fb_pack_bytes(w.dtype, w.rows / w.experts, w.cols));
    fb_pack(&w, data);
    w.data = data;
    w.packed = true;
    return w;
}

static void experts(void **state) {
    (void)state;
    static const expert_case cases[] = {{2, 2, 40, 33, FB_F16, FB_DOT_FLOAT},
                                        {9, 9, 64, 32, FB_Q8_0, FB_DOT_QUANTIZE},
                                        {3, 2, 32, 64, FB_Q4_0, FB_DOT_GIVEN}};
    for (int c = 0; c < 3; c++)
        FOR_KERNELS(isa, t) if (t != FB_F64) one_expert_case(isa, t, &cases[c], 1 + c);
}

int main(void) {
    random_numbers = fbt_random_start(73);
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts)};
    return cmocka_run_group_tests_name("backend/cpu/experts_many", tests, NULL, NULL);
}
