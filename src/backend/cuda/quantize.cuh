/* Blocks of 32 activations as 8-bit integers (fb_q8): shared by the quantize op and by the linears that
 * quantise on the way in, so that both give the same bits. */
#ifndef FB_BACKEND_CUDA_QUANTIZE_CUH
#define FB_BACKEND_CUDA_QUANTIZE_CUH

#include "backend/cuda/device.cuh"

#define FB_Q8_THREADS 8 /* neighbours of a warp share a block: four elements each */

struct fb_quad {
    uint32_t word; /* four integers */
    float scale;   /* of the block, in all its threads */
    int32_t sum;   /* likewise */
};

/* The thread's four elements; all threads of the warp come here. A block that is not finite gets the scale
 * NaN, which every product with it keeps, and integers 0. */
FB_DEVICE fb_quad fb_quantize_quad(const float *x) {
    float most = 0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        most = fmaxf(most, fabsf(x[i]));
        finite = finite && fabsf(x[i]) < INFINITY;
    }
    if (!finite) most = INFINITY;
    for (int step = FB_Q8_THREADS / 2; step; step >>= 1)
        most = fmaxf(most, __shfl_xor_sync(FB_ALL, most, step));
    finite = most < INFINITY;
    float inverse = finite && most >= FB_Q8_LEAST ? 127.0f / most : 0;
    fb_quad quad = {0, finite ? most / 127.0f : NAN, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int q = __float2int_rn(finite ? x[i] * inverse : 0);
        quad.sum += q;
        quad.word |= (uint32_t)(q & 255) << (8 * i);
    }
    for (int step = FB_Q8_THREADS / 2; step; step >>= 1) quad.sum += __shfl_xor_sync(FB_ALL, quad.sum, step);
    return quad;
}

#endif
