/* One vector of VW floats, for every instruction set. Arithmetic uses the compiler's vector extension. This
 * file adds the rest: widening and narrowing of 16-bit floats, fused multiply-add, rounding. vf_get and
 * vf_put read and write elements of any dtype. Kernels call them with a constant dtype, so that the choice is
 * made at compile time. Pointers need no alignment. */
#ifndef FB_BACKEND_CPU_SIMD_H
#define FB_BACKEND_CPU_SIMD_H

#include <math.h>

#include "base/dtype.h"

#if defined FB_ISA_avx2 || defined FB_ISA_avx512
#include <immintrin.h>
#elif defined FB_ISA_neon
#include <arm_neon.h>
#endif

#define FB_INLINE static inline __attribute__((always_inline, unused))

/* For functions whose callers pass constants that choose the code. Each set of constants is a variant. */
#ifdef FB_FEW_VARIANTS
#define FB_VARIANTS static inline __attribute__((unused))
#else
#define FB_VARIANTS FB_INLINE
#endif

#if defined FB_ISA_avx512
#define VW 16
#elif defined FB_ISA_avx2
#define VW 8
#else
#define VW 4
#endif

/* A cast between vf and vi keeps the bits. A comparison gives a vi of 0 and -1. */
typedef float vf __attribute__((vector_size(VW * 4)));
typedef int32_t vi __attribute__((vector_size(VW * 4)));
typedef uint32_t vu __attribute__((vector_size(VW * 4)));

FB_INLINE vf vf_set1(float x) { return x - (vf){0}; }

FB_INLINE vf vf_load_f32(const void *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

FB_INLINE vf vf_load_bf16(const void *p) {
    uint16_t h[VW];
    memcpy(h, p, sizeof h);
    vi v;
    for (int i = 0; i < VW; i++) v[i] = (int32_t)((uint32_t)h[i] << 16);
    return (vf)v;
}

FB_INLINE vf vf_select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* vf_max and vf_min return the second operand if either is NaN. So vf_max(limit, x) keeps a NaN of x. */

#if defined FB_ISA_avx512

FB_INLINE vf vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
FB_INLINE void vf_store_f16(void *p, vf v) {
    _mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FB_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
FB_INLINE vf vf_round(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
FB_INLINE vi vf_to_int(vf x) { return (vi)_mm512_cvtps_epi32(x); }
FB_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
FB_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
FB_INLINE bool vf_has_nan(vf x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
/* Whether some element is at least y. */
FB_INLINE bool vf_reaches(vf x, float y) { return _mm512_cmp_ps_mask(x, vf_set1(y), _CMP_GE_OQ) != 0; }

#elif defined FB_ISA_avx2

FB_INLINE vf vf_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
FB_INLINE void vf_store_f16(void *p, vf v) {
    _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FB_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
FB_INLINE vf vf_round(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
FB_INLINE vi vf_to_int(vf x) { return (vi)_mm256_cvtps_epi32(x); }
FB_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
FB_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
FB_INLINE bool vf_has_nan(vf x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }
FB_INLINE bool vf_reaches(vf x, float y) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, vf_set1(y), _CMP_GE_OQ)) != 0;
}

#elif defined FB_ISA_neon

/* Comparisons are those of IEEE 754, as on other machines: NEON's own maximum and minimum are NaN if either
 * operand is. */
FB_INLINE vf vf_load_f16(const void *p) {
    float16x4_t h;
    memcpy(&h, p, sizeof h);
    return (vf)vcvt_f32_f16(h);
}
FB_INLINE void vf_store_f16(void *p, vf v) {
    float16x4_t h = vcvt_f16_f32((float32x4_t)v);
    memcpy(p, &h, sizeof h);
}
FB_INLINE vf vf_fma(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
FB_INLINE vf vf_round(vf x) { return (vf)vrndnq_f32((float32x4_t)x); }
FB_INLINE vi vf_to_int(vf x) { return (vi)vcvtnq_s32_f32((float32x4_t)x); }
FB_INLINE vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
FB_INLINE vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); }
FB_INLINE bool vf_has_nan(vf x) { return vminvq_u32((uint32x4_t)(x == x)) == 0; }
FB_INLINE bool vf_reaches(vf x, float y) { return vmaxvq_u32((uint32x4_t)(x >= y)) != 0; }

#else

FB_INLINE vf vf_load_f16(const void *p) {
    uint16_t h[VW];
    memcpy(h, p, sizeof h);
    vf v;
    for (int i = 0; i < VW; i++) v[i] = fb_f16_to_f32(h[i]);
    return v;
}
FB_INLINE void vf_store_f16(void *p, vf v) {
    uint16_t h[VW];
    for (int i = 0; i < VW; i++) h[i] = fb_f32_to_f16(v[i]);
    memcpy(p, h, sizeof h);
}
FB_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
/* Rounds to the nearest integer, for |x| < 2^22: a sum with 1.5 * 2^23 has no bits for a fraction. */
FB_INLINE vf vf_round(vf x) { return (x + 0x1.8p23f) - 0x1.8p23f; }
FB_INLINE vi vf_to_int(vf x) { return __builtin_convertvector(x, vi); }
FB_INLINE vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
FB_INLINE vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); }
FB_INLINE bool vf_has_nan(vf x) { return x[0] != x[0] || x[1] != x[1] || x[2] != x[2] || x[3] != x[3]; }
FB_INLINE bool vf_reaches(vf x, float y) { return x[0] >= y || x[1] >= y || x[2] >= y || x[3] >= y; }

#endif

/* Whether the processor is a Zen 4, where the figures in these files were measured. Zen 3 is of the same
 * family and is treated alike; it has no AVX-512. */
FB_INLINE bool on_zen(void) {
#if VW >= 8
    return __builtin_cpu_is("amdfam19h");
#else
    return false;
#endif
}

/* Rounds to the nearest bf16, ties to even, as fb_f32_to_bf16 does. The lower 16 bits are 0. */
FB_INLINE vf vf_rounded_bf16(vf v) {
    vu bits = (vu)v, nearest = bits + 0x7fff + ((bits >> 16) & 1);
    return vf_select(v != v, (vf)((bits | 0x400000) & 0xffff0000), (vf)(nearest & 0xffff0000));
}
FB_INLINE void vf_store_bf16(void *p, vf v) {
    vu bits = (vu)vf_rounded_bf16(v) >> 16;
    uint16_t h[VW];
    for (int i = 0; i < VW; i++) h[i] = (uint16_t)bits[i];
    memcpy(p, h, sizeof h);
}

/* The first n elements of v, and `fill` in the others. */
FB_INLINE vf vf_first(vf v, int64_t n, float fill) {
    vi index;
    for (int i = 0; i < VW; i++) index[i] = i;
    return vf_select(index < (int32_t)n, v, vf_set1(fill));
}

/* The sum of the elements: the upper half is added to the lower half until one is left. Each width has one
 * fixed order. */
FB_INLINE float vf_sum(vf v) {
#if defined FB_ISA_avx512
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#elif defined FB_ISA_avx2
    __m256 h = v;
#endif
#if VW >= 8
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

/* The largest element; NaN if one is. */
FB_INLINE float vf_max_of(vf v) {
    if (vf_has_nan(v)) return NAN;
#if defined FB_ISA_avx512
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#elif defined FB_ISA_avx2
    __m256 h = v;
#endif
#if VW >= 8
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
#else
    float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
#endif
}

/* ---- elements of any dtype ---- */

FB_INLINE const uint8_t *vf_address(fb_dtype t, const void *p, int64_t i) {
    return (const uint8_t *)p + i * (t == FB_F32 ? 4 : 2);
}

FB_INLINE vf vf_get(fb_dtype t, const void *p, int64_t i) {
    const uint8_t *at = vf_address(t, p, i);
    return t == FB_F32 ? vf_load_f32(at) : t == FB_F16 ? vf_load_f16(at) : vf_load_bf16(at);
}

FB_INLINE void vf_put(fb_dtype t, void *p, int64_t i, vf v) {
    void *at = (void *)(uintptr_t)vf_address(t, p, i);
    if (t == FB_F32)
        memcpy(at, &v, sizeof v);
    else if (t == FB_F16)
        vf_store_f16(at, v);
    else
        vf_store_bf16(at, v);
}

/* Elements i … of an array that ends at n. Elements beyond it read as `fill` and are not written. */
FB_INLINE vf vf_get_n(fb_dtype t, const void *p, int64_t i, int64_t n, float fill) {
    if (i + VW <= n) return vf_get(t, p, i);
#if defined FB_ISA_avx512
    __mmask16 mask = (__mmask16)((1u << (n - i)) - 1);
    if (t == FB_F32) return _mm512_mask_loadu_ps(vf_set1(fill), mask, (const float *)p + i);
    __m256i h = _mm256_maskz_loadu_epi16(mask, vf_address(t, p, i));
    return _mm512_mask_mov_ps(vf_set1(fill), mask, vf_get(t, &h, 0));
#else
    uint8_t raw[VW * 4] = {0};
    memcpy(raw, vf_address(t, p, i), (size_t)(n - i) * (t == FB_F32 ? 4 : 2));
    vf v = vf_get(t, raw, 0);
    for (int j = 0; j < VW; j++) v[j] = i + j < n ? v[j] : fill;
    return v;
#endif
}

FB_INLINE void vf_put_n(fb_dtype t, void *p, int64_t i, int64_t n, vf v) {
    if (i + VW <= n) {
        vf_put(t, p, i, v);
        return;
    }
#if defined FB_ISA_avx512
    if (t == FB_F32) {
        _mm512_mask_storeu_ps((float *)p + i, (__mmask16)((1u << (n - i)) - 1), v);
        return;
    }
#endif
    uint8_t raw[VW * 4];
    vf_put(t, raw, 0, v);
    memcpy((void *)(uintptr_t)vf_address(t, p, i), raw, (size_t)(n - i) * (t == FB_F32 ? 4 : 2));
}

/* vf_get_n for a dtype that is not a constant: for vectors read once a row, such as a norm's weights or a
 * bias. */
FB_INLINE vf vf_get_any(fb_dtype t, const void *p, int64_t i, int64_t n, float fill) {
    if (t == FB_F32) return vf_get_n(FB_F32, p, i, n, fill);
    return t == FB_F16 ? vf_get_n(FB_F16, p, i, n, fill) : vf_get_n(FB_BF16, p, i, n, fill);
}

/* The value after storing it as `t` and reading it back. */
FB_INLINE vf vf_rounded(fb_dtype t, vf v) {
    if (t == FB_F32) return v;
    if (t == FB_BF16) return vf_rounded_bf16(v);
    uint16_t raw[VW];
    vf_put(t, raw, 0, v);
    return vf_get(t, raw, 0);
}

/* Runs `statement` with T as a compile-time constant, for each dtype that vector kernels support. */
#define FB_FOR_DTYPE(dtype, T, statement)                                                                    \
    do {                                                                                                     \
        if ((dtype) == FB_F32) {                                                                             \
            const fb_dtype T = FB_F32;                                                                       \
            statement;                                                                                       \
        } else if ((dtype) == FB_F16) {                                                                      \
            const fb_dtype T = FB_F16;                                                                       \
            statement;                                                                                       \
        } else {                                                                                             \
            const fb_dtype T = FB_BF16;                                                                      \
            statement;                                                                                       \
        }                                                                                                    \
    } while (0)

/* ---- functions ---- */

/* exp(x) = 2^n * p(r) with |r| <= ln(2)/2. The polynomial was fitted for relative error (3e-9, below float's
 * own). Overflows to inf, underflows through the subnormals to 0. */
FB_INLINE vf vf_exp(vf x) {
    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.0f), x));
    vf n = vf_round(x * 0x1.715476p+0f);
    /* ln(2) in two parts. The first has 12 bits, so that n times it is exact. */
    vf r = vf_fma(n, vf_set1(-0x1.62ep-1f), x);
    r = vf_fma(n, vf_set1(-0x1.0bfbe8p-15f), r);
    vf p = vf_set1(0.001381453884726425f);
    p = vf_fma(p, r, vf_set1(0.008368745227770476f));
    p = vf_fma(p, r, vf_set1(0.041668390811332764f));
    p = vf_fma(p, r, vf_set1(0.16666520397763646f));
    p = vf_fma(p, r, vf_set1(0.499999934319908f));
    p = vf_fma(p * r, r, r) + 1.0f;
#if defined FB_ISA_avx512
    return _mm512_scalef_ps(p, n);
#else
    /* 2^n as two factors, because n ranges from -150 to 129. */
    vi k = vf_to_int(n), half = k >> 1;
    vf a = (vf)((half + 127) << 23), b = (vf)((k - half + 127) << 23);
    return p * a * b;
#endif
}

/* x / (1 + exp(-y)): silu for y = x, the tanh form of gelu for y = 2 sqrt(2/pi) (x + 0.044715 x^3). */
FB_INLINE vf vf_gate(vf x, vf y) { return x / (1.0f + vf_exp(-y)); }

FB_INLINE vf vf_silu(vf x) { return vf_gate(x, x); }

/* Below 0.3 by its series, of which the first term left out is below 2e-9: 1 - 2 / (1 + exp(2 a)) would lose
 * the digits there. */
FB_INLINE vf vf_tanh(vf x) {
    vf a = vf_max(x, -x), u = x * x;
    vf p = vf_set1(-1382.0f / 155925);
    p = vf_fma(p, u, vf_set1(62.0f / 2835));
    p = vf_fma(p, u, vf_set1(-17.0f / 315));
    p = vf_fma(p, u, vf_set1(2.0f / 15));
    p = vf_fma(p, u, vf_set1(-1.0f / 3));
    vf near = vf_fma(p * u, x, x);
    vf far = 1 - 2 / (1 + vf_exp(a + a));
    return vf_select(a < 0.3f, near, vf_select(x < 0, -far, far));
}

FB_INLINE vf vf_softcap(vf x, float cap) { return vf_tanh(x / cap) * cap; }

FB_INLINE vf vf_gelu_tanh(vf x) { return vf_gate(x, 1.5957691216057308f * (x + 0.044715f * x * x * x)); }

/* x * Phi(x), with a = |x|. Below 1, Phi(x) = 1/2 + x * p(x^2). Above, Phi(-a) = exp(-a^2/2) * q(1 / (1 +
 * 0.35 a)), where q has no constant term, up to a = 14.5, where exp has underflowed. Both polynomials were
 * fitted to an error (3e-10 absolute, 3e-8 relative) below float's own. The left tail keeps its digits; 0.5 *
 * x * (1 + erf(...)) would lose them to cancellation. */
FB_INLINE vf vf_gelu(vf x) {
    vf a = vf_max(x, -x), u = x * x;
    vf p = vf_set1(-7.664679287699983e-06f);
    p = vf_fma(p, u, vf_set1(0.00011351265129633248f));
    p = vf_fma(p, u, vf_set1(-0.0011863530380651355f));
    p = vf_fma(p, u, vf_set1(0.009973331354558468f));
    p = vf_fma(p, u, vf_set1(-0.06649035960435867f));
    p = vf_fma(p, u, vf_set1(0.3989422917366028f));
    vf middle = vf_fma(p, x, vf_set1(0.5f));
    vf t = 1.0f / (1.0f + 0.35f * a);
    vf q = vf_set1(-0.029158029705286026f);
    q = vf_fma(q, t, vf_set1(0.1440316140651703f));
    q = vf_fma(q, t, vf_set1(-0.25584039092063904f));
    q = vf_fma(q, t, vf_set1(0.15932124853134155f));
    q = vf_fma(q, t, vf_set1(-0.023213393986225128f));
    q = vf_fma(q, t, vf_set1(0.10555292665958405f));
    q = vf_fma(q, t, vf_set1(0.11982118338346481f));
    q = vf_fma(q, t, vf_set1(0.1398635357618332f));
    q = vf_fma(q, t, vf_set1(0.139621302485466f));
    vf tail = vf_exp(-0.5f * a * a) * (q * t); /* Phi(-a) */
    vf outer = vf_select(x > 0.0f, 1.0f - tail, tail);
    return x * vf_select(a < 1.0f, middle, outer);
}

#endif
