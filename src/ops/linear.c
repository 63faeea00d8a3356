/* linear_bias_act, norm_linear, swiglu: linear_group, of one or
 * two segments. */
#include "ops/linear.h"

#define NO_OP FB_OP_COUNT

fb_status fb_check_linear_rows(const fb_check *c, int64_t rows) {
    if (rows > FB_OPS_MAX_LINEAR_ROWS)
        return fb_fail(c->err, FB_ERROR_USAGE, "%s: x: rows %lld (from 0 to %lld)", c->op, (long long)rows,
                       (long long)FB_OPS_MAX_LINEAR_ROWS);
    return FB_OK;
}

static fb_status check_activation(const fb_check *c, fb_ops_activation activation, fb_op_kind *out) {
    static const fb_op_kind kinds[] = {NO_OP, FB_OP_GELU, FB_OP_GELU_TANH, FB_OP_SILU};
    FB_TRY(fb_check_choice(c, "activation", (int64_t)activation, 4));
    *out = kinds[activation];
    return FB_OK;
}

/* Segment s: act(x * weight^T + bias). */
static void set_segment(fb_call *call, int s, const fb_view *x, const fb_weight *weight, fb_op_kind act) {
    call->in[s] = *x;
    call->weights[4 * s] = *weight;
    call->attr.segment[s].norm = NO_OP;
    call->attr.segment[s].act = act;
}

int64_t fb_linear_bytes(const fb_call *call) {
    int64_t bytes = 0;
    for (int s = 0; s < call->attr.segments; s++) {
        const fb_weight *w = &call->weights[4 * s];
        /* With many rows, what counts is multiplying: each row costs about as much as a few bytes of weights
         * more. */
        bytes += fb_dtype_bytes(w->dtype, w->rows * w->cols) * (1 + call->rows / 4);
    }
    return bytes;
}

/* x, weight, bias and out of a linear, into segment 0. */
static fb_status check_linear(const fb_check *c, const fb_ops_tensor *x, const fb_ops_tensor *weight,
                              const fb_ops_tensor *bias, fb_ops_activation activation,
                              const fb_ops_tensor *out, fb_call *call) {
    fb_weight w;
    fb_op_kind act;
    FB_TRY(fb_check_ops(c));
    FB_TRY(fb_check_tensor(c, "x", x, &(fb_expect){FB_OPS_ANY_DTYPE, -1, -1, false}));
    FB_TRY(fb_check_linear_rows(c, x->rows));
    FB_TRY(fb_check_matrix(c, "weight", weight, x->cols, &w));
    FB_TRY(fb_check_vector(c, "bias", bias, w.rows, true, &call->weights[1]));
    FB_TRY(check_activation(c, activation, &act));
    FB_TRY(fb_check_tensor(c, "out", out, &(fb_expect){x->dtype, x->rows, w.rows, true}));
    fb_view in = fb_tensor_view(x);
    set_segment(call, 0, &in, &w, act);
    call->out[0] = fb_tensor_view(out);
    call->attr.segments = 1;
    call->rows = x->rows;
    call->act = x->dtype;
    return FB_OK;
}

fb_status fb_ops_linear_bias_act(fb_ops *ops, void *stream, const fb_ops_tensor *x,
                                 const fb_ops_tensor *weight, const fb_ops_tensor *bias,
                                 fb_ops_activation activation, const fb_ops_tensor *out, fb_error *err) {
    fb_call call = {0};
    FB_TRY(check_linear(&(fb_check){ops, "linear_bias_act", err}, x, weight, bias, activation, out, &call));
    return fb_ops_run_one(ops, stream, FB_OP_LINEAR_GROUP, &call, fb_linear_bytes(&call), err);
}

fb_status fb_ops_norm_linear(fb_ops *ops, void *stream, const fb_ops_tensor *x, fb_ops_norm norm,
                             const fb_ops_tensor *norm_weight, const fb_ops_tensor *norm_bias, float eps,
                             const fb_ops_tensor *weight, const fb_ops_tensor *bias,
                             fb_ops_activation activation, const fb_ops_tensor *out, fb_error *err) {
    const fb_check c = {ops, "norm_linear", err};
    fb_call call = {0};
    fb_op_kind kind;
    FB_TRY(check_linear(&c, x, weight, bias, activation, out, &call));
    FB_TRY(fb_check_norm(&c, norm, &kind));
    FB_TRY(fb_check_vector(&c, "norm_weight", norm_weight, x->cols, false, &call.weights[2]));
    FB_TRY(fb_check_vector(&c, "norm_bias", norm_bias, x->cols, true, &call.weights[3]));
    if (kind == FB_OP_RMSNORM && call.weights[3].data)
        return fb_fail(err, FB_ERROR_USAGE, "norm_linear: norm_bias: a bias (an RMS norm has none)");
    FB_TRY(fb_check_eps(&c, eps));
    call.attr.segment[0].norm = kind;
    call.attr.segment[0].eps = eps;
    return fb_ops_run_one(ops, stream, FB_OP_LINEAR_GROUP, &call, fb_linear_bytes(&call), err);
}

/* ---- swiglu ---- */

typedef struct swiglu {
    fb_view x, out;
    fb_weight w1, w3;
    int64_t rows;
} swiglu;

static fb_status project(fb_job *job, const swiglu *s, const fb_weight *w, fb_op_kind act, const fb_view *out,
                         fb_error *err) {
    fb_call call = {.out = {*out}, .attr.segments = 1, .rows = s->rows, .act = out->dtype};
    set_segment(&call, 0, &s->x, w, act);
    return fb_job_run(job, FB_OP_LINEAR_GROUP, &call, fb_linear_bytes(&call), err);
}

/* The second projection is stored in `out`, and then replaced by the product. */
static fb_status run_apart(fb_job *job, const swiglu *s, bool silu_first, fb_error *err) {
    int64_t n = s->w1.rows;
    fb_view gate = {job->temp, s->out.dtype, 1, n, n, n};
    fb_call product = {.in = {gate, s->out}, .out = {s->out}, .rows = s->rows, .act = s->out.dtype};
    FB_TRY(project(job, s, &s->w1, silu_first ? FB_OP_SILU : NO_OP, &gate, err));
    FB_TRY(project(job, s, &s->w3, NO_OP, &s->out, err));
    return fb_job_run(job, silu_first ? FB_OP_MUL : FB_OP_SWIGLU, &product,
                      3 * s->rows * n * fb_dtype_size(s->out.dtype), err);
}

static fb_status run_dual(fb_ops *ops, void *stream, const swiglu *s, fb_error *err) {
    fb_call call = {.out = {s->out},
                    .attr = {.segments = 2, .combine = FB_COMBINE_MUL},
                    .rows = s->rows,
                    .act = s->out.dtype};
    set_segment(&call, 0, &s->x, &s->w1, FB_OP_SILU);
    set_segment(&call, 1, &s->x, &s->w3, NO_OP);
    return fb_ops_run_one(ops, stream, FB_OP_LINEAR_GROUP, &call, fb_linear_bytes(&call), err);
}

fb_status fb_ops_swiglu(fb_ops *ops, void *stream, const fb_ops_tensor *x, const fb_ops_tensor *w1,
                        const fb_ops_tensor *w3, fb_ops_strategy strategy, const fb_ops_tensor *out,
                        fb_error *err) {
    const fb_check c = {ops, "swiglu", err};
    swiglu s = {0};
    FB_TRY(fb_check_ops(&c));
    FB_TRY(fb_check_tensor(&c, "x", x, &(fb_expect){FB_OPS_ANY_DTYPE, -1, -1, false}));
    FB_TRY(fb_check_linear_rows(&c, x->rows));
    FB_TRY(fb_check_matrix(&c, "w1", w1, x->cols, &s.w1));
    FB_TRY(fb_check_matrix(&c, "w3", w3, x->cols, &s.w3));
    if (s.w3.rows != s.w1.rows)
        return fb_fail(err, FB_ERROR_USAGE, "swiglu: w3: rows %lld (must be %lld, as w1)",
                       (long long)s.w3.rows, (long long)s.w1.rows);
    FB_TRY(fb_check_choice(&c, "strategy", (int64_t)strategy, 3));
    FB_TRY(fb_check_tensor(&c, "out", out, &(fb_expect){x->dtype, x->rows, s.w1.rows, true}));
    s.x = fb_tensor_view(x);
    s.out = fb_tensor_view(out);
    s.rows = x->rows;
    if (s.rows == 0) return FB_OK;
    if (strategy == FB_OPS_DUAL) return run_dual(ops, stream, &s, err);
    fb_job job;
    FB_TRY(fb_job_begin(ops, stream, s.rows * s.w1.rows * fb_dtype_size(x->dtype), &job, err));
    fb_status status = run_apart(&job, &s, strategy == FB_OPS_ACCUMULATOR, err);
    fb_job_end(&job);
    return status;
}
