/* What the blocks of each quantised type hold, and how they are decoded. It is a header so that each kernel
 * file compiles it for its own instruction set; the compiler turns these loops into vector code.
 *
 * Every type is a row of quant_types and a function that splits a block of it. A value is
 *     scale * integer + minimum
 * where the integer has two to eight bits: a low and a high plane of them, less an offset, or as an index of
 * a table. Types with blocks of 256 have parts of 16 or 32 columns, each with a small integer that the
 * block's scale is multiplied with; some have another for its minimum. */
#ifndef FB_BASE_QUANT_BLOCKS_H
#define FB_BASE_QUANT_BLOCKS_H

#include "base/quant.h"

#define QUANT_PARTS 16 /* in a block, at most */

/* A block, split. Numbers of 16 bits are those of the file. */
typedef struct quant_parts {
    uint16_t scale, minimum; /* of the block */
    int8_t scales[QUANT_PARTS], minimums[QUANT_PARTS];
    uint8_t q[FB_MAX_BLOCK]; /* in the order of columns, before offset and table */
} quant_parts;

typedef struct quant_type {
    int columns;         /* of a block */
    int part;            /* columns with a scale of their own: 16 or 32 */
    int low, high;       /* bits of an integer, in two planes; 8: they are signed */
    int offset;          /* subtracted from each integer */
    const int8_t *codes; /* or the integers' meaning */
    bool scales;         /* parts have scales; otherwise the block is a part */
    bool minimums;       /* values have a minimum: `minimum`, or minus `minimum` times that of the part */
    bool joint;          /* scale and minimum of a part have four bits each, in one byte */
    bool power;          /* `scale` is a bfloat16, a power of two; otherwise a float16 */
    int scale_bits;      /* of a part's scale and minimum: unsigned if there are minimums, otherwise signed */
    void (*split)(const uint8_t *block, quant_parts *p);
} quant_type;

static inline uint16_t quant_half_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

/* ---- blocks of 32 columns ---- */

static inline void split_q8_0(const uint8_t *b, quant_parts *p) {
    p->scale = quant_half_at(b);
    for (int i = 0; i < 32; i++) p->q[i] = b[2 + i];
}

/* Byte i holds column i (low nibble) and column i + 16 (high nibble). */
static inline void split_nibbles(const uint8_t *b, uint8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = b[i] & 15;
        q[i + 16] = b[i] >> 4;
    }
}

static inline void split_q4_0(const uint8_t *b, quant_parts *p) {
    p->scale = quant_half_at(b);
    split_nibbles(b + 2, p->q);
}

static inline void split_q4_1(const uint8_t *b, quant_parts *p) {
    p->scale = quant_half_at(b);
    p->minimum = quant_half_at(b + 2);
    split_nibbles(b + 4, p->q);
}

static inline void split_mxfp4(const uint8_t *b, quant_parts *p) {
    /* 2^(b - 128), halved because the table has twice the values; below 2^-126 as a subnormal. */
    p->scale = (uint16_t)(b[0] < 2 ? 0x20 << b[0] : (b[0] - 1) << 7);
    split_nibbles(b + 1, p->q);
}

/* The fifth bits of columns 0 to 31 are a little-endian word of 32 bits. */
static inline void split_fives(const uint8_t *b, uint8_t *q) {
    uint32_t bits = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    split_nibbles(b + 4, q);
    for (int i = 0; i < 32; i++) q[i] |= (uint8_t)((bits >> i & 1) << 4);
}

static inline void split_q5_0(const uint8_t *b, quant_parts *p) {
    p->scale = quant_half_at(b);
    split_fives(b + 2, p->q);
}

static inline void split_q5_1(const uint8_t *b, quant_parts *p) {
    p->scale = quant_half_at(b);
    p->minimum = quant_half_at(b + 2);
    split_fives(b + 4, p->q);
}

/* ---- blocks of 256 columns ---- */

/* 16 bytes of scales and minimums, then two bits of each integer: column 128 h + 32 j + i is in byte 32 h +
 * i. */
static inline void split_pairs(const uint8_t *b, uint8_t *q) {
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++) q[32 * j + i] = b[j / 4 * 32 + i] >> (j % 4 * 2) & 3;
}

static inline void split_q2_k(const uint8_t *b, quant_parts *p) {
    for (int i = 0; i < 16; i++) {
        p->scales[i] = b[i] & 15;
        p->minimums[i] = (int8_t)(b[i] >> 4);
    }
    split_pairs(b + 16, p->q);
    p->scale = quant_half_at(b + 80);
    p->minimum = quant_half_at(b + 82);
}

/* The third bits: column 32 j + i is bit j of byte i. Scales have six bits: four in nibbles of eight bytes,
 * two in four more. */
static inline void split_q3_k(const uint8_t *b, quant_parts *p) {
    const uint8_t *s = b + 96;
    split_pairs(b + 32, p->q);
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++) p->q[32 * j + i] |= (uint8_t)((b[i] >> j & 1) << 2);
    for (int i = 0; i < 16; i++)
        p->scales[i] =
            (int8_t)(((s[i % 8] >> (i / 8 * 4) & 15) | (s[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32);
    p->scale = quant_half_at(b + 108);
}

/* Scales and minimums of eight parts, six bits each, in 12 bytes. */
static inline void split_sixes(const uint8_t *s, quant_parts *p) {
    for (int j = 0; j < 4; j++) {
        p->scales[j] = s[j] & 63;
        p->minimums[j] = s[j + 4] & 63;
        p->scales[j + 4] = (int8_t)((s[j + 8] & 15) | (s[j] >> 6) << 4);
        p->minimums[j + 4] = (int8_t)((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
    }
}

/* Parts 2 j and 2 j + 1 share 32 bytes: low and high nibbles. */
static inline void split_halves(const uint8_t *b, uint8_t *q) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 32; i++) {
            q[64 * j + i] = b[32 * j + i] & 15;
            q[64 * j + 32 + i] = b[32 * j + i] >> 4;
        }
}

static inline void split_q4_k(const uint8_t *b, quant_parts *p) {
    p->scale = quant_half_at(b);
    p->minimum = quant_half_at(b + 2);
    split_sixes(b + 4, p);
    split_halves(b + 16, p->q);
}

/* The fifth bits: column 32 j + i is bit j of byte i. */
static inline void split_q5_k(const uint8_t *b, quant_parts *p) {
    p->scale = quant_half_at(b);
    p->minimum = quant_half_at(b + 2);
    split_sixes(b + 4, p);
    split_halves(b + 48, p->q);
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++) p->q[32 * j + i] |= (uint8_t)((b[16 + i] >> j & 1) << 4);
}

/* Two halves of 128 columns, which have 64 bytes of nibbles and 32 bytes of pairs of bits each. */
static inline void split_q6_k(const uint8_t *b, quant_parts *p) {
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++) {
            int low = b[j / 4 * 64 + j % 2 * 32 + i] >> (j % 4 / 2 * 4) & 15;
            p->q[32 * j + i] = (uint8_t)(low | (b[128 + j / 4 * 32 + i] >> (j % 4 * 2) & 3) << 4);
        }
    memcpy(p->scales, b + 192, 16);
    p->scale = quant_half_at(b + 208);
}

/* Scales of six bits: four in nibbles, two in a word. */
static inline void split_iq4_xs(const uint8_t *b, quant_parts *p) {
    uint16_t high = quant_half_at(b + 2);
    p->scale = quant_half_at(b);
    for (int j = 0; j < 8; j++) {
        p->scales[j] = (int8_t)(((b[4 + j / 2] >> (j % 2 * 4) & 15) | (high >> (2 * j) & 3) << 4) - 32);
        split_nibbles(b + 8 + 16 * j, p->q + 32 * j);
    }
}

/* ---- the table ---- */

static const int8_t quant_codes_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t quant_codes_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static const quant_type quant_types[FB_DTYPE_COUNT] = {
    [FB_Q8_0] = {32, 32, .low = 8, .split = split_q8_0},
    [FB_Q4_0] = {32, 32, .low = 4, .offset = 8, .split = split_q4_0},
    [FB_Q4_1] = {32, 32, .low = 4, .minimums = true, .split = split_q4_1},
    [FB_Q5_0] = {32, 32, .low = 4, .high = 1, .offset = 16, .split = split_q5_0},
    [FB_Q5_1] = {32, 32, .low = 4, .high = 1, .minimums = true, .split = split_q5_1},
    [FB_Q2_K] = {256, 16, .low = 2, .scales = true, .minimums = true, .joint = true, .scale_bits = 4,
                 .split = split_q2_k},
    [FB_Q3_K] = {256, 16, .low = 2, .high = 1, .offset = 4, .scales = true, .scale_bits = 6,
                 .split = split_q3_k},
    [FB_Q4_K] = {256, 32, .low = 4, .scales = true, .minimums = true, .scale_bits = 6, .split = split_q4_k},
    [FB_Q5_K] = {256, 32, .low = 4, .high = 1, .scales = true, .minimums = true, .scale_bits = 6,
                 .split = split_q5_k},
    [FB_Q6_K] = {256, 16, .low = 4, .high = 2, .offset = 32, .scales = true, .scale_bits = 8,
                 .split = split_q6_k},
    [FB_IQ4_NL] = {32, 32, .low = 4, .codes = quant_codes_nl, .split = split_q4_0},
    [FB_IQ4_XS] = {256, 32, .low = 4, .codes = quant_codes_nl, .scales = true, .scale_bits = 6,
                   .split = split_iq4_xs},
    [FB_MXFP4] = {32, 32, .low = 4, .codes = quant_codes_fp4, .power = true, .split = split_mxfp4},
};

/* ---- values ---- */

static inline float quant_scale(const quant_type *t, uint16_t bits) {
    return t->power ? fb_bf16_to_f32(bits) : fb_f16_to_f32(bits);
}

static inline float quant_integer(const quant_type *t, uint8_t q) {
    return (float)(t->codes ? t->codes[q] : t->low == 8 ? (int8_t)q : q - t->offset);
}

/* The values of a split block: products and sums in the order that writers of GGUF files define. */
static inline void quant_values(const quant_type *t, const quant_parts *p, float *y) {
    float d = quant_scale(t, p->scale), m = t->minimums ? fb_f16_to_f32(p->minimum) : 0;
    for (int first = 0; first < t->columns; first += t->part) {
        float scale = t->scales ? d * (float)p->scales[first / t->part] : d;
        float least = t->scales ? m * (float)p->minimums[first / t->part] : -m;
        for (int i = first; i < first + t->part; i++) {
            float product = scale * quant_integer(t, p->q[i]);
            y[i] = t->minimums ? product - least : product;
        }
    }
}

typedef void (*quant_decode_fn)(const uint8_t *block, float *values);

/* With the type a constant, for each type. */
#define QUANT_DECODER(TYPE, name)                                                                            \
    static inline void decode_##name(const uint8_t *block, float *values) {                                  \
        quant_parts parts;                                                                                   \
        split_##name(block, &parts);                                                                         \
        quant_values(&quant_types[TYPE], &parts, values);                                                    \
    }
#define split_iq4_nl split_q4_0
QUANT_DECODER(FB_Q8_0, q8_0)
QUANT_DECODER(FB_Q4_0, q4_0)
QUANT_DECODER(FB_Q4_1, q4_1)
QUANT_DECODER(FB_Q5_0, q5_0)
QUANT_DECODER(FB_Q5_1, q5_1)
QUANT_DECODER(FB_Q2_K, q2_k)
QUANT_DECODER(FB_Q3_K, q3_k)
QUANT_DECODER(FB_Q4_K, q4_k)
QUANT_DECODER(FB_Q5_K, q5_k)
QUANT_DECODER(FB_Q6_K, q6_k)
QUANT_DECODER(FB_IQ4_NL, iq4_nl)
QUANT_DECODER(FB_IQ4_XS, iq4_xs)
QUANT_DECODER(FB_MXFP4, mxfp4)
#undef split_iq4_nl
#undef QUANT_DECODER

static const quant_decode_fn quant_decoders[FB_DTYPE_COUNT] = {
    [FB_Q8_0] = decode_q8_0,   [FB_Q4_0] = decode_q4_0,     [FB_Q4_1] = decode_q4_1,
    [FB_Q5_0] = decode_q5_0,   [FB_Q5_1] = decode_q5_1,     [FB_Q2_K] = decode_q2_k,
    [FB_Q3_K] = decode_q3_k,   [FB_Q4_K] = decode_q4_k,     [FB_Q5_K] = decode_q5_k,
    [FB_Q6_K] = decode_q6_k,   [FB_IQ4_NL] = decode_iq4_nl, [FB_IQ4_XS] = decode_iq4_xs,
    [FB_MXFP4] = decode_mxfp4,
};

/* Decodes `count` elements, in whole blocks. */
static inline void quant_decode_blocks(fb_dtype dtype, const uint8_t *from, int64_t count, float *to) {
    int64_t block = fb_dtype_block(dtype), bytes = fb_dtype_bytes(dtype, block);
    for (int64_t i = 0; i < count; i += block, from += bytes) quant_decoders[dtype](from, to + i);
}

#endif
