/* attn_scores, softmax, attn_values, and attn_rows, which runs all three on a few queries at a time. */
#include "backend/cpu/attention.h"

/* Stores the unit's scores of the block at `first` as activations: item n goes to to[n] + first. */
FB_INLINE void put_scores(fb_dtype t, const unit *u, int64_t first, const workspace *ws, void *const *to) {
    for (int64_t n = 0; n < u->n; n++) {
        const float *s = ws->scores + n * FB_ATTN_BLOCK;
        void *at = (void *)(uintptr_t)vf_address(t, to[n], first);
        int64_t count = unit_count_in(u, n, first);
        for (int64_t j = 0; j < count; j += VW) vf_put_n(t, at, j, count, vf_get_n(FB_F32, s, j, count, 0));
    }
}

/* The reverse: loads stored probabilities as weights of the values. */
FB_INLINE void get_weights(fb_dtype t, const unit *u, int64_t first, const workspace *ws, void *const *from) {
    for (int64_t n = 0; n < u->n; n++)
        widen_row(t, vf_address(t, from[n], first), unit_count_in(u, n, first),
                  ws->scores + n * FB_ATTN_BLOCK);
}

static void scores_of(const fb_call *call, const unit *u, const workspace *ws, fb_dtype t, void *const *to) {
    load_all_queries(call, u, ws);
    for (int64_t first = 0; first < unit_count(u, u->n - 1); first += FB_ATTN_BLOCK) {
        FB_KERNEL(unit_scores)(call, u, first, unit_span(u, first), false, ws);
        FB_FOR_DTYPE(t, T, put_scores(T, u, first, ws, to));
    }
}

static void values_of(const fb_call *call, const unit *u, const fb_view *out, const workspace *ws, fb_dtype t,
                      void *const *from) {
    const block_order order = unit_blocks(u);
    memset(ws->sum, 0, (size_t)(u->n * ws->stride) * sizeof *ws->sum);
    for (int64_t i = 0; i < order.count; i++) {
        int64_t first = block_at(&order, i);
        range span = unit_span(u, first);
        if (span.end <= span.begin) continue;
        FB_FOR_DTYPE(t, T, get_weights(T, u, first, ws, from));
        FB_KERNEL(unit_values)(call, u, first, span, false, ws);
    }
    for (int64_t n = 0; n < u->n; n++) {
        void *y = fb_view_at(out, unit_row(u, n), unit_head(u, n));
        FB_FOR_DTYPE(out->dtype, T,
                     for (int64_t i = 0; i < out->width; i += VW)
                         vf_put_n(T, y, i, out->width, vf_load_f32(ws->sum + n * ws->stride + i)));
    }
}

/* The addresses of the rows that the unit's items read or write. */
static void rows_of(const fb_view *view, const unit *u, void **rows) {
    for (int64_t n = 0; n < u->n; n++) rows[n] = fb_view_at(view, unit_row(u, n), unit_head(u, n));
}

void FB_KERNEL(attn_scores)(const fb_call *call, const fb_worker *worker) {
    const fb_view *q = &call->in[0], *out = &call->out[0];
    workspace ws = workspace_of(worker, q->width);
    int64_t begin, end;
    fb_worker_share(worker, call->rows * q->heads, 1, &begin, &end);
    while (begin < end && !fb_worker_cancelled(worker)) {
        unit u = unit_at(call, q->heads, begin, end, FB_ATTN_UNIT);
        void *rows[FB_ATTN_UNIT];
        rows_of(out, &u, rows);
        scores_of(call, &u, &ws, out->dtype, rows);
        begin += u.n;
    }
}

void FB_KERNEL(attn_values)(const fb_call *call, const fb_worker *worker) {
    const fb_view *p = &call->in[0], *out = &call->out[0];
    workspace ws = workspace_of(worker, out->width);
    int64_t begin, end;
    fb_worker_share(worker, call->rows * out->heads, 1, &begin, &end);
    while (begin < end && !fb_worker_cancelled(worker)) {
        unit u = unit_at(call, out->heads, begin, end, FB_ATTN_UNIT);
        void *rows[FB_ATTN_UNIT];
        rows_of(p, &u, rows);
        values_of(call, &u, out, &ws, p->dtype, rows);
        begin += u.n;
    }
}

/* Sums are in the order of the blocks. Slots that the item does not see add zero. */
FB_INLINE void softmax_of(fb_dtype t, const fb_ring *ring, int64_t position, const void *x, void *y,
                          float *e) {
    const block_order order = blocks_of(ring, position, position);
    int64_t n = fb_ring_count(ring, position);
    vf most = vf_set1(-INFINITY);
    for (int64_t i = 0; i < n; i += VW) most = vf_max(most, vf_get_n(t, x, i, n, -INFINITY));
    float max = vf_max_of(most);
    vf sum = vf_set1(0);
    for (int64_t i = 0; i < n; i += VW) {
        vf v = vf_exp(vf_get_n(t, x, i, n, -INFINITY) - max);
        memcpy(e + i, &v, sizeof v);
    }
    for (int64_t b = 0; b < order.count; b++) {
        int64_t first = block_at(&order, b), end = first + FB_ATTN_BLOCK < n ? first + FB_ATTN_BLOCK : n;
        for (int64_t i = first; i < end; i += VW) sum += vf_load_f32(e + i);
    }
    float scale = 1.0f / vf_sum(sum);
    for (int64_t i = 0; i < n; i += VW) vf_put_n(t, y, i, n, vf_load_f32(e + i) * scale);
}

void FB_KERNEL(softmax)(const fb_call *call, const fb_worker *worker) {
    const fb_view *x = &call->in[0], *y = &call->out[0];
    int64_t begin, end;
    fb_worker_share(worker, call->rows * x->heads, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / x->heads, head = item % x->heads;
        FB_FOR_DTYPE(x->dtype, T,
                     softmax_of(T, &call->kv.ring, call->row[row].position, fb_view_at(x, row, head),
                                fb_view_at(y, row, head), worker->scratch));
    }
}

/* The three plain kernels on FB_ATTN_ROWS queries. The scores stay in the worker's scratch; the plain kernels
 * store those of all rows and heads in a buffer. */
static void attend_rows(const fb_call *call, const unit *u, const workspace *ws) {
    const fb_view *q = &call->in[0], *out = &call->out[0];
    int64_t stride = (unit_count(u, u->n - 1) + 31) / 16 * 16;
    float *exps = ws->rest;
    void *probs[FB_ATTN_ROWS];
    for (int n = 0; n < FB_ATTN_ROWS; n++) probs[n] = ws->rest + (n + 1) * stride;
    scores_of(call, u, ws, q->dtype, probs);
    for (int64_t n = 0; n < u->n; n++)
        FB_FOR_DTYPE(q->dtype, T, softmax_of(T, u->ring, unit_position(u, n), probs[n], probs[n], exps));
    values_of(call, u, out, ws, q->dtype, probs);
}

void FB_KERNEL(attn_rows)(const fb_call *call, const fb_worker *worker) {
    const fb_view *q = &call->in[0];
    workspace ws = workspace_of(worker, q->width);
    int64_t begin, end;
    share_items(call, worker, q->heads, &begin, &end);
    while (begin < end && !fb_worker_cancelled(worker)) {
        unit u = unit_at(call, q->heads, begin, end, FB_ATTN_ROWS);
        attend_rows(call, &u, &ws);
        begin += u.n;
    }
}
