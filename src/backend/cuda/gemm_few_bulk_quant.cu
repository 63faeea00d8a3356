/* Products of up to 64 quantised rows (fb_q8) with weights of Q8_0 or Q4_0, in integers on tensor cores
 * (gemm_few_bulk.cuh). A piece of x stays in shared memory for all tiles. The partial sums are the four
 * octets of lanes of sums.h: four multiplying warps have one each of outputs 0 to 7, four others of outputs 8
 * to 15. gemm_quant.cu explains MAGIC. */
#include "backend/cuda/gemm_few_bulk.cuh"

#define WIDTH      16 /* outputs of a tile */
#define OCTET      8  /* chunks */
#define PAD        16 /* bytes after each row: the same word of eight rows lies in different banks */
#define MAGIC      12582912.0f
#define MAGIC_BITS 0x4b400000

template <bool nibbles, int I> struct bulk_quant {
    static const int rows = 16 * I, width = WIDTH, partial = FB_SUMS_OCTETS;
    static const int adders = 4, groups = I == 1 ? 2 : 1, slots = 2, group = I == 1 ? 8 : 4;
    static const int per = nibbles ? 1 : 2; /* chunks of a block */
    using producer = bulk_producer<bulk_quant>;
    using memory = bulk_shared<bulk_quant>;

    /* Bytes of rows in shared memory, of pieces of up to `lanes` chunks a lane. */
    static FB_HOST_DEV int x_pitch(int lanes) { return lanes * FB_WARP / per * (int)sizeof(fb_q8) + PAD; }
    static FB_HOST_DEV int w_pitch(int lanes) { return lanes * FB_WARP * 16 + PAD; }
    static FB_HOST_DEV int scale_pitch(int lanes) { return lanes * FB_WARP / per * 2 + PAD; }

    static FB_DEVICE bulk_source source_of(const gemm_segment &s) {
        const fb_sums sums = fb_sums_of_integers(s.k, nibbles ? FB_Q4_0 : FB_Q8_0);
        bulk_source source = {};
        source.x = s.x;
        source.w = s.w;
        source.scales = s.scales;
        source.x_row = s.x_row;
        source.w_row = sums.chunks * 16;
        source.scale_row = sums.chunks / per * 2;
        source.n = s.n;
        source.chunks = sums.chunks;
        source.piece = sums.lane_chunks * FB_WARP;
        source.pieces = sums.pieces;
        return source;
    }
    static FB_DEVICE const uint8_t *x_at(const bulk_source &s, int chunk) {
        return s.x + chunk / per * (int)sizeof(fb_q8);
    }

    /* A lane copies a row. */
    static FB_DEVICE void put_x(producer &p, const bulk_source &s, const bulk_item &item, int chunk) {
        const int buffer = p.x % p.shares.inputs, turn = p.x / p.shares.inputs;
        const int bytes = item.chunks / per * (int)sizeof(fb_q8);
        uint64_t *full = p.shared->x_full + buffer;
        if (turn) mv_barrier_wait(p.shared->x_empty + buffer, (turn - 1) & 1);
        if (p.lane == 0) mv_barrier_expect(full, p.rows * bytes);
        __syncwarp();
        if (p.lane < p.rows)
            mv_bulk_copy(p.inputs + buffer * p.shares.input + p.lane * x_pitch(p.shares.lanes),
                         x_at(s, chunk) + (p.first + p.lane) * s.x_row, bytes, full);
    }
    static FB_DEVICE void change_x(producer &p, const bulk_source &s, const bulk_item &item, int chunk) {
        p.bring_late();
        p.x = p.filled ? p.x + 1 : 0;
        p.late = true, p.announced = false, p.late_source = s, p.late_item = item, p.late_chunk = chunk;
    }

    /* Lanes 0 to 15 copy a row of integers each, the others one of scales. */
    static FB_DEVICE void put_weights(producer &p, int stage, const bulk_source &s, const bulk_item &item,
                                      int chunk) {
        const int count = (int)min((int64_t)WIDTH, s.n - item.n), row = p.lane % WIDTH;
        const int bytes = item.chunks * 16, scale_bytes = item.chunks / per * 2, lanes = p.shares.lanes;
        uint64_t *full = p.shared->full + stage;
        if (p.lane == 0) {
            p.shared->item[stage] = item;
            mv_barrier_expect(full, count * (bytes + scale_bytes));
        }
        __syncwarp();
        if (row >= count) return;
        const bool scales = p.lane >= WIDTH;
        uint8_t *to = p.stages + stage * p.shares.stage;
        to += scales ? WIDTH * w_pitch(lanes) + row * scale_pitch(lanes) : row * w_pitch(lanes);
        const uint8_t *from = scales ? s.scales + (item.n + row) * s.scale_row + chunk / per * 2
                                     : s.w + (item.n + row) * s.w_row + chunk * 16;
        if (p.shares.across > 1) /* others read it, too */
            mv_bulk_copy(to, from, scales ? scale_bytes : bytes, full);
        else
            mv_bulk_copy_evict_first(to, from, scales ? scale_bytes : bytes, full);
    }

    /* Chunk `chunk` of the piece times the rows, scaled and added to acc. x: the lane's row of x; w, scales:
     * of the warp's first output. */
    static FB_DEVICE void add_chunk(const uint8_t *x, int x_row, const uint8_t *w, int w_row,
                                    const uint8_t *scales, int scale_row, int chunk, float (*acc)[4]) {
        const int g = threadIdx.x % FB_WARP / 4, t = threadIdx.x % 4;
        /* Weights of output g; scales of outputs 2 t and 2 t + 1. */
        const uint32_t word = *(const uint32_t *)(const void *)(w + g * w_row + chunk * 16 + 4 * t);
        const uint32_t b[2] = {nibbles ? word & 0x0f0f0f0f : word, word >> 4 & 0x0f0f0f0f};
        const uint8_t *scale = scales + 2 * t * scale_row + chunk / per * 2;
        const float w0 = fb_widen(fb_half{*(const uint16_t *)(const void *)scale}), m0 = -MAGIC * w0;
        const float w1 = fb_widen(fb_half{*(const uint16_t *)(const void *)(scale + scale_row)});
        const float m1 = -MAGIC * w1;
#pragma unroll
        for (int i = 0; i < I; i++) {
            uint32_t a[4];
            float x_scale[2], *sum = acc[i];
            int start[2], d[4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint8_t *block = x + (16 * i + 8 * half) * x_row + chunk / per * (int)sizeof(fb_q8);
                const uint2 head = *(const uint2 *)(const void *)block; /* scale and sum */
                const uint8_t *at = block + 8 + 4 * t + (nibbles ? 0 : chunk % 2 * 16);
                x_scale[half] = __uint_as_float(head.x);
                start[half] = MAGIC_BITS - (nibbles ? 8 * (int)head.y : 0);
                a[half] = *(const uint32_t *)(const void *)at;
                a[half + 2] = nibbles ? *(const uint32_t *)(const void *)(at + 16) : 0;
            }
            if (nibbles)
                gemm_mma_bytes(d, a, b, start[0], start[1]);
            else
                gemm_mma_bytes_16(d, a, b[0], start[0], start[1]);
            sum[0] = fmaf(fmaf(__int_as_float(d[0]), w0, m0), x_scale[0], sum[0]);
            sum[1] = fmaf(fmaf(__int_as_float(d[1]), w1, m1), x_scale[0], sum[1]);
            sum[2] = fmaf(fmaf(__int_as_float(d[2]), w0, m0), x_scale[1], sum[2]);
            sum[3] = fmaf(fmaf(__int_as_float(d[3]), w1, m1), x_scale[1], sum[3]);
        }
    }

    static FB_DEVICE void add(float (*to)[4], const float (*from)[4]) {
#pragma unroll
        for (int i = 0; i < I * 4; i++) to[i / 4][i % 4] += from[i / 4][i % 4];
    }
    static FB_DEVICE void copy(float (*to)[4], const float (*from)[4]) {
#pragma unroll
        for (int i = 0; i < I * 4; i++) to[i / 4][i % 4] = from[i / 4][i % 4];
    }

    /* The warp's octet of the piece: eight lanes, added as a tree. Lane l has chunks l, l + 32, … */
    static FB_DEVICE void multiply(const uint8_t *x, const uint8_t *stage, int octet, int output, int lanes,
                                   int chunks, float (*sums)[4]) {
        const int x_row = x_pitch(lanes), w_row = w_pitch(lanes), scale_row = scale_pitch(lanes);
        const uint8_t *w = stage + output * w_row;
        const uint8_t *scales = stage + WIDTH * w_row + output * scale_row;
        float one[I][4], two[I][4], four[I][4]; /* sums of lanes that wait for their neighbours */
#pragma unroll
        for (int c = 0; c < OCTET; c++) {
#pragma unroll
            for (int i = 0; i < I * 4; i++) sums[i / 4][i % 4] = 0;
#pragma unroll 1
            for (int chunk = octet * OCTET + c; chunk < chunks; chunk += FB_WARP)
                add_chunk(x, x_row, w, w_row, scales, scale_row, chunk, sums);
            if (c % 2 == 0) copy(one, sums);
            if (c % 2) add(sums, one);
            if (c % 4 == 1) copy(two, sums);
            if (c % 4 == 3) add(sums, two);
            if (c == 3) copy(four, sums);
            if (c == 7) add(sums, four);
        }
    }

    static FB_DEVICE void consume(memory *shared, const uint8_t *stages, const uint8_t *inputs,
                                  const bulk_shares &shares) {
        const int warp = (int)threadIdx.x / FB_WARP, lane = (int)threadIdx.x % FB_WARP;
        const int octet = warp % FB_SUMS_OCTETS, output = warp / FB_SUMS_OCTETS * 8;
        int mine = -1; /* the number of the piece of x */
        const uint8_t *x = inputs;
        bulk_place place = {0, 0};
        bulk_slots<bulk_quant> slots = {};
        for (;;) {
            mv_barrier_wait(shared->full + place.at, place.phase);
            const bulk_item item = shared->item[place.at];
            if (item.what == BULK_END) return slots.end(shared);
            if (item.x != mine) {
                if (mine >= 0 && lane == 0) mv_barrier_arrive(shared->x_empty + mine % shares.inputs);
                mine = item.x;
                mv_barrier_wait(shared->x_full + mine % shares.inputs, mine / shares.inputs & 1);
                x = inputs + mine % shares.inputs * shares.input + lane / 4 * x_pitch(shares.lanes);
            }
            float sums[I][4];
            multiply(x, stages + place.at * shares.stage, octet, output, shares.lanes, item.chunks, sums);
            __syncwarp();
            if (lane == 0) mv_barrier_arrive(shared->empty + place.at);
            place.next(shares.stages);
            const int slot = slots.wait(shared, item);
            float *to = &shared->sums[slot][octet][lane / 4][output + lane % 4 * 2];
#pragma unroll
            for (int i = 0; i < I; i++) {
                *(float2 *)(to + 16 * i * WIDTH) = make_float2(sums[i][0], sums[i][1]);
                *(float2 *)(to + (16 * i + 8) * WIDTH) = make_float2(sums[i][2], sums[i][3]);
            }
            slots.summed(shared, slot, item);
        }
    }
};

/* ---- launching ---- */

#define LEAST_STAGES 2

/* Room for two pieces of x if there is enough for three stages besides, else for one. No stages: too little
 * memory. */
template <class P> static bulk_shares shares_of(const fb_cuda_limits *limits, int lanes) {
    bulk_shares shares = {};
    shares.lanes = lanes;
    shares.stage = WIDTH * (P::w_pitch(lanes) + P::scale_pitch(lanes));
    shares.input = P::rows * P::x_pitch(lanes);
    shares.inputs = bulk_stages<P>(limits, shares.stage, 2 * (int64_t)shares.input, 3) ? 2 : 1;
    shares.stages = bulk_stages<P>(limits, shares.stage, (int64_t)shares.inputs * shares.input, LEAST_STAGES);
    return shares;
}

template <bool nibbles> static int quant(const gemm_job *job, const fb_cuda_context *cx) {
    int lanes = 1;
    for (int u = 0; u < job->units; u++)
        for (int p = job->first; p < job->first + job->count; p++) {
            const gemm_segment &s = job->segment[job->unit[u].segment + p];
            int needed = fb_sums_of_integers(s.k, nibbles ? FB_Q4_0 : FB_Q8_0).lane_chunks;
            if (needed > lanes) lanes = needed;
        }
    return job->rows <= 16
               ? bulk_launch<bulk_quant<nibbles, 1>>(job, cx,
                                                     shares_of<bulk_quant<nibbles, 1>>(cx->limits, lanes))
               : bulk_launch<bulk_quant<nibbles, 2>>(job, cx,
                                                     shares_of<bulk_quant<nibbles, 2>>(cx->limits, lanes));
}

/* Bulk copies need multiples of 16 bytes: of scales, too. */
static bool fits(const gemm_segment &s, const fb_cuda_limits *limits) {
    const bool nibbles = s.w_dtype == FB_Q4_0;
    const int lanes = fb_sums_of_integers(s.k, s.w_dtype).lane_chunks;
    const int stages = nibbles ? shares_of<bulk_quant<true, 2>>(limits, lanes).stages
                               : shares_of<bulk_quant<false, 2>>(limits, lanes).stages;
    return s.k % 256 == 0 && s.x_row % 16 == 0 && fb_aligned(s.x, 16) && fb_aligned(s.w, 16) &&
           fb_aligned(s.scales, 16) && stages > 0;
}

bool gemm_few_bulk_quant_fits(const gemm_job *job, const fb_cuda_limits *limits) {
    bool all = limits->major >= 9;
    for (int u = 0; u < job->units; u++)
        for (int p = job->first; p < job->first + job->count; p++)
            all = all && fits(job->segment[job->unit[u].segment + p], limits);
    return all;
}

int gemm_few_bulk_quant(const gemm_job *job, const fb_cuda_context *cx) {
    bool nibbles = job->segment[job->unit[0].segment + job->first].w_dtype == FB_Q4_0;
    return nibbles ? quant<true>(job, cx) : quant<false>(job, cx);
}
