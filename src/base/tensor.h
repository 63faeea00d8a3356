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

/* One layer's key-value cache: k and v, each [heads, capacity, width]. */
typedef struct fb_kv {
    void *k, *v;
    fb_dtype dtype;
    int64_t heads, capacity, width;
} fb_kv;

static inline void *fb_at(const void *base, fb_dtype dtype, int64_t index) {
    return (uint8_t *)(uintptr_t)base + index * fb_dtype_size(dtype);
}

static inline void *fb_view_at(const fb_view *view, int64_t row, int64_t head) {
    return fb_at(view->data, view->dtype, row * view->row_stride + head * view->head_stride);
}

/* Row `position` of head `head` of k or v. */
static inline void *fb_kv_at(const fb_kv *kv, const void *base, int64_t head, int64_t position) {
    return fb_at(base, kv->dtype, (head * kv->capacity + position) * kv->width);
}

#endif
