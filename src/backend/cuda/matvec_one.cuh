/* One row of x times weights: what decoding does with nearly all of its time. The same sums in the same order
 * as matvec.cuh's kernel, with less around them.
 *
 * A warp takes R rows' pieces of at most S chunks a lane: R * S loads of 16 bytes are asked for at once and
 * land in registers, then they are multiplied: about 20 instructions a chunk, of some 100 that the memory's
 * speed leaves time for. 32 warps * 5 chunks * 512 bytes are 80 KiB on their way in a multiprocessor, of
 * which 34 KiB would do at 4.5 TB/s and 1 us. Before it waits for the kernel before it, each warp asks the
 * second-level cache for its first piece.
 *
 * (A ring of cp.async with a run-ahead reader took 80 instructions a chunk and reached 2.9 TB/s of 4.5.) */
#ifndef FB_BACKEND_CUDA_MATVEC_ONE_CUH
#define FB_BACKEND_CUDA_MATVEC_ONE_CUH

/* One block a multiprocessor, 64 registers a thread. What comes before the products (a norm, quantising) is
 * some hundred instructions for every eight elements, and every block does it for itself: four blocks of 256
 * threads took 5 to 10 us for it. More loads of a thread would be more than the memory needs, and make the
 * last round of a short kernel longer: with ten, 160 KiB were on their way and a round took 5 us. */
#define MV1_THREADS 1024
#define MV1_WARPS   (MV1_THREADS / FB_WARP)
#ifndef MV1_AHEAD
#define MV1_AHEAD 1 /* pieces of a warp that are fetched into the second-level cache before the wait */
#endif

/* A block's rows of a segment, and where their partial sums begin. The first `more` blocks have one unit
 * more. */
struct mv1_share {
    int first, end, at;
};
template <int R> FB_DEVICE mv1_share mv1_share_of(const mv_plan &plan, int s) {
    int at = 0, block = (int)blockIdx.x;
    mv1_share share;
    for (int i = 0;; i++) {
        const mv_segment &seg = plan.seg[i];
        int unit = block * seg.each + min(block, seg.more);
        share.first = min(unit * R, seg.rows); /* the last unit may be short, and a block have none */
        share.end = min((unit + seg.each + (block < seg.more)) * R, seg.rows);
        share.at = at;
        if (i == s) return share;
        if (!plan.combined) at += (share.end - share.first) * seg.pieces;
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
        /* No branch: a chunk that is not there is multiplied like another one, and not added. */
#pragma unroll
    for (int j = 0; j < S; j++) {
        bool there = j < steps && chunk + j * FB_WARP < chunks;
        float scales[R], more[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            scales[r] = mv_quantised<W>::value ? fb_widen(fb_half{scale[j][r]}) : 1;
            more[r] = acc[r];
        }
        mv_products<W, X, 1, R>::add(w[j], scales, x, 0, chunks, there ? chunk + j * FB_WARP : 0, more);
#pragma unroll
        for (int r = 0; r < R; r++) acc[r] = there ? more[r] : acc[r];
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        for (int step = FB_WARP / 2; step; step >>= 1) acc[r] += __shfl_xor_sync(FB_ALL, acc[r], step);
        if (lane == 0 && r < rows) partial[r * far] = acc[r];
    }
}

/* Output number `o` of the block. */
struct mv1_output {
    int s, row, at; /* s: -1 if there are not so many; at: of its partial sums */
};
template <int R> FB_DEVICE mv1_output mv1_output_of(const mv_plan &plan, int o) {
    for (int s = 0; s < (plan.combined ? 1 : plan.segments); s++) {
        mv1_share share = mv1_share_of<R>(plan, s);
        int rows = share.end - share.first, slots = plan.combined ? plan.slots : plan.seg[s].pieces;
        if (o < rows) return {s, share.first + o, share.at + o * slots};
        o -= rows;
    }
    return {-1, 0, 0};
}

/* The block's outputs, all of whose partial sums are there; what the thread's first one needs besides is,
 * too. */
template <int R> FB_DEVICE void mv1_finish(const mv_plan &plan, const float *partial, mv_rest rest) {
    for (int o = (int)threadIdx.x;; o += MV1_THREADS) {
        mv1_output output = mv1_output_of<R>(plan, o);
        if (output.s < 0) return;
        if (o >= MV1_THREADS) rest = mv_rest_of(plan, output.s, output.row, 0);
        mv_store(plan, output.s, output.row, 0, partial + output.at, rest);
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

/* Whole copies of 16 bytes into shared memory. */
FB_DEVICE void mv1_copy(uint8_t *to, const void *from, int bytes) {
    for (int at = (int)threadIdx.x * 16; at < bytes; at += MV1_THREADS * 16)
        fb_copy_16(to + at, (const uint8_t *)from + at);
}

/* A norm reads its row twice and its weights once: from shared memory that costs no trip to the second-level
 * cache each. Weights come before the wait, rows after it. */
FB_DEVICE void mv1_copy_norms(const mv_plan &plan, uint8_t *shared) {
    for (int s = 0; s < plan.segments; s++) {
        const mv_segment &seg = plan.seg[s];
        if (!seg.stages || seg.norm_at < 0) continue;
        int bytes = seg.cols * (seg.norm_w_type == FB_F32 ? 4 : 2);
        mv1_copy(shared + seg.norm_at, seg.norm_w, bytes);
        if (seg.norm_b) mv1_copy(shared + seg.norm_at + bytes, seg.norm_b, bytes);
    }
}
FB_DEVICE void mv1_copy_rows(const mv_plan &plan, uint8_t *shared) {
    int bytes = plan.x_type == FB_F32 ? 4 : 2, last = -1;
    for (int s = 0; s < plan.segments; s++) {
        const mv_segment &seg = plan.seg[s];
        if (!seg.stages || seg.raw_at < 0 || seg.raw_at == last) continue;
        last = seg.raw_at;
        mv1_copy(shared + seg.raw_at, seg.x, seg.cols * bytes);
    }
    fb_copy_commit();
    fb_copy_wait<0>();
    __syncthreads();
}

template <class W, class X, int R, int S>
__global__ void __launch_bounds__(MV1_THREADS, 1) mv1_kernel(const __grid_constant__ mv_plan plan) {
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
    mv1_copy_norms(plan, shared);
    for (int s = 0; s < plan.segments; s++)
        mv_warm(plan.seg[s].bias, plan.seg[s].rows * (plan.seg[s].bias_type == FB_F32 ? 4 : 2));
    fb_wait_for_previous();
    float *partial = (float *)(shared + plan.partial_at);
    mv1_copy_rows(plan, shared);
    mv_stage_all<W, X, 1>(plan, shared, partial, stats);
    mv1_output mine = mv1_output_of<R>(plan, (int)threadIdx.x);
    mv_rest rest = {{0, 0}, 0};
    if (mine.s >= 0 && !plan.results) rest = mv_rest_of(plan, mine.s, mine.row, 0);
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
        mv1_finish<R>(plan, partial, rest);
}

/* Room for what mv1_copy_norms and mv1_copy_rows bring, from `at` on; its end. */
static int64_t mv1_place_norms(mv_plan *plan, int64_t at) {
    int64_t element = plan->x_type == FB_F32 ? 4 : 2;
    for (int s = 0; s < plan->segments; s++) {
        mv_segment *seg = &plan->seg[s];
        if (seg->norm == FB_OP_COUNT || !seg->stages) continue;
        int64_t row = seg->cols * element, weights = seg->cols * (seg->norm_w_type == FB_F32 ? 4 : 2);
        if (row % 16 == 0 && fb_aligned(seg->x, 16)) {
            for (int e = 0; e < s; e++)
                if (plan->seg[e].raw_at >= 0 && plan->seg[e].x == seg->x && plan->seg[e].cols == seg->cols)
                    seg->raw_at = plan->seg[e].raw_at;
            if (seg->raw_at < 0) {
                seg->raw_at = (int32_t)at;
                at += row;
            }
        }
        bool alike = !seg->norm_b || seg->norm_b_type == seg->norm_w_type;
        if (seg->raw_at >= 0 && weights % 16 == 0 && alike) {
            seg->norm_at = (int32_t)at;
            at += weights * (seg->norm_b ? 2 : 1);
        }
    }
    return at;
}

template <class W, class X, int R, int S> static int mv1_launch_as(mv_plan *plan, const fb_cuda_context *cx) {
    int64_t rows = 0, sums = 0;
    for (int s = 0; s < plan->segments; s++) {
        int64_t units = (plan->seg[s].rows + R - 1) / R;
        rows = units > rows ? units : rows;
        sums += units * R * plan->seg[s].pieces;
    }
    plan->slots = plan->combined ? plan->seg[0].pieces + (plan->segments == 2 ? plan->seg[1].pieces : 0) : 0;
    int64_t grid = cx->limits->sms;
    if (grid > rows) grid = rows;
    if (plan->results && grid > MV_MOST_BLOCKS) grid = MV_MOST_BLOCKS;
    for (int s = 0; s < plan->segments; s++) {
        int64_t units = (plan->seg[s].rows + R - 1) / R;
        plan->seg[s].each = (int32_t)(units / grid);
        plan->seg[s].more = (int32_t)(units % grid);
    }
    /* Every block's share is rounded up to whole units, in every segment. */
    int64_t most = sums / grid;
    for (int s = 0; s < plan->segments; s++) most += R * plan->seg[s].pieces;
    int64_t partial = (most * (int64_t)sizeof(float) + 15) / 16 * 16;
    if (partial < (int64_t)(FB_NORM_ROOM * sizeof(float))) partial = FB_NORM_ROOM * sizeof(float);
    int64_t bytes = mv_place_inputs<W, X>(plan, 1) + partial, with_norms = mv1_place_norms(plan, bytes);
    if (with_norms <= cx->limits->shared_limit - 256)
        bytes = with_norms;
    else
        for (int s = 0; s < plan->segments; s++) plan->seg[s].raw_at = plan->seg[s].norm_at = -1;
    if (bytes > cx->limits->shared_limit - 256) return MV_TOO_LARGE;
    return FB_LAUNCH(cx, dim3((unsigned)grid), dim3(MV1_THREADS), (size_t)bytes, (mv1_kernel<W, X, R, S>),
                     *plan);
}

/* By the chunks that a lane has of a row. */
template <class W, class X> static int mv1_launch(mv_plan *plan, const fb_cuda_context *cx) {
    int steps = 0;
    for (int s = 0; s < plan->segments; s++) steps = plan->seg[s].steps > steps ? plan->seg[s].steps : steps;
    return steps > 2 ? mv1_launch_as<W, X, 1, MV_STEPS>(plan, cx) : mv1_launch_as<W, X, 2, 2>(plan, cx);
}

#endif
