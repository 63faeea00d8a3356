/* One row of x times weights: what decoding does with nearly all of its time. The same sums in the same order
 * as matvec.cuh's kernel, with less around them.
 *
 * A warp takes R rows' pieces of at most S chunks a lane: R * S loads of 16 bytes are asked for at once and
 * land in registers, then they are multiplied. Three blocks of eight warps a multiprocessor: while one warp
 * computes (about 20 instructions a chunk, of some 100 that the memory's speed leaves time for), the others'
 * loads are on their way: 24 warps * 10 chunks * 512 bytes are 120 KiB a multiprocessor, of which 34 KiB
 * would do at 4.5 TB/s and 1 us. Before it waits for the kernel before it, each warp asks the second-level
 * cache for its first pieces.
 *
 * (A ring of cp.async with a run-ahead reader took 80 instructions a chunk and reached 2.9 TB/s of 4.5.) */
#ifndef FB_BACKEND_CUDA_MATVEC_ONE_CUH
#define FB_BACKEND_CUDA_MATVEC_ONE_CUH

#define MV1_THREADS 256
#define MV1_WARPS   (MV1_THREADS / FB_WARP)
#define MV1_BLOCKS  3 /* of a multiprocessor */
#define MV1_AHEAD   2 /* pieces of a warp that are fetched into the second-level cache before the wait */

/* A block's rows of a segment, and where their partial sums begin. */
struct mv1_share {
    int first, end, at;
};
template <int R> FB_DEVICE mv1_share mv1_share_of(const mv_plan &plan, int s) {
    int at = 0;
    mv1_share share;
    for (int i = 0;; i++) {
        int units = (plan.seg[i].rows + R - 1) / R;
        share.first = (int)((int64_t)blockIdx.x * units / gridDim.x) * R;
        share.end = min((int)((int64_t)(blockIdx.x + 1) * units / gridDim.x) * R, plan.seg[i].rows);
        share.at = at;
        if (i == s) return share;
        if (!plan.combined) at += (share.end - share.first) * plan.seg[i].pieces;
    }
}

/* The warp's next piece of work. */
struct mv1_item {
    int s, row, piece;
    mv1_share share;
};
template <int R> FB_DEVICE void mv1_settle(const mv_plan &plan, mv1_item &item) {
    for (;;) {
        int pieces = plan.seg[item.s].pieces;
        int over = item.piece / pieces; /* 0 or a few: pieces are counted on by the number of warps */
        item.row += over * R;
        item.piece -= over * pieces;
        if (item.row < item.share.end || item.s + 1 >= plan.segments) return;
        /* What is left over goes on in the next segment. */
        int units = (item.row - item.share.first) / R - (item.share.end - item.share.first + R - 1) / R;
        item.piece += units * pieces;
        item.s++;
        item.share = mv1_share_of<R>(plan, item.s);
        item.row = item.share.first;
    }
}

FB_DEVICE void mv1_fetch(const void *p) {
#ifdef FB_EMULATED
    (void)p;
#else
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

template <int R> FB_DEVICE void mv1_fetch_item(const mv_plan &plan, const mv1_item &item) {
    const mv_segment &seg = plan.seg[item.s];
    int lane = (int)threadIdx.x % FB_WARP;
    if (item.row >= item.share.end) return;
    int first = item.piece * seg.steps * FB_WARP, chunks = min(seg.steps * FB_WARP, seg.chunks - first);
    for (int r = 0; r < R && item.row + r < item.share.end; r++) {
        const uint8_t *p = seg.w + (item.row + r) * seg.row_bytes + (int64_t)first * 16;
        for (int at = lane * 128; at < chunks * 16; at += FB_WARP * 128) mv1_fetch(p + at);
    }
}

/* R rows' piece: loads, products, and the sums of the lanes to partial[r * far]. */
template <class W, class X, int R, int S>
FB_DEVICE void mv1_run_item(const mv_segment &seg, const mv1_item &item, const uint8_t *x, float *partial,
                            int far) {
    int lane = (int)threadIdx.x % FB_WARP, chunk = item.piece * seg.steps * FB_WARP + lane;
    int rows = min(item.share.end - item.row, R);
    const uint8_t *p = seg.w + item.row * seg.row_bytes + (int64_t)chunk * 16;
    const int row_bytes = (int)seg.row_bytes, chunks = seg.chunks, steps = seg.steps;
    uint4 w[S][R];
    uint16_t scale[S][R];
#pragma unroll
    for (int j = 0; j < S; j++)
#pragma unroll
        for (int r = 0; r < R; r++) {
            w[j][r] = make_uint4(0, 0, 0, 0);
            scale[j][r] = 0;
            if (j < steps && chunk + j * FB_WARP < chunks && (R == 1 || r < rows)) {
                w[j][r] = fb_load_stream(p + r * row_bytes + j * FB_WARP * 16);
                if (mv_quantised<W>::value)
                    scale[j][r] = __ldg(seg.scales + mv_scale_at<W>(seg, item.row + r, chunk + j * FB_WARP));
            }
        }
    float acc[R];
#pragma unroll
    for (int r = 0; r < R; r++) acc[r] = 0;
#pragma unroll
    for (int j = 0; j < S; j++) {
        if (j >= steps || chunk + j * FB_WARP >= chunks) continue;
        float scales[R];
#pragma unroll
        for (int r = 0; r < R; r++) scales[r] = mv_quantised<W>::value ? fb_widen(fb_half{scale[j][r]}) : 1;
        mv_products<W, X, 1, R>::add(w[j], scales, x, 0, chunks, chunk + j * FB_WARP, acc);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        for (int step = FB_WARP / 2; step; step >>= 1) acc[r] += __shfl_xor_sync(FB_ALL, acc[r], step);
        if (lane == 0 && r < rows) partial[r * far] = acc[r];
    }
}

/* The block's outputs, all of whose partial sums are there. */
template <int R> FB_DEVICE void mv1_finish(const mv_plan &plan, const float *partial) {
    for (int s = 0; s < (plan.combined ? 1 : plan.segments); s++) {
        mv1_share share = mv1_share_of<R>(plan, s);
        int slots = plan.combined ? plan.slots : plan.seg[s].pieces;
        for (int row = share.first + (int)threadIdx.x; row < share.end; row += (int)blockDim.x)
            mv_store(plan, s, row, 0, partial + share.at + (row - share.first) * slots);
    }
}

template <int R> FB_DEVICE mv_best mv1_look(const mv_plan &plan, const float *partial) {
    mv_best best = {-INFINITY, 0x7fffffff};
    mv1_share share = mv1_share_of<R>(plan, 0);
    int pieces = plan.seg[0].pieces;
    if (threadIdx.x >= FB_WARP) return best;
    for (int row = share.first + (int)threadIdx.x; row < share.end; row += FB_WARP)
        best = mv_better(
            best, {mv_rounded(plan.type, mv_total(partial + (row - share.first) * pieces, pieces)), row});
    return best;
}

template <class W, class X, int R, int S>
__global__ void __launch_bounds__(MV1_THREADS, MV1_BLOCKS) mv1_kernel(const __grid_constant__ mv_plan plan) {
    FB_SHARED(uint8_t, shared);
    __shared__ fb_row_stats stats[MV_MOST_ROWS];
    __shared__ int last;
    fb_let_next_start();
    mv1_item item;
    item.s = 0;
    item.share = mv1_share_of<R>(plan, 0);
    item.row = item.share.first;
    item.piece = (int)threadIdx.x / FB_WARP;
    mv1_settle<R>(plan, item);
    mv1_item ahead = item;
    for (int i = 0; i < MV1_AHEAD; i++) {
        mv1_fetch_item<R>(plan, ahead);
        ahead.piece += MV1_WARPS;
        mv1_settle<R>(plan, ahead);
    }
    for (int s = 0; s < plan.segments; s++) {
        const mv_segment &seg = plan.seg[s];
        mv_warm(seg.norm_w, seg.cols * (seg.norm_w_type == FB_F32 ? 4 : 2));
        mv_warm(seg.norm_b, seg.cols * (seg.norm_b_type == FB_F32 ? 4 : 2));
        mv_warm(seg.bias, seg.rows * (seg.bias_type == FB_F32 ? 4 : 2));
    }
    fb_wait_for_previous();
    float *partial = (float *)(shared + plan.partial_at);
    mv_stage_all<W, X, 1>(plan, shared, partial, stats);
    __syncthreads();

    while (item.row < item.share.end) {
        const mv_segment &seg = plan.seg[item.s];
        int slots = plan.combined ? plan.slots : seg.pieces;
        int slot = item.piece + (plan.combined && item.s == 1 ? plan.seg[0].pieces : 0);
        mv1_run_item<W, X, R, S>(seg, item, shared + seg.x_at,
                                 partial + item.share.at + (item.row - item.share.first) * slots + slot,
                                 slots);
        item.piece += MV1_WARPS;
        mv1_settle<R>(plan, item);
    }
    __syncthreads();
    if (plan.results)
        mv_best_of_all(plan, mv1_look<R>(plan, partial), &last);
    else
        mv1_finish<R>(plan, partial);
}

template <class W, class X, int R, int S> static int mv1_launch_as(mv_plan *plan, const fb_cuda_context *cx) {
    int64_t rows = 0, sums = 0;
    for (int s = 0; s < plan->segments; s++) {
        int64_t units = (plan->seg[s].rows + R - 1) / R;
        rows = units > rows ? units : rows;
        sums += units * R * plan->seg[s].pieces;
    }
    plan->slots = plan->combined ? plan->seg[0].pieces + (plan->segments == 2 ? plan->seg[1].pieces : 0) : 0;
    int64_t grid = (int64_t)MV1_BLOCKS * cx->limits->sms;
    if (grid > rows) grid = rows;
    if (plan->results && grid > MV_MOST_BLOCKS) grid = MV_MOST_BLOCKS;
    /* Every block's share is rounded up to whole units, in every segment. */
    int64_t most = sums / grid;
    for (int s = 0; s < plan->segments; s++) most += R * plan->seg[s].pieces;
    int64_t partial = (most * (int64_t)sizeof(float) + 15) / 16 * 16;
    if (partial < (int64_t)(FB_NORM_ROOM * sizeof(float))) partial = FB_NORM_ROOM * sizeof(float);
    int64_t bytes = mv_place_inputs<W, X>(plan, 1) + partial;
    if (bytes > cx->limits->shared_limit - 256) return MV_TOO_LARGE;
    return FB_LAUNCH(cx, dim3((unsigned)grid), dim3(MV1_THREADS), (size_t)bytes, (mv1_kernel<W, X, R, S>),
                     *plan);
}

/* By the chunks that a lane has of a row. */
template <class W, class X> static int mv1_launch(mv_plan *plan, const fb_cuda_context *cx) {
    int steps = 0;
    for (int s = 0; s < plan->segments; s++) steps = plan->seg[s].steps > steps ? plan->seg[s].steps : steps;
    if constexpr (mv_quantised<W>::value &&
                  !mv_integers<X>::value) /* decodes to floats: nobody is in a hurry */
        return mv1_launch_as<W, X, 1, MV_STEPS>(plan, cx);
    else
        return steps > 5   ? mv1_launch_as<W, X, 1, MV_STEPS>(plan, cx)
               : steps > 2 ? mv1_launch_as<W, X, 2, 5>(plan, cx)
                           : mv1_launch_as<W, X, 4, 2>(plan, cx);
}

#endif
