/* Normalising one row. The norm ops and the kernels with a fused norm share these functions, so that both
 * give the same bits, whatever the size of their blocks.
 *
 * The order of a row's sum depends only on the elements' numbers. There are 256 chains. Elements lie in
 * chunks of 8; chunk c belongs to chain c % 256, which adds its elements one by one, in increasing order, to
 * 0. The 256 sums v are then added over v / 32, as ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), and the
 * remaining 32 by fb_warp_sum. In a block of 256 threads each thread has one chain. In a smaller block a
 * thread has several (in a warp: t, t + 32, …). In a larger one only the first 256 threads add. A chain
 * without elements is 0, which changes no sum: sums begin with +0 and so are never -0.
 *
 * The variance is computed from the differences from the mean, in a second pass, so that a large mean costs
 * no digits. */
#ifndef FB_BACKEND_CUDA_NORM_CUH
#define FB_BACKEND_CUDA_NORM_CUH

#include "backend/cuda/chunk.cuh"

#define FB_NORM_CHAINS 256
#define FB_NORM_SMEM   (2 * FB_NORM_CHAINS) /* floats of shared memory that fb_norm_stats takes */

struct fb_row_stats {
    float mean, scale;
};

/* ---- weights ---- */

/* Element i of a norm's weight or bias (of any float type); 0 where it is absent. */
FB_DEVICE float fb_norm_weight(const void *data, fb_dtype dtype, int64_t i) {
    if (!data) return 0;
    if (dtype == FB_F32) return ((const float *)data)[i];
    return dtype == FB_F16 ? fb_widen(((const fb_half *)data)[i]) : fb_widen(((const fb_bfloat *)data)[i]);
}
FB_DEVICE float fb_norm_weight(const fb_weight &w, int64_t i) { return fb_norm_weight(w.data, w.dtype, i); }

/* Elements i to i + 7, i being a multiple of 8: weights begin at a multiple of 256 bytes. */
FB_DEVICE void fb_norm_weight_8(const void *data, fb_dtype dtype, int64_t i, float *x) {
    if (!data)
        for (int k = 0; k < FB_CHUNK; k++) x[k] = 0;
    else if (dtype == FB_F32)
        fb_load_8((const float *)data + i, x);
    else if (dtype == FB_F16)
        fb_load_8((const fb_half *)data + i, x);
    else
        fb_load_8((const fb_bfloat *)data + i, x);
}

/* ---- statistics ---- */

/* A chain's sum with one more chunk of `count` elements: of x, or of (x - center)^2. */
FB_DEVICE float fb_norm_add(float sum, const float *x, int count) {
#pragma unroll
    for (int k = 0; k < FB_CHUNK; k++)
        if (k < count) sum += x[k];
    return sum;
}
FB_DEVICE float fb_norm_add_square(float sum, const float *x, int count, float center) {
#pragma unroll
    for (int k = 0; k < FB_CHUNK; k++)
        if (k < count) {
            float d = x[k] - center;
            sum = fmaf(d, d, sum);
        }
    return sum;
}

/* The sum of the 256 chains, in every thread of the warp. Thread t gives chains t, t + 32, … */
FB_DEVICE float fb_norm_tree(const float *chains) {
    return fb_warp_sum(((chains[0] + chains[1]) + (chains[2] + chains[3])) +
                       ((chains[4] + chains[5]) + (chains[6] + chains[7])));
}

/* The same, when the block has written the chains' sums to shared memory and synchronised. */
FB_DEVICE float fb_norm_tree_shared(const float *smem) {
    float chains[8];
#pragma unroll
    for (int k = 0; k < 8; k++) chains[k] = smem[threadIdx.x % FB_WARP + k * FB_WARP];
    return fb_norm_tree(chains);
}

/* Loads elements 8 c to 8 c + 7 of a row of n; zeros beyond. Returns how many there are. */
template <class T> FB_DEVICE int fb_norm_chunk(const T *x, int n, int c, bool fast, float *to) {
    int count = n - c * FB_CHUNK;
    if (fast && count >= FB_CHUNK) {
        fb_load_8(x + (int64_t)c * FB_CHUNK, to);
        return FB_CHUNK;
    }
#pragma unroll
    for (int k = 0; k < FB_CHUNK; k++) to[k] = k < count ? fb_widen(x[(int64_t)c * FB_CHUNK + k]) : 0;
    return count < FB_CHUNK ? count : FB_CHUNK;
}

/* Chain `chain` of the row x [n]: its sum, or with `square` the sum of squared differences from `center`.
 * WHOLE: x begins at a multiple of 16 bytes, and n is a multiple of 8. */
template <bool WHOLE, class T>
FB_DEVICE float fb_norm_chain(const T *x, int n, int chain, bool square, float center) {
    bool fast = WHOLE || fb_aligned(x, 16);
    float sum = 0;
#pragma unroll 1
    for (int c = chain; c * FB_CHUNK < n; c += FB_NORM_CHAINS) {
        float v[FB_CHUNK];
        int count = FB_CHUNK;
        if (WHOLE)
            fb_load_8(x + (int64_t)c * FB_CHUNK, v);
        else
            count = fb_norm_chunk(x, n, c, fast, v);
        sum = square ? fb_norm_add_square(sum, v, count, center) : fb_norm_add(sum, v, count);
    }
    return sum;
}

/* 1 / n is computed long before the sums are known, so that no division follows them. The result is the
 * quotient, or sometimes differs from it in the last digit. */
FB_DEVICE float fb_norm_inverse(int n) { return 1.0f / (float)n; }
FB_DEVICE float fb_norm_mean(float sum, int n, float inverse) {
    float mean = sum * inverse;
    return fmaf(fmaf(-mean, (float)n, sum), inverse, mean);
}
FB_DEVICE float fb_norm_scale(float square, float inverse, float eps) {
    return rsqrtf(fmaf(square, inverse, eps));
}

/* Mean (0 for rmsnorm) and scale of the row x [n], which is in global or shared memory; in every thread. All
 * threads of a block of whole warps must call it, or its first THREADS (as for fb_sync). `smem`: FB_NORM_SMEM
 * floats of shared memory, which may be used again, for another row too, after the next fb_sync. */
template <bool WHOLE, int THREADS, class T>
FB_DEVICE fb_row_stats fb_norm_stats(fb_op_kind norm, const T *x, int n, float eps, float *smem) {
    int thread = (int)threadIdx.x, threads = THREADS ? THREADS : (int)blockDim.x;
    float mean = 0, inverse = fb_norm_inverse(n);
    if (norm == FB_OP_LAYERNORM) {
        for (int v = thread; v < FB_NORM_CHAINS; v += threads)
            smem[v] = fb_norm_chain<WHOLE>(x, n, v, false, 0);
        fb_sync<THREADS>();
        mean = fb_norm_mean(fb_norm_tree_shared(smem), n, inverse);
    }
    smem += FB_NORM_CHAINS;
    for (int v = thread; v < FB_NORM_CHAINS; v += threads)
        smem[v] = fb_norm_chain<WHOLE>(x, n, v, true, mean);
    fb_sync<THREADS>();
    return {mean, fb_norm_scale(fb_norm_tree_shared(smem), inverse, eps)};
}

/* The same by one warp alone, without shared memory: each warp of a block can have its own row. */
template <bool WHOLE, class T>
FB_DEVICE fb_row_stats fb_norm_stats_warp(fb_op_kind norm, const T *x, int n, float eps) {
    int thread = (int)threadIdx.x % FB_WARP;
    float chains[8], mean = 0, inverse = fb_norm_inverse(n);
    if (norm == FB_OP_LAYERNORM) {
#pragma unroll
        for (int k = 0; k < 8; k++) chains[k] = fb_norm_chain<WHOLE>(x, n, thread + k * FB_WARP, false, 0);
        mean = fb_norm_mean(fb_norm_tree(chains), n, inverse);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) chains[k] = fb_norm_chain<WHOLE>(x, n, thread + k * FB_WARP, true, mean);
    return {mean, fb_norm_scale(fb_norm_tree(chains), inverse, eps)};
}

/* A normalised element, before it is rounded to the activation dtype. rmsnorm adds -0, which changes nothing:
 * one fmaf for both norms needs no branch. */
FB_DEVICE float fb_norm_apply(fb_op_kind norm, float x, fb_row_stats stats, float w, float b) {
    float d = (x - stats.mean) * stats.scale;
    return fmaf(d, w, norm == FB_OP_LAYERNORM ? b : -0.0f);
}

#endif
