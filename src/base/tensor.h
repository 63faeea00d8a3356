/* Views that kernels work on. */
#ifndef FB_BASE_TENSOR_H
#define FB_BASE_TENSOR_H

#include "base/dtype.h"

/* Activations [rows, heads, width]: element (r, h, i) is number r * row_stride + h * head_stride + i. Rows
 * are tokens. */
typedef struct fb_view {
    void *data;
    fb_dtype dtype;
    int64_t heads, width;
    int64_t row_stride, head_stride;
} fb_view;

/* A weight [rows, cols], at any byte address. */
typedef struct fb_weight {
    const void *data; /* NULL: absent, as a bias may be */
    fb_dtype dtype;
    int64_t rows, cols;
    bool packed; /* rows interleaved as base/pack.h says; else row-major without gaps */
} fb_weight;

/* One layer's key-value cache. v is [heads, capacity, width]. Of k, FB_KV_LANES positions lie side by side,
 * [heads, capacity / FB_KV_LANES, width, FB_KV_LANES], so that a vector has one element of several keys and
 * their scores need no sum across it. */
#define FB_KV_LANES 16
typedef struct fb_kv {
    void *k, *v;
    fb_dtype dtype;
    int64_t heads, capacity, width; /* capacity: a multiple of FB_KV_LANES */
} fb_kv;

static inline void *fb_at(const void *base, fb_dtype dtype, int64_t index) {
    return (uint8_t *)(uintptr_t)base + index * fb_dtype_size(dtype);
}

static inline void *fb_view_at(const fb_view *view, int64_t row, int64_t head) {
    return fb_at(view->data, view->dtype, row * view->row_stride + head * view->head_stride);
}

/* Element 0 of the key at `position`; the others follow FB_KV_LANES elements apart. */
static inline void *fb_key_at(const fb_kv *kv, int64_t head, int64_t position) {
    int64_t lane = position % FB_KV_LANES;
    return fb_at(kv->k, kv->dtype, (head * kv->capacity + position - lane) * kv->width + lane);
}

/* The value at `position`, `width` elements. */
static inline void *fb_value_at(const fb_kv *kv, int64_t head, int64_t position) {
    return fb_at(kv->v, kv->dtype, (head * kv->capacity + position) * kv->width);
}

#endif
