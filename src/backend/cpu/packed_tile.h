/* The kernels of packed.h, written against the description of a type (quant_types). */
#ifndef FB_BACKEND_CPU_PACKED_TILE_H
#define FB_BACKEND_CPU_PACKED_TILE_H

#include "backend/cpu/packed.h"

/* Vectors in a group of 16 rows. */
#define PARTS (FB_PACK_ROWS / VW)
/* Rows of x in a tile. Each needs two accumulators (a part's integers and the float sums), besides the
 * weights' vectors. */
#if defined FB_ISA_avx512 || defined FB_ISA_neon
#define PACKED_M 8
#else
#define PACKED_M 4
#endif

FB_INLINE vi vi_load(const void *p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The same four bytes of a row in every element. */
FB_INLINE vi vi_word(const int8_t *p) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    return word - (vi){0};
}

FB_INLINE vi vi_set1(int32_t x) { return x - (vi){0}; }

/* ---- products of bytes ----
 * An element of a vector holds a quad: four bytes of a row of weights, and four of x. quad_add(sum, w, x)
 * adds the products to a sum that may have another form, which quad_end turns into 32-bit integers; after at
 * most QUAD_LIMIT(bits) quads of weights of so many bits. bytes_add is for signed bytes; it leaves
 * BYTES_OFFSET times the sum of x's bytes to be subtracted. */
#define BYTES_OFFSET     0
#define QUAD_LIMIT(bits) 8
#if defined FB_ISA_avx512vnni || defined FB_ISA_avxvnni
#undef BYTES_OFFSET
#define BYTES_OFFSET 128
FB_INLINE vi quad_add(vi sum, vi w, vi x) {
#if defined FB_ISA_avx512vnni
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#else
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
#endif
}
FB_INLINE vi quad_end(vi sum) { return sum; }
FB_INLINE vi bytes_add(vi sum, vi w, vi x) { return quad_add(sum, w ^ (int32_t)0x80808080, x); }

#elif defined FB_ISA_avx512 || defined FB_ISA_avx2
/* Adjacent products of bytes are added as 16-bit integers, and stay so for as many quads as cannot overflow:
 * 8 of 4 bits (8 * 2 * 15 * 127), 4 of 5 bits, 2 of 6. For signed bytes, |w| is multiplied with x under w's
 * sign: 2 * 128 * 127 fits, but only once. */
#undef QUAD_LIMIT
#define QUAD_LIMIT(bits) ((bits) <= 4 ? 8 : (bits) == 5 ? 4 : 2)
#if defined FB_ISA_avx512
FB_INLINE vi pairs16(vi a, vi b) { return (vi)_mm512_maddubs_epi16((__m512i)a, (__m512i)b); }
FB_INLINE vi add16(vi a, vi b) { return (vi)_mm512_add_epi16((__m512i)a, (__m512i)b); }
FB_INLINE vi pairs32(vi a) { return (vi)_mm512_madd_epi16((__m512i)a, _mm512_set1_epi16(1)); }
FB_INLINE vi abs8(vi a) { return (vi)_mm512_abs_epi8((__m512i)a); }
FB_INLINE vi signed8(vi x, vi w) {
    __mmask64 negative = _mm512_movepi8_mask((__m512i)w);
    return (vi)_mm512_mask_sub_epi8((__m512i)x, negative, _mm512_setzero_si512(), (__m512i)x);
}
#else
FB_INLINE vi pairs16(vi a, vi b) { return (vi)_mm256_maddubs_epi16((__m256i)a, (__m256i)b); }
FB_INLINE vi add16(vi a, vi b) { return (vi)_mm256_add_epi16((__m256i)a, (__m256i)b); }
FB_INLINE vi pairs32(vi a) { return (vi)_mm256_madd_epi16((__m256i)a, _mm256_set1_epi16(1)); }
FB_INLINE vi abs8(vi a) { return (vi)_mm256_abs_epi8((__m256i)a); }
FB_INLINE vi signed8(vi x, vi w) { return (vi)_mm256_sign_epi8((__m256i)x, (__m256i)w); }
#endif
FB_INLINE vi quad_add(vi sum, vi w, vi x) { return add16(sum, pairs16(w, x)); }
FB_INLINE vi quad_end(vi sum) { return pairs32(sum); }
FB_INLINE vi bytes_add(vi sum, vi w, vi x) { return sum + pairs32(pairs16(abs8(w), signed8(x, w))); }

#elif defined FB_ISA_neon
FB_INLINE vi bytes_add(vi sum, vi w, vi x) {
#if defined FB_ISA_dotprod
    return (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
#else
    int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)x));
    int16x8_t high = vmull_high_s8((int8x16_t)w, (int8x16_t)x);
    return sum + (vi)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
}
FB_INLINE vi quad_add(vi sum, vi w, vi x) { return bytes_add(sum, w, x); }
FB_INLINE vi quad_end(vi sum) { return sum; }

#else
/* Bytes 0 and 2, and 1 and 3, as 16-bit integers. The sum of two products fits: 2 * 128 * 127. */
typedef int16_t vh __attribute__((vector_size(VW * 4)));
FB_INLINE vi bytes_add(vi sum, vi w, vi x) {
    vh even = ((vh)w << 8 >> 8) * ((vh)x << 8 >> 8), odd = ((vh)w >> 8) * ((vh)x >> 8);
    vi pairs = (vi)(even + odd);
    return sum + (pairs << 16 >> 16) + (pairs >> 16);
}
FB_INLINE vi quad_add(vi sum, vi w, vi x) { return bytes_add(sum, w, x); }
FB_INLINE vi quad_end(vi sum) { return sum; }
#endif

/* ---- a part's weights ---- */

/* The signed bytes that the codes 0 to 15 stand for. */
#if VW > 4 || defined FB_ISA_neon
FB_INLINE vi coded(const int8_t *codes, vi q) {
#if defined FB_ISA_avx512
    __m128i table = _mm_loadu_si128((const __m128i *)(const void *)codes);
    return (vi)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)q);
#elif defined FB_ISA_avx2
    __m128i table = _mm_loadu_si128((const __m128i *)(const void *)codes);
    return (vi)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)q);
#else
    return (vi)vqtbl1q_s8(vld1q_s8(codes), (uint8x16_t)q);
#endif
}
#else
/* The bits of q choose among the codes, which are constants; bits[i] is 0xff in each byte whose bit i is 1. A
 * bit adds (exclusive or) the difference of what it chooses between. A table that is read byte by byte takes
 * 2.4 times as long: the bytes go through memory, from wide stores to narrow loads and back, and each wide
 * load waits until the narrow stores before it are done. */
FB_INLINE vu code_of_two(uint32_t codes, const vu *bits) {
    const uint32_t all = 0x01010101;
    return (vu)vi_set1((int32_t)(all * (codes & 255))) ^
           (bits[0] & (vu)vi_set1((int32_t)(all * ((codes ^ codes >> 8) & 255))));
}
FB_INLINE vu code_of_four(uint32_t codes, const vu *bits) {
    return code_of_two(codes, bits) ^ (bits[1] & code_of_two(codes ^ codes >> 16, bits));
}
FB_INLINE vu code_of_eight(uint64_t codes, const vu *bits) {
    return code_of_four((uint32_t)codes, bits) ^
           (bits[2] & code_of_four((uint32_t)(codes ^ codes >> 32), bits));
}
FB_INLINE vi coded(const int8_t *codes, vi q) {
    typedef int8_t vb __attribute__((vector_size(VW * 4)));
    uint64_t half[2];
    vu bits[4];
    memcpy(half, codes, sizeof half);
    for (int i = 0; i < 4; i++) {
        const vi bit = vi_set1(0x01010101 << i);
        bits[i] = (vu)((vb)(q & bit) == (vb)bit);
    }
    return (vi)(code_of_eight(half[0], bits) ^ (bits[3] & code_of_eight(half[0] ^ half[1], bits)));
}
#endif

/* Bits of quad q in a plane of `bits`, moved up by `up`. `at`: the plane's words of VW rows. */
FB_INLINE vi plane_quad(const uint8_t *at, const int bits, const int up, const int q) {
    const int shift = q / pack_words(bits) * bits - up;
    const vu mask = (vu)vi_set1((int32_t)(pack_mask(bits) << up));
    vu word = (vu)vi_load(at + 4 * FB_PACK_ROWS * (q % pack_words(bits)));
    if (bits == 8) return (vi)word;
    return (vi)((shift > 0 ? word >> shift : word << -shift) & mask);
}

/* The integers of quad q of 32 columns. `low`: their planes. */
FB_INLINE vi weight_quad(const quant_type *t, const uint8_t *low, const int q) {
    vi w = plane_quad(low, t->low, 0, q);
    if (t->high) w |= plane_quad(low + pack_plane_bytes(t->low), t->high, t->low, q);
    return t->codes ? coded(t->codes, w) : w;
}

/* VW bytes as floats. */
FB_INLINE vf vf_load_bytes(const uint8_t *p) {
#if defined FB_ISA_avx512
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
#elif defined FB_ISA_avx2
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
#else
    vf v;
    for (int i = 0; i < VW; i++) v[i] = (float)(int8_t)p[i];
    return v;
#endif
}

/* The low or the high nibbles of VW bytes. */
FB_INLINE vf vf_load_nibbles(const uint8_t *p, bool high) {
    uint8_t bytes[VW];
    memcpy(bytes, p, VW);
    for (int i = 0; i < VW; i++) bytes[i] = high ? bytes[i] >> 4 : bytes[i] & 15;
    return vf_load_bytes(bytes);
}

FB_INLINE vf block_scale(const quant_type *t, const uint8_t *p) {
    return t->power ? vf_load_bf16(p) : vf_load_f16(p);
}

/* Scales and minimums of the parts of 32 columns, of VW outputs. */
typedef struct part_scales {
    vf scale[2], minimum[2];
} part_scales;

/* d, least: those of the block. `at`: the beginning of 32 columns, moved to the vector. */
FB_INLINE part_scales scales_of(const quant_type *t, vf d, vf least, const uint8_t *at) {
    part_scales s = {{d, d}, {least, least}};
    for (int h = 0; t->scales && h < 32 / t->part; h++) {
        const uint8_t *scale = at + FB_PACK_ROWS * h;
        s.scale[h] = d * (t->joint ? vf_load_nibbles(scale, false) : vf_load_bytes(scale));
        if (t->minimums)
            s.minimum[h] = least * (t->joint ? vf_load_nibbles(scale, true)
                                             : vf_load_bytes(scale + pack_scale_bytes(t)));
    }
    return s;
}

/* ---- tiles ---- */

/* Prefetch distances in bytes for one row: PACKED_NEAR into the L1 cache, PACKED_FAR into L2. Intel: compared
 * with a distance of 1024 into L2 only, this is 8% faster with weights in L3 and 30% to 70% faster from
 * memory. Without the far prefetch it would be 3% faster from L3 and 20% slower from memory. Zen 4 uses no
 * prefetch: without it, a model in L3 decodes 14% faster, and one in memory equally fast. */
#define PACKED_NEAR 4096
#define PACKED_FAR  16384

#if defined FB_ISA_i8mm
/* part_sums for several rows. SMMLA adds the products of 2 outputs and 2 rows, 8 columns each, to 4 sums.
 * Words of two neighbouring quads are zipped: a vector then has 8 columns of 2 outputs. The last of an odd
 * number of rows is its own partner. */
FB_INLINE void part_sums_by_two(const quant_type *t, const uint8_t *low, const fb_q8 *x, int64_t ldx, int ms,
                                int from, int to, vi *whole) {
    int32x4_t dot[PACKED_M / 2][2]; /* [rows][outputs] */
    for (int m = 0; m < ms; m += 2) dot[m / 2][0] = dot[m / 2][1] = vdupq_n_s32(0);
    for (int i = 0; i < to - from; i += 2) {
        /* Quads j and j + 4 share words, where both are in the part. */
        const int q = from + (to - from == 8 ? i / 4 * 2 + i / 2 % 2 * 4 : i);
        int32x4_t a = (int32x4_t)weight_quad(t, low, q), b = (int32x4_t)weight_quad(t, low, q + 1);
        int8x16_t w[2] = {(int8x16_t)vzip1q_s32(a, b), (int8x16_t)vzip2q_s32(a, b)};
        for (int m = 0; m < ms; m += 2) {
            const fb_q8 *first = x + m * ldx, *second = m + 1 < ms ? first + ldx : first;
            int8x16_t rows = vcombine_s8(vld1_s8(first->q + 4 * q), vld1_s8(second->q + 4 * q));
            dot[m / 2][0] = vmmlaq_s32(dot[m / 2][0], w[0], rows);
            dot[m / 2][1] = vmmlaq_s32(dot[m / 2][1], w[1], rows);
        }
    }
    for (int m = 0; m < ms; m += 2) {
        whole[m] = (vi)vuzp1q_s32(dot[m / 2][0], dot[m / 2][1]);
        if (m + 1 < ms) whole[m + 1] = (vi)vuzp2q_s32(dot[m / 2][0], dot[m / 2][1]);
    }
}
#endif

/* The sums of quads [from, to) of 32 columns for VW outputs and `ms` rows. */
FB_INLINE void part_sums(const quant_type *t, const uint8_t *low, const fb_q8 *x, int64_t ldx, int ms,
                         int from, int to, vi *whole) {
#if defined FB_ISA_i8mm
    if (ms > 1) {
        part_sums_by_two(t, low, x, ldx, ms, from, to, whole);
        return;
    }
#endif
    const bool bytes = t->low == 8 || t->codes;
    const int limit = bytes ? 8 : QUAD_LIMIT(t->low + t->high), step = to - from == 8 ? 4 : 1;
    vi dot[PACKED_M];
    for (int m = 0; m < ms; m++) {
        dot[m] = vi_set1(0);
        whole[m] = vi_set1(0);
    }
    for (int i = 0; i < to - from; i++) {
        /* Quads j and j + 4 share words, where both are in the part. */
        const int q = from + (step == 4 ? i / 2 + i % 2 * 4 : i);
        vi w = weight_quad(t, low, q);
        for (int m = 0; m < ms; m++) {
            vi word = vi_word(x[m * ldx].q + 4 * q);
            dot[m] = bytes ? bytes_add(dot[m], w, word) : quad_add(dot[m], w, word);
        }
        if (bytes || (i + 1) % limit || i + 1 == to - from) continue;
        for (int m = 0; m < ms; m++) whole[m] += quad_end(dot[m]), dot[m] = vi_set1(0);
    }
    for (int m = 0; m < ms; m++) whole[m] += bytes ? dot[m] : quad_end(dot[m]);
}

/* Adds 32 columns: acc[m] of `ms` rows and VW outputs. halves: of the first row's block, `ldh` apart. */
FB_INLINE void add_columns(const quant_type *t, const uint8_t *low, const part_scales *s, const fb_q8 *x,
                           const int32_t *halves, int64_t ldx, int64_t ldh, int ms, vf *acc) {
    const int parts = 32 / t->part, offset = t->low == 8 || t->codes ? BYTES_OFFSET : t->offset;
    for (int h = 0; h < parts; h++) {
        vi whole[PACKED_M];
        part_sums(t, low, x, ldx, ms, 8 / parts * h, 8 / parts * (h + 1), whole);
        for (int m = 0; m < ms; m++) {
            const fb_q8 *q = &x[m * ldx];
            int32_t first = parts == 2 ? halves[m * ldh] : 0;
            vi sum = vi_set1(parts == 1 ? q->sum : h == 0 ? first : q->sum - first);
            if (offset) whole[m] -= offset * sum;
            acc[m] = vf_fma(__builtin_convertvector(whole[m], vf), s->scale[h] * q->scale, acc[m]);
            if (t->minimums) {
                vf sums = __builtin_convertvector(sum, vf) * q->scale;
                acc[m] = vf_fma(t->scales ? -s->minimum[h] : s->minimum[h], sums, acc[m]);
            }
        }
    }
}

/* What a tile prefetches while it runs through the blocks of a group. One row: the two distances. Several
 * rows: the next group into L2. There are `share` tiles on the same weights; each fetches one cache line of
 * `share`, beginning with line `first`, so that reading from memory takes as long as multiplying. On two
 * cores of a Zen 5 this made 16 rows 1.3 (Q4_0) to 2.1 times (Q8_0) as fast. */
typedef struct packed_ahead {
    bool distances;
    int64_t first, share;
} packed_ahead;

FB_INLINE void prefetch_columns(const quant_type *t, const uint8_t *w, const uint8_t *next, int ms,
                                packed_ahead ahead) {
    for (int i = 0; ahead.distances && i < pack_columns_bytes(t); i += 64) {
        __builtin_prefetch(w + PACKED_NEAR + i, 0, 3);
        __builtin_prefetch(w + PACKED_FAR + i, 0, 2);
    }
    for (int64_t i = 64 * ahead.first; ms > 1 && i < pack_columns_bytes(t); i += 64 * ahead.share)
        __builtin_prefetch(next + i, 0, 2);
}

/* sum[m * ldsum + n] for `ms` rows of x (`ldx` blocks apart) and vectors `first` … of a group's 16 outputs.
 */
FB_INLINE void packed_tile(const quant_type *t, const uint8_t *w, const fb_q8 *x, const int32_t *halves,
                           int64_t ldx, int64_t cols, const int ms, int first, int parts, packed_ahead ahead,
                           float *sum, int64_t ldsum) {
    const int64_t group = cols / t->columns * pack_block_bytes(t);
    const int parts_of_32 = 32 / t->part;
    vf acc[PARTS][PACKED_M];
    for (int p = 0; p < parts; p++)
        for (int m = 0; m < ms; m++) acc[p][m] = vf_set1(0);
    for (int64_t k = 0; k < cols; k += t->columns) {
        vf d[PARTS], least[PARTS];
        for (int p = 0; p < parts; p++) {
            d[p] = block_scale(t, w + (first + p) * VW * 2);
            least[p] = t->minimums ? vf_load_f16(w + 2 * FB_PACK_ROWS + (first + p) * VW * 2) : d[p];
        }
        w += pack_head_bytes(t);
        for (int c = 0; c < t->columns / 32;
             c++, x++, halves += parts_of_32 == 2, w += pack_columns_bytes(t)) {
            prefetch_columns(t, w, w + group, ms, ahead);
            for (int p = 0; p < parts; p++) {
                part_scales s = scales_of(t, d[p], least[p], w + (first + p) * VW);
                const uint8_t *low = w + pack_scale_bytes(t) + pack_minimum_bytes(t) + (first + p) * VW * 4;
                add_columns(t, low, &s, x, halves, ldx, cols / 32, ms, acc[p]);
            }
        }
    }
    for (int p = 0; p < parts; p++)
        for (int m = 0; m < ms; m++) vf_put(FB_F32, sum + m * ldsum, (first + p) * VW, acc[p][m]);
}

/* All 16 outputs of a group. A single row uses all vectors at once, so that the weights are read once. More
 * rows need too many registers for that; they take the vectors one by one. */
FB_VARIANTS void packed_rows(fb_dtype wt, const uint8_t *w, const fb_q8 *x, const int32_t *halves,
                             int64_t ldx, int64_t cols, const int ms, packed_ahead ahead, float *sum,
                             int64_t ldsum) {
    const quant_type *t = &quant_types[wt];
    if (ms > 1) {
        for (int p = 0; p < PARTS; p++)
            packed_tile(t, w, x, halves, ldx, cols, ms, p, 1,
                        (packed_ahead){false, ahead.first * PARTS + p, ahead.share * PARTS}, sum, ldsum);
    } else if (ahead.distances) {
        packed_tile(t, w, x, halves, ldx, cols, 1, 0, PARTS, (packed_ahead){.distances = true}, sum, ldsum);
    } else {
        packed_tile(t, w, x, halves, ldx, cols, 1, 0, PARTS, (packed_ahead){.distances = false}, sum, ldsum);
    }
}

FB_INLINE void packed_groups(fb_dtype wt, const uint8_t *w, const fb_q8 *x, const int32_t *halves,
                             int64_t ldx, int64_t cols, int64_t rows, int64_t groups, float *sum,
                             int64_t ldsum) {
    const bool zen = on_zen();
    const int64_t bytes = cols / quant_types[wt].columns * pack_block_bytes(&quant_types[wt]);
    /* Tiles of nearly the same number of rows: each reads all weights, so a small one costs as much. */
    const int64_t share = (rows + PACKED_M - 1) / PACKED_M, most = (rows + share - 1) / share;
    for (int64_t g = 0; g < groups; g++, w += bytes, sum += FB_PACK_ROWS)
        for (int64_t m = 0; m < rows; m += most) {
            packed_ahead ahead = {!zen, m / most, share};
            const int32_t *half = packed_wants_halves(wt) ? halves + m * (cols / 32) : NULL;
#define ROWS(count)                                                                                          \
    case count:                                                                                              \
        packed_rows(wt, w, x + m * ldx, half, ldx, cols, count <= PACKED_M ? count : 1, ahead,               \
                    sum + m * ldsum, ldsum);                                                                 \
        break;
            switch (rows - m < most ? rows - m : most) {
                ROWS(1)
                ROWS(2)
                ROWS(3)
                ROWS(4)
#if PACKED_M > 4
                ROWS(5)
                ROWS(6)
                ROWS(7)
                ROWS(8)
#endif
            }
#undef ROWS
        }
}

/* packed_sums of one type. */
#define PACKED_SUMS(TYPE, name)                                                                              \
    void FB_KERNEL(packed_##name)(const uint8_t *w, const fb_q8 *x, const int32_t *halves, int64_t ldx,      \
                                  int64_t cols, int64_t rows, int64_t groups, float *sum, int64_t ldsum) {   \
        packed_groups(TYPE, w, x, halves, ldx, cols, rows, groups, sum, ldsum);                              \
    }

#endif
