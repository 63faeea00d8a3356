/* How weights get to the warps.
 *
 * A block has some rows of each segment, R rows' pieces of them one after the other; its warps take turns. A
 * warp has a ring of slots in shared memory. One of its lanes walks ahead (in a step's kernel, one of another
 * warp: step_weights.cuh), and asks for the pieces that come
 * next into the slots that are free: with one bulk copy a row, which takes no register and no instruction of
 * the other lanes. (Devices before sm_90: sixteen bytes a lane.) It leaves in the slot's head what the warp
 * must know to multiply it, since looking that up takes longer than multiplying. */
#ifndef FB_BACKEND_CUDA_MATVEC_RING_CUH
#define FB_BACKEND_CUDA_MATVEC_RING_CUH

#include "backend/cuda/matvec.h"
#include "backend/cuda/matvec_products.cuh"

/* How mv_kernel copies; the emulation copies as devices before sm_90 do, there, and in a step's kernel as
 * those after it. */
#if !defined FB_EMULATED && defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
#define MV_BULK 1
#else
#define MV_BULK 0
#endif

/* The threads that multiply wait for each other: all of a block, but in a step's kernel. */
FB_DEVICE void mv_sync() { fb_sync<MV_THREADS>(); }

/* ---- copies ----------------------------------------------------------------------------------------------
 */

#ifdef FB_EMULATED
/* Bytes come at once. Sixteen bits each: how often it ended, how many are still to arrive, of how many. */
FB_DEVICE void mv_barrier_make(uint64_t *barrier, int count) {
    *barrier = (uint64_t)count << 32 | (uint64_t)count << 16;
}
FB_DEVICE void mv_barriers_made() {}
FB_DEVICE void mv_barrier_arrive(uint64_t *barrier) {
    uint64_t count = *barrier >> 32, left = (*barrier >> 16 & 0xffff) - 1, phase = *barrier & 0xffff;
    *barrier = count << 32 | (left ? left : count) << 16 | ((phase + !left) & 0xffff);
}
FB_DEVICE void mv_barrier_expect(uint64_t *barrier, int) { mv_barrier_arrive(barrier); }
FB_DEVICE bool mv_barrier_test(uint64_t *barrier, int phase) { return (int)(*barrier & 1) != phase; }
FB_DEVICE void mv_barrier_wait(uint64_t *barrier, int phase) {
    for (bool idle = false; !mv_barrier_test(barrier, phase); idle = true) fb_emulated_yield(idle);
}
FB_DEVICE void mv_bulk(void *to, const void *from, int bytes, uint64_t *) { memcpy(to, from, (size_t)bytes); }
FB_DEVICE void mv_bulk_once(void *to, const void *from, int bytes, uint64_t *barrier) {
    mv_bulk(to, from, bytes, barrier);
}
#elif defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
FB_DEVICE uint32_t mv_shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
/* A barrier whose phase ends when `count` have arrived, and the bytes have come that they said to expect. */
FB_DEVICE void mv_barrier_make(uint64_t *barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mv_shared(barrier)), "r"(count) : "memory");
}
FB_DEVICE void mv_barriers_made() {
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
/* Whether the phase with that number, modulo 2, has ended. */
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
FB_DEVICE void mv_bulk(void *to, const void *from, int bytes, uint64_t *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            mv_shared(to)),
        "l"(from), "r"(bytes), "r"(mv_shared(barrier))
        : "memory");
}
/* Of weights: read once a step, they are the first that the second-level cache is to forget. Else they drive
 * out what a step needs again and again, x, norms and the kernel's instructions among it: a step of
 * Llama-3.2-1B took 10% longer (float16, all layers in one kernel). */
FB_DEVICE void mv_bulk_once(void *to, const void *from, int bytes, uint64_t *barrier) {
    asm volatile("{\n"
                 ".reg .b64 policy;\n"
                 "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1], %2, [%3], policy;\n"
                 "}" ::"r"(mv_shared(to)),
                 "l"(from), "r"(bytes), "r"(mv_shared(barrier))
                 : "memory");
}
#else /* never called */
FB_DEVICE void mv_barrier_make(uint64_t *, int) {}
FB_DEVICE void mv_barriers_made() {}
FB_DEVICE void mv_barrier_arrive(uint64_t *) {}
FB_DEVICE void mv_barrier_expect(uint64_t *, int) {}
FB_DEVICE bool mv_barrier_test(uint64_t *, int) { return true; }
FB_DEVICE void mv_barrier_wait(uint64_t *, int) {}
FB_DEVICE void mv_bulk(void *, const void *, int, uint64_t *) {}
FB_DEVICE void mv_bulk_once(void *, const void *, int, uint64_t *) {}
#endif

/* ---- what comes when -------------------------------------------------------------------------------------
 */

/* A block's rows of a segment. */
struct mv_share {
    int first, end;
};
template <int R> FB_DEVICE mv_share mv_share_of(const mv_segment &seg) {
    int block = (int)blockIdx.x, unit = block * seg.each + min(block, seg.more);
    /* The last unit may be short, and a block have none. */
    return {min(unit * R, seg.rows), min((unit + seg.each + (block < seg.more)) * R, seg.rows)};
}

/* The next piece: of R rows from `row` on, as far as they are before `end`, in segment s. */
struct mv_walk {
    int s, row, end, piece;
    int partial; /* where the partial sums of `row` begin, in floats */
};

/* The first piece of segment s, or of the one after it … that has one; `left` pieces further. */
template <int R> FB_DEVICE void mv_walk_into(const mv_plan &plan, mv_walk &walk, int s, int left) {
    for (;; s++) {
        const mv_segment &seg = plan.seg[s];
        mv_share share = mv_share_of<R>(seg);
        int units = (share.end - share.first + R - 1) / R, unit = left / seg.pieces;
        int slots = plan.combined ? plan.slots : seg.pieces;
        walk.s = s;
        walk.end = share.end;
        walk.row = share.first + unit * R;
        walk.piece = left - unit * seg.pieces;
        if (unit < units || s + 1 >= plan.segments) {
            walk.partial += unit * R * slots;
            return;
        }
        left -= units * seg.pieces;
        walk.partial += plan.combined ? seg.pieces : (share.end - share.first) * slots;
    }
}

/* Goes on by MV_WARPS pieces; there is none where walk.row is not before walk.end. */
template <int R> FB_DEVICE void mv_walk_on(const mv_plan &plan, mv_walk &walk) {
    const mv_segment &seg = plan.seg[walk.s];
    int units = seg.skip_units, pieces = seg.pieces, slots = plan.combined ? plan.slots : pieces;
    walk.piece += seg.skip_pieces;
    if (walk.piece >= pieces) {
        walk.piece -= pieces;
        units++;
    }
    walk.row += units * R;
    walk.partial += units * R * slots;
    if (walk.row < walk.end || walk.s + 1 >= plan.segments) return;
    /* What is left over goes on in the next segment. */
    mv_share share = mv_share_of<R>(seg);
    int over = (walk.row - walk.end) / R;
    walk.partial -= (walk.row - share.first) * slots; /* where the segment's begin */
    walk.partial += plan.combined ? pieces : (share.end - share.first) * slots;
    mv_walk_into<R>(plan, walk, walk.s + 1, over * pieces + walk.piece);
}

/* ---- the ring --------------------------------------------------------------------------------------------
 */

/* What a slot holds. */
struct __align__(16) mv_head {
    int x_at, chunks; /* the staged rows of x, and how many chunks they have */
    int first, count; /* the piece's chunks; count is 0 after the last piece */
    int partial, far; /* where the first row's sum goes, and how far from it the next row's */
    int rows, x_bytes;
    int s, row; /* where nothing is copied */
    int none[2];
};

struct mv_ring {
    uint8_t *slots;
    mv_head *heads;     /* of the slots */
    uint64_t *barriers; /* likewise */
    int slot, phase;    /* the next one to be read, and how often the ring was read, modulo 2 */
};

#define MV_RING_BYTES                                                                                        \
    (MV_WARPS * MV_DEPTH * (int)(sizeof(mv_head) + sizeof(uint64_t))) /* of heads, barriers */

FB_DEVICE mv_ring mv_ring_of(const mv_plan &plan, uint8_t *shared) {
    int warp = (int)threadIdx.x / FB_WARP;
    mv_ring ring;
    ring.slots = shared + plan.ring_at + warp * plan.depth * plan.slot_bytes;
    ring.heads = (mv_head *)(shared + plan.heads_at) + warp * MV_DEPTH;
    ring.barriers =
        (uint64_t *)(shared + plan.heads_at + MV_WARPS * MV_DEPTH * sizeof(mv_head)) + warp * MV_DEPTH;
    ring.slot = ring.phase = 0;
    return ring;
}

/* Asks for the walk's piece, into a slot that all lanes have read, and walks on. With bulk copies for the
 * first lane of a warp only. */
template <class W, int R, bool RING, bool BULK>
FB_DEVICE void mv_fetch(const mv_plan &plan, const mv_ring &ring, int slot, mv_walk &walk) {
    int lane = (int)threadIdx.x % FB_WARP;
    if (walk.row >= walk.end) {
        if (lane == 0) ring.heads[slot].count = 0;
    } else {
        const mv_segment &seg = plan.seg[walk.s];
        const int per = 32 / mv_elements<W>::value; /* chunks of a block */
        int first = walk.piece * seg.steps * FB_WARP, rows = min(walk.end - walk.row, R);
        int count = min(seg.steps * FB_WARP, seg.chunks - first);
        if (lane == 0) {
            mv_head *head = ring.heads + slot;
            *(int4 *)&head->x_at = make_int4(seg.x_at, seg.chunks, first, count);
            *(int4 *)&head->partial = make_int4(walk.partial + walk.piece,
                                                plan.combined ? plan.slots : seg.pieces, rows, seg.x_bytes);
            if (!RING) *(int2 *)&head->s = make_int2(walk.s, walk.row);
        }
        if (RING) {
            uint8_t *to = ring.slots + slot * plan.slot_bytes;
            const uint8_t *from = seg.w + (int64_t)walk.row * seg.row_bytes + first * 16;
            const uint16_t *scale = seg.scales + ((int64_t)walk.row * seg.chunks + first) / per;
            const bool scales = mv_quantised<W>::value;
            int scale_bytes = scales ? count / per * 2 : 0;
            if constexpr (BULK) {
                uint64_t *barrier = ring.barriers + slot;
                mv_barrier_expect(barrier, rows * (count * 16 + scale_bytes));
                /* Rows that are the slot's length lie there as they do in memory: one copy. */
                bool whole = R > 1 && count * 16 == plan.slot_row && seg.pieces == 1;
                int copies = whole ? 1 : rows, times = whole ? rows : 1;
#pragma unroll 1
                for (int r = 0; r < copies; r++) {
                    mv_bulk_once(to + r * plan.slot_row, from + (int64_t)r * seg.row_bytes,
                                 times * count * 16, barrier);
                    if (scales)
                        mv_bulk_once(to + plan.scale_at + r * plan.scale_row, scale + r * (seg.chunks / per),
                                     times * scale_bytes, barrier);
                }
            } else {
                for (int r = 0; r < rows; r++) {
#pragma unroll 5
                    for (int at = lane; at < count; at += FB_WARP)
                        fb_copy_16(to + r * plan.slot_row + at * 16,
                                   from + (int64_t)r * seg.row_bytes + at * 16);
                    if (!scales) continue;
                    const uint8_t *its = (const uint8_t *)(scale + r * (seg.chunks / per));
                    for (int at = lane * 16; at < scale_bytes; at += FB_WARP * 16)
                        fb_copy_16(to + plan.scale_at + r * plan.scale_row + at, its + at);
                }
            }
        }
        mv_walk_on<R>(plan, walk);
    }
    if (RING && !BULK) fb_copy_commit();
}

/* The slots are filled for the first time. */
template <class W, int R, bool RING>
FB_DEVICE void mv_fill(const mv_plan &plan, const mv_ring &ring, mv_walk &walk) {
#if MV_BULK
    if (threadIdx.x % FB_WARP == 0) {
#pragma unroll 1
        for (int i = 0; RING && i < plan.depth; i++) mv_barrier_make(ring.barriers + i, 1);
        mv_barriers_made();
#else
    {
#endif
        walk.partial = 0;
        mv_walk_into<R>(plan, walk, 0, (int)threadIdx.x / FB_WARP);
#pragma unroll 1
        for (int i = 0; i < plan.depth; i++) mv_fetch<W, R, RING, MV_BULK>(plan, ring, i, walk);
    }
    __syncwarp();
}

/* Until the next slot's piece has arrived. */
FB_DEVICE void mv_arrive(const mv_plan &plan, const mv_ring &ring) {
#if MV_BULK
    (void)plan;
    mv_barrier_wait(ring.barriers + ring.slot, ring.phase);
#else
    (void)ring;
    switch (plan.depth) {
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

/* All lanes are about to have read the slot: it takes the walk's next piece. */
template <class W, int R, bool RING>
FB_DEVICE void mv_refill(const mv_plan &plan, mv_ring &ring, mv_walk &walk) {
    __syncwarp();
#if MV_BULK
    if (threadIdx.x % FB_WARP == 0)
#endif
        mv_fetch<W, R, RING, MV_BULK>(plan, ring, ring.slot, walk);
    __syncwarp();
    if (++ring.slot == plan.depth) {
        ring.slot = 0;
        ring.phase ^= 1;
    }
}

#endif
