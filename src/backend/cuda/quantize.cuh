/* Blocks of 32 activations as 8-bit integers (fb_q8): shared by the quantize op and by the linears that
 * quantise on the way in, so that both give the same bits. */
#ifndef FB_BACKEND_CUDA_QUANTIZE_CUH
#define FB_BACKEND_CUDA_QUANTIZE_CUH

#include "backend/cuda/device.cuh"

#define FB_Q8_THREADS 4 /* neighbours of a warp share a block: eight elements each */

struct fb_eight {
    uint2 words; /* eight integers */
    float scale; /* of the block, in all its threads */
    int32_t sum; /* likewise */
};

/* The thread's eight elements; all threads of the warp come here. A block that is not finite gets the scale
 * NaN, which every product with it keeps, and integers 0. */
FB_DEVICE fb_eight fb_quantize_eight(const float *x) {
    float most = 0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        most = fmaxf(most, fabsf(x[i]));
        finite = finite && fabsf(x[i]) < INFINITY;
    }
    if (!finite) most = INFINITY;
    for (int step = FB_Q8_THREADS / 2; step; step >>= 1)
        most = fmaxf(most, __shfl_xor_sync(FB_ALL, most, step));
    finite = most < INFINITY;
    float inverse = finite && most >= FB_Q8_LEAST ? 127.0f / most : 0;
    fb_eight eight = {{0, 0}, finite ? most / 127.0f : NAN, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int q = __float2int_rn(finite ? x[i] * inverse : 0);
        eight.sum += q;
        (i < 4 ? eight.words.x : eight.words.y) |= (uint32_t)(q & 255) << (8 * (i % 4));
    }
    for (int step = FB_Q8_THREADS / 2; step; step >>= 1)
        eight.sum += __shfl_xor_sync(FB_ALL, eight.sum, step);
    return eight;
}

#endif
