/* Products of 16-bit floats on tensor cores. x and weight have one type, a multiple of 8 columns, and rows at
 * multiples of 16 bytes. Sums are float32, over the columns in order.
 *
 * A block of four warps has a tile of 128 x 128, a warp 64 x 64 of it (128 sums a thread). There 8 loads of
 * four matrices feed 32 products: from this size on, shared memory (128 bytes a clock) is not the limit. A
 * stage has 32 columns, 16 KB. While one is multiplied the next ones arrive. Three stages fit into the 48 KB
 * that every device has. There are smaller tiles for few rows or outputs. */
#include "backend/cuda/gemm.cuh"

#define DEPTH   32 /* columns of a stage */
#define ROW     (DEPTH * 2)
#define THREADS 128

/* Offset of 16-byte chunk c (of 4) of a row in the stage's x or w. It is swizzled so that chunk c of 8 rows
 * lies in different banks. */
static FB_DEVICE int chunk_at(int row, int c) { return row * ROW + ((c ^ (row >> 1 & 3)) << 4); }

/* Copies DEPTH columns of the tile's rows from `data` on. `columns` of them exist; zeros beyond. Beyond the
 * last row it copies the last one again, whose sums are not stored. Offsets in a tile fit into 32 bits. */
template <int rows>
static FB_DEVICE void fetch(uint8_t *to, const uint8_t *data, int row_bytes, int last, int columns) {
#pragma unroll
    for (int i = 0; i < rows * DEPTH / 8 / THREADS; i++) {
        int at = i * THREADS + (int)threadIdx.x, r = at / (DEPTH / 8), c = at % (DEPTH / 8);
        bool real = 8 * c < columns;
        gemm_copy<16>(to + chunk_at(r, c), data + (min(r, last) * row_bytes + (real ? c : 0) * 16), real);
    }
}

/* Multiplies a stage. There are 2 x 2 warps, each with I x J products of 16 x 8. */
template <class T, int I, int J> static FB_DEVICE void multiply(const uint8_t *stage, float (*sums)[J][4]) {
    int lane = threadIdx.x % FB_WARP, warp = threadIdx.x / FB_WARP;
    int m = warp / 2 * (16 * I) + (lane & 15), n = warp % 2 * (8 * J) + (lane & 7) + (lane >> 4) * 8;
#pragma unroll
    for (int k = 0; k < DEPTH / 8; k += 2) {
        uint32_t a[I][4], b[J / 2][4];
#pragma unroll
        for (int i = 0; i < I; i++) fb_ldmatrix(a[i], stage + chunk_at(m + 16 * i, k + (lane >> 4)));
#pragma unroll
        for (int j = 0; j < J / 2; j++)
            fb_ldmatrix(b[j], stage + 32 * I * ROW + chunk_at(n + 16 * j, k + (lane >> 3 & 1)));
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int i = 0; i < I; i++) fb_mma((const T *)0, sums[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
}

template <class T, int I, int J>
__global__ void __launch_bounds__(THREADS, 2) gemm_half_kernel(GEMM_PARAMETER gemm_job job, int stages) {
    const int height = 32 * I, width = 16 * J, stage_bytes = (height + width) * ROW;
    FB_SHARED(uint8_t, shared);
    fb_let_next_start();
    fb_wait_for_previous();
    const gemm_unit &unit = *gemm_unit_of(job, (int)blockIdx.y);
    int64_t row = (int64_t)blockIdx.x * height, n = (int64_t)((int)blockIdx.y - unit.tile) * width;
    int warp = threadIdx.x / FB_WARP;
    for (int p = job.first; p < job.first + job.count; p++) {
        const gemm_segment &s = job.segment[unit.segment + p];
        int k_tiles = (int)((s.k + DEPTH - 1) / DEPTH), x_row = (int)s.x_row, w_row = (int)s.k * 2;
        int x_last = (int)min((int64_t)height, job.rows - row) - 1,
            w_last = (int)min((int64_t)width, s.n - n) - 1;
        const uint8_t *x = s.x + row * s.x_row, *w = s.w + n * s.k * 2;
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
                int columns = (int)(s.k - (int64_t)k_tile * DEPTH);
                fetch<height>(shared + into, x, x_row, x_last, columns);
                fetch<width>(shared + into + height * ROW, w, w_row, w_last, columns);
                x += 2 * DEPTH, w += 2 * DEPTH;
                into = into + stage_bytes < stages * stage_bytes ? into + stage_bytes : 0;
            }
            fb_copy_commit();
            if (multiplies) {
                multiply<T, I, J>(shared + from, sums);
                from = from + stage_bytes < stages * stage_bytes ? from + stage_bytes : 0;
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < I; i++)
            gemm_finish_rows<J>(job, unit, p, row + warp / 2 * (16 * I) + 16 * i, n + warp % 2 * (8 * J),
                                sums[i], (float *)shared + warp * GEMM_SMEM_FLOATS(J));
    }
}

template <class T, int I, int J> static int launch(const gemm_job *job, const fb_cuda_context *cx) {
    const int stage_bytes = (32 * I + 16 * J) * ROW;
    static_assert(2 * stage_bytes >= 4 * GEMM_SMEM_FLOATS(J) * (int)sizeof(float) &&
                      2 * stage_bytes <= 48 * 1024,
                  "shared memory");
    gemm_job mine = *job;
    dim3 grid = gemm_grid(&mine, 32 * I, 16 * J);
    int stages = gemm_stages(cx->limits, stage_bytes, 2);
    return FB_LAUNCH(cx, grid, dim3(THREADS), (size_t)stages * stage_bytes, (gemm_half_kernel<T, I, J>), mine,
                     stages);
}

template <class T> static int halves(const gemm_job *job, const fb_cuda_context *cx) {
    static const gemm_tile tiles[] = {{128, 128, 10}, {64, 64, 14}, {32, 32, 24}};
    switch (gemm_best(job, cx->limits, tiles, 3)) {
    case 0:
        return launch<T, 4, 8>(job, cx);
    case 1:
        return launch<T, 2, 4>(job, cx);
    default:
        return launch<T, 1, 2>(job, cx);
    }
}

int gemm_half(const gemm_job *job, const fb_cuda_context *cx) {
    bool f16 = job->segment[job->unit[0].segment + job->first].w_dtype == FB_F16;
    return f16 ? halves<fb_half>(job, cx) : halves<fb_bfloat>(job, cx);
}
