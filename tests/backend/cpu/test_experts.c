/* Mixtures of experts on every instruction set. */
#include "backend/expert_cases.h"

/* Packed, if it can be; otherwise each matrix somewhere else, as a checkpoint has them. */
static fb_weight device_weight(fb_weight w) {
    int64_t rows = w.rows / w.experts, bytes = fb_dtype_bytes(w.dtype, rows * w.cols);
    if (fb_pack_has(w.dtype)) {
        void *data = take(w.experts * fb_pack_bytes(w.dtype, rows, w.cols));
        fb_pack(&w, data);
        w.data = data;
        w.packed = true;
        return w;
    }
    const void **parts = take(w.experts * (int64_t)sizeof *parts);
    for (int64_t e = w.experts - 1; e >= 0; e--) {
        void *part = e % 2 ? take(bytes) : NULL;
        if (part) memcpy(part, (const uint8_t *)w.data + e * bytes, (size_t)bytes);
        parts[e] = part ? part : (const uint8_t *)w.data + e * bytes;
    }
    w.data = parts[0];
    w.parts = parts;
    return w;
}

static void experts(void **state) {
    (void)state;
    for (int c = 0; c < EXPERT_CASES; c++) FOR_KERNELS(isa, t) {
            for (int w = 0; w < 2; w++)
                if (!fbt_emulated_passes_over(5))
                    one_expert_case(isa, t, &expert_cases[c], some_workers[(c + 2 * w) % 4]);
        }
}

/* A score that is not a number: distinct experts all the same, and shares that are none. */
static void no_number(void **state) {
    (void)state;
    FOR_KERNELS(isa, t) {
        fb_view scores = filled(t, 1, 6, 0), pairs = view(pair_dtype(t), 1, 6, 0);
        for (int64_t row = 0; row < ROWS; row++) fb_dtype_set(t, fb_view_at(&scores, row, 0), row % 6, NAN);
        run(isa, FB_OP_TOP_K, (fb_call){.in = {scores}, .out = {pairs}, .attr.used = 3}, 2);
        for (int64_t row = 0; row < ROWS; row++) {
            double last = -1;
            bool found = false;
            for (int k = 0; k < 3; k++) {
                double expert = fb_dtype_get(pairs.dtype, fb_view_at(&pairs, row, 0), 2 * k);
                assert_true(expert > last && expert < 6);
                found = found || expert == (double)(row % 6);
                last = expert;
                assert_true(isnan(fb_dtype_get(pairs.dtype, fb_view_at(&pairs, row, 0), 2 * k + 1)));
            }
            assert_true(found);
        }
    }
}

int main(void) {
    random_numbers = fbt_random_start(71);
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts), cmocka_unit_test(no_number)};
    return cmocka_run_group_tests_name("backend/cpu/experts", tests, NULL, NULL);
}
