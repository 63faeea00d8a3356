/* The layers of a decode step in one kernel: a block a multiprocessor goes through the list of ops
 * (step_list.h), and all blocks meet after each.
 *
 * What a launch costs besides its reads is paid once: the rings of weights (matvec_ring.cuh) go on across the
 * meetings. While blocks wait for each other, for x and its norm, the weights of the op after, or of the one
 * after that, arrive: the memory is idle only when all slots are full. Everything else is done by the
 * functions of the single kernels, so that the bits are theirs. */
#ifndef FB_BACKEND_CUDA_STEP_KERNEL_CUH
#define FB_BACKEND_CUDA_STEP_KERNEL_CUH

#include "backend/cuda/matvec.cuh"
#include "backend/cuda/step_attention.cuh"

/* Ops in shared memory: the one that is done, those that weights are fetched for, and one on its way. A small
 * op has fewer pieces than a ring has slots: behind it lie attention, and another op. */
#define ST_AHEAD  4
#define ST_WINDOW (ST_AHEAD + 2)

struct st_window {
    const st_op *ops; /* in shared memory */
    const st_op *list;
    int now, count;
};
FB_DEVICE const st_op &st_at(const st_window &w, int op) { return w.ops[op % ST_WINDOW]; }

/* Asks for op number `op`; it is there after the next mv_rows_copied. */
FB_DEVICE void st_fetch_op(const st_window &w, int op) {
    const int chunks = (int)(sizeof(st_op) / 16);
    int from = (int)threadIdx.x - MV_COPIERS; /* the copiers have x to copy */
    if (op < w.count && from >= 0 && from < chunks)
        fb_copy_16((uint8_t *)(w.ops + op % ST_WINDOW) + from * 16,
                   (const uint8_t *)(w.list + op) + from * 16);
}

/* ---- the ring, across ops --------------------------------------------------------------------------------
 */

/* Where a warp's fetching stands: in registers while it multiplies, else in shared memory. A warp has the
 * same piece of all its rows of a segment, so that the next one is a few additions away. */
struct __align__(16) st_filler {
    int4 what, where;                 /* of the next head (mv_head) */
    const uint8_t *from, *scales;     /* the next piece, and its scales */
    int rows, row_step;               /* rows from there to the segment's end; and to the one after it */
    int bytes, row_bytes;             /* of a row's piece; from a row to the next */
    int scale_bytes, scale_row;       /* likewise */
    int slot_row, scale_at, scale_to; /* where in a slot: the second row, the scales, the second row's */
    int op, s;                        /* what is walked */
    int slot, filled;                 /* the next one to be filled; how many are */
    int base, before; /* the next segment's partial sums; pieces of those before it, modulo MV_WARPS */
};

/* Goes to segment s of the plan. */
template <class W, int R> FB_DEVICE void st_enter(const mv_plan &plan, int s, st_filler *f) {
    const mv_segment &seg = plan.seg[s];
    const int per = 32 / mv_elements<W>::value; /* chunks of a block */
    mv_share share = mv_share_of<R>(seg);
    int rows = share.end - share.first, slots = plan.combined ? plan.slots : seg.pieces;
    int number = ((int)threadIdx.x / FB_WARP - f->before) & (MV_WARPS - 1);
    int unit = number / seg.pieces, piece = number - unit * seg.pieces, row = share.first + unit * R;
    int first = piece * seg.steps * FB_WARP, count = min(seg.steps * FB_WARP, seg.chunks - first);
    f->s = s;
    f->slot_row = plan.slot_row;
    f->scale_at = plan.scale_at;
    f->scale_to = plan.scale_at + plan.scale_row;
    f->what = make_int4(seg.x_at, seg.chunks, first, count);
    f->where = make_int4(f->base + unit * R * slots + piece, slots, R, seg.x_bytes);
    f->rows = share.end - row;
    f->row_step = MV_WARPS / seg.pieces * R;
    f->from = seg.w + (int64_t)row * seg.row_bytes + first * 16;
    f->bytes = count * 16;
    f->row_bytes = seg.row_bytes;
    f->scales = (const uint8_t *)(seg.scales + ((int64_t)row * seg.chunks + first) / per);
    f->scale_bytes = mv_quantised<W>::value ? count / per * 2 : 0;
    f->scale_row = seg.chunks / per * 2;
    f->base += plan.combined ? seg.pieces : rows * slots;
    f->before += (rows + R - 1) / R * seg.pieces;
}

/* Asks for the next piece, into the next slot. */
template <class W, int R>
FB_DEVICE void st_fetch(const mv_ring &ring, int slot_bytes, int depth, st_filler *f) {
    const int rows = min(f->rows, R);
    mv_head *head = ring.heads + f->slot;
    uint64_t *barrier = ring.barriers + f->slot;
    uint8_t *to = ring.slots + f->slot * slot_bytes;
    mv_barrier_expect(barrier, rows * (f->bytes + f->scale_bytes));
    /* Rows that are the slot's length lie there as they do in memory: one copy. */
    bool whole = R > 1 && f->bytes == f->row_bytes && f->bytes == f->slot_row;
    int times = whole ? rows : 1;
    mv_bulk(to, f->from, times * f->bytes, barrier);
    if (R > 1 && rows > times) mv_bulk(to + f->slot_row, f->from + f->row_bytes, f->bytes, barrier);
    if (mv_quantised<W>::value) {
        mv_bulk(to + f->scale_at, f->scales, times * f->scale_bytes, barrier);
        if (R > 1 && rows > times)
            mv_bulk(to + f->scale_to, f->scales + f->scale_row, f->scale_bytes, barrier);
        f->scales += (int64_t)f->row_step * f->scale_row;
    }
    *(int4 *)&head->x_at = f->what;
    *(int4 *)&head->partial = make_int4(f->where.x, f->where.y, rows, f->where.w);
    head->s = f->op;
    f->where.x += f->row_step * f->where.y;
    f->from += (int64_t)f->row_step * f->row_bytes;
    f->rows -= f->row_step;
    f->filled++;
    if (++f->slot == depth) f->slot = 0;
}

/* As many slots as there are pieces in the window. A slot's head has the op's number in `s`. */
template <class W, int R>
FB_DEVICE void st_fill(const st_window &w, const mv_ring &ring, int slot_bytes, int depth, st_filler *f) {
#pragma unroll 1
    while (f->filled < depth) {
        if (f->rows > 0) {
            st_fetch<W, R>(ring, slot_bytes, depth, f);
            continue;
        }
        int op = f->op, s = f->s + 1;
        if (op < 0 || s >= st_at(w, op).matvec.segments) { /* the next op of weights */
            int end = min(w.now + ST_AHEAD + 1, w.count);
            do op++;
            while (op < end && st_at(w, op).kind != ST_MATVEC);
            if (op >= end) return;
            f->op = op;
            f->base = f->before = s = 0;
        }
        st_enter<W, R>(st_at(w, op).matvec, s, f);
    }
}

/* Norms and biases of an op two ahead are asked into the second-level cache: behind the weights that the
 * rings ask for, they would take 3 us. Blocks share the norms. */
FB_DEVICE void st_prefetch(const void *p, int64_t bytes, int first, int step) {
#ifndef FB_EMULATED
    for (int64_t at = (int64_t)first * 128; at < bytes; at += (int64_t)step * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const uint8_t *)p + at));
#else
    (void)p, (void)bytes, (void)first, (void)step;
#endif
}
FB_DEVICE int st_size(fb_dtype type) { return type == FB_F32 ? 4 : 2; }
template <int R> FB_DEVICE void st_prefetch_op(const mv_plan &plan) {
    int thread = (int)threadIdx.x - MV_COPIERS, s = thread / FB_WARP, lane = thread % FB_WARP;
    if (thread < 0 || s >= plan.segments) return;
    const mv_segment &seg = plan.seg[s];
    int line = (int)blockIdx.x + lane * (int)gridDim.x;
    if (seg.norm != FB_OP_COUNT) {
        st_prefetch(seg.norm_w, (int64_t)seg.cols * st_size(seg.norm_w_type), line, FB_WARP * (int)gridDim.x);
        if (seg.norm_b)
            st_prefetch(seg.norm_b, (int64_t)seg.cols * st_size(seg.norm_b_type), line,
                        FB_WARP * (int)gridDim.x);
    }
    if (seg.bias) {
        mv_share share = mv_share_of<R>(seg);
        int size = st_size(seg.bias_type);
        st_prefetch((const uint8_t *)seg.bias + share.first * size, (int64_t)(share.end - share.first) * size,
                    lane, FB_WARP);
    }
}

/* ---- meetings --------------------------------------------------------------------------------------------
 */

/* All threads of the block have written what others will read. */
FB_DEVICE void st_arrive(unsigned *arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
#ifdef FB_EMULATED
        atomicAdd(arrived, 1u);
#else
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
#endif
    }
}
FB_DEVICE void st_meet(const unsigned *arrived, unsigned all) {
    if (threadIdx.x == 0) {
#ifdef FB_EMULATED
        while (*(volatile const unsigned *)arrived < all) fb_emulated_yield();
#else
        unsigned now;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
        while (now < all);
#endif
    }
    __syncthreads();
}

/* ---- ops -------------------------------------------------------------------------------------------------
 */

/* mv_stage_inputs for one row, in less code: what a segment is like is looked up quickly here. `next`: what
 * the first segment's norm needs; that of each other one is asked for while the one before is staged. */
template <class W, class X, class T>
FB_DEVICE void st_stage(const mv_plan &plan, uint8_t *shared, float *room, mv_norm_8 next) {
    fb_row_stats stats = {0, 0};
#pragma unroll 1
    for (int s = 0; s < plan.segments; s++) {
        mv_norm_8 norm = next;
        next = {};
        if (s + 1 < plan.segments) mv_ask_first_norm(plan.seg[s + 1], &next);
        mv_stage_segment<true, T, W, X, 1>(plan, plan.seg[s], s == 0, shared, room, &stats, norm);
    }
}

template <class W, class X, class T>
FB_DEVICE void st_matvec(const mv_plan &plan, const st_window &w, const st_rooms &rooms, uint8_t *shared,
                         mv_ring &ring, st_filler *filler, unsigned all) {
    const int R = mv_rows<W, 1>::value;
    mv_norm_8 norm = {};
    mv_ask_first_norm(plan.seg[0], &norm);
    mv_output mine = mv_output_of<R>(plan, (int)threadIdx.x);
    mv_rest rest = {{0, 0}, 0};
    if (mine.s >= 0) mv_get_biases(plan, mine, &rest);
    st_meet(rooms.arrived, all);
    if (threadIdx.x < MV_COPIERS) mv_copy_rows(plan, shared);
    if (mine.s >= 0) mv_get_residual(plan, mine, 0, &rest);
    mv_rows_copied();
    float *partial = (float *)(shared + plan.partial_at);
    st_stage<W, X, T>(plan, shared, partial, norm);
    __syncthreads();
    /* What the loop needs, in registers. */
    mv_plan here;
    here.slot_row = plan.slot_row;
    here.slot_bytes = rooms.slot_bytes;
    here.scale_at = plan.scale_at;
    here.scale_row = plan.scale_row;
    st_filler f = *filler;
#pragma unroll 1
    for (;;) {
        mv_head *head = ring.heads + ring.slot;
        if (head->s != w.now) break;
        const int4 what = *(const int4 *)&head->x_at;
        mv_barrier_wait(ring.barriers + ring.slot, ring.phase);
        mv_multiply<W, X, 1, R, true>(here, ring, what, shared, partial);
        __syncwarp();
        if (threadIdx.x % FB_WARP == 0) {
            head->s = -1;
            f.filled--;
            st_fill<W, R>(w, ring, rooms.slot_bytes, rooms.depth, &f);
        }
        __syncwarp();
        if (++ring.slot == rooms.depth) {
            ring.slot = 0;
            ring.phase ^= 1;
        }
    }
    __syncwarp(); /* all have read it, also those of a warp that had no piece */
    if (threadIdx.x % FB_WARP == 0) *filler = f;
    __syncthreads();
    mv_finish<R>(plan, mv_dtype<T>::value, partial, rest);
}

template <class T>
FB_DEVICE void st_attention_op(const st_attention &op, const st_rooms &rooms, uint8_t *shared, int past,
                               unsigned all) {
    st_attention_room &room = *(st_attention_room *)shared;
    int parts = st_parts(op, past);
    st_tile tile;
    st_part part = st_part_of(op, (int)blockIdx.x, past); /* which may not be there: then it has no keys */
    st_load_tile(op.a, part.kv_head, part.begin, min(part.end, past), tile);
    st_meet(rooms.arrived, all);
    mv_rows_copied(); /* of the window's next op */
#pragma unroll 1
    for (int number = (int)blockIdx.x; number < parts; number += (int)gridDim.x) {
        if (number != (int)blockIdx.x) {
            __syncthreads();
            part = st_part_of(op, number, past);
            st_load_tile(op.a, part.kv_head, part.begin, min(part.end, past), tile);
        }
        st_attend<T>(op, part, past, tile, room);
    }
}

/* T: what activations and the cache are. Nothing of it overlaps the kernels before and after: no
 * fb_wait_for_previous. */
template <class W, class X, class T>
__global__ void __launch_bounds__(MV_THREADS, 1) st_kernel(const __grid_constant__ st_rooms rooms) {
#if defined FB_EMULATED || (defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900)
    const int R = mv_rows<W, 1>::value;
    FB_SHARED(uint8_t, shared);
    st_window w = {(const st_op *)(shared + rooms.window_at), rooms.ops, 0, rooms.count};
    for (int op = 0; op < ST_WINDOW - 1; op++) st_fetch_op(w, op);
    fb_copy_commit();
    mv_rows_copied();
    mv_ring ring = mv_ring_of(st_at(w, 0).matvec, shared); /* the same in all of them */
    st_filler *filler = (st_filler *)(shared + rooms.fillers_at) + threadIdx.x / FB_WARP;
    if (threadIdx.x % FB_WARP == 0) {
        for (int i = 0; i < rooms.depth; i++) {
            mv_barrier_make(ring.barriers + i);
            ring.heads[i].s = -1;
        }
        mv_barriers_made();
        filler->op = -1;
        filler->rows = filler->slot = filler->filled = 0;
    }
    unsigned all = 0;
    int past = 0;
#pragma unroll 1
    for (; w.now < w.count; w.now++, all += gridDim.x) {
        st_fetch_op(w, w.now + ST_WINDOW - 1);
        fb_copy_commit();
        int later = w.now + 2;
        if (later < w.count && st_at(w, later).kind == ST_MATVEC) st_prefetch_op<R>(st_at(w, later).matvec);
        if (threadIdx.x % FB_WARP == 0) st_fill<W, R>(w, ring, rooms.slot_bytes, rooms.depth, filler);
        __syncwarp();
        const st_op &op = st_at(w, w.now);
        if (op.kind == ST_MATVEC) {
            st_matvec<W, X, T>(op.matvec, w, rooms, shared, ring, filler, all);
        } else {
            if (past == 0) past = (int)*op.attention.a.slots.position;
            st_attention_op<T>(op.attention, rooms, shared, past, all);
        }
        st_arrive(rooms.arrived);
    }
    /* The last block to come here: nobody waits any more. */
    if (threadIdx.x == 0 && atomicAdd(rooms.arrived, 1u) == all + gridDim.x - 1) *rooms.arrived = 0;
#endif
}

template <class W, class X, class T>
static int st_launch(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx) {
    if (!rooms)
        return fb_fits_together(st_kernel<W, X, T>, MV_THREADS, (size_t)list->shared) ? 0
                                                                                      : FB_CUDA_NOT_LISTED;
    return FB_LAUNCH_TOGETHER(cx, dim3((unsigned)cx->limits->sms), dim3(MV_THREADS), (size_t)list->shared,
                              (st_kernel<W, X, T>), *rooms);
}

#endif
