/* add, mul: elementwise functions of two inputs. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

#define GRAIN 16 /* as in activation.c */

#define BINARY(name, operator)                                                                               \
    FB_INLINE void name##_rows(fb_dtype t, const fb_call *call, int64_t begin, int64_t end) {                \
        for (int64_t row = 0; row < call->rows; row++) {                                                     \
            const void *a = fb_view_at(&call->in[0], row, 0), *b = fb_view_at(&call->in[1], row, 0);         \
            void *y = fb_view_at(&call->out[0], row, 0);                                                     \
            for (int64_t i = begin; i < end; i += VW)                                                        \
                vf_put_n(t, y, i, end, vf_get_n(t, a, i, end, 0) operator vf_get_n(t, b, i, end, 0));        \
        }                                                                                                    \
    }                                                                                                        \
    void FB_KERNEL(name)(const fb_call *call, const fb_lane *lane) {                                         \
        int64_t begin, end;                                                                                  \
        fb_lane_share(lane, call->out[0].heads * call->out[0].width, GRAIN, &begin, &end);                   \
        FB_FOR_DTYPE(call->out[0].dtype, T, name##_rows(T, call, begin, end));                               \
    }

BINARY(add, +)
BINARY(mul, *)
