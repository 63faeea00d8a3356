/* linear, linear_group and head_argmax of up to 8 rows: weights are read once, at the memory's speed.
 *
 * Decoding is nothing but reading weights, so all that counts is that reads are always on their way. While a
 * block multiplies they are (matvec_ring.cuh); what is lost is lost between: the launch, the norm and the
 * quantisation of x, the outputs. Therefore one block a multiprocessor, whose rings are full before x is
 * there, and half as many threads as there could be, since of what is not a product every warp does the same.
 * (Two smaller blocks, so that the next kernel's stands beside this one's, made a step slower, 3.1 ms instead
 * of 2.0: probably two of the same launch end up on one multiprocessor while attention has others.)
 *
 * The order of a dot product's sum depends on the number of columns, the weight's dtype and the way of
 * multiplying alone (shape_of in linear.cu): a row is cut into chunks of 16 bytes; a warp's lanes take
 * chunks l, l + 32, … of a piece, each adds them one after the other, the lanes are added as a tree and the
 * pieces in their order. Which warp takes which piece of which row has no influence, nor have the number of
 * rows, other segments, or what is done with the result. */
#ifndef FB_BACKEND_CUDA_MATVEC_CUH
#define FB_BACKEND_CUDA_MATVEC_CUH

#include "backend/cuda/matvec_input.cuh"
#include "backend/cuda/matvec_output.cuh"
#include "backend/cuda/step_list.h"

#ifdef FB_EMULATED
#define __grid_constant__
#endif

/* Rows that share the reads of x, and what is to be done for a piece of them. */
template <class W, int M> struct mv_rows {
    static const int value = M > 1 || mv_elements<W>::value == 32 ? 2 : 1;
};

/* Chunks first + at, first + at + 32, …, `steps` of them, of R rows, times M rows of x. They are in a slot of
 * the ring, or, where they cannot be copied whole, in global memory still. */
template <class W, class X, int M, int R, bool RING, int steps>
FB_DEVICE void mv_multiply_steps(const mv_plan &plan, const mv_head *head, const int4 what, const int4 where,
                                 const uint8_t *slot, const uint8_t *shared, int at, float *acc) {
    const int per = 32 / mv_elements<W>::value, chunks = what.y, first = what.z;
#pragma unroll
    for (int j = 0; j < steps; j++, at += FB_WARP) {
        uint4 w[R];
        float scale[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint16_t bits = 0;
            if (RING) {
                w[r] = *(const uint4 *)(slot + r * plan.slot_row + at * 16);
                if (mv_quantised<W>::value)
                    bits = ((const uint16_t *)(slot + plan.scale_at + r * plan.scale_row))[at / per];
            } else {
                const mv_segment &seg = plan.seg[head->s];
                int row = head->row + min(r, where.z - 1);
                w[r] = mv_gather((const W *)(seg.w + (int64_t)row * seg.row_bytes), seg.cols, first + at);
                if (mv_quantised<W>::value)
                    bits = __ldg(seg.scales + ((int64_t)row * chunks + first + at) / per);
            }
            scale[r] = mv_quantised<W>::value ? fb_widen(fb_half{bits}) : 1;
        }
        mv_products<W, X, M, R>::add(w, scale, shared + what.x, M == 1 ? 0 : where.w, chunks, first + at,
                                     acc);
    }
}

/* What the next slot holds, R rows' piece, times M rows of x; the sums to partial[m * plan.partials + r *
 * far]. One row has code of its own for pieces of 5 and 8 steps, which float16 of the usual widths has. */
template <class W, class X, int M, int R, bool RING>
FB_DEVICE void mv_multiply(const mv_plan &plan, const mv_ring &ring, const int4 what, const uint8_t *shared,
                           float *partial) {
    const int lane = (int)threadIdx.x % FB_WARP, count = what.w;
    const mv_head *head = ring.heads + ring.slot;
    const int4 where = *(const int4 *)&head->partial;
    const uint8_t *slot = ring.slots + ring.slot * plan.slot_bytes;
    float acc[R * M];
#pragma unroll
    for (int i = 0; i < R * M; i++) acc[i] = 0;
    if (M == 1 && RING && count == 8 * FB_WARP)
        mv_multiply_steps<W, X, M, R, RING, 8>(plan, head, what, where, slot, shared, lane, acc);
    else if (M == 1 && RING && count == 5 * FB_WARP)
        mv_multiply_steps<W, X, M, R, RING, 5>(plan, head, what, where, slot, shared, lane, acc);
    else
#pragma unroll 2
        for (int at = lane; at < count; at += FB_WARP)
            mv_multiply_steps<W, X, M, R, RING, 1>(plan, head, what, where, slot, shared, at, acc);
#pragma unroll
    for (int i = 0; i < R * M; i++)
        for (int step = FB_WARP / 2; step; step >>= 1) acc[i] += __shfl_xor_sync(FB_ALL, acc[i], step);
    if (lane == 0)
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int m = 0; m < M; m++)
                if ((R == 1 || r < where.z) && (M == 1 || m < plan.ms))
                    partial[where.x + m * plan.partials + r * where.y] = acc[r * M + m];
}

template <class W, class X, int M, bool RING>
__global__ void __launch_bounds__(MV_THREADS, 1) mv_kernel(const __grid_constant__ mv_plan plan) {
    const int R = mv_rows<W, M>::value;
    FB_SHARED(uint8_t, shared);
    __shared__ fb_row_stats stats[MV_MOST_ROWS];
    __shared__ int last;
    fb_let_next_start();
    mv_ring ring = mv_ring_of(plan, shared);
    mv_walk walk;
    /* A few warps ask for x first, as soon as it is there; the others for weights. */
    const bool copies = threadIdx.x < MV_COPIERS;
    if (!copies) mv_fill<W, R, RING>(plan, ring, walk);
    mv_norm_8 norms[2];
    if (RING && M == 1) mv_ask_norms(plan, norms);
    mv_output mine = mv_output_of<R>(plan, (int)threadIdx.x);
    mv_rest rest = {{0, 0}, 0};
    if (mine.s >= 0 && !plan.results) mv_get_biases(plan, mine, &rest);

    fb_wait_for_previous();
    if (copies) {
        mv_copy_rows(plan, shared);
        mv_fill<W, R, RING>(plan, ring, walk);
    }
    if (mine.s >= 0 && !plan.results) mv_get_residual(plan, mine, 0, &rest);
    mv_rows_copied();
    float *partial = (float *)(shared + plan.partial_at);
    mv_stage_all<RING, W, X, M>(plan, shared, partial, stats, norms);
    mv_sync();

#pragma unroll 1
    for (;;) {
        const int4 what = *(const int4 *)&ring.heads[ring.slot].x_at;
        if (what.w == 0) break;
        if (RING) mv_arrive(plan, ring);
        mv_multiply<W, X, M, R, RING>(plan, ring, what, shared, partial);
        mv_refill<W, R, RING>(plan, ring, walk);
    }
    mv_sync();
    if (plan.results)
        mv_best_of_all(plan, mv_look<R>(plan, partial), &last);
    else
        mv_finish<R>(plan, partial, rest);
}

/* ---- launching ------------------------------------------------------------------------------------------
 */

static int64_t mv_round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Where the inputs lie in shared memory, `ms` rows of each; their end. */
template <class W, class X> static int64_t mv_place_inputs(mv_plan *plan, int ms, bool whole) {
    int64_t staged = 0;
    for (int s = 0; s < plan->segments; s++) {
        mv_segment *seg = &plan->seg[s];
        int64_t bytes = mv_integers<X>::value ? seg->cols / 32 * 40
                                              : seg->chunks * mv_elements<W>::value * (int64_t)sizeof(X);
        seg->x_bytes = (int)mv_round_up(bytes, 16);
        seg->copies = seg->same_raw = false;
        seg->raw_at = -1;
        if (!seg->stages) {
            seg->x_at = plan->seg[seg->same].x_at;
            continue;
        }
        if (sizeof(X) == 2 && seg->norm == FB_OP_COUNT) /* then x is of X, too */
            seg->copies = whole;
        seg->x_at = (int)staged;
        staged += seg->x_bytes * (int64_t)ms;
    }
    return staged;
}

/* Room for one row of each input that is not staged as it is, from `at` on; its end. */
static int64_t mv_place_raw(mv_plan *plan, int64_t at) {
    for (int s = 0; s < plan->segments; s++) {
        mv_segment *seg = &plan->seg[s];
        if (!seg->stages || seg->copies || plan->dot == FB_DOT_GIVEN) continue;
        for (int e = 0; e < s; e++)
            if (plan->seg[e].raw_at >= 0 && plan->seg[e].x == seg->x && plan->seg[e].cols == seg->cols) {
                seg->raw_at = plan->seg[e].raw_at;
                seg->same_raw = true;
            }
        if (seg->raw_at >= 0) continue;
        seg->raw_at = (int32_t)at;
        at += seg->cols * (plan->x_type == FB_F32 ? 4 : 2);
    }
    return at;
}

/* A slot of the ring: R rows' piece of the segment that has the longest, and its scales. */
template <class W> static void mv_plan_slot(mv_plan *plan, int at_once) {
    plan->slot_row = 0;
    for (int s = 0; s < plan->segments; s++) {
        const mv_segment *seg = &plan->seg[s];
        int bytes = seg->pieces == 1 ? seg->chunks * 16 : seg->steps * FB_WARP * 16;
        if (bytes > plan->slot_row) plan->slot_row = bytes;
    }
    plan->scale_at = at_once * plan->slot_row;
    plan->scale_row = mv_quantised<W>::value ? plan->slot_row / (mv_elements<W>::value == 32 ? 8 : 16) : 0;
    plan->slot_bytes = (int32_t)mv_round_up(at_once * (plan->slot_row + plan->scale_row), 128);
}

/* Slots of a ring, at most. Many keep the memory busy from the start but delay x, before which they are
 * asked: where a block has much to read, that is made up for (Pythia-2.8B in float16: 1.76 ms a token with
 * four, 1.83 with two), else not (Llama-3.2-1B: 0.98 and 0.94). */
static int mv_depth(const mv_plan *plan, int64_t grid) {
    int64_t bytes = 0;
    for (int s = 0; s < plan->segments; s++) bytes += (int64_t)plan->seg[s].rows * plan->seg[s].row_bytes;
    return bytes / grid > MV_LONG ? MV_DEPTH : 2;
}

template <class W, class X, int M, bool RING>
static int mv_launch_rows(mv_plan *plan, const fb_cuda_context *cx) {
    const int R = mv_rows<W, M>::value;
    const int64_t room = cx->limits->shared_limit - 256 /* what the kernel itself declares */;
    int64_t units = 0, staged = mv_place_inputs<W, X>(plan, M, RING), end, partial;
    for (int s = 0; s < plan->segments; s++) {
        int64_t of = (plan->seg[s].rows + R - 1) / R;
        units = of > units ? of : units;
    }
    if (M == 1 && RING) staged = mv_place_raw(plan, staged);
    /* A block a multiprocessor; more where their partial sums would leave no room for a ring. */
    int64_t rest = staged + mv_round_up(MV_RING_BYTES, 128);
    if (RING) {
        mv_plan_slot<W>(plan, R);
        rest += MV_WARPS * (int64_t)plan->slot_bytes;
    }
    int64_t grid = cx->limits->sms < units ? cx->limits->sms : units;
    for (;; grid += cx->limits->sms) {
        if (grid > units) grid = units;
        if (plan->results && grid > MV_MOST_BLOCKS) grid = MV_MOST_BLOCKS;
        mv_plan_blocks(plan, R, (int)grid);
        partial = mv_round_up(plan->partials * (int64_t)M * (int64_t)sizeof(float), 16);
        bool most = grid == units || (plan->results && grid == MV_MOST_BLOCKS);
        if (rest + partial <= room - MV_SPARE || rest > room - MV_SPARE || most) break;
    }
    if (partial < (int64_t)(FB_NORM_ROOM * sizeof(float))) partial = FB_NORM_ROOM * sizeof(float);
    plan->partial_at = (int)staged;
    end = staged + partial;
    plan->depth = 1;
    plan->heads_at = (int)(end = mv_round_up(end, 16));
    plan->ring_at = (int)(end = mv_round_up(end + MV_RING_BYTES, 128));
    if (RING) {
        int64_t ring = MV_WARPS * (int64_t)plan->slot_bytes, depth = (room - end) / ring;
        if (depth < 1) return MV_TOO_LARGE;
        int64_t most = mv_depth(plan, grid);
        plan->depth = (int32_t)(depth < most ? depth : most);
        end += plan->depth * ring;
    }
    if (end > room) return MV_TOO_LARGE;
    return FB_LAUNCH(cx, dim3((unsigned)grid), dim3(MV_THREADS), (size_t)end, (mv_kernel<W, X, M, RING>),
                     *plan);
}

/* Whether every row of x begins at a multiple of 16 bytes, and is whole chunks. */
static bool mv_inputs_whole(const mv_plan *plan) {
    int64_t element = plan->x_type == FB_F32 ? 4 : 2;
    if (plan->dot == FB_DOT_GIVEN) return true;
    for (int s = 0; s < plan->segments; s++) {
        const mv_segment *seg = &plan->seg[s];
        if (seg->cols % 8 || !fb_aligned(seg->x, 16) || (plan->ms > 1 && seg->x_stride * element % 16))
            return false;
    }
    return true;
}

/* For a list instead of a launch: one row, and a ring that all ops of the list share. */
template <class W, class X> static int mv_append(const mv_plan *plan, const fb_cuda_context *cx) {
    if constexpr (sizeof(X) == 2 || mv_integers<X>::value) {
        const int R = mv_rows<W, 1>::value;
        mv_plan own = *plan;
        int64_t staged = mv_place_raw(&own, mv_place_inputs<W, X>(&own, 1, true));
        for (int s = 0; s < own.segments; s++) {
            if (MV_WARPS % own.seg[s].pieces) return FB_CUDA_NOT_LISTED;
            for (own.seg[s].shift = 0; 1 << own.seg[s].shift < own.seg[s].pieces;) own.seg[s].shift++;
        }
        mv_plan_slot<W>(&own, R);
        mv_plan_blocks(&own, R, cx->limits->sms);
        int64_t partial = own.partials > FB_NORM_ROOM ? own.partials : FB_NORM_ROOM;
        own.partial_at = (int)staged;
        return st_add_matvec(&own, R, mv_dtype<W>::value, staged + partial * (int64_t)sizeof(float),
                             cx->list);
    }
    return FB_CUDA_NOT_LISTED;
}

/* Where x does not fit, fewer rows at a time: the weights are then read more than once. */
template <class W, class X> static int mv_launch(const mv_plan *plan, const fb_cuda_context *cx) {
    bool whole = plan->aligned && mv_inputs_whole(plan);
    int most = whole ? MV_MOST_ROWS : 4;
    if (cx->list)
        return whole && plan->ms == 1 && !plan->sums && !plan->given && !plan->results
                   ? mv_append<W, X>(plan, cx)
                   : FB_CUDA_NOT_LISTED;
    for (int row = 0; row < plan->ms;) {
        mv_plan part = *plan;
        int left = plan->ms - row;
        part.ms = left < most ? left : most;
        mv_plan_rows(&part, row);
        int code = MV_TOO_LARGE;
        if (whole)
            code = part.ms > 4   ? mv_launch_rows<W, X, 8, true>(&part, cx)
                   : part.ms > 1 ? mv_launch_rows<W, X, 4, true>(&part, cx)
                                 : mv_launch_rows<W, X, 1, true>(&part, cx);
        else if (part.ms > 1)
            code = mv_launch_rows<W, X, 4, false>(&part, cx);
        if (code == MV_TOO_LARGE && part.ms == 1) /* no ring has room beside x, or none can be used */
            code = mv_launch_rows<W, X, 1, false>(&part, cx);
        if (code == MV_TOO_LARGE && part.ms > 1) {
            most = part.ms > 4 ? 4 : 1;
            continue;
        }
        if (code) return code == MV_TOO_LARGE ? 1 /* cudaErrorInvalidValue */ : code;
        row += part.ms;
    }
    return 0;
}

#endif
