#include "base/quant.h"

#include <math.h>

static float half_at(const uint8_t *p) { return fb_f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

static void put_half(uint8_t *p, float value) {
    uint16_t half = fb_f32_to_f16(value);
    p[0] = (uint8_t)half;
    p[1] = (uint8_t)(half >> 8);
}

/* ---- decoding: one block each ------------------------------------------------------------------------- */

static void decode_q8_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

/* The 4-bit types of 32: byte i holds element i (low) and element i + 16 (high). */
static void decode_q4_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)((b[2 + i] & 15) - 8) * d;
        y[i + 16] = (float)((b[2 + i] >> 4) - 8) * d;
    }
}

static void decode_q4_1(const uint8_t *b, float *y) {
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)(b[4 + i] & 15) * d + m;
        y[i + 16] = (float)(b[4 + i] >> 4) * d + m;
    }
}

/* The fifth bits of element i and i + 16 are bits i and i + 16 of a little-endian word. */
static int fifth(const uint8_t *bits, int i) { return (bits[i / 8] >> (i % 8) & 1) << 4; }

static void decode_q5_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)(((b[6 + i] & 15) | fifth(b + 2, i)) - 16) * d;
        y[i + 16] = (float)(((b[6 + i] >> 4) | fifth(b + 2, i + 16)) - 16) * d;
    }
}

static void decode_q5_1(const uint8_t *b, float *y) {
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)((b[8 + i] & 15) | fifth(b + 4, i)) * d + m;
        y[i + 16] = (float)((b[8 + i] >> 4) | fifth(b + 4, i + 16)) * d + m;
    }
}

/* Scale and offset of part j of 8: 6 bits each, packed into 12 bytes. */
static void scale_k(const uint8_t *s, int j, int *scale, int *offset) {
    if (j < 4) {
        *scale = s[j] & 63;
        *offset = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *offset = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

/* Eight parts of 32; parts 2 j and 2 j + 1 share 32 bytes, low and high nibbles. `high`: fifth bits, or NULL.
 */
static void decode_k(const uint8_t *b, const uint8_t *high, const uint8_t *low, float *y) {
    float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, offset;
        scale_k(b + 4, j, &scale, &offset);
        float dj = d * (float)scale, mj = dmin * (float)offset;
        for (int i = 0; i < 32; i++) {
            int q = low[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            if (high) q |= (high[i] >> j & 1) << 4;
            y[32 * j + i] = dj * (float)q - mj;
        }
    }
}

static void decode_q4_k(const uint8_t *b, float *y) { decode_k(b, NULL, b + 16, y); }
static void decode_q5_k(const uint8_t *b, float *y) { decode_k(b, b + 16, b + 48, y); }

/* Two halves of 128, each four parts of 32: part p takes nibbles of 64 bytes and two bits of 32. */
static void decode_q6_k(const uint8_t *b, float *y) {
    float d = half_at(b + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = b + 64 * half, *high = b + 128 + 32 * half, *scales = b + 192 + 8 * half;
        for (int p = 0; p < 4; p++)
            for (int i = 0; i < 32; i++) {
                int q = (low[p % 2 * 32 + i] >> (p / 2 * 4) & 15) | (high[i] >> (2 * p) & 3) << 4;
                y[128 * half + 32 * p + i] = d * (float)(int8_t)scales[2 * p + i / 16] * (float)(q - 32);
            }
    }
}

typedef void (*decode_fn)(const uint8_t *block, float *values);

static const decode_fn decoders[FB_DTYPE_COUNT] = {
    [FB_Q8_0] = decode_q8_0, [FB_Q4_0] = decode_q4_0, [FB_Q4_1] = decode_q4_1, [FB_Q5_0] = decode_q5_0,
    [FB_Q5_1] = decode_q5_1, [FB_Q4_K] = decode_q4_k, [FB_Q5_K] = decode_q5_k, [FB_Q6_K] = decode_q6_k,
};

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
    if (fb_dtype_is_float(dtype)) {
        decode_floats(dtype, from, count, to);
        return;
    }
    int64_t block = fb_dtype_block(dtype), bytes = fb_dtype_bytes(dtype, block);
    decode_fn decode = decoders[dtype];
    const uint8_t *at = from;
    for (int64_t i = 0; i < count; i += block, at += bytes) decode(at, to + i);
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
