/* What the attention kernels share: queries of one KV head against blocks of its keys and values.
 *
 * An item is one query head of one token. Items are numbered KV head by KV head, then token by token, then by
 * query head, so that neighbours read the same keys, and almost equally many. A unit is a run of items of one
 * KV head. Blocks begin at multiples of FB_ATTN_BLOCK, whatever the step: a score is one sum over the head's
 * width, in this order, and a weighted sum takes the positions one after the other, so that no bit depends on
 * unit, tile or lane.
 *
 * Of a ring, blocks are of slots. A slot that an item does not see has a score of -INFINITY; parts of a block
 * that nobody sees are not read. */
#ifndef FB_BACKEND_CPU_ATTENTION_H
#define FB_BACKEND_CPU_ATTENTION_H

#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

/* With more queries than this, a block is widened to float32 once instead of once a tile. */
#define WIDEN_FROM 8

typedef struct unit {
    int64_t n, kv_head, group;
    int64_t begin;     /* the first item, counted from the KV head's first */
    int64_t next;      /* the KV head that the lane reads after this; 0: none */
    const fb_row *row; /* the call's */
    const fb_ring *ring;
} unit;

FB_INLINE int64_t unit_row(const unit *u, int64_t i) { return (u->begin + i) / u->group; }
FB_INLINE int64_t unit_head(const unit *u, int64_t i) {
    return u->kv_head * u->group + (u->begin + i) % u->group;
}
FB_INLINE int64_t unit_position(const unit *u, int64_t i) { return u->row[unit_row(u, i)].position; }
/* How many slots item i looks into, from 0 on; of the block that begins at `first`. Never less than the item
 * before. Of a dense cache it sees all of them. */
FB_INLINE int64_t unit_count(const unit *u, int64_t i) { return fb_ring_count(u->ring, unit_position(u, i)); }
FB_INLINE int64_t unit_count_in(const unit *u, int64_t i, int64_t first) {
    int64_t count = unit_count(u, i) - first;
    return count < 0 ? 0 : count > FB_ATTN_BLOCK ? FB_ATTN_BLOCK : count;
}

/* From `begin` to `end`: slots, or columns of a block. */
typedef struct range {
    int64_t begin, end;
} range;

/* The part of slots [begin, end) in the block at `first`, as columns. */
FB_INLINE range range_in(int64_t begin, int64_t end, int64_t first) {
    begin -= first, end -= first;
    return (range){begin < 0 ? 0 : begin, end > FB_ATTN_BLOCK ? FB_ATTN_BLOCK : end};
}

/* The runs of slots that hold the sinks and positions `position` - `back` to `position`, in order: the sinks,
 * the ring's beginning, its end. A run may be empty. */
#define RUNS 3
FB_INLINE void ring_runs(const fb_ring *r, int64_t position, int64_t back, range *run) {
    int64_t after = position - r->sinks;
    run[0] = (range){0, position < r->sinks ? position + 1 : r->sinks};
    run[1] = run[2] = (range){0, 0};
    if (after < 0) return;
    int64_t head = after % r->size;
    if (back > after) back = after;
    run[1] = (range){r->begin + (head > back ? head - back : 0), r->begin + head + 1};
    if (back > head) run[2] = (range){r->begin + r->size - (back - head), r->begin + r->size};
}

/* The columns of the block at `first` that item i sees, in order, and how many runs of them there may be. */
FB_INLINE int unit_runs(const unit *u, int64_t i, int64_t first, range *run) {
    run[0] = (range){0, unit_count_in(u, i, first)};
    if (!u->ring->window) return 1;
    ring_runs(u->ring, unit_position(u, i), u->ring->window, run);
    for (int k = 0; k < RUNS; k++) run[k] = range_in(run[k].begin, run[k].end, first);
    return RUNS;
}

/* The columns of the block at `first` between which lies all that items of the unit see; none: end <= begin.
 */
FB_INLINE range unit_span(const unit *u, int64_t first) {
    const fb_ring *r = u->ring;
    int64_t last = unit_position(u, u->n - 1);
    if (!r->window) return (range){0, unit_count_in(u, u->n - 1, first)};
    range run[RUNS], span = {FB_ATTN_BLOCK, 0};
    ring_runs(r, last, last - unit_position(u, 0) + r->window, run);
    for (int i = 0; i < RUNS; i++) {
        range in = range_in(run[i].begin, run[i].end, first);
        if (in.end <= in.begin) continue;
        if (in.begin < span.begin) span.begin = in.begin;
        if (in.end > span.end) span.end = in.end;
    }
    return span;
}

/* The unit at `item`, of at most `most` items and before `end`. */
FB_INLINE unit unit_at(const fb_call *call, int64_t heads, int64_t item, int64_t end, int64_t most) {
    int64_t group = heads / call->kv.heads, each = call->rows * group, kv_head = item / each;
    int64_t n = end < (kv_head + 1) * each ? end - item : (kv_head + 1) * each - item;
    int64_t next = (kv_head + 1) * each < end ? kv_head + 1 : 0;
    n = n < most ? n : most;
    return (unit){n, kv_head, group, item - kv_head * each, next, call->row, &call->kv.ring};
}

/* The items of a fused kernel's lane: whole KV heads where there are enough of them, and rope_kv before needs
 * no barrier then. */
FB_INLINE void share_items(const fb_call *call, const fb_lane *lane, int64_t heads, int64_t *begin,
                           int64_t *end) {
    int64_t items = call->rows * heads, each = items / call->kv.heads;
    fb_lane_share(lane, lane->by_head ? call->kv.heads : items, 1, begin, end);
    *begin *= lane->by_head ? each : 1;
    *end *= lane->by_head ? each : 1;
}

/* A lane's scratch: rows of `stride` floats, which is the width rounded up to whole vectors. */
typedef struct desk {
    int64_t stride;
    float *q;      /* [FB_ATTN_UNIT][stride] */
    float *sink_q; /* [FB_ATTN_UNIT][stride]: the second queries */
    float *sum;    /* [FB_ATTN_UNIT][stride] */
    float *block;  /* [FB_ATTN_BLOCK][stride]: keys or values, widened */
    float *scores; /* [FB_ATTN_UNIT][FB_ATTN_BLOCK] */
    float *rest;
} desk;

FB_INLINE desk desk_of(const fb_lane *lane, int64_t width) {
    desk d = {.stride = (width + VW - 1) / VW * VW, .scores = lane->scratch};
    d.q = d.scores + FB_ATTN_UNIT * FB_ATTN_BLOCK;
    d.sink_q = d.q + FB_ATTN_UNIT * d.stride;
    d.sum = d.sink_q + FB_ATTN_UNIT * d.stride;
    d.block = d.sum + FB_ATTN_UNIT * d.stride;
    d.rest = d.block + FB_ATTN_BLOCK * d.stride;
    return d;
}

/* The desk from its second query on. */
FB_INLINE desk desk_second(const desk *d) {
    desk e = *d;
    e.q += d->stride, e.sink_q += d->stride, e.sum += d->stride, e.scores += FB_ATTN_BLOCK;
    return e;
}

/* FB_ATTN_BLOCK positions of keys, or of values in rows of `stride` elements. */
typedef struct block {
    const void *data;
    fb_dtype dtype;
    int64_t stride, width;
    const uint8_t *next; /* what will be read after it, which is fetched meanwhile; NULL: nothing */
} block;

FB_INLINE void widen_row(fb_dtype t, const void *from, int64_t n, float *to) {
    for (int64_t i = 0; i < n; i += VW) vf_put(FB_F32, to, i, vf_get_n(t, from, i, n, 0));
}

/* The unit's keys from `first` on. */
FB_INLINE block keys_at(const fb_kv *kv, const unit *u, int64_t first, const desk *d) {
    block b = {fb_key_at(kv, u->kv_head, first), kv->dtype, 0, kv->width, NULL};
    int64_t left = unit_count(u, u->n - 1) - first;
    if (u->n > WIDEN_FROM) {
        int64_t groups = ((left < FB_ATTN_BLOCK ? left : FB_ATTN_BLOCK) + FB_KV_LANES - 1) / FB_KV_LANES;
        FB_FOR_DTYPE(kv->dtype, T, widen_row(T, b.data, groups * FB_KV_LANES * kv->width, d->block));
        return (block){d->block, FB_F32, 0, kv->width, NULL};
    }
    if (left > FB_ATTN_BLOCK)
        b.next = fb_key_at(kv, u->kv_head, first + FB_ATTN_BLOCK);
    else if (u->next)
        b.next = fb_key_at(kv, u->next, 0);
    return b;
}

/* The unit's values from `first` on. */
FB_INLINE block values_at(const fb_kv *kv, const unit *u, int64_t first, const desk *d) {
    block b = {fb_value_at(kv, u->kv_head, first), kv->dtype, kv->width, kv->width, NULL};
    int64_t left = unit_count(u, u->n - 1) - first;
    if (u->n > WIDEN_FROM) {
        int64_t rows = left < FB_ATTN_BLOCK ? left : FB_ATTN_BLOCK;
        FB_FOR_DTYPE(kv->dtype, T,
                     for (int64_t j = 0; j < rows; j++) widen_row(T, vf_address(T, b.data, j * kv->width),
                                                                  kv->width, d->block + j * d->stride));
        return (block){d->block, FB_F32, d->stride, d->stride, NULL};
    }
    if (left > FB_ATTN_BLOCK)
        b.next = fb_value_at(kv, u->kv_head, first + FB_ATTN_BLOCK);
    else if (u->next)
        b.next = fb_value_at(kv, u->next, 0);
    return b;
}

FB_INLINE void load_queries(const fb_view *q, const unit *u, float *to, int64_t stride) {
    for (int64_t n = 0; n < u->n; n++)
        FB_FOR_DTYPE(q->dtype, T,
                     widen_row(T, fb_view_at(q, unit_row(u, n), unit_head(u, n)), q->width, to + n * stride));
}

/* The queries of a call: the second ones, too, where there are sinks. */
FB_INLINE void load_all_queries(const fb_call *call, const unit *u, const desk *d) {
    load_queries(&call->in[0], u, d->q, d->stride);
    if (u->ring->sinks) load_queries(&call->in[1], u, d->sink_q, d->stride);
}

/* d->scores = the unit's queries against the keys in `span` of the block at `first`. Of a ring, all columns
 * that the unit looks into have a score then. */
void FB_KERNEL(unit_scores)(const unit *u, const block *keys, int64_t first, range span, float scale,
                            const desk *d);

/* d->sum += d->scores, which are weights now, times the values of the block at `first`. */
void FB_KERNEL(unit_values)(const unit *u, const block *values, int64_t first, const desk *d);

/* The same for the first two queries of the desk, each with `count` positions of a block of its own, of whole
 * vectors. */
void FB_KERNEL(pair_values)(const block *values, int64_t count, const desk *d);

#endif
