/* linear_bias_act, norm_linear, swiglu. */
#include "ops/ops_harness.h"

/* Rows, inputs, outputs: one row, few, more than the GPU's matvec takes, more than the CPU prepares at once;
 * columns that are whole chunks and not. */
static const int64_t shapes[][3] = {{0, 8, 8},   {1, 64, 48},  {1, 7, 3},     {2, 33, 17},  {4, 256, 24},
                                    {8, 64, 32}, {9, 40, 24},  {13, 72, 16},  {17, 64, 40}, {3, 128, 100},
                                    {1, 1, 1},   {12, 31, 11}, {140, 40, 24}, {1, 512, 700}};
#define SHAPES (sizeof shapes / sizeof *shapes)

static const fb_op_kind activations[] = {FB_OP_COUNT, FB_OP_GELU, FB_OP_GELU_TANH, FB_OP_SILU};

/* A matrix; often of the activations' dtype, as models have it. */
static fb_ops_tensor matrix(fb_dtype act, int64_t rows, int64_t cols) {
    return weight(below(2) ? act : acts[below(3)], rows, cols, 0, 1 / sqrt((double)cols));
}
static fb_ops_tensor vector(int64_t cols, double mean, bool optional) {
    return optional && !below(3) ? (fb_ops_tensor){0} : weight(acts[below(3)], 1, cols, mean, 0.3);
}
#define DEV_OR_NULL(t) ((t).data ? DEV(t) : NULL)

static fb_call group(fb_ops_tensor x, fb_ops_tensor w, fb_ops_tensor b, fb_op_kind act) {
    return (fb_call){.in = {view_of(x)},
                     .weights = {weight_of(w), weight_of(b)},
                     .attr = {.segments = 1, .segment = {{.norm = FB_OP_COUNT, .act = act}}},
                     .rows = x.rows,
                     .act = x.dtype};
}

static void check_engine(const char *what, fb_call call, fb_ops_tensor out) {
    if (dev.cuda) return;
    fb_ops_tensor want = tensor(out.dtype, out.rows, out.cols);
    call.out[0] = view_of(want);
    run_engine(FB_OP_LINEAR_GROUP, &call);
    same(what, out, want);
}

static void linear_bias_act(void **state) {
    (void)state;
    NEEDS_DEVICE();
    for (size_t s = 0; s < SHAPES; s++) FOR_ACTS(t) {
            int64_t rows = shapes[s][0], cols = shapes[s][1], n = shapes[s][2];
            int act = (int)below(4);
            fb_ops_tensor x = filled((fb_dtype)t, rows, cols), w = matrix((fb_dtype)t, n, cols),
                          b = vector(n, 0, true), out = tensor((fb_dtype)t, rows, n);
            fb_call call = group(x, w, b, activations[act]);
            fb_view truth = call.out[0] = truth_view(rows, 1, n);
            run_truth(FB_OP_LINEAR_GROUP, &call);
            RUN(fb_ops_linear_bias_act(dev.ops, dev.stream, DEV(x), DEV(w), DEV_OR_NULL(b),
                                       (fb_ops_activation)act, DEV(out), &run_err));
            check("linear_bias_act", out, &truth, 2, 40);
            check_engine("linear_bias_act", call, out);
            give_back();
        }
}

static void norm_linear(void **state) {
    (void)state;
    NEEDS_DEVICE();
    for (size_t s = 0; s < SHAPES; s++) FOR_ACTS(t) {
            int64_t rows = shapes[s][0], cols = shapes[s][1], n = shapes[s][2];
            int act = (int)below(4);
            bool rms = below(2);
            fb_ops_tensor x = filled((fb_dtype)t, rows, cols), w = matrix((fb_dtype)t, n, cols),
                          b = vector(n, 0, true), out = tensor((fb_dtype)t, rows, n);
            fb_ops_tensor norm_w = vector(cols, 1, false),
                          norm_b = rms ? (fb_ops_tensor){0} : vector(cols, 0, true);
            fb_call call = group(x, w, b, activations[act]);
            call.attr.segment[0].norm = rms ? FB_OP_RMSNORM : FB_OP_LAYERNORM;
            call.attr.segment[0].eps = 1e-5f;
            call.weights[2] = weight_of(norm_w);
            call.weights[3] = weight_of(norm_b);
            fb_view truth = call.out[0] = truth_view(rows, 1, n);
            run_truth(FB_OP_LINEAR_GROUP, &call);
            RUN(fb_ops_norm_linear(dev.ops, dev.stream, DEV(x), rms ? FB_OPS_RMS_NORM : FB_OPS_LAYER_NORM,
                                   DEV(norm_w), DEV_OR_NULL(norm_b), 1e-5f, DEV(w), DEV_OR_NULL(b),
                                   (fb_ops_activation)act, DEV(out), &run_err));
            check("norm_linear", out, &truth, 3, 60);
            check_engine("norm_linear", call, out);
            give_back();
        }
}

/* The three strategies give the same bits. */
static void swiglu(void **state) {
    (void)state;
    NEEDS_DEVICE();
    for (size_t s = 0; s < SHAPES; s++) FOR_ACTS(t) {
            int64_t rows = shapes[s][0], cols = shapes[s][1], n = shapes[s][2];
            fb_ops_tensor x = filled((fb_dtype)t, rows, cols), w1 = matrix((fb_dtype)t, n, cols), w3, out[3];
            w3 = weight(w1.dtype, n, cols, 0, 1 / sqrt((double)cols));
            fb_call call = group(x, w1, (fb_ops_tensor){0}, FB_OP_SILU);
            call.in[1] = call.in[0];
            call.weights[4] = weight_of(w3);
            call.attr.segments = 2;
            call.attr.combine = FB_COMBINE_MUL;
            call.attr.segment[1] = (fb_segment){.norm = FB_OP_COUNT, .act = FB_OP_COUNT};
            fb_view truth = call.out[0] = truth_view(rows, 1, n);
            run_truth(FB_OP_LINEAR_GROUP, &call);
            for (int k = 0; k < 3; k++) {
                out[k] = tensor((fb_dtype)t, rows, n);
                RUN(fb_ops_swiglu(dev.ops, dev.stream, DEV(x), DEV(w1), DEV(w3), (fb_ops_strategy)k,
                                  DEV(out[k]), &run_err));
                check("swiglu", out[k], &truth, 4, 80);
                same("swiglu: strategies", out[k], out[0]);
            }
            check_engine("swiglu", call, out[0]);
            give_back();
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {EVERYWHERE(linear_bias_act), EVERYWHERE(norm_linear),
                                       EVERYWHERE(swiglu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
