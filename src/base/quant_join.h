/* A split block as the bytes of a file: the inverse of the functions in quant_blocks.h. */
#ifndef FB_BASE_QUANT_JOIN_H
#define FB_BASE_QUANT_JOIN_H

#include "base/quant_blocks.h"

static inline void put_half_at(uint8_t *b, uint16_t half) {
    b[0] = (uint8_t)half;
    b[1] = (uint8_t)(half >> 8);
}

/* ---- blocks of 32 columns ---- */

static inline void join_q8_0(const quant_parts *p, uint8_t *b) {
    put_half_at(b, p->scale);
    memcpy(b + 2, p->q, 32);
}

/* The low four bits of 32 integers. */
static inline void join_nibbles(const uint8_t *q, uint8_t *b) {
    for (int i = 0; i < 16; i++) b[i] = (uint8_t)((q[i] & 15) | q[i + 16] << 4);
}

static inline void join_q4_0(const quant_parts *p, uint8_t *b) {
    put_half_at(b, p->scale);
    join_nibbles(p->q, b + 2);
}

static inline void join_q4_1(const quant_parts *p, uint8_t *b) {
    put_half_at(b, p->scale);
    put_half_at(b + 2, p->minimum);
    join_nibbles(p->q, b + 4);
}

/* `scale` is the bfloat16 of 2^(byte - 128). */
static inline void join_mxfp4(const quant_parts *p, uint8_t *b) {
    b[0] = p->scale < 0x80 ? p->scale > 0x20 : (uint8_t)((p->scale >> 7) + 1);
    join_nibbles(p->q, b + 1);
}

static inline void join_fives(const uint8_t *q, uint8_t *b) {
    for (int j = 0; j < 4; j++) {
        b[j] = 0;
        for (int i = 0; i < 8; i++) b[j] |= (uint8_t)((q[8 * j + i] >> 4) << i);
    }
    join_nibbles(q, b + 4);
}

static inline void join_q5_0(const quant_parts *p, uint8_t *b) {
    put_half_at(b, p->scale);
    join_fives(p->q, b + 2);
}

static inline void join_q5_1(const quant_parts *p, uint8_t *b) {
    put_half_at(b, p->scale);
    put_half_at(b + 2, p->minimum);
    join_fives(p->q, b + 4);
}

/* ---- blocks of 256 columns ---- */

/* Bits `shift` and shift + 1 of each integer. */
static inline void join_pairs(const uint8_t *q, int shift, uint8_t *b) {
    memset(b, 0, 64);
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++)
            b[j / 4 * 32 + i] |= (uint8_t)((q[32 * j + i] >> shift & 3) << (j % 4 * 2));
}

/* Bit `shift` of each integer. */
static inline void join_bits(const uint8_t *q, int shift, uint8_t *b) {
    memset(b, 0, 32);
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++) b[i] |= (uint8_t)((q[32 * j + i] >> shift & 1) << j);
}

static inline void join_q2_k(const quant_parts *p, uint8_t *b) {
    for (int i = 0; i < 16; i++) b[i] = (uint8_t)(p->scales[i] | p->minimums[i] << 4);
    join_pairs(p->q, 0, b + 16);
    put_half_at(b + 80, p->scale);
    put_half_at(b + 82, p->minimum);
}

static inline void join_q3_k(const quant_parts *p, uint8_t *b) {
    uint8_t *s = b + 96;
    join_bits(p->q, 2, b);
    join_pairs(p->q, 0, b + 32);
    memset(s, 0, 12);
    for (int i = 0; i < 16; i++) {
        int scale = p->scales[i] + 32;
        s[i % 8] |= (uint8_t)((scale & 15) << (i / 8 * 4));
        s[8 + i % 4] |= (uint8_t)((scale >> 4) << (i / 4 * 2));
    }
    put_half_at(b + 108, p->scale);
}

static inline void join_sixes(const quant_parts *p, uint8_t *s) {
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(p->scales[j] | p->scales[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(p->minimums[j] | p->minimums[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((p->scales[j + 4] & 15) | (p->minimums[j + 4] & 15) << 4);
    }
}

static inline void join_halves(const uint8_t *q, uint8_t *b) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 32; i++)
            b[32 * j + i] = (uint8_t)((q[64 * j + i] & 15) | q[64 * j + 32 + i] << 4);
}

static inline void join_q4_k(const quant_parts *p, uint8_t *b) {
    put_half_at(b, p->scale);
    put_half_at(b + 2, p->minimum);
    join_sixes(p, b + 4);
    join_halves(p->q, b + 16);
}

static inline void join_q5_k(const quant_parts *p, uint8_t *b) {
    put_half_at(b, p->scale);
    put_half_at(b + 2, p->minimum);
    join_sixes(p, b + 4);
    join_bits(p->q, 4, b + 16);
    join_halves(p->q, b + 48);
}

static inline void join_q6_k(const quant_parts *p, uint8_t *b) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 32; i++) {
            const uint8_t *q = p->q + j / 2 * 128 + j % 2 * 32 + i;
            b[32 * j + i] = (uint8_t)((q[0] & 15) | q[64] << 4);
        }
    join_pairs(p->q, 4, b + 128);
    memcpy(b + 192, p->scales, 16);
    put_half_at(b + 208, p->scale);
}

static inline void join_iq4_xs(const quant_parts *p, uint8_t *b) {
    unsigned high = 0;
    memset(b + 4, 0, 4);
    for (int j = 0; j < 8; j++) {
        int scale = p->scales[j] + 32;
        b[4 + j / 2] |= (uint8_t)((scale & 15) << (j % 2 * 4));
        high |= (unsigned)(scale >> 4) << (2 * j);
        join_nibbles(p->q + 32 * j, b + 8 + 16 * j);
    }
    put_half_at(b, p->scale);
    put_half_at(b + 2, (uint16_t)high);
}

/* ---- the table ---- */

typedef void (*quant_join_fn)(const quant_parts *p, uint8_t *block);

static const quant_join_fn quant_joiners[FB_DTYPE_COUNT] = {
    [FB_Q8_0] = join_q8_0,   [FB_Q4_0] = join_q4_0, [FB_Q4_1] = join_q4_1,   [FB_Q5_0] = join_q5_0,
    [FB_Q5_1] = join_q5_1,   [FB_Q2_K] = join_q2_k, [FB_Q3_K] = join_q3_k,   [FB_Q4_K] = join_q4_k,
    [FB_Q5_K] = join_q5_k,   [FB_Q6_K] = join_q6_k, [FB_IQ4_NL] = join_q4_0, [FB_IQ4_XS] = join_iq4_xs,
    [FB_MXFP4] = join_mxfp4,
};

#endif
