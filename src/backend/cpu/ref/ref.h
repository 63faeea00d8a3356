/* The reference kernels: one element at a time, in double, obvious. They work on any dtype, float64 among
 * them. Lane 0 does everything. */
#ifndef FB_BACKEND_CPU_REF_REF_H
#define FB_BACKEND_CPU_REF_REF_H

#include <math.h>

#include "backend/cpu/kernel.h"
#include "base/pack.h"
#include "base/quant.h"

#define X(KIND, name, in, out, w, parts, text)                                                               \
    void fb_cpu_##name##_ref(const fb_call *call, const fb_lane *lane);
FB_OPS(X)
#undef X

static inline double ref_get(const fb_view *x, int64_t row, int64_t head, int64_t i) {
    return fb_dtype_get(x->dtype, x->data, row * x->row_stride + head * x->head_stride + i);
}

static inline void ref_set(const fb_view *x, int64_t row, int64_t head, int64_t i, double value) {
    fb_dtype_set(x->dtype, x->data, row * x->row_stride + head * x->head_stride + i, value);
}

static inline double ref_weight(const fb_weight *w, int64_t row, int64_t col) {
    return fb_weight_get(w, row, col);
}

/* Element i of row `position` of head `head` of `base`, the cache's k or v. */
static inline double ref_kv(const fb_kv *kv, const void *base, int64_t head, int64_t position, int64_t i) {
    return fb_dtype_get(kv->dtype, base, (head * kv->capacity + position) * kv->width + i);
}

/* Elements of a normalised row, shared by the norms and by what they are fused into. */
typedef struct ref_norm {
    double mean, scale;
} ref_norm;

ref_norm ref_norm_of(fb_op_kind kind, const fb_view *x, int64_t row, int64_t n, double eps);
double ref_normalised(ref_norm norm, double x, const fb_weight *w, const fb_weight *b, int64_t i);

/* A block of 32 as integers and a scale; one that is not finite has the scale NaN. */
fb_q8 ref_quantized(const double *x);

double ref_activation(fb_op_kind kind, double x); /* x itself for FB_OP_COUNT */

#define REF_FOR(i, count) for (int64_t i = 0; i < (count); i++)

#endif
