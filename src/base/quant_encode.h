/* What encoding blocks is made of: a split block is chosen, by plain rounding or by a search, and joined. */
#ifndef FB_BASE_QUANT_ENCODE_H
#define FB_BASE_QUANT_ENCODE_H

#include "base/quant_blocks.h"

/* The bits of a scale or minimum. Every NaN becomes the same one. */
static inline uint16_t quant_half(float value) { return value == value ? fb_f32_to_f16(value) : 0x7e00; }

/* The range of a part's integer scale: Q2_K has 0 to 15, Q3_K -32 to 31. Without scales it is 1. */
static inline int quant_least_scale(const quant_type *t) {
    if (!t->scales) return 1;
    return t->minimums ? 0 : -(1 << (t->scale_bits - 1));
}
static inline int quant_most_scale(const quant_type *t) {
    if (!t->scales) return 1;
    return t->minimums ? (1 << t->scale_bits) - 1 : (1 << (t->scale_bits - 1)) - 1;
}

/* Plain rounding of t->columns values: scales from the largest value of each part. */
void fb_quant_round_block(const quant_type *t, const float *x, quant_parts *p);

/* The least squared error that a search finds, each square times the weight of its column (NULL: 1). Starts
 * from the split block `p`, which stays if nothing is better. */
void fb_quant_search_block(const quant_type *t, const float *x, const float *weights, quant_parts *p);

#endif
