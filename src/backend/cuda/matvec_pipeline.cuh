/* How weights get from global memory to the warps of a matvec.
 *
 * A block has some rows of each segment. It cuts R rows at a time (a unit) into pieces, and its warps take
 * the pieces in turn. Each warp has a pipeline: stages in shared memory that hold a piece each. One lane of
 * the warp runs ahead and fills the free stages with the pieces that come next. (In the persistent kernel, a
 * lane of a producer warp does: persistent_weights.cuh.) From sm_90 on it issues one bulk copy a row, which
 * costs the other lanes neither registers nor instructions. On older devices all lanes copy, 16 bytes each.
 *
 * Each stage has a header with what the warp must know to multiply the piece: computing it takes longer than
 * multiplying. */
#ifndef FB_BACKEND_CUDA_MATVEC_PIPELINE_CUH
#define FB_BACKEND_CUDA_MATVEC_PIPELINE_CUH

#include "backend/cuda/matvec.h"
#include "backend/cuda/matvec_products.cuh"

/* Whether mv_kernel uses bulk copies. The emulation does not, as on devices before sm_90; in the persistent
 * kernel it does. */
#if !defined FB_EMULATED && defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
#define MV_BULK 1
#else
#define MV_BULK 0
#endif

/* A barrier of the MV_THREADS threads that multiply. The persistent kernel has other threads, too. */
FB_DEVICE void mv_sync() { fb_sync<MV_THREADS>(); }

/* ---- copies ---- */

#ifdef FB_EMULATED
/* Copies complete at once. From the low end, sixteen bits each: completed phases, arrivals still missing,
 * arrivals of a phase. */
FB_DEVICE void mv_barrier_init(uint64_t *barrier, int count) {
    *barrier = (uint64_t)count << 32 | (uint64_t)count << 16;
}
FB_DEVICE void mv_barrier_init_fence() {}
FB_DEVICE void mv_barrier_arrive(uint64_t *barrier) {
    uint64_t count = *barrier >> 32, left = (*barrier >> 16 & 0xffff) - 1, phase = *barrier & 0xffff;
    *barrier = count << 32 | (left ? left : count) << 16 | ((phase + !left) & 0xffff);
}
FB_DEVICE void mv_barrier_expect(uint64_t *barrier, int) { mv_barrier_arrive(barrier); }
FB_DEVICE bool mv_barrier_test(uint64_t *barrier, int phase) { return (int)(*barrier & 1) != phase; }
FB_DEVICE void mv_barrier_wait(uint64_t *barrier, int phase) {
    for (bool idle = false; !mv_barrier_test(barrier, phase); idle = true) fb_emulated_yield(idle);
}
FB_DEVICE void mv_bulk_copy(void *to, const void *from, int bytes, uint64_t *) {
    memcpy(to, from, (size_t)bytes);
}
FB_DEVICE void mv_bulk_copy_evict_first(void *to, const void *from, int bytes, uint64_t *barrier) {
    mv_bulk_copy(to, from, bytes, barrier);
}
#elif defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
FB_DEVICE uint32_t mv_shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
/* An mbarrier. A phase completes after `count` arrivals, when all bytes that they announced are copied. */
FB_DEVICE void mv_barrier_init(uint64_t *barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mv_shared(barrier)), "r"(count) : "memory");
}
FB_DEVICE void mv_barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
FB_DEVICE void mv_barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mv_shared(barrier)) : "memory");
}
FB_DEVICE void mv_barrier_expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mv_shared(barrier)),
                 "r"(bytes)
                 : "memory");
}
/* Whether the phase of that parity has completed. */
FB_DEVICE bool mv_barrier_test(uint64_t *barrier, int phase) {
    uint32_t ended;
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, ended;\n"
                 "}"
                 : "=r"(ended)
                 : "r"(mv_shared(barrier)), "r"(phase)
                 : "memory");
    return ended != 0;
}
FB_DEVICE void mv_barrier_wait(uint64_t *barrier, int phase) {
    asm volatile("{\n"
                 ".reg .pred arrived;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 arrived, [%0], %1;\n"
                 "@arrived bra there;\n"
                 "bra again;\n"
                 "there:\n"
                 "}" ::"r"(mv_shared(barrier)),
                 "r"(phase)
                 : "memory");
}
FB_DEVICE void mv_bulk_copy(void *to, const void *from, int bytes, uint64_t *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            mv_shared(to)),
        "l"(from), "r"(bytes), "r"(mv_shared(barrier))
        : "memory");
}
/* For weights. They are read once a step, so the L2 evicts them first. Otherwise they evict what a step reads
 * again and again: x, norms and, it seems, the kernel's instructions. A step of Llama-3.2-1B then took 10%
 * longer (float16, persistent kernel). */
FB_DEVICE void mv_bulk_copy_evict_first(void *to, const void *from, int bytes, uint64_t *barrier) {
    asm volatile("{\n"
                 ".reg .b64 policy;\n"
                 "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1], %2, [%3], policy;\n"
                 "}" ::"r"(mv_shared(to)),
                 "l"(from), "r"(bytes), "r"(mv_shared(barrier))
                 : "memory");
}
#else /* never called: no bulk copies before sm_90 */
FB_DEVICE void mv_barrier_init(uint64_t *, int) {}
FB_DEVICE void mv_barrier_init_fence() {}
FB_DEVICE void mv_barrier_arrive(uint64_t *) {}
FB_DEVICE void mv_barrier_expect(uint64_t *, int) {}
FB_DEVICE bool mv_barrier_test(uint64_t *, int) { return true; }
FB_DEVICE void mv_barrier_wait(uint64_t *, int) {}
FB_DEVICE void mv_bulk_copy(void *, const void *, int, uint64_t *) {}
FB_DEVICE void mv_bulk_copy_evict_first(void *, const void *, int, uint64_t *) {}
#endif

/* ---- the order of pieces ---- */

/* A block's rows of a segment. */
struct mv_share {
    int first, end;
};
template <int R> FB_DEVICE mv_share mv_share_of(const mv_segment &seg) {
    int block = (int)blockIdx.x, unit = block * seg.units + min(block, seg.extra);
    /* The last unit may have fewer rows, and a block may have no unit. */
    return {min(unit * R, seg.rows), min((unit + seg.units + (block < seg.extra)) * R, seg.rows)};
}

/* A warp's next piece: piece number `piece` of rows [row, min(row + R, end)) of segment s. */
struct mv_cursor {
    int s, row, end, piece;
    int partial; /* index of the first partial sum of `row` */
};

/* Moves to the piece that comes `left` pieces after the block's first one of segment s; it may belong to a
 * later segment. */
template <int R> FB_DEVICE void mv_cursor_seek(const mv_plan &plan, mv_cursor &cursor, int s, int left) {
    for (;; s++) {
        const mv_segment &seg = plan.seg[s];
        mv_share share = mv_share_of<R>(seg);
        int units = (share.end - share.first + R - 1) / R, unit = left / seg.pieces;
        int sums_each = plan.combined ? plan.sums_each : seg.sums_row;
        cursor.s = s;
        cursor.end = share.end;
        cursor.row = share.first + unit * R;
        cursor.piece = left - unit * seg.pieces;
        if (unit < units || s + 1 >= plan.segments) {
            cursor.partial += unit * R * sums_each;
            return;
        }
        left -= units * seg.pieces;
        cursor.partial += plan.combined ? seg.sums : (share.end - share.first) * sums_each;
    }
}

/* Moves on by MV_WARPS pieces. cursor.row >= cursor.end: there is no piece left. */
template <int R> FB_DEVICE void mv_cursor_next(const mv_plan &plan, mv_cursor &cursor) {
    const mv_segment &seg = plan.seg[cursor.s];
    int units = seg.skip_units, pieces = seg.pieces;
    int sums_each = plan.combined ? plan.sums_each : seg.sums_row;
    cursor.piece += seg.skip_pieces;
    if (cursor.piece >= pieces) {
        cursor.piece -= pieces;
        units++;
    }
    cursor.row += units * R;
    cursor.partial += units * R * sums_each;
    if (cursor.row < cursor.end || cursor.s + 1 >= plan.segments) return;
    /* The rest of the MV_WARPS pieces is counted from the next segment's first. */
    mv_share share = mv_share_of<R>(seg);
    int over = (cursor.row - cursor.end) / R;
    cursor.partial -= (cursor.row - share.first) * sums_each; /* back to the segment's first */
    cursor.partial += plan.combined ? seg.sums : (share.end - share.first) * sums_each;
    mv_cursor_seek<R>(plan, cursor, cursor.s + 1, over * pieces + cursor.piece);
}

/* ---- the pipeline ---- */

/* The piece that a stage holds. Its first eight fields are read as two int4, `what` and `where`. */
struct __align__(16) mv_header {
    int x_at, chunks;         /* offset of the staged x; chunks of a row */
    int first, count;         /* the piece's chunks; count is 0 after the last piece */
    int partial, row_partial; /* index of the first row's partial sum; from there to the next row's */
    int rows, x_bytes;        /* rows of weights (mv_rows_of); bytes from a staged row of x to the next */
    int s, row;               /* segment and first row, for weights that are not copied */
    int none[2];
};

/* Rows of weights as in a header: of records, with their type. */
FB_HOST_DEV int mv_header_rows(int rows, fb_dtype type) { return rows | (int)type << 8; }
FB_HOST_DEV int mv_rows_of(int header) { return header & 255; }
FB_HOST_DEV fb_dtype mv_type_of(int header) { return (fb_dtype)(header >> 8); }

struct mv_pipeline {
    uint8_t *stage_memory;
    mv_header *headers; /* of the stages */
    uint64_t *full;     /* barriers of the stages: the piece has arrived */
    int stage, phase;   /* the next stage to read; how often all were read, modulo 2 */
};

#define MV_HEADER_BYTES                                                                                      \
    (MV_WARPS * MV_STAGES * (int)(sizeof(mv_header) + sizeof(uint64_t))) /* headers and barriers */

FB_DEVICE mv_pipeline mv_pipeline_of(const mv_plan &plan, uint8_t *shared) {
    int warp = (int)threadIdx.x / FB_WARP;
    mv_pipeline pipeline;
    pipeline.stage_memory = shared + plan.stages_at + warp * plan.stages * plan.stage_bytes;
    pipeline.headers = (mv_header *)(shared + plan.headers_at) + warp * MV_STAGES;
    pipeline.full =
        (uint64_t *)(shared + plan.headers_at + MV_WARPS * MV_STAGES * sizeof(mv_header)) + warp * MV_STAGES;
    pipeline.stage = pipeline.phase = 0;
    return pipeline;
}

/* Starts the copy of the cursor's piece to a stage that no lane still reads, and moves the cursor on. With
 * bulk copies only the first lane of the warp may call it. PIPELINED false: writes the header only. */
template <class W, int R, bool PIPELINED, bool BULK>
FB_DEVICE void mv_fetch_piece(const mv_plan &plan, const mv_pipeline &pipeline, int stage,
                              mv_cursor &cursor) {
    int lane = (int)threadIdx.x % FB_WARP;
    if (cursor.row >= cursor.end) {
        if (lane == 0) pipeline.headers[stage].count = 0;
    } else {
        const mv_segment &seg = plan.seg[cursor.s];
        const int per = 32 / mv_elements<W>::value; /* chunks of a block */
        int first = cursor.piece * seg.lane_chunks * FB_WARP, rows = min(cursor.end - cursor.row, R);
        int count = min(seg.lane_chunks * FB_WARP, seg.chunks - first);
        if (lane == 0) {
            mv_header *header = pipeline.headers + stage;
            *(int4 *)&header->x_at = make_int4(seg.x_at, seg.chunks, first, count);
            *(int4 *)&header->partial = make_int4(
                cursor.partial + cursor.piece * seg.piece_sums, plan.combined ? plan.sums_each : seg.sums_row,
                mv_records<W>::value ? mv_header_rows(rows, seg.w_type) : rows, seg.x_bytes);
            if (!PIPELINED) *(int2 *)&header->s = make_int2(cursor.s, cursor.row);
        }
        if (PIPELINED) {
            uint8_t *to = pipeline.stage_memory + stage * plan.stage_bytes;
            const int begin = mv_records<W>::value ? cursor.piece * seg.record_bytes : first * 16;
            const int bytes =
                !mv_records<W>::value ? count * 16 : min(seg.record_bytes, seg.row_bytes - begin);
            const uint8_t *from = seg.w + (int64_t)cursor.row * seg.row_bytes + begin;
            const uint16_t *scale = seg.scales + ((int64_t)cursor.row * seg.chunks + first) / per;
            const bool scales = mv_quantised<W>::value;
            int scale_bytes = scales ? count / per * 2 : 0;
            if constexpr (BULK) {
                uint64_t *barrier = pipeline.full + stage;
                mv_barrier_expect(barrier, rows * (bytes + scale_bytes));
                /* Rows as long as the stage's lie there without gaps, as they do in memory: one copy. */
                bool whole = R > 1 && bytes == plan.stage_row && seg.pieces == 1;
                int copies = whole ? 1 : rows, times = whole ? rows : 1;
#pragma unroll 1
                for (int r = 0; r < copies; r++) {
                    mv_bulk_copy_evict_first(to + r * plan.stage_row, from + (int64_t)r * seg.row_bytes,
                                             times * bytes, barrier);
                    if (scales)
                        mv_bulk_copy_evict_first(to + plan.scale_at + r * plan.scale_row,
                                                 scale + r * (seg.chunks / per), times * scale_bytes,
                                                 barrier);
                }
            } else {
                for (int r = 0; r < rows; r++) {
#pragma unroll 5
                    for (int at = lane * 16; at < bytes; at += FB_WARP * 16)
                        fb_copy_16(to + r * plan.stage_row + at, from + (int64_t)r * seg.row_bytes + at);
                    if (!scales) continue;
                    const uint8_t *row_scales = (const uint8_t *)(scale + r * (seg.chunks / per));
                    for (int at = lane * 16; at < scale_bytes; at += FB_WARP * 16)
                        fb_copy_16(to + plan.scale_at + r * plan.scale_row + at, row_scales + at);
                }
            }
        }
        mv_cursor_next<R>(plan, cursor);
    }
    if (PIPELINED && !BULK) fb_copy_commit();
}

/* Initialises the pipeline and fills all its stages. */
template <class W, int R, bool PIPELINED>
FB_DEVICE void mv_fill_pipeline(const mv_plan &plan, const mv_pipeline &pipeline, mv_cursor &cursor) {
#if MV_BULK
    if (threadIdx.x % FB_WARP == 0) {
#pragma unroll 1
        for (int i = 0; PIPELINED && i < plan.stages; i++) mv_barrier_init(pipeline.full + i, 1);
        mv_barrier_init_fence();
#else
    {
#endif
        cursor.partial = 0;
        mv_cursor_seek<R>(plan, cursor, 0, (int)threadIdx.x / FB_WARP);
#pragma unroll 1
        for (int i = 0; i < plan.stages; i++)
            mv_fetch_piece<W, R, PIPELINED, MV_BULK>(plan, pipeline, i, cursor);
    }
    __syncwarp();
}

/* Waits until the next stage's piece has arrived. */
FB_DEVICE void mv_wait_stage(const mv_plan &plan, const mv_pipeline &pipeline) {
#if MV_BULK
    (void)plan;
    mv_barrier_wait(pipeline.full + pipeline.stage, pipeline.phase);
#else
    (void)pipeline;
    switch (plan.stages) {
    case 1:
        fb_copy_wait<0>();
        break;
    case 2:
        fb_copy_wait<1>();
        break;
    case 3:
        fb_copy_wait<2>();
        break;
    default:
        fb_copy_wait<3>();
    }
    __syncwarp();
#endif
}

/* Refills the stage that the warp has just multiplied, and moves to the next one. */
template <class W, int R, bool PIPELINED>
FB_DEVICE void mv_refill_stage(const mv_plan &plan, mv_pipeline &pipeline, mv_cursor &cursor) {
    __syncwarp();
#if MV_BULK
    if (threadIdx.x % FB_WARP == 0)
#endif
        mv_fetch_piece<W, R, PIPELINED, MV_BULK>(plan, pipeline, pipeline.stage, cursor);
    __syncwarp();
    if (++pipeline.stage == plan.stages) {
        pipeline.stage = 0;
        pipeline.phase ^= 1;
    }
}

#endif
