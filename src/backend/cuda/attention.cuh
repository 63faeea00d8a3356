/* What the attention kernels share.
 *
 * An item is one query head of one token. Those of a KV head are numbered token by token, then by query head:
 * items that stand side by side read the same keys, and each sees at least as many positions as the one
 * before. */
#ifndef FB_BACKEND_CUDA_ATTENTION_CUH
#define FB_BACKEND_CUDA_ATTENTION_CUH

#include "backend/cuda/device.cuh"

/* attn_flash takes up to this many tokens as a decode, split over the context. */
#define FB_DECODE_ROWS 8

/* Heads wider than this have no flash kernel: attn_rows serves them. */
#define FB_FLASH_WIDTH 256

/* A call, as kernels get it. */
struct fb_attention {
    const void *q;     /* or the probabilities of attn_values */
    void *out;         /* or the scores of attn_scores */
    const void *k, *v; /* [kv_heads, capacity, width] */
    const int64_t *position;
    int64_t q_row, q_head, out_row, out_head; /* strides */
    int64_t capacity;
    fb_dtype q_type, out_type, kv_type;
    int width, group, rows, kv_heads;
    float scale;
    bool wide; /* every key and value is whole 16-byte chunks, at multiples of 16 */
};

static inline fb_attention fb_attention_of(const fb_call *call, const fb_cuda_context *cx) {
    const fb_view *q = &call->in[0], *out = &call->out[0];
    const fb_kv *kv = &call->kv;
    fb_attention a;
    a.q = q->data;
    a.out = out->data;
    a.k = kv->k;
    a.v = kv->v;
    a.position = cx->position;
    a.q_row = q->row_stride;
    a.q_head = q->head_stride;
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
    a.wide = kv->width * fb_dtype_size(kv->dtype) % 16 == 0 && fb_aligned(kv->k, 16) && fb_aligned(kv->v, 16);
    return a;
}

/* How far the launch must reach: the context, which is the capacity in a recorded graph. */
static inline int64_t fb_attention_reach(const fb_attention *a, const fb_cuda_context *cx) {
    return cx->context > 0 && cx->context < a->capacity ? cx->context : a->capacity;
}

static inline int fb_ceil(int64_t n, int64_t by) { return (int)((n + by - 1) / by); }

/* Bytes of scratch after the counters. */
int64_t fb_cuda_decode_scratch(int64_t kv_heads, int64_t items, int64_t width, int64_t capacity);

int fb_cuda_flash_decode(const fb_attention *a, const fb_cuda_context *cx);
int fb_cuda_flash_prefill(const fb_attention *a, const fb_cuda_context *cx);

/* ---- device ---------------------------------------------------------------------------------------------
 */

/* Activations by a type known at run time: each is read or written once, so the switch costs nothing. */
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

/* 2^x, of a result below the normal numbers 0: the flash kernels, which agree with the plain ones within a
 * tolerance, need no more. */
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

/* Chunk c of a row: zeros beyond its width. */
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
FB_DEVICE int fb_item_head(const fb_attention &a, int kv_head, int item) {
    return kv_head * a.group + item % a.group;
}
FB_DEVICE int64_t fb_item_q(const fb_attention &a, int kv_head, int item) {
    return fb_item_row(a, item) * a.q_row + fb_item_head(a, kv_head, item) * a.q_head;
}
FB_DEVICE int64_t fb_item_out(const fb_attention &a, int kv_head, int item) {
    return fb_item_row(a, item) * a.out_row + fb_item_head(a, kv_head, item) * a.out_head;
}

#endif
