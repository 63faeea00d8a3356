/* The persistent kernel: the layers of a decode step in one launch. It has one block a multiprocessor, and
 * each block goes through the work list (persistent_list.h). Blocks never synchronise: each value that one
 * block hands to others carries the step's tag, and a reader polls until it sees the tag
 * (persistent_tagged.cuh).
 *
 * What a launch costs besides its reads is paid once. Producer warps fetch weights across ops
 * (persistent_weights.cuh), so that the memory is idle only when all stages of all pipelines are full. The
 * rest is done by the functions of the single kernels; therefore the bits are the same.
 *
 * Nothing overlaps between two matvecs. There each instruction that all 16 consumer warps run costs four
 * cycles. */
#ifndef FB_BACKEND_CUDA_PERSISTENT_KERNEL_CUH
#define FB_BACKEND_CUDA_PERSISTENT_KERNEL_CUH

#include "backend/cuda/matvec.cuh"
#include "backend/cuda/persistent_attention.cuh"
#include "backend/cuda/persistent_weights.cuh"

/* The thread that fetches ops, and the first of those that prefetch. Its warp and the next ones have neither
 * norms nor outputs to load at the time, as a rule. */
#define PK_PREFETCH_THREAD (10 * FB_WARP)

struct pk_op_stages {
    const pk_op *ops; /* in shared memory */
    int now, count;
};
FB_DEVICE const pk_op &pk_op_at(const pk_op_stages &stages, int op) { return stages.ops[op % PK_OP_STAGES]; }

/* Prefetches cache lines first, first + stride, … of `bytes` at p into the L2. The norms and biases of the op
 * two ahead are prefetched: loaded from memory behind the producers' weights, they would take 3 us. Blocks
 * share the work for the norms. */
FB_DEVICE void pk_prefetch(const void *p, int64_t bytes, int first, int stride) {
#ifndef FB_EMULATED
    for (int64_t at = (int64_t)first * 128; at < bytes; at += (int64_t)stride * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const uint8_t *)p + at));
#else
    (void)p, (void)bytes, (void)first, (void)stride;
#endif
}
FB_DEVICE int pk_element_bytes(fb_dtype type) { return type == FB_F32 ? 4 : 2; }
template <int R> FB_DEVICE void pk_prefetch_op(const mv_plan &plan) {
    int thread = (int)threadIdx.x - PK_PREFETCH_THREAD, s = thread / FB_WARP, lane = thread % FB_WARP;
    if (thread < 0 || s >= plan.segments) return;
    const mv_segment &seg = plan.seg[s];
    int line = (int)blockIdx.x + lane * (int)gridDim.x;
    if (seg.norm != FB_OP_COUNT) {
        pk_prefetch(seg.norm_w, (int64_t)seg.cols * pk_element_bytes(seg.norm_w_type), line,
                    FB_WARP * (int)gridDim.x);
        if (seg.norm_b)
            pk_prefetch(seg.norm_b, (int64_t)seg.cols * pk_element_bytes(seg.norm_b_type), line,
                        FB_WARP * (int)gridDim.x);
    }
    if (seg.bias) {
        mv_share share = mv_share_of<R>(seg);
        int size = pk_element_bytes(seg.bias_type);
        pk_prefetch((const uint8_t *)seg.bias + share.first * size, (int64_t)(share.end - share.first) * size,
                    lane, FB_WARP);
    }
}

/* ---- ops ---- */

/* mv_stage_inputs for one row, as a loop: the plan is in shared memory here, where a segment's fields are
 * read quickly. `next`: the norm's weights for the first segment. Those of each other segment are loaded
 * while the one before it is staged. */
template <class W, class X, class T>
FB_DEVICE void pk_stage_inputs(const mv_plan &plan, uint8_t *shared, float *smem, mv_norm_8 next) {
    fb_row_stats stats = {0, 0};
#pragma unroll 1
    for (int s = 0; s < plan.segments; s++) {
        mv_norm_8 norm = next;
        next = {};
        if (s + 1 < plan.segments) mv_load_first_norm(plan.seg[s + 1], &next);
        mv_stage_segment<true, T, W, X, 1>(plan, plan.seg[s], s == 0, shared, smem, &stats, norm);
    }
}

/* Copies the rows that the op reads to shared memory: to their final place if they are staged unchanged, else
 * to raw_at. The last segments' rows come first: they arrive earliest. */
FB_DEVICE void pk_load_rows(const mv_plan &plan, const pk_tagged_io &io, const pk_tagged_words &tagged,
                            uint8_t *shared) {
#pragma unroll 1
    for (int s = plan.segments - 1; s >= 0; s--) {
        const mv_segment &seg = plan.seg[s];
        if (!seg.copies && (seg.raw_at < 0 || seg.same_raw)) continue;
        uint8_t *to = shared + (seg.copies ? seg.x_at : seg.raw_at);
        if (io.in[s] < 0)
            pk_load_row_untagged(seg.x, seg.cols, to);
        else
            pk_load_row_tagged(tagged.words + io.in[s], seg.cols, tagged.tag, to);
    }
}

FB_DEVICE void pk_load_residual(const mv_plan &plan, const pk_tagged_io &io, const pk_tagged_words &tagged,
                                const mv_output &output, mv_addends *addends) {
    if (io.residual < 0)
        mv_get_residual(plan, output, 0, addends);
    else
        addends->residual = pk_tagged_load(tagged.words + io.residual + output.row);
}

/* The last threads have the first outputs, because the first threads load norms while x is waited for. */
FB_DEVICE int pk_first_output() { return MV_THREADS - 1 - (int)threadIdx.x; }

/* mv_finish for one row, with tagged outputs. `addends`: of the thread's first output, `mine`. */
template <int R, class T>
FB_DEVICE void pk_finish(const mv_plan &plan, const pk_tagged_io &io, const pk_tagged_words &tagged,
                         const float *partial, bool one_output, mv_output mine, mv_addends addends) {
    const fb_dtype type = mv_dtype<T>::value;
#pragma unroll 1
    for (int i = pk_first_output(); mine.s >= 0; mine = mv_output_of<R>(plan, i += MV_THREADS)) {
        const mv_segment &seg = plan.seg[mine.s];
        if (i >= MV_THREADS) {
            mv_get_biases(plan, mine, &addends);
            pk_load_residual(plan, io, tagged, mine, &addends);
        }
        if (io.residual >= 0)
            addends.residual =
                pk_tagged_wait(tagged.words + io.residual + mine.row, addends.residual, tagged.tag);
        const float *from = partial + mine.at;
        T x = fb_narrow<T>(mv_value(plan, type, mine, 0, from, addends, mv_total(from, seg)));
        pk_tagged_store(tagged.words + io.out[mine.s] + mine.row, tagged.tag | pk_bits(x));
        if (io.stored[mine.s]) ((T *)seg.out)[mine.row] = x;
        if (one_output) return;
    }
}

template <class W, class X, class T>
FB_DEVICE void pk_matvec(const pk_op &op, const mv_plan *later, const pk_tagged_words &tagged,
                         const pk_params &params, uint8_t *shared, pk_pipeline &pipeline) {
    const int R = mv_rows<W, 1>::value;
    const mv_plan &plan = op.matvec;
    const pk_tagged_io &io = op.io;
    /* First all that does not need x. (Polling for x first is no faster: it is too early.) */
    if (later) pk_prefetch_op<R>(*later);
    mv_norm_8 norm = {};
    mv_load_first_norm(plan.seg[0], &norm);
    mv_output mine = mv_output_of<R>(plan, pk_first_output());
    mv_addends addends = {{0, 0}, 0};
    if (mine.s >= 0) mv_get_biases(plan, mine, &addends);
    int pieces = pk_piece_count(op, (int)threadIdx.x / FB_WARP);
    if (mine.s >= 0) pk_load_residual(plan, io, tagged, mine, &addends);
    pk_load_rows(plan, io, tagged, shared);
    mv_sync();
    float *partial = (float *)(shared + plan.partial_at);
    pk_stage_inputs<W, X, T>(plan, shared, partial, norm);
    mv_sync();
    /* The fields that the loop reads, in registers. */
    mv_plan here;
    here.stage_row = plan.stage_row;
    here.stage_bytes = params.stage_bytes;
    here.scale_at = plan.scale_at;
    here.scale_row = plan.scale_row;
#pragma unroll 1
    for (; pieces > 0; pieces--) {
        mv_barrier_wait(pipeline.of.full + pipeline.of.stage, pipeline.of.phase);
        const int4 what = *(const int4 *)&pipeline.of.headers[pipeline.of.stage].x_at;
        mv_multiply<W, X, 1, R, true>(here, pipeline.of, what, shared, partial);
        /* Each lane arrives for itself. One arrival for all after a __syncwarp is no faster, and
         * compute-sanitizer's racecheck does not understand it. */
        mv_barrier_arrive(pipeline.empty + pipeline.of.stage);
        if (++pipeline.of.stage == params.stages) {
            pipeline.of.stage = 0;
            pipeline.of.phase ^= 1;
        }
    }
    mv_sync();
    pk_finish<R, T>(plan, io, tagged, partial, op.one_output, mine, addends);
}

template <class T>
FB_DEVICE void pk_attention_op(const pk_attention &op, const pk_tagged_io &io, const pk_tagged_words &tagged,
                               const pk_attention_work &work, uint8_t *shared) {
    pk_attention_smem &smem = *(pk_attention_smem *)shared;
    const int past = work.past;
    if (work.splits <= (int)blockIdx.x) return;
    pk_split split = work.split;
    pk_tile tile;
    pk_load_tile(op.a, work, split.kv_head, split.begin, min(split.end, past), tile);
#pragma unroll 1
    for (int number = (int)blockIdx.x; number < work.splits; number += (int)gridDim.x) {
        if (number != (int)blockIdx.x) {
            mv_sync();
            split = pk_split_of(op, number, past, work.length);
            pk_load_tile(op.a, work, split.kv_head, split.begin, min(split.end, past), tile);
        }
        pk_attend_split<T>(op, io, tagged, work, split, tile, smem);
    }
}

/* T: type of activations and cache. A cooperative launch does not overlap the kernels before and after it, so
 * there is no fb_wait_for_previous. */
template <class W, class X, class T>
__global__ void __launch_bounds__(PK_THREADS, 1) pk_kernel(const __grid_constant__ pk_params params) {
#if defined FB_EMULATED || (defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900)
    const int R = mv_rows<W, 1>::value;
    FB_SHARED(uint8_t, shared);
    pk_op_stages list = {(const pk_op *)(shared + params.ops_at), 0, params.count};
    const pk_op_barriers barriers = pk_op_barriers_of(params, shared);
    pk_init_barriers(params, shared, barriers);
    __syncthreads();
    if (threadIdx.x >= MV_THREADS) {
        pk_produce<W, R>(params, shared, barriers);
        return;
    }
    if (threadIdx.x == PK_PREFETCH_THREAD)
        for (int op = 0; op < PK_OP_STAGES; op++) pk_fetch_op(params, shared, barriers, op);
    pk_pipeline pipeline = pk_pipeline_of(params, shared, (int)threadIdx.x / FB_WARP);
    const pk_tagged_words tagged = {params.words, pk_tag_of(params)};
    pk_attention_work *work = (pk_attention_work *)(shared + params.work_at);
    bool have_work = false;
    int ready = 0; /* ops before this one have arrived */
#pragma unroll 1
    for (; list.now < list.count; list.now++) {
        for (; ready < min(list.now + 3, list.count); ready++) pk_wait_op(barriers, ready);
        const pk_op &op = pk_op_at(list, list.now), &next = pk_op_at(list, list.now + 2);
        const mv_plan *later = list.now + 2 < list.count && next.kind == PK_MATVEC ? &next.matvec : NULL;
        if (op.kind == PK_MATVEC) {
            pk_matvec<W, X, T>(op, later, tagged, params, shared, pipeline);
        } else {
            if (later) pk_prefetch_op<R>(*later);
            if (!have_work) {
                if (threadIdx.x == 0) *work = pk_attention_work_of(op.attention);
                mv_sync();
                have_work = true;
            }
            pk_attention_op<T>(op.attention, op.io, tagged, *work, shared);
        }
        mv_sync(); /* all threads are done with what this op had in shared memory */
        if (threadIdx.x == PK_PREFETCH_THREAD) pk_fetch_op(params, shared, barriers, list.now + PK_OP_STAGES);
    }
    /* The last block to come here counts the step: by then all blocks have read its tag. */
    if (threadIdx.x == 0 && atomicAdd(params.blocks_done, 1u) == gridDim.x - 1) {
        *params.blocks_done = 0;
        (*params.steps_done)++;
    }
#endif
}

template <class W, class X, class T>
static int pk_launch(const fb_cuda_work_list *list, const pk_params *params, const fb_cuda_context *cx) {
    if (!params)
        return FB_FITS_COOPERATIVE(cx, PK_THREADS, (size_t)list->shared_bytes, (pk_kernel<W, X, T>))
                   ? 0
                   : FB_CUDA_NOT_LISTED;
    return FB_LAUNCH_COOPERATIVE(cx, dim3((unsigned)cx->limits->sms), dim3(PK_THREADS),
                                 (size_t)list->shared_bytes, (pk_kernel<W, X, T>), *params);
}

#endif
