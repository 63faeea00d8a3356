/* Decodes one block of each quantised type. It is a header so that each kernel file compiles it for its own
 * instruction set; the compiler turns these loops into vector code. */
#ifndef FB_BASE_QUANT_BLOCKS_H
#define FB_BASE_QUANT_BLOCKS_H

#include "base/quant.h"

static inline float half_at(const uint8_t *p) { return fb_f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

static inline void decode_q8_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

/* 4-bit types in blocks of 32: byte i holds element i (low nibble) and element i + 16 (high nibble). */
static inline void decode_q4_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)((b[2 + i] & 15) - 8) * d;
        y[i + 16] = (float)((b[2 + i] >> 4) - 8) * d;
    }
}

static inline void decode_q4_1(const uint8_t *b, float *y) {
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)(b[4 + i] & 15) * d + m;
        y[i + 16] = (float)(b[4 + i] >> 4) * d + m;
    }
}

/* The fifth bits of elements 0 to 31 form a little-endian 32-bit word. */
static inline uint32_t word_at(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline int fifth(uint32_t bits, int i) { return (int)(bits >> i & 1) << 4; }

static inline void decode_q5_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    uint32_t bits = word_at(b + 2);
    for (int i = 0; i < 16; i++) y[i] = (float)(((b[6 + i] & 15) | fifth(bits, i)) - 16) * d;
    for (int i = 0; i < 16; i++) y[i + 16] = (float)(((b[6 + i] >> 4) | fifth(bits, i + 16)) - 16) * d;
}

static inline void decode_q5_1(const uint8_t *b, float *y) {
    float d = half_at(b), m = half_at(b + 2);
    uint32_t bits = word_at(b + 4);
    for (int i = 0; i < 16; i++) y[i] = (float)((b[8 + i] & 15) | fifth(bits, i)) * d + m;
    for (int i = 0; i < 16; i++) y[i + 16] = (float)((b[8 + i] >> 4) | fifth(bits, i + 16)) * d + m;
}

/* Scale and offset of part j of 8, with 6 bits each, packed into 12 bytes. */
static inline void scale_k(const uint8_t *s, int j, int *scale, int *offset) {
    if (j < 4) {
        *scale = s[j] & 63;
        *offset = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *offset = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

/* Eight parts of 32 elements. Parts 2 j and 2 j + 1 share 32 bytes: low and high nibbles. `high` holds the
 * fifth bits, or is NULL. */
static inline void decode_k(const uint8_t *b, const uint8_t *high, const uint8_t *low, float *y) {
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

static inline void decode_q4_k(const uint8_t *b, float *y) { decode_k(b, NULL, b + 16, y); }
static inline void decode_q5_k(const uint8_t *b, float *y) { decode_k(b, b + 16, b + 48, y); }

/* Two halves of 128 elements, each in eight parts of 16 with a scale each. Parts 2 p and 2 p + 1 read nibbles
 * of 64 bytes and bit pairs of 32 bytes. */
static inline void decode_q6_k(const uint8_t *b, float *y) {
    float d = half_at(b + 208);
    for (int part = 0; part < 16; part++, y += 16) {
        int half = part / 8, p = part / 2 % 4, first = part % 2 * 16;
        const uint8_t *low = b + 64 * half + p % 2 * 32 + first, *high = b + 128 + 32 * half + first;
        float scale = d * (float)(int8_t)b[192 + part];
        for (int i = 0; i < 16; i++)
            y[i] = scale * (float)(((low[i] >> (p / 2 * 4) & 15) | (high[i] >> (2 * p) & 3) << 4) - 32);
    }
}

typedef void (*quant_decode_fn)(const uint8_t *block, float *values);

static const quant_decode_fn quant_decoders[FB_DTYPE_COUNT] = {
    [FB_Q8_0] = decode_q8_0, [FB_Q4_0] = decode_q4_0, [FB_Q4_1] = decode_q4_1, [FB_Q5_0] = decode_q5_0,
    [FB_Q5_1] = decode_q5_1, [FB_Q4_K] = decode_q4_k, [FB_Q5_K] = decode_q5_k, [FB_Q6_K] = decode_q6_k,
};

/* Decodes `count` elements, in whole blocks. */
static inline void quant_decode_blocks(fb_dtype dtype, const uint8_t *from, int64_t count, float *to) {
    int64_t block = fb_dtype_block(dtype), bytes = fb_dtype_bytes(dtype, block);
    for (int64_t i = 0; i < count; i += block, from += bytes) quant_decoders[dtype](from, to + i);
}

#endif
