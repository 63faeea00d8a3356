/* Normalising one row: shared by the norms and by the kernels that a norm is fused into, so that both give
 * the same bits, whatever the size of their blocks.
 *
 * The order of a row's sum depends on the element's number alone. Elements lie in chunks of 8; chunk c
 * belongs to virtual lane c % 256, which adds its elements one by one, in increasing order, to 0. The 256
 * sums are then added over v / 32, as ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), and what is left over v %
 * 32, by fb_warp_sum. So a block of 256 threads has a lane in each thread, a smaller one has several in each
 * (a warp: lanes t, t + 32, …), and of a larger one only the first 256 threads add. A lane without elements
 * is 0, which changes no sum: sums begin with +0 and so are never -0.
 *
 * The variance is taken of the differences from the mean, in a second pass, so that a large mean costs no
 * digits. */
#ifndef FB_BACKEND_CUDA_NORM_CUH
#define FB_BACKEND_CUDA_NORM_CUH

#include "backend/cuda/chunk.cuh"

#define FB_NORM_LANES 256
#define FB_NORM_ROOM  (2 * FB_NORM_LANES) /* floats of shared memory that fb_norm_stats takes */

struct fb_row_stats {
    float mean, scale;
};

/* ---- weights --------------------------------------------------------------------------------------------
 */

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

/* ---- statistics -----------------------------------------------------------------------------------------
 */

/* A lane's sum with one more chunk of `count` elements: of x, or of (x - center)^2. */
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

/* The sum of the 256 virtual lanes, of which thread t of a warp gives t, t + 32, …; in every thread of the
 * warp. */
FB_DEVICE float fb_norm_tree(const float *lanes) {
    return fb_warp_sum(((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                       ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7])));
}

/* The same where a block has written them to shared memory, after a __syncthreads. */
FB_DEVICE float fb_norm_tree_shared(const float *room) {
    float lanes[8];
#pragma unroll
    for (int k = 0; k < 8; k++) lanes[k] = room[threadIdx.x % FB_WARP + k * FB_WARP];
    return fb_norm_tree(lanes);
}

/* Elements 8 c to 8 c + 7 of a row of n; how many there are. */
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

/* Virtual lane `lane` of x [n]: its sum, or with `square` that of the squared differences from `center`.
 * WHOLE: x begins at a multiple of 16 bytes, and n is one of 8. */
template <bool WHOLE, class T>
FB_DEVICE float fb_norm_lane(const T *x, int n, int lane, bool square, float center) {
    bool fast = WHOLE || fb_aligned(x, 16);
    float sum = 0;
#pragma unroll 1
    for (int c = lane; c * FB_CHUNK < n; c += FB_NORM_LANES) {
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

/* 1 / n is known long before the sums are, which then wait for no division: the quotient, but for its last
 * digit at times. */
FB_DEVICE float fb_norm_inverse(int n) { return 1.0f / (float)n; }
FB_DEVICE float fb_norm_mean(float sum, int n, float inverse) {
    float mean = sum * inverse;
    return fmaf(fmaf(-mean, (float)n, sum), inverse, mean);
}
FB_DEVICE float fb_norm_scale(float square, float inverse, float eps) {
    return rsqrtf(fmaf(square, inverse, eps));
}

/* Mean (0 for rmsnorm) and scale of the row x [n], in global or shared memory, in every thread. All threads
 * of a block of whole warps come here, or its first THREADS (as for fb_sync). `room`: FB_NORM_ROOM floats of
 * shared memory, which may be used again, for another row too, after the next fb_sync. */
template <bool WHOLE, int THREADS, class T>
FB_DEVICE fb_row_stats fb_norm_stats(fb_op_kind norm, const T *x, int n, float eps, float *room) {
    int thread = (int)threadIdx.x, threads = THREADS ? THREADS : (int)blockDim.x;
    float mean = 0, inverse = fb_norm_inverse(n);
    if (norm == FB_OP_LAYERNORM) {
        for (int v = thread; v < FB_NORM_LANES; v += threads)
            room[v] = fb_norm_lane<WHOLE>(x, n, v, false, 0);
        fb_sync<THREADS>();
        mean = fb_norm_mean(fb_norm_tree_shared(room), n, inverse);
    }
    room += FB_NORM_LANES;
    for (int v = thread; v < FB_NORM_LANES; v += threads) room[v] = fb_norm_lane<WHOLE>(x, n, v, true, mean);
    fb_sync<THREADS>();
    return {mean, fb_norm_scale(fb_norm_tree_shared(room), inverse, eps)};
}

/* The same by one warp alone, without shared memory: one row to each warp of a block that has several. */
template <bool WHOLE, class T>
FB_DEVICE fb_row_stats fb_norm_stats_warp(fb_op_kind norm, const T *x, int n, float eps) {
    int thread = (int)threadIdx.x % FB_WARP;
    float lanes[8], mean = 0, inverse = fb_norm_inverse(n);
    if (norm == FB_OP_LAYERNORM) {
#pragma unroll
        for (int k = 0; k < 8; k++) lanes[k] = fb_norm_lane<WHOLE>(x, n, thread + k * FB_WARP, false, 0);
        mean = fb_norm_mean(fb_norm_tree(lanes), n, inverse);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) lanes[k] = fb_norm_lane<WHOLE>(x, n, thread + k * FB_WARP, true, mean);
    return {mean, fb_norm_scale(fb_norm_tree(lanes), inverse, eps)};
}

/* A normalised element, before it is rounded to the activation dtype. Adding -0 changes nothing, and one fmaf
 * for both norms needs no branch. */
FB_DEVICE float fb_norm_apply(fb_op_kind norm, float x, fb_row_stats stats, float w, float b) {
    float d = (x - stats.mean) * stats.scale;
    return fmaf(d, w, norm == FB_OP_LAYERNORM ? b : -0.0f);
}

#endif
