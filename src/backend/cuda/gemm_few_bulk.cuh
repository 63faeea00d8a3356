/* Products of a few generated rows, in the order of sums.h, on devices with bulk copies (sm_90).
 *
 * There is one block a multiprocessor. It streams its weights through shared memory, without a pause between
 * outputs. Its warps have three roles:
 *  - The producer fills the stages: a piece of the weights of P::width outputs, a tile.
 *  - The multiplying warps make the partial sums of a tile's outputs.
 *  - The adding warps add the partial sums, then the pieces, and store the result, while the others are at
 *    the next tile.
 * Stages carry a description of what is in them, so that only the producer goes through the job.
 *
 * A block has P::rows rows. Of more rows, several blocks read the same weights at the same time.
 *
 * A product P has
 *   rows, width    of a tile of sums
 *   partial        partial sums of an output and a piece
 *   adders         adding warps
 *   memory         what it needs of shared memory
 *   source_of(…)   where the operands of a part of a unit are
 *   put_x(…)       brings a piece of x
 *   put_weights(…) fills a stage
 *   consume(…)     what the multiplying warps do */
#ifndef FB_BACKEND_CUDA_GEMM_FEW_BULK_CUH
#define FB_BACKEND_CUDA_GEMM_FEW_BULK_CUH

#include "backend/cuda/gemm.cuh"
#include "backend/cuda/matvec_pipeline.cuh"

#define BULK_MULTIPLIERS 8 /* warps */
#define BULK_STAGES      8 /* at most */
#define BULK_SLOTS       2 /* tiles that are multiplied, but not added yet */
#define BULK_GROUP       8 /* tiles whose sums are kept from piece to piece */

enum { BULK_WEIGHTS, BULK_X, BULK_END };

/* What a stage holds: a piece of the weights of outputs n, n + 1, … or of x. */
struct bulk_item {
    int32_t what, chunks; /* of 16 bytes of weights in the piece */
    int32_t unit, part, n;
    int32_t kept;        /* which of a group's tiles */
    int32_t first, last; /* piece of its outputs */
    int32_t x;           /* the number of the piece of x, where x does not lie in stages */
};

/* Which blocks compute what: those with the same number modulo `across` have the same rows. */
struct bulk_shares {
    int32_t tiles, sets, across;
    int32_t stages, stage; /* number, bytes */
    int32_t inputs, input; /* the same of pieces of x, where x does not lie in stages */
    int32_t lanes;         /* chunks of a lane in the longest piece (sums.h) */
};

template <class P> struct bulk_shared {
    float sums[BULK_SLOTS][P::partial][P::rows][P::width];
    float kept[BULK_GROUP][P::rows][P::width];
    bulk_item item[BULK_STAGES], added[BULK_SLOTS];
    uint64_t full[BULK_STAGES], empty[BULK_STAGES], summed[BULK_SLOTS], free[BULK_SLOTS];
    uint64_t x_full[2], x_empty[2];
};

/* A place in a ring, and how often the ring was gone through, modulo 2. */
struct bulk_place {
    int at, phase;
    FB_DEVICE void next(int count) {
        at++;
        if (at == count) at = 0, phase ^= 1;
    }
};

struct bulk_source {
    const uint8_t *x, *w, *scales;
    int64_t x_row, w_row, scale_row; /* bytes */
    int64_t n;
    int chunks, piece, pieces; /* of a row, of a piece; pieces of a row */
    int tile;                  /* the unit's first */
};

template <class P> struct bulk_producer {
    bulk_shared<P> *shared;
    uint8_t *stages, *inputs;
    bulk_shares shares;
    int lane, first, rows; /* the block's rows of x */
    bulk_place place;
    int filled;          /* stages so far */
    const uint8_t *have; /* the piece of x that was brought last */
    int x;               /* its number */
    /* A piece of x that will be brought when no stage is free for more weights. So those of the first stages
     * are copied while the kernel before this one still runs. */
    bool late, announced; /* announced: a stage that needs it is filled */
    bulk_source late_source;
    bulk_item late_item;
    int late_chunk;

    FB_DEVICE void bring_late() {
        if (!late) return;
        late = false;
        fb_wait_for_previous();
        P::put_x(*this, late_source, late_item, late_chunk);
    }

    /* The stage to fill next, when it is free. */
    FB_DEVICE int next_stage() {
        const int stage = place.at;
        if (filled >= shares.stages) {
            /* Not before: the multiplying warps give up the piece before when they see such a stage. */
            if (announced) bring_late();
            mv_barrier_wait(shared->empty + stage, place.phase ^ 1);
        }
        filled++;
        place.next(shares.stages);
        return stage;
    }
};

/* ---- the producer ---- */

/* Tiles [begin, end) of one part, piece by piece. */
template <class P>
FB_DEVICE void bulk_produce(bulk_producer<P> &p, const gemm_job &job, int part, int begin, int end) {
    bool more = true;
    for (int piece = 0; more; piece++) {
        bulk_source s = {};
        int u = -1, next = begin; /* next: the first tile of the next unit */
        more = false;
        for (int tile = begin; tile < end; tile++) {
            while (tile >= next) {
                u++;
                next = u + 1 < job.units ? job.unit[u + 1].tile : end;
                if (tile < next) {
                    s = P::source_of(job.segment[job.unit[u].segment + part]);
                    s.tile = job.unit[u].tile;
                }
            }
            if (piece >= s.pieces) continue;
            more = more || piece + 1 < s.pieces;
            const int chunk = piece * s.piece;
            bulk_item item = {BULK_WEIGHTS, min(s.piece, s.chunks - chunk), u,
                              part,         (tile - s.tile) * P::width,     tile - begin,
                              piece == 0,   piece + 1 == s.pieces,          0};
            const uint8_t *x = P::x_at(s, chunk);
            if (p.have != x) {
                p.have = x;
                P::change_x(p, s, item, chunk);
            }
            item.x = p.x;
            P::put_weights(p, p.next_stage(), s, item, chunk);
            p.announced = true;
        }
    }
}

/* ---- adding warps ---- */

template <class P> FB_DEVICE void bulk_add(const gemm_job &job, bulk_shared<P> *shared, int first) {
    const int me = (int)threadIdx.x - BULK_MULTIPLIERS * FB_WARP, threads = P::adders * FB_WARP;
    const int across = P::width / 2, pairs = P::rows * across, each = (pairs + threads - 1) / threads;
    for (bulk_place slot = {0, 0};; slot.next(BULK_SLOTS)) {
        mv_barrier_wait(shared->summed + slot.at, slot.phase);
        const bulk_item item = shared->added[slot.at];
        if (item.what == BULK_END) return;
        const gemm_unit &unit = job.unit[item.unit];
        float2 sums[each];
        gemm_operands with[each]; /* all of them are loaded before the first is used */
#pragma unroll
        for (int e = 0; e < each; e++) {
            const int i = me + e * threads, row = i / across, col = i % across * 2;
            if (item.last && i < pairs)
                with[e] = gemm_operands_of(job, unit, item.part, first + row, item.n + col);
        }
#pragma unroll
        for (int e = 0; e < each; e++) {
            const int i = me + e * threads, row = i / across, col = i % across * 2;
            if (i >= pairs) break;
            sums[e] = *(const float2 *)&shared->sums[slot.at][0][row][col];
#pragma unroll
            for (int q = 1; q < P::partial; q++) {
                const float2 next = *(const float2 *)&shared->sums[slot.at][q][row][col];
                sums[e].x += next.x;
                sums[e].y += next.y;
            }
        }
        __syncwarp();
        if (me % FB_WARP == 0) mv_barrier_arrive(shared->free + slot.at);
#pragma unroll
        for (int e = 0; e < each; e++) {
            const int i = me + e * threads, row = i / across, col = i % across * 2;
            if (i >= pairs) break;
            float2 *kept = (float2 *)&shared->kept[item.kept][row][col];
            if (!item.first) {
                sums[e].x = kept->x + sums[e].x;
                sums[e].y = kept->y + sums[e].y;
            }
            if (item.last)
                gemm_finish_with(job, unit, item.part, first + row, item.n + col, sums[e], with[e]);
            else
                *kept = sums[e];
        }
    }
}

/* Where a multiplying warp stores its partial sums, when there is a free slot; then it calls bulk_summed. */
template <class P> FB_DEVICE void bulk_wait_slot(bulk_shared<P> *shared, bulk_place slot) {
    mv_barrier_wait(shared->free + slot.at, slot.phase ^ 1);
}
template <class P>
FB_DEVICE void bulk_summed(bulk_shared<P> *shared, bulk_place slot, const bulk_item &item) {
    if (threadIdx.x == 0) shared->added[slot.at] = item;
    __syncwarp();
    if (threadIdx.x % FB_WARP == 0) mv_barrier_arrive(shared->summed + slot.at);
}

/* ---- the kernel ---- */

template <class P> FB_HOST_DEV int bulk_threads() { return (BULK_MULTIPLIERS + P::adders + 1) * FB_WARP; }

template <class P>
__global__ void __launch_bounds__(((BULK_MULTIPLIERS + P::adders + 1) * FB_WARP), 1)
    bulk_kernel(GEMM_PARAMETER gemm_job job, bulk_shares shares) {
    FB_SHARED(uint8_t, memory);
    uint8_t *inputs = memory + shares.stages * shares.stage;
    bulk_shared<P> *shared = (bulk_shared<P> *)(void *)(inputs + shares.inputs * shares.input);
    const int warp = (int)threadIdx.x / FB_WARP, across = (int)blockIdx.x % shares.across;
    const int first = across * P::rows, set = (int)blockIdx.x / shares.across;
    fb_let_next_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < shares.stages; i++) {
            mv_barrier_init(shared->full + i, 1);
            mv_barrier_init(shared->empty + i, BULK_MULTIPLIERS);
        }
        for (int i = 0; i < BULK_SLOTS; i++) {
            mv_barrier_init(shared->summed + i, BULK_MULTIPLIERS);
            mv_barrier_init(shared->free + i, P::adders);
        }
        for (int i = 0; i < 2; i++) {
            mv_barrier_init(shared->x_full + i, 1);
            mv_barrier_init(shared->x_empty + i, BULK_MULTIPLIERS);
        }
        mv_barrier_init_fence();
    }
    __syncthreads();
    if (warp < BULK_MULTIPLIERS) {
        fb_wait_for_previous();
        P::consume(shared, memory, inputs, shares);
    } else if (warp < BULK_MULTIPLIERS + P::adders) {
        fb_wait_for_previous();
        bulk_add<P>(job, shared, first);
    } else {
        bulk_producer<P> p = {};
        p.shared = shared;
        p.stages = memory;
        p.inputs = inputs;
        p.shares = shares;
        p.lane = (int)threadIdx.x % FB_WARP;
        p.first = first;
        p.rows = (int)min((int64_t)P::rows, job.rows - first);
        const int from = (int)((int64_t)set * shares.tiles / shares.sets);
        const int to = (int)((int64_t)(set + 1) * shares.tiles / shares.sets);
        for (int begin = from; begin < to; begin += BULK_GROUP)
            for (int part = job.first; part < job.first + job.count; part++)
                bulk_produce<P>(p, job, part, begin, min(begin + BULK_GROUP, to));
        p.bring_late();
        const int stage = p.next_stage();
        if (p.lane == 0) {
            shared->item[stage].what = BULK_END;
            mv_barrier_arrive(shared->full + stage);
        }
    }
}

/* ---- launching ---- */

/* Fills in the shares of the blocks and launches. */
template <class P>
static int bulk_launch(const gemm_job *job, const fb_cuda_context *cx, bulk_shares shares) {
    gemm_job mine = *job;
    dim3 grid = gemm_grid(&mine, P::rows, P::width);
    shares.tiles = (int32_t)grid.y;
    shares.across = (int32_t)grid.x;
    shares.sets = cx->limits->sms / shares.across;
    if (shares.sets < 1) shares.sets = 1;
    if (shares.sets > shares.tiles) shares.sets = shares.tiles;
    return FB_LAUNCH(cx, dim3((unsigned)(shares.sets * shares.across)), dim3((unsigned)bulk_threads<P>()),
                     (size_t)shares.stages * shares.stage + (size_t)shares.inputs * shares.input +
                         sizeof(bulk_shared<P>),
                     (bulk_kernel<P>), mine, shares);
}

/* As many stages as there is room for; 0 if there are fewer than `least`. */
template <class P>
static int bulk_stages(const fb_cuda_limits *limits, int64_t stage, int64_t inputs, int least) {
    int64_t stages = (limits->shared_limit - (int64_t)sizeof(bulk_shared<P>) - inputs) / stage;
    return stages < least ? 0 : stages > BULK_STAGES ? BULK_STAGES : (int)stages;
}

#endif
