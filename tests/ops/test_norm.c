/* layer_norm, rms_norm, layer_norm_residual, add_norm. */
#include "ops/ops_harness.h"

static const int64_t row_counts[] = {0, 1, 2, 5, 33};
static const int64_t widths[] = {1, 7, 8, 33, 64, 256, 2561};
#define FOR_SHAPES(rows, cols)                                                                               \
    for (size_t r_ = 0; r_ < sizeof row_counts / sizeof *row_counts; r_++)                                   \
        for (size_t c_ = 0; c_ < sizeof widths / sizeof *widths; c_++)                                       \
            for (int64_t rows = row_counts[r_], cols = widths[c_], once_ = 1; once_; once_ = 0)

static fb_ops_tensor norm_weight(int64_t cols) { return weight(acts[below(3)], 1, cols, 1, 0.3); }
static fb_ops_tensor norm_bias(int64_t cols) {
    return below(3) ? weight(acts[below(3)], 1, cols, 0, 0.5) : (fb_ops_tensor){0};
}

static fb_call call_of(fb_ops_tensor x, fb_ops_tensor w, fb_ops_tensor b, fb_op_kind kind) {
    return (fb_call){.in = {view_of(x)},
                     .weights = {weight_of(w), weight_of(b)},
                     .attr = {.eps = 1e-5f, .norm = kind},
                     .rows = x.rows,
                     .act = x.dtype};
}

/* The kernel of the engine gives the same bits (on the CPU; a GPU's are compared with the truth only). */
static void check_engine(const char *what, fb_op_kind kind, fb_call call, fb_ops_tensor out) {
    if (dev.cuda) return;
    fb_ops_tensor want = tensor(out.dtype, out.rows, out.cols);
    call.out[0] = view_of(want);
    run_engine(kind, &call);
    same(what, out, want);
}

static void norms(void **state) {
    (void)state;
    NEEDS_DEVICE();
    FOR_SHAPES(rows, cols) FOR_ACTS(t) {
        bool rms = below(2);
        fb_ops_tensor x = filled((fb_dtype)t, rows, cols), w = norm_weight(cols),
                      b = rms ? (fb_ops_tensor){0} : norm_bias(cols), out = tensor((fb_dtype)t, rows, cols);
        fb_op_kind kind = rms ? FB_OP_RMSNORM : FB_OP_LAYERNORM;
        fb_call call = call_of(x, w, b, kind);
        fb_view truth = call.out[0] = truth_view(rows, 1, cols);
        run_truth(kind, &call);
        if (rms)
            RUN(fb_ops_rms_norm(dev.ops, dev.stream, DEV(x), DEV(w), 1e-5f, DEV(out), &run_err));
        else
            RUN(fb_ops_layer_norm(dev.ops, dev.stream, DEV(x), DEV(w), b.data ? DEV(b) : NULL, 1e-5f,
                                  DEV(out), &run_err));
        check("norm", out, &truth, 1, 20);
        check_engine("norm", kind, call, out);
        if (rms)
            RUN(fb_ops_rms_norm(dev.ops, dev.stream, DEV(x), DEV(w), 1e-5f, DEV(x), &run_err));
        else
            RUN(fb_ops_layer_norm(dev.ops, dev.stream, DEV(x), DEV(w), DEV(b), 1e-5f, DEV(x), &run_err));
        same("norm in place", x, out);
        give_back();
    }
}

static void layer_norm_residual(void **state) {
    (void)state;
    NEEDS_DEVICE();
    FOR_SHAPES(rows, cols) FOR_ACTS(t) {
        fb_ops_tensor x = filled((fb_dtype)t, rows, cols), r = filled((fb_dtype)t, rows, cols),
                      w = norm_weight(cols), b = norm_bias(cols), out = tensor((fb_dtype)t, rows, cols);
        fb_call call = call_of(x, w, b, FB_OP_LAYERNORM);
        call.in[1] = view_of(r);
        fb_view truth = call.out[0] = truth_view(rows, 1, cols);
        run_truth(FB_OP_NORM_ADD, &call);
        RUN(fb_ops_layer_norm_residual(dev.ops, dev.stream, DEV(x), DEV(r), DEV(w), DEV(b), 1e-5f, DEV(out),
                                       &run_err));
        check("layer_norm_residual", out, &truth, 2, 20);
        check_engine("layer_norm_residual", FB_OP_NORM_ADD, call, out);
        RUN(fb_ops_layer_norm_residual(dev.ops, dev.stream, DEV(x), DEV(r), DEV(w), DEV(b), 1e-5f, DEV(r),
                                       &run_err));
        same("layer_norm_residual over the residual", r, out);
        give_back();
    }
}

static void add_norm(void **state) {
    (void)state;
    NEEDS_DEVICE();
    FOR_SHAPES(rows, cols) FOR_ACTS(t) {
        int terms = 2 + (int)below(2), norms_of_it = 1 + (int)below(2);
        bool rms = below(2);
        fb_op_kind kind = rms ? FB_OP_RMSNORM : FB_OP_LAYERNORM;
        fb_ops_tensor in[3], w[2], b[2] = {{0}}, out[3], in_dev[3], w_dev[2], b_dev[2], out_dev[3];
        fb_call call = {.attr = {.terms = terms, .norms = norms_of_it, .norm = kind, .eps = 1e-5f},
                        .rows = rows,
                        .act = (fb_dtype)t};
        fb_view truth[3];
        for (int k = 0; k < 3; k++) in[k] = filled((fb_dtype)t, rows, cols);
        for (int k = 0; k < 2; k++) w[k] = norm_weight(cols), b[k] = rms ? b[k] : norm_bias(cols);
        for (int k = 0; k <= 2; k++) {
            out[k] = tensor((fb_dtype)t, rows, cols);
            truth[k] = call.out[k] = truth_view(rows, 1, cols);
            in_dev[k] = on_device(in[k]);
            out_dev[k] = on_device(out[k]);
            call.in[k] = view_of(in[k]);
        }
        for (int k = 0; k < 2; k++) {
            w_dev[k] = on_device(w[k]), b_dev[k] = on_device(b[k]);
            call.weights[2 * k] = weight_of(w[k]), call.weights[2 * k + 1] = weight_of(b[k]);
        }
        run_truth(FB_OP_ADD_NORM, &call);
        RUN(fb_ops_add_norm(dev.ops, dev.stream, in_dev, terms, rms ? FB_OPS_RMS_NORM : FB_OPS_LAYER_NORM,
                            w_dev, rms && below(2) ? NULL : b_dev, norms_of_it, 1e-5f, out_dev, out_dev + 1,
                            &run_err));
        check("add_norm: sum", out[0], &truth[0], 1.5, 4);
        for (int k = 0; k < norms_of_it; k++) check("add_norm: norm", out[1 + k], &truth[1 + k], 8, 30);
        check_engine("add_norm", FB_OP_ADD_NORM, call, out[0]);
        give_back();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {EVERYWHERE(norms), EVERYWHERE(layer_norm_residual),
                                       EVERYWHERE(add_norm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
