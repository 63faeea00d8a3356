/* Normalising one row: shared by the norms and by the kernels that a norm is fused into, so that both give
 * the same bits. The variance is taken of the differences from the mean, in a second pass, so that a large
 * mean costs no digits. */
#ifndef FB_BACKEND_CPU_NORM_H
#define FB_BACKEND_CPU_NORM_H

#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

typedef struct row_stats {
    float mean, scale;
} row_stats;

/* The mean of (x - center)^2. */
FB_INLINE float mean_square(fb_dtype t, const void *x, int64_t n, float center) {
    vf sum = vf_set1(0);
    for (int64_t i = 0; i < n; i += VW) {
        vf d = vf_get_n(t, x, i, n, center) - center;
        sum = vf_fma(d, d, sum);
    }
    return vf_sum(sum) / (float)n;
}

FB_INLINE row_stats stats_of(fb_op_kind norm, fb_dtype t, const void *x, int64_t n, float eps) {
    float mean = 0;
    if (norm == FB_OP_LAYERNORM) {
        vf sum = vf_set1(0);
        for (int64_t i = 0; i < n; i += VW) sum += vf_get_n(t, x, i, n, 0);
        mean = vf_sum(sum) / (float)n;
    }
    return (row_stats){mean, 1.0f / sqrtf(mean_square(t, x, n, mean) + eps)};
}

/* The normalised row, rounded to `t` as a stored one would be, into `y` of dtype `to`. */
FB_INLINE void normalise(fb_op_kind norm, fb_dtype t, fb_dtype to, const void *x, row_stats stats,
                         const fb_weight *w, const fb_weight *b, void *y) {
    int64_t n = w->cols;
    for (int64_t i = 0; i < n; i += VW) {
        vf d = (vf_get_n(t, x, i, n, 0) - stats.mean) * stats.scale;
        vf weight = vf_get_any(w->dtype, w->data, i, n, 0);
        vf v =
            norm == FB_OP_LAYERNORM ? vf_fma(d, weight, vf_get_any(b->dtype, b->data, i, n, 0)) : d * weight;
        vf_put_n(to, y, i, n, vf_rounded(t, v));
    }
}

#endif
