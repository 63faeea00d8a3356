/* Products of up to 64 rows of 16-bit floats with weights of the same type, on tensor cores, in the order of
 * sums.h. A group is a piece of up to 2048 columns, its parts are the eight chains: one for each warp of a
 * block.
 *
 * The block's warps copy 256 columns at a time together. Of each 256 columns, a warp multiplies two times 16.
 */
#include "backend/cuda/gemm_few.cuh"

#define DEPTH  256 /* columns of a stage */
#define CHUNKS (DEPTH / 8)
#define ROW    (DEPTH * 2)

static_assert(DEPTH == 2 * 16 * FB_SUMS_CHAINS, "two products of each chain");

/* Offset of chunk c of a row, swizzled: the same chunk of eight rows lies in different banks. */
static FB_DEVICE int chunk_at(int row, int c) { return row * ROW + ((c ^ (row & 7)) << 4); }

template <class T, int I> struct few_half {
    static const int rows = 16 * I, warps = FB_SUMS_CHAINS, threads = warps * FB_WARP, parts = FB_SUMS_CHAINS;
    static const int J = FEW_WIDTH / 8, blocks = I < 4 ? 2 : 1, stage = (FEW_WIDTH + rows) * ROW;
    struct setup {
        int stages;
    };
    static FB_HOST_DEV int groups(const gemm_segment &s) { return fb_sums_of_halves(s.k).pieces; }
    static FB_DEVICE int part() { return (int)threadIdx.x / FB_WARP; }
    static FB_DEVICE int column() { return 0; }

    /* Copies the stage's columns from `column` on of `count` rows; zeros from column `end` on. A warp copies
     * whole rows. Beyond the last row it copies the last one again, whose sums are not stored. */
    template <int count>
    static FB_DEVICE void fetch(uint8_t *to, const uint8_t *from, int64_t row_bytes, int last, int column,
                                int end) {
        const int c = threadIdx.x % FB_WARP;
        const bool real = column + 8 * c < end;
#pragma unroll
        for (int i = 0; i < count / warps; i++) {
            int r = i * warps + part();
            if (r > last) break;
            gemm_copy<16>(to + chunk_at(r, c), from + r * row_bytes + (real ? (column + 8 * c) * 2 : 0),
                          real);
        }
    }

    static FB_DEVICE void multiply(const uint8_t *w, const uint8_t *x, float (*sums)[J][4]) {
        const int lane = threadIdx.x % FB_WARP, m = lane & 15, n = (lane & 7) + (lane >> 4) * 8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int k = half * 2 * FB_SUMS_CHAINS + part(); /* and FB_SUMS_CHAINS further */
            uint32_t a[I][4], b[J / 2][4];
#pragma unroll
            for (int i = 0; i < I; i++)
                fb_ldmatrix(a[i], x + chunk_at(m + 16 * i, k + (lane >> 4) * FB_SUMS_CHAINS));
#pragma unroll
            for (int j = 0; j < J / 2; j++)
                fb_ldmatrix(b[j], w + chunk_at(n + 16 * j, k + (lane >> 3 & 1) * FB_SUMS_CHAINS));
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int i = 0; i < I; i++) fb_mma((const T *)0, sums[i][j], a[i], b[j / 2] + j % 2 * 2);
        }
    }

    /* Weights may be read before the kernel before this one has ended; x only afterwards (`waits`). */
    static FB_DEVICE int compute(const gemm_segment &s, setup setup, int64_t n, int first, int last_row,
                                 int group, uint8_t *shared, bool waits, float (*sums)[J][4]) {
        const int stages = setup.stages, columns = fb_sums_of_halves(s.k).lane_chunks * FB_WARP * 8;
        const int begin = group * columns;
        const int end = (int)min((int64_t)begin + columns, s.k), tiles = (end - begin + DEPTH - 1) / DEPTH;
        const int w_last = (int)min((int64_t)FEW_WIDTH, s.n - n) - 1;
        const uint8_t *w = s.w + n * s.k * 2, *x = s.x + first * s.x_row;
#pragma unroll
        for (int i = 0; i < I * J * 4; i++) sums[i / (4 * J)][i / 4 % J][i % 4] = 0;
#pragma unroll 1
        for (int i = 0; i + 1 < stages && i < tiles; i++)
            fetch<FEW_WIDTH>(shared + i * stage, w, s.k * 2, w_last, begin + i * DEPTH, end);
        if (waits) fb_wait_for_previous();
#pragma unroll 1
        for (int i = 0; i + 1 < stages; i++) {
            if (i < tiles)
                fetch<rows>(shared + i * stage + FEW_WIDTH * ROW, x, s.x_row, last_row - first,
                            begin + i * DEPTH, end);
            fb_copy_commit();
        }
        int into = stages - 1, from = 0;
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            gemm_wait(stages);
            __syncthreads(); /* the tile has arrived, and all warps are done with the one before */
            if (tile + stages - 1 < tiles) {
                int next = begin + (tile + stages - 1) * DEPTH;
                fetch<FEW_WIDTH>(shared + into * stage, w, s.k * 2, w_last, next, end);
                fetch<rows>(shared + into * stage + FEW_WIDTH * ROW, x, s.x_row, last_row - first, next, end);
            }
            fb_copy_commit();
            multiply(shared + from * stage, shared + from * stage + FEW_WIDTH * ROW, sums);
            into = into + 1 < stages ? into + 1 : 0;
            from = from + 1 < stages ? from + 1 : 0;
        }
        return parts;
    }
};

template <class P> static int launch(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace) {
    const int stages = gemm_stages(cx->limits, P::stage, P::blocks);
    return few_launch<P>(job, cx, workspace, {stages}, (int64_t)stages * P::stage);
}

template <class T> static int halves(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace) {
    /* Two stages of 64 rows take 96 KB, which is more than some devices have. */
    const bool all = 2 * few_half<T, 4>::stage <= cx->limits->shared_limit - 1024;
    return job->rows <= 16           ? launch<few_half<T, 1>>(job, cx, workspace)
           : job->rows <= 32 || !all ? launch<few_half<T, 2>>(job, cx, workspace)
                                     : launch<few_half<T, 4>>(job, cx, workspace);
}

int gemm_few_half(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace) {
    bool f16 = job->segment[job->unit[0].segment + job->first].w_dtype == FB_F16;
    return f16 ? halves<fb_half>(job, cx, workspace) : halves<fb_bfloat>(job, cx, workspace);
}

int64_t gemm_few_half_workspace_bytes(int64_t k, int64_t n) {
    return few_workspace_bytes(fb_sums_of_halves(k).pieces, n);
}
