/* Packed weights (base/pack.h) times quantised rows (fb_q8 of base/quant.h), with integer products. Output n
 * of a row is the sum, over the blocks of 32 in order, of integer * (scale of the weight's block * scale of
 * the row's block). The integer is exact in any order, and the rest is one fused multiply-add a block. So the
 * bits depend neither on the tile nor on how an instruction set multiplies bytes. */
#ifndef FB_BACKEND_CPU_PACKED_H
#define FB_BACKEND_CPU_PACKED_H

#include "backend/cpu/simd.h"
#include "base/pack.h"
#include "base/quant.h"

/* Vectors in a group of 16 rows. */
#define PARTS (FB_PACK_ROWS / VW)
/* Rows of x in a tile. Each needs two accumulators (the block's integers and the float sums), besides the
 * weights' vectors. */
#if defined FB_ISA_avx512
#define PACKED_M 8
#else
#define PACKED_M 4
#endif

/* Bytes of one block of a group, as a compile-time constant. */
FB_INLINE int packed_block(fb_dtype t) { return FB_PACK_ROWS * (t == FB_Q4_0 ? 18 : 34); }

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

/* A vector element holds four bytes of a weight row and four of x. nibbles_add (0 to 15) and bytes_add add
 * the sum of the four products to `sum`; nibbles_end completes it at the end of a block. Where weights were
 * shifted to be unsigned, the offset times the sum of the row's block is subtracted afterwards: 8 for
 * nibbles, Q8_OFFSET for bytes. */
#define Q8_OFFSET 0
#if defined FB_ISA_avx512vnni
#undef Q8_OFFSET
#define Q8_OFFSET 128
FB_INLINE vi nibbles_add(vi sum, vi w, vi x) {
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
}
FB_INLINE vi nibbles_end(vi sum) { return sum; }
FB_INLINE vi bytes_add(vi sum, vi w, vi x) { return nibbles_add(sum, w ^ (vi)_mm512_set1_epi8(-128), x); }

#elif defined FB_ISA_avx512 || defined FB_ISA_avx2
/* Adjacent products of bytes are added as 16-bit integers. Sums of nibble products stay in 16 bits until the
 * block's end: 8 * 2 * 15 * 127 fits. For whole bytes, |w| is multiplied with x under w's sign: 2 * 128 * 127
 * fits, but only once. */
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
FB_INLINE vi nibbles_add(vi sum, vi w, vi x) { return add16(sum, pairs16(w, x)); }
FB_INLINE vi nibbles_end(vi sum) { return pairs32(sum); }
FB_INLINE vi bytes_add(vi sum, vi w, vi x) { return sum + pairs32(pairs16(abs8(w), signed8(x, w))); }

#else
FB_INLINE vi byte_of(vi v, int i) { return (v << (24 - 8 * i)) >> 24; }
FB_INLINE vi bytes_add(vi sum, vi w, vi x) {
    for (int i = 0; i < 4; i++) sum += byte_of(w, i) * byte_of(x, i);
    return sum;
}
FB_INLINE vi nibbles_add(vi sum, vi w, vi x) { return bytes_add(sum, w, x); }
FB_INLINE vi nibbles_end(vi sum) { return sum; }
#endif

/* Prefetch distances in bytes for one row: PACKED_NEAR into the L1 cache, PACKED_FAR into L2. Intel: compared
 * with a distance of 1024 into L2 only, this is 8% faster with weights in L3 and 30% to 70% faster from
 * memory. Without the far prefetch it would be 3% faster from L3 and 20% slower from memory. Zen 4 uses no
 * prefetch: without it, a model in L3 decodes 14% faster, and one in memory equally fast. */
#define PACKED_NEAR 4096
#define PACKED_FAR  16384

/* What a tile prefetches while it runs through the blocks of a group. One row: the two distances. Several
 * rows: the next group into L2. There are `share` tiles on the same weights; each fetches one cache line of
 * `share`, beginning with line `first`, so that reading from memory takes as long as multiplying. On two
 * cores of a Zen 5 this made 16 rows 1.3 (Q4_0) to 2.1 times (Q8_0) as fast. */
typedef struct packed_ahead {
    bool distances;
    int64_t first, share;
} packed_ahead;

/* sum[m * ldsum + n] for `ms` rows of x (`ldx` blocks apart) and vectors `first` … of a group's 16 outputs.
 */
FB_INLINE void packed_tile(fb_dtype wt, const uint8_t *w, const fb_q8 *x, int64_t ldx, int64_t blocks,
                           const int ms, int first, int parts, packed_ahead ahead, float *sum,
                           int64_t ldsum) {
    const uint8_t *next = w + blocks * packed_block(wt);
    vf acc[PACKED_M][PARTS];
    for (int m = 0; m < ms; m++)
        for (int p = 0; p < parts; p++) acc[m][p] = vf_set1(0);
    for (int64_t b = 0; b < blocks; b++, w += packed_block(wt), next += packed_block(wt)) {
        vi dot[PACKED_M][PARTS];
        for (int m = 0; m < ms; m++)
            for (int p = 0; p < parts; p++) dot[m][p] = (vi){0};
        for (int i = 0; ahead.distances && i < packed_block(wt); i += 64) {
            __builtin_prefetch(w + PACKED_NEAR + i, 0, 3);
            __builtin_prefetch(w + PACKED_FAR + i, 0, 2);
        }
        for (int64_t i = 64 * ahead.first; ms > 1 && i < packed_block(wt); i += 64 * ahead.share)
            __builtin_prefetch(next + i, 0, 2);
        for (int j = 0; j < (wt == FB_Q4_0 ? 4 : 8); j++)
            for (int p = 0; p < parts; p++) {
                vi v = vi_load(w + 32 + 64 * j + (first + p) * VW * 4);
                vi low = v & 0x0f0f0f0f, high = (v >> 4) & 0x0f0f0f0f;
                for (int m = 0; m < ms; m++) {
                    const int8_t *q = x[m * ldx + b].q + 4 * j;
                    if (wt == FB_Q4_0) {
                        dot[m][p] = nibbles_add(dot[m][p], low, vi_word(q));
                        dot[m][p] = nibbles_add(dot[m][p], high, vi_word(q + 16));
                    } else {
                        dot[m][p] = bytes_add(dot[m][p], v, vi_word(q));
                    }
                }
            }
        for (int p = 0; p < parts; p++) {
            vf scale = vf_load_f16(w + (first + p) * VW * 2);
            for (int m = 0; m < ms; m++) {
                const fb_q8 *q = &x[m * ldx + b];
                vi whole =
                    wt == FB_Q4_0 ? nibbles_end(dot[m][p]) - 8 * q->sum : dot[m][p] - Q8_OFFSET * q->sum;
                acc[m][p] = vf_fma(__builtin_convertvector(whole, vf), scale * q->scale, acc[m][p]);
            }
        }
    }
    for (int m = 0; m < ms; m++)
        for (int p = 0; p < parts; p++) vf_put(FB_F32, sum + m * ldsum, (first + p) * VW, acc[m][p]);
}

/* All 16 outputs of a group. A single row uses all vectors at once, so that the weights are read once. More
 * rows need too many registers for that; they take the vectors one by one. */
FB_VARIANTS void packed_rows(fb_dtype wt, const uint8_t *w, const fb_q8 *x, int64_t ldx, int64_t blocks,
                             const int ms, packed_ahead ahead, float *sum, int64_t ldsum) {
    if (ms > 1) {
        for (int p = 0; p < PARTS; p++)
            packed_tile(wt, w, x, ldx, blocks, ms, p, 1,
                        (packed_ahead){false, ahead.first * PARTS + p, ahead.share * PARTS}, sum, ldsum);
    } else if (ahead.distances) {
        packed_tile(wt, w, x, ldx, blocks, 1, 0, PARTS, (packed_ahead){.distances = true}, sum, ldsum);
    } else {
        packed_tile(wt, w, x, ldx, blocks, 1, 0, PARTS, (packed_ahead){.distances = false}, sum, ldsum);
    }
}

/* sum[m * ldsum + n] for `rows` rows and the 16 * `groups` outputs that start at w. */
FB_VARIANTS void packed_sums(fb_dtype wt, const uint8_t *w, const fb_q8 *x, int64_t ldx, int64_t blocks,
                             int64_t rows, int64_t groups, float *sum, int64_t ldsum) {
    const bool zen = on_zen();
    /* Tiles of nearly the same number of rows: each reads all weights, so a small one costs as much. */
    int64_t share = (rows + PACKED_M - 1) / PACKED_M, most = (rows + share - 1) / share;
    for (int64_t g = 0; g < groups; g++, w += blocks * packed_block(wt), sum += FB_PACK_ROWS)
        for (int64_t m = 0; m < rows; m += most) {
            packed_ahead ahead = {!zen, m / most, share};
#define ROWS(count)                                                                                          \
    case count:                                                                                              \
        packed_rows(wt, w, x + m * ldx, ldx, blocks, count <= PACKED_M ? count : 1, ahead, sum + m * ldsum,  \
                    ldsum);                                                                                  \
        break;
            switch (rows - m < most ? rows - m : most) {
                ROWS(1)
                ROWS(2)
                ROWS(3)
                ROWS(4)
                ROWS(5)
                ROWS(6)
                ROWS(7)
                ROWS(8)
            }
#undef ROWS
        }
}

/* ---- rows ---- */

/* Stores the low byte of each element. */
FB_INLINE void vi_store_bytes(int8_t *p, vi v) {
#if defined FB_ISA_avx512
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined FB_ISA_avx2
    __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(words, words));
#else
    for (int k = 0; k < VW; k++) p[k] = (int8_t)v[k];
#endif
}

FB_INLINE int32_t vi_sum(vi v) {
#if defined FB_ISA_avx512
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t sum = 0;
    for (int k = 0; k < VW; k++) sum += v[k];
    return sum;
#endif
}

/* Quantises one row of `n` float32. A block with a value that is not finite gets the scale NaN, so that every
 * product with it is NaN. */
FB_VARIANTS void quantize_row(const float *x, int64_t n, fb_q8 *out) {
    for (int64_t b = 0; b < n / 32; b++, x += 32, out++) {
        vf most = vf_set1(0), check = vf_set1(0);
        for (int i = 0; i < 32; i += VW) {
            vf v = vf_load_f32(x + i);
            most = vf_max(most, vf_max(v, -v));
            check += v * 0.0f;
        }
        float max = vf_max_of(most) + 0.0f; /* never -0 */
        bool finite = vf_sum(check) == 0;
        float inverse = finite && max >= FB_Q8_LEAST ? 127.0f / max : 0;
        out->scale = finite ? max / 127.0f : NAN;
        vi sum = {0};
        for (int i = 0; i < 32; i += VW) {
            vi q = vf_to_int(vf_round(finite ? vf_load_f32(x + i) * inverse : vf_set1(0)));
            sum += q;
            vi_store_bytes(out->q + i, q);
        }
        out->sum = vi_sum(sum);
    }
}

#endif
