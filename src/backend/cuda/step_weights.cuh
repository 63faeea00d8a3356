/* How weights get to the warps of a step's kernel: a few warps of their own ask for them.
 *
 * A lane of these fills the ring of one warp, across ops: while x is waited for, and its norm, the weights of
 * the op after, or of the one after that, arrive. It takes the ops from a window in shared memory, as all do.
 * Whoever waits, does so at barriers in shared memory: `barriers` of a slot when it is filled, `free` when
 * all lanes have read it; `there` of an op, and `passed` when no lane fills for it any more.
 *
 * A ring has more slots than are asked for at a time: x, which everybody waits for, would come after all of
 * them. */
#ifndef FB_BACKEND_CUDA_STEP_WEIGHTS_CUH
#define FB_BACKEND_CUDA_STEP_WEIGHTS_CUH

#include "backend/cuda/matvec_ring.cuh"
#include "backend/cuda/step_list.h"

/* Ops in shared memory: the one that is done, those that weights are fetched for, and one on its way. A small
 * op has fewer pieces than a ring has slots: behind it lie attention, and another op. */
#define ST_WINDOW   6
#define ST_BRINGERS 4 /* warps */
#define ST_RINGS    (MV_WARPS / ST_BRINGERS)
#define ST_THREADS  (MV_THREADS + ST_BRINGERS * FB_WARP)
/* Bytes that a block asks for at a time, about. More does not come sooner: the memory needs 30 KB of each
 * multiprocessor on its way to be busy, and what is asked for behind them waits for all of them. Steps of
 * Llama-3.2-1B in float16 (8 layers, 4 KB a piece): 0.349 ms with one piece of each ring, 0.368 with two. */
#define ST_FLYING (64 << 10)
#define ST_NAP    100 /* ns, where there is nothing to ask for: the others need the issue slots */

struct st_barriers {
    uint64_t *there, *passed; /* of the window's places */
};
struct st_ring {
    mv_ring of;
    uint64_t *free; /* of its slots */
};
#define ST_BARRIER_BYTES ((2 * ST_WINDOW + MV_WARPS * MV_DEPTH) * (int)sizeof(uint64_t))

FB_DEVICE st_barriers st_barriers_of(const st_rooms &rooms, uint8_t *shared) {
    uint64_t *first = (uint64_t *)(shared + rooms.barriers_at);
    return {first, first + ST_WINDOW};
}
FB_DEVICE st_ring st_ring_of(const st_rooms &rooms, uint8_t *shared, int warp) {
    st_ring ring;
    ring.of.slots = shared + rooms.ring_at + warp * rooms.depth * rooms.slot_bytes;
    ring.of.heads = (mv_head *)(shared + rooms.heads_at) + warp * MV_DEPTH;
    ring.of.barriers =
        (uint64_t *)(shared + rooms.heads_at + MV_WARPS * MV_DEPTH * sizeof(mv_head)) + warp * MV_DEPTH;
    ring.of.slot = ring.of.phase = 0;
    ring.free = (uint64_t *)(shared + rooms.barriers_at) + 2 * ST_WINDOW + warp * MV_DEPTH;
    return ring;
}

/* A __syncthreads must follow. */
FB_DEVICE void st_make_barriers(const st_rooms &rooms, uint8_t *shared, const st_barriers &barriers) {
    int thread = (int)threadIdx.x;
    if (thread < MV_WARPS) {
        st_ring ring = st_ring_of(rooms, shared, thread);
        for (int i = 0; i < rooms.depth; i++) {
            mv_barrier_make(ring.of.barriers + i, 1);
            mv_barrier_make(ring.free + i, FB_WARP);
        }
    }
    if (thread < ST_WINDOW) {
        mv_barrier_make(barriers.there + thread, 1);
        mv_barrier_make(barriers.passed + thread, MV_WARPS); /* the lanes that fill */
    }
    mv_barriers_made();
}

/* Asks for an op. Its place is free: the block has done with what was there, and here it is waited for the
 * lanes that fill rings. For one thread. */
FB_DEVICE void st_fetch_op(const st_rooms &rooms, uint8_t *shared, const st_barriers &barriers, int op) {
    int place = op % ST_WINDOW;
    if (op >= rooms.count) return;
    mv_barrier_wait(barriers.passed + place, (op / ST_WINDOW & 1) ^ 1);
    mv_barrier_expect(barriers.there + place, (int)sizeof(st_op));
    mv_bulk((st_op *)(shared + rooms.window_at) + place, rooms.ops + op, (int)sizeof(st_op),
            barriers.there + place);
}
FB_DEVICE bool st_op_there(const st_barriers &barriers, int op) {
    return mv_barrier_test(barriers.there + op % ST_WINDOW, op / ST_WINDOW & 1);
}
FB_DEVICE void st_await_op(const st_barriers &barriers, int op) {
    mv_barrier_wait(barriers.there + op % ST_WINDOW, op / ST_WINDOW & 1);
}

/* ---- what a warp has of an op ----------------------------------------------------------------------------
 */

/* A warp's first piece of a segment (step_list.cu's count_pieces). */
struct st_turn {
    int unit, piece; /* of the block's units of R rows */
};
FB_DEVICE st_turn st_turn_of(const mv_segment &seg, int warp, int before) {
    int number = (warp - before) & (MV_WARPS - 1);
    return {number >> seg.shift, number & (seg.pieces - 1)};
}

/* Pieces of a warp. */
FB_DEVICE int st_pieces(const st_op &op, int warp) {
    int more = 0;
#pragma unroll
    for (int s = 0; s < FB_MAX_SEGMENTS; s++)
        more |= (s < op.matvec.segments && (int)blockIdx.x < op.matvec.seg[s].more) << s;
    return op.pieces[more][warp];
}

/* ---- the lane that fills a ring --------------------------------------------------------------------------
 */

struct st_filler {
    int4 what, where;                 /* of the next head (mv_head) */
    const uint8_t *from, *scales;     /* the next piece, and its scales */
    int rows, row_step;               /* rows from there to the segment's end; and to the one after it */
    int bytes, row_bytes;             /* of a row's piece; from a row to the next */
    int scale_bytes, scale_row;       /* likewise */
    int slot_row, scale_at, scale_to; /* where in a slot: the second row, the scales, the second row's */
    int op, s, segments;              /* what is walked */
    int base, before;                 /* the next segment's partial sums; pieces of those before it */
    int slot, phase;                  /* to be filled next */
    int landing, landing_phase;       /* of the slots that are on their way, the first */
    int flying;                       /* how many these are */
};

/* Goes to segment s of the plan. */
template <class W, int R> FB_DEVICE void st_enter(const mv_plan &plan, int warp, st_filler *f) {
    const mv_segment &seg = plan.seg[f->s];
    const int per = 32 / mv_elements<W>::value; /* chunks of a block */
    mv_share share = mv_share_of<R>(seg);
    int rows = share.end - share.first, slots = plan.combined ? plan.slots : seg.pieces;
    st_turn turn = st_turn_of(seg, warp, f->before);
    int row = share.first + turn.unit * R;
    int first = turn.piece * seg.steps * FB_WARP, count = min(seg.steps * FB_WARP, seg.chunks - first);
    f->slot_row = plan.slot_row;
    f->scale_at = plan.scale_at;
    f->scale_to = plan.scale_at + plan.scale_row;
    f->what = make_int4(seg.x_at, seg.chunks, first, count);
    f->where = make_int4(f->base + turn.unit * R * slots + turn.piece, slots, R, seg.x_bytes);
    f->rows = share.end - row;
    f->row_step = (MV_WARPS >> seg.shift) * R;
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
template <class W, int R> FB_DEVICE void st_fetch(const st_rooms &rooms, const mv_ring &ring, st_filler *f) {
    const int rows = min(f->rows, R);
    mv_head *head = ring.heads + f->slot;
    uint64_t *barrier = ring.barriers + f->slot;
    uint8_t *to = ring.slots + f->slot * rooms.slot_bytes;
    *(int4 *)&head->x_at = f->what;
    *(int4 *)&head->partial = make_int4(f->where.x, f->where.y, rows, f->where.w);
    mv_barrier_expect(barrier, rows * (f->bytes + f->scale_bytes));
    /* Rows that are the slot's length lie there as they do in memory: one copy. */
    bool whole = R > 1 && f->bytes == f->row_bytes && f->bytes == f->slot_row;
    int times = whole ? rows : 1;
    mv_bulk_once(to, f->from, times * f->bytes, barrier);
    if (R > 1 && rows > times) mv_bulk_once(to + f->slot_row, f->from + f->row_bytes, f->bytes, barrier);
    if (mv_quantised<W>::value) {
        mv_bulk_once(to + f->scale_at, f->scales, times * f->scale_bytes, barrier);
        if (R > 1 && rows > times)
            mv_bulk_once(to + f->scale_to, f->scales + f->scale_row, f->scale_bytes, barrier);
        f->scales += (int64_t)f->row_step * f->scale_row;
    }
    f->where.x += f->row_step * f->where.y;
    f->from += (int64_t)f->row_step * f->row_bytes;
    f->rows -= f->row_step;
    f->flying++;
    if (++f->slot == rooms.depth) {
        f->slot = 0;
        f->phase ^= 1;
    }
}

/* One thing that can be done now; whether there was one. */
template <class W, int R>
FB_DEVICE bool st_fill(const st_rooms &rooms, const st_op *window, const st_barriers &barriers,
                       const st_ring &ring, int warp, st_filler *f) {
    if (f->rows > 0) {
        if (f->flying == rooms.flying) {
            if (!mv_barrier_test(ring.of.barriers + f->landing, f->landing_phase)) return false;
            f->flying--;
            if (++f->landing == rooms.depth) {
                f->landing = 0;
                f->landing_phase ^= 1;
            }
        }
        if (!mv_barrier_test(ring.free + f->slot, f->phase ^ 1)) return false;
        st_fetch<W, R>(rooms, ring.of, f);
        return true;
    }
    if (++f->s >= f->segments) { /* the next op */
        f->s--;
        if (f->op + 1 < rooms.count && !st_op_there(barriers, f->op + 1)) return false;
        if (f->op >= 0) mv_barrier_arrive(barriers.passed + f->op % ST_WINDOW);
        if (++f->op == rooms.count) return true;
        const st_op &op = window[f->op % ST_WINDOW];
        f->segments = op.kind == ST_MATVEC ? op.matvec.segments : 0;
        f->base = f->before = 0;
        f->s = -1;
        return true;
    }
    st_enter<W, R>(window[f->op % ST_WINDOW].matvec, warp, f);
    return true;
}

/* Until all was asked for. The first ST_RINGS lanes of each of these warps have a ring each: a copy takes as
 * long as the lanes of a warp that ask for one are many. */
template <class W, int R>
FB_DEVICE void st_bring(const st_rooms &rooms, uint8_t *shared, const st_barriers &barriers) {
    const int bringer = (int)threadIdx.x / FB_WARP - MV_WARPS, lane = (int)threadIdx.x % FB_WARP;
    if (lane >= ST_RINGS) return;
    const int warp = bringer + lane * ST_BRINGERS;
    const st_op *window = (const st_op *)(shared + rooms.window_at);
    st_ring ring = st_ring_of(rooms, shared, warp);
    st_filler f = {};
    f.op = -1;
#pragma unroll 1
    while (f.op < rooms.count) {
        bool went = st_fill<W, R>(rooms, window, barriers, ring, warp, &f);
#ifdef FB_EMULATED
        fb_emulated_yield(!went);
#else
        if (!went) __nanosleep(ST_NAP);
#endif
    }
}

#endif
