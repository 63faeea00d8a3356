/* attn_flash: scores, softmax and values in one pass over the cache. */
#include "backend/cpu/attention.h"

/* What is known of a query after some blocks: the largest score, and the sum of all weights, which are
 * relative to it. */
typedef struct online {
    float most, total;
} online;

/* Scores of `count` positions become weights relative to the largest score so far; when a larger one comes,
 * what was summed before is scaled down. */
FB_INLINE void add_block(online *o, float *s, int64_t count, float *sum, int64_t stride) {
    vf best = vf_set1(o->most), added = vf_set1(0);
    int64_t last = (count - 1) / VW * VW; /* whose columns beyond `count` are of no weight */
    vf_put(FB_F32, s, last, vf_first(vf_load_f32(s + last), count - last, -INFINITY));
    for (int64_t j = 0; j < count; j += VW) best = vf_max(best, vf_load_f32(s + j));
    float now = vf_max_of(best);
    if (now == -INFINITY) { /* nothing of this block is seen, nor was anything before */
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

/* Nothing is rounded to the activation dtype but the result. */
static void attend_flash(const fb_call *call, const unit *u, const desk *d) {
    const fb_view *out = &call->out[0];
    const fb_kv *kv = &call->kv;
    online state[FB_ATTN_UNIT];
    for (int64_t n = 0; n < u->n; n++) state[n] = (online){-INFINITY, 0};
    memset(d->sum, 0, (size_t)(u->n * d->stride) * sizeof *d->sum);
    load_all_queries(call, u, d);
    for (int64_t first = 0; first < unit_count(u, u->n - 1); first += FB_ATTN_BLOCK) {
        range span = unit_span(u, first);
        if (span.end <= span.begin) continue;
        block keys = keys_at(kv, u, first, d);
        FB_KERNEL(unit_scores)(u, &keys, first, span, call->attr.scale, d);
        for (int64_t n = 0; n < u->n; n++) {
            int64_t count = unit_count_in(u, u->ring->window ? u->n - 1 : n, first);
            if (count > 0)
                add_block(&state[n], d->scores + n * FB_ATTN_BLOCK, count, d->sum + n * d->stride, d->stride);
        }
        block values = values_at(kv, u, first, d);
        FB_KERNEL(unit_values)(u, &values, first, d);
    }
    for (int64_t n = 0; n < u->n; n++) {
        void *y = fb_view_at(out, unit_row(u, n), unit_head(u, n));
        float norm = 1.0f / state[n].total;
        FB_FOR_DTYPE(out->dtype, T,
                     for (int64_t i = 0; i < out->width; i += VW)
                         vf_put_n(T, y, i, out->width, vf_load_f32(d->sum + n * d->stride + i) * norm));
    }
}

void FB_KERNEL(attn_flash)(const fb_call *call, const fb_lane *lane) {
    const fb_view *q = &call->in[0];
    desk d = desk_of(lane, q->width);
    int64_t begin, end;
    share_items(call, lane, q->heads, &begin, &end);
    while (begin < end) {
        unit u = unit_at(call, q->heads, begin, end, FB_ATTN_UNIT);
        attend_flash(call, &u, &d);
        begin += u.n;
    }
}
