/* Blocks of 32 activations as 8-bit integers (fb_q8). The quantize op and the linears that quantise their
 * inputs share this, so that both give the same bits. */
#ifndef FB_BACKEND_CUDA_QUANTIZE_CUH
#define FB_BACKEND_CUDA_QUANTIZE_CUH

#include "backend/cuda/device.cuh"

#define FB_Q8_THREADS 4 /* neighbouring lanes that share a block: eight elements each */

struct fb_eight {
    uint2 words;      /* eight integers */
    float scale;      /* of the block, in all its threads */
    int32_t sum;      /* of the block, in all its threads */
    int32_t half_sum; /* of the half that the thread's elements belong to */
};

/* Packs four integers of 8 bits. */
FB_DEVICE uint32_t fb_pack_4(const int *q) {
#ifdef FB_EMULATED
    return (uint32_t)(q[0] & 255) | (uint32_t)(q[1] & 255) << 8 | (uint32_t)(q[2] & 255) << 16 |
           (uint32_t)q[3] << 24;
#else
    uint32_t high, all;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(q[3]), "r"(q[2]));
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(q[1]), "r"(q[0]), "r"(high));
    return all;
#endif
}

/* Quantises the thread's eight elements; all threads of the warp must call it. A block with an element that
 * is not finite gets the scale NaN, which makes every product with it NaN, and integers 0. */
FB_DEVICE fb_eight fb_quantize_eight(const float *x) {
    float max_abs = 0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        max_abs = fmaxf(max_abs, fabsf(x[i]));
        finite = finite && fabsf(x[i]) < INFINITY;
    }
    if (!finite) max_abs = INFINITY;
    for (int offset = FB_Q8_THREADS / 2; offset; offset >>= 1)
        max_abs = fmaxf(max_abs, __shfl_xor_sync(FB_ALL, max_abs, offset));
    finite = max_abs < INFINITY;
    float inverse = finite && max_abs >= FB_Q8_LEAST ? 127.0f / max_abs : 0;
    fb_eight eight = {{0, 0}, finite ? max_abs / 127.0f : NAN, 0, 0};
    int q[8]; /* NaN converts to 0, and so does a product with an inverse of 0 */
#pragma unroll
    for (int i = 0; i < 8; i++) q[i] = __float2int_rn(x[i] * inverse);
    eight.words = make_uint2(fb_pack_4(q), fb_pack_4(q + 4));
    eight.sum = __dp4a((int)eight.words.x, 0x01010101, __dp4a((int)eight.words.y, 0x01010101, 0));
    eight.half_sum = eight.sum + __shfl_xor_sync(FB_ALL, eight.sum, 1);
    eight.sum = eight.half_sum + __shfl_xor_sync(FB_ALL, eight.half_sum, 2);
    return eight;
}

#endif
