/* Quantised types: blocks of 32 or 256 elements, bit for bit as in GGUF files. A value is a small integer
 * times the block's scale, in some types plus an offset. Scales are float16. */
#ifndef FB_BASE_QUANT_H
#define FB_BASE_QUANT_H

#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FB_MAX_BLOCK 256

/* Decodes `count` elements (a multiple of the block) of a quantised, 16-bit or float32 array. */
void fb_quant_decode(fb_dtype dtype, const void *from, int64_t count, float *to);

/* Encodes `count` values as any type but FB_F64 by plain rounding. Types of one scale a block get the bytes
 * of the reference quantiser that all writers of GGUF files use. */
void fb_quant_encode(fb_dtype dtype, const float *from, int64_t count, void *to);

/* The same, but searches scales and minimums for the least squared error, each square times the weight of
 * its column: weights [count], none negative, or NULL for 1. The error is never larger than with
 * fb_quant_encode. It takes some dozen times as long. Q8_0 and floats are encoded. */
void fb_quant_search(fb_dtype dtype, const float *from, int64_t count, const float *weights, void *to);

/* How columns of a row make up for the errors of earlier ones, in panels of `width` columns (a multiple of
 * FB_MAX_BLOCK, or all columns). With e what a column was less what it became, column j shall become its
 * value plus the sum of lower[j, i - first] * e_i over the columns i < j of its panel, which begins at
 * `first`; and a squared error of that costs weights[j]. */
typedef struct fb_feedback {
    int64_t width;
    float *lower;   /* [cols, width] */
    float *weights; /* [cols], none negative */
} fb_feedback;

/* fb_quant_search of a row of a quantised type, with feedback. Errors cost less in all, though each of them
 * may be larger. Q8_0 is compensated as well. `errors` [count] is room. */
void fb_quant_compensate(fb_dtype dtype, const float *from, int64_t count, const fb_feedback *feedback,
                         float *errors, void *to);

/* Encodes `count` finite values as Q4_0 or Q4_1 with the best of a few scales a block: some 5 ns a weight. */
void fb_quant_fit_q4_0(const float *from, int64_t count, void *to);
void fb_quant_fit_q4_1(const float *from, int64_t count, void *to);

/* Activations to be multiplied with quantised weights, in blocks of 32. If no element of a block reaches
 * FB_Q8_LEAST, all of q is 0: 127 / largest would overflow. */
#define FB_Q8_LEAST 0x1p-120f

typedef struct fb_q8 {
    float scale;
    int32_t sum; /* sum of q */
    int8_t q[32];
} fb_q8;

/* Memory for `n` elements (whole blocks) as fb_q8, counted in floats. */
static inline int64_t fb_q8_floats(int64_t n) { return n / 32 * (int64_t)(sizeof(fb_q8) / sizeof(float)); }

#ifdef __cplusplus
}
#endif
#endif
