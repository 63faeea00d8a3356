/* The plan of a matvec launch: the kernel's parameter (matvec.cuh), and one op of the persistent kernel. */
#ifndef FB_BACKEND_CUDA_MATVEC_H
#define FB_BACKEND_CUDA_MATVEC_H

#include "backend/cuda/sums.h"

#define MV_MAX_ROWS     8
#define MV_MAX_BLOCKS   1024 /* of head_argmax */
#define MV_THREADS      512
#define MV_WARPS        (MV_THREADS / FB_WARP)
#define MV_COPY_THREADS 128         /* threads that copy x to shared memory */
#define MV_STAGES       4           /* stages of a warp's pipeline, at most */
#define MV_LONG         (384 << 10) /* a block with more bytes of weights gets MV_STAGES stages, others 2 */
#define MV_SPARE        (4 << 10) /* bytes of shared memory for what is not counted exactly, such as alignment */
#define MV_TOO_LARGE    (-1)      /* x does not fit into shared memory */

/* One weight matrix, its input and its output. A row of weights is cut into `chunks` of 16 bytes and these
 * into `pieces` of up to 32 * lane_chunks chunks; a warp multiplies a piece of R rows (a unit) at a time. */
typedef struct mv_segment {
    const uint8_t *w; /* floats, the integers of quantised blocks, or records */
    const uint16_t *scales;
    int32_t row_bytes, rows, cols;
    int32_t chunks, lane_chunks, pieces; /* of a row: sums.h */
    int32_t record_bytes;                /* of records: of all pieces but the last */
    fb_dtype w_type;
    int32_t sums, piece_sums; /* partial sums of an output, and of a piece of it */
    int32_t sums_row; /* from an output's partial sums to the next one's, where segments are not combined */
    int32_t units, extra;            /* units of a block; the first `extra` blocks have one more */
    int32_t skip_units, skip_pieces; /* MV_WARPS pieces as whole units, and pieces of another one */
    /* The input is staged once for all segments that read the same. */
    const void *x;
    int64_t x_stride;
    int32_t x_bytes;           /* of a staged row */
    int32_t x_at, staged_by;   /* offset in shared memory; the segment that stages it */
    int32_t raw_at;            /* offset of x before its norm; -1: not in shared memory */
    bool stages_x, same_stats; /* same_stats: mean and scale are those of the segment staged before */
    bool same_raw;             /* another segment copies x to raw_at */
    bool copies;               /* x needs no norm and no conversion: its bytes are copied */
    fb_op_kind norm, act;
    float eps;
    const void *norm_w, *norm_b, *bias;
    fb_dtype norm_w_type, norm_b_type, bias_type;
    void *out;
    int64_t out_stride;
} mv_segment;

/* Without a combination, each row of each segment is an output. Combined segments have the same rows, and row
 * i of all of them makes output i. */
typedef struct mv_plan {
    mv_segment seg[FB_MAX_SEGMENTS];
    int32_t segments, ms; /* ms: rows of x */
    fb_combine combine;
    fb_dot dot;
    fb_dtype type, x_type;
    bool combined, pair; /* pair: there is a second segment, in this launch or in `given` */
    bool aligned;        /* every chunk of weights can be copied as 16 aligned bytes */
    const void *residual;
    int64_t residual_stride;
    float *sums;        /* not NULL: the launch stores only the sums [ms, rows] of segment 0, here */
    const float *given; /* the sums of segment 1 from an earlier launch, or NULL */
    float2 *results;    /* head_argmax: [blocks, MV_MAX_ROWS], or NULL */
    unsigned *counter;
    int32_t sums_each; /* from an output's partial sums to the next one's, where segments are combined */
    int32_t partials;  /* floats of a block's partial sums for a row of x */
    int32_t partial_at;
    /* The warps' pipelines (matvec_pipeline.cuh). The persistent kernel has one layout for all ops: there
     * only stage_row, scale_at and scale_row, which say what lies where in a stage, are the op's own. */
    int32_t stages;                 /* of each pipeline */
    int32_t stages_at, headers_at;  /* in shared memory; the barriers follow the headers */
    int32_t stage_bytes, stage_row; /* of a stage; of one of its rows */
    int32_t scale_at, scale_row;    /* the scales in a stage; bytes of a row's scales */
} mv_plan;

/* Moves the plan to rows `row` … of x. */
void mv_plan_rows(mv_plan *plan, int row);
/* Divides the rows, in units of `at_once`, among `grid` blocks; sets sums_each and partials. */
void mv_plan_blocks(mv_plan *plan, int at_once, int grid);

/* By the weights' type. */
int mv_launch_float(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_half(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_bfloat(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_q8(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_q4(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_records(const mv_plan *plan, const fb_cuda_context *cx); /* several types in one plan */
int mv_launch_records_float(const mv_plan *plan, const fb_cuda_context *cx);

#endif
