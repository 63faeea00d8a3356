/* Mixtures of experts on the device, with many rows of each expert: the bits of each row alone. */
#define FUSED_ROWS 150
#include "backend/cuda/cuda_harness.h"
#include "backend/expert_cases.h"

static fb_weight device_weight(fb_weight w) { return w; }

static void experts(void **state) {
    (void)state;
    static const expert_case cases[] = {{3, 2, 40, 24, FB_F16, FB_DOT_FLOAT},
                                        {4, 3, 32, 32, FB_Q8_0, FB_DOT_QUANTIZE},
                                        {2, 2, 32, 32, FB_Q4_0, FB_DOT_GIVEN}};
    for (int c = 0; c < 3; c++)
        for (int t = FB_F32; t <= FB_BF16; t++) {
            if (cuda_is_emulated() && t != c) continue;
            one_expert_case(&cuda_isas[0], (fb_dtype)t, &cases[c], 1);
            give_back();
        }
}

int main(void) {
    random_numbers = fbt_random_start(74);
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts)};
    return cuda_run_group("backend/cuda/experts_many", tests, 1, NULL);
}
