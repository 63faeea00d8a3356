/* layernorm, rmsnorm; norm_add: a norm with the residual addition that follows; add_norm: residual additions
 * with the norms that follow. Workers share the rows. */
#include "backend/cpu/norm.h"

/* Writes norm `kind` of row x [n], with the call's weights `first` and `first` + 1. */
static void norm_row(const fb_call *call, fb_op_kind kind, const void *x, row_stats stats, int first,
                     const fb_view *out, int64_t row, int64_t head) {
    const fb_weight *w = &call->weights[first], *b = &call->weights[first + 1];
    void *y = fb_view_at(out, row, head);
    FB_FOR_DTYPE(out->dtype, T, normalise(kind, T, T, x, stats, w, b, y));
}

static row_stats row_stats_of(const fb_call *call, fb_op_kind kind, fb_dtype dtype, const void *x,
                              int64_t n) {
    row_stats stats = {0};
    FB_FOR_DTYPE(dtype, T, stats = stats_of(kind, T, x, n, call->attr.eps));
    return stats;
}

/* Whole rows, or each head by itself if the weight is as wide as one. */
static void norm_rows(const fb_call *call, const fb_worker *worker, fb_op_kind kind) {
    const fb_view *in = &call->in[0];
    int64_t n = call->weights[0].cols, heads = in->width == n ? in->heads : 1, begin, end;
    fb_worker_share(worker, call->rows * heads, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / heads, head = item % heads;
        const void *x = fb_view_at(in, row, head);
        row_stats stats = row_stats_of(call, kind, in->dtype, x, n);
        norm_row(call, kind, x, stats, 0, &call->out[0], row, head);
    }
}

void FB_KERNEL(layernorm)(const fb_call *call, const fb_worker *worker) {
    norm_rows(call, worker, FB_OP_LAYERNORM);
}
void FB_KERNEL(rmsnorm)(const fb_call *call, const fb_worker *worker) {
    norm_rows(call, worker, FB_OP_RMSNORM);
}

/* In one pass, because `y` may be the memory of x or of r. */
FB_INLINE void norm_add_row(fb_op_kind norm, fb_dtype t, const void *x, const void *r, row_stats stats,
                            const fb_weight *w, const fb_weight *b, void *y) {
    for (int64_t i = 0; i < w->cols; i += VW)
        vf_put_n(t, y, i, w->cols, normalised(norm, t, x, i, stats, w, b) + vf_get_n(t, r, i, w->cols, 0));
}

void FB_KERNEL(norm_add)(const fb_call *call, const fb_worker *worker) {
    const fb_weight *w = &call->weights[0], *b = &call->weights[1];
    int64_t begin, end;
    fb_worker_share(worker, call->rows, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const void *x = fb_view_at(&call->in[0], row, 0), *r = fb_view_at(&call->in[1], row, 0);
        row_stats stats = row_stats_of(call, call->attr.norm, call->in[0].dtype, x, w->cols);
        void *y = fb_view_at(&call->out[0], row, 0);
        FB_FOR_DTYPE(call->out[0].dtype, T, norm_add_row(call->attr.norm, T, x, r, stats, w, b, y));
    }
}

/* Adds rows, and rounds after each addition as the plain adds would store. */
FB_INLINE void sum_row(fb_dtype t, const void *a, const void *b, const void *c, void *y, int64_t n) {
    for (int64_t i = 0; i < n; i += VW) {
        vf sum = vf_get_n(t, a, i, n, 0) + vf_get_n(t, b, i, n, 0);
        if (c) sum = vf_rounded(t, sum) + vf_get_n(t, c, i, n, 0);
        vf_put_n(t, y, i, n, sum);
    }
}

void FB_KERNEL(add_norm)(const fb_call *call, const fb_worker *worker) {
    /* The width is taken from the sum, because the norm's weights are absent after the last layer if the
     * final norm is of another kind. */
    int64_t n = call->out[0].heads * call->out[0].width, begin, end;
    fb_worker_share(worker, call->rows, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const void *a = fb_view_at(&call->in[0], row, 0), *b = fb_view_at(&call->in[1], row, 0);
        const void *c = call->attr.terms == 3 ? fb_view_at(&call->in[2], row, 0) : NULL;
        void *x = fb_view_at(&call->out[0], row, 0);
        FB_FOR_DTYPE(call->out[0].dtype, T, sum_row(T, a, b, c, x, n));
        row_stats stats = row_stats_of(call, call->attr.norm, call->out[0].dtype, x, n);
        for (int k = 0; k < call->attr.norms; k++)
            if (call->weights[2 * k].data)
                norm_row(call, call->attr.norm, x, stats, 2 * k, &call->out[1 + k], row, 0);
    }
}
