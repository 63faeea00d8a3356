/* Products of quantised rows (fb_q8) with weights of Q8_0 or Q4_0, in integers on tensor cores, in the order
 * of sums.h. So a row has the bits that matvec.cuh gives it alone. gemm_quant.cu is faster for many rows, and
 * adds in another order.
 *
 * A group is a piece, its parts are four octets: eight chunks of 16 bytes for each of lane_chunks streams,
 * which are 32 chunks apart. A block loads a whole piece of x and weights at once. Four warps have an octet
 * each of outputs 0 to 15, four others of outputs 16 to 31. gemm_quant.cu explains MAGIC. */
#include "backend/cuda/gemm_few.cuh"

#define OCTET      8 /* chunks */
#define MAGIC      12582912.0f
#define MAGIC_BITS 0x4b400000

static FB_HOST_DEV fb_sums sums_of(int64_t k, bool nibbles) {
    return fb_sums_of_integers(k, nibbles ? FB_Q4_0 : FB_Q8_0);
}

/* Bytes of an octet's rows in shared memory, for pieces of `lanes` chunks a lane. Rows of x and weights are
 * odd multiples of 16 bytes: a word of eight rows lies in different banks. */
template <bool nibbles> struct quant_rows {
    static const int x = OCTET * (int)sizeof(fb_q8) / (nibbles ? 1 : 2), w = OCTET * 16; /* of a stream */
    static const int scales = OCTET * 2 / (nibbles ? 1 : 2);
    static FB_HOST_DEV int x_row(int lanes) { return lanes * x + 16; }
    static FB_HOST_DEV int w_row(int lanes) { return lanes * w + 16; }
    static FB_HOST_DEV int scale_row(int lanes) { return lanes * scales; }
    static FB_HOST_DEV int bytes(int rows, int lanes) {
        return FB_SUMS_OCTETS * (rows * x_row(lanes) + FEW_WIDTH * (w_row(lanes) + scale_row(lanes)));
    }
};

template <bool nibbles, int I_> struct few_quant {
    using R = quant_rows<nibbles>;
    static const int I = I_, rows = 16 * I, threads = 256, warps = threads / FB_WARP, parts = FB_SUMS_OCTETS,
                     J = 2;
    static const int blocks = 1, per = nibbles ? 1 : 2; /* chunks of a block */
    struct setup {
        int unused;
    };
    static FB_HOST_DEV int groups(const gemm_segment &s) { return sums_of(s.k, nibbles).pieces; }
    static FB_DEVICE int part() { return (int)threadIdx.x / FB_WARP % parts; }
    static FB_DEVICE int column() { return (int)threadIdx.x / FB_WARP / parts * (8 * J); }

    /* The tile's rows of x, from block `block` of each on: a stream of 32 chunks. A warp copies every eighth
     * row. Rows beyond the last one are left as they are: their sums are not stored. */
    static FB_DEVICE void fetch_x(uint8_t *to, const gemm_segment &s, int first, int last_row, int block,
                                  int lanes, int stream) {
        const int lane = threadIdx.x % FB_WARP, blocks = (int)(s.k / 32), end = blocks * (int)sizeof(fb_q8);
        const bool wide = blocks % 2 == 0 && s.x_row % 16 == 0 && fb_aligned(s.x, 16);
        const int row_bytes = R::x_row(lanes), at = block * (int)sizeof(fb_q8);
#pragma unroll 1
        for (int r = threadIdx.x / FB_WARP; r < rows; r += warps) {
            if (first + r > last_row) break;
            const uint8_t *from = s.x + (first + r) * s.x_row;
            uint8_t *row = to + r * row_bytes + stream * R::x;
            if (wide) {
#pragma unroll
                for (int i = 0; i < (parts * R::x / 16 + FB_WARP - 1) / FB_WARP; i++) {
                    int c = (i * FB_WARP + lane) * 16, octet = c / R::x;
                    bool real = at + c < end;
                    if (c < parts * R::x)
                        gemm_copy<16>(row + octet * (rows * row_bytes) + c % R::x, from + (real ? at + c : 0),
                                      real);
                }
            } else {
#pragma unroll 1
                for (int c = lane * 8; c < parts * R::x; c += FB_WARP * 8) {
                    bool real = at + c < end;
                    gemm_copy<8>(row + c / R::x * (rows * row_bytes) + c % R::x, from + (real ? at + c : 0),
                                 real);
                }
            }
        }
    }

    /* The same for the tile's weights, from chunk `chunk` of each row on. */
    static FB_DEVICE void fetch_w(uint8_t *to, const gemm_segment &s, int64_t n, int chunk, int lanes,
                                  int stream) {
        const int lane = threadIdx.x % FB_WARP, chunks = (int)(s.k / (nibbles ? 32 : 16)),
                  blocks = chunks / per;
        const int octet = lane / OCTET, row_bytes = R::w_row(lanes), scale_row = R::scale_row(lanes);
        const bool real = chunk + lane < chunks;
        uint8_t *scales = to + parts * FEW_WIDTH * row_bytes;
#pragma unroll
        for (int i = 0; i < FEW_WIDTH / warps; i++) {
            int r = (int)threadIdx.x / FB_WARP * (FEW_WIDTH / warps) + i;
            int64_t row = min(n + r, s.n - 1);
            gemm_copy<16>(to + (octet * FEW_WIDTH + r) * row_bytes + stream * R::w + lane % OCTET * 16,
                          s.w + (row * chunks + (real ? chunk + lane : 0)) * 16, real);
            /* Two scales of neighbouring blocks. */
            int block = chunk / per + 2 * lane;
            if (lane >= parts * OCTET / per / 2) continue;
            const uint16_t *from = (const uint16_t *)(const void *)s.scales + row * blocks;
            uint8_t *at = scales + (2 * lane * per / OCTET * FEW_WIDTH + r) * scale_row + stream * R::scales +
                          2 * lane % (OCTET / per) * 2;
            if (blocks % 2 == 0)
                gemm_copy<4>(at, from + (block < blocks ? block : 0), block < blocks);
            else
                *(uint32_t *)(void *)at = (block < blocks ? from[block] : 0u) |
                                          (block + 1 < blocks ? (uint32_t)from[block + 1] << 16 : 0u);
        }
    }

    /* Chunk `chunk` of the warp's octet times the rows, scaled and added to acc. x and w point to the lane's
     * rows of the stream. */
    static FB_DEVICE void add_chunk(const uint8_t *x, int x_row, const uint8_t *w, int w_row,
                                    const uint8_t *scales, int scale_row, int chunk, float (*acc)[J][4]) {
        const int t = threadIdx.x % 4;
        uint32_t a[I][4];
        float x_scale[I][2];
        int start[I][2];
#pragma unroll
        for (int i = 0; i < I; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint8_t *block = x + (16 * i + 8 * half) * x_row + chunk / per * (int)sizeof(fb_q8);
                uint2 head = *(const uint2 *)(const void *)block; /* scale and sum */
                const uint8_t *at = block + 8 + 4 * t + (nibbles ? 0 : chunk % 2 * 16);
                x_scale[i][half] = __uint_as_float(head.x);
                start[i][half] = MAGIC_BITS - (nibbles ? 8 * (int)head.y : 0);
                a[i][half] = *(const uint32_t *)(const void *)at;
                a[i][half + 2] = nibbles ? *(const uint32_t *)(const void *)(at + 16) : 0;
            }
#pragma unroll
        for (int j = 0; j < J; j++) {
            /* Weights of output g; scales of outputs 2 t and 2 t + 1. */
            uint32_t word = *(const uint32_t *)(const void *)(w + 8 * j * w_row + chunk * 16 + 4 * t);
            const uint32_t b[2] = {nibbles ? word & 0x0f0f0f0f : word, word >> 4 & 0x0f0f0f0f};
            const uint8_t *scale = scales + (8 * j + 2 * t) * scale_row + chunk / per * 2;
            float w0 = fb_widen(fb_half{*(const uint16_t *)(const void *)scale}), m0 = -MAGIC * w0;
            float w1 = fb_widen(fb_half{*(const uint16_t *)(const void *)(scale + scale_row)}),
                  m1 = -MAGIC * w1;
#pragma unroll
            for (int i = 0; i < I; i++) {
                int d[4];
                float *sum = acc[i][j];
                if (nibbles)
                    gemm_mma_bytes(d, a[i], b, start[i][0], start[i][1]);
                else
                    gemm_mma_bytes_16(d, a[i], b[0], start[i][0], start[i][1]);
                sum[0] = fmaf(fmaf(__int_as_float(d[0]), w0, m0), x_scale[i][0], sum[0]);
                sum[1] = fmaf(fmaf(__int_as_float(d[1]), w1, m1), x_scale[i][0], sum[1]);
                sum[2] = fmaf(fmaf(__int_as_float(d[2]), w0, m0), x_scale[i][1], sum[2]);
                sum[3] = fmaf(fmaf(__int_as_float(d[3]), w1, m1), x_scale[i][1], sum[3]);
            }
        }
    }

    static FB_DEVICE void add(float (*to)[J][4], const float (*from)[J][4]) {
#pragma unroll
        for (int i = 0; i < I * J * 4; i++)
            to[i / (4 * J)][i / 4 % J][i % 4] += from[i / (4 * J)][i / 4 % J][i % 4];
    }
    static FB_DEVICE void copy(float (*to)[J][4], const float (*from)[J][4]) {
#pragma unroll
        for (int i = 0; i < I * J * 4; i++)
            to[i / (4 * J)][i / 4 % J][i % 4] = from[i / (4 * J)][i / 4 % J][i % 4];
    }

    static FB_DEVICE int compute(const gemm_segment &s, setup, int64_t n, int first, int last_row, int group,
                                 uint8_t *shared, bool waits, float (*sums)[J][4]) {
        const fb_sums of = sums_of(s.k, nibbles);
        const int lanes = of.lane_chunks, chunk = group * lanes * FB_WARP, g = threadIdx.x % FB_WARP / 4;
        const int x_row = R::x_row(lanes), w_row = R::w_row(lanes), scale_row = R::scale_row(lanes);
        uint8_t *x = shared, *w = x + parts * rows * x_row, *scales = w + parts * FEW_WIDTH * w_row;
#pragma unroll 1
        for (int i = 0; i < lanes; i++) fetch_w(w, s, n, chunk + i * FB_WARP, lanes, i);
        if (waits) fb_wait_for_previous();
#pragma unroll 1
        for (int i = 0; i < lanes; i++) fetch_x(x, s, first, last_row, (chunk + i * FB_WARP) / per, lanes, i);
        fb_copy_commit();
        fb_copy_wait<0>();
        __syncthreads();
        x += (part() * rows + g) * x_row;
        w += (part() * FEW_WIDTH + column() + g) * w_row;
        scales += (part() * FEW_WIDTH + column()) * scale_row;
        float one[I][J][4], two[I][J][4], four[I][J][4]; /* sums of chunks that wait for their neighbours */
#pragma unroll
        for (int c = 0; c < OCTET; c++) {
#pragma unroll
            for (int i = 0; i < I * J * 4; i++) sums[i / (4 * J)][i / 4 % J][i % 4] = 0;
#pragma unroll 1
            for (int i = 0; i < lanes; i++)
                add_chunk(x + i * R::x, x_row, w + i * R::w, w_row, scales + i * R::scales, scale_row, c,
                          sums);
            if (c % 2 == 0) copy(one, sums);
            if (c % 2) add(sums, one);
            if (c % 4 == 1) copy(two, sums);
            if (c % 4 == 3) add(sums, two);
            if (c == 3) copy(four, sums);
            if (c == 7) add(sums, four);
        }
        return parts;
    }
};

/* ---- launching ---- */

template <bool nibbles> static int most_lanes(const gemm_job *job) {
    int most = 1;
    for (int u = 0; u < job->units; u++)
        for (int p = job->first; p < job->first + job->count; p++) {
            int lanes = sums_of(job->segment[job->unit[u].segment + p].k, nibbles).lane_chunks;
            if (lanes > most) most = lanes;
        }
    return most;
}

template <bool nibbles> static bool fits(int rows, int lanes, const fb_cuda_limits *limits) {
    return quant_rows<nibbles>::bytes(rows, lanes) <= limits->shared_limit - 1024;
}

bool gemm_few_quant_fits(int64_t k, fb_dtype weight, const fb_cuda_limits *limits) {
    bool nibbles = weight == FB_Q4_0;
    int lanes = sums_of(k, nibbles).lane_chunks;
    return nibbles ? fits<true>(16, lanes, limits) : fits<false>(16, lanes, limits);
}

template <bool nibbles> static int quant(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace) {
    const int lanes = most_lanes<nibbles>(job);
    int tiles = job->rows <= 16 ? 1 : job->rows <= 32 ? 2 : 4; /* of 16 rows */
    while (tiles > 1 && !fits<nibbles>(16 * tiles, lanes, cx->limits)) tiles /= 2;
    const int64_t bytes = quant_rows<nibbles>::bytes(16 * tiles, lanes);
    switch (tiles) {
    case 4:
        return few_launch<few_quant<nibbles, 4>>(job, cx, workspace, {0}, bytes);
    case 2:
        return few_launch<few_quant<nibbles, 2>>(job, cx, workspace, {0}, bytes);
    default:
        return few_launch<few_quant<nibbles, 1>>(job, cx, workspace, {0}, bytes);
    }
}

int gemm_few_quant(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace) {
    bool nibbles = job->segment[job->unit[0].segment + job->first].w_dtype == FB_Q4_0;
    return nibbles ? quant<true>(job, cx, workspace) : quant<false>(job, cx, workspace);
}

int64_t gemm_few_quant_workspace_bytes(int64_t k, int64_t n, fb_dtype weight) {
    return few_workspace_bytes(sums_of(k, weight == FB_Q4_0).pieces, n);
}
