#include <math.h>

#include "base/quant_blocks.h"

static void decode_floats(fb_dtype dtype, const uint8_t *from, int64_t count, float *to) {
    uint16_t half;
    switch (dtype) {
    case FB_F32:
        memcpy(to, from, (size_t)count * sizeof *to);
        break;
    case FB_F16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = fb_f16_to_f32(half);
        }
        break;
    case FB_BF16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = fb_bf16_to_f32(half);
        }
        break;
    default:
        for (int64_t i = 0; i < count; i++) to[i] = (float)fb_dtype_get(dtype, from, i);
    }
}

void fb_quant_decode(fb_dtype dtype, const void *from, int64_t count, float *to) {
    if (fb_dtype_is_float(dtype))
        decode_floats(dtype, from, count, to);
    else
        quant_decode_blocks(dtype, from, count, to);
}

static void put_half(uint8_t *p, float value) {
    uint16_t half = fb_f32_to_f16(value);
    p[0] = (uint8_t)half;
    p[1] = (uint8_t)(half >> 8);
}

/* ---- encoding ------------------------------------------------------------------------------------------
 * Values that are no numbers, or so small that the reciprocal of their scale is infinite, give bytes without
 * a meaning, but always the same ones. */

/* To the nearest integer of -127 to 127, halves away from zero. */
static int to_nearest(float value) {
    float x = value > -127 ? value : -127;
    x = x < 127 ? x : 127;
    int whole = (int)x; /* towards zero; what is left is exact */
    float rest = x - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

static void encode_q8_0(const float *x, uint8_t *b) {
    float most = 0;
    for (int i = 0; i < 32; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float d = most / 127, inverse = d != 0 ? 1 / d : 0;
    put_half(b, d);
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)to_nearest(x[i] * inverse);
}

/* Towards zero, into 0 to 15. */
static int to_nibble(float value) { return value > 0 ? value < 15 ? (int)value : 15 : 0; }

/* The element of largest magnitude becomes -8, so that the range of -8 to 7 is used to its end. */
static void encode_q4_0(const float *x, uint8_t *b) {
    float most = 0, value = 0;
    for (int i = 0; i < 32; i++)
        if (fabsf(x[i]) > most) most = fabsf(value = x[i]);
    float d = value / -8, inverse = d != 0 ? 1 / d : 0;
    put_half(b, d);
    for (int i = 0; i < 16; i++) {
        int low = to_nibble(x[i] * inverse + 8.5f), high = to_nibble(x[i + 16] * inverse + 8.5f);
        b[2 + i] = (uint8_t)(low | high << 4);
    }
}

typedef void (*encode_fn)(const float *values, uint8_t *block);

static const encode_fn encoders[FB_DTYPE_COUNT] = {[FB_Q8_0] = encode_q8_0, [FB_Q4_0] = encode_q4_0};

static void encode_floats(fb_dtype dtype, const float *from, int64_t count, uint8_t *to) {
    uint16_t half;
    switch (dtype) {
    case FB_F32:
        memcpy(to, from, (size_t)count * sizeof *from);
        break;
    case FB_F16:
        for (int64_t i = 0; i < count; i++) {
            half = fb_f32_to_f16(from[i]);
            memcpy(to + 2 * i, &half, sizeof half);
        }
        break;
    case FB_BF16:
        for (int64_t i = 0; i < count; i++) {
            half = fb_f32_to_bf16(from[i]);
            memcpy(to + 2 * i, &half, sizeof half);
        }
        break;
    default:
        for (int64_t i = 0; i < count; i++) fb_dtype_set(dtype, to, i, (double)from[i]);
    }
}

void fb_quant_encode(fb_dtype dtype, const float *from, int64_t count, void *to) {
    if (fb_dtype_is_float(dtype)) {
        encode_floats(dtype, from, count, to);
        return;
    }
    int64_t block = fb_dtype_block(dtype), bytes = fb_dtype_bytes(dtype, block);
    uint8_t *at = to;
    for (int64_t i = 0; i < count; i += block, at += bytes) encoders[dtype](from + i, at);
}
