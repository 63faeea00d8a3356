/* Normalises one row. The norms and the kernels with a fused norm share this code, so both give the same
 * bits. A second pass computes the variance from the differences to the mean, so that a large mean costs no
 * digits. */
#ifndef FB_BACKEND_CPU_NORM_H
#define FB_BACKEND_CPU_NORM_H

#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

typedef struct row_stats {
    float mean, scale;
} row_stats;

FB_INLINE row_stats rms_stats(fb_dtype t, const void *x, int64_t n, float eps) {
    vf squares = vf_set1(0);
    for (int64_t i = 0; i < n; i += VW) {
        vf v = vf_get_n(t, x, i, n, 0);
        squares = vf_fma(v, v, squares);
    }
    return (row_stats){0, 1.0f / sqrtf(vf_sum(squares) / (float)n + eps)};
}

/* The mean of a long row's float32 sum is off by some ulps. If all elements are nearly the same, that is more
 * than their deviation. So the second pass also measures by how much the first mean is wrong. */
FB_INLINE row_stats layer_stats(fb_dtype t, const void *x, int64_t n, float eps) {
    vf sum = vf_set1(0), off = vf_set1(0), squares = vf_set1(0);
    for (int64_t i = 0; i < n; i += VW) sum += vf_get_n(t, x, i, n, 0);
    float center = vf_sum(sum) / (float)n;
    for (int64_t i = 0; i < n; i += VW) {
        vf d = vf_get_n(t, x, i, n, center) - center;
        off += d;
        squares = vf_fma(d, d, squares);
    }
    float shift = vf_sum(off) / (float)n, variance = vf_sum(squares) / (float)n - shift * shift;
    return (row_stats){center + shift, 1.0f / sqrtf((variance > 0 ? variance : 0) + eps)};
}

FB_INLINE row_stats stats_of(fb_op_kind norm, fb_dtype t, const void *x, int64_t n, float eps) {
    return norm == FB_OP_LAYERNORM ? layer_stats(t, x, n, eps) : rms_stats(t, x, n, eps);
}

/* Elements i … of the normalised row, rounded to `t` as if they had been stored. */
FB_INLINE vf normalised(fb_op_kind norm, fb_dtype t, const void *x, int64_t i, row_stats stats,
                        const fb_weight *w, const fb_weight *b) {
    int64_t n = w->cols;
    vf d = (vf_get_n(t, x, i, n, 0) - stats.mean) * stats.scale;
    vf weight = vf_get_any(w->dtype, w->data, i, n, 0);
    bool biased = norm == FB_OP_LAYERNORM && b->data;
    return vf_rounded(t, biased ? vf_fma(d, weight, vf_get_any(b->dtype, b->data, i, n, 0)) : d * weight);
}

/* Writes the normalised row to `y` of dtype `to`. */
FB_INLINE void normalise(fb_op_kind norm, fb_dtype t, fb_dtype to, const void *x, row_stats stats,
                         const fb_weight *w, const fb_weight *b, void *y) {
    for (int64_t i = 0; i < w->cols; i += VW)
        vf_put_n(to, y, i, w->cols, normalised(norm, t, x, i, stats, w, b));
}

#endif
