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

static void start(const fb_call *call, const unit *u, const desk *d, online *state) {
    for (int64_t n = 0; n < u->n; n++) state[n] = (online){-INFINITY, 0};
    memset(d->sum, 0, (size_t)(u->n * d->stride) * sizeof *d->sum);
    load_all_queries(call, u, d);
}

/* A block of keys is followed by its values, and these by the next block's keys or the next head's: what is
 * not fetched before it is read is the lane's first keys. */
static block flash_keys(const fb_kv *kv, const unit *u, int64_t first, const desk *d) {
    block b = keys_at(kv, u, first, d);
    if (u->n <= WIDEN_FROM) b.next = fb_value_at(kv, u->kv_head, first);
    return b;
}

static block flash_values(const fb_kv *kv, const unit *u, int64_t first, const desk *d) {
    block b = values_at(kv, u, first, d);
    if (u->n > WIDEN_FROM) return b;
    bool more = first + FB_ATTN_BLOCK < unit_count(u, u->n - 1);
    b.next = more      ? fb_key_at(kv, u->kv_head, first + FB_ATTN_BLOCK)
             : u->next ? fb_key_at(kv, u->next, 0)
                       : NULL;
    return b;
}

/* The scores of the block at `first`, as weights. */
static void weights_of(const fb_call *call, const unit *u, int64_t first, range span, const desk *d,
                       online *state) {
    block keys = flash_keys(&call->kv, u, first, d);
    FB_KERNEL(unit_scores)(u, &keys, first, span, call->attr.scale, d);
    for (int64_t n = 0; n < u->n; n++) {
        int64_t count = unit_count_in(u, u->ring->window ? u->n - 1 : n, first);
        if (count > 0)
            add_block(&state[n], d->scores + n * FB_ATTN_BLOCK, count, d->sum + n * d->stride, d->stride);
    }
}

/* Nothing is rounded to the activation dtype but the result. */
static void finish(const fb_view *out, const unit *u, const desk *d, const online *state) {
    for (int64_t n = 0; n < u->n; n++) {
        void *y = fb_view_at(out, unit_row(u, n), unit_head(u, n));
        float norm = 1.0f / state[n].total;
        FB_FOR_DTYPE(out->dtype, T,
                     for (int64_t i = 0; i < out->width; i += VW)
                         vf_put_n(T, y, i, out->width, vf_load_f32(d->sum + n * d->stride + i) * norm));
    }
}

static void attend_flash(const fb_call *call, const unit *u, const desk *d) {
    online state[FB_ATTN_UNIT];
    start(call, u, d, state);
    for (int64_t first = 0; first < unit_count(u, u->n - 1); first += FB_ATTN_BLOCK) {
        range span = unit_span(u, first);
        if (span.end <= span.begin) continue;
        weights_of(call, u, first, span, d, state);
        block values = flash_values(&call->kv, u, first, d);
        FB_KERNEL(unit_values)(u, &values, first, d);
    }
    finish(&call->out[0], u, d, state);
}

/* Two units of one query each, of a dense cache. A narrow head's values are few chains of sums that wait for
 * themselves; those of two heads fill the gaps. Each head's sums are the same as alone. */
static void attend_pair(const fb_call *call, const unit *u, const desk *first_desk) {
    desk d[2] = {*first_desk, desk_second(first_desk)};
    online state[2];
    for (int n = 0; n < 2; n++) start(call, &u[n], &d[n], &state[n]);
    for (int64_t first = 0; first < unit_count(u, 0); first += FB_ATTN_BLOCK) {
        range span = unit_span(u, first);
        block values[2];
        for (int n = 0; n < 2; n++) {
            weights_of(call, &u[n], first, span, &d[n], &state[n]);
            values[n] = flash_values(&call->kv, &u[n], first, &d[n]);
        }
        FB_KERNEL(pair_values)(values, span.end, d);
    }
    for (int n = 0; n < 2; n++) finish(&call->out[0], &u[n], &d[n], &state[n]);
}

void FB_KERNEL(attn_flash)(const fb_call *call, const fb_lane *lane) {
    const fb_view *q = &call->in[0];
    desk d = desk_of(lane, q->width);
    bool single =
        call->rows == 1 && q->heads == call->kv.heads && !call->kv.ring.window && q->width % VW == 0;
    int64_t begin, end;
    share_items(call, lane, q->heads, &begin, &end);
    while (begin < end) {
        unit u[2] = {unit_at(call, q->heads, begin, end, FB_ATTN_UNIT)};
        if (single && begin + 1 < end) {
            u[1] = unit_at(call, q->heads, begin + 1, end, FB_ATTN_UNIT);
            u[0].next = begin + 2 < end ? begin + 2 : 0;
            u[1].next = begin + 3 < end ? begin + 3 : 0;
            attend_pair(call, u, &d);
            begin += 2;
            continue;
        }
        attend_flash(call, u, &d);
        begin += u->n;
    }
}
