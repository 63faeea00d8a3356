/* What the attention kernels share.
 *
 * An item is one query head of one token. The items of a KV head are numbered token by token, then by query
 * head. So neighbours read the same keys if they are of one sequence. The items of a prompt are: there an
 * item never looks into fewer slots than the one before. */
#ifndef FB_BACKEND_CUDA_ATTENTION_CUH
#define FB_BACKEND_CUDA_ATTENTION_CUH

#include <limits.h>

#include "backend/cuda/activation.cuh"

/* attn_flash uses the decode kernel, split over the context, for up to this many tokens. */
#define FB_DECODE_ROWS 8

/* Wider heads have no flash kernel: attn_rows computes them. */
#define FB_FLASH_WIDTH 256

/* Which slots of the cache a token sees: fb_ring in 32 bits. A dense cache counts as all sinks, so that it
 * needs no case of its own. Rings are those of sessions: `begin` and `size` are multiples of FB_RING_BLOCK.
 */
struct fb_slots {
    const fb_row *rows; /* the launch's, in device memory */
    int last;           /* the last row's number */
    int sinks, window, begin, size;
};

static inline fb_slots fb_slots_of(const fb_call *call) {
    const fb_ring *ring = &call->kv.ring;
    fb_slots s = {call->row, (int)call->rows - 1, INT_MAX, 0, INT_MAX, 0};
    if (ring->window) {
        s.sinks = (int)ring->sinks;
        s.window = (int)ring->window;
        s.begin = (int)ring->begin;
        s.size = (int)ring->size;
    }
    return s;
}

/* The shift of a cache of one block: no slot's number has this bit. */
#define WHOLE_SHIFT 31

/* An attention call, as the kernels' parameter. */
struct fb_attention {
    const void *q;          /* or the probabilities of attn_values */
    const void *sink_q;     /* the second query, for slots below `second` */
    void *out;              /* or the scores of attn_scores */
    uint8_t *const *tables; /* as kernel.h says; the cache's first entries */
    int64_t sequences;
    int64_t k_at, v_at; /* in a block: [kv_heads, block, width] */
    const fb_row *step; /* all rows of the step */
    int step_rows;
    fb_slots slots;
    int64_t q_row, q_head, sink_row, sink_head, out_row, out_head; /* strides */
    int64_t capacity, block;            /* slots of a sequence, and of a block of them */
    int shift;                          /* as fb_kv's; WHOLE_SHIFT: all slots are in one block */
    fb_dtype q_type, out_type, kv_type; /* sink_q has q's type */
    int width, group, rows, kv_heads;
    int second; /* the sinks of a ring, else 0 */
    float scale;
    float cap; /* of the scores; 0: none */
    bool ring; /* the cache forgets */
    bool wide; /* every key and value is whole 16-byte chunks, at multiples of 16 */
};

static inline fb_attention fb_attention_of(const fb_call *call, const fb_cuda_context *cx) {
    const fb_view *q = &call->in[0], *sink_q = &call->in[1], *out = &call->out[0];
    const fb_kv *kv = &call->kv;
    fb_attention a;
    a.q = q->data;
    a.sink_q = sink_q->data;
    a.out = out->data;
    a.tables = cx->tables + kv->table_at * cx->sequences;
    a.sequences = cx->sequences;
    a.block = kv->block;
    a.shift = kv->shift < WHOLE_SHIFT ? kv->shift : WHOLE_SHIFT;
    a.step = call->row;
    a.step_rows = (int)call->rows;
    a.k_at = kv->k_at;
    a.v_at = kv->v_at;
    a.slots = fb_slots_of(call);
    a.ring = kv->ring.window != 0;
    a.second = a.ring ? a.slots.sinks : 0;
    a.q_row = q->row_stride;
    a.q_head = q->head_stride;
    a.sink_row = sink_q->row_stride;
    a.sink_head = sink_q->head_stride;
    a.out_row = out->row_stride;
    a.out_head = out->head_stride;
    a.capacity = kv->capacity;
    a.q_type = q->dtype;
    a.out_type = out->dtype;
    a.kv_type = kv->dtype;
    a.width = (int)kv->width;
    a.group = (int)(q->heads / kv->heads);
    a.rows = (int)call->rows;
    a.kv_heads = (int)kv->heads;
    a.scale = call->attr.scale;
    a.cap = call->attr.cap;
    a.wide = kv->width * fb_dtype_size(kv->dtype) % 16 == 0 && kv->k_at % 16 == 0 && kv->v_at % 16 == 0;
    return a;
}

/* How many slots the launch must cover: those of the context; in a recorded graph, the capacity. */
static inline int64_t fb_attention_reach(const fb_attention *a, const fb_cuda_context *cx) {
    return cx->context > 0 && cx->context < a->capacity ? cx->context : a->capacity;
}

static inline int fb_ceil(int64_t n, int64_t by) { return (int)((n + by - 1) / by); }

/* Rows [first, first + rows) of a call. */
static inline fb_attention fb_attention_part(const fb_attention *a, int64_t first, int64_t rows) {
    fb_attention part = *a;
    int64_t q_size = fb_dtype_size(a->q_type);
    part.q = (const uint8_t *)a->q + first * a->q_row * q_size;
    if (a->sink_q) part.sink_q = (const uint8_t *)a->sink_q + first * a->sink_row * q_size;
    part.out = (uint8_t *)a->out + first * a->out_row * fb_dtype_size(a->out_type);
    part.slots.rows += first;
    part.slots.last = (int)rows - 1;
    part.rows = (int)rows;
    return part;
}

/* Bytes of scratch after the counters. */
int64_t fb_cuda_decode_scratch(int64_t kv_heads, int64_t group, int64_t width, int64_t rows,
                               int64_t capacity);

/* Rows of any sequences, each with splits of its own. */
int fb_cuda_flash_decode(const fb_attention *a, const fb_cuda_context *cx);
/* Rows of one sequence, in order of their positions. */
int fb_cuda_flash_prefill(const fb_attention *a, const fb_cuda_context *cx);

/* ---- device ---- */

FB_DEVICE float fb_capped(float score, float cap) { return cap ? fb_softcap(score, cap) : score; }

/* Sums over a ring have one order, from the oldest position to the newest, whatever its size. So kernels
 * count slots from an origin: the first position of the oldest block (FB_RING_BLOCK positions after the
 * sinks) that some row sees. Sinks have slots 0 to sinks - 1, position sinks + origin has slot `begin`, the
 * next one the next. These slots ascend with the positions. A row sees at most two ranges of them, [0, sinks)
 * and a part of those from `begin` on. fb_turn and fb_physical say where a slot lies in the cache.
 *
 * Positions are also counted from the origin: a position less the origin has 32 bits. */

/* The origin of a row alone. Of several rows of a sequence: that of the first one. 0 for a dense cache. */
FB_DEVICE int64_t fb_origin(const fb_slots &s, int64_t position) {
    int64_t unseen = position - s.sinks - s.window;
    return unseen > 0 ? unseen / FB_RING_BLOCK * FB_RING_BLOCK : 0;
}
FB_DEVICE int64_t fb_row_origin(const fb_slots &s, int row) { return fb_origin(s, s.rows[row].position); }

/* The position of a row less the origin. Rows beyond the last one, which pad the last tile, get the last
 * one's position. */
FB_DEVICE int fb_position(const fb_slots &s, int64_t origin, int row) {
    return (int)(s.rows[min(row, s.last)].position - origin);
}

/* How many slots of the ring precede that of the origin in the cache. */
FB_DEVICE int fb_turn(const fb_slots &s, int64_t origin) {
    return !origin || origin < s.size ? (int)origin : (int)(origin % s.size);
}
/* Where a slot lies in the cache. So many slots from a multiple of FB_RING_BLOCK on lie one behind another.
 */
FB_DEVICE int fb_physical(const fb_slots &s, int turn, int slot) {
    if (slot < s.begin) return slot;
    slot += turn;
    return slot < s.begin + s.size ? slot : slot - s.size;
}

/* The keys or the values of one KV head of a sequence. */
template <class K> struct fb_slot_rows {
    const K *whole;         /* of the only block; NULL: there are several */
    uint8_t *const *blocks; /* the first one's entry in the table */
    int64_t at;             /* of the head, in a block */
};
/* at: a.k_at or a.v_at. */
template <class K>
FB_DEVICE fb_slot_rows<K> fb_slot_rows_of(const fb_attention &a, int sequence, int kv_head, int64_t at) {
    fb_slot_rows<K> rows = {NULL, a.tables + sequence, at + kv_head * a.block * a.width * (int)sizeof(K)};
    if (a.shift == WHOLE_SHIFT) rows.whole = (const K *)(const void *)(*rows.blocks + rows.at);
    return rows;
}
template <class K>
FB_DEVICE const K *fb_slot_in_block(const fb_attention &a, const fb_slot_rows<K> &rows, int slot) {
    const uint8_t *block = rows.blocks[(slot >> a.shift) * a.sequences];
    return (const K *)(const void *)(block + rows.at) +
           (int64_t)(slot & (int)((1u << a.shift) - 1)) * a.width;
}
template <class K>
FB_DEVICE const K *fb_slot_row(const fb_attention &a, const fb_slot_rows<K> &rows, int slot) {
    return rows.whole ? rows.whole + (int64_t)slot * a.width : fb_slot_in_block(a, rows, slot);
}

/* The slots [begin, end). */
struct fb_range {
    int begin, end;
};
/* What a position sees of the ring, if any. */
FB_DEVICE fb_range fb_seen_in_ring(const fb_slots &s, int position) {
    int after = position - s.sinks;
    return {s.begin + max(after - s.window, 0), after < 0 ? s.begin : s.begin + after + 1};
}
/* What it sees of the sinks. */
FB_DEVICE fb_range fb_seen_sinks(const fb_slots &s, int position) { return {0, min(position + 1, s.sinks)}; }
/* What it sees of the half that has `slot`. */
FB_DEVICE fb_range fb_seen_around(const fb_slots &s, int position, int slot) {
    return slot < s.begin ? fb_seen_sinks(s, position) : fb_seen_in_ring(s, position);
}
FB_DEVICE bool fb_sees(const fb_slots &s, int position, int slot) {
    fb_range seen = fb_seen_around(s, position, slot);
    return slot >= seen.begin && slot < seen.end;
}
/* A position sees nothing in this slot or any later one. */
FB_DEVICE int fb_count(const fb_slots &s, int position) {
    return position < s.sinks ? position + 1 : s.begin + position - s.sinks + 1;
}

/* Loads and stores by a type known at run time. Each activation is read or written once, so the switch costs
 * nothing. */
FB_DEVICE float fb_load_as(fb_dtype t, const void *p, int64_t i) {
    if (t == FB_F16) return fb_widen(((const fb_half *)p)[i]);
    if (t == FB_BF16) return fb_widen(((const fb_bfloat *)p)[i]);
    return ((const float *)p)[i];
}
FB_DEVICE void fb_store_as(fb_dtype t, void *p, int64_t i, float x) {
    if (t == FB_F16)
        ((fb_half *)p)[i] = fb_narrow<fb_half>(x);
    else if (t == FB_BF16)
        ((fb_bfloat *)p)[i] = fb_narrow<fb_bfloat>(x);
    else
        ((float *)p)[i] = x;
}
FB_DEVICE float fb_round_as(fb_dtype t, float x) {
    if (t == FB_F16) return fb_rounded<fb_half>(x);
    if (t == FB_BF16) return fb_rounded<fb_bfloat>(x);
    return x;
}

/* 2^x; subnormal results become 0. The flash kernels agree with the plain ones within a tolerance, which this
 * keeps. */
FB_DEVICE float fb_exp2(float x) {
#ifdef FB_EMULATED
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* Sixteen bytes as floats. */
FB_DEVICE void fb_unpack(const float *, uint4 c, float *x) {
    x[0] = __uint_as_float(c.x);
    x[1] = __uint_as_float(c.y);
    x[2] = __uint_as_float(c.z);
    x[3] = __uint_as_float(c.w);
}
template <class K> FB_DEVICE void fb_unpack(const K *, uint4 c, float *x) {
    const uint32_t w[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = fb_widen(K{(uint16_t)w[i]});
        x[2 * i + 1] = fb_widen(K{(uint16_t)(w[i] >> 16)});
    }
}

/* Chunk c of a row; zeros beyond its width. */
template <class K> FB_DEVICE void fb_load_chunk(const K *row, int c, int width, bool wide, float *x) {
    constexpr int E = 16 / sizeof(K);
    if (wide) {
        fb_unpack(row, *(const uint4 *)(const void *)(row + c * E), x);
    } else {
#pragma unroll
        for (int e = 0; e < E; e++) x[e] = c * E + e < width ? fb_widen(row[c * E + e]) : 0;
    }
}

FB_DEVICE int fb_item_row(const fb_attention &a, int item) { return item / a.group; }
FB_DEVICE int64_t fb_item_origin(const fb_attention &a, int item) {
    return fb_row_origin(a.slots, fb_item_row(a, item));
}
FB_DEVICE int fb_item_position(const fb_attention &a, int64_t origin, int item) {
    return fb_position(a.slots, origin, fb_item_row(a, item));
}
FB_DEVICE int fb_item_head(const fb_attention &a, int kv_head, int item) {
    return kv_head * a.group + item % a.group;
}
/* Index of the item's query, or of its second query, for the sinks. */
FB_DEVICE int64_t fb_item_q(const fb_attention &a, int kv_head, int item, bool sink = false) {
    return fb_item_row(a, item) * (sink ? a.sink_row : a.q_row) +
           fb_item_head(a, kv_head, item) * (sink ? a.sink_head : a.q_head);
}
FB_DEVICE const void *fb_queries(const fb_attention &a, bool sink) { return sink ? a.sink_q : a.q; }
FB_DEVICE int64_t fb_item_out(const fb_attention &a, int kv_head, int item) {
    return fb_item_row(a, item) * a.out_row + fb_item_head(a, kv_head, item) * a.out_head;
}

#endif
