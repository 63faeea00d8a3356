/* layernorm, rmsnorm, and add_norm, the residual additions with the norms that follow. Lanes share the rows.
 */
#include "backend/cpu/norm.h"

/* Norm `kind` of row x [n] with the call's weights number `first` and `first` + 1. */
static void norm_row(const fb_call *call, fb_op_kind kind, const void *x, row_stats stats, int first,
                     const fb_view *out, int64_t row) {
    const fb_weight *w = &call->weights[first], *b = &call->weights[first + 1];
    void *y = fb_view_at(out, row, 0);
    FB_FOR_DTYPE(out->dtype, T, normalise(kind, T, T, x, stats, w, b, y));
}

static row_stats row_stats_of(const fb_call *call, fb_op_kind kind, fb_dtype dtype, const void *x,
                              int64_t n) {
    row_stats stats = {0};
    FB_FOR_DTYPE(dtype, T, stats = stats_of(kind, T, x, n, call->attr.eps));
    return stats;
}

static void norm_rows(const fb_call *call, const fb_lane *lane, fb_op_kind kind) {
    int64_t begin, end;
    fb_lane_share(lane, call->rows, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const void *x = fb_view_at(&call->in[0], row, 0);
        row_stats stats = row_stats_of(call, kind, call->in[0].dtype, x, call->weights[0].cols);
        norm_row(call, kind, x, stats, 0, &call->out[0], row);
    }
}

void FB_KERNEL(layernorm)(const fb_call *call, const fb_lane *lane) {
    norm_rows(call, lane, FB_OP_LAYERNORM);
}
void FB_KERNEL(rmsnorm)(const fb_call *call, const fb_lane *lane) { norm_rows(call, lane, FB_OP_RMSNORM); }

/* Row sums, rounded after each addition as the plain adds would store them. */
FB_INLINE void sum_row(fb_dtype t, const void *a, const void *b, const void *c, void *y, int64_t n) {
    for (int64_t i = 0; i < n; i += VW) {
        vf sum = vf_get_n(t, a, i, n, 0) + vf_get_n(t, b, i, n, 0);
        if (c) sum = vf_rounded(t, sum) + vf_get_n(t, c, i, n, 0);
        vf_put_n(t, y, i, n, sum);
    }
}

void FB_KERNEL(add_norm)(const fb_call *call, const fb_lane *lane) {
    /* Of the sum: the weights are absent after the last layer, if the final norm is another one. */
    int64_t n = call->out[0].heads * call->out[0].width, begin, end;
    fb_lane_share(lane, call->rows, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const void *a = fb_view_at(&call->in[0], row, 0), *b = fb_view_at(&call->in[1], row, 0);
        const void *c = call->attr.terms == 3 ? fb_view_at(&call->in[2], row, 0) : NULL;
        void *x = fb_view_at(&call->out[0], row, 0);
        FB_FOR_DTYPE(call->out[0].dtype, T, sum_row(T, a, b, c, x, n));
        row_stats stats = row_stats_of(call, call->attr.norm, call->out[0].dtype, x, n);
        for (int k = 0; k < call->attr.norms; k++)
            if (call->weights[2 * k].data)
                norm_row(call, call->attr.norm, x, stats, 2 * k, &call->out[1 + k], row);
    }
}
