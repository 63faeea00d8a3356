/* What the products of several generated rows share: batches of decoding sequences. They add in the order of
 * sums.h.
 *
 * A block has FEW_WIDTH outputs and up to 64 rows. An output's sum is cut into groups, a group into parts,
 * and the block's warps compute different parts of one group at the same time. The parts are added in their
 * order, then the groups, as mv_total does (matvec_output.cuh). Where outputs are few, a block computes one
 * group, and the last of an output's blocks adds the groups. Otherwise a block computes all groups one after
 * the other.
 *
 * A product P has
 *   rows, threads  16 * I rows; threads of a block
 *   parts          of a group
 *   groups(s)      of segment s
 *   compute(…)     fills the warp's sums of its part, and returns how many parts the group has
 *   part(), column()  the warp's part of a group, and its first output in the block */
#ifndef FB_BACKEND_CUDA_GEMM_FEW_CUH
#define FB_BACKEND_CUDA_GEMM_FEW_CUH

#include "backend/cuda/gemm.cuh"

#define FEW_WIDTH      32
#define FEW_PITCH      (FEW_WIDTH + 2) /* floats of a row of sums in shared memory */
#define FEW_SPLIT_TO   4               /* blocks a multiprocessor that are enough without splitting groups */
#define FEW_MOST_TILES 1024            /* whose groups are split: the workspace is limited */

/* Where the sums of groups go that are computed by different blocks. */
struct few_groups {
    float *sums; /* of unit 0: [groups][rows][n]; then those of unit 1, … */
    unsigned *counters;
    bool split;
};

template <class P> FB_HOST_DEV int few_groups_of(const gemm_job &job, const gemm_unit &unit) {
    int all = 0;
    for (int p = job.first; p < job.first + job.count; p++) all += P::groups(job.segment[unit.segment + p]);
    return all;
}

/* Adds the parts of a pair of outputs. */
template <class P> FB_DEVICE float2 few_add_parts(const float *from, int parts) {
    float2 sum = *(const float2 *)from;
#pragma unroll
    for (int q = 1; q < P::parts; q++)
        if (q < parts) {
            float2 next = *(const float2 *)(from + q * P::rows * FEW_PITCH);
            sum.x += next.x;
            sum.y += next.y;
        }
    return sum;
}

/* Stores the warp's sums, in the tensor cores' layout, as those of its part. */
template <class P> FB_DEVICE void few_store_part(float *smem, const float (*sums)[P::J][4]) {
    const int lane = threadIdx.x % FB_WARP;
    float *to = smem + (P::part() * P::rows + lane / 4) * FEW_PITCH + P::column() + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < P::rows / 16; i++)
#pragma unroll
        for (int j = 0; j < P::J; j++) {
            float *at = to + 16 * i * FEW_PITCH + 8 * j;
            *(float2 *)at = make_float2(sums[i][j][0], sums[i][j][1]);
            *(float2 *)(at + 8 * FEW_PITCH) = make_float2(sums[i][j][2], sums[i][j][3]);
        }
}

/* The last block of a tile adds the groups of all its parts and finishes the outputs. */
template <class P>
FB_DEVICE void few_add_groups(const gemm_job &job, const gemm_unit &unit, int64_t n, const float *stored) {
    int number = 0;
    for (int p = job.first; p < job.first + job.count; p++) {
        const gemm_segment &s = job.segment[unit.segment + p];
        const int count = P::groups(s);
#pragma unroll 1
        for (int i = threadIdx.x; i < P::rows * FEW_WIDTH / 2; i += P::threads) {
            const int row = i / (FEW_WIDTH / 2), col = i % (FEW_WIDTH / 2) * 2;
            if (row >= job.rows || n + col >= s.n) continue;
            float2 sum = make_float2(-0.0f, -0.0f); /* plus x is x, also for x = -0 */
#pragma unroll 4
            for (int group = 0; group < count; group++) {
                const float *from = stored + ((number + group) * job.rows + row) * s.n + n + col;
                sum.x += __ldcg(from);
                if (n + col + 1 < s.n) sum.y += __ldcg(from + 1);
            }
            gemm_finish(job, unit, p, row, n + col, sum);
        }
        number += count;
    }
}

/* The grid: tiles of rows, tiles of outputs, and, with `split`, groups. Rows vary fastest: blocks that share
 * weights run at the same time. */
template <class P>
__global__ void __launch_bounds__(P::threads, P::blocks)
    few_kernel(GEMM_PARAMETER gemm_job job, few_groups groups, typename P::setup setup) {
    const int each = P::rows * FEW_WIDTH / 2 / P::threads; /* pairs of outputs of a thread */
    FB_SHARED(uint8_t, shared);
    __shared__ bool last;
    fb_let_next_start();
    const gemm_unit &unit = *gemm_unit_of(job, (int)blockIdx.y);
    const int64_t n = (int64_t)((int)blockIdx.y - unit.tile) * FEW_WIDTH;
    const int first = (int)blockIdx.x * P::rows;
    float *smem = (float *)(void *)shared, *stored = groups.sums;
    float2 total[each];
    int number = 0; /* of the group, among those of all parts of the unit */
    bool waits = true;
    for (int u = 0; groups.split && &job.unit[u] != &unit; u++)
        stored +=
            few_groups_of<P>(job, job.unit[u]) * job.rows * job.segment[job.unit[u].segment + job.first].n;
    for (int p = job.first; p < job.first + job.count; p++) {
        const gemm_segment &s = job.segment[unit.segment + p];
        for (int group = 0; group < P::groups(s); group++, number++) {
            if (groups.split && number != (int)blockIdx.z) continue;
            float sums[P::rows / 16][P::J][4];
            __syncthreads(); /* all threads have read the sums of the group before */
            const int parts = P::compute(s, setup, n, first, (int)job.rows - 1, group, shared, waits, sums);
            waits = false;
            __syncthreads();
            if (P::part() < parts) few_store_part<P>(smem, sums);
            __syncthreads();
#pragma unroll
            for (int e = 0; e < each; e++) {
                const int i = e * P::threads + (int)threadIdx.x;
                const int row = i / (FEW_WIDTH / 2), col = i % (FEW_WIDTH / 2) * 2;
                float2 sum = few_add_parts<P>(smem + row * FEW_PITCH + col, parts);
                if (groups.split) {
                    if (row < job.rows && n + col < s.n)
                        gemm_put_2(FB_F32, stored, (number * job.rows + row) * s.n + n + col,
                                   n + col + 1 < s.n, gemm_paired(FB_F32, stored, s.n), sum);
                    continue;
                }
                if (group == 0) total[e] = make_float2(-0.0f, -0.0f);
                total[e].x += sum.x;
                total[e].y += sum.y;
                if (group + 1 == P::groups(s)) gemm_finish(job, unit, p, first + row, n + col, total[e]);
            }
        }
    }
    if (waits) fb_wait_for_previous(); /* another unit has more groups than this one */
    if (waits || !groups.split) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(groups.counters + blockIdx.y, 1u) == (unsigned)number - 1;
        if (last) groups.counters[blockIdx.y] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    few_add_groups<P>(job, unit, n, stored);
}

/* Launches the kernel with `bytes` of shared memory, at least. */
template <class P>
static int few_launch(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace,
                      typename P::setup setup, int64_t bytes) {
    gemm_job mine = *job;
    dim3 grid = gemm_grid(&mine, P::rows, FEW_WIDTH);
    int most = 0;
    for (int u = 0; u < job->units; u++) {
        int count = few_groups_of<P>(*job, job->unit[u]);
        if (count > most) most = count;
    }
    few_groups groups = {(float *)(void *)workspace, (unsigned *)(void *)cx->scratch, false};
    groups.split =
        most > 1 && grid.x == 1 && grid.y <= FEW_MOST_TILES && (int)grid.y < FEW_SPLIT_TO * cx->limits->sms;
    const int64_t finish = P::parts * P::rows * FEW_PITCH * (int64_t)sizeof(float);
    if (groups.split) grid.z = (unsigned)most;
    return FB_LAUNCH(cx, grid, dim3(P::threads), (size_t)(bytes > finish ? bytes : finish), (few_kernel<P>),
                     mine, groups, setup);
}

static inline int64_t few_workspace_bytes(int64_t groups, int64_t n) {
    const int64_t most = FEW_MOST_TILES * FEW_WIDTH;
    return groups * GEMM_FEW_ROWS * (n < most ? n : most) * (int64_t)sizeof(float);
}

#endif
