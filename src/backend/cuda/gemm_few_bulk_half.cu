/* Products of up to 64 rows of 16-bit floats with weights of the same type (gemm_few_bulk.cuh). A
 * multiplying warp has one of the eight chains. It keeps its chunks of a piece of x in registers for all
 * tiles: 32 registers for each eight rows. From a stage of weights it reads each chunk once. x comes through
 * the stages, too, eight rows in each. */
#include "backend/cuda/gemm_few_bulk.cuh"

#define OCTET    8                                       /* outputs of a tile, and rows of x of a stage */
#define PRODUCTS (FB_SUMS_PIECE / (16 * FB_SUMS_CHAINS)) /* of a chain in a piece */

static_assert(BULK_MULTIPLIERS == FB_SUMS_CHAINS, "a warp for each chain");

template <class T, int octets> struct bulk_half {
    static const int rows = octets * OCTET, width = OCTET, partial = FB_SUMS_CHAINS;
    /* Twelve warps in all may have 168 registers. */
    static const int adders = 3, groups = adders, slots = groups, group = octets < 4 ? 8 : 4;
    static const int tiles = (octets + 1) / 2; /* of 16 rows, as the tensor cores have them */
    using producer = bulk_producer<bulk_half>;
    using memory = bulk_shared<bulk_half>;

    /* Bytes from a row of a stage to the next: the same chunk of eight rows lies in different banks. */
    static FB_HOST_DEV int stage_pitch(int lanes) { return lanes * FB_WARP * 16 + 16; }

    static FB_DEVICE bulk_source source_of(const gemm_segment &s) {
        const fb_sums sums = fb_sums_of_halves(s.k);
        bulk_source source = {};
        source.x = s.x;
        source.w = s.w;
        source.x_row = s.x_row;
        source.w_row = s.k * 2;
        source.n = s.n;
        source.chunks = sums.chunks;
        source.piece = sums.lane_chunks * FB_WARP;
        source.pieces = sums.pieces;
        return source;
    }
    static FB_DEVICE const uint8_t *x_at(const bulk_source &s, int chunk) { return s.x + chunk * 16; }

    static FB_DEVICE void fill(producer &p, int stage, const bulk_item &item, const uint8_t *from,
                               int64_t pitch, int count) {
        const int bytes = item.chunks * 16;
        uint64_t *full = p.shared->full + stage;
        if (p.lane == 0) {
            p.shared->item[stage] = item;
            mv_barrier_expect(full, count * bytes);
        }
        __syncwarp();
        if (p.lane >= count) return;
        uint8_t *to = p.stages + stage * p.shares.stage + p.lane * stage_pitch(p.shares.lanes);
        if (item.what == BULK_X || p.shares.across > 1) /* others read it, too */
            mv_bulk_copy(to, from + p.lane * pitch, bytes, full);
        else
            mv_bulk_copy_evict_first(to, from + p.lane * pitch, bytes, full);
    }

    static FB_DEVICE void fill_x(producer &p, int stage, const bulk_source &s, const bulk_item &item,
                                 int chunk, int octet) {
        bulk_item mine = item;
        mine.what = BULK_X;
        fill(p, stage, mine, x_at(s, chunk) + (p.first + octet * OCTET) * s.x_row, s.x_row,
             max(0, min(OCTET, p.rows - octet * OCTET)));
    }
    /* The first piece of x, in the first stages. */
    static FB_DEVICE void put_x(producer &p, const bulk_source &s, const bulk_item &item, int chunk) {
#pragma unroll 1
        for (int o = 0; o < octets; o++) fill_x(p, o, s, item, chunk, o);
    }
    static FB_DEVICE void change_x(producer &p, const bulk_source &s, const bulk_item &item, int chunk) {
        if (p.filled == 0) {
            p.late = p.announced = true, p.late_source = s, p.late_item = item, p.late_chunk = chunk;
#pragma unroll 1
            for (int o = 0; o < octets; o++) p.next_stage();
            return;
        }
#pragma unroll 1
        for (int o = 0; o < octets; o++) {
            const int stage = p.next_stage();
            p.bring_late();
            fill_x(p, stage, s, item, chunk, o);
        }
    }
    static FB_DEVICE void put_weights(producer &p, int stage, const bulk_source &s, const bulk_item &item,
                                      int chunk) {
        fill(p, stage, item, s.w + item.n * s.w_row + chunk * 16, s.w_row,
             (int)min((int64_t)OCTET, s.n - item.n));
    }

    /* Loads the warp's chunks of products `pair` and `pair` + 1 from eight rows: those of product p are
     * chunks 16 p + chain and 16 p + 8 + chain. */
    static FB_DEVICE void load(uint32_t *to, const uint8_t *stage, int pitch, int pair, int chain) {
        const int lane = threadIdx.x % FB_WARP;
        const int chunk = 16 * (pair + (lane >> 4)) + (lane >> 3 & 1) * FB_SUMS_CHAINS + chain;
        fb_ldmatrix(to, stage + (lane & 7) * pitch + chunk * 16);
    }
    /* Zeros for chunks beyond the end of the row. */
    static FB_DEVICE void cut(uint32_t *of, int pair, int chain, int chunks) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (16 * pair + 8 * i + chain >= chunks) of[i] = 0;
    }

    static FB_DEVICE void multiply(const uint8_t *stage, int pitch, int chain, int chunks,
                                   const uint32_t (*x)[2 * PRODUCTS], float (*sums)[4]) {
        const bool ends = chunks % 16 != 0;
#pragma unroll
        for (int pair = 0; pair < PRODUCTS; pair += 2) {
            uint32_t w[4];
            if (16 * pair >= chunks) break;
            load(w, stage, pitch, pair, chain);
            if (ends) cut(w, pair, chain, chunks);
#pragma unroll
            for (int p = pair; p < pair + 2; p++) {
                if (16 * p >= chunks) break;
#pragma unroll
                for (int i = 0; i < tiles; i++) {
                    const bool both = 2 * i + 1 < octets; /* else eight rows of zeros */
                    const int other = both ? 2 * i + 1 : 0;
                    uint32_t a[4] = {x[2 * i][2 * p], both ? x[other][2 * p] : 0, x[2 * i][2 * p + 1],
                                     both ? x[other][2 * p + 1] : 0};
                    fb_mma((const T *)0, sums[i], a, w + (p - pair) * 2);
                }
            }
        }
    }

    static FB_DEVICE void consume(memory *shared, const uint8_t *stages, const uint8_t *,
                                  const bulk_shares &shares) {
        const int chain = (int)threadIdx.x / FB_WARP, lane = (int)threadIdx.x % FB_WARP;
        const int row_pitch = stage_pitch(shares.lanes);
        uint32_t x[octets][2 * PRODUCTS];
        bulk_place place = {0, 0};
        bulk_slots<bulk_half> slots = {};
#pragma unroll
        for (int i = 0; i < octets * 2 * PRODUCTS; i++) x[i / (2 * PRODUCTS)][i % (2 * PRODUCTS)] = 0;
        for (;;) {
            mv_barrier_wait(shared->full + place.at, place.phase);
            const bulk_item item = shared->item[place.at];
            if (item.what == BULK_X) {
#pragma unroll
                for (int o = 0; o < octets; o++) {
                    if (o) mv_barrier_wait(shared->full + place.at, place.phase);
                    const uint8_t *stage = stages + place.at * shares.stage;
#pragma unroll
                    for (int pair = 0; pair < PRODUCTS; pair += 2) {
                        if (16 * pair < item.chunks) load(x[o] + 2 * pair, stage, row_pitch, pair, chain);
                        if (item.chunks % 16) cut(x[o] + 2 * pair, pair, chain, item.chunks);
                    }
                    __syncwarp();
                    if (lane == 0) mv_barrier_arrive(shared->empty + place.at);
                    place.next(shares.stages);
                }
                continue;
            }
            float sums[tiles][4];
#pragma unroll
            for (int i = 0; i < tiles * 4; i++) sums[i / 4][i % 4] = 0;
            if (item.what == BULK_END) return slots.end(shared);
            multiply(stages + place.at * shares.stage, row_pitch, chain, item.chunks, x, sums);
            __syncwarp();
            if (lane == 0) mv_barrier_arrive(shared->empty + place.at);
            place.next(shares.stages);
            const int slot = slots.wait(shared, item);
            float *to = &shared->sums[slot][chain][lane / 4][lane % 4 * 2];
#pragma unroll
            for (int i = 0; i < tiles; i++) {
                *(float2 *)(to + 16 * i * OCTET) = make_float2(sums[i][0], sums[i][1]);
                if (2 * i + 1 < octets)
                    *(float2 *)(to + (16 * i + 8) * OCTET) = make_float2(sums[i][2], sums[i][3]);
            }
            slots.summed(shared, slot, item);
        }
    }
};

/* ---- launching ---- */

template <class T, int octets> static int launch(const gemm_job *job, const fb_cuda_context *cx) {
    using P = bulk_half<T, octets>;
    bulk_shares shares = {};
    shares.lanes = 1;
    for (int u = 0; u < job->units; u++)
        for (int p = job->first; p < job->first + job->count; p++) {
            int needed = fb_sums_of_halves(job->segment[job->unit[u].segment + p].k).lane_chunks;
            if (needed > shares.lanes) shares.lanes = needed;
        }
    shares.stage = OCTET * P::stage_pitch(shares.lanes);
    shares.stages = bulk_stages<P>(cx->limits, shares.stage, 0, octets + 2);
    return bulk_launch<P>(job, cx, shares);
}

template <class T> static int halves(const gemm_job *job, const fb_cuda_context *cx) {
    return job->rows <= 8    ? launch<T, 1>(job, cx)
           : job->rows <= 16 ? launch<T, 2>(job, cx)
                             : launch<T, 4>(job, cx);
}

bool gemm_few_bulk_half_fits(const fb_cuda_limits *limits) {
    using P = bulk_half<fb_half, 4>;
    return limits->major >= 9 &&
           bulk_stages<P>(limits, OCTET * P::stage_pitch(FB_SUMS_PIECE / 8 / FB_WARP), 0, 6) > 0;
}

int gemm_few_bulk_half(const gemm_job *job, const fb_cuda_context *cx) {
    bool f16 = job->segment[job->unit[0].segment + job->first].w_dtype == FB_F16;
    return f16 ? halves<fb_half>(job, cx) : halves<fb_bfloat>(job, cx);
}
