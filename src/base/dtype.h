/* Element types: sizes, names, and exact scalar conversions (round to nearest, ties to even; NaN stays NaN).
 * Quantised types are stored in blocks (quant.h). */
#ifndef FB_BASE_DTYPE_H
#define FB_BASE_DTYPE_H

#include <string.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The float types come first in fb_dtype. These counts are internal, because both lists grow. */
#define FB_FLOAT_COUNT (FB_F64 + 1)
#define FB_DTYPE_COUNT (FB_MXFP4 + 1)

static inline bool fb_dtype_is_float(fb_dtype dtype) { return (unsigned)dtype < FB_FLOAT_COUNT; }
/* Elements in a block: 1 for floats. A row of a quantised tensor is a whole number of blocks. */
int64_t fb_dtype_block(fb_dtype dtype);
/* Bytes of `count` elements. `count` is a multiple of the block. */
int64_t fb_dtype_bytes(fb_dtype dtype, int64_t count);
/* Bytes of one element of a float type. */
static inline int64_t fb_dtype_size(fb_dtype dtype) { return dtype == FB_F32 ? 4 : dtype == FB_F64 ? 8 : 2; }

static inline uint32_t fb_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float fb_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float fb_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t rest = (uint32_t)(half & 0x7fff) << 13;
    if (rest >= 0x0f800000)
        return fb_f32_from_bits(sign | 0x7f800000 | rest); /* inf and NaN: the exponent becomes 255 */
    /* The exponent bias differs by 112; multiplying by 2^112 moves it and also normalises the subnormals,
     * exactly. */
    return fb_f32_from_bits(sign | fb_f32_bits(fb_f32_from_bits(rest) * 0x1p112f));
}

static inline uint16_t fb_f32_to_f16(float value) {
    uint32_t bits = fb_f32_bits(value), sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | ((bits >> 13) & 0x1ff)); /* quiet NaN, payload kept */
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);      /* 65520 and above round to inf */
    if (bits < 0x38800000) {
        /* Below 2^-14 the result is subnormal: a multiple of 2^-24. Adding 0.5 (whose ulp is 2^-24) rounds to
         * one. */
        float shifted = fb_f32_from_bits(bits) + 0.5f;
        return (uint16_t)(sign | (fb_f32_bits(shifted) - 0x3f000000));
    }
    uint32_t odd = (bits >> 13) & 1;
    return (uint16_t)(sign | ((bits + 0xfff + odd - 0x38000000) >> 13));
}

static inline float fb_bf16_to_f32(uint16_t half) { return fb_f32_from_bits((uint32_t)half << 16); }

static inline uint16_t fb_f32_to_bf16(float value) {
    uint32_t bits = fb_f32_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Element `index` of an array of `dtype`. The array holds whole blocks and need not be aligned. */
double fb_dtype_get(fb_dtype dtype, const void *array, int64_t index);
/* Stores with one rounding from double; floats only. */
void fb_dtype_set(fb_dtype dtype, void *array, int64_t index, double value);

#ifdef __cplusplus
}
#endif
#endif
