/* Screens: the copy and the bound that base/screen.h promises, and what can have none. */
#include "base/screen.h"

#include <math.h>
#include <stdlib.h>

#include "base/pack.h"
#include "support/support.h"

enum { ROWS = 37, COLS = 96 };

static double norm_of(const double *v, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += v[i] * v[i];
    return sqrt(sum);
}

/* Rows of all sizes: of nothing, of the least float16, of one large element among small ones. */
static void fill(fbt_random *random, fb_dtype dtype, void *data) {
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        int64_t row = i / COLS;
        double size = row % 5 == 1 ? 1e-7 : row % 5 == 2 ? 30 : row % 5 == 3 ? 0 : 0.1;
        if (row % 7 == 6 && i % COLS == 40) size = 1000;
        fb_dtype_set(dtype, data, i, size * fbt_random_normal(random));
    }
}

static void bound_holds(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(5);
    for (fb_dtype dtype = FB_F32; dtype <= FB_BF16; dtype = (fb_dtype)(dtype + 1)) {
        fbt_guard data = fbt_guard_create((size_t)fb_dtype_bytes(dtype, ROWS * COLS), 0);
        fbt_guard memory = fbt_guard_create((size_t)fb_screen_bytes(ROWS, COLS), 0);
        fb_weight w = {.data = data.data, .dtype = dtype, .rows = ROWS, .cols = COLS};
        float room[COLS];
        fb_screen s;
        fill(&random, dtype, data.data);
        assert_true(fb_screen_fits(&w));
        assert_true(fb_screen_fill(&w, memory.data, room, &s));
        assert_true(s.copy.packed && s.copy.dtype == FB_Q8_0 && s.copy.rows == ROWS && s.copy.cols == COLS);
        for (int64_t row = 0; row < ROWS; row++) {
            double copy[COLS], difference[COLS];
            for (int64_t i = 0; i < COLS; i++) {
                copy[i] = fb_weight_get(&s.copy, row, i);
                difference[i] = fb_weight_get(&w, row, i) - copy[i];
            }
            assert_true((double)s.norm[row] >= norm_of(copy, COLS));
            assert_true((double)s.error * (double)s.norm[row] >= norm_of(difference, COLS));
        }
        assert_true(s.norm[0] < 1.01 * COLS * 0.1 && s.error < 0x1p-5f); /* and is of use */
        fbt_guard_free(&data);
        fbt_guard_free(&memory);
    }
}

static void not_for_all(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
    float data[2 * 32] = {0}, room[32];
    fbt_guard memory = fbt_guard_create((size_t)fb_screen_bytes(2, 32), 0);
    fb_weight w = {.data = data, .dtype = FB_F32, .rows = 2, .cols = 32};
    fb_screen s;
    assert_true(fb_screen_fill(&w, memory.data, room, &s));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        data[40] = bad[i];
        assert_false(fb_screen_fill(&w, memory.data, room, &s));
    }
    w.cols = 31;
    assert_false(fb_screen_fits(&w));
    w.cols = 32;
    w.dtype = FB_Q8_0;
    assert_false(fb_screen_fits(&w));
    fbt_guard_free(&memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bound_holds),
        cmocka_unit_test(not_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
