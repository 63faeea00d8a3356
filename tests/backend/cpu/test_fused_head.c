/* head_argmax. */
#include "fused_harness.h"

/* Equal columns, in one lane's part and in another's: the first one wins. */
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
        FOR_LANES(lanes) {
            fb_view best = view(t == FB_F64 ? FB_F64 : FB_F32, 1, 2 * lanes, 3);
            run(isa, FB_OP_HEAD_ARGMAX, (fb_call){.in = {x}, .out = {best}, .weights = {w}, .act = x.dtype},
                lanes);
            for (int64_t row = 0; row < ROWS; row++) {
                int64_t want = 0, winner = 0;
                const void *l = fb_view_at(&logits, row, 0), *b = fb_view_at(&best, row, 0);
                for (int64_t i = 1; i < vocab; i++)
                    if (fb_dtype_get(t, l, i) > fb_dtype_get(t, l, want)) want = i;
                for (int64_t lane = 1; lane < lanes; lane++)
                    if (fb_dtype_get(best.dtype, b, 2 * lane) > fb_dtype_get(best.dtype, b, 2 * winner))
                        winner = lane;
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
    for (int dot = FB_DOT_FLOAT; dot <= FB_DOT_QUANTIZE && t != FB_F64; dot++) FOR_LANES(lanes) {
            fb_view x = filled(t, 1, K, 0), best = view(FB_F32, 1, 2 * lanes, 0);
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
            run(isa, FB_OP_HEAD_ARGMAX, call, lanes);
            for (int64_t row = 0; row < ROWS; row++) {
                const float *b = fb_view_at(&best, row, 0);
                const void *l = fb_view_at(&logits, row, 0);
                for (int32_t lane = 0; lane < lanes; lane++) {
                    int64_t begin, end, want;
                    fb_pool_share(VOCAB, 16, lane, lanes, &begin, &end);
                    for (int64_t i = want = begin; i < end; i++)
                        if (fb_dtype_get(t, l, i) > fb_dtype_get(t, l, want)) want = i;
                    assert_int_equal((int64_t)b[2 * lane + 1], want);
                    assert_true((double)b[2 * lane] == fb_dtype_get(t, l, want));
                }
            }
            give_back();
        }
}

/* The first and the last column of the vocabulary, of a block and of a lane's part can win. */
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
            for (int64_t lane = 1; lane < 3; lane++)
                if (fb_dtype_get(best.dtype, b, 2 * lane) > fb_dtype_get(best.dtype, b, 2 * winner))
                    winner = lane;
            assert_int_equal((int64_t)fb_dtype_get(best.dtype, b, 2 * winner + 1), edges[e]);
        }
        give_back();
    }
}

/* A lane that has a NaN column says NaN, so that whoever looks for the best of all can tell. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_argmax),
        cmocka_unit_test(head_argmax_packed),
        cmocka_unit_test(head_argmax_edges),
        cmocka_unit_test(head_argmax_nan),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
