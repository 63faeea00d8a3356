/* A CPU kernel: one lane's part of one op. The files beside this one are compiled once for each instruction
 * set, with FB_ISA set to its name; what they export ends in it. */
#ifndef FB_BACKEND_CPU_KERNEL_H
#define FB_BACKEND_CPU_KERNEL_H

#include "base/pool.h"
#include "base/tensor.h"
#include "program/ops.h"

typedef struct fb_call {
    fb_view in[FB_MAX_IN], out[FB_MAX_OUT];
    fb_weight weights[FB_MAX_WEIGHTS];
    fb_op_attr attr;
    fb_kv kv;
    const int32_t *ids; /* [rows] */
    int64_t rows;       /* tokens of the step */
    int64_t position;   /* of the first one */
    bool by_head;       /* lanes share whole KV heads (attention) */
    fb_dtype act;       /* in which the step stores results: what head_argmax would have stored */
} fb_call;

typedef struct fb_lane {
    int32_t index, count;
    float *scratch; /* this lane's own, 64-byte aligned */
} fb_lane;

/* Floats of scratch that a linear takes besides its inputs. */
#define FB_LINEAR_WORK 161024
/* And for the input of a linear that is no plain rows of float32: normalised or widened, and quantised. */
static inline int64_t fb_linear_input(int64_t rows, int64_t cols) { return rows * (cols + cols / 32 * 10); }

/* Every output element is computed by one lane, with a sum whose order depends on neither the number of lanes
 * nor the number of rows: a step gives the same bits however it is split. */
typedef void (*fb_cpu_kernel)(const fb_call *call, const fb_lane *lane);

#define FB_GLUE_(a, b) a##b
#define FB_GLUE(a, b)  FB_GLUE_(a, b)
#ifdef FB_ISA
#define FB_KERNEL(name)                        FB_GLUE(fb_cpu_##name##_, FB_ISA)
#define X(KIND, name, in, out, w, parts, text) void FB_KERNEL(name)(const fb_call *call, const fb_lane *lane);
FB_OPS(X)
#undef X
#endif

/* The items [begin, end) of this lane. */
static inline void fb_lane_share(const fb_lane *lane, int64_t count, int64_t grain, int64_t *begin,
                                 int64_t *end) {
    fb_pool_share(count, grain, lane->index, lane->count, begin, end);
}

#endif
