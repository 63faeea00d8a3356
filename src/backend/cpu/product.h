/* What projections and experts share: inputs, sums of products with any weight, activations. */
#ifndef FB_BACKEND_CPU_PRODUCT_H
#define FB_BACKEND_CPU_PRODUCT_H

#include "backend/cpu/tile.h"

/* An input: rows of float32, of quantised blocks or of bfloat16, with a stride of `ld` elements or blocks.
 * halves [rows, blocks]: see packed_halves. */
typedef struct input {
    const float *x;
    const fb_q8 *q; /* or NULL */
    int64_t ld;
    const int32_t *halves; /* or NULL */
    const uint8_t *bf16;   /* or NULL */
} input;

/* Whether a weight's products with activations of `act` are those of worker->bf16. */
static inline bool both_bf16(const fb_worker *worker, const fb_weight *w, fb_dtype act) {
    return worker->bf16 && w->dtype == FB_BF16 && act == FB_BF16;
}

/* Adds the halves that a weight wants, in `scratch`, which then advances. */
static inline void add_halves(const fb_weight *w, int64_t rows, input *in, float **scratch) {
    if (!in->q || in->halves || !packed_wants_halves(w->dtype)) return;
    int32_t *halves = (int32_t *)(void *)*scratch;
    *scratch += rows * (w->cols / 32);
    packed_halves(in->q, in->ld, w->cols, rows, halves);
    in->halves = halves;
}

FB_VARIANTS vf activate(fb_dtype t, fb_op_kind act, vf v) {
    switch (act) {
    case FB_OP_GELU:
        return vf_rounded(t, vf_gelu(v));
    case FB_OP_GELU_TANH:
        return vf_rounded(t, vf_gelu_tanh(v));
    case FB_OP_SILU:
        return vf_rounded(t, vf_silu(v));
    default:
        return v;
    }
}

/* The address of row n of a weight. */
static inline const uint8_t *weight_row(const fb_weight *w, int64_t n) {
    if (w->packed) return packed_at(w->dtype, w->data, w->cols, n);
    return (const uint8_t *)w->data + fb_dtype_bytes(w->dtype, n * w->cols);
}

#define products FB_KERNEL(products)

/* Computes sums[m * BLOCK_N + n] of rows [row, row + rows) of an input and outputs [n, n + ns) of a weight.
 * `next` is the address of the weights that the worker reads next; NULL: none. */
void products(const fb_worker *worker, const fb_weight *w, const input *in, int64_t row, int64_t rows,
              int64_t n, int64_t ns, const uint8_t *next, tile_work *work, float *sums);

#endif
