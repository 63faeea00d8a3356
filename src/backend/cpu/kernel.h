/* A CPU kernel: one worker's part of one op. The files in this folder are compiled once for each instruction
 * set, with FB_ISA set to its name. Names that they export end in it. */
#ifndef FB_BACKEND_CPU_KERNEL_H
#define FB_BACKEND_CPU_KERNEL_H

#include "backend/call.h"
#include "base/pool.h"

typedef struct fb_worker {
    int32_t index, count;
    float *scratch;            /* this worker's own memory, 64-byte aligned */
    bool by_head;              /* in attention's ops each worker takes whole KV heads */
    bool apart;                /* each projection of a group is divided among the workers by itself */
    const atomic_bool *cancel; /* once true, work may be left out; NULL: never */
    atomic_bool *left_out;     /* set when work was left out: the step then has no result */
} fb_worker;

/* Whether the rest of an op may be left out. Kernels ask between parts of some milliseconds. */
static inline bool fb_worker_cancelled(const fb_worker *worker) {
    if (!worker->cancel || !atomic_load_explicit(worker->cancel, memory_order_relaxed)) return false;
    atomic_store_explicit(worker->left_out, true, memory_order_relaxed);
    return true;
}

/* Floats of scratch that a linear needs, besides its inputs. */
#define FB_LINEAR_WORK 161024
/* Floats of scratch for one input of a linear, if the kernel must normalise, widen or quantise it. */
static inline int64_t fb_linear_input(int64_t rows, int64_t cols) { return rows * (cols + cols / 32 * 10); }

/* Rows that an expert takes at a time. */
#define FB_EXPERT_ROWS 128
/* Floats of scratch for `rows` rows, each with `used` experts: gathered inputs of two matrices, their order,
 * and sums. A router needs less. */
static inline int64_t fb_expert_scratch(int64_t rows, int64_t used, int64_t outputs, int64_t cols) {
    int64_t pairs = rows * used, block = pairs < FB_EXPERT_ROWS ? pairs : FB_EXPERT_ROWS;
    return FB_LINEAR_WORK + 2 * fb_linear_input(block, cols) + pairs + 64 + rows * outputs;
}

/* One worker computes each output element. The order of its sum depends neither on the number of workers nor
 * on the number of rows. So a step gives the same bits however it is divided. */
typedef void (*fb_cpu_kernel)(const fb_call *call, const fb_worker *worker);

/* Attention runs up to FB_ATTN_UNIT queries of a KV head (attn_rows: FB_ATTN_ROWS) through blocks of
 * FB_ATTN_BLOCK positions. A block is long enough to hide the dependent chain of its maximum, sum and
 * exponentials. It is short enough that its keys, widened, stay in the L1 cache. */
#define FB_ATTN_UNIT  64
#define FB_ATTN_BLOCK 128
#define FB_ATTN_ROWS  4

/* Floats of scratch that the attention kernels need. */
static inline int64_t fb_attention_scratch(int64_t width, int64_t capacity) {
    return (3 * FB_ATTN_UNIT + FB_ATTN_BLOCK) * (width + 16) + FB_ATTN_UNIT * FB_ATTN_BLOCK +
           (FB_ATTN_ROWS + 1) * (capacity + 32);
}

#define FB_GLUE_(a, b) a##b
#define FB_GLUE(a, b)  FB_GLUE_(a, b)
#ifdef FB_ISA
#define FB_KERNEL(name) FB_GLUE(fb_cpu_##name##_, FB_ISA)
#define X(KIND, name, in, out, w, parts, text)                                                               \
    void FB_KERNEL(name)(const fb_call *call, const fb_worker *worker);
FB_OPS(X)
#undef X
/* Not an op: fills the screen of weight 0 (base/screen.h). */
void FB_KERNEL(screen)(const fb_call *call, const fb_worker *worker);
#endif

/* The items [begin, end) of this worker: see fb_pool_share. */
static inline void fb_worker_share(const fb_worker *worker, int64_t count, int64_t grain, int64_t *begin,
                                   int64_t *end) {
    fb_pool_share(count, grain, worker->index, worker->count, begin, end);
}

#endif
