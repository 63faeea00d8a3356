/* Views that kernels work on. */
#ifndef FB_BASE_TENSOR_H
#define FB_BASE_TENSOR_H

#include "base/dtype.h"
#include "base/order.h"

#ifdef __CUDACC__
#define FB_EVERYWHERE __host__ __device__
#else
#define FB_EVERYWHERE
#endif

/* Activations [rows, heads, width]: element (r, h, i) is number r * row_stride + h * head_stride + i. Rows
 * are tokens. */
typedef struct fb_view {
    void *data;
    fb_dtype dtype;
    int64_t heads, width;
    int64_t row_stride, head_stride;
} fb_view;

/* A weight [rows, cols], at any byte address. A model has those of its file, in the file's order; a device
 * has them as its kernels read them. */
typedef struct fb_weight {
    const void *data; /* NULL: absent, as a bias may be */
    fb_dtype dtype;
    int64_t rows, cols;
    fb_row_order order;       /* of a file: in which order it has the rows … */
    int64_t head_dim;         /* … of heads of so many */
    bool mapped;              /* of a file: in its mapping, whose pages may be let go and come back */
    bool packed;              /* of a device: in its own layout (base/pack.h); else row-major without gaps */
    struct fb_screen *screen; /* of a device: which finds the rows with the largest products; or NULL */
} fb_weight;

/* Which positions a cache keeps, and in which of its slots. With a window of 0, all: each in the slot of its
 * number. Else the first `sinks` positions keep slots 0 … for good; those after them take turns in the `size`
 * slots from `begin` on, and a token sees, besides the sinks, itself and the `window` positions before it. A
 * step may have as many tokens as the ring has slots more than the window: what it writes over, none of them
 * sees. Nobody sees the slots between the sinks and the ring. */
typedef struct fb_ring {
    int64_t sinks, window;
    int64_t begin; /* the sinks rounded up to FB_KV_LANES */
    int64_t size;
} fb_ring;

/* One layer's key-value cache. v is [heads, capacity, width]. Of k, FB_KV_LANES positions lie side by side,
 * [heads, capacity / FB_KV_LANES, width, FB_KV_LANES], so that a vector has one element of several keys and
 * their scores need no sum across it. */
#define FB_KV_LANES 16
typedef struct fb_kv {
    void *k, *v;
    int64_t k_at, v_at; /* bytes from the beginning of a sequence's cache */
    fb_dtype dtype;
    int64_t heads, capacity, width; /* capacity: slots, a multiple of FB_KV_LANES */
    fb_ring ring;
} fb_kv;

/* The slot of a position. */
FB_EVERYWHERE static inline int64_t fb_ring_slot(const fb_ring *r, int64_t position) {
    if (!r->window || position < r->sinks) return position;
    return r->begin + (position - r->sinks) % r->size;
}

/* No slot at or beyond this holds anything that a token at `position` sees. */
FB_EVERYWHERE static inline int64_t fb_ring_count(const fb_ring *r, int64_t position) {
    if (!r->window || position < r->sinks) return position + 1;
    int64_t after = position - r->sinks + 1;
    return r->begin + (after < r->size ? after : r->size);
}

/* Whether a token at `position` sees what `slot` holds after its step. */
FB_EVERYWHERE static inline bool fb_ring_sees(const fb_ring *r, int64_t position, int64_t slot) {
    if (!r->window || slot < r->sinks) return slot <= position;
    int64_t after = position - r->sinks; /* its number in the ring */
    if (slot < r->begin || after < 0) return false;
    int64_t back = after % r->size - (slot - r->begin);
    if (back < 0) back += r->size;
    return back <= after && back <= r->window;
}

static inline void *fb_at(const void *base, fb_dtype dtype, int64_t index) {
    return (uint8_t *)(uintptr_t)base + index * fb_dtype_size(dtype);
}

static inline void *fb_view_at(const fb_view *view, int64_t row, int64_t head) {
    return fb_at(view->data, view->dtype, row * view->row_stride + head * view->head_stride);
}

/* Element 0 of the key in `slot`; the others follow FB_KV_LANES elements apart. */
static inline void *fb_key_at(const fb_kv *kv, int64_t head, int64_t slot) {
    int64_t lane = slot % FB_KV_LANES;
    return fb_at(kv->k, kv->dtype, (head * kv->capacity + slot - lane) * kv->width + lane);
}

/* The value in `slot`, `width` elements. */
static inline void *fb_value_at(const fb_kv *kv, int64_t head, int64_t slot) {
    return fb_at(kv->v, kv->dtype, (head * kv->capacity + slot) * kv->width);
}

#endif
