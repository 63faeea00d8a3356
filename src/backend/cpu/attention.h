/* What the attention kernels share: the queries of one KV head against blocks of its keys and values.
 *
 * An item is one query head of one token. Items are numbered by KV head, then by token, then by query head.
 * So consecutive items read the same keys, and almost the same number of them. A unit is a run of items of
 * one KV head.
 *
 * No bit depends on unit, tile or worker. Blocks begin at multiples of FB_ATTN_BLOCK in every step. A score
 * is one sum over the head's width, in order. A weighted sum of values adds the positions in order.
 *
 * For a ring, blocks consist of slots. A slot that an item does not see has the score -INFINITY. Parts of a
 * block that no item sees are not read. Blocks of a session's ring are added in the order of their positions,
 * the oldest first, so that no bit depends on the size of the ring either.
 *
 * A block of attention may lie in several blocks of the cache. The part in one of them is a piece. Pieces are
 * computed one after the other, so that they change no bit. */
#ifndef FB_BACKEND_CPU_ATTENTION_H
#define FB_BACKEND_CPU_ATTENTION_H

#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

/* With more queries than this, a block is widened to float32 once. With fewer, each tile widens it. GPT-NeoX
 * 160M at position 4000, Zen 5, two threads, ms of a step of 12, 16, 24, 32, 48, 64 rows: each tile widens
 * 14, 18, 25, 37, 50, 63; once 19, 24, 30, 43, 55, 69, because nothing then prefetches what comes next. */
#define WIDEN_FROM 48

typedef struct unit {
    int64_t n, kv_head, group;
    int32_t sequence;  /* all items belong to it */
    int64_t begin;     /* first item, counted from the first of the KV head */
    int64_t next;      /* KV head that the worker reads after this one; 0: none */
    const fb_row *row; /* the rows of the call */
    const fb_ring *ring;
} unit;

FB_INLINE int64_t unit_row(const unit *u, int64_t i) { return (u->begin + i) / u->group; }
FB_INLINE int64_t unit_head(const unit *u, int64_t i) {
    return u->kv_head * u->group + (u->begin + i) % u->group;
}
FB_INLINE int64_t unit_position(const unit *u, int64_t i) { return u->row[unit_row(u, i)].position; }
/* How many slots item i reads, counted from slot 0; and how many in the block that begins at `first`. Never
 * fewer than the item before it. With a dense cache the item sees all of them. */
FB_INLINE int64_t unit_count(const unit *u, int64_t i) { return fb_ring_count(u->ring, unit_position(u, i)); }
FB_INLINE int64_t unit_count_in(const unit *u, int64_t i, int64_t first) {
    int64_t count = unit_count(u, i) - first;
    return count < 0 ? 0 : count > FB_ATTN_BLOCK ? FB_ATTN_BLOCK : count;
}

/* The order of the blocks that items at positions `first` to `last` read. */
typedef struct block_order {
    int64_t count;
    int64_t sinks;  /* the first ones, which are those of the sinks */
    int64_t oldest; /* the next one: blocks from the first position after the sinks to it */
    int64_t turn;   /* blocks of the ring; 0: all blocks are in the order of their slots */
} block_order;

_Static_assert(FB_RING_BLOCK == FB_ATTN_BLOCK, "a ring's blocks are those of attention");

FB_INLINE block_order blocks_of(const fb_ring *r, int64_t first, int64_t last) {
    const int64_t size = FB_ATTN_BLOCK;
    block_order o = {.count = (fb_ring_count(r, last) + size - 1) / size};
    if (!r->window || r->begin % size || r->size % size || last < r->sinks) return o;
    int64_t from = first - r->sinks - r->window, oldest = from > 0 ? from / size : 0;
    int64_t blocks = (last - r->sinks) / size - oldest + 1;
    if (blocks > r->size / size) return o; /* no session's ring: one block would be there twice */
    int64_t sinks = r->begin / size;
    return (block_order){.count = sinks + blocks, .sinks = sinks, .oldest = oldest, .turn = r->size / size};
}

/* The first slot of block i in this order. */
FB_INLINE int64_t block_at(const block_order *o, int64_t i) {
    if (o->turn && i >= o->sinks) i = o->sinks + (o->oldest + i - o->sinks) % o->turn;
    return i * FB_ATTN_BLOCK;
}

/* [begin, end): slots, or columns of a block. */
typedef struct range {
    int64_t begin, end;
} range;

/* The part of slots [begin, end) that lies in the block at `first`, as columns of the block. */
FB_INLINE range range_in(int64_t begin, int64_t end, int64_t first) {
    begin -= first, end -= first;
    return (range){begin < 0 ? 0 : begin, end > FB_ATTN_BLOCK ? FB_ATTN_BLOCK : end};
}

/* The runs of slots that hold the sinks and positions `position` - `back` to `position`. In order: the sinks,
 * the part at the ring's beginning, the part at its end. A run may be empty. */
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

/* The columns of the block at `first` that item i sees, as runs in ascending order. Returns the number of
 * runs, some of which may be empty. */
FB_INLINE int unit_runs(const unit *u, int64_t i, int64_t first, range *run) {
    run[0] = (range){0, unit_count_in(u, i, first)};
    if (!u->ring->window) return 1;
    ring_runs(u->ring, unit_position(u, i), u->ring->window, run);
    for (int k = 0; k < RUNS; k++) run[k] = range_in(run[k].begin, run[k].end, first);
    return RUNS;
}

FB_INLINE block_order unit_blocks(const unit *u) {
    return blocks_of(u->ring, unit_position(u, 0), unit_position(u, u->n - 1));
}

/* The smallest range of columns of the block at `first` that contains all that the unit's items see. If they
 * see nothing, end <= begin. */
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

/* How many of a KV head's items, from `begin` on, are of one sequence and of ascending positions; at most
 * `most`. */
FB_INLINE int64_t items_together(const fb_call *call, int64_t group, int64_t begin, int64_t most) {
    const fb_row *first = &call->row[begin / group];
    int64_t row = begin / group, n = (row + 1) * group - begin;
    while (n < most && ++row < call->rows && call->row[row].sequence == first->sequence &&
           call->row[row].position > call->row[row - 1].position)
        n += group;
    return n < most ? n : most;
}

/* The unit that starts at `item`, with at most `most` items, all before `end`. */
FB_INLINE unit unit_at(const fb_call *call, int64_t heads, int64_t item, int64_t end, int64_t most) {
    int64_t group = heads / call->kv.heads, each = call->rows * group, kv_head = item / each;
    int64_t n = end < (kv_head + 1) * each ? end - item : (kv_head + 1) * each - item;
    int64_t next = (kv_head + 1) * each < end ? kv_head + 1 : 0, begin = item - kv_head * each;
    n = items_together(call, group, begin, n < most ? n : most);
    return (unit){.n = n,
                  .kv_head = kv_head,
                  .group = group,
                  .sequence = call->row[begin / group].sequence,
                  .begin = begin,
                  .next = next,
                  .row = call->row,
                  .ring = &call->kv.ring};
}

/* The items of a worker in a fused kernel. If there are enough KV heads, each worker takes whole ones; then
 * no barrier is needed after rope_kv. */
FB_INLINE void share_items(const fb_call *call, const fb_worker *worker, int64_t heads, int64_t *begin,
                           int64_t *end) {
    int64_t items = call->rows * heads, each = items / call->kv.heads;
    fb_worker_share(worker, worker->by_head ? call->kv.heads : items, 1, begin, end);
    *begin *= worker->by_head ? each : 1;
    *end *= worker->by_head ? each : 1;
}

/* How a worker's scratch is divided. Rows have `stride` floats: the width rounded up to whole vectors. */
typedef struct workspace {
    int64_t stride;
    float *q;      /* [FB_ATTN_UNIT][stride] */
    float *sink_q; /* [FB_ATTN_UNIT][stride]: the second queries, for the sinks */
    float *sum;    /* [FB_ATTN_UNIT][stride] */
    float *block;  /* [FB_ATTN_BLOCK][stride]: keys or values, widened */
    float *scores; /* [FB_ATTN_UNIT][FB_ATTN_BLOCK] */
    float *rest;
} workspace;

FB_INLINE workspace workspace_of(const fb_worker *worker, int64_t width) {
    workspace ws = {.stride = (width + VW - 1) / VW * VW, .scores = worker->scratch};
    ws.q = ws.scores + FB_ATTN_UNIT * FB_ATTN_BLOCK;
    ws.sink_q = ws.q + FB_ATTN_UNIT * ws.stride;
    ws.sum = ws.sink_q + FB_ATTN_UNIT * ws.stride;
    ws.block = ws.sum + FB_ATTN_UNIT * ws.stride;
    ws.rest = ws.block + FB_ATTN_BLOCK * ws.stride;
    return ws;
}

/* The part of the workspace that begins at its second query. */
FB_INLINE workspace workspace_second(const workspace *ws) {
    workspace second = *ws;
    second.q += ws->stride, second.sink_q += ws->stride, second.sum += ws->stride;
    second.scores += FB_ATTN_BLOCK;
    return second;
}

/* A piece of a block: keys, or values in rows of `stride` elements. Its columns are those of the block from
 * `column` on. */
typedef struct block {
    const void *data;
    fb_dtype dtype;
    int64_t stride, width, column;
    const uint8_t *next; /* address that will be read after it, which is prefetched; NULL: none */
} block;

FB_INLINE int64_t piece_columns(const fb_kv *kv) {
    return kv->tables && (int64_t)1 << kv->shift < FB_ATTN_BLOCK ? kv->block : FB_ATTN_BLOCK;
}

FB_INLINE void widen_row(fb_dtype t, const void *from, int64_t n, float *to) {
    for (int64_t i = 0; i < n; i += VW) vf_put(FB_F32, to, i, vf_get_n(t, from, i, n, 0));
}

/* What is read after a piece. NULL: nothing, or the cache has no block there. */
FB_INLINE const uint8_t *ahead_of(const fb_kv *kv, const unit *u, int64_t head, int64_t slot, bool values) {
    if (kv->tables && !kv->tables[u->sequence][kv->table_at + (slot >> kv->shift)]) return NULL;
    return values ? fb_value_of(kv, u->sequence, head, slot) : fb_key_of(kv, u->sequence, head, slot);
}

/* The same keys or values one block further on, or those of the next head. */
FB_INLINE const uint8_t *next_block(const fb_kv *kv, const unit *u, int64_t slot, bool values) {
    if (slot + FB_ATTN_BLOCK < unit_count(u, u->n - 1))
        return ahead_of(kv, u, u->kv_head, slot + FB_ATTN_BLOCK, values);
    return u->next ? ahead_of(kv, u, u->next, 0, values) : NULL;
}

/* The piece of the unit's keys, or of its values, that begins with `column` of the block at `first`. */
FB_INLINE block keys_at(const fb_kv *kv, const unit *u, int64_t first, int64_t column) {
    return (block){
        fb_key_of(kv, u->sequence, u->kv_head, first + column), kv->dtype, 0, kv->width, column, NULL};
}
FB_INLINE block values_at(const fb_kv *kv, const unit *u, int64_t first, int64_t column) {
    return (block){fb_value_of(kv, u->sequence, u->kv_head, first + column),
                   kv->dtype,
                   kv->width,
                   kv->width,
                   column,
                   NULL};
}

/* The columns of `span` that lie in the piece at `column`. */
FB_INLINE range piece_of(range span, int64_t column, int64_t columns) {
    return (range){span.begin > column ? span.begin : column,
                   span.end < column + columns ? span.end : column + columns};
}

/* Widens what `span` has of the block at `first` to float32: one piece. */
FB_INLINE block widen_keys(const fb_kv *kv, const unit *u, int64_t first, range span, const workspace *ws) {
    int64_t columns = piece_columns(kv);
    for (int64_t column = 0; column < span.end; column += columns) {
        range in = piece_of(span, column, columns);
        if (in.end <= in.begin) continue;
        block b = keys_at(kv, u, first, column);
        int64_t begin = (in.begin - column) / FB_KV_GROUP * FB_KV_GROUP * kv->width;
        int64_t end = (in.end - column + FB_KV_GROUP - 1) / FB_KV_GROUP * FB_KV_GROUP * kv->width;
        FB_FOR_DTYPE(
            kv->dtype, T,
            widen_row(T, vf_address(T, b.data, begin), end - begin, ws->block + column * kv->width + begin));
    }
    return (block){ws->block, FB_F32, 0, kv->width, 0, NULL};
}
FB_INLINE block widen_values(const fb_kv *kv, const unit *u, int64_t first, range span, const workspace *ws) {
    int64_t columns = piece_columns(kv);
    for (int64_t column = 0; column < span.end; column += columns) {
        range in = piece_of(span, column, columns);
        if (in.end <= in.begin) continue;
        block b = values_at(kv, u, first, column);
        FB_FOR_DTYPE(kv->dtype, T,
                     for (int64_t j = in.begin; j < in.end; j++)
                         widen_row(T, vf_address(T, b.data, (j - column) * kv->width), kv->width,
                                   ws->block + j * ws->stride));
    }
    return (block){ws->block, FB_F32, ws->stride, ws->stride, 0, NULL};
}

FB_INLINE void load_queries(const fb_view *q, const unit *u, float *to, int64_t stride) {
    for (int64_t n = 0; n < u->n; n++)
        FB_FOR_DTYPE(q->dtype, T,
                     widen_row(T, fb_view_at(q, unit_row(u, n), unit_head(u, n)), q->width, to + n * stride));
}

/* Loads the queries of a call, and with sinks the second queries too. */
FB_INLINE void load_all_queries(const fb_call *call, const unit *u, const workspace *ws) {
    load_queries(&call->in[0], u, ws->q, ws->stride);
    if (u->ring->sinks) load_queries(&call->in[1], u, ws->sink_q, ws->stride);
}

/* ws->scores = scale * (the unit's queries . the keys in `span` of the block at `first`). For a ring, every
 * column up to the unit's count gets a score. `flash`: the values are read next. */
void FB_KERNEL(unit_scores)(const fb_call *call, const unit *u, int64_t first, range span, bool flash,
                            const workspace *ws);

/* ws->sum += ws->scores times the values in `span` of the block at `first`. The scores are already weights
 * here. `flash`: keys are read next. */
void FB_KERNEL(unit_values)(const fb_call *call, const unit *u, int64_t first, range span, bool flash,
                            const workspace *ws);

/* The same for the first two queries of the workspace, of two units. The first `count` columns are seen. The
 * head's width is a whole number of vectors. */
void FB_KERNEL(pair_values)(const fb_call *call, const unit *u, int64_t first, int64_t count,
                            const workspace *ws);

#endif
