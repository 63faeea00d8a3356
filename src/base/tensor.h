/* The tensors that kernels read and write. */
#ifndef FB_BASE_TENSOR_H
#define FB_BASE_TENSOR_H

#include "base/dtype.h"
#include "base/order.h"

#ifdef __CUDACC__
#define FB_EVERYWHERE __host__ __device__
#else
#define FB_EVERYWHERE
#endif

/* Activations [rows, heads, width], with one row per token. Element (r, h, i) has index r * row_stride + h *
 * head_stride + i. */
typedef struct fb_view {
    void *data;
    fb_dtype dtype;
    int64_t heads, width;
    int64_t row_stride, head_stride;
} fb_view;

/* What a linear multiplies its matrix with. */
typedef struct fb_linear_rows {
    const fb_view *x;
    int64_t rows;
    /* Of experts: `used` pairs (expert, share) for each row. If `each`, head j of x is the input of a row's
     * expert j; otherwise all experts of a row read the whole of it. NULL: one matrix, which reads all rows.
     */
    const fb_view *routes;
    int32_t used;
    bool each;
} fb_linear_rows;

/* A weight [rows, cols], at any byte address. A model's weights lie in its file, in the file's order. A
 * device's weights are in the layout of its kernels. */
typedef struct fb_weight {
    const void *data; /* NULL: absent, as a bias may be */
    fb_dtype dtype;
    int64_t rows, cols;
    /* Of a mixture of experts: how many matrices of equal size it is; 0: it is one. Each begins at its part.
     * NULL: they lie one behind another. */
    int64_t experts;
    const void *const *parts;
    fb_row_order order; /* file: the order of its rows … */
    int64_t head_dim;   /* … and the elements in a head */
    bool mapped;        /* file: it lies in the mapping, whose pages may be dropped and read again */
    /* Device: it has the packed layout of base/pack.h, or of backend/cuda/kernel.h; otherwise it is row-major
     * without gaps, on a GPU as records if it is quantised (base/pack_gpu.h). */
    bool packed;
    struct fb_screen *screen; /* device: finds the rows with the largest products; or NULL */
} fb_weight;

/* Which positions a cache keeps, and in which slots.
 *
 * Window 0: the cache keeps all positions. Position p is in slot p.
 *
 * Otherwise the first `sinks` positions stay in slots 0 to sinks - 1 for good. Later positions reuse the
 * `size` slots that start at `begin`, in turn. A token sees the sinks, itself and the `window` positions
 * before it. A step may have up to size - window tokens: it then overwrites only slots that none of its
 * tokens sees. The slots between the sinks and `begin` are never used.
 *
 * A session's ring consists of blocks of FB_RING_BLOCK slots. So the positions of a block, counted from the
 * first one after the sinks, are the same whatever the ring's size. It has one block more than a step's
 * tokens and their windows can span, so that no block has both the oldest and the newest position that they
 * see. */
#define FB_RING_BLOCK 128
typedef struct fb_ring {
    int64_t sinks, window;
    int64_t
        begin; /* a multiple of FB_KV_GROUP, at least the number of sinks; in a session, of FB_RING_BLOCK */
    int64_t size;
} fb_ring;

/* For a step of so many tokens. */
FB_EVERYWHERE static inline int64_t fb_ring_size(int64_t window, int64_t tokens) {
    return ((window + tokens + FB_RING_BLOCK - 1) / FB_RING_BLOCK + 1) * FB_RING_BLOCK;
}

/* One layer's key-value cache. v is [heads, capacity, width]. k is [heads, capacity / FB_KV_GROUP, width,
 * FB_KV_GROUP]: FB_KV_GROUP positions are interleaved. A vector then holds the same element of several keys,
 * and their scores need no sum across the vector. */
#define FB_KV_GROUP 16
#define FB_KV_WHOLE 62 /* the shift of a cache of one block: every slot is in block 0 */
typedef struct fb_kv {
    void *k, *v;        /* the only sequence's, if `tables` is NULL */
    int64_t k_at, v_at; /* bytes from the beginning of a block of a sequence's cache */
    fb_dtype dtype;
    int64_t heads, capacity, width; /* capacity: slots, a multiple of FB_KV_GROUP */
    fb_ring ring;
    /* A cache in blocks, in the CPU's memory. tables[sequence][table_at + (slot >> shift)] is where a slot's
     * block begins. In a block, k and v are laid out as above, with `block` slots as capacity. */
    uint8_t *const *const *tables;
    int64_t table_at, block;
    int32_t shift;
} fb_kv;

/* The slot of a position. */
FB_EVERYWHERE static inline int64_t fb_ring_slot(const fb_ring *r, int64_t position) {
    if (!r->window || position < r->sinks) return position;
    return r->begin + (position - r->sinks) % r->size;
}

/* A token at `position` sees nothing in this slot or any later one. */
FB_EVERYWHERE static inline int64_t fb_ring_count(const fb_ring *r, int64_t position) {
    if (!r->window || position < r->sinks) return position + 1;
    int64_t after = position - r->sinks + 1;
    return r->begin + (after < r->size ? after : r->size);
}

/* Whether a token at `position` sees what `slot` holds after the token's step. */
FB_EVERYWHERE static inline bool fb_ring_sees(const fb_ring *r, int64_t position, int64_t slot) {
    if (!r->window || slot < r->sinks) return slot <= position;
    int64_t after = position - r->sinks; /* index in the ring, counted from the first token after the sinks */
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

/* Element 0 of the key in `slot`. Element i is i * FB_KV_GROUP elements further. */
static inline void *fb_key_at(const fb_kv *kv, int64_t head, int64_t slot) {
    int64_t in_group = slot % FB_KV_GROUP;
    return fb_at(kv->k, kv->dtype, (head * kv->capacity + slot - in_group) * kv->width + in_group);
}

/* The value in `slot`: `width` elements. */
static inline void *fb_value_at(const fb_kv *kv, int64_t head, int64_t slot) {
    return fb_at(kv->v, kv->dtype, (head * kv->capacity + slot) * kv->width);
}

/* The same of a row's sequence: its block, and the slot within it. */
static inline fb_kv fb_kv_of(const fb_kv *kv, int32_t sequence, int64_t *slot) {
    fb_kv block = *kv;
    if (!kv->tables) return block;
    uint8_t *memory = kv->tables[sequence][kv->table_at + (*slot >> kv->shift)];
    block.capacity = kv->block;
    *slot &= ((int64_t)1 << kv->shift) - 1;
    block.k = memory + kv->k_at;
    block.v = memory + kv->v_at;
    return block;
}

static inline void *fb_key_of(const fb_kv *kv, int32_t sequence, int64_t head, int64_t slot) {
    fb_kv block = fb_kv_of(kv, sequence, &slot);
    return fb_key_at(&block, head, slot);
}

static inline void *fb_value_of(const fb_kv *kv, int32_t sequence, int64_t head, int64_t slot) {
    fb_kv block = fb_kv_of(kv, sequence, &slot);
    return fb_value_at(&block, head, slot);
}

#endif
