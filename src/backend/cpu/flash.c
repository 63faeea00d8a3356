/* attn_flash: scores, softmax and values in one pass over the cache. */
#include "backend/cpu/attention.h"

/* The state of a query after some blocks: the largest score, and the sum of all weights relative to it. */
typedef struct online {
    float most, total;
} online;

/* Turns the scores of `count` positions into weights relative to the largest score so far. A larger score
 * scales down what was summed before. */
FB_INLINE void add_block(online *o, float *s, int64_t count, float *sum, int64_t stride) {
    vf best = vf_set1(o->most), added = vf_set1(0);
    int64_t last = (count - 1) / VW * VW; /* the last vector; its columns beyond `count` get no weight */
    vf_put(FB_F32, s, last, vf_first(vf_load_f32(s + last), count - last, -INFINITY));
    for (int64_t j = 0; j < count; j += VW) best = vf_max(best, vf_load_f32(s + j));
    float now = vf_max_of(best);
    if (now == -INFINITY) { /* the query has seen nothing so far */
        memset(s, 0, (size_t)count * sizeof *s);
        return;
    }
    for (int64_t j = 0; j < count; j += VW) {
        vf e = vf_exp(vf_load_f32(s + j) - now);
        added += e;
        vf_put(FB_F32, s, j, e);
    }
    if (now != o->most && o->total != 0) {
        float shrink = vf_exp(vf_set1(o->most - now))[0];
        o->total *= shrink;
        for (int64_t i = 0; i < stride; i += VW) vf_put(FB_F32, sum, i, vf_load_f32(sum + i) * shrink);
    }
    o->total += vf_sum(added);
    o->most = now;
}

static void start(const fb_call *call, const unit *u, const workspace *ws, online *state) {
    for (int64_t n = 0; n < u->n; n++) state[n] = (online){-INFINITY, 0};
    memset(ws->sum, 0, (size_t)(u->n * ws->stride) * sizeof *ws->sum);
    load_all_queries(call, u, ws);
}

/* Computes the scores of the block at `first` and turns them into weights. Reads alternate: a block of keys,
 * its values, the next block's keys or the next head's. Each block prefetches the following one. Only the
 * worker's first keys are not prefetched. */
static void weights_of(const fb_call *call, const unit *u, int64_t first, range span, const workspace *ws,
                       online *state) {
    FB_KERNEL(unit_scores)(call, u, first, span, true, ws);
    for (int64_t n = 0; n < u->n; n++) {
        int64_t count = unit_count_in(u, u->ring->window ? u->n - 1 : n, first);
        if (count > 0)
            add_block(&state[n], ws->scores + n * FB_ATTN_BLOCK, count, ws->sum + n * ws->stride, ws->stride);
    }
}

/* Only the final result is rounded to the activation dtype. */
static void finish(const fb_view *out, const unit *u, const workspace *ws, const online *state) {
    for (int64_t n = 0; n < u->n; n++) {
        void *y = fb_view_at(out, unit_row(u, n), unit_head(u, n));
        float norm = 1.0f / state[n].total;
        FB_FOR_DTYPE(out->dtype, T,
                     for (int64_t i = 0; i < out->width; i += VW)
                         vf_put_n(T, y, i, out->width, vf_load_f32(ws->sum + n * ws->stride + i) * norm));
    }
}

static void attend_flash(const fb_call *call, const unit *u, const workspace *ws) {
    online state[FB_ATTN_UNIT];
    const block_order order = unit_blocks(u);
    start(call, u, ws, state);
    for (int64_t i = 0; i < order.count; i++) {
        int64_t first = block_at(&order, i);
        range span = unit_span(u, first);
        if (span.end <= span.begin) continue;
        weights_of(call, u, first, span, ws, state);
        FB_KERNEL(unit_values)(call, u, first, span, true, ws);
    }
    finish(&call->out[0], u, ws, state);
}

/* Two units of one query each, with a dense cache. The value sums of a narrow head are few chains of
 * dependent additions; two heads together fill the gaps. Each head's sums are the same as alone. */
static void attend_pair(const fb_call *call, const unit *u, const workspace *first_ws) {
    workspace ws[2] = {*first_ws, workspace_second(first_ws)};
    online state[2];
    for (int n = 0; n < 2; n++) start(call, &u[n], &ws[n], &state[n]);
    for (int64_t first = 0; first < unit_count(u, 0); first += FB_ATTN_BLOCK) {
        range span = unit_span(u, first);
        for (int n = 0; n < 2; n++) weights_of(call, &u[n], first, span, &ws[n], &state[n]);
        FB_KERNEL(pair_values)(call, u, first, span.end, ws);
    }
    for (int n = 0; n < 2; n++) finish(&call->out[0], &u[n], &ws[n], &state[n]);
}

void FB_KERNEL(attn_flash)(const fb_call *call, const fb_worker *worker) {
    const fb_view *q = &call->in[0];
    workspace ws = workspace_of(worker, q->width);
    bool single =
        call->rows == 1 && q->heads == call->kv.heads && !call->kv.ring.window && q->width % VW == 0;
    int64_t begin, end;
    share_items(call, worker, q->heads, &begin, &end);
    while (begin < end && !fb_worker_cancelled(worker)) {
        unit u[2] = {unit_at(call, q->heads, begin, end, FB_ATTN_UNIT)};
        if (single && begin + 1 < end) {
            u[1] = unit_at(call, q->heads, begin + 1, end, FB_ATTN_UNIT);
            u[0].next = begin + 2 < end ? begin + 2 : 0;
            u[1].next = begin + 3 < end ? begin + 3 : 0;
            attend_pair(call, u, &ws);
            begin += 2;
            continue;
        }
        attend_flash(call, u, &ws);
        begin += u->n;
    }
}
