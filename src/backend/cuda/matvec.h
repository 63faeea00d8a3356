/* What a launch of matvec.cuh's kernel is told. */
#ifndef FB_BACKEND_CUDA_MATVEC_H
#define FB_BACKEND_CUDA_MATVEC_H

#include "backend/cuda/device.cuh"

#define MV_MOST_ROWS   8
#define MV_MOST_BLOCKS 1024 /* of head_argmax */
#define MV_THREADS     512
#define MV_WARPS       (MV_THREADS / FB_WARP)
#define MV_COPIERS     128         /* threads that bring x */
#define MV_STEPS       8           /* chunks of a piece that a lane takes, at most */
#define MV_STEPS_Q4    3           /* likewise, of Q4_0, of which a slot has two rows */
#define MV_DEPTH       4           /* slots of a warp's ring, at most */
#define MV_LONG        (384 << 10) /* bytes of weights of a block */
#define MV_SPARE       (4 << 10)   /* bytes of shared memory that are not counted one by one */
#define MV_TOO_LARGE   (-1)        /* x does not fit into shared memory */

typedef struct mv_segment {
    const uint8_t *w; /* floats, or the integers of blocks */
    const uint16_t *scales;
    int32_t row_bytes, rows, cols;
    int32_t chunks, steps, pieces;   /* the order of sums: shape_of in linear.cu */
    int32_t shift;                   /* in a step's kernel, pieces are 1 << shift */
    int32_t each, more;              /* units of R rows of a block, and how many blocks have one more */
    int32_t skip_units, skip_pieces; /* what MV_WARPS pieces are: units, and pieces of another */
    /* The input, staged once for all segments that read the same. */
    const void *x;
    int64_t x_stride;
    int32_t x_bytes;         /* of a staged row */
    int32_t x_at, same;      /* its place in shared memory; the segment that stages it */
    int32_t raw_at;          /* of x before its norm; -1: not in shared memory */
    bool stages, same_stats; /* same_stats: as the segment that was staged before */
    bool same_raw;           /* raw_at is another segment's, too, which copies it */
    bool copies;             /* x is staged as it is, copied whole */
    fb_op_kind norm, act;
    float eps;
    const void *norm_w, *norm_b, *bias;
    fb_dtype norm_w_type, norm_b_type, bias_type;
    void *out;
    int64_t out_stride;
} mv_segment;

/* The outputs are the rows of all segments, or, combined, those that all segments have in common. */
typedef struct mv_plan {
    mv_segment seg[FB_MAX_SEGMENTS];
    int32_t segments, ms; /* ms: rows of x */
    fb_combine combine;
    fb_dot dot;
    fb_dtype type, x_type;
    bool combined, pair; /* pair: there is a second segment, here or in `given` */
    bool aligned;        /* chunks can be copied whole */
    const void *residual;
    int64_t residual_stride;
    float *sums;        /* out: nothing but the sums [ms, rows] of segment 0, or NULL */
    const float *given; /* the sums of segment 1, or NULL */
    float2 *results;    /* head_argmax: [blocks, MV_MOST_ROWS], or NULL */
    unsigned *counter;
    int32_t slots;    /* partial sums of an output, where segments are combined */
    int32_t partials; /* floats of a block's partial sums for a row of x */
    int32_t partial_at;
    /* The warps' rings (matvec_ring.cuh); in a step's kernel, which has the same for all ops, only what lies
     * within a slot. */
    int32_t depth;                /* slots of each */
    int32_t ring_at, heads_at;    /* in shared memory; barriers follow the heads */
    int32_t slot_bytes, slot_row; /* of a slot; of one of its rows */
    int32_t scale_at, scale_row;  /* the scales in a slot, and those of a row */
} mv_plan;

/* Moves the plan to rows `row` … of x. */
void mv_plan_rows(mv_plan *plan, int row);
/* Divides the rows, by `at_once`, among `grid` blocks; sets slots and partials. */
void mv_plan_blocks(mv_plan *plan, int at_once, int grid);

/* By the weights' type. */
int mv_launch_float(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_half(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_bfloat(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_q8(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_q4(const mv_plan *plan, const fb_cuda_context *cx);

#endif
