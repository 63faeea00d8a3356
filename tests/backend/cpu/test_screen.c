/* Screens, filled by each instruction set: the copy and the bound that base/screen.h promises, and what can
 * have none. */
#include "base/screen.h"

#include <math.h>
#include <stdlib.h>

#include "backend/cpu/host/isa.h"
#include "base/pack.h"
#include "support/support.h"

enum { ROWS = 37, COLS = 96, WORKERS = 2 };

typedef struct filling {
    const fb_isa *isa;
    fb_call call;
    int times;
} filling;

static void fill(void *arg) {
    filling *f = arg;
    f->times++;
    for (int32_t worker = 0; worker < WORKERS; worker++)
        f->isa->screen(&f->call, &(fb_worker){.index = worker, .count = WORKERS});
}

static double norm_of(const double *v, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += v[i] * v[i];
    return sqrt(sum);
}

/* Rows of all sizes: of nothing, of the least float16, of one large element among small ones. */
static void randomise(fbt_random *random, fb_dtype dtype, void *data) {
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        int64_t row = i / COLS;
        double size = row % 5 == 1 ? 1e-7 : row % 5 == 2 ? 30 : row % 5 == 3 ? 0 : 0.1;
        if (row % 7 == 6 && i % COLS == 40) size = 1000;
        fb_dtype_set(dtype, data, i, size * fbt_random_normal(random));
    }
}

static void check_rows(const fb_isa *isa, const fb_weight *w) {
    const fb_screen *s = w->screen;
    assert_true(s->copy.packed && s->copy.dtype == FB_Q8_0 && s->copy.rows == ROWS && s->copy.cols == COLS);
    for (int64_t row = 0; row < ROWS; row++) {
        double copy[COLS], difference[COLS];
        for (int64_t i = 0; i < COLS; i++) {
            copy[i] = fb_weight_get(&s->copy, row, i);
            difference[i] = fb_weight_get(w, row, i) - copy[i];
        }
        double norm = (double)s->norm[row], most = (double)s->error * norm;
        if (!(norm >= norm_of(copy, COLS)) || !(most >= norm_of(difference, COLS)))
            fail_msg("%s, %s: row %lld: norm %g of %g, difference %g of %g", isa->name,
                     fb_dtype_name(w->dtype), (long long)row, norm, norm_of(copy, COLS), most,
                     norm_of(difference, COLS));
        /* And they are of use. */
        if (row % 5 == 0 && row % 7 != 6) assert_true(norm < 1.5 * norm_of(copy, COLS) && s->error < 0x1p-6f);
    }
}

static void bound_holds(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(5);
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++)
        for (fb_dtype dtype = FB_F32; dtype <= FB_BF16 && isa->available(); dtype = (fb_dtype)(dtype + 1)) {
            fbt_guard data = fbt_guard_create((size_t)fb_dtype_bytes(dtype, ROWS * COLS), 0);
            fb_screen s;
            fb_weight w = {.data = data.data, .dtype = dtype, .rows = ROWS, .cols = COLS, .screen = &s};
            filling f = {isa, {.weights = {w}}, 0};
            randomise(&random, dtype, data.data);
            assert_true(fb_screen_fits(&w));
            fb_screen_start(&s, &w);
            assert_false(s.ready);
            for (int again = 0; again < 2; again++) fb_screen_fill(&s, fill, &f);
            assert_true(s.ready);
            assert_int_equal(f.times, 1);
            check_rows(isa, &w);
            fb_screen_end(&s);
            fbt_guard_free(&data);
        }
}

static void not_for_all(void **state) {
    (void)state;
    static const float values[] = {0, 1000, NAN, INFINITY, -INFINITY, 1e30f};
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++)
        for (size_t i = 0; i < sizeof values / sizeof *values && isa->available(); i++) {
            float data[2 * 32] = {0};
            fb_screen s;
            fb_weight w = {.data = data, .dtype = FB_F32, .rows = 2, .cols = 32, .screen = &s};
            data[40] = values[i];
            fb_screen_start(&s, &w);
            fb_screen_fill(&s, fill, &(filling){isa, {.weights = {w}}, 0});
            assert_int_equal(s.ready, i < 2);
            fb_screen_end(&s);
        }
    fb_weight w = {.dtype = FB_F16, .rows = 2, .cols = 31};
    assert_false(fb_screen_fits(&w));
    w.cols = 32;
    assert_true(fb_screen_fits(&w));
    w.cols = FB_SCREEN_COLS + 32;
    assert_false(fb_screen_fits(&w));
    w.cols = 32;
    w.dtype = FB_Q8_0;
    assert_false(fb_screen_fits(&w));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bound_holds),
        cmocka_unit_test(not_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
