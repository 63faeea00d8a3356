/* head_argmax. */
#include "base/screen.h"
#include "fused_harness.h"

/* Equal columns, in one worker's part and in another's: the first one wins. */
static void head_argmax(void **state) {
    (void)state;
    FOR_WIDTHS(n) FOR_KERNELS(isa, t) {
        int64_t k = (int64_t)n, vocab = 97;
        fb_weight w = weight(FB_F32, vocab, k, 0);
        for (int64_t copy = 3; copy < vocab; copy += 31)
            for (int64_t i = 0; i < k; i++)
                fb_dtype_set(FB_F32, (void *)(uintptr_t)w.data, copy * k + i,
                             3 * fb_dtype_get(FB_F32, w.data, i) + (i == 0));
        fb_view x = filled(t, 1, k, 1), logits = view(t, 1, vocab, 0);
        run(isa, FB_OP_LINEAR, (fb_call){.in = {x}, .out = {logits}, .weights = {w}}, 1);
        FOR_WORKERS(workers) {
            fb_view best = view(t == FB_F64 ? FB_F64 : FB_F32, 1, 2 * workers, 3);
            run(isa, FB_OP_HEAD_ARGMAX, (fb_call){.in = {x}, .out = {best}, .weights = {w}, .act = x.dtype},
                workers);
            for (int64_t row = 0; row < ROWS; row++) {
                int64_t want = 0, winner = 0;
                const void *l = fb_view_at(&logits, row, 0), *b = fb_view_at(&best, row, 0);
                for (int64_t i = 1; i < vocab; i++)
                    if (fb_dtype_get(t, l, i) > fb_dtype_get(t, l, want)) want = i;
                for (int64_t worker = 1; worker < workers; worker++)
                    if (fb_dtype_get(best.dtype, b, 2 * worker) > fb_dtype_get(best.dtype, b, 2 * winner))
                        winner = worker;
                assert_int_equal((int64_t)fb_dtype_get(best.dtype, b, 2 * winner + 1), want);
                assert_true(fb_dtype_get(best.dtype, b, 2 * winner) == fb_dtype_get(t, l, want));
            }
        }
    }
}

/* With packed weights: the best of what the plain head stores. */
static void head_argmax_packed(void **state) {
    (void)state;
    enum { K = 96, VOCAB = 120 };
    FOR_KERNELS(isa, t)
    for (int dot = FB_DOT_FLOAT; dot <= FB_DOT_QUANTIZE && t != FB_F64; dot++) FOR_WORKERS(workers) {
            fb_view x = filled(t, 1, K, 0), best = view(FB_F32, 1, 2 * workers, 0);
            fb_call call = {.in = {x}, .out = {best}, .act = t, .attr.segment[0].dot = (fb_dot)dot};
            call.weights[0] = packed(weight(dot == FB_DOT_GIVEN ? FB_Q4_0 : FB_Q8_0, VOCAB, K, 0));
            if (dot == FB_DOT_GIVEN) call.in[0] = quantized(isa, x);
            fb_call plain = call;
            fb_view logits = plain.out[0] = view(t, 1, VOCAB, 0);
            if (dot == FB_DOT_QUANTIZE) {
                plain.in[0] = quantized(isa, x);
                plain.attr.segment[0].dot = FB_DOT_GIVEN;
            }
            run(isa, FB_OP_LINEAR, plain, 1);
            run(isa, FB_OP_HEAD_ARGMAX, call, workers);
            for (int64_t row = 0; row < ROWS; row++) {
                const float *b = fb_view_at(&best, row, 0);
                const void *l = fb_view_at(&logits, row, 0);
                for (int32_t worker = 0; worker < workers; worker++) {
                    int64_t begin, end, want;
                    fb_pool_share(VOCAB, 16, worker, workers, &begin, &end);
                    for (int64_t i = want = begin; i < end; i++)
                        if (fb_dtype_get(t, l, i) > fb_dtype_get(t, l, want)) want = i;
                    assert_int_equal((int64_t)b[2 * worker + 1], want);
                    assert_true((double)b[2 * worker] == fb_dtype_get(t, l, want));
                }
            }
            give_back();
        }
}

/* The first and the last column of the vocabulary, of a block and of a worker's part can win. */
static void head_argmax_edges(void **state) {
    (void)state;
    enum { K = 7, VOCAB = 97 };
    static const int64_t edges[] = {0, 15, 16, 47, 48, 95, 96};
    FOR_KERNELS(isa, t) for (size_t e = 0; e < sizeof edges / sizeof *edges; e++) {
        fb_weight w = weight(FB_F32, VOCAB, K, 0);
        fb_view x = view(t, 1, K, 0);
        for (int64_t i = 0; i < ROWS * K; i++) fb_dtype_set(t, x.data, i, 1);
        for (int64_t i = 0; i < K; i++) fb_dtype_set(FB_F32, (void *)(uintptr_t)w.data, edges[e] * K + i, 8);
        fb_view best = view(t == FB_F64 ? FB_F64 : FB_F32, 1, 2 * 3, 0);
        run(isa, FB_OP_HEAD_ARGMAX, (fb_call){.in = {x}, .out = {best}, .weights = {w}, .act = x.dtype}, 3);
        for (int64_t row = 0; row < ROWS; row++) {
            const void *b = fb_view_at(&best, row, 0);
            int64_t winner = 0;
            for (int64_t worker = 1; worker < 3; worker++)
                if (fb_dtype_get(best.dtype, b, 2 * worker) > fb_dtype_get(best.dtype, b, 2 * winner))
                    winner = worker;
            assert_int_equal((int64_t)fb_dtype_get(best.dtype, b, 2 * winner + 1), edges[e]);
        }
        give_back();
    }
}

/* A worker with a NaN column reports NaN, so that the reader of all workers' results can tell. */
static void head_argmax_nan(void **state) {
    (void)state;
    enum { K = 16, VOCAB = 97 };
    FOR_KERNELS(isa, t) {
        if (strcmp(isa->name, "ref") == 0) continue;
        for (int64_t bad = 0; bad < VOCAB; bad += 48) {
            fb_weight w = weight(FB_F32, VOCAB, K, 0);
            fb_dtype_set(FB_F32, (void *)(uintptr_t)w.data, bad * K, NAN);
            fb_view x = filled(t, 1, K, 0), best = view(FB_F32, 1, 2, 0);
            run(isa, FB_OP_HEAD_ARGMAX, (fb_call){.in = {x}, .out = {best}, .weights = {w}, .act = x.dtype},
                1);
            for (int64_t row = 0; row < ROWS; row++) {
                const float *b = fb_view_at(&best, row, 0);
                if (!isnan(b[0]) || b[1] != (float)bad)
                    fail_msg("%s, %s: column %lld is NaN: best %.9g of column %.0f", isa->name,
                             fb_dtype_name(t), (long long)bad, (double)b[0], (double)b[1]);
            }
        }
    }
}

/* ---- with a screen ---- */

enum { SCREEN_K = 96, SCREEN_VOCAB = 6500 }; /* more than a worker takes at once */

typedef struct filling {
    const fb_isa *isa;
    fb_call call;
} filling;

static void fill(void *arg) {
    filling *f = arg;
    for (int32_t worker = 0; worker < 3; worker++)
        f->isa->screen(&f->call, &(fb_worker){.index = worker, .count = 3});
}

/* Gives the weight a screen, to be ended; whether it is ready. */
static bool fill_screen(const fb_isa *isa, fb_weight *w) {
    w->screen = take((int64_t)sizeof *w->screen);
    fb_screen_start(w->screen, w);
    fb_screen_fill(w->screen, fill, &(filling){isa, {.weights = {*w}}});
    return w->screen->ready;
}

/* The answers of head_argmax with the screen are those without, to the bit. */
static void same_best(const fb_isa *isa, const char *what, fb_view x, fb_weight w, int32_t workers) {
    fb_view want = view(FB_F32, 1, 2 * workers, 0), have = view(FB_F32, 1, 2 * workers, 0);
    fb_call call = {.in = {x}, .out = {want}, .weights = {w}, .act = x.dtype};
    run(isa, FB_OP_HEAD_ARGMAX, call, workers);
    call.out[0] = have;
    call.attr.screen = true;
    run(isa, FB_OP_HEAD_ARGMAX, call, workers);
    for (int64_t row = 0; row < ROWS; row++) {
        const float *a = fb_view_at(&have, row, 0), *b = fb_view_at(&want, row, 0);
        if (memcmp(a, b, (size_t)(2 * workers) * sizeof *a) != 0)
            fail_msg("%s, %s, %s: row %lld: %.9g at %.0f, without a screen %.9g at %.0f", isa->name,
                     fb_dtype_name(x.dtype), what, (long long)row, (double)a[0], (double)a[1], (double)b[0],
                     (double)b[1]);
    }
}

static void set_row(fb_weight *w, int64_t to, int64_t from, double factor, double more) {
    for (int64_t i = 0; i < w->cols; i++)
        fb_dtype_set(w->dtype, (void *)(uintptr_t)w->data, to * w->cols + i,
                     factor * fb_dtype_get(w->dtype, w->data, from * w->cols + i) + (i == 0 ? more : 0));
}

/* For each row of x, makes `each` rows of w similar to it, every `apart`th. They are far above all others.
 * They are so close to each other that their 8-bit copies are in another order, and that some of them are
 * equal in 16 bits. */
static void put_winners(fb_weight *w, const fb_view *x, int64_t each, int64_t apart) {
    for (int64_t n = 0; n < ROWS * each; n++) {
        const void *like = fb_view_at(x, n % ROWS, 0);
        for (int64_t i = 0; i < w->cols; i++)
            fb_dtype_set(w->dtype, (void *)(uintptr_t)w->data, (3 + n * apart) * w->cols + i,
                         0.3 * fb_dtype_get(x->dtype, like, i) + 1e-3 * fbt_random_normal(&random_numbers));
    }
}

#define FOR_SCREENS(isa, t, dtype)                                                                           \
    FOR_KERNELS(isa, t)                                                                                      \
    for (fb_dtype dtype = FB_F32; dtype <= FB_BF16 && t != FB_F64; dtype = (fb_dtype)(dtype + 1))            \
        if (!fbt_emulated_passes_over(5))

/* Copies, rows that differ by less than their copies in 8 bits do, long and short rows, rows of zeros. */
static void head_screen(void **state) {
    (void)state;
    FOR_SCREENS(isa, t, dtype) {
        fb_weight w = weight(dtype, SCREEN_VOCAB, SCREEN_K, 0);
        for (int64_t i = 7; i < SCREEN_VOCAB; i += 61) set_row(&w, i, i - 5, 1, 0);
        for (int64_t i = 9; i < SCREEN_VOCAB; i += 61) set_row(&w, i, i - 5, 1, i % 2 ? 1e-3 : -1e-3);
        for (int64_t i = 11; i < SCREEN_VOCAB; i += 301) set_row(&w, i, i, i % 2 ? 2 : 0.001, 0);
        for (int64_t i = 13; i < SCREEN_VOCAB; i += 301) set_row(&w, i, i, 0, 0);
        fb_weight near = weight(dtype, SCREEN_VOCAB, SCREEN_K, 0);
        fb_view x = filled(t, 1, SCREEN_K, 3);
        put_winners(&near, &x, 20, 45);
        fb_weight flat = weight(dtype, 200, SCREEN_K, 0);
        for (int64_t i = 1; i < flat.rows; i++) set_row(&flat, i, 0, 1, i % 3 ? 1e-3 : 0);
        set_row(&flat, flat.rows - 1, 0, 1.01, 0);
        assert_true(fill_screen(isa, &flat));
        assert_true(fill_screen(isa, &w));
        assert_true(fill_screen(isa, &near));
        FOR_WORKERS(workers) {
            same_best(isa, "random", x, w, workers);
            same_best(isa, "near each other", x, near, workers);
            same_best(isa, "all the same", x, flat, workers);
        }
        fb_screen_end(w.screen);
        fb_screen_end(near.screen);
        fb_screen_end(flat.screen);
        give_back();
    }
}

/* Multiples of 1/128, with 127 in each block of 32, so that the rounding of Q8_0 is known exactly: all errors
 * have the same sign and are as large as the bound allows. */
static double hundredths(int64_t i, double even, double odd) {
    return (i % 32 == 31 ? 127 : i % 2 ? odd : even) / 128;
}

/* The copy of the best row scores below that of the second best, because the weights were rounded or because
 * x was. Or both are equal in bfloat16, and the first is the best. */
static void head_screen_worst(void **state) {
    (void)state;
    enum { VOCAB = 64, BETTER = 20, OTHER = 50 };
    FOR_SCREENS(isa, t, dtype) for (int kind = 0; kind < 3; kind++) {
        fb_weight w = weight(dtype, VOCAB, SCREEN_K, 0);
        fb_view x = view(t, 1, SCREEN_K, 0);
        for (int64_t i = 0; i < VOCAB; i++) set_row(&w, i, i, 0, 0);
        for (int64_t i = 0; i < SCREEN_K; i++) {
            double value[3][3] = {
                {1, hundredths(i, 10.4375, 10.4375), hundredths(i, 10.5625, 10.25)},
                {hundredths(i, 10.4375, 10.5625), i % 2 == 0, i % 2 && i % 32 != 31 ? 1.046875 : 0},
                {1, i == 7 ? 0.75 : 1, 1},
            };
            void *weights = (void *)(uintptr_t)w.data;
            for (int64_t row = 0; row < ROWS; row++)
                fb_dtype_set(t, x.data, row * SCREEN_K + i, value[kind][0]);
            fb_dtype_set(dtype, weights, BETTER * SCREEN_K + i, value[kind][1]);
            fb_dtype_set(dtype, weights, OTHER * SCREEN_K + i, value[kind][2]);
        }
        assert_true(fill_screen(isa, &w));
        same_best(isa, kind == 0 ? "weights rounded" : kind == 1 ? "x rounded" : "equals", x, w, 1);
        fb_screen_end(w.screen);
        give_back();
    }
}

/* Rows that cannot win are not read: they may be NaN. */
static void head_screen_reads_little(void **state) {
    (void)state;
    FOR_SCREENS(isa, t, dtype) {
        if (strcmp(isa->name, "ref") == 0) continue;
        fb_weight w = weight(dtype, 512, SCREEN_K, 0);
        set_row(&w, 300, 299, 0, 0);
        fb_view x = filled(t, 1, SCREEN_K, 0), best = view(FB_F32, 1, 2, 0);
        for (int64_t i = 0; i < SCREEN_K; i++)
            fb_dtype_set(dtype, (void *)(uintptr_t)w.data, 300 * SCREEN_K + i, fb_dtype_get(t, x.data, i));
        assert_true(fill_screen(isa, &w));
        for (int64_t i = 0; i < 512; i++)
            if (i != 300) set_row(&w, i, i, NAN, 0);
        run(isa, FB_OP_HEAD_ARGMAX,
            (fb_call){.in = {x}, .out = {best}, .weights = {w}, .act = t, .attr.screen = true, .rows = 1}, 1);
        fb_screen_end(w.screen);
        const float *b = best.data;
        if (b[1] != 300 || !(b[0] > 0))
            fail_msg("%s: best %.9g at %.0f", isa->name, (double)b[0], (double)b[1]);
        give_back();
    }
}

/* An x of zeros, close to zero, too large, or NaN; scores that are infinite in float16. */
static void head_screen_edges(void **state) {
    (void)state;
    static const double factors[] = {0, 1e-30, 1e-12, 1e4, 1e30, NAN, INFINITY};
    FOR_SCREENS(isa, t, dtype) {
        for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
            fb_weight w = weight(dtype, 200, SCREEN_K, 0);
            fb_view x = filled(t, 1, SCREEN_K, 0);
            put_winners(&w, &x, 4, 7);
            assert_true(fill_screen(isa, &w));
            for (int64_t i = 0; i < ROWS * SCREEN_K; i++)
                fb_dtype_set(t, x.data, i, factors[f] * fb_dtype_get(t, x.data, i));
            char what[32];
            snprintf(what, sizeof what, "x times %g", factors[f]);
            same_best(isa, what, x, w, 2);
            fb_screen_end(w.screen);
            give_back();
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_argmax),
        cmocka_unit_test(head_argmax_packed),
        cmocka_unit_test(head_argmax_edges),
        cmocka_unit_test(head_argmax_nan),
        cmocka_unit_test(head_screen),
        cmocka_unit_test(head_screen_worst),
        cmocka_unit_test(head_screen_reads_little),
        cmocka_unit_test(head_screen_edges),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
