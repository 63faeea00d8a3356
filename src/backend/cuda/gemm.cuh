/* What the kernels for many rows share: a job, the tensor-core instructions, and what is done to a complete
 * sum.
 *
 * A job is a linear_group. A unit is one output matrix of it: a segment each, or, with a combination, all
 * segments in one. Part p of a unit is a segment. A launch computes parts [first, first + count) of each
 * unit. The first of two parts is stored, rounded, in `kept` until the second is computed. So two parts may
 * be multiplied by different kernels. */
#ifndef FB_BACKEND_CUDA_GEMM_CUH
#define FB_BACKEND_CUDA_GEMM_CUH

#include "backend/cuda/activation.cuh"
#include "backend/cuda/device.cuh"
#include "backend/cuda/gemm.h"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/sums.h"

/* A segment. x is the prepared input: normalised and quantised. */
struct gemm_segment {
    const uint8_t *x, *w;
    const uint8_t *scales; /* of w, where it is quantised */
    const void *bias;      /* or NULL */
    int64_t x_row, w_row;  /* bytes from a row of x to the next, and of w, where that lies in records */
    int64_t k, n;
    fb_dtype x_dtype, w_dtype, bias_dtype;
    fb_op_kind act;
};

struct gemm_unit {
    uint8_t *out;
    int64_t out_row; /* elements */
    int32_t segment; /* its first part */
    int32_t tile;    /* its first tile in the grid's y */
};

struct gemm_job {
    gemm_segment segment[FB_MAX_SEGMENTS];
    gemm_unit unit[FB_MAX_SEGMENTS];
    int32_t units, first, count, parts; /* parts: of a unit, in all */
    fb_combine combine;
    fb_dtype dtype; /* of out, residual and kept */
    const uint8_t *residual;
    int64_t residual_row;
    uint8_t *kept; /* [rows, n] */
    int64_t rows;
};

/* A job as a kernel's parameter, read without a local copy. */
#ifdef FB_EMULATED
#define GEMM_PARAMETER const
#else
#define GEMM_PARAMETER const __grid_constant__
#endif

/* Which kernel multiplies a segment. It depends on the weight and the dtypes alone, so that the plain ops and
 * a group made of them use the same. */
enum gemm_kind { GEMM_ANY, GEMM_HALF, GEMM_QUANT };

int gemm_half(const gemm_job *job, const fb_cuda_context *cx);
/* The same sums for up to GEMM_FEW_ROWS rows; and sums of quantised weights, for any number of rows.
 * `workspace`: what each segment needs, added up, at a multiple of 256. */
#define GEMM_FEW_ROWS 64
int gemm_few_half(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace);
int gemm_few_quant(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace);
/* The same, by kernels for devices with bulk copies, and whether they can compute the job. */
int gemm_few_bulk_half(const gemm_job *job, const fb_cuda_context *cx);
int gemm_few_bulk_quant(const gemm_job *job, const fb_cuda_context *cx);
bool gemm_few_bulk_half_fits(const fb_cuda_limits *limits);
bool gemm_few_bulk_quant_fits(const gemm_job *job, const fb_cuda_limits *limits);
/* Weights in records, of any types in one job. x: quantised rows, or NULL if those are in scratch. */
int gemm_few_bulk_records(const gemm_job *job, const fb_cuda_context *cx);
bool gemm_few_records_fits(const fb_weight *w, const fb_view *x, const fb_cuda_limits *limits);
int64_t gemm_few_half_workspace_bytes(int64_t k, int64_t n);
int64_t gemm_few_quant_workspace_bytes(int64_t k, int64_t n, fb_dtype weight);
/* Whether the device has enough shared memory. */
bool gemm_few_quant_fits(int64_t k, fb_dtype weight, const fb_cuda_limits *limits);
int gemm_quant(const gemm_job *job, const fb_cuda_context *cx);
int gemm_any(const gemm_job *job, const fb_cuda_context *cx);
/* `count` rows of quantised weights, and quantised rows of x, as floats of `type`, without gaps. */
int gemm_decode_weights(const fb_weight *w, int64_t first, int64_t count, fb_dtype type, void *to,
                        const fb_cuda_context *cx);
int gemm_decode_rows(const fb_view *x, int64_t rows, int64_t cols, fb_dtype type, void *to,
                     const fb_cuda_context *cx);

/* With cuBLASLt, for segments of GEMM_HALF whose n is a multiple of 8 and whose rows of x have no gaps.
 * `workspace`: gemm_blas_workspace_bytes for up to `products` of so many elements, at a multiple of 256.
 * GEMM_UNSERVED: the library has no algorithm. */
#define GEMM_UNSERVED (-1)
int gemm_blas(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace);
int64_t gemm_blas_workspace_bytes(int products, int64_t elements, fb_dtype dtype);

/* Whether cuBLASLt adds the bias and gives `dtype`; otherwise the product is float32. */
static inline bool gemm_blas_biased(const void *bias, fb_dtype bias_dtype, fb_dtype dtype) {
    return bias_dtype == dtype && dtype != FB_F32 && fb_aligned(bias, 16);
}

/* The grid: tiles of `height` rows by `width` outputs. Rows vary fastest, so that blocks that share weights
 * run at the same time. Sets the units' first tiles. */
static inline dim3 gemm_grid(gemm_job *job, int64_t height, int64_t width) {
    int64_t tiles = 0;
    for (int u = 0; u < job->units; u++) {
        job->unit[u].tile = (int32_t)tiles;
        tiles += (job->segment[job->unit[u].segment].n + width - 1) / width;
    }
    return dim3((unsigned)((job->rows + height - 1) / height), (unsigned)tiles);
}

/* A size of a block's tile that a kernel is compiled for. The sums are the same with every size. `cost`: of a
 * sum, in tenths of its cost with the first size; smaller tiles load more for each sum. */
struct gemm_tile {
    int32_t height, width, cost;
};

/* Which size gives the busiest multiprocessor the least work. */
static inline int gemm_best(const gemm_job *job, const fb_cuda_limits *limits, const gemm_tile *tiles,
                            int count) {
    int best = 0;
    int64_t least = INT64_MAX, sms = limits->sms > 0 ? limits->sms : 1;
    for (int i = 0; i < count; i++) {
        gemm_job mine = *job;
        dim3 grid = gemm_grid(&mine, tiles[i].height, tiles[i].width);
        int64_t rounds = ((int64_t)grid.x * grid.y + sms - 1) / sms;
        int64_t cost = rounds * tiles[i].height * tiles[i].width * tiles[i].cost;
        if (cost < least) least = cost, best = i;
    }
    return best;
}

FB_DEVICE const gemm_unit *gemm_unit_of(const gemm_job &job, int tile) {
    int u = 0;
    while (u + 1 < job.units && tile >= job.unit[u + 1].tile) u++;
    return &job.unit[u];
}

/* ---- elements of a dtype known at run time, for work that is done once a sum ---- */

FB_DEVICE float gemm_get(fb_dtype dtype, const void *p, int64_t i) {
    return dtype == FB_F32   ? ((const float *)p)[i]
           : dtype == FB_F16 ? fb_widen(((const fb_half *)p)[i])
                             : fb_widen(((const fb_bfloat *)p)[i]);
}
FB_DEVICE uint32_t gemm_bits(fb_dtype dtype, float x) {
    return dtype == FB_F32   ? __float_as_uint(x)
           : dtype == FB_F16 ? fb_narrow<fb_half>(x).bits
                             : fb_narrow<fb_bfloat>(x).bits;
}
FB_DEVICE float gemm_rounded(fb_dtype dtype, float x) {
    return dtype == FB_F32 ? x : dtype == FB_F16 ? fb_rounded<fb_half>(x) : fb_rounded<fb_bfloat>(x);
}

/* Elements i and, if `both`, i + 1. `paired`: one access may load both. */
FB_DEVICE float2 gemm_get_2(fb_dtype dtype, const void *p, int64_t i, bool both, bool paired) {
    if (both && paired) {
        if (dtype == FB_F32) return *(const float2 *)((const float *)p + i);
        uint32_t bits = *(const uint32_t *)((const uint16_t *)p + i);
        if (dtype == FB_F16)
            return make_float2(fb_widen(fb_half{(uint16_t)bits}), fb_widen(fb_half{(uint16_t)(bits >> 16)}));
        return make_float2(fb_widen(fb_bfloat{(uint16_t)bits}), fb_widen(fb_bfloat{(uint16_t)(bits >> 16)}));
    }
    return make_float2(gemm_get(dtype, p, i), both ? gemm_get(dtype, p, i + 1) : 0);
}
FB_DEVICE void gemm_put_2(fb_dtype dtype, void *p, int64_t i, bool both, bool paired, float2 v) {
    uint32_t x = gemm_bits(dtype, v.x), y = gemm_bits(dtype, v.y);
    if (dtype == FB_F32) {
        uint32_t *at = (uint32_t *)p + i;
        if (both && paired)
            *(uint2 *)at = make_uint2(x, y);
        else {
            at[0] = x;
            if (both) at[1] = y;
        }
    } else {
        uint16_t *at = (uint16_t *)p + i;
        if (both && paired)
            *(uint32_t *)at = x | y << 16;
        else {
            at[0] = (uint16_t)x;
            if (both) at[1] = (uint16_t)y;
        }
    }
}

/* ---- complete sums ---- */

/* What the plain linear and activation would have stored. */
FB_DEVICE float gemm_activated(fb_dtype dtype, fb_op_kind act, float v) {
    return gemm_rounded(dtype, fb_activate(act, gemm_rounded(dtype, v)));
}
/* ACTIVATED: gemm_activated, or a function that calls it. */
template <float (*ACTIVATED)(fb_dtype, fb_op_kind, float) = gemm_activated>
FB_DEVICE float2 gemm_finished(const gemm_job &job, const gemm_segment &s, int64_t n, bool both, float2 v) {
    if (s.bias) {
        v.x += gemm_get(s.bias_dtype, s.bias, n);
        if (both) v.y += gemm_get(s.bias_dtype, s.bias, n + 1);
    }
    return make_float2(ACTIVATED(job.dtype, s.act, v.x), ACTIVATED(job.dtype, s.act, v.y));
}

FB_HOST_DEV bool gemm_paired(fb_dtype dtype, const void *p, int64_t row) {
    return fb_aligned(p, dtype == FB_F32 ? 8 : 4) && row % 2 == 0;
}

/* What is stored, before rounding. v: the last part, finished; w: the first of two parts; r: the residual. */
FB_DEVICE float gemm_combined(const gemm_job &job, float v, float w, float r) {
    if (job.combine == FB_COMBINE_MUL) return w * v;
    if (job.combine == FB_COMBINE_ADD) return (job.parts == 2 ? gemm_rounded(job.dtype, w + v) : v) + r;
    return v;
}

/* What a complete pair of sums is combined with: the first of two parts, and the residual. */
struct gemm_operands {
    float2 first, residual;
};
/* `kept` false: the caller has the first part itself. */
FB_DEVICE gemm_operands gemm_operands_of(const gemm_job &job, const gemm_unit &unit, int p, int64_t row,
                                         int64_t n, bool kept = true) {
    const gemm_segment &s = job.segment[unit.segment + p];
    gemm_operands with = {make_float2(0, 0), make_float2(0, 0)};
    if (row >= job.rows || n >= s.n || p + 1 < job.parts) return with;
    const bool both = n + 1 < s.n;
    if (job.parts == 2 && kept)
        with.first = gemm_get_2(job.dtype, job.kept, row * s.n + n, both, s.n % 2 == 0);
    if (job.combine == FB_COMBINE_ADD)
        with.residual = gemm_get_2(job.dtype, job.residual, row * job.residual_row + n, both,
                                   gemm_paired(job.dtype, job.residual, job.residual_row));
    return with;
}

/* Stores the finished sums v of outputs n (even) and n + 1 of a row, for part p of a unit. If one launch
 * computes both parts of a unit, the same thread must finish both. */
FB_DEVICE void gemm_put_finished(const gemm_job &job, const gemm_unit &unit, int p, int64_t row, int64_t n,
                                 float2 v, const gemm_operands &with) {
    const gemm_segment &s = job.segment[unit.segment + p];
    const bool both = n + 1 < s.n;
    if (p + 1 < job.parts) {
        gemm_put_2(job.dtype, job.kept, row * s.n + n, both, s.n % 2 == 0, v);
        return;
    }
    gemm_put_2(job.dtype, unit.out, row * unit.out_row + n, both,
               gemm_paired(job.dtype, unit.out, unit.out_row),
               make_float2(gemm_combined(job, v.x, with.first.x, with.residual.x),
                           gemm_combined(job, v.y, with.first.y, with.residual.y)));
}
/* The same for sums that are not finished. */
FB_DEVICE void gemm_finish_with(const gemm_job &job, const gemm_unit &unit, int p, int64_t row, int64_t n,
                                float2 v, const gemm_operands &with) {
    const gemm_segment &s = job.segment[unit.segment + p];
    if (row >= job.rows || n >= s.n) return;
    gemm_put_finished(job, unit, p, row, n, gemm_finished(job, s, n, n + 1 < s.n, v), with);
}
FB_DEVICE void gemm_finish(const gemm_job &job, const gemm_unit &unit, int p, int64_t row, int64_t n,
                           float2 v) {
    gemm_finish_with(job, unit, p, row, n, v, gemm_operands_of(job, unit, p, row, n));
}

/* Finishes a warp's sums, 16 rows by 8 J columns from (row, n), in the tensor cores' layout. They go through
 * `smem`, GEMM_SMEM_FLOATS(J) floats of the warp's own, so that rows are stored whole and the code is there
 * once, not once a sum. */
#define GEMM_SMEM_FLOATS(J) (16 * (8 * (J) + 8))
template <int J>
FB_DEVICE void gemm_finish_rows(const gemm_job &job, const gemm_unit &unit, int p, int64_t row, int64_t n,
                                const float (*sums)[4], float *smem) {
    const int pitch = 8 * J + 8, lane = threadIdx.x % FB_WARP, across = 4 * J; /* lanes of a row */
    float *at = smem + lane / 4 * pitch + lane % 4 * 2;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < J; j++) {
        *(float2 *)(at + 8 * j) = make_float2(sums[j][0], sums[j][1]);
        *(float2 *)(at + 8 * j + 8 * pitch) = make_float2(sums[j][2], sums[j][3]);
    }
    __syncwarp();
#pragma unroll 1
    for (int r = lane / across; r < 16; r += FB_WARP / across)
        gemm_finish(job, unit, p, row + r, n + lane % across * 2,
                    *(const float2 *)(smem + r * pitch + lane % across * 2));
}

/* ---- copies ---- */

/* cp.async of `bytes` (4, 8 or 16) from global to shared memory; zeros if not `real`. */
template <int bytes> FB_DEVICE void gemm_copy(void *shared, const void *global, bool real) {
#ifdef FB_EMULATED
    if (((uintptr_t)shared | (uintptr_t)global) & (bytes - 1)) __builtin_trap(); /* as on the device */
    if (real)
        memcpy(shared, global, bytes);
    else
        memset(shared, 0, bytes);
#else
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    if constexpr (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global),
                     "r"(real ? 16 : 0));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(global), "n"(bytes),
                     "r"(real ? bytes : 0));
#endif
}

/* Waits until the oldest of stages - 1 groups of copies has arrived. */
#define GEMM_MAX_STAGES 8
FB_DEVICE void gemm_wait(int stages) {
    switch (stages) {
    case 8:
        return fb_copy_wait<6>();
    case 7:
        return fb_copy_wait<5>();
    case 6:
        return fb_copy_wait<4>();
    case 5:
        return fb_copy_wait<3>();
    case 4:
        return fb_copy_wait<2>();
    case 3:
        return fb_copy_wait<1>();
    default:
        return fb_copy_wait<0>();
    }
}

/* As many stages as let `blocks` blocks fit on a multiprocessor, and as a block may have. The device itself
 * takes a kilobyte of shared memory for each block. */
static inline int gemm_stages(const fb_cuda_limits *limits, int64_t stage_bytes, int blocks) {
    int64_t available = limits->blocks_shared / blocks - 1024;
    if (available > limits->shared_limit || limits->blocks_shared <= 0) available = limits->shared_limit;
    int64_t stages = available / stage_bytes;
    return stages > GEMM_MAX_STAGES ? GEMM_MAX_STAGES : stages < 2 ? 2 : (int)stages;
}

/* ---- tensor cores: g = lane / 4, t = lane % 4 ---- */

/* d = a b + (c for row g, c8 for row g + 8): 16 x 32 times 32 x 8 signed bytes. a[0], a[1]: rows g and g + 8,
 * columns 4 t to 4 t + 3; a[2], a[3]: the same, 16 columns further; b likewise. */
FB_DEVICE void gemm_mma_bytes(int *d, const uint32_t *a, const uint32_t *b, int c, int c8) {
#ifdef FB_EMULATED
    fb_emulated_mma_bytes(2, d, a, b, c, c8);
#else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %11, %11};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c), "r"(c8));
#endif
}

/* The same for 16 columns: d = a b + (c, c8). */
FB_DEVICE void gemm_mma_bytes_16(int *d, const uint32_t *a, uint32_t b, int c, int c8) {
#ifdef FB_EMULATED
    fb_emulated_mma_bytes(1, d, a, &b, c, c8);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %8, %8};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c), "r"(c8));
#endif
}

#endif
