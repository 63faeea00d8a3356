/* linear, linear_group and head_argmax of up to 8 rows: the weights are read once, at the memory's speed.
 *
 * Decoding is limited by reading weights, so reads must always be in flight. While a block multiplies they
 * are (matvec_pipeline.cuh). Time is lost between: in the launch, the norm and quantisation of x, and the
 * outputs. Therefore there is one block a multiprocessor, whose pipelines are full before x has arrived. It
 * has half as many threads as it could have, because outside the products every warp does the same work. (Two
 * smaller blocks, so that the next kernel's block fits beside this one's, made a step slower: 3.1 ms instead
 * of 2.0. Probably two blocks of one launch share a multiprocessor while attention occupies others.)
 *
 * The order of a sum is that of sums.h. Which warp takes which piece makes no difference. 16-bit floats are
 * multiplied by tensor cores, one row of x at a time: an instruction replaces sixteen. */
#ifndef FB_BACKEND_CUDA_MATVEC_CUH
#define FB_BACKEND_CUDA_MATVEC_CUH

#include "backend/cuda/matvec_input.cuh"
#include "backend/cuda/matvec_output.cuh"
#include "backend/cuda/matvec_records.cuh"
#include "backend/cuda/persistent_list.h"

#ifdef FB_EMULATED
#define __grid_constant__
#endif

/* Rows of weights (R) that a warp multiplies at once: they share the reads of x and the work for a piece. */
template <class W, int M> struct mv_rows {
    static const int value = M > 1 || mv_elements<W>::value == 32 ? 2 : 1;
};

/* Adds to acc: `count` chunks of R rows of weights, first + at, first + at + 32, …, times M rows of x. The
 * weights are in a stage of the pipeline, or in global memory, if their chunks are not aligned. */
template <class W, class X, int M, int R, bool PIPELINED, int count>
FB_DEVICE void mv_multiply_chunks(const mv_plan &plan, const mv_header *header, const int4 what,
                                  const int4 where, const uint8_t *stage, const uint8_t *shared, int at,
                                  float *acc) {
    const int per = 32 / mv_elements<W>::value, chunks = what.y, first = what.z;
#pragma unroll
    for (int j = 0; j < count; j++, at += FB_WARP) {
        uint4 w[R];
        float scale[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint16_t bits = 0;
            if (PIPELINED) {
                w[r] = *(const uint4 *)(stage + r * plan.stage_row + at * 16);
                if (mv_quantised<W>::value)
                    bits = ((const uint16_t *)(stage + plan.scale_at + r * plan.scale_row))[at / per];
            } else {
                const mv_segment &seg = plan.seg[header->s];
                int row = header->row + min(r, where.z - 1);
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

/* Two elements of a row of weights in global memory; zeros beyond it. */
template <class T> FB_DEVICE uint32_t mv_pair(const mv_segment &seg, int row, int col) {
    const T *from = (const T *)(seg.w + (int64_t)row * seg.row_bytes) + col;
    return (col < seg.cols ? from[0].bits : 0u) | (col + 1 < seg.cols ? (uint32_t)from[1].bits << 16 : 0u);
}

/* mv_multiply for one row of x and one of weights, both of the 16-bit type T, by tensor cores. Their chains
 * (sums.h) are the eight rows of the first operand and the eight columns of the second: the sums are on the
 * diagonal. */
template <class T, bool PIPELINED>
FB_DEVICE void mv_multiply_tensor(const mv_plan &plan, const mv_pipeline &pipeline, const int4 what,
                                  const uint8_t *shared, float *partial) {
    const int lane = (int)threadIdx.x % FB_WARP, g = lane / 4, t = lane % 4, count = what.w;
    const mv_header *header = pipeline.headers + pipeline.stage;
    /* Lane l loads chunk l of 32: those of two products of each chain. */
    const uint8_t *x = shared + what.x + (what.z + lane) * 16;
    const uint8_t *w = pipeline.stage_memory + pipeline.stage * plan.stage_bytes + lane * 16;
    float sum[4] = {0, 0, 0, 0};
    auto multiply = [&](const uint32_t *a, const uint32_t *b) {
        const uint32_t first[4] = {a[0], 0, a[1], 0}, second[4] = {a[2], 0, a[3], 0};
        fb_mma((const T *)0, sum, first, b);
        fb_mma((const T *)0, sum, second, b + 2);
    };
    auto multiply_whole = [&](int k) {
        uint32_t a[4], b[4];
        fb_ldmatrix(a, x + k * 16);
        fb_ldmatrix(b, w + k * 16);
        multiply(a, b);
    };
    /* Pieces of 2048 and 1280 columns, which the usual widths have. */
    if (PIPELINED && count == 8 * FB_WARP) {
#pragma unroll
        for (int k = 0; k < 8 * FB_WARP; k += FB_WARP) multiply_whole(k);
    } else if (PIPELINED && count == 5 * FB_WARP) {
#pragma unroll
        for (int k = 0; k < 5 * FB_WARP; k += FB_WARP) multiply_whole(k);
    } else {
#pragma unroll 1
        for (int k = 0; k < count; k += FB_WARP) {
            /* Chunks beyond the piece count as zeros. Register i has columns 2 t and 2 t + 1 of chunk 8 i +
             * g. */
            const int at = min(k, count - 1 - lane) * 16;
            uint32_t a[4], b[4];
            fb_ldmatrix(a, x + at);
            if (PIPELINED) fb_ldmatrix(b, w + at);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int chunk = k + 8 * i + g;
                if (!PIPELINED)
                    b[i] = mv_pair<T>(plan.seg[header->s], header->row, (what.z + chunk) * 8 + 2 * t);
                if (chunk >= count) a[i] = b[i] = 0;
            }
            multiply(a, b);
        }
    }
    if (g / 2 == t) partial[header->partial + g] = g % 2 ? sum[1] : sum[0];
}

/* Multiplies the piece in the pipeline's next stage, R rows of weights, with M rows of x. `what`: the first
 * half of its header. The sums go to partial (mv_header). For one row of x there is unrolled code for pieces
 * of 5 and 8 chunks a lane, which float16 of the usual widths has. */
template <class W, class X, int M, int R, bool PIPELINED>
FB_DEVICE void mv_multiply(const mv_plan &plan, const mv_pipeline &pipeline, const int4 what,
                           const uint8_t *shared, float *partial) {
    if constexpr (mv_tensor<X>::value)
        return mv_multiply_tensor<X, PIPELINED>(plan, pipeline, what, shared, partial);
    const int lane = (int)threadIdx.x % FB_WARP, count = what.w;
    const mv_header *header = pipeline.headers + pipeline.stage;
    const int4 where = *(const int4 *)&header->partial;
    const uint8_t *stage = pipeline.stage_memory + pipeline.stage * plan.stage_bytes;
    float acc[R * M];
#pragma unroll
    for (int i = 0; i < R * M; i++) acc[i] = 0;
    if constexpr (mv_records<W>::value) {
        if (PIPELINED) {
            mv_multiply_records<X, M, R>(mv_type_of(where.z), stage, plan.stage_row, R, what, where.w, shared,
                                         acc);
        } else {
            const mv_segment &seg = plan.seg[header->s];
            mv_multiply_records<X, M, R>(mv_type_of(where.z),
                                         seg.w + (int64_t)header->row * seg.row_bytes +
                                             what.z / FB_RECORD_CHUNKS * seg.record_bytes,
                                         seg.row_bytes, mv_rows_of(where.z), what, where.w, shared, acc);
        }
    } else if (M == 1 && PIPELINED && count == 8 * FB_WARP)
        mv_multiply_chunks<W, X, M, R, PIPELINED, 8>(plan, header, what, where, stage, shared, lane, acc);
    else if (M == 1 && PIPELINED && count == 5 * FB_WARP)
        mv_multiply_chunks<W, X, M, R, PIPELINED, 5>(plan, header, what, where, stage, shared, lane, acc);
    else
#pragma unroll 2
        for (int at = lane; at < count; at += FB_WARP)
            mv_multiply_chunks<W, X, M, R, PIPELINED, 1>(plan, header, what, where, stage, shared, at, acc);
    /* Neighbours first: gemm_quant.cu adds a row's blocks in the same order. */
    const int lanes = mv_integers<X>::value ? FB_WARP / FB_SUMS_OCTETS : FB_WARP;
#pragma unroll
    for (int i = 0; i < R * M; i++)
        for (int offset = 1; offset < lanes; offset <<= 1) acc[i] += __shfl_xor_sync(FB_ALL, acc[i], offset);
    const int rows = mv_records<W>::value ? mv_rows_of(where.z) : where.z;
    if (lane % lanes == 0)
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int m = 0; m < M; m++)
                if ((R == 1 || r < rows) && (M == 1 || m < plan.ms))
                    partial[where.x + lane / lanes + m * plan.partials + r * where.y] = acc[r * M + m];
}

template <class W, class X, int M, bool PIPELINED>
__global__ void __launch_bounds__(MV_THREADS, 1) mv_kernel(const __grid_constant__ mv_plan plan) {
    const int R = mv_rows<W, M>::value;
    FB_SHARED(uint8_t, shared);
    __shared__ fb_row_stats stats[MV_MAX_ROWS];
    __shared__ int last;
    fb_let_next_start();
    mv_pipeline pipeline = mv_pipeline_of(plan, shared);
    mv_cursor cursor;
    /* MV_COPY_THREADS threads copy x as soon as it is complete, and fill their pipelines after that. All
     * others fill theirs at once. */
    const bool copies = threadIdx.x < MV_COPY_THREADS;
    if (!copies) mv_fill_pipeline<W, R, PIPELINED>(plan, pipeline, cursor);
    mv_norm_8 norms[2];
    if (PIPELINED && M == 1) mv_load_first_norms(plan, norms);
    mv_output mine = mv_output_of<R>(plan, (int)threadIdx.x);
    mv_addends addends = {{0, 0}, 0};
    if (mine.s >= 0 && !plan.results) mv_get_biases(plan, mine, &addends);

    fb_wait_for_previous();
    if (copies) {
        mv_copy_rows(plan, shared);
        mv_fill_pipeline<W, R, PIPELINED>(plan, pipeline, cursor);
    }
    if (mine.s >= 0 && !plan.results) mv_get_residual(plan, mine, 0, &addends);
    mv_rows_copied();
    float *partial = (float *)(shared + plan.partial_at);
    mv_stage_all<PIPELINED, W, X, M>(plan, shared, partial, stats, norms);
    mv_sync();

#pragma unroll 1
    for (;;) {
        const int4 what = *(const int4 *)&pipeline.headers[pipeline.stage].x_at;
        if (what.w == 0) break;
        if (PIPELINED) mv_wait_stage(plan, pipeline);
        mv_multiply<W, X, M, R, PIPELINED>(plan, pipeline, what, shared, partial);
        mv_refill_stage<W, R, PIPELINED>(plan, pipeline, cursor);
    }
    mv_sync();
    if (plan.results)
        mv_best_of_all(plan, mv_best_of_block<R>(plan, partial), &last);
    else
        mv_finish<R>(plan, partial, addends);
}

/* ---- launching ---- */

static int64_t mv_round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Places the staged inputs in shared memory, `ms` rows of each. Returns their end. */
template <class W, class X> static int64_t mv_place_inputs(mv_plan *plan, int ms, bool whole) {
    int64_t staged = 0;
    for (int s = 0; s < plan->segments; s++) {
        mv_segment *seg = &plan->seg[s];
        int64_t bytes = mv_integers<X>::value ? seg->cols / 32 * 40
                                              : seg->chunks * mv_elements<W>::value * (int64_t)sizeof(X);
        seg->x_bytes = (int)mv_round_up(bytes, 16);
        seg->copies = seg->same_raw = false;
        seg->raw_at = -1;
        if (!seg->stages_x) {
            seg->x_at = plan->seg[seg->staged_by].x_at;
            continue;
        }
        if (sizeof(X) == 2 && seg->norm == FB_OP_COUNT) /* then x has type X, too */
            seg->copies = whole;
        seg->x_at = (int)staged;
        staged += seg->x_bytes * (int64_t)ms;
    }
    return staged;
}

/* Places one row of each input that is not staged unchanged, from `at` on. Returns their end. */
static int64_t mv_place_raw(mv_plan *plan, int64_t at) {
    for (int s = 0; s < plan->segments; s++) {
        mv_segment *seg = &plan->seg[s];
        if (!seg->stages_x || seg->copies || plan->dot == FB_DOT_GIVEN) continue;
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

/* Sizes a stage: R rows of the longest piece of any segment, and their scales. */
template <class W> static void mv_plan_stage(mv_plan *plan, int at_once) {
    plan->stage_row = 0;
    for (int s = 0; s < plan->segments; s++) {
        const mv_segment *seg = &plan->seg[s];
        int bytes = seg->pieces == 1 ? seg->chunks * 16 : seg->lane_chunks * FB_WARP * 16;
        if (mv_records<W>::value) bytes = seg->pieces == 1 ? seg->row_bytes : seg->record_bytes;
        if (bytes > plan->stage_row) plan->stage_row = bytes;
    }
    plan->scale_at = at_once * plan->stage_row;
    plan->scale_row = mv_quantised<W>::value ? plan->stage_row / (mv_elements<W>::value == 32 ? 8 : 16) : 0;
    plan->stage_bytes = (int32_t)mv_round_up(at_once * (plan->stage_row + plan->scale_row), 128);
}

/* Stages of a pipeline, at most. Many stages keep the memory busy from the start, but delay x, which is
 * requested after them. Four pay where a block has much to read (Pythia-2.8B in float16: 1.76 ms a token with
 * four, 1.83 with two), otherwise not (Llama-3.2-1B: 0.98 and 0.94). */
static int mv_max_stages(const mv_plan *plan, int64_t grid) {
    int64_t bytes = 0;
    for (int s = 0; s < plan->segments; s++) bytes += (int64_t)plan->seg[s].rows * plan->seg[s].row_bytes;
    return bytes / grid > MV_LONG ? MV_STAGES : 2;
}

template <class W, class X, int M, bool PIPELINED>
static int mv_launch_rows(mv_plan *plan, const fb_cuda_context *cx) {
    const int R = mv_rows<W, M>::value;
    const int64_t available = cx->limits->shared_limit - 256 /* static shared memory of mv_kernel */;
    int64_t units = 0, staged = mv_place_inputs<W, X>(plan, M, PIPELINED), end, partial;
    for (int s = 0; s < plan->segments; s++) {
        int64_t of = (plan->seg[s].rows + R - 1) / R;
        units = of > units ? of : units;
    }
    if (M == 1 && PIPELINED) staged = mv_place_raw(plan, staged);
    /* One block a multiprocessor; more if their partial sums would leave no shared memory for a stage. */
    int64_t fixed = staged + mv_round_up(MV_HEADER_BYTES, 128);
    if (PIPELINED) {
        mv_plan_stage<W>(plan, R);
        fixed += MV_WARPS * (int64_t)plan->stage_bytes;
    }
    int64_t grid = cx->limits->sms < units ? cx->limits->sms : units;
    for (;; grid += cx->limits->sms) {
        if (grid > units) grid = units;
        if (plan->results && grid > MV_MAX_BLOCKS) grid = MV_MAX_BLOCKS;
        mv_plan_blocks(plan, R, (int)grid);
        partial = mv_round_up(plan->partials * (int64_t)M * (int64_t)sizeof(float), 16);
        bool most = grid == units || (plan->results && grid == MV_MAX_BLOCKS);
        if (fixed + partial <= available - MV_SPARE || fixed > available - MV_SPARE || most) break;
    }
    if (partial < (int64_t)(FB_NORM_SMEM * sizeof(float))) partial = FB_NORM_SMEM * sizeof(float);
    plan->partial_at = (int)staged;
    end = staged + partial;
    plan->stages = 1;
    plan->headers_at = (int)(end = mv_round_up(end, 16));
    plan->stages_at = (int)(end = mv_round_up(end + MV_HEADER_BYTES, 128));
    if (PIPELINED) {
        int64_t one_of_each = MV_WARPS * (int64_t)plan->stage_bytes, stages = (available - end) / one_of_each;
        if (stages < 1) return MV_TOO_LARGE;
        int64_t most = mv_max_stages(plan, grid);
        plan->stages = (int32_t)(stages < most ? stages : most);
        end += plan->stages * one_of_each;
    }
    if (end > available) return MV_TOO_LARGE;
    return FB_LAUNCH(cx, dim3((unsigned)grid), dim3(MV_THREADS), (size_t)end, (mv_kernel<W, X, M, PIPELINED>),
                     *plan);
}

/* Whether every row of x begins at a multiple of 16 bytes and has a multiple of 8 elements. So must the
 * norm's weights, which lie so on a device, but not always in a caller's memory (fusebox_ops.h). */
static bool mv_inputs_whole(const mv_plan *plan) {
    int64_t element = plan->x_type == FB_F32 ? 4 : 2;
    if (plan->dot == FB_DOT_GIVEN) return true;
    for (int s = 0; s < plan->segments; s++) {
        const mv_segment *seg = &plan->seg[s];
        if (seg->cols % 8 || !fb_aligned(seg->x, 16) || (plan->ms > 1 && seg->x_stride * element % 16))
            return false;
        if (!fb_aligned(seg->norm_w, 16) || !fb_aligned(seg->norm_b, 16)) return false;
    }
    return true;
}

/* Appends to the work list instead of launching. One row; all ops of the list share the pipelines. */
template <class W, class X> static int mv_append(const mv_plan *plan, const fb_cuda_context *cx) {
    if constexpr (sizeof(X) == 2 || mv_integers<X>::value) {
        const int R = mv_rows<W, 1>::value;
        mv_plan own = *plan;
        int64_t staged = mv_place_raw(&own, mv_place_inputs<W, X>(&own, 1, true));
        mv_plan_stage<W>(&own, R);
        mv_plan_blocks(&own, R, cx->limits->sms);
        int64_t partial = own.partials > FB_NORM_SMEM ? own.partials : FB_NORM_SMEM;
        own.partial_at = (int)staged;
        return pk_add_matvec(&own, R, mv_dtype<W>::value, staged + partial * (int64_t)sizeof(float),
                             cx->list);
    }
    return FB_CUDA_NOT_LISTED;
}

/* Launches for `most` rows of x at a time. If they do not fit into shared memory, it takes fewer, and the
 * weights are read more than once. */
template <class W, class X> static int mv_launch(const mv_plan *plan, const fb_cuda_context *cx) {
    bool whole = plan->aligned && mv_inputs_whole(plan);
    int most = mv_tensor<X>::value ? 1 : whole ? MV_MAX_ROWS : 4;
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
        if (part.ms == 1) {
            if (whole) code = mv_launch_rows<W, X, 1, true>(&part, cx);
        } else if constexpr (!mv_tensor<X>::value) {
            code = !whole        ? mv_launch_rows<W, X, 4, false>(&part, cx)
                   : part.ms > 4 ? mv_launch_rows<W, X, 8, true>(&part, cx)
                                 : mv_launch_rows<W, X, 4, true>(&part, cx);
        }
        /* Without pipelines: no stage fits beside x, or chunks of weights are not aligned. */
        if (code == MV_TOO_LARGE && part.ms == 1) code = mv_launch_rows<W, X, 1, false>(&part, cx);
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
