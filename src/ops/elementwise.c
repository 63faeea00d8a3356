/* add3, silu_mul. */
#include "ops/ops.h"

/* An op of up to three inputs with one shape. */
static fb_status map(const fb_check *c, fb_ops *ops, void *stream, fb_op_kind kind, int inputs,
                     const fb_ops_tensor *const *in, const char *const *names, const fb_ops_tensor *out) {
    fb_call call = {0};
    FB_TRY(fb_check_ops(c));
    FB_TRY(fb_check_tensor(c, names[0], in[0], &(fb_expect){FB_OPS_ANY_DTYPE, -1, -1, false}));
    const fb_expect like_first = {in[0]->dtype, in[0]->rows, in[0]->cols, false};
    const fb_expect result = {in[0]->dtype, in[0]->rows, in[0]->cols, true};
    for (int k = 0; k < inputs; k++) {
        FB_TRY(fb_check_tensor(c, names[k], in[k], &like_first));
        call.in[k] = fb_tensor_view(in[k]);
    }
    FB_TRY(fb_check_tensor(c, "out", out, &result));
    call.out[0] = fb_tensor_view(out);
    call.rows = out->rows;
    call.act = out->dtype;
    return fb_ops_run_one(ops, stream, kind, &call, (inputs + 1) * fb_tensor_bytes(out), c->err);
}

fb_status fb_ops_add3(fb_ops *ops, void *stream, const fb_ops_tensor *a, const fb_ops_tensor *b,
                      const fb_ops_tensor *c, const fb_ops_tensor *out, fb_error *err) {
    static const char *const names[] = {"a", "b", "c"};
    const fb_ops_tensor *const in[] = {a, b, c};
    return map(&(fb_check){ops, "add3", err}, ops, stream, FB_OP_ADD3, 3, in, names, out);
}

fb_status fb_ops_silu_mul(fb_ops *ops, void *stream, const fb_ops_tensor *gate, const fb_ops_tensor *up,
                          const fb_ops_tensor *out, fb_error *err) {
    static const char *const names[] = {"gate", "up"};
    const fb_ops_tensor *const in[] = {gate, up};
    return map(&(fb_check){ops, "silu_mul", err}, ops, stream, FB_OP_SWIGLU, 2, in, names, out);
}
