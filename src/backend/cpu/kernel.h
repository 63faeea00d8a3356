/* A CPU kernel: one lane's part of one op. The files beside this one are compiled once for each instruction
 * set, with FB_ISA set to its name; what they export ends in it. */
#ifndef FB_BACKEND_CPU_KERNEL_H
#define FB_BACKEND_CPU_KERNEL_H

#include "backend/call.h"
#include "base/pool.h"

typedef struct fb_lane {
    int32_t index, count;
    float *scratch; /* this lane's own, 64-byte aligned */
    bool by_head;   /* lanes share whole KV heads in attention's ops */
    bool apart;     /* lanes share each projection of a group by itself */
} fb_lane;

/* Floats of scratch that a linear takes besides its inputs. */
#define FB_LINEAR_WORK 161024
/* And for the input of a linear that is no plain rows of float32: normalised or widened, and quantised. */
static inline int64_t fb_linear_input(int64_t rows, int64_t cols) { return rows * (cols + cols / 32 * 10); }

/* Every output element is computed by one lane, with a sum whose order depends on neither the number of lanes
 * nor the number of rows: a step gives the same bits however it is split. */
typedef void (*fb_cpu_kernel)(const fb_call *call, const fb_lane *lane);

/* Attention takes up to FB_ATTN_UNIT queries of a KV head at a time (attn_rows: FB_ATTN_ROWS) through blocks
 * of FB_ATTN_BLOCK positions: enough of them that a block's maximum, sum and exponentials, which wait for
 * each other, do not show, few enough that its keys, widened, stay in the first-level cache. */
#define FB_ATTN_UNIT  64
#define FB_ATTN_BLOCK 128
#define FB_ATTN_ROWS  4

/* Floats of scratch that attention's kernels need. */
static inline int64_t fb_attention_scratch(int64_t width, int64_t capacity) {
    return (3 * FB_ATTN_UNIT + FB_ATTN_BLOCK) * (width + 16) + FB_ATTN_UNIT * FB_ATTN_BLOCK +
           (FB_ATTN_ROWS + 1) * (capacity + 32);
}

#define FB_GLUE_(a, b) a##b
#define FB_GLUE(a, b)  FB_GLUE_(a, b)
#ifdef FB_ISA
#define FB_KERNEL(name)                        FB_GLUE(fb_cpu_##name##_, FB_ISA)
#define X(KIND, name, in, out, w, parts, text) void FB_KERNEL(name)(const fb_call *call, const fb_lane *lane);
FB_OPS(X)
#undef X
/* Not an op: fills the screen of weight 0 (base/screen.h). */
void FB_KERNEL(screen)(const fb_call *call, const fb_lane *lane);
#endif

/* The items [begin, end) of this lane. */
static inline void fb_lane_share(const fb_lane *lane, int64_t count, int64_t grain, int64_t *begin,
                                 int64_t *end) {
    fb_pool_share(count, grain, lane->index, lane->count, begin, end);
}

#endif
