/* add3, silu_mul. */
#include "ops/ops_harness.h"

static void elementwise(void **state) {
    (void)state;
    NEEDS_DEVICE();
    static const int64_t row_counts[] = {0, 1, 3, 40}, widths[] = {1, 7, 8, 16, 100, 2560, 9001};
    for (size_t r = 0; r < 4; r++)
        for (size_t c = 0; c < 7; c++) FOR_ACTS(t) {
                int64_t rows = row_counts[r], cols = widths[c];
                fb_ops_tensor in[3], out = tensor((fb_dtype)t, rows, cols),
                                     want = tensor((fb_dtype)t, rows, cols);
                bool three = below(2);
                fb_op_kind kind = three ? FB_OP_ADD3 : FB_OP_SWIGLU;
                fb_call call = {.rows = rows, .act = (fb_dtype)t};
                for (int k = 0; k < 3; k++) call.in[k] = view_of(in[k] = filled((fb_dtype)t, rows, cols));
                fb_view truth = call.out[0] = truth_view(rows, 1, cols);
                run_truth(kind, &call);
                for (int again = 0; again < 2; again++) { /* the second time over an input */
                    fb_ops_tensor *to = again ? &in[1] : &out;
                    if (three)
                        RUN(fb_ops_add3(dev.ops, dev.stream, DEV(in[0]), DEV(in[1]), DEV(in[2]), DEV(*to),
                                        &run_err));
                    else
                        RUN(fb_ops_silu_mul(dev.ops, dev.stream, DEV(in[0]), DEV(in[1]), DEV(*to), &run_err));
                    if (again) break;
                    check(three ? "add3" : "silu_mul", out, &truth, 1.5, 8);
                    call.out[0] = view_of(want);
                    if (!dev.cuda) run_engine(kind, &call);
                    if (!dev.cuda) same("elementwise: engine", out, want);
                }
                same("elementwise: in place", in[1], out);
                give_back();
            }
}

/* Stride 0: the same row for all. */
static void one_row_for_all(void **state) {
    (void)state;
    NEEDS_DEVICE();
    fb_ops_tensor a = filled(FB_F16, 5, 40), b = filled(FB_F16, 1, 40), out = tensor(FB_F16, 5, 40);
    fb_ops_tensor wide = b;
    wide.rows = 5;
    wide.stride = 0;
    fb_call call = {.in = {view_of(a), view_of(wide), view_of(a)}, .rows = 5, .act = FB_F16};
    fb_view truth = call.out[0] = truth_view(5, 1, 40);
    run_truth(FB_OP_ADD3, &call);
    RUN(fb_ops_add3(dev.ops, dev.stream, DEV(a), DEV(wide), DEV(a), DEV(out), &run_err));
    check("add3, one row for all", out, &truth, 1.5, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {EVERYWHERE(elementwise), EVERYWHERE(one_row_for_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
