/* The producer warps of the persistent kernel: they copy weights from global to shared memory.
 *
 * One lane of a producer warp fills the pipeline of one consumer warp, and goes on from op to op: while the
 * consumers wait for x and normalise it, the weights of the next op or two arrive. The ops themselves also
 * pass through a pipeline in shared memory, which all threads of the block read.
 *
 * All waits are at mbarriers in shared memory. Each stage has two: `full` completes when the stage is filled,
 * `empty` when its readers are done with it. A stage of weights is read by the 32 lanes of its consumer warp.
 * A stage of ops waits for the lanes that fill pipelines; the block's other threads are done with it before
 * it is refilled (pk_kernel).
 *
 * A pipeline has more stages than may be in flight at a time. x, which all consumers wait for, arrives only
 * after the copies that were issued before it. */
#ifndef FB_BACKEND_CUDA_PERSISTENT_WEIGHTS_CUH
#define FB_BACKEND_CUDA_PERSISTENT_WEIGHTS_CUH

#include "backend/cuda/matvec_pipeline.cuh"
#include "backend/cuda/persistent_list.h"

/* Ops in shared memory: the one being computed, those whose weights are being fetched, and one that is being
 * copied. A small op has fewer pieces than a pipeline has stages; the producers are then past the attention
 * after it, in another op. */
#define PK_OP_STAGES          6
#define PK_PRODUCER_WARPS     4
#define PK_PRODUCER_PIPELINES (MV_WARPS / PK_PRODUCER_WARPS) /* that a producer warp fills */
#define PK_THREADS            (MV_THREADS + PK_PRODUCER_WARPS * FB_WARP)
/* Bytes of weights that a block has in flight, about. 30 KB a multiprocessor keep the memory busy. More only
 * delays what is requested after them, x among it. A step of Llama-3.2-1B in float16 (8 layers, 4 KB a piece)
 * takes 0.349 ms with one piece of each pipeline in flight, 0.368 ms with two. */
#define PK_BYTES_IN_FLIGHT (64 << 10)
/* A producer warp that can issue nothing sleeps so long: the consumers need the issue slots. */
#define PK_BACKOFF_NS 100

struct pk_op_barriers {
    uint64_t *full, *empty; /* of the PK_OP_STAGES stages */
};
struct pk_pipeline {
    mv_pipeline of;
    uint64_t *empty; /* barriers of the stages */
};
#define PK_BARRIER_BYTES ((2 * PK_OP_STAGES + MV_WARPS * MV_STAGES) * (int)sizeof(uint64_t))

FB_DEVICE pk_op_barriers pk_op_barriers_of(const pk_params &params, uint8_t *shared) {
    uint64_t *first = (uint64_t *)(shared + params.barriers_at);
    return {first, first + PK_OP_STAGES};
}
FB_DEVICE pk_pipeline pk_pipeline_of(const pk_params &params, uint8_t *shared, int warp) {
    pk_pipeline pipeline;
    pipeline.of.stage_memory = shared + params.stages_at + warp * params.stages * params.stage_bytes;
    pipeline.of.headers = (mv_header *)(shared + params.headers_at) + warp * MV_STAGES;
    pipeline.of.full = (uint64_t *)(shared + params.headers_at + MV_WARPS * MV_STAGES * sizeof(mv_header)) +
                       warp * MV_STAGES;
    pipeline.of.stage = pipeline.of.phase = 0;
    pipeline.empty = (uint64_t *)(shared + params.barriers_at) + 2 * PK_OP_STAGES + warp * MV_STAGES;
    return pipeline;
}

/* For all threads; a __syncthreads must follow. */
FB_DEVICE void pk_init_barriers(const pk_params &params, uint8_t *shared, const pk_op_barriers &barriers) {
    int thread = (int)threadIdx.x;
    if (thread < MV_WARPS) {
        pk_pipeline pipeline = pk_pipeline_of(params, shared, thread);
        for (int i = 0; i < params.stages; i++) {
            mv_barrier_init(pipeline.of.full + i, 1);
            mv_barrier_init(pipeline.empty + i, FB_WARP);
        }
    }
    if (thread < PK_OP_STAGES) {
        mv_barrier_init(barriers.full + thread, 1);
        mv_barrier_init(barriers.empty + thread, MV_WARPS); /* lanes that fill pipelines */
    }
    mv_barrier_init_fence();
}

/* Starts the copy of an op to its stage, when the producers are done with the op that was there. The
 * consumers must be done with it already. For one thread. */
FB_DEVICE void pk_fetch_op(const pk_params &params, uint8_t *shared, const pk_op_barriers &barriers, int op) {
    int stage = op % PK_OP_STAGES;
    if (op >= params.count) return;
    mv_barrier_wait(barriers.empty + stage, (op / PK_OP_STAGES & 1) ^ 1);
    mv_barrier_expect(barriers.full + stage, (int)sizeof(pk_op));
    mv_bulk_copy((pk_op *)(shared + params.ops_at) + stage, params.ops + op, (int)sizeof(pk_op),
                 barriers.full + stage);
}
FB_DEVICE bool pk_op_ready(const pk_op_barriers &barriers, int op) {
    return mv_barrier_test(barriers.full + op % PK_OP_STAGES, op / PK_OP_STAGES & 1);
}
FB_DEVICE void pk_wait_op(const pk_op_barriers &barriers, int op) {
    mv_barrier_wait(barriers.full + op % PK_OP_STAGES, op / PK_OP_STAGES & 1);
}

/* ---- a warp's pieces of an op ---- */

/* How many pieces of the op the warp has. */
FB_DEVICE int pk_piece_count(const pk_op &op, int warp) {
    int extra = 0;
#pragma unroll
    for (int s = 0; s < FB_MAX_SEGMENTS; s++)
        extra |= (s < op.matvec.segments && (int)blockIdx.x < op.matvec.seg[s].extra) << s;
    return op.pieces[extra][warp];
}

/* ---- the lane that fills a pipeline ---- */

struct pk_producer {
    const uint8_t *from, *scales; /* the next unit's rows, and their scales */
    int rows, piece;              /* rows from there to the segment's end; the piece of them */
    int row_bytes, scale_row;     /* of a whole row; of its scales */
    int chunks, piece_chunks;     /* of a row, and of a piece */
    int record_bytes, type;       /* of records: bytes of a piece */
    int pieces;                   /* of a row */
    int skip_rows, skip_pieces;   /* to the next piece: MV_WARPS pieces further */
    int x_at, x_bytes;            /* for the header of the piece */
    int partial, sums_each, sums; /* the unit's first partial sum; to the next row's; sums of a piece */
    int stage_row, scale_at;      /* offsets in a stage: the second row, the scales */
    int stage_scales;             /* from a row's scales to the next one's, there */
    int op, s, segments;          /* the op and its segment */
    int base, before;             /* the next segment's first partial sum; pieces of those before it */
    int stage, phase;             /* the next stage to fill */
    int arriving, arriving_phase; /* the oldest stage in flight */
    int in_flight;                /* stages */
};

/* Moves to the warp's first piece of segment p->s of the plan. The block's pieces are numbered as in
 * count_pieces (persistent_list.cu). */
template <class W, int R> FB_DEVICE void pk_enter_segment(const mv_plan &plan, int warp, pk_producer *p) {
    const mv_segment &seg = plan.seg[p->s];
    const int per = 32 / mv_elements<W>::value; /* chunks of a block */
    mv_share share = mv_share_of<R>(seg);
    int rows = share.end - share.first, sums_each = plan.combined ? plan.sums_each : seg.sums_row;
    int number = (warp - p->before) & (MV_WARPS - 1), unit = number / seg.pieces;
    int row = share.first + unit * R;
    p->stage_row = plan.stage_row;
    p->scale_at = plan.scale_at;
    p->stage_scales = plan.scale_row;
    p->x_at = seg.x_at;
    p->x_bytes = seg.x_bytes;
    p->partial = p->base + unit * R * sums_each;
    p->sums_each = sums_each;
    p->sums = seg.piece_sums;
    p->rows = share.end - row;
    p->piece = number - unit * seg.pieces;
    p->pieces = seg.pieces;
    p->skip_rows = seg.skip_units * R;
    p->skip_pieces = seg.skip_pieces;
    p->chunks = seg.chunks;
    p->piece_chunks = seg.lane_chunks * FB_WARP;
    p->record_bytes = seg.record_bytes;
    p->type = seg.w_type;
    p->from = seg.w + (int64_t)row * seg.row_bytes;
    p->row_bytes = seg.row_bytes;
    p->scales = (const uint8_t *)(seg.scales + (int64_t)row * seg.chunks / per);
    p->scale_row = seg.chunks / per * 2;
    p->base += plan.combined ? seg.sums : rows * sums_each;
    p->before += (rows + R - 1) / R * seg.pieces;
}

/* Moves on by MV_WARPS pieces. */
template <int R> FB_DEVICE void pk_next_piece(pk_producer *p) {
    int rows = p->skip_rows;
    p->piece += p->skip_pieces;
    if (p->piece >= p->pieces) {
        p->piece -= p->pieces;
        rows += R;
    }
    p->partial += rows * p->sums_each;
    p->from += (int64_t)rows * p->row_bytes;
    p->scales += (int64_t)rows * p->scale_row;
    p->rows -= rows;
}

/* Starts the copy of the next piece to the next stage. */
template <class W, int R>
FB_DEVICE void pk_fetch_piece(const pk_params &params, const mv_pipeline &pipeline, pk_producer *p) {
    const int per = 32 / mv_elements<W>::value, first = p->piece * p->piece_chunks;
    const int rows = min(p->rows, R), count = min(p->piece_chunks, p->chunks - first);
    const int begin = mv_records<W>::value ? p->piece * p->record_bytes : first * 16;
    const int bytes = mv_records<W>::value ? min(p->record_bytes, p->row_bytes - begin) : count * 16;
    const int scale_bytes = mv_quantised<W>::value ? count / per * 2 : 0;
    mv_header *header = pipeline.headers + p->stage;
    uint64_t *barrier = pipeline.full + p->stage;
    uint8_t *to = pipeline.stage_memory + p->stage * params.stage_bytes;
    *(int4 *)&header->x_at = make_int4(p->x_at, p->chunks, first, count);
    *(int4 *)&header->partial =
        make_int4(p->partial + p->piece * p->sums, p->sums_each,
                  mv_records<W>::value ? mv_header_rows(rows, (fb_dtype)p->type) : rows, p->x_bytes);
    mv_barrier_expect(barrier, rows * (bytes + scale_bytes));
    /* Rows as long as the stage's lie there without gaps, as they do in memory: one copy for all. */
    bool whole = R > 1 && bytes == p->row_bytes && bytes == p->stage_row;
    int copies = whole ? 1 : rows, times = whole ? rows : 1;
    const uint8_t *from = p->from + begin, *scales = p->scales + first / per * 2;
#pragma unroll 1
    for (int r = 0; r < copies; r++, from += p->row_bytes, scales += p->scale_row) {
        mv_bulk_copy_evict_first(to + r * p->stage_row, from, times * bytes, barrier);
        if (mv_quantised<W>::value)
            mv_bulk_copy_evict_first(to + p->scale_at + r * p->stage_scales, scales, times * scale_bytes,
                                     barrier);
    }
    pk_next_piece<R>(p);
    p->in_flight++;
    if (++p->stage == params.stages) {
        p->stage = 0;
        p->phase ^= 1;
    }
}

/* Does one thing: starts a copy, enters a segment, or goes to the next op. False if it would have to wait. */
template <class W, int R>
FB_DEVICE bool pk_producer_advance(const pk_params &params, const pk_op *ops, const pk_op_barriers &barriers,
                                   const pk_pipeline &pipeline, int warp, pk_producer *p) {
    if (p->rows > 0) {
        if (p->in_flight == params.in_flight) {
            if (!mv_barrier_test(pipeline.of.full + p->arriving, p->arriving_phase)) return false;
            p->in_flight--;
            if (++p->arriving == params.stages) {
                p->arriving = 0;
                p->arriving_phase ^= 1;
            }
        }
        if (!mv_barrier_test(pipeline.empty + p->stage, p->phase ^ 1)) return false;
        pk_fetch_piece<W, R>(params, pipeline.of, p);
        return true;
    }
    if (++p->s >= p->segments) { /* the next op */
        p->s--;
        if (p->op + 1 < params.count && !pk_op_ready(barriers, p->op + 1)) return false;
        if (p->op >= 0) mv_barrier_arrive(barriers.empty + p->op % PK_OP_STAGES);
        if (++p->op == params.count) return true;
        const pk_op &op = ops[p->op % PK_OP_STAGES];
        p->segments = op.kind == PK_MATVEC ? op.matvec.segments : 0;
        p->base = p->before = 0;
        p->s = -1;
        return true;
    }
    pk_enter_segment<W, R>(ops[p->op % PK_OP_STAGES].matvec, warp, p);
    return true;
}

/* Runs until all weights of all ops are requested. Only the first PK_PRODUCER_PIPELINES lanes of a producer
 * warp fill a pipeline: lanes of one warp issue their bulk copies one after the other. */
template <class W, int R>
FB_DEVICE void pk_produce(const pk_params &params, uint8_t *shared, const pk_op_barriers &barriers) {
    const int producer = (int)threadIdx.x / FB_WARP - MV_WARPS, lane = (int)threadIdx.x % FB_WARP;
    if (lane >= PK_PRODUCER_PIPELINES) return;
    const int warp = producer + lane * PK_PRODUCER_WARPS;
    const pk_op *ops = (const pk_op *)(shared + params.ops_at);
    pk_pipeline pipeline = pk_pipeline_of(params, shared, warp);
    pk_producer p = {};
    p.op = -1;
#pragma unroll 1
    while (p.op < params.count) {
        bool advanced = pk_producer_advance<W, R>(params, ops, barriers, pipeline, warp, &p);
#ifdef FB_EMULATED
        fb_emulated_yield(!advanced);
#else
        if (!advanced) __nanosleep(PK_BACKOFF_NS);
#endif
    }
}

#endif
