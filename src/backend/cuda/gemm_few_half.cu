/* Products of up to 64 rows of 16-bit floats with weights of the same type, on tensor cores, in the order of
 * sums.h: a part is a piece of 256 columns.
 *
 * Each of a block's eight warps has buffers of its own for 64 columns of weights and x. No warp waits for
 * another before its part is complete. */
#include "backend/cuda/gemm_few.cuh"

#define DEPTH   64 /* columns of a buffer */
#define ROW     (DEPTH * 2)
#define BUFFERS 4 /* of a warp, at most: a whole piece */

static_assert(BUFFERS * DEPTH == FB_SUMS_PIECE, "a piece");

/* Offset of chunk c (of 8) of a row, swizzled: the same chunk of eight rows lies in different banks. */
static FB_DEVICE int chunk_at(int row, int c) { return row * ROW + ((c ^ (row & 7)) << 4); }

/* Copies 64 columns from `column` on of `count` rows; zeros from column `end` on. Beyond the last row it
 * copies the last one again, whose sums are not stored. */
template <int count, bool WEIGHTS>
static FB_DEVICE void fetch(uint8_t *to, const uint8_t *from, int64_t row_bytes, int last, int column,
                            int end) {
    const int lane = threadIdx.x % FB_WARP, c = lane % 8;
    const bool real = column + 8 * c < end;
#pragma unroll
    for (int i = 0; i < count / 4; i++) {
        int r = i * 4 + lane / 8;
        const uint8_t *at = from + min(r, last) * row_bytes + (real ? (column + 8 * c) * 2 : 0);
        if (WEIGHTS)
            gemm_copy_weights(to + chunk_at(r, c), at, real);
        else
            gemm_copy<16>(to + chunk_at(r, c), at, real);
    }
}

template <class T, int I> struct few_half {
    static const int rows = 16 * I, threads = FB_SUMS_GROUP * FB_WARP, parts = FB_SUMS_GROUP,
                     J = FEW_WIDTH / 8;
    static const int blocks = I == 1 ? 2 : 1, buffer = (FEW_WIDTH + rows) * ROW;
    struct setup {
        int buffers; /* of a warp */
    };
    static FB_HOST_DEV int groups(const gemm_segment &s) {
        return (int)((s.k + FB_SUMS_PIECE * FB_SUMS_GROUP - 1) / (FB_SUMS_PIECE * FB_SUMS_GROUP));
    }
    static FB_DEVICE int part() { return (int)threadIdx.x / FB_WARP; }
    static FB_DEVICE int column() { return 0; }

    static FB_DEVICE void multiply(const uint8_t *w, const uint8_t *x, float (*sums)[J][4]) {
        const int lane = threadIdx.x % FB_WARP, m = lane & 15, n = (lane & 7) + (lane >> 4) * 8;
#pragma unroll
        for (int k = 0; k < DEPTH / 8; k += 2) {
            uint32_t a[I][4], b[J / 2][4];
#pragma unroll
            for (int i = 0; i < I; i++) fb_ldmatrix(a[i], x + chunk_at(m + 16 * i, k + (lane >> 4)));
#pragma unroll
            for (int j = 0; j < J / 2; j++) fb_ldmatrix(b[j], w + chunk_at(n + 16 * j, k + (lane >> 3 & 1)));
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int i = 0; i < I; i++) fb_mma((const T *)0, sums[i][j], a[i], b[j / 2] + j % 2 * 2);
        }
    }

    /* Weights may be read before the kernel before this one has ended; x only afterwards (`waits`). */
    static FB_DEVICE int compute(const gemm_segment &s, setup setup, int64_t n, int first, int last_row,
                                 int group, uint8_t *shared, bool waits, float (*sums)[J][4]) {
        const int column = (group * FB_SUMS_GROUP + part()) * FB_SUMS_PIECE, buffers = setup.buffers;
        const int left = (int)s.k - group * FB_SUMS_GROUP * FB_SUMS_PIECE;
        const int count = min(FB_SUMS_GROUP, (left + FB_SUMS_PIECE - 1) / FB_SUMS_PIECE);
        const int end = min(column + FB_SUMS_PIECE, (int)s.k), tiles = (end - column + DEPTH - 1) / DEPTH;
        const int w_last = (int)min((int64_t)FEW_WIDTH, s.n - n) - 1;
        const uint8_t *w = s.w + n * s.k * 2, *x = s.x + first * s.x_row;
        uint8_t *memory = shared + part() * buffers * buffer;
#pragma unroll
        for (int i = 0; i < I * J * 4; i++) sums[i / (4 * J)][i / 4 % J][i % 4] = 0;
#pragma unroll 1
        for (int i = 0; i < buffers && i < tiles; i++)
            fetch<FEW_WIDTH, true>(memory + i * buffer, w, s.k * 2, w_last, column + i * DEPTH, end);
        if (waits) fb_wait_for_previous();
#pragma unroll 1
        for (int i = 0; i < buffers; i++) {
            if (i < tiles)
                fetch<rows, false>(memory + i * buffer + FEW_WIDTH * ROW, x, s.x_row, last_row - first,
                                   column + i * DEPTH, end);
            fb_copy_commit();
        }
#pragma unroll 1
        for (int tile = 0, at = 0; tile < tiles; tile++, at = at + 1 < buffers ? at + 1 : 0) {
            uint8_t *here = memory + at * buffer;
            gemm_wait(buffers + 1);
            __syncwarp();
            multiply(here, here + FEW_WIDTH * ROW, sums);
            __syncwarp();
            if (tile + buffers < tiles) {
                int next = column + (tile + buffers) * DEPTH;
                fetch<FEW_WIDTH, true>(here, w, s.k * 2, w_last, next, end);
                fetch<rows, false>(here + FEW_WIDTH * ROW, x, s.x_row, last_row - first, next, end);
            }
            fb_copy_commit();
        }
        return count;
    }
};

template <class P> static int launch(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace) {
    const int64_t each = FB_SUMS_GROUP * P::buffer;
    int64_t available = cx->limits->shared_limit - 1024;
    /* Two blocks a multiprocessor where both fit with two buffers. */
    if (P::blocks == 2 && cx->limits->blocks_shared / 2 - 2048 >= 2 * each)
        available = cx->limits->blocks_shared / 2 - 2048;
    int64_t buffers = available / each;
    buffers = buffers > BUFFERS ? BUFFERS : buffers < 1 ? 1 : buffers;
    return few_launch<P>(job, cx, workspace, {(int)buffers}, buffers * each);
}

template <class T> static int halves(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace) {
    return job->rows <= 16   ? launch<few_half<T, 1>>(job, cx, workspace)
           : job->rows <= 32 ? launch<few_half<T, 2>>(job, cx, workspace)
                             : launch<few_half<T, 4>>(job, cx, workspace);
}

int gemm_few_half(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace) {
    bool f16 = job->segment[job->unit[0].segment + job->first].w_dtype == FB_F16;
    return f16 ? halves<fb_half>(job, cx, workspace) : halves<fb_bfloat>(job, cx, workspace);
}

int64_t gemm_few_half_workspace_bytes(int64_t k, int64_t n) {
    const int64_t group = FB_SUMS_PIECE * FB_SUMS_GROUP;
    return few_workspace_bytes((k + group - 1) / group, n);
}
