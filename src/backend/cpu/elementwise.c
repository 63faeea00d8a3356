/* add, mul, and the fused add3 and swiglu: elementwise functions of two or three inputs. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

#define GRAIN 16 /* as in activation.c */

/* Fused forms round where the plain ops would have stored. */
#define ADD(t, a, b, c)          ((a) + (b))
#define MUL(t, a, b, c)          ((a) * (b))
#define ADD3(t, a, b, c)         (vf_rounded(t, (a) + (b)) + (c))
#define GATED_SILU(t, a, b, c)   (vf_rounded(t, vf_silu(a)) * (b))
#define GATED_GELU(t, a, b, c)   (vf_rounded(t, vf_gelu(a)) * (b))
#define GATED_GELU_T(t, a, b, c) (vf_rounded(t, vf_gelu_tanh(a)) * (b))

#define ROWS(name, inputs, function)                                                                         \
    FB_INLINE void name##_rows(fb_dtype t, const fb_call *call, int64_t begin, int64_t end) {                \
        for (int64_t row = 0; row < call->rows; row++) {                                                     \
            const void *x[3] = {NULL};                                                                       \
            for (int k = 0; k < 3; k++) x[k] = k < (inputs) ? fb_view_at(&call->in[k], row, 0) : NULL;       \
            void *y = fb_view_at(&call->out[0], row, 0);                                                     \
            for (int64_t i = begin; i < end; i += VW) {                                                      \
                vf v[3];                                                                                     \
                for (int k = 0; k < (inputs); k++) v[k] = vf_get_n(t, x[k], i, end, 0);                      \
                vf_put_n(t, y, i, end, function(t, v[0], v[1], v[2]));                                       \
            }                                                                                                \
        }                                                                                                    \
    }

#define ELEMENTWISE(name, inputs, function)                                                                  \
    ROWS(name, inputs, function)                                                                             \
    void FB_KERNEL(name)(const fb_call *call, const fb_worker *worker) {                                     \
        int64_t begin, end;                                                                                  \
        fb_worker_share(worker, call->out[0].heads * call->out[0].width, GRAIN, &begin, &end);               \
        FB_FOR_DTYPE(call->out[0].dtype, T, name##_rows(T, call, begin, end));                               \
    }

ELEMENTWISE(add, 2, ADD)
ELEMENTWISE(mul, 2, MUL)
ELEMENTWISE(add3, 3, ADD3)

ROWS(silu_mul, 2, GATED_SILU)
ROWS(gelu_mul, 2, GATED_GELU)
ROWS(gelu_tanh_mul, 2, GATED_GELU_T)

void FB_KERNEL(swiglu)(const fb_call *call, const fb_worker *worker) {
    int64_t begin, end;
    fb_worker_share(worker, call->out[0].heads * call->out[0].width, GRAIN, &begin, &end);
    FB_FOR_DTYPE(call->out[0].dtype, T, if (call->attr.act == FB_OP_GELU) gelu_mul_rows(T, call, begin, end);
                 else if (call->attr.act == FB_OP_GELU_TANH) gelu_tanh_mul_rows(T, call, begin, end);
                 else silu_mul_rows(T, call, begin, end));
}
