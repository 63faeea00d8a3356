/* Products of any types. Each element is converted to float32 on its way to shared memory. Each DEPTH columns
 * are summed by fmaf, in order, and these sums are added: a chain over all columns would be twice as far from
 * the exact sum. Used for float32 (which tensor cores would round to 10 bits), decoded quantised
 * weights, and shapes that the other kernels do not take.
 *
 * A block of 128 threads has a tile of 64 x 64, a thread 8 x 4 of it: 3 loads of 16 bytes feed 32
 * multiply-adds. */
#include "backend/cuda/gemm.cuh"

#define TILE    64
#define DEPTH   16
#define THREADS 128
#define PITCH   (TILE + 4)

/* Elements [k, k + 8), k a multiple of 8, of a row that starts at `row`; zeros from k_end on. */
template <class T> static FB_DEVICE void load_floats(const T *row, int64_t k, int64_t k_end, float *to) {
    if (k + 8 <= k_end && fb_aligned(row + k, 16)) {
        uint4 words[sizeof(T) / 2];
#pragma unroll
        for (int i = 0; i < (int)sizeof(T) / 2; i++) words[i] = ((const uint4 *)(row + k))[i];
        const T *from = (const T *)words;
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = fb_widen(from[i]);
    } else
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = k + i < k_end ? fb_widen(row[k + i]) : 0;
}

static FB_DEVICE void load(fb_dtype dtype, const uint8_t *row, int64_t k, int64_t k_end, float *to) {
    FB_FOR_TYPE(dtype, T, load_floats<T>((const T *)row, k, k_end, to));
}

/* Elements [k, k + 8) of row n of the weights. Quantised rows are whole blocks: the 8 exist all or not at
 * all. */
static FB_DEVICE void load_w(const gemm_segment &s, int64_t n, int64_t k, float *to) {
    int64_t block = n * (s.k / 32) + k / 32;
    int in = (int)(k % 32);
    if (s.w_dtype != FB_Q8_0 && s.w_dtype != FB_Q4_0) {
        load(s.w_dtype, s.w + n * s.k * (s.w_dtype == FB_F32 ? 4 : 2), k, s.k, to);
        return;
    }
    if (k >= s.k) {
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = 0;
        return;
    }
    float scale = fb_widen(((const fb_half *)s.scales)[block]);
    uint2 q = *(const uint2 *)(s.w_dtype == FB_Q8_0 ? s.w + block * 32 + in : s.w + block * 16 + in % 16);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int byte = (int)((i < 4 ? q.x : q.y) >> 8 * (i % 4) & 0xff);
        to[i] = scale * (float)(s.w_dtype == FB_Q8_0 ? (int)(int8_t)byte : (byte >> (in / 16 * 4) & 15) - 8);
    }
}

__global__ void __launch_bounds__(THREADS, 4) gemm_any_kernel(GEMM_PARAMETER gemm_job job) {
    __shared__ __align__(16) float xs[2][DEPTH][PITCH], ws[2][DEPTH][PITCH];
    fb_let_next_start();
    fb_wait_for_previous();
    const gemm_unit &unit = *gemm_unit_of(job, (int)blockIdx.y);
    int64_t row = (int64_t)blockIdx.x * TILE, n = (int64_t)((int)blockIdx.y - unit.tile) * TILE;
    int r = threadIdx.x / 2, c = threadIdx.x % 2 * 8; /* what this thread loads */
    int m = threadIdx.x / 16 * 8, o = threadIdx.x % 16 * 4;
    for (int p = job.first; p < job.first + job.count; p++) {
        const gemm_segment &s = job.segment[unit.segment + p];
        int64_t x_at = min(row + r, job.rows - 1),
                w_at = min(n + r, s.n - 1); /* sums beyond are not stored */
        float sums[8][4], parts[8][4], x8[8], w8[8];
#pragma unroll
        for (int i = 0; i < 32; i++) sums[i / 4][i % 4] = 0;
        load(s.x_dtype, s.x + x_at * s.x_row, c, s.k, x8);
        load_w(s, w_at, c, w8);
        int half = 0;
        for (int64_t k = 0; k < s.k; k += DEPTH, half ^= 1) {
#pragma unroll
            for (int i = 0; i < 8; i++) xs[half][c + i][r] = x8[i], ws[half][c + i][r] = w8[i];
            __syncthreads();
            if (k + DEPTH < s.k) {
                load(s.x_dtype, s.x + x_at * s.x_row, k + DEPTH + c, s.k, x8);
                load_w(s, w_at, k + DEPTH + c, w8);
            }
#pragma unroll
            for (int i = 0; i < 32; i++) parts[i / 4][i % 4] = 0;
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                float4 a = *(const float4 *)&xs[half][d][m], b = *(const float4 *)&xs[half][d][m + 4];
                float4 w = *(const float4 *)&ws[half][d][o];
                float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    parts[i][0] = fmaf(x[i], w.x, parts[i][0]);
                    parts[i][1] = fmaf(x[i], w.y, parts[i][1]);
                    parts[i][2] = fmaf(x[i], w.z, parts[i][2]);
                    parts[i][3] = fmaf(x[i], w.w, parts[i][3]);
                }
            }
#pragma unroll
            for (int i = 0; i < 32; i++) sums[i / 4][i % 4] += parts[i / 4][i % 4];
        }
        /* The sums go through shared memory, so that the code that finishes one is there only once. */
        float(*smem)[PITCH] = (float(*)[PITCH])xs;
        for (int part = 0; part < 2; part++) {
            __syncthreads();
            if ((int)threadIdx.x / 64 == part)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    *(float4 *)&smem[m % 32 + i][o] =
                        make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
            __syncthreads();
#pragma unroll 1
            for (int at = threadIdx.x; at < 32 * TILE / 2; at += THREADS) {
                int i = at / (TILE / 2), j = at % (TILE / 2) * 2;
                gemm_finish(job, unit, p, row + 32 * part + i, n + j, *(const float2 *)&smem[i][j]);
            }
        }
        __syncthreads();
    }
}

int gemm_any(const gemm_job *job, const fb_cuda_context *cx) {
    gemm_job mine = *job;
    dim3 grid = gemm_grid(&mine, TILE, TILE);
    return FB_LAUNCH(cx, grid, dim3(THREADS), 0, gemm_any_kernel, mine);
}
