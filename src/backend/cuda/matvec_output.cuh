/* The outputs of a matvec: adds partial sums, then bias, activation, combination and residual. */
#ifndef FB_BACKEND_CUDA_MATVEC_OUTPUT_CUH
#define FB_BACKEND_CUDA_MATVEC_OUTPUT_CUH

#include "backend/cuda/activation.cuh"
#include "backend/cuda/matvec_pipeline.cuh"

FB_DEVICE float mv_rounded(fb_dtype type, float x) {
    return type == FB_F32 ? x : type == FB_F16 ? fb_rounded<fb_half>(x) : fb_rounded<fb_bfloat>(x);
}
/* A load and its conversion are two functions: the load can be issued long before its value is needed. */
FB_DEVICE uint32_t mv_get(fb_dtype type, const void *p, int64_t i) {
    return type == FB_F32 ? ((const uint32_t *)p)[i] : ((const uint16_t *)p)[i];
}
FB_DEVICE float mv_widen(fb_dtype type, uint32_t bits) {
    return type == FB_F32   ? __uint_as_float(bits)
           : type == FB_F16 ? fb_widen(fb_half{(uint16_t)bits})
                            : fb_widen(fb_bfloat{(uint16_t)bits});
}
FB_DEVICE void mv_put(fb_dtype type, void *p, int64_t i, float x) {
    if (type == FB_F32)
        ((float *)p)[i] = x;
    else if (type == FB_F16)
        ((fb_half *)p)[i] = fb_narrow<fb_half>(x);
    else
        ((fb_bfloat *)p)[i] = fb_narrow<fb_bfloat>(x);
}

/* Adds `sums` partial sums: those of a piece, EACH, first. */
template <int EACH> FB_DEVICE float mv_add_pieces(const float *partial, int sums) {
    float total = -0.0f; /* plus x is x, also for x = -0 */
#pragma unroll 1
    for (int first = 0; first < sums; first += EACH) {
        float sum = partial[first];
#pragma unroll
        for (int i = 1; i < EACH; i++) sum += partial[first + i];
        total += sum;
    }
    return total;
}
/* The sum of a segment's output (sums.h). */
FB_DEVICE float mv_total(const float *partial, const mv_segment &seg) {
    return seg.piece_sums == FB_SUMS_CHAINS   ? mv_add_pieces<FB_SUMS_CHAINS>(partial, seg.sums)
           : seg.piece_sums == FB_SUMS_OCTETS ? mv_add_pieces<FB_SUMS_OCTETS>(partial, seg.sums)
                                              : mv_add_pieces<1>(partial, seg.sums);
}

/* ---- all outputs ---- */

/* An output: row `row` of segment s. A block's partial sums are [ms][plan.partials]; the output's begin at
 * `at` in each row. */
struct mv_output {
    int s, row, at; /* s -1: there is none */
};
/* The block's output number `o`. */
template <int R> FB_DEVICE mv_output mv_output_of(const mv_plan &plan, int o) {
    int at = 0;
#pragma unroll 1
    for (int s = 0; s < (plan.combined ? 1 : plan.segments); s++) {
        mv_share share = mv_share_of<R>(plan.seg[s]);
        int rows = share.end - share.first, sums_each = plan.combined ? plan.sums_each : plan.seg[s].sums_row;
        if (o < rows) return {s, share.first + o, at + o * sums_each};
        o -= rows;
        at += rows * sums_each;
    }
    return {-1, 0, 0};
}
template <int R> FB_DEVICE int mv_outputs(const mv_plan &plan) {
    int count = 0;
#pragma unroll 1
    for (int s = 0; s < (plan.combined ? 1 : plan.segments); s++) {
        mv_share share = mv_share_of<R>(plan.seg[s]);
        count += share.end - share.first;
    }
    return count;
}

/* What the plain linear and activation would have stored. */
FB_DEVICE float mv_finished(fb_dtype type, const mv_segment &seg, uint32_t bias, float sum) {
    if (seg.bias) sum += mv_widen(seg.bias_type, bias);
    sum = mv_rounded(type, sum);
    return seg.act == FB_OP_COUNT ? sum : mv_rounded(type, fb_activate(seg.act, sum));
}

/* What is added to an output's sums, unconverted. Biases can be loaded at any time, the residual only when
 * the previous kernel has ended. */
struct mv_addends {
    uint32_t bias[2], residual;
};
FB_DEVICE void mv_get_biases(const mv_plan &plan, const mv_output &output, mv_addends *addends) {
    const mv_segment &seg = plan.seg[output.s];
    if (seg.bias) addends->bias[0] = mv_get(seg.bias_type, seg.bias, output.row);
    if (plan.combined && plan.seg[1].bias)
        addends->bias[1] = mv_get(plan.seg[1].bias_type, plan.seg[1].bias, output.row);
}
FB_DEVICE void mv_get_residual(const mv_plan &plan, const mv_output &output, int m, mv_addends *addends) {
    if (plan.combine == FB_COMBINE_ADD)
        addends->residual = mv_get(plan.type, plan.residual, m * plan.residual_stride + output.row);
}

/* An output before it is rounded; v: the sum of its first segment. `type` is plan.type, as a constant where
 * the caller knows it. */
FB_DEVICE float mv_value(const mv_plan &plan, fb_dtype type, const mv_output &output, int m,
                         const float *partial, const mv_addends &addends, float v) {
    const mv_segment &seg = plan.seg[output.s];
    v = mv_finished(type, seg, addends.bias[0], v);
    if (plan.combined) {
        if (plan.combine == FB_COMBINE_MUL || plan.pair) {
            float other = plan.given ? plan.given[(int64_t)m * seg.rows + output.row]
                                     : mv_total(partial + seg.sums, plan.seg[1]);
            other = mv_finished(type, plan.seg[1], addends.bias[1], other);
            v = plan.combine == FB_COMBINE_MUL ? v * other : mv_rounded(type, v + other);
        }
        if (plan.combine == FB_COMBINE_ADD) v += mv_widen(type, addends.residual);
    }
    return v;
}

/* All outputs of the block. `addends`: of the thread's first one, for row 0 of x. */
template <int R> FB_DEVICE void mv_finish(const mv_plan &plan, const float *partial, mv_addends addends) {
    int outputs = mv_outputs<R>(plan), all = outputs * plan.ms;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < all; i += MV_THREADS) {
        int m = plan.ms == 1 ? 0 : i / outputs;
        mv_output output = mv_output_of<R>(plan, i - m * outputs);
        if (m > 0 || i >= MV_THREADS) {
            mv_get_biases(plan, output, &addends);
            mv_get_residual(plan, output, m, &addends);
        }
        const mv_segment &seg = plan.seg[output.s];
        const float *from = partial + m * plan.partials + output.at;
        float sum = mv_total(from, seg);
        if (plan.sums) /* the second launch finishes them */
            plan.sums[(int64_t)m * seg.rows + output.row] = sum;
        else
            mv_put(plan.type, seg.out, m * seg.out_stride + output.row,
                   mv_value(plan, plan.type, output, m, from, addends, sum));
    }
}

/* ---- the best output ---- */

struct mv_best {
    float value;
    int column;
};

/* The larger one; of equals, the first. NaN counts as the largest. */
FB_DEVICE mv_best mv_better(mv_best a, mv_best b) {
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    bool second = a_nan != b_nan                ? b_nan
                  : a_nan || a.value == b.value ? b.column < a.column
                                                : b.value > a.value;
    return second ? b : a;
}
FB_DEVICE mv_best mv_best_of_warp(mv_best best) {
    for (int offset = 16; offset; offset >>= 1) {
        mv_best other = {__shfl_xor_sync(FB_ALL, best.value, offset),
                         __shfl_xor_sync(FB_ALL, best.column, offset)};
        best = mv_better(best, other);
    }
    return best;
}

/* The best of the block's outputs for row m of x, which warp m looks for. */
template <int R> FB_DEVICE mv_best mv_best_of_block(const mv_plan &plan, const float *partial) {
    mv_best best = {-INFINITY, 0x7fffffff};
    const mv_segment &seg = plan.seg[0];
    mv_share share = mv_share_of<R>(seg);
    int m = (int)threadIdx.x / FB_WARP;
    if (m >= plan.ms) return best;
    partial += m * plan.partials;
    for (int row = share.first + (int)threadIdx.x % FB_WARP; row < share.end; row += FB_WARP)
        best = mv_better(
            best, {mv_rounded(plan.type, mv_total(partial + (row - share.first) * seg.sums_row, seg)), row});
    return best;
}

/* Each block stores its best. The last one to do so takes the best of all. */
FB_DEVICE void mv_best_of_all(const mv_plan &plan, mv_best best, int *shared) {
    int m = (int)threadIdx.x / FB_WARP, lane = (int)threadIdx.x % FB_WARP;
    if (m < plan.ms) {
        best = mv_best_of_warp(best);
        if (lane == 0) {
            plan.results[blockIdx.x * MV_MAX_ROWS + m] = make_float2(best.value, __int_as_float(best.column));
            __threadfence();
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        *shared = atomicAdd(plan.counter, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!*shared) return;
    if (m < plan.ms) {
        best = {-INFINITY, 0x7fffffff};
        for (int b = lane; b < (int)gridDim.x; b += FB_WARP) {
            float2 of = __ldcg(plan.results + b * MV_MAX_ROWS + m);
            best = mv_better(best, {of.x, __float_as_int(of.y)});
        }
        best = mv_best_of_warp(best);
        float *out = (float *)plan.seg[0].out + m * plan.seg[0].out_stride;
        if (lane == 0) {
            out[0] = best.value;
            out[1] = best.value != best.value ? -1.0f : (float)best.column;
        }
    }
    if (threadIdx.x == 0) *plan.counter = 0;
}

#endif
