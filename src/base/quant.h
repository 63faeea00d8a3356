/* Quantised types: blocks of 32 or 256 elements, bit for bit as GGUF files have them. A block's values are
 * small integers times a scale, some plus an offset; scales are float16. */
#ifndef FB_BASE_QUANT_H
#define FB_BASE_QUANT_H

#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FB_MAX_BLOCK 256

/* The values of `count` elements (a multiple of the block) of a quantised or 16-bit or float32 array. */
void fb_quant_decode(fb_dtype dtype, const void *from, int64_t count, float *to);

/* `count` values as blocks of a type that is written (F32, F16, BF16, Q8_0, Q4_0), by the formula that all
 * who write GGUF files share. */
void fb_quant_encode(fb_dtype dtype, const float *from, int64_t count, void *to);

/* The same, with each Q4_0 block's scale searched for the least squared error, which is never more than that
 * of fb_quant_encode; some dozen times its work. */
void fb_quant_search(fb_dtype dtype, const float *from, int64_t count, void *to);

/* Activations that are multiplied with quantised weights: blocks of 32. Where nothing in a block reaches
 * FB_Q8_LEAST, 127 over the largest would overflow: all of q is 0. */
#define FB_Q8_LEAST 0x1p-120f

typedef struct fb_q8 {
    float scale;
    int32_t sum; /* of q */
    int8_t q[32];
} fb_q8;

/* The room of `n` elements (whole blocks) as fb_q8, in floats. */
static inline int64_t fb_q8_floats(int64_t n) { return n / 32 * (int64_t)(sizeof(fb_q8) / sizeof(float)); }

#ifdef __cplusplus
}
#endif
#endif
