/* Running sums of products, one vector at a time: kept whole, or in halves where that is faster. Both give
 * the same bits. */
#ifndef FB_BACKEND_CPU_VDOT_H
#define FB_BACKEND_CPU_VDOT_H

#include "backend/cpu/simd.h"

/* VW running sums. With `split` they are kept in `low` and `high`. */
typedef struct vdot {
    vf whole;
#if defined FB_ISA_avx512
    __m256 low, high;
#endif
} vdot;

/* Zen 4 widens 16 half floats from memory and multiplies them in 1.9 cycles; two times 8 take 1.1 cycles.
 * Intel's cores lose 4% with halves. */
FB_INLINE bool vdot_splits(fb_dtype t, const bool zen) {
#if defined FB_ISA_avx512
    return zen && t == FB_F16;
#else
    (void)zen;
    (void)t;
    return false;
#endif
}

/* s + w * x, of VW elements each. */
FB_INLINE vdot vdot_add(fb_dtype t, const bool split, vdot s, const void *w, const float *x) {
#if defined FB_ISA_avx512
    if (split) {
        const __m128i *h = w;
        s.low = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_loadu_ps(x), s.low);
        s.high = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm_loadu_si128(h + 1)), _mm256_loadu_ps(x + 8), s.high);
        return s;
    }
#endif
    (void)split;
    s.whole = vf_fma(vf_get(t, w, 0), vf_load_f32(x), s.whole);
    return s;
}

/* The same for elements i … of arrays that end at n. */
FB_INLINE vdot vdot_add_n(fb_dtype t, const bool split, vdot s, const void *w, const float *x, int64_t i,
                          int64_t n) {
    vf a = vf_get_n(t, w, i, n, 0), b = vf_get_n(FB_F32, x, i, n, 0);
#if defined FB_ISA_avx512
    if (split) {
        s.low = _mm256_fmadd_ps(_mm512_castps512_ps256(a), _mm512_castps512_ps256(b), s.low);
        s.high = _mm256_fmadd_ps(_mm512_extractf32x8_ps(a, 1), _mm512_extractf32x8_ps(b, 1), s.high);
        return s;
    }
#endif
    (void)split;
    s.whole = vf_fma(a, b, s.whole);
    return s;
}

/* s + w * x for VW elements w and one x. */
FB_INLINE vdot vdot_add_scaled(fb_dtype t, const bool split, vdot s, const void *w, float x) {
#if defined FB_ISA_avx512
    if (split) {
        const __m128i *h = w;
        __m256 y = _mm256_set1_ps(x);
        s.low = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm_loadu_si128(h)), y, s.low);
        s.high = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm_loadu_si128(h + 1)), y, s.high);
        return s;
    }
#endif
    (void)split;
    s.whole = vf_fma(vf_get(t, w, 0), vf_set1(x), s.whole);
    return s;
}

FB_INLINE vdot vdot_of(const bool split, vf v) {
    vdot s = {.whole = v};
#if defined FB_ISA_avx512
    if (split) s.low = _mm512_castps512_ps256(v), s.high = _mm512_extractf32x8_ps(v, 1);
#endif
    (void)split;
    return s;
}

FB_INLINE vf vdot_whole(const bool split, vdot s) {
#if defined FB_ISA_avx512
    if (split) return _mm512_insertf32x8(_mm512_castps256_ps512(s.low), s.high, 1);
#endif
    (void)split;
    return s.whole;
}

/* The sum of all elements: vf_sum of the whole vector. */
FB_INLINE float vdot_sum(const bool split, vdot s) { return vf_sum(vdot_whole(split, s)); }

#if VW >= 8
/* The first addition of vf_sum: halves are added until 8 elements are left. */
FB_INLINE __m256 vdot_eight(const bool split, vdot s) {
#if defined FB_ISA_avx512
    if (split) return _mm256_add_ps(s.low, s.high);
    return _mm256_add_ps(_mm512_castps512_ps256(s.whole), _mm512_extractf32x8_ps(s.whole, 1));
#else
    (void)split;
    return s.whole;
#endif
}
#endif

/* vdot_sum of four vectors at once, with the additions in the same order. */
FB_INLINE void vdot_sum_four(const bool split, const vdot *s, float *sum) {
#if VW >= 8
    __m256 a = vdot_eight(split, s[0]), b = vdot_eight(split, s[1]), c = vdot_eight(split, s[2]),
           d = vdot_eight(split, s[3]);
    __m256 ab = _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
    __m256 cd = _mm256_permute2f128_ps(c, d, 0x20) + _mm256_permute2f128_ps(c, d, 0x31);
    __m256 q = _mm256_shuffle_ps(ab, cd, 0x44) + _mm256_shuffle_ps(ab, cd, 0xee);
    q = _mm256_shuffle_ps(q, q, 0x88) + _mm256_shuffle_ps(q, q, 0xdd);
    _mm_storeu_ps(sum, _mm_unpacklo_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1)));
#else
    for (int n = 0; n < 4; n++) sum[n] = vdot_sum(split, s[n]);
#endif
}

#endif
