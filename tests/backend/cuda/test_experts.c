/* Mixtures of experts on the device: few rows and many. */
#include "backend/cuda/cuda_harness.h"
#include "backend/expert_cases.h"

static fb_weight device_weight(fb_weight w) { return w; }

static void experts(void **state) {
    (void)state;
    for (int c = 0; c < EXPERT_CASES; c++)
        for (int t = FB_F32; t <= FB_BF16; t++) {
            if ((c + t) % cuda_every(3)) continue;
            one_expert_case(&cuda_isas[0], (fb_dtype)t, &expert_cases[c], 1);
            give_back();
        }
}

int main(void) {
    random_numbers = fbt_random_start(72);
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts)};
    return cuda_run_group("backend/cuda/experts", tests, 1, NULL);
}
