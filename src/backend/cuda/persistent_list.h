/* The work list of the persistent kernel (persistent_kernel.cuh): the ops of a decode step's layers.
 *
 * The ops' own launchers append to it (persistent.h). A launcher that knows no list would launch instead; the
 * backend prevents that: it makes a list only of the ops that fb_cuda_persistent_has_ops names. */
#ifndef FB_BACKEND_CUDA_PERSISTENT_LIST_H
#define FB_BACKEND_CUDA_PERSISTENT_LIST_H

#include "backend/cuda/flash_decode.cuh"
#include "backend/cuda/matvec.h"
#include "backend/cuda/persistent.h"

/* One token's attention. Rotating its q and k and appending its k and v to the cache are part of the op. */
typedef struct pk_attention {
    fb_attention a; /* a.q is not read: the op rotates q itself */
    partials p;
    int64_t q_head, k_head, v_head; /* strides of the new token's heads */
    const float *angles;            /* cosines, then sines */
    int32_t half;                   /* pairs that rotate */
} pk_attention;

typedef enum pk_kind { PK_MATVEC, PK_ATTENTION } pk_kind;

/* Where an op reads and writes its tagged words (persistent_tagged.cuh): offsets among all words. -1: the
 * value was in memory before the kernel began, or there is none. */
typedef struct pk_tagged_io {
    int32_t in[FB_MAX_SEGMENTS]; /* each segment's x; or q, k, v */
    int32_t out[FB_MAX_SEGMENTS], residual;
    bool stored[FB_MAX_SEGMENTS]; /* the output is also stored untagged, for kernels after this one */
} pk_tagged_io;

typedef struct __align__(16) pk_op {
    pk_kind kind;
    pk_tagged_io io;
    /* For a matvec: the pieces of each warp. Bit s of the first index says whether the block has an extra
     * unit of segment s. */
    uint16_t pieces[1 << FB_MAX_SEGMENTS][MV_WARPS];
    bool one_output; /* for a matvec: no block has more outputs than threads */
    union {
        mv_plan matvec;
        pk_attention attention;
    };
}
pk_op;

/* The kernel's parameter: the layout of shared memory, and addresses on the device. */
typedef struct pk_params {
    int32_t ops_at, barriers_at, work_at, headers_at, stages_at;
    int32_t stage_bytes, stages; /* of the pipelines */
    int32_t in_flight;           /* stages of a pipeline that are being filled at a time, at most */
    int32_t count;               /* ops */
    const pk_op *ops;
    uint32_t *words;       /* tagged */
    unsigned *steps_done;  /* before this one */
    unsigned *blocks_done; /* of this step; 0 before and after it */
} pk_params;

/* An op's output: what it would occupy in memory, [from, end), and the first of its tagged words. */
typedef struct pk_output {
    uintptr_t from, end;
    int32_t word, op, s;
} pk_output;

struct fb_cuda_work_list {
    pk_op *ops; /* on the host */
    int32_t count, capacity;
    pk_output *outputs;
    int32_t output_count, words; /* words: of all outputs */
    uint8_t *image;              /* what is copied to the device */
    bool pending;                /* `next` has q, k and v; its attention is not appended yet */
    pk_attention next;
    const void *q, *k, *v; /* of the new token */
    fb_dtype weights, act; /* of all ops; weights FB_DTYPE_COUNT: there is no op yet */
    int64_t inputs;        /* bytes of shared memory for staged inputs and partial sums, at most */
    int64_t stage_bytes;   /* of a pipeline's stage, at most */
    pk_params params;      /* complete at the list's end, except for addresses on the device */
    int64_t shared_bytes;  /* of a block */
};

/* By the weights' type. params NULL: launches nothing, and returns 0 if there is a kernel that the device can
 * run. */
int pk_launch_half(const fb_cuda_work_list *list, const pk_params *params, const fb_cuda_context *cx);
int pk_launch_bfloat(const fb_cuda_work_list *list, const pk_params *params, const fb_cuda_context *cx);
int pk_launch_q8(const fb_cuda_work_list *list, const pk_params *params, const fb_cuda_context *cx);
int pk_launch_q4(const fb_cuda_work_list *list, const pk_params *params, const fb_cuda_context *cx);
int pk_launch_records(const fb_cuda_work_list *list, const pk_params *params, const fb_cuda_context *cx);

/* Append to the list; FB_CUDA_NOT_LISTED where the kernel cannot run the op. */
int pk_add_matvec(const mv_plan *plan, int at_once, fb_dtype weights, int64_t inputs,
                  fb_cuda_work_list *list);
int pk_add_rotation(const fb_call *call, bool rotates, fb_cuda_work_list *list);
int pk_add_attention(const fb_attention *a, const partials *p, fb_cuda_work_list *list);

#endif
