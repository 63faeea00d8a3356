/* Launchers: each puts one op of a step on a stream. Every op of the op table has one, of the op's name; the
 * files are named as those of the CPU.
 *
 * All pointers of a call are device addresses, except attr.frequencies. The layout of the data:
 *  - a float weight is row-major without gaps; its first element lies at a multiple of 256 bytes;
 *  - a weight of Q8_0 or Q4_0 (`packed`) has the integers of all blocks, row after row, then all scales
 *    (float16) in the same order. A block of Q8_0 has 32 bytes of integers. One of Q4_0 has 16: byte i has
 *    element i, plus 8, in its low nibble, and element i + 16, plus 8, in its high one;
 *  - all other quantised weights are records (base/pack_gpu.h), row after row: those of other types, and in a
 *    model whose layers mix types (host/weights.c) those of Q8_0 and Q4_0, too;
 *  - quantised activations are fb_q8 blocks (base/quant.h), as on the CPU; a row begins at a multiple of 8
 *    bytes;
 *  - k and v of a block of a cache are [heads, kv.block, width], kv.k_at and kv.v_at bytes after the block's
 *    beginning. The block of a slot is tables[(kv.table_at + (slot >> kv.shift)) * sequences + the row's
 *    sequence]. kv.k, kv.v and kv.tables are not used;
 *  - positions and tokens are read from call->row.
 * So all that changes from step to step is in device memory, and a recorded graph serves every step. */
#ifndef FB_BACKEND_CUDA_KERNEL_H
#define FB_BACKEND_CUDA_KERNEL_H

#include "backend/call.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fb_cuda_limits {
    int32_t major, minor;  /* compute capability */
    int32_t sms;           /* multiprocessors */
    int32_t shared_limit;  /* bytes of shared memory that a block may ask for */
    int32_t blocks_shared; /* bytes of shared memory of a multiprocessor */
    int64_t l2_bytes;
} fb_cuda_limits;

/* Rows of a step that one launch of attention computes: generated tokens of any sequences, or tokens of a
 * prompt with successive positions of one sequence. The order of sums depends on a token's role, never on how
 * many rows a step has. */
typedef struct fb_cuda_rows {
    int64_t first, rows;
    bool prompt;
} fb_cuda_rows;

typedef struct fb_cuda_context {
    const fb_cuda_limits *limits;
    int32_t device;
    void *stream;              /* cudaStream_t */
    void *blas;                /* fb_cuda_blas_create's, or NULL */
    const double *frequencies; /* attr.frequencies on the device */
    /* In device memory: where blocks of caches begin, at multiples of 256 bytes. Entry `e` of the table of
     * sequence `s` is tables[e * sequences + s]. */
    uint8_t *const *tables;
    int64_t sequences;
    /* The rows of the step, in their order, which attention computes by their role; NULL: all rows are of one
     * sequence, and up to FB_DECODE_ROWS of them count as generated. */
    const fb_cuda_rows *runs;
    int32_t run_count;
    int64_t context; /* all rows of this launch look only into slots below this */
    bool invariant;  /* a row's sums have one order, however many rows there are */
    bool overlap;    /* a kernel may start while the one before it still runs (fb_wait_for_previous) */
    bool late; /* the same, but then it must read nothing, weights included, before that one has ended */
    /* Memory for what an op needs besides its outputs. All ops use the same, one after the other. Its first
     * FB_CUDA_COUNTERS bytes are zeros when an op begins, and again when it ends. */
    uint8_t *scratch;
    int64_t scratch_bytes;
    /* Not NULL: launchers append their op to this list instead of launching (persistent.h). */
    struct fb_cuda_work_list *list;
} fb_cuda_context;

/* A launcher's result besides cudaError_t: the persistent kernel cannot run the op. */
#define FB_CUDA_NOT_LISTED (-1)
#define FB_CUDA_NO_MEMORY  (-2)

#define FB_CUDA_COUNTERS 65536

/* The result is a cudaError_t: 0, or why the launch failed. */
typedef int (*fb_cuda_launch)(const fb_call *call, const fb_cuda_context *cx);

#define X(KIND, name, in, out, w, parts, text)                                                               \
    int fb_cuda_##name(const fb_call *call, const fb_cuda_context *cx);
FB_OPS(X)
#undef X

#pragma GCC visibility push(default) /* the kernels' tests call these */

/* By op kind. */
extern const fb_cuda_launch fb_cuda_launches[FB_OP_COUNT];

/* Bytes of scratch, counters included, that the op needs for up to `rows` rows and `capacity` slots. */
int64_t fb_cuda_linear_scratch(const fb_call *call, int64_t rows);
int64_t fb_cuda_expert_scratch(const fb_call *call, fb_op_kind kind, int64_t rows);
int64_t fb_cuda_attention_scratch(const fb_call *call, int64_t rows, int64_t capacity);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
