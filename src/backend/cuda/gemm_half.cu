/* Products of 16-bit floats on tensor cores. x and weight have one type, a multiple of 8 columns, and rows at
 * multiples of 16 bytes. Sums are float32, in the order of sums.h.
 *
 * A block of eight warps has a tile of 128 x 128, a warp 64 x 32 of it. A thread has 64 sums of the present
 * piece and 64 of the present group in registers; those of all groups, which change every 2048 columns, are
 * in shared memory. A stage has 32 columns, 16 KB. While one is multiplied the next ones arrive. There are
 * smaller tiles for few rows or outputs. */
#include "backend/cuda/gemm.cuh"

#define DEPTH 32 /* columns of a stage */
#define ROW   (DEPTH * 2)
#define STEP  (16 * FB_SUMS_CHAINS)   /* columns from a product of a chain to the next */
#define PIECE (FB_SUMS_PIECE / DEPTH) /* stages of a piece */

/* A block has WM x WN warps, each with I x J products of 16 x 8. */
template <int I, int J, int WM, int WN> struct half_shape {
    static const int height = 16 * I * WM, width = 8 * J * WN, threads = FB_WARP * WM * WN;
    static const int stage = (height + width) * ROW, totals = threads * I * J * 16;
};

/* Offset of 16-byte chunk c (of 4) of a row in the stage's x or w. It is swizzled so that chunk c of 8 rows
 * lies in different banks. */
static FB_DEVICE int chunk_at(int row, int c) { return row * ROW + ((c ^ (row >> 1 & 3)) << 4); }

/* The first column of a stage's tile: a piece is read chain by chain. `each`: tiles of a chain. The tile's
 * second product is STEP columns further. */
static FB_DEVICE int column_of(int tile, int each) {
    const int piece = tile / PIECE, in_piece = tile % PIECE;
    return piece * FB_SUMS_PIECE + in_piece / each * 16 + in_piece % each * (2 * STEP);
}

/* Copies the tile's columns from `column` on; zeros from column `end` on. Beyond the last row it copies the
 * last one again, whose sums are not stored. */
template <int rows, int THREADS>
static FB_DEVICE void fetch(uint8_t *to, const uint8_t *data, int row_bytes, int last, int column, int end) {
#pragma unroll
    for (int i = 0; i < rows * DEPTH / 8 / THREADS; i++) {
        int at = i * THREADS + (int)threadIdx.x, r = at / (DEPTH / 8), c = at % (DEPTH / 8);
        int col = column + c / 2 * STEP + c % 2 * 8;
        bool real = col < end;
        gemm_copy<16>(to + chunk_at(r, c), data + (min(r, last) * row_bytes + (real ? col : 0) * 2), real);
    }
}

/* Multiplies a stage. */
template <class T, int I, int J, int WM, int WN>
static FB_DEVICE void multiply(const uint8_t *stage, float (*sums)[J][4]) {
    using S = half_shape<I, J, WM, WN>;
    int lane = threadIdx.x % FB_WARP, warp = threadIdx.x / FB_WARP;
    int m = warp / WN * (16 * I) + (lane & 15), n = warp % WN * (8 * J) + (lane & 7) + (lane >> 4) * 8;
#pragma unroll
    for (int k = 0; k < DEPTH / 8; k += 2) {
        uint32_t a[I][4], b[J / 2][4];
#pragma unroll
        for (int i = 0; i < I; i++) fb_ldmatrix(a[i], stage + chunk_at(m + 16 * i, k + (lane >> 4)));
#pragma unroll
        for (int j = 0; j < J / 2; j++)
            fb_ldmatrix(b[j], stage + S::height * ROW + chunk_at(n + 16 * j, k + (lane >> 3 & 1)));
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int i = 0; i < I; i++) fb_mma((const T *)0, sums[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
}

template <class T, int I, int J, int WM, int WN>
__global__ void __launch_bounds__(FB_WARP *WM *WN, WM *WN > 4 ? 1 : 2)
    gemm_half_kernel(GEMM_PARAMETER gemm_job job, int stages) {
    using S = half_shape<I, J, WM, WN>;
    FB_SHARED(uint8_t, shared);
    fb_let_next_start();
    fb_wait_for_previous();
    const gemm_unit &unit = *gemm_unit_of(job, (int)blockIdx.y);
    int64_t row = (int64_t)blockIdx.x * S::height, n = (int64_t)((int)blockIdx.y - unit.tile) * S::width;
    int warp = threadIdx.x / FB_WARP;
    /* [I * J][threads]: the sums of complete pieces, if there are several. */
    float4 *totals = (float4 *)(void *)(shared + stages * S::stage) + threadIdx.x;
    for (int p = job.first; p < job.first + job.count; p++) {
        const gemm_segment &s = job.segment[unit.segment + p];
        const int end = (int)s.k, x_row = (int)s.x_row, w_row = end * 2;
        const int pieces = (end + FB_SUMS_PIECE - 1) / FB_SUMS_PIECE;
        /* Tiles of each chain of the last piece, and in all. */
        const int each = (end - (pieces - 1) * FB_SUMS_PIECE + 2 * STEP - 1) / (2 * STEP);
        const int k_tiles = (pieces - 1) * PIECE + FB_SUMS_CHAINS * each;
        const int x_last = (int)min((int64_t)S::height, job.rows - row) - 1,
                  w_last = (int)min((int64_t)S::width, s.n - n) - 1;
        const uint8_t *x = s.x + row * s.x_row, *w = s.w + n * s.k * 2;
        float sums[I][J][4], piece[I][J][4];
#pragma unroll
        for (int i = 0; i < I * J * 4; i++) {
            sums[i / (J * 4)][i / 4 % J][i % 4] = 0;
            piece[i / (J * 4)][i / 4 % J][i % 4] = -0.0f; /* plus x is x, also for x = -0 */
        }
        __syncthreads(); /* all warps have read the part before */
        /* Tile `k_tile` of the columns is fetched while the one stages - 1 before it is multiplied. */
        int into = 0, from = 0;
#pragma unroll 1
        for (int k_tile = 0; k_tile < k_tiles + stages - 1; k_tile++) {
            const int done = k_tile - (stages - 1) + 1; /* tiles that are multiplied after this turn */
            if (done > 0) {
                gemm_wait(stages);
                __syncthreads();
            }
            if (k_tile < k_tiles) {
                const int column =
                    column_of(k_tile, k_tile < (pieces - 1) * PIECE ? PIECE / FB_SUMS_CHAINS : each);
                fetch<S::height, S::threads>(shared + into, x, x_row, x_last, column, end);
                fetch<S::width, S::threads>(shared + into + S::height * ROW, w, w_row, w_last, column, end);
                into = into + S::stage < stages * S::stage ? into + S::stage : 0;
            }
            fb_copy_commit();
            if (done <= 0) continue;
            multiply<T, I, J, WM, WN>(shared + from, sums);
            from = from + S::stage < stages * S::stage ? from + S::stage : 0;
            const bool final = done > (pieces - 1) * PIECE; /* in the last piece */
            if (final ? (done - (pieces - 1) * PIECE) % each : done % (PIECE / FB_SUMS_CHAINS)) continue;
#pragma unroll
            for (int i = 0; i < I * J * 4; i++) {
                piece[i / (J * 4)][i / 4 % J][i % 4] += sums[i / (J * 4)][i / 4 % J][i % 4];
                sums[i / (J * 4)][i / 4 % J][i % 4] = 0;
            }
            if (pieces == 1 || (final ? done < k_tiles : done % PIECE != 0)) continue;
#pragma unroll
            for (int i = 0; i < I * J; i++) {
                float *of = piece[i / J][i % J];
                float4 *at = totals + i * S::threads, sum = make_float4(of[0], of[1], of[2], of[3]);
                if (done > PIECE) {
                    float4 before = *at;
                    sum = make_float4(before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w);
                }
                *at = sum;
                of[0] = of[1] = of[2] = of[3] = -0.0f;
                if (done == k_tiles) of[0] = sum.x, of[1] = sum.y, of[2] = sum.z, of[3] = sum.w;
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < I; i++)
            gemm_finish_rows<J>(job, unit, p, row + warp / WN * (16 * I) + 16 * i, n + warp % WN * (8 * J),
                                piece[i], (float *)shared + warp * GEMM_SMEM_FLOATS(J));
    }
}

template <class T, int I, int J, int WM, int WN>
static int launch(const gemm_job *job, const fb_cuda_context *cx) {
    using S = half_shape<I, J, WM, WN>;
    static_assert(2 * S::stage >= WM * WN * GEMM_SMEM_FLOATS(J) * (int)sizeof(float) &&
                      2 * S::stage + S::totals <= 99 * 1024,
                  "shared memory");
    gemm_job mine = *job;
    dim3 grid = gemm_grid(&mine, S::height, S::width);
    bool several = false;
    for (int u = 0; u < job->units; u++)
        for (int p = job->first; p < job->first + job->count; p++)
            several = several || job->segment[job->unit[u].segment + p].k > FB_SUMS_PIECE;
    int totals = several ? S::totals : 0;
    int stages = gemm_stages(cx->limits, S::stage, totals, WM * WN > 4 ? 1 : 2);
    return FB_LAUNCH(cx, grid, dim3(S::threads), (size_t)stages * S::stage + totals,
                     (gemm_half_kernel<T, I, J, WM, WN>), mine, stages);
}

template <class T> static int halves(const gemm_job *job, const fb_cuda_context *cx) {
    static const gemm_tile tiles[] = {{128, 128, 10}, {64, 64, 14}, {32, 32, 24}};
    switch (gemm_best(job, cx->limits, tiles, 3)) {
    case 0:
        return launch<T, 4, 4, 2, 4>(job, cx);
    case 1:
        return launch<T, 2, 4, 2, 2>(job, cx);
    default:
        return launch<T, 1, 2, 2, 2>(job, cx);
    }
}

int gemm_half(const gemm_job *job, const fb_cuda_context *cx) {
    bool f16 = job->segment[job->unit[0].segment + job->first].w_dtype == FB_F16;
    return f16 ? halves<fb_half>(job, cx) : halves<fb_bfloat>(job, cx);
}
