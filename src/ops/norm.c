/* layer_norm, rms_norm, layer_norm_residual, add_norm. */
#include "ops/ops.h"

static fb_status norm(const fb_check *c, fb_ops *ops, void *stream, fb_op_kind kind, const fb_ops_tensor *x,
                      const fb_ops_tensor *weight, const fb_ops_tensor *bias, float eps,
                      const fb_ops_tensor *out) {
    fb_call call = {.attr.eps = eps};
    FB_TRY(fb_check_ops(c));
    FB_TRY(fb_check_tensor(c, "x", x, &(fb_expect){FB_OPS_ANY_DTYPE, -1, -1, false}));
    FB_TRY(fb_check_vector(c, "weight", weight, x->cols, false, &call.weights[0]));
    FB_TRY(fb_check_vector(c, "bias", bias, x->cols, true, &call.weights[1]));
    FB_TRY(fb_check_eps(c, eps));
    FB_TRY(fb_check_tensor(c, "out", out, &(fb_expect){x->dtype, x->rows, x->cols, true}));
    call.in[0] = fb_tensor_view(x);
    call.out[0] = fb_tensor_view(out);
    call.rows = x->rows;
    call.act = x->dtype;
    return fb_ops_run_one(ops, stream, kind, &call, 2 * fb_tensor_bytes(x), c->err);
}

fb_status fb_ops_layer_norm(fb_ops *ops, void *stream, const fb_ops_tensor *x, const fb_ops_tensor *weight,
                            const fb_ops_tensor *bias, float eps, const fb_ops_tensor *out, fb_error *err) {
    return norm(&(fb_check){ops, "layer_norm", err}, ops, stream, FB_OP_LAYERNORM, x, weight, bias, eps, out);
}

fb_status fb_ops_rms_norm(fb_ops *ops, void *stream, const fb_ops_tensor *x, const fb_ops_tensor *weight,
                          float eps, const fb_ops_tensor *out, fb_error *err) {
    return norm(&(fb_check){ops, "rms_norm", err}, ops, stream, FB_OP_RMSNORM, x, weight, NULL, eps, out);
}

fb_status fb_ops_layer_norm_residual(fb_ops *ops, void *stream, const fb_ops_tensor *x,
                                     const fb_ops_tensor *residual, const fb_ops_tensor *weight,
                                     const fb_ops_tensor *bias, float eps, const fb_ops_tensor *out,
                                     fb_error *err) {
    const fb_check c = {ops, "layer_norm_residual", err};
    fb_call call = {.attr = {.eps = eps, .norm = FB_OP_LAYERNORM}};
    FB_TRY(fb_check_ops(&c));
    FB_TRY(fb_check_tensor(&c, "x", x, &(fb_expect){FB_OPS_ANY_DTYPE, -1, -1, false}));
    FB_TRY(fb_check_tensor(&c, "residual", residual, &(fb_expect){x->dtype, x->rows, x->cols, false}));
    FB_TRY(fb_check_vector(&c, "weight", weight, x->cols, false, &call.weights[0]));
    FB_TRY(fb_check_vector(&c, "bias", bias, x->cols, true, &call.weights[1]));
    FB_TRY(fb_check_eps(&c, eps));
    FB_TRY(fb_check_tensor(&c, "out", out, &(fb_expect){x->dtype, x->rows, x->cols, true}));
    call.in[0] = fb_tensor_view(x);
    call.in[1] = fb_tensor_view(residual);
    call.out[0] = fb_tensor_view(out);
    call.rows = x->rows;
    call.act = x->dtype;
    return fb_ops_run_one(ops, stream, FB_OP_NORM_ADD, &call, 3 * fb_tensor_bytes(x), err);
}

/* One norm of add_norm: its weight, bias and output. */
static fb_status check_out(const fb_check *c, int32_t k, const fb_ops_tensor *x, const fb_ops_tensor *weight,
                           const fb_ops_tensor *bias, const fb_ops_tensor *out, fb_call *call) {
    static const char *const names[2][3] = {{"weights[0]", "biases[0]", "outs[0]"},
                                            {"weights[1]", "biases[1]", "outs[1]"}};
    FB_TRY(fb_check_vector(c, names[k][0], weight, x->cols, false, &call->weights[2 * k]));
    FB_TRY(fb_check_vector(c, names[k][1], bias, x->cols, true, &call->weights[2 * k + 1]));
    if (bias && bias->data && call->attr.norm == FB_OP_RMSNORM)
        return fb_fail(c->err, FB_ERROR_USAGE, "%s: %s: a bias (an RMS norm has none)", c->op, names[k][1]);
    FB_TRY(fb_check_tensor(c, names[k][2], out, &(fb_expect){x->dtype, x->rows, x->cols, true}));
    call->out[1 + k] = fb_tensor_view(out);
    return FB_OK;
}

fb_status fb_ops_add_norm(fb_ops *ops, void *stream, const fb_ops_tensor *terms, int32_t term_count,
                          fb_ops_norm norm_kind, const fb_ops_tensor *weights, const fb_ops_tensor *biases,
                          int32_t norm_count, float eps, const fb_ops_tensor *sum, const fb_ops_tensor *outs,
                          fb_error *err) {
    static const char *const names[3] = {"terms[0]", "terms[1]", "terms[2]"};
    const fb_check c = {ops, "add_norm", err};
    fb_call call = {.attr = {.eps = eps, .terms = term_count, .norms = norm_count}};
    FB_TRY(fb_check_ops(&c));
    FB_TRY(fb_check_norm(&c, norm_kind, &call.attr.norm));
    if (term_count < 2 || term_count > 3)
        return fb_fail(err, FB_ERROR_USAGE, "add_norm: term_count: %d (2 or 3)", term_count);
    if (norm_count < 1 || norm_count > 2)
        return fb_fail(err, FB_ERROR_USAGE, "add_norm: norm_count: %d (1 or 2)", norm_count);
    FB_TRY(fb_check_tensor(&c, names[0], terms, &(fb_expect){FB_OPS_ANY_DTYPE, -1, -1, false}));
    for (int32_t k = 0; k < term_count; k++) {
        FB_TRY(fb_check_tensor(&c, names[k], &terms[k],
                               &(fb_expect){terms->dtype, terms->rows, terms->cols, false}));
        call.in[k] = fb_tensor_view(&terms[k]);
    }
    FB_TRY(fb_check_eps(&c, eps));
    FB_TRY(fb_check_tensor(&c, "sum", sum, &(fb_expect){terms->dtype, terms->rows, terms->cols, true}));
    call.out[0] = fb_tensor_view(sum);
    for (int32_t k = 0; k < norm_count; k++)
        FB_TRY(check_out(&c, k, terms, weights ? &weights[k] : NULL, biases ? &biases[k] : NULL,
                         outs ? &outs[k] : NULL, &call));
    call.rows = terms->rows;
    call.act = terms->dtype;
    return fb_ops_run_one(ops, stream, FB_OP_ADD_NORM, &call,
                          (term_count + 1 + norm_count) * fb_tensor_bytes(terms), err);
}
