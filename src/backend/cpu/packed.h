/* Packed weights (base/pack.h) times quantised rows (fb_q8 of base/quant.h), with integer products. A part of
 * 16 or 32 columns gives an integer, which is exact in any order. It is multiplied with the scales of the
 * part and of the row's block and added in the order of the parts, with one fused multiply-add; a minimum
 * adds another one. So the bits depend neither on the tile nor on how an instruction set multiplies bytes. */
#ifndef FB_BACKEND_CPU_PACKED_H
#define FB_BACKEND_CPU_PACKED_H

#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"
#include "base/pack_blocks.h"

/* An fb_packed_sums (kernel.h) for each type. */
#define PACKED_TYPES(X)                                                                                      \
    X(FB_Q8_0, q8_0)                                                                                         \
    X(FB_Q4_0, q4_0)                                                                                         \
    X(FB_Q4_1, q4_1)                                                                                         \
    X(FB_Q5_0, q5_0)                                                                                         \
    X(FB_Q5_1, q5_1)                                                                                         \
    X(FB_Q2_K, q2_k)                                                                                         \
    X(FB_Q3_K, q3_k)                                                                                         \
    X(FB_Q4_K, q4_k)                                                                                         \
    X(FB_Q5_K, q5_k)                                                                                         \
    X(FB_Q6_K, q6_k)                                                                                         \
    X(FB_IQ4_NL, iq4_nl)                                                                                     \
    X(FB_IQ4_XS, iq4_xs)                                                                                     \
    X(FB_MXFP4, mxfp4)
#define X(TYPE, name)                                                                                        \
    void FB_KERNEL(packed_##name)(const uint8_t *w, const fb_q8 *x, const int32_t *halves, int64_t ldx,      \
                                  int64_t cols, int64_t rows, int64_t groups, float *sum, int64_t ldsum);
PACKED_TYPES(X)
#undef X
static inline fb_packed_sums packed_sums(const fb_worker *worker, fb_dtype dtype, int64_t rows) {
    static const fb_packed_sums table[FB_DTYPE_COUNT] = {
#define X(TYPE, name) [TYPE] = FB_KERNEL(packed_##name),
        PACKED_TYPES(X)
#undef X
    };
    return worker->many && rows >= worker->many_rows ? worker->many[dtype] : table[dtype];
}

/* Types whose parts have 16 columns need the sum of the first half of each block of x. */
static inline bool packed_wants_halves(fb_dtype dtype) { return quant_types[dtype].part == 16; }
static inline void packed_halves(const fb_q8 *x, int64_t ldx, int64_t cols, int64_t rows, int32_t *halves) {
    for (int64_t m = 0; m < rows; m++)
        for (int64_t b = 0; b < cols / 32; b++) {
            int32_t sum = 0;
            for (int i = 0; i < 16; i++) sum += x[m * ldx + b].q[i];
            *halves++ = sum;
        }
}

/* Where row n of a packed matrix begins, if n is the first of a group. */
static inline const uint8_t *packed_at(fb_dtype dtype, const void *data, int64_t cols, int64_t n) {
    return (const uint8_t *)data + fb_pack_bytes(dtype, n, cols);
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
