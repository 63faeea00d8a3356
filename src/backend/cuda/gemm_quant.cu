/* Products of quantised rows (fb_q8) with weights of Q8_0 or Q4_0, in integers on tensor cores. One product
 * of 16 x 32 x 8 covers a block of 32 columns. Its sums are scaled and added in float32, block after block.
 *
 * Scaling is most of the work: every 32 multiply-adds of the tensor cores give one sum to scale, so each
 * instruction there counts. Converting an integer sum I to float costs nothing, because the product starts
 * from the bits of MAGIC = 1.5 * 2^23: read as a float, the result is MAGIC + I (|I| < 2^20). A weight's
 * scale w has 11 bits, so MAGIC * w is exact, and fmaf(MAGIC + I, w, -MAGIC * w) is I * w, rounded once. Then
 * follows fmaf(that, x's scale, sum): two instructions a sum. The nibbles of Q4_0 stay 0 to 15, which are 8
 * too much. So the product starts from 8 times the sum of x's block less.
 *
 * A block of eight warps has a tile of 128 x 128, a warp 64 x 32 of it. There are smaller tiles for few rows
 * or outputs. A stage has 64 columns (15 KB with Q4_0, 19 KB with Q8_0). x is copied unchanged, with its
 * scales and sums: rows of 80 bytes put 8 rows into different banks. */
#include "backend/cuda/gemm.cuh"

#define BLOCKS 2 /* of 32 columns, in a stage */
#define X_ROW  (BLOCKS * (int)sizeof(fb_q8))

#define MAGIC      12582912.0f
#define MAGIC_BITS 0x4b400000

static_assert(sizeof(fb_q8) == 40 && X_ROW == 80, "rows of x in different banks");

/* A block has WM x WN warps, each with I x J products of 16 x 8. */
template <bool nibbles, int I, int J, int WM, int WN> struct quant_shape {
    static const int height = 16 * I * WM, width = 8 * J * WN, threads = FB_WARP * WM * WN;
    static const int block = nibbles ? 16 : 32; /* bytes of a block's integers */
    static const int x_bytes = height * X_ROW, w_row = BLOCKS * block;
    static const int scales_at = x_bytes + width * w_row;
    static const int stage = scales_at + width * BLOCKS * 2;
    /* Offset of 16-byte chunk c of a row of weights, swizzled: chunk c of 8 rows lies in different banks. */
    FB_DEVICE static int chunk_at(int row, int c) {
        return x_bytes + row * w_row + ((nibbles ? c ^ (row >> 2 & 1) : c ^ (row >> 1 & 3)) << 4);
    }
};

/* Copies two blocks (one if `single`) of the tile's rows of x, from `x` on. Beyond the last row it copies the
 * last one again, whose sums are not stored. `wide`: rows lie at multiples of 16 bytes, not only of 8.
 * Offsets within a tile fit into 32 bits. */
template <class S>
static FB_DEVICE void fetch_x(uint8_t *stage, const uint8_t *x, int x_row, int last, bool single, bool wide) {
    if (wide) {
#pragma unroll
        for (int i = 0; i < (S::x_bytes / 16 + S::threads - 1) / S::threads; i++) {
            int at = i * S::threads + (int)threadIdx.x, r = at / (X_ROW / 16), c = at % (X_ROW / 16) * 16;
            if (at < S::x_bytes / 16) gemm_copy<16>(stage + 16 * at, x + (min(r, last) * x_row + c), true);
        }
    } else {
#pragma unroll 1
        for (int at = threadIdx.x; at < S::x_bytes / 8; at += S::threads) {
            int r = at / (X_ROW / 8), c = at % (X_ROW / 8) * 8;
            bool real = !single || c < (int)sizeof(fb_q8);
            gemm_copy<8>(stage + 8 * at, x + (min(r, last) * x_row + (real ? c : 0)), real);
        }
    }
}

/* The same for the weights: integers from `w` on, scales from `scales` on. `blocks`: of a row. */
template <class S>
static FB_DEVICE void fetch_w(uint8_t *stage, const uint8_t *w, const uint16_t *scales, int blocks, int last,
                              bool single) {
    const int chunks = S::w_row / 16, per_block = chunks / BLOCKS;
#pragma unroll
    for (int i = 0; i < (S::width * chunks + S::threads - 1) / S::threads; i++) {
        int at = i * S::threads + (int)threadIdx.x, r = at / chunks, c = at % chunks;
        if (at >= S::width * chunks) break;
        bool real = !single || c < per_block;
        gemm_copy<16>(stage + S::chunk_at(r, c),
                      w + (min(r, last) * (blocks * S::block) + (real ? c : 0) * 16), real);
    }
    if (threadIdx.x < S::width) {
        const uint16_t *from = scales + min((int)threadIdx.x, last) * blocks;
        uint8_t *to = stage + S::scales_at + threadIdx.x * (BLOCKS * 2);
        if (blocks % 2 == 0)
            gemm_copy<4>(to, from, true);
        else
            *(uint32_t *)to = from[0] | (single ? 0u : (uint32_t)from[1] << 16);
    }
}

template <bool nibbles, int I, int J, int WM, int WN>
static FB_DEVICE void multiply(const uint8_t *stage, float (*sums)[J][4]) {
    using S = quant_shape<nibbles, I, J, WM, WN>;
    int lane = threadIdx.x % FB_WARP, warp = threadIdx.x / FB_WARP, g = lane / 4, t = lane % 4;
    const uint8_t *x = stage + (warp / WN * (16 * I) + g) * X_ROW;
    int n = warp % WN * (8 * J);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        uint32_t a[I][4];
        float x_scale[I][2];
        int start[I][2];
#pragma unroll
        for (int i = 0; i < I; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint8_t *block = x + (16 * i + 8 * half) * X_ROW + b * (int)sizeof(fb_q8);
                uint2 head = *(const uint2 *)block; /* scale and sum */
                x_scale[i][half] = __uint_as_float(head.x);
                start[i][half] = MAGIC_BITS - (nibbles ? 8 * (int)head.y : 0);
                a[i][half] = *(const uint32_t *)(block + 8 + 4 * t);
                a[i][half + 2] = *(const uint32_t *)(block + 24 + 4 * t);
            }
#pragma unroll
        for (int j = 0; j < J; j++) {
            /* Weights of output g; scales of outputs 2 t and 2 t + 1. */
            uint32_t w[2];
            int row = n + 8 * j + g;
            if (nibbles) {
                uint32_t both = *(const uint32_t *)(stage + S::chunk_at(row, b) + 4 * t);
                w[0] = both & 0x0f0f0f0f;
                w[1] = both >> 4 & 0x0f0f0f0f;
            } else {
                w[0] = *(const uint32_t *)(stage + S::chunk_at(row, 2 * b) + 4 * t);
                w[1] = *(const uint32_t *)(stage + S::chunk_at(row, 2 * b + 1) + 4 * t);
            }
            uint2 scales = *(const uint2 *)(stage + S::scales_at + (n + 8 * j + 2 * t) * (BLOCKS * 2));
            float w0 = fb_widen(fb_half{(uint16_t)(scales.x >> 16 * b)}), m0 = -MAGIC * w0;
            float w1 = fb_widen(fb_half{(uint16_t)(scales.y >> 16 * b)}), m1 = -MAGIC * w1;
#pragma unroll
            for (int i = 0; i < I; i++) {
                int d[4];
                float *sum = sums[i][j];
                gemm_mma_bytes(d, a[i], w, start[i][0], start[i][1]);
                sum[0] = fmaf(fmaf(__int_as_float(d[0]), w0, m0), x_scale[i][0], sum[0]);
                sum[1] = fmaf(fmaf(__int_as_float(d[1]), w1, m1), x_scale[i][0], sum[1]);
                sum[2] = fmaf(fmaf(__int_as_float(d[2]), w0, m0), x_scale[i][1], sum[2]);
                sum[3] = fmaf(fmaf(__int_as_float(d[3]), w1, m1), x_scale[i][1], sum[3]);
            }
        }
    }
}

template <bool nibbles, int I, int J, int WM, int WN>
__global__ void __launch_bounds__(FB_WARP *WM *WN, 2)
    gemm_quant_kernel(GEMM_PARAMETER gemm_job job, int stages) {
    using S = quant_shape<nibbles, I, J, WM, WN>;
    FB_SHARED(uint8_t, shared);
    const int stage_bytes = S::stage;
    fb_let_next_start();
    fb_wait_for_previous();
    const gemm_unit &unit = *gemm_unit_of(job, (int)blockIdx.y);
    int64_t row = (int64_t)blockIdx.x * S::height, n = (int64_t)((int)blockIdx.y - unit.tile) * S::width;
    int warp = threadIdx.x / FB_WARP;
    for (int p = job.first; p < job.first + job.count; p++) {
        const gemm_segment &s = job.segment[unit.segment + p];
        int blocks = (int)(s.k / 32), k_tiles = (blocks + BLOCKS - 1) / BLOCKS;
        int x_row = (int)s.x_row, x_last = (int)min((int64_t)S::height, job.rows - row) - 1;
        int w_last = (int)min((int64_t)S::width, s.n - n) - 1;
        bool wide = blocks % 2 == 0 && x_row % 16 == 0 && fb_aligned(s.x, 16);
        const uint8_t *x = s.x + row * s.x_row, *w = s.w + n * blocks * S::block;
        const uint16_t *scales = (const uint16_t *)s.scales + n * blocks;
        float sums[I][J][4];
#pragma unroll
        for (int i = 0; i < I * J * 4; i++) sums[i / (J * 4)][i / 4 % J][i % 4] = 0;
        __syncthreads(); /* all warps have read the part before */
        /* Tile `k_tile` of the columns is fetched while the one stages - 1 before it is multiplied. */
        int into = 0, from = 0;
#pragma unroll 1
        for (int k_tile = 0; k_tile < k_tiles + stages - 1; k_tile++) {
            bool multiplies = k_tile >= stages - 1;
            if (multiplies) {
                gemm_wait(stages);
                __syncthreads();
            }
            if (k_tile < k_tiles) {
                bool single = k_tile * BLOCKS + 1 == blocks;
                fetch_x<S>(shared + into, x, x_row, x_last, single, wide);
                fetch_w<S>(shared + into, w, scales, blocks, w_last, single);
                x += X_ROW, w += S::w_row, scales += BLOCKS;
                into = into + stage_bytes < stages * stage_bytes ? into + stage_bytes : 0;
            }
            fb_copy_commit();
            if (multiplies) {
                multiply<nibbles, I, J, WM, WN>(shared + from, sums);
                from = from + stage_bytes < stages * stage_bytes ? from + stage_bytes : 0;
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < I; i++)
            gemm_finish_rows<J>(job, unit, p, row + warp / WN * (16 * I) + 16 * i, n + warp % WN * (8 * J),
                                sums[i], (float *)shared + warp * GEMM_SMEM_FLOATS(J));
    }
}

template <bool nibbles, int I, int J, int WM, int WN>
static int launch(const gemm_job *job, const fb_cuda_context *cx) {
    using S = quant_shape<nibbles, I, J, WM, WN>;
    const int finish_bytes = WM * WN * GEMM_SMEM_FLOATS(J) * (int)sizeof(float);
    static_assert(2 * S::stage <= 48 * 1024 && finish_bytes <= 48 * 1024, "shared memory");
    gemm_job mine = *job;
    dim3 grid = gemm_grid(&mine, S::height, S::width);
    int stages = gemm_stages(cx->limits, S::stage, 2), bytes = max(stages * S::stage, finish_bytes);
    return FB_LAUNCH(cx, grid, dim3(S::threads), (size_t)bytes, (gemm_quant_kernel<nibbles, I, J, WM, WN>),
                     mine, stages);
}

template <bool nibbles> static int quant(const gemm_job *job, const fb_cuda_context *cx) {
    static const gemm_tile tiles[] = {{128, 128, 10}, {64, 128, 11}, {64, 64, 12}, {32, 32, 16}};
    switch (gemm_best(job, cx->limits, tiles, 4)) {
    case 0:
        return launch<nibbles, 4, 4, 2, 4>(job, cx);
    case 1:
        return launch<nibbles, 2, 4, 2, 4>(job, cx);
    case 2:
        return launch<nibbles, 2, 2, 2, 4>(job, cx);
    default:
        return launch<nibbles, 1, 2, 2, 2>(job, cx);
    }
}

int gemm_quant(const gemm_job *job, const fb_cuda_context *cx) {
    bool nibbles = job->segment[job->unit[0].segment + job->first].w_dtype == FB_Q4_0;
    return nibbles ? quant<true>(job, cx) : quant<false>(job, cx);
}
