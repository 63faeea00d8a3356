/* gelu, gelu_tanh, silu, scale, softcap: elementwise functions of one input. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

/* Workers share the columns, so that even a single row is divided. 16 float32 are one cache line. */
#define GRAIN 16

#define UNARY(name, function)                                                                                \
    FB_INLINE void name##_rows(fb_dtype t, const fb_call *call, int64_t begin, int64_t end) {                \
        for (int64_t row = 0; row < call->rows; row++) {                                                     \
            const void *x = fb_view_at(&call->in[0], row, 0);                                                \
            void *y = fb_view_at(&call->out[0], row, 0);                                                     \
            for (int64_t i = begin; i < end; i += VW)                                                        \
                vf_put_n(t, y, i, end, function(&call->attr, vf_get_n(t, x, i, end, 0)));                    \
        }                                                                                                    \
    }                                                                                                        \
    void FB_KERNEL(name)(const fb_call *call, const fb_worker *worker) {                                     \
        int64_t begin, end;                                                                                  \
        fb_worker_share(worker, call->out[0].heads * call->out[0].width, GRAIN, &begin, &end);               \
        FB_FOR_DTYPE(call->out[0].dtype, T, name##_rows(T, call, begin, end));                               \
    }

#define GELU(attr, x)      vf_gelu(x)
#define GELU_TANH(attr, x) vf_gelu_tanh(x)
#define SILU(attr, x)      vf_silu(x)
#define SCALE(attr, x)     ((x) * (attr)->scale)
#define SOFTCAP(attr, x)   vf_softcap(x, (attr)->cap)

UNARY(gelu, GELU)
UNARY(gelu_tanh, GELU_TANH)
UNARY(silu, SILU)
UNARY(scale, SCALE)
UNARY(softcap, SOFTCAP)
