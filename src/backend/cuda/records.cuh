/* Quantised weights in records (base/pack_gpu.h): what a record holds, and how a lane unpacks a chunk of it.
 *
 * A type is a case of fb_record_type_of, which agrees with its row of quant_types (base/quant_blocks.h). The
 * functions are written against that description. Where it is a constant, only the type's code is left. */
#ifndef FB_BACKEND_CUDA_RECORDS_CUH
#define FB_BACKEND_CUDA_RECORDS_CUH

#include "backend/cuda/device.cuh"
#include "base/pack_gpu.h"

#define FB_RECORD_CHUNKS (FB_RECORD_COLUMNS / 32)

enum fb_record_codes { FB_CODES_NONE, FB_CODES_NL, FB_CODES_FP4 };
/* Where minimums are: the block's is added; or minus the block's times the part's. */
enum fb_record_minimums { FB_MIN_NONE, FB_MIN_BLOCK, FB_MIN_PART, FB_MIN_NIBBLE };

struct fb_record_type {
    int columns;   /* of a block */
    int part;      /* columns with a scale of their own */
    int low, high; /* bits of an integer, in two planes; 8: they are signed */
    int offset;    /* subtracted from each integer */
    int codes;     /* or what it stands for */
    bool scales;   /* parts have scales; they are signed if there are no minimums */
    int minimums;
    bool power; /* the block's scale is a byte, an exponent */
};

FB_HOST_DEV constexpr fb_record_type fb_record_type_of(fb_dtype dtype) {
    switch (dtype) {
    case FB_Q8_0:
        return {32, 32, 8, 0, 0, FB_CODES_NONE, false, FB_MIN_NONE, false};
    case FB_Q4_0:
        return {32, 32, 4, 0, 8, FB_CODES_NONE, false, FB_MIN_NONE, false};
    case FB_Q4_1:
        return {32, 32, 4, 0, 0, FB_CODES_NONE, false, FB_MIN_BLOCK, false};
    case FB_Q5_0:
        return {32, 32, 4, 1, 16, FB_CODES_NONE, false, FB_MIN_NONE, false};
    case FB_Q5_1:
        return {32, 32, 4, 1, 0, FB_CODES_NONE, false, FB_MIN_BLOCK, false};
    case FB_Q2_K:
        return {256, 16, 2, 0, 0, FB_CODES_NONE, true, FB_MIN_NIBBLE, false};
    case FB_Q3_K:
        return {256, 16, 2, 1, 4, FB_CODES_NONE, true, FB_MIN_NONE, false};
    case FB_Q4_K:
        return {256, 32, 4, 0, 0, FB_CODES_NONE, true, FB_MIN_PART, false};
    case FB_Q5_K:
        return {256, 32, 4, 1, 0, FB_CODES_NONE, true, FB_MIN_PART, false};
    case FB_Q6_K:
        return {256, 16, 4, 2, 32, FB_CODES_NONE, true, FB_MIN_NONE, false};
    case FB_IQ4_XS:
        return {256, 32, 4, 0, 0, FB_CODES_NL, true, FB_MIN_NONE, false};
    case FB_MXFP4:
        return {32, 32, 4, 0, 0, FB_CODES_FP4, false, FB_MIN_NONE, true};
    default: /* FB_IQ4_NL */
        return {32, 32, 4, 0, 0, FB_CODES_NL, false, FB_MIN_NONE, false};
    }
}

/* Calls f with each type that can have records: FB_EACH_RECORD_TYPE(X). */
#define FB_EACH_RECORD_TYPE(X)                                                                               \
    X(FB_Q4_K)                                                                                               \
    X(FB_Q6_K)                                                                                               \
    X(FB_Q5_K)                                                                                               \
    X(FB_Q4_1)                                                                                               \
    X(FB_IQ4_XS)                                                                                             \
    X(FB_IQ4_NL)                                                                                             \
    X(FB_Q5_0)                                                                                               \
    X(FB_Q5_1)                                                                                               \
    X(FB_Q3_K)                                                                                               \
    X(FB_Q2_K)                                                                                               \
    X(FB_MXFP4)                                                                                              \
    X(FB_Q8_0)                                                                                               \
    X(FB_Q4_0)

/* ---- where what is ---- */

FB_HOST_DEV constexpr int fb_record_head(const fb_record_type t) {
    return t.power ? 1 : t.minimums == FB_MIN_NONE ? 2 : 4;
}
FB_HOST_DEV constexpr int fb_record_parts(const fb_record_type t) {
    return t.scales ? 32 / t.part * (t.minimums == FB_MIN_PART ? 2 : 1) : 0;
}

/* A chunk as it lies in a record of `count` chunks. */
struct fb_record_place {
    const uint8_t *low, *high, *head, *parts;
};
FB_DEVICE fb_record_place fb_record_at(const fb_record_type t, const uint8_t *record, int count, int chunk) {
    const uint8_t *high = record + count * 4 * t.low, *heads = high + count * 4 * t.high;
    const int each = t.columns / 32;
    return {record + chunk * 4 * t.low, high + chunk * 4 * t.high, heads + chunk / each * fb_record_head(t),
            heads + count / each * fb_record_head(t) + chunk * fb_record_parts(t)};
}

/* The record of a row that has chunk `*chunk`, which becomes its chunk within the record. */
struct fb_record_of {
    const uint8_t *record;
    int count; /* chunks */
};
FB_DEVICE int fb_record_size(const fb_record_type t, int count) {
    const int chunk = 4 * (t.low + t.high) + fb_record_parts(t);
    return (count * chunk + count / (t.columns / 32) * fb_record_head(t) + 15) / 16 * 16;
}
FB_DEVICE fb_record_of fb_record_find(const fb_record_type t, const uint8_t *row, int chunks, int *chunk) {
    const int number = *chunk / FB_RECORD_CHUNKS, first = number * FB_RECORD_CHUNKS;
    *chunk -= first;
    return {row + (int64_t)number * fb_record_size(t, FB_RECORD_CHUNKS),
            min(FB_RECORD_CHUNKS, chunks - first)};
}

/* ---- scales ---- */

/* A chunk's scales and minimums. The value of integer i of part p is d * scale[p] * i plus m, or minus m *
 * least[p]; without scales, scale is 1. */
struct fb_record_scales {
    float d, m;
    int scale[2], least[2];
};

FB_DEVICE fb_record_scales fb_record_scales_of(const fb_record_type t, const fb_record_place &at) {
    fb_record_scales s = {0, 0, {1, 1}, {0, 0}};
    if (t.power) { /* split_mxfp4 in base/quant_blocks.h */
        const uint32_t exponent = *at.head;
        s.d = __uint_as_float(exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23);
    } else if (t.minimums == FB_MIN_NONE) {
        s.d = fb_widen(fb_half{*(const uint16_t *)at.head});
    } else {
        const uint32_t both = *(const uint32_t *)at.head;
        s.d = fb_widen(fb_half{(uint16_t)both});
        s.m = fb_widen(fb_half{(uint16_t)(both >> 16)});
    }
    if (!t.scales) return s;
    if (fb_record_parts(t) == 1) {
        s.scale[0] = *(const int8_t *)at.parts;
        return s;
    }
    const uint32_t both = *(const uint16_t *)at.parts;
    const uint32_t first = both & 0xff, second = both >> 8;
    if (t.minimums == FB_MIN_PART) {
        s.scale[0] = (int)first;
        s.least[0] = (int)second;
    } else if (t.minimums == FB_MIN_NIBBLE) {
        s.scale[0] = (int)(first & 15), s.least[0] = (int)(first >> 4);
        s.scale[1] = (int)(second & 15), s.least[1] = (int)(second >> 4);
    } else {
        s.scale[0] = (int8_t)first, s.scale[1] = (int8_t)second;
    }
    return s;
}

/* ---- integers ---- */

/* Byte i of the result is byte number (selector >> 4 i & 7) of a and b. */
FB_DEVICE uint32_t fb_permute(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef FB_EMULATED
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) word |= (uint32_t)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return word;
#else
    return __byte_perm(a, b, selector & 0x7777);
#endif
}

/* What the eight nibbles of a word stand for: the low ones, then the high ones. The tables are those of
 * base/quant_blocks.h. */
FB_DEVICE uint2 fb_decode_nibbles(int codes, uint32_t word) {
    const bool nl = codes == FB_CODES_NL;
    const uint32_t t0 = nl ? 0xbfad9881u : 0x03020100u, t1 = nl ? 0xf6eaddcfu : 0x0c080604u;
    const uint32_t t2 = nl ? 0x26190d01u : 0xfdfeff00u, t3 = nl ? 0x71594535u : 0xf4f8fafcu;
    uint32_t of[2]; /* nibbles in their order: four in each word */
#pragma unroll
    for (int i = 0; i < 2; i++, word >>= 16)
        of[i] =
            fb_permute(fb_permute(t0, t1, word), fb_permute(t2, t3, word), 0x3210u | (word & 0x8888u) >> 1);
    return make_uint2(fb_permute(of[0], of[1], 0x6420), fb_permute(of[0], of[1], 0x7531));
}

/* The bits of quad q in a plane of `bits`, moved up by `up`. `words`: the chunk's words of the plane. */
FB_DEVICE uint32_t fb_plane_quad(const uint32_t *words, const int bits, const int up, const int q) {
    const int shift = q / bits * bits - up;
    const uint32_t mask = 0x01010101u * ((1u << bits) - 1) << up, word = words[q % bits];
    return (shift > 0 ? word >> shift : word << -shift) & mask;
}

/* Quad q of a chunk, four columns: integers from 0 on, or signed ones of a table. */
FB_DEVICE uint32_t fb_record_quad(const fb_record_type t, const uint32_t *low, const uint32_t *high, int q) {
    if (t.codes) {
        const uint2 both = fb_decode_nibbles(t.codes, low[q % 4]);
        return q < 4 ? both.x : both.y;
    }
    uint32_t quad = fb_plane_quad(low, t.low, 0, q);
    if (t.high) quad |= fb_plane_quad(high, t.high, t.low, q);
    return quad;
}

/* Whether integers are nibbles as they lie. Those in high nibbles need no shift then: they are multiplied as
 * they are, 16 times as large, and their sum is shifted. */
FB_HOST_DEV constexpr bool fb_record_nibbles(const fb_record_type t) {
    return t.low == 4 && t.high == 0 && t.codes == FB_CODES_NONE;
}

/* Adds the products of four bytes, those of `a` without a sign. */
FB_DEVICE int fb_dot_unsigned(uint32_t a, uint32_t b, int sum) {
#ifdef FB_EMULATED
    for (int i = 0; i < 4; i++) sum += (int)(a >> 8 * i & 0xff) * (int)(int8_t)(b >> 8 * i);
    return sum;
#else
    int all;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(all) : "r"(a), "r"(b), "r"(sum));
    return all;
#endif
}

/* All eight quads; in place: the second four as they lie in high nibbles. The chunk's planes are loaded with
 * as few loads as possible. */
template <bool in_place>
FB_DEVICE void fb_record_quads(const fb_record_type t, const fb_record_place &at, uint32_t *quads) {
    if (t.low == 8) {
        const uint4 v = ((const uint4 *)at.low)[0], w = ((const uint4 *)at.low)[1];
        quads[0] = v.x, quads[1] = v.y, quads[2] = v.z, quads[3] = v.w;
        quads[4] = w.x, quads[5] = w.y, quads[6] = w.z, quads[7] = w.w;
        return;
    }
    uint32_t low[4] = {0, 0, 0, 0}, high[2] = {0, 0};
    if (t.low == 4) {
        const uint4 v = *(const uint4 *)at.low;
        low[0] = v.x, low[1] = v.y, low[2] = v.z, low[3] = v.w;
    } else {
        const uint2 v = *(const uint2 *)at.low;
        low[0] = v.x, low[1] = v.y;
    }
    if (t.high == 2) {
        const uint2 v = *(const uint2 *)at.high;
        high[0] = v.x, high[1] = v.y;
    } else if (t.high == 1) {
        high[0] = *(const uint32_t *)at.high;
    }
#pragma unroll
    for (int q = 0; q < 4; q++) {
        if (t.codes) {
            const uint2 both = fb_decode_nibbles(t.codes, low[q]);
            quads[q] = both.x, quads[q + 4] = both.y;
            continue;
        }
        quads[q] = fb_record_quad(t, low, high, q);
        quads[q + 4] = in_place ? low[q] & 0xf0f0f0f0u : fb_record_quad(t, low, high, q + 4);
    }
}

/* ---- values ---- */

/* The four values of a quad, with the products and sums that writers of GGUF files define. */
FB_DEVICE void fb_record_values(const fb_record_type t, const fb_record_scales &s, uint32_t quad, int q,
                                float *to) {
    const int part = t.part == 32 ? 0 : q / 4;
    const float scale = t.scales ? s.d * (float)s.scale[part] : s.d;
    const float least = t.minimums == FB_MIN_BLOCK ? -s.m : s.m * (float)s.least[part];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = quad >> 8 * i & 0xff;
        const bool is_signed = t.codes || t.low == 8;
        const float product = scale * (float)(is_signed ? (int)(int8_t)byte : (int)byte - t.offset);
        to[i] = t.minimums == FB_MIN_NONE ? product : product - least;
    }
}

/* A chunk's products with a block of x, before x's scale: `first` and `second` are the integer sums of the
 * halves, as the integers lie, `sums` those of x. Every kernel rounds so, which makes a row's bits the same
 * alone and in a batch. */
FB_DEVICE float fb_record_product(const fb_record_type t, const fb_record_scales &s, int first, int second,
                                  const int *sums) {
    const int all = sums[0] + sums[1];
    int product;
    if (t.part == 32) {
        product = first + second - t.offset * all;
        if (t.scales) product *= s.scale[0];
    } else {
        product = (first - t.offset * sums[0]) * s.scale[0] + (second - t.offset * sums[1]) * s.scale[1];
    }
    float v = (float)product * s.d;
    if (t.minimums == FB_MIN_BLOCK) v = fmaf((float)all, s.m, v);
    if (t.minimums == FB_MIN_PART) v = fmaf((float)(all * s.least[0]), -s.m, v);
    if (t.minimums == FB_MIN_NIBBLE) v = fmaf((float)(sums[0] * s.least[0] + sums[1] * s.least[1]), -s.m, v);
    return v;
}

/* Values [8 eighth, 8 eighth + 8) of a chunk. */
FB_DEVICE void fb_record_eight(const fb_record_type t, const fb_record_place &at, int eighth, float *to) {
    const fb_record_scales s = fb_record_scales_of(t, at);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int q = 2 * eighth + h;
        const uint32_t *low = (const uint32_t *)at.low, *high = (const uint32_t *)at.high;
        fb_record_values(t, s, fb_record_quad(t, low, high, q), q, to + 4 * h);
    }
}

#endif
