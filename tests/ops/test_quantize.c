/* pack, quantize_q8, linear_q8_0, linear_q4_0, linear_blocks. */
#include "ops/ops_harness.h"

static fb_ops_block *blocks_of(int64_t rows, int64_t stride) {
    return take(rows * stride * (int64_t)sizeof(fb_ops_block), 8 * below(2));
}

static void quantize(void **state) {
    (void)state;
    NEEDS_DEVICE();
    static const int64_t shapes[][2] = {{0, 32}, {1, 32}, {3, 96}, {7, 256}, {20, 2560}};
    for (size_t s = 0; s < 5; s++) FOR_ACTS(t) {
            int64_t rows = shapes[s][0], cols = shapes[s][1], stride = cols / 32 + below(3);
            fb_ops_tensor x = filled((fb_dtype)t, rows, cols);
            fb_ops_block *out = blocks_of(rows, stride);
            fb_q8 *want = take(rows * (cols / 32) * (int64_t)sizeof *want, 0);
            fb_call call = {.in = {view_of(x)},
                            .out = {{want, FB_F32, 1, fb_q8_floats(cols), fb_q8_floats(cols), 0}},
                            .rows = rows,
                            .act = (fb_dtype)t};
            run_truth(FB_OP_QUANTIZE, &call);
            RUN(fb_ops_quantize_q8(dev.ops, dev.stream, DEV(x), there(out), stride, &run_err));
            for (int64_t r = 0; r < rows; r++)
                for (int64_t b = 0; b < cols / 32; b++) {
                    const fb_ops_block *have = &out[r * stride + b];
                    const fb_q8 *should = &want[r * (cols / 32) + b];
                    int32_t sum = 0;
                    assert_true(fabsf(have->scale - should->scale) <= 1e-6f * should->scale);
                    for (int i = 0; i < 32; i++) {
                        assert_true(abs(have->q[i] - should->q[i]) <= 1);
                        sum += have->q[i];
                    }
                    assert_int_equal(have->sum, sum);
                }
            give_back();
        }
}

static void linears(void **state) {
    (void)state;
    NEEDS_DEVICE();
    static const int64_t shapes[][3] = {{0, 32, 16},  {1, 256, 40}, {1, 96, 7},   {5, 64, 33},
                                        {8, 512, 16}, {9, 128, 24}, {20, 96, 50}, {140, 64, 16}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int q4 = 0; q4 < 2; q4++) FOR_ACTS(t) {
                int64_t rows = shapes[s][0], cols = shapes[s][1], n = shapes[s][2], stride = cols / 32;
                fb_dtype type = q4 ? FB_Q4_0 : FB_Q8_0;
                fb_error err;
                fb_ops_weight *w;
                void *file = take(fb_dtype_bytes(type, n * cols), 0);
                fbt_random_blocks(&random_numbers, type, n * cols, 0.1, file);
                fb_ops_tensor x = filled((fb_dtype)t, rows, cols), out = tensor((fb_dtype)t, rows, n),
                              given = tensor((fb_dtype)t, rows, n), bias = {0};
                if (below(2)) bias = weight(acts[below(3)], 1, n, 0, 0.3);
                fb_ops_block *blocks = blocks_of(rows, stride);
                fb_call call = {
                    .in = {view_of(x)},
                    .weights = {{.data = file, .dtype = type, .rows = n, .cols = cols}, weight_of(bias)},
                    .attr = {.segments = 1, .segment = {{FB_OP_COUNT, FB_OP_COUNT, 0, FB_DOT_QUANTIZE}}},
                    .rows = rows,
                    .act = (fb_dtype)t};
                fb_view truth = call.out[0] = truth_view(rows, 1, n);
                run_truth(FB_OP_LINEAR_GROUP, &call);
                assert_ok(fb_ops_pack(dev.ops, type, file, n, cols, &w, &err), &err);
                const fb_ops_tensor *b = bias.data ? DEV(bias) : NULL;
                if (q4)
                    RUN(fb_ops_linear_q4_0(dev.ops, dev.stream, DEV(x), w, b, DEV(out), &run_err));
                else
                    RUN(fb_ops_linear_q8_0(dev.ops, dev.stream, DEV(x), w, b, DEV(out), &run_err));
                check("linear_q", out, &truth, 2, 4000); /* a tie may be quantised the other way */
                RUN(fb_ops_quantize_q8(dev.ops, dev.stream, DEV(x), there(blocks), stride, &run_err));
                RUN(fb_ops_linear_blocks(dev.ops, dev.stream, there(blocks), stride, w, b, DEV(given),
                                         &run_err));
                same("linear_blocks", given, out);
                fb_ops_weight_free(w);
                give_back();
            }
}

/* Weights encoded from floats: no value is further away than half a step (Q8_0), or a whole one (Q4_0), whose
 * range has one value less at one end; and a little for the scale, which is rounded to float16. */
static void weights(void **state) {
    (void)state;
    enum { ROWS = 5, COLS = 96 };
    random_numbers = fbt_random_start(29);
    for (int q4 = 0; q4 < 2; q4++) {
        fb_dtype type = q4 ? FB_Q4_0 : FB_Q8_0;
        fb_error err;
        float *values = take(ROWS * COLS * (int64_t)sizeof *values, 0), decoded[ROWS * COLS];
        for (int i = 0; i < ROWS * COLS; i++) values[i] = (float)below(2001) / 1000 - 1;
        void *blocks = take(fb_dtype_bytes(type, ROWS * COLS), 0);
        assert_ok(fb_ops_quantize_weight(type, values, ROWS, COLS, blocks, &err), &err);
        fb_quant_decode(type, blocks, ROWS * COLS, decoded);
        for (int block = 0; block < ROWS * COLS; block += 32) {
            float largest = 0;
            for (int i = block; i < block + 32; i++) largest = fmaxf(largest, fabsf(values[i]));
            for (int i = block; i < block + 32; i++)
                assert_true(fabsf(decoded[i] - values[i]) <= 1.2f * largest / (q4 ? 8 : 2 * 127));
        }
        give_back();
    }
}

static void refusals(void **state) {
    (void)state;
    fb_error err;
    fb_ops_weight *w, *none;
    static uint8_t file[34 * 4];
    random_numbers = fbt_random_start(23);
    open_cpu(1);
    fb_ops_tensor x = filled(FB_F32, 2, 64), out = tensor(FB_F32, 2, 2), odd = filled(FB_F32, 2, 40);
    assert_ok(fb_ops_pack(dev.ops, FB_Q8_0, file, 2, 64, &w, &err), &err);
    assert_refused(fb_ops_pack(dev.ops, FB_Q6_K, file, 2, 64, &none, &err), FB_ERROR_USAGE, &err,
                   "pack|dtype|q8_0 or q4_0");
    assert_refused(fb_ops_pack(dev.ops, FB_Q8_0, file, 2, 40, &none, &err), FB_ERROR_USAGE, &err,
                   "pack|columns|40|32");
    assert_refused(fb_ops_pack(dev.ops, FB_Q8_0, file, 0, 64, &none, &err), FB_ERROR_USAGE, &err,
                   "pack|rows|0|1");
    assert_null(none);
    float values[64] = {0};
    assert_refused(fb_ops_quantize_weight(FB_F16, values, 2, 32, file, &err), FB_ERROR_USAGE, &err,
                   "quantize_weight|dtype|q8_0 or q4_0");
    assert_refused(fb_ops_quantize_weight(FB_Q8_0, values, 2, 33, file, &err), FB_ERROR_USAGE, &err,
                   "quantize_weight|columns|33|32");
    assert_refused(fb_ops_quantize_weight(FB_Q8_0, NULL, 2, 32, file, &err), FB_ERROR_USAGE, &err,
                   "quantize_weight|values|NULL");
    assert_refused(fb_ops_quantize_weight(FB_Q8_0, values, 2, 32, NULL, &err), FB_ERROR_USAGE, &err,
                   "quantize_weight|blocks|NULL");
    assert_refused(fb_ops_linear_q4_0(dev.ops, NULL, &x, w, NULL, &out, &err), FB_ERROR_USAGE, &err,
                   "linear_q4_0|weight|q8_0|q4_0");
    assert_refused(fb_ops_linear_q8_0(dev.ops, NULL, &odd, w, NULL, &out, &err), FB_ERROR_USAGE, &err,
                   "linear_q8_0|x|columns 40|64");
    assert_refused(fb_ops_linear_q8_0(dev.ops, NULL, &x, NULL, NULL, &out, &err), FB_ERROR_USAGE, &err,
                   "linear_q8_0|weight|NULL");
    assert_refused(fb_ops_quantize_q8(dev.ops, NULL, &odd, (fb_ops_block *)x.data, 2, &err), FB_ERROR_USAGE,
                   &err, "quantize_q8|x|columns 40|32");
    assert_refused(fb_ops_quantize_q8(dev.ops, NULL, &x, NULL, 2, &err), FB_ERROR_USAGE, &err,
                   "quantize_q8|out|NULL");
    assert_refused(fb_ops_linear_blocks(dev.ops, NULL, NULL, 2, w, NULL, &out, &err), FB_ERROR_USAGE, &err,
                   "linear_blocks|x|NULL");
    fb_ops_weight_free(w);
    fb_ops_weight_free(NULL);
    give_back();
    close_device();
}

int main(void) {
    const struct CMUnitTest tests[] = {EVERYWHERE(quantize), EVERYWHERE(linears), cmocka_unit_test(weights),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
