/* The reference kernels: simple, one element at a time, in double. They work on any dtype, also float64.
 * Worker 0 does everything. */
#ifndef FB_BACKEND_CPU_REF_REF_H
#define FB_BACKEND_CPU_REF_REF_H

#include <math.h>

#include "backend/cpu/kernel.h"
#include "base/pack.h"
#include "base/quant.h"

#define X(KIND, name, in, out, w, parts, text)                                                               \
    void fb_cpu_##name##_ref(const fb_call *call, const fb_worker *worker);
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

/* Element i of the key or value in a slot of the row's sequence. */
static inline double ref_key(const fb_call *call, int64_t row, int64_t head, int64_t slot, int64_t i) {
    const fb_kv *kv = &call->kv;
    return fb_dtype_get(kv->dtype, fb_key_of(kv, call->row[row].sequence, head, slot), i * FB_KV_GROUP);
}

static inline double ref_value(const fb_call *call, int64_t row, int64_t head, int64_t slot, int64_t i) {
    const fb_kv *kv = &call->kv;
    return fb_dtype_get(kv->dtype, fb_value_of(kv, call->row[row].sequence, head, slot), i);
}

/* Elements of a normalised row. The norms and the ops with a fused norm share this. */
typedef struct ref_norm {
    double mean, scale;
} ref_norm;

ref_norm ref_norm_of(fb_op_kind kind, const fb_view *x, int64_t row, int64_t head, int64_t n, double eps);
double ref_normalised(ref_norm norm, double x, const fb_weight *w, const fb_weight *b, int64_t i);

/* A block of 32 as integers and a scale. If a value is not finite, the scale is NaN. */
fb_q8 ref_quantized(const double *x);

double ref_softcap(double x, double cap);
double ref_activation(fb_op_kind kind, double x); /* FB_OP_COUNT: returns x */

#define REF_FOR(i, count) for (int64_t i = 0; i < (count); i++)

#endif
