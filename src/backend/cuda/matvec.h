/* What a launch of matvec.cuh's kernel is told. */
#ifndef FB_BACKEND_CUDA_MATVEC_H
#define FB_BACKEND_CUDA_MATVEC_H

#include "backend/cuda/device.cuh"

#define MV_MOST_ROWS   8
#define MV_MOST_BLOCKS 1024 /* of head_argmax */
#define MV_THREADS     512  /* at most */
#define MV_AHEAD       8 /* chunks that a lane has asked for: 512 * 8 * 16 bytes are 64 KiB a multiprocessor */
#define MV_STEPS       5    /* chunks of a piece that a lane takes, at most */
#define MV_TOO_LARGE   (-1) /* x does not fit into shared memory */

typedef struct mv_segment {
    const uint8_t *w; /* floats, or the integers of blocks */
    const uint16_t *scales;
    int64_t row_bytes;
    int32_t rows, cols;
    int32_t chunks, shift, lanes, steps, pieces; /* the order of sums: shape_of in linear.cu */
    int32_t passes;     /* of a warp over the rows of a group, one by one: a power of two */
    int32_t items;      /* passes * pieces */
    int32_t group;      /* its first one */
    int32_t each, more; /* matvec_one.cuh: rows of a block, by R, and how many blocks have one more */
    /* The input, staged once for all segments that read the same. */
    const void *x;
    int64_t x_stride;
    int32_t x_bytes;         /* of a staged row */
    int32_t x_at, same;      /* its place in shared memory; the segment that stages it */
    int32_t raw_at, norm_at; /* of x before its norm, and of the norm's weights; -1: not in shared memory */
    bool stages, same_stats; /* same_stats: as the segment that was staged before */
    fb_op_kind norm, act;
    float eps;
    const void *norm_w, *norm_b, *bias;
    fb_dtype norm_w_type, norm_b_type, bias_type;
    void *out;
    int64_t out_stride;
} mv_segment;

/* The outputs are one range of groups of `unit` rows of a segment, or, combined, of the same rows of all
 * segments. Each has `items` pieces of work for a warp, which leave `slots` partial sums for each row. */
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
    int32_t unit, groups, items, slots;
    int32_t batch, partials; /* groups between two barriers; floats of their partial sums */
    int32_t partial_at, ring_at, scales_at;
} mv_plan;

void mv_plan_units(mv_plan *plan, int rows_at_once, int ms);
/* Moves the plan to rows `row` … of x. */
void mv_plan_rows(mv_plan *plan, int row);

/* By the weights' type. */
int mv_launch_float(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_half(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_bfloat(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_q8(const mv_plan *plan, const fb_cuda_context *cx);
int mv_launch_q4(const mv_plan *plan, const fb_cuda_context *cx);

#endif
