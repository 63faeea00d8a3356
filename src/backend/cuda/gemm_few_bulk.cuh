/* Products of a few generated rows, in the order of sums.h, on devices with bulk copies (sm_90).
 *
 * There is one block a multiprocessor. It streams its weights through shared memory, without a pause between
 * outputs. Its warps have three roles:
 *  - The producer fills the stages: a piece of the weights of P::width outputs, a tile.
 *  - The multiplying warps make the partial sums of a tile's outputs.
 *  - The adding warps add the partial sums, then the pieces, and store the result, while the others are at
 *    the next tiles. They are divided into groups, each of which has every so manieth tile: adding one takes
 *    longer than multiplying it, because it is a chain of loads, additions and stores.
 * Stages carry a description of what is in them, so that only the producer goes through the job.
 *
 * A block has P::rows rows. Of more rows, several blocks read the same weights at the same time.
 *
 * A product P has
 *   rows, width    of a tile of sums
 *   partial        partial sums of an output and a piece
 *   adders, groups adding warps, and into how many groups they are divided
 *   slots          tiles that are multiplied, but not added yet: one for each group, or two for a single one
 *   group          tiles whose sums are kept from piece to piece and from part to part
 *   memory         what it needs of shared memory
 *   source_of(…)   where the operands of a part of a unit are
 *   put_x(…)       brings a piece of x
 *   put_weights(…) fills a stage
 *   consume(…)     what the multiplying warps do */
#ifndef FB_BACKEND_CUDA_GEMM_FEW_BULK_CUH
#define FB_BACKEND_CUDA_GEMM_FEW_BULK_CUH

#include "backend/cuda/gemm.cuh"
#include "backend/cuda/matvec_pipeline.cuh"

#define BULK_MULTIPLIERS 8  /* warps */
#define BULK_STAGES      10 /* at most */

enum { BULK_WEIGHTS, BULK_X, BULK_END };

/* What a stage holds: a piece of the weights of outputs n, n + 1, … or of x. */
struct bulk_item {
    int32_t what, chunks; /* of 16 bytes of weights in the piece */
    int32_t unit, part, n;
    int32_t kept;        /* which of a group's tiles */
    int32_t first, last; /* piece of its outputs */
    int32_t x;           /* the number of the piece of x, where x does not lie in stages */
    int32_t type;        /* of weights in records */
};

/* Which blocks compute what: those with the same number modulo `across` have the same rows. */
struct bulk_shares {
    int32_t tiles, sets, across;
    int32_t stages, stage; /* number, bytes */
    int32_t inputs, input; /* the same of pieces of x, where x does not lie in stages */
    int32_t lanes;         /* chunks of a lane in the longest piece (sums.h) */
    int32_t pairs;         /* bulk_pairs */
};

template <class P> struct bulk_shared {
    float sums[P::slots][P::partial][P::rows][P::width];
    float kept[P::group][P::rows][P::width];
    float first[P::group][P::rows][P::width]; /* of two parts */
    bulk_item item[BULK_STAGES], added[P::slots];
    uint64_t full[BULK_STAGES], empty[BULK_STAGES], summed[P::slots], free[P::slots];
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
    int type = 0;              /* of weights in records */
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
                              piece == 0,   piece + 1 == s.pieces,          0,
                              s.type};
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

/* A kernel of this file is launched for microseconds, and little of it is in the instruction cache then: with
 * all loops unrolled and the activations inlined it had 7,600 instructions, and more than half of the time
 * went into fetching them. So what is done once a tile is there once. */
FB_NOINLINE float bulk_activated(fb_dtype dtype, fb_op_kind act, float v) {
    return gemm_activated(dtype, act, v);
}

/* Two 16-bit elements. */
FB_DEVICE float2 bulk_widen(fb_dtype dtype, uint32_t pair) {
    const uint16_t low = (uint16_t)pair, high = (uint16_t)(pair >> 16);
    return dtype == FB_F16 ? make_float2(fb_widen(fb_half{low}), fb_widen(fb_half{high}))
                           : make_float2(fb_widen(fb_bfloat{low}), fb_widen(fb_bfloat{high}));
}
FB_DEVICE uint32_t bulk_narrow(fb_dtype dtype, float2 v) {
    return gemm_bits(dtype, v.x) | gemm_bits(dtype, v.y) << 16;
}

/* Whether all pairs of the job are loaded and stored in 32 bits: nearly always. */
static bool bulk_pairs(const gemm_job *job) {
    bool all = job->dtype != FB_F32 && gemm_paired(job->dtype, job->residual, job->residual_row);
    for (int u = 0; u < job->units; u++) {
        all = all && gemm_paired(job->dtype, job->unit[u].out, job->unit[u].out_row);
        for (int p = 0; p < job->parts; p++) {
            const gemm_segment &s = job->segment[job->unit[u].segment + p];
            all = all && s.n % 2 == 0 && (!s.bias || (s.bias_dtype == job->dtype && fb_aligned(s.bias, 4)));
        }
    }
    return all;
}

/* What a pair of sums is combined with, as it lies in memory. */
struct bulk_operands {
    uint32_t bias, first, residual;
};
FB_DEVICE bulk_operands bulk_operands_of(const gemm_job &job, const bulk_item &item, int64_t row, int64_t n) {
    const gemm_unit &unit = job.unit[item.unit];
    const gemm_segment &s = job.segment[unit.segment + item.part];
    bulk_operands with = {0, 0, 0};
    if (row >= job.rows || n >= s.n) return with;
    if (s.bias) with.bias = *(const uint32_t *)((const uint16_t *)s.bias + n);
    if (item.part + 1 < job.parts) return with;
    if (job.parts == 2 && job.count == 1)
        with.first = *(const uint32_t *)((const uint16_t *)(const void *)job.kept + row * s.n + n);
    if (job.combine == FB_COMBINE_ADD)
        with.residual =
            *(const uint32_t *)((const uint16_t *)(const void *)job.residual + row * job.residual_row + n);
    return with;
}

/* gemm_finished and gemm_put_finished in 32 bits. */
FB_DEVICE void bulk_finish(const gemm_job &job, const bulk_item &item, int64_t row, int64_t n, float2 v,
                           const bulk_operands &with, float2 *part) {
    const gemm_unit &unit = job.unit[item.unit];
    const gemm_segment &s = job.segment[unit.segment + item.part];
    if (row >= job.rows || n >= s.n) return;
    if (s.bias) {
        const float2 bias = bulk_widen(job.dtype, with.bias);
        v.x += bias.x;
        v.y += bias.y;
    }
    v = bulk_widen(job.dtype, bulk_narrow(job.dtype, v));
    if (s.act != FB_OP_COUNT) {
        v.x = bulk_activated(job.dtype, s.act, v.x);
        v.y = bulk_activated(job.dtype, s.act, v.y);
    }
    if (item.part + 1 < job.parts && job.count == 2) {
        *part = v;
        return;
    }
    uint16_t *out = (uint16_t *)(void *)job.kept + row * s.n + n;
    if (item.part + 1 == job.parts) {
        const float2 first = job.parts == 1 ? v : job.count == 2 ? *part : bulk_widen(job.dtype, with.first);
        const float2 residual = bulk_widen(job.dtype, with.residual);
        v.x = gemm_combined(job, v.x, first.x, residual.x);
        v.y = gemm_combined(job, v.y, first.y, residual.y);
        out = (uint16_t *)(void *)unit.out + row * unit.out_row + n;
    }
    *(uint32_t *)(void *)out = bulk_narrow(job.dtype, v);
}

/* The complete sums of a pair of row `row` of the block and outputs item.n + col and the next one. False:
 * only of a piece, which are kept. */
template <class P>
FB_DEVICE bool bulk_sum(bulk_shared<P> *shared, int slot, const bulk_item &item, int row, int col,
                        float2 *sum) {
    *sum = *(const float2 *)&shared->sums[slot][0][row][col];
#pragma unroll
    for (int q = 1; q < P::partial; q++) {
        const float2 next = *(const float2 *)&shared->sums[slot][q][row][col];
        sum->x += next.x;
        sum->y += next.y;
    }
    float2 *kept = (float2 *)&shared->kept[item.kept][row][col];
    if (!item.first) {
        sum->x = kept->x + sum->x;
        sum->y = kept->y + sum->y;
    }
    if (!item.last) *kept = *sum;
    return item.last;
}

/* A tile, if not all pairs of the job are loaded and stored in 32 bits. */
template <class P>
FB_DEVICE void bulk_add_any(const gemm_job &job, bulk_shared<P> *shared, int slot, const bulk_item &item,
                            int first, int me, int threads) {
    const int across = P::width / 2;
#pragma unroll 1
    for (int i = me; i < P::rows * across; i += threads) {
        const int row = i / across, col = i % across * 2;
        const int64_t n = item.n + col;
        const gemm_unit &unit = job.unit[item.unit];
        const gemm_segment &s = job.segment[unit.segment + item.part];
        float2 sum, *part = (float2 *)&shared->first[item.kept][row][col];
        if (!bulk_sum<P>(shared, slot, item, row, col, &sum) || first + row >= job.rows || n >= s.n) continue;
        const bool both_parts = job.parts == 2 && job.count == 2;
        gemm_operands with = gemm_operands_of(job, unit, item.part, first + row, n, !both_parts);
        sum = gemm_finished<bulk_activated>(job, s, n, n + 1 < s.n, sum);
        if (both_parts) with.first = *part;
        if (both_parts && item.part == 0)
            *part = sum;
        else
            gemm_put_finished(job, unit, item.part, first + row, n, sum, with);
    }
}

template <class P>
FB_DEVICE void bulk_add(const gemm_job &job, bulk_shared<P> *shared, const bulk_shares &shares, int first) {
    const int threads = P::adders / P::groups * FB_WARP; /* of a group */
    const int adder = (int)threadIdx.x - BULK_MULTIPLIERS * FB_WARP;
    const int me = adder % threads, across = P::width / 2, pairs = P::rows * across;
    bulk_place place = {adder / threads, 0};
    for (;; P::groups > 1 ? (void)(place.phase ^= 1) : place.next(P::slots)) {
        const int slot = place.at;
        mv_barrier_wait(shared->summed + slot, place.phase);
        const bulk_item item = shared->added[slot];
        if (item.what == BULK_END) return;
        /* What a pair is combined with is loaded one pair ahead. */
        bulk_operands with = {0, 0, 0}, next = with;
#pragma unroll 1
        for (int i = me - threads; shares.pairs && i < pairs; i += threads, with = next) {
            const int ahead = i + threads, row = i / across, col = i % across * 2;
            float2 sum;
            if (item.last && ahead < pairs)
                next = bulk_operands_of(job, item, first + ahead / across, item.n + ahead % across * 2);
            if (i >= 0 && bulk_sum<P>(shared, slot, item, row, col, &sum))
                bulk_finish(job, item, first + row, item.n + col, sum, with,
                            (float2 *)&shared->first[item.kept][row][col]);
        }
        if (!shares.pairs) bulk_add_any<P>(job, shared, slot, item, first, me, threads);
        __syncwarp();
        if (me % FB_WARP == 0) mv_barrier_arrive(shared->free + slot);
    }
}

/* The slots of a multiplying warp: bit s of `phases` is how often slot s was used, modulo 2. With several
 * groups of adding warps, a tile always has the same slot, because they have what is kept of it. */
template <class P> struct bulk_slots {
    uint32_t phases;
    int next;
    /* Where the warp stores the partial sums of a tile, when the slot is free; then it calls `summed`. */
    FB_DEVICE int wait(bulk_shared<P> *shared, const bulk_item &item) {
        const int slot = P::groups > 1 ? item.kept % P::slots : next;
        next = slot + 1 == P::slots ? 0 : slot + 1;
        mv_barrier_wait(shared->free + slot, (int)(phases >> slot & 1) ^ 1);
        return slot;
    }
    FB_DEVICE void summed(bulk_shared<P> *shared, int slot, const bulk_item &item) {
        if (threadIdx.x == 0) shared->added[slot] = item;
        __syncwarp();
        if (threadIdx.x % FB_WARP == 0) mv_barrier_arrive(shared->summed + slot);
        phases ^= 1u << slot;
    }
    /* Tells all adding warps that nothing more comes. */
    FB_DEVICE void end(bulk_shared<P> *shared) {
        for (int i = 0; i < P::groups; i++) {
            bulk_item item = {};
            item.what = BULK_END;
            item.kept = i;
            summed(shared, wait(shared, item), item);
        }
    }
};

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
        for (int i = 0; i < P::slots; i++) {
            mv_barrier_init(shared->summed + i, BULK_MULTIPLIERS);
            mv_barrier_init(shared->free + i, P::adders / P::groups);
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
        bulk_add<P>(job, shared, shares, first);
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
        for (int begin = from; begin < to; begin += P::group)
            for (int part = job.first; part < job.first + job.count; part++)
                bulk_produce<P>(p, job, part, begin, min(begin + P::group, to));
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
    shares.pairs = bulk_pairs(job);
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
