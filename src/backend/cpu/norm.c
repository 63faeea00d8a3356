/* layernorm, rmsnorm: lanes share the rows. The variance is taken of the differences from the mean, in a
 * second pass, so that a large mean costs no digits. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

FB_INLINE float mean_of(fb_dtype t, const void *x, int64_t n) {
    vf sum = vf_set1(0);
    for (int64_t i = 0; i < n; i += VW) sum += vf_get_n(t, x, i, n, 0);
    return vf_sum(sum) / (float)n;
}

/* The mean of (x - center)^2. */
FB_INLINE float mean_square(fb_dtype t, const void *x, int64_t n, float center) {
    vf sum = vf_set1(0);
    for (int64_t i = 0; i < n; i += VW) {
        vf d = vf_get_n(t, x, i, n, center) - center;
        sum = vf_fma(d, d, sum);
    }
    return vf_sum(sum) / (float)n;
}

FB_INLINE void layernorm_row(fb_dtype t, const fb_call *call, int64_t row) {
    const fb_weight *w = &call->weights[0], *b = &call->weights[1];
    int64_t n = w->cols;
    const void *x = fb_view_at(&call->in[0], row, 0);
    void *y = fb_view_at(&call->out[0], row, 0);
    float mean = mean_of(t, x, n);
    float scale = 1.0f / sqrtf(mean_square(t, x, n, mean) + call->attr.eps);
    for (int64_t i = 0; i < n; i += VW) {
        vf d = (vf_get_n(t, x, i, n, 0) - mean) * scale;
        vf_put_n(t, y, i, n,
                 vf_fma(d, vf_get_any(w->dtype, w->data, i, n, 0), vf_get_any(b->dtype, b->data, i, n, 0)));
    }
}

FB_INLINE void rmsnorm_row(fb_dtype t, const fb_call *call, int64_t row) {
    const fb_weight *w = &call->weights[0];
    int64_t n = w->cols;
    const void *x = fb_view_at(&call->in[0], row, 0);
    void *y = fb_view_at(&call->out[0], row, 0);
    float scale = 1.0f / sqrtf(mean_square(t, x, n, 0) + call->attr.eps);
    for (int64_t i = 0; i < n; i += VW)
        vf_put_n(t, y, i, n, vf_get_n(t, x, i, n, 0) * scale * vf_get_any(w->dtype, w->data, i, n, 0));
}

#define NORM(name)                                                                                           \
    void FB_KERNEL(name)(const fb_call *call, const fb_lane *lane) {                                         \
        int64_t begin, end;                                                                                  \
        fb_lane_share(lane, call->rows, 1, &begin, &end);                                                    \
        for (int64_t row = begin; row < end; row++)                                                          \
            FB_FOR_DTYPE(call->in[0].dtype, T, name##_row(T, call, row));                                    \
    }

NORM(layernorm)
NORM(rmsnorm)
