#include "backend/cpu/ref/ref.h"

ref_norm ref_norm_of(fb_op_kind kind, const fb_view *x, int64_t row, int64_t head, int64_t n, double eps) {
    double mean = 0, square = 0;
    if (kind == FB_OP_LAYERNORM) REF_FOR(i, n) mean += ref_get(x, row, head, i) / (double)n;
    REF_FOR(i, n) square += pow(ref_get(x, row, head, i) - mean, 2) / (double)n;
    return (ref_norm){mean, 1 / sqrt(square + eps)};
}

double ref_normalised(ref_norm norm, double x, const fb_weight *w, const fb_weight *b, int64_t i) {
    return (x - norm.mean) * norm.scale * ref_weight(w, 0, i) + (b->data ? ref_weight(b, 0, i) : 0);
}

/* Norm of x with weights `first` and `first` + 1. */
static void norm_rows(const fb_call *call, fb_op_kind kind, const fb_view *x, int first, const fb_view *out) {
    const fb_weight *w = &call->weights[first], *b = &call->weights[first + 1];
    REF_FOR(row, call->rows)
    REF_FOR(head, x->width == w->cols ? x->heads : 1) {
        ref_norm norm = ref_norm_of(kind, x, row, head, w->cols, (double)call->attr.eps);
        REF_FOR(i, w->cols)
        ref_set(out, row, head, i, ref_normalised(norm, ref_get(x, row, head, i), w, b, i));
    }
}

void fb_cpu_layernorm_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index == 0) norm_rows(call, FB_OP_LAYERNORM, &call->in[0], 0, &call->out[0]);
}

void fb_cpu_rmsnorm_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index == 0) norm_rows(call, FB_OP_RMSNORM, &call->in[0], 0, &call->out[0]);
}

void fb_cpu_norm_add_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    const fb_weight *w = &call->weights[0], *b = &call->weights[1];
    REF_FOR(row, call->rows) {
        ref_norm norm = ref_norm_of(call->attr.norm, &call->in[0], row, 0, w->cols, (double)call->attr.eps);
        REF_FOR(i, w->cols)
        ref_set(&call->out[0], row, 0, i,
                ref_normalised(norm, ref_get(&call->in[0], row, 0, i), w, b, i) +
                    ref_get(&call->in[1], row, 0, i));
    }
}

void fb_cpu_add_norm_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(i, call->out[0].heads * call->out[0].width) {
        double sum = ref_get(&call->in[0], row, 0, i) + ref_get(&call->in[1], row, 0, i);
        if (call->attr.terms == 3) sum += ref_get(&call->in[2], row, 0, i);
        ref_set(&call->out[0], row, 0, i, sum);
    }
    REF_FOR(k, call->attr.norms)
    if (call->weights[2 * k].data)
        norm_rows(call, call->attr.norm, &call->out[0], (int)(2 * k), &call->out[1 + k]);
}
