/* A CPU kernel: one worker's part of one op. The files in this folder are compiled once for each instruction
 * set, with FB_ISA set to its name. Names that they export end in it. */
#ifndef FB_BACKEND_CPU_KERNEL_H
#define FB_BACKEND_CPU_KERNEL_H

#include "backend/call.h"
#include "base/pool.h"
#include "base/quant.h"

struct tile_work;

/* sum[m * ldsum + n] for `rows` rows of x, `ldx` blocks apart, and the 16 * `groups` outputs that start at w,
 * whose packed rows have `cols` columns. halves [rows, cols / 32]: the sum of the first half of each block of
 * x, for a type whose parts have 16 columns. */
typedef void (*fb_packed_sums)(const uint8_t *w, const fb_q8 *x, const int32_t *halves, int64_t ldx,
                               int64_t cols, int64_t rows, int64_t groups, float *sum, int64_t ldsum);

/* sum[m * BLOCK_N + n] of `rows` rows of x, `ldx` elements apart, and `ns` rows of w, all of bfloat16 with
 * `cols` columns. The worker then reads the weights at `next`; NULL: not known. */
typedef void (*fb_bf16_sums)(const uint8_t *w, const uint8_t *x, int64_t ldx, int64_t cols, int64_t rows,
                             int64_t ns, const uint8_t *next, struct tile_work *work, float *sum);

typedef struct fb_worker {
    int32_t index, count;
    float *scratch; /* this worker's own memory, 64-byte aligned */
    bool by_head;   /* in attention's ops each worker takes whole KV heads */
    bool apart;     /* each projection of a group is divided among the workers by itself */
    const fb_packed_sums
        *many;                 /* [FB_DTYPE_COUNT]: sums of many rows by a matrix unit; NULL: there is none */
    int64_t many_rows;         /* from how many rows on; the bits are the same */
    fb_bf16_sums bf16;         /* products of bfloat16 with bfloat16; NULL: they are widened */
    float *prepared;           /* inputs that all workers prepare together (fb_prepares); NULL: none */
    const atomic_bool *cancel; /* once true, work may be left out; NULL: never */
    atomic_bool *left_out;     /* set when work was left out: the step then has no result */
} fb_worker;

/* Whether the rest of an op may be left out. Kernels ask between parts of some milliseconds. */
static inline bool fb_worker_cancelled(const fb_worker *worker) {
    if (!worker->cancel || !atomic_load_explicit(worker->cancel, memory_order_relaxed)) return false;
    atomic_store_explicit(worker->left_out, true, memory_order_relaxed);
    return true;
}

/* Whether workers prepare the inputs of a linear_group together, each some rows, before a barrier. Otherwise
 * each prepares all rows for itself: that saves a barrier of one or two microseconds, and normalising and
 * quantising 16 rows of 768 columns takes four. With 16 workers and many rows, preparing takes as long as
 * multiplying if each does it all. */
#define FB_PREPARE_ROWS 16
static inline bool fb_prepares(const fb_call *call) {
    bool quantises = false;
    for (int s = 0; s < call->attr.segments; s++)
        quantises = quantises || call->attr.segment[s].dot == FB_DOT_QUANTIZE;
    return quantises && call->rows >= FB_PREPARE_ROWS;
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
/* Nor this: fills the worker's part of worker->prepared for a linear_group that fb_prepares. */
void FB_KERNEL(prepare)(const fb_call *call, const fb_worker *worker);
#endif

/* The items [begin, end) of this worker: see fb_pool_share. */
static inline void fb_worker_share(const fb_worker *worker, int64_t count, int64_t grain, int64_t *begin,
                                   int64_t *end) {
    fb_pool_share(count, grain, worker->index, worker->count, begin, end);
}

#endif
