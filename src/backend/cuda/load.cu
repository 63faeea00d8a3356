#include "backend/cuda/load.h"

#include "backend/cuda/device.cuh"

#define THREADS 256

/* A thread moves two bytes: a block has no larger alignment, and a warp reads 64 bytes in a row. */
__global__ void __launch_bounds__(THREADS)
    split_kernel(const uint16_t *blocks, int64_t words, int each, uint16_t *quants, uint16_t *scales) {
    fb_let_next_start();
    fb_wait_for_previous();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < words;
         i += (int64_t)gridDim.x * THREADS) {
        int64_t block = i / each;
        int at = (int)(i % each);
        if (at == 0)
            scales[block] = blocks[i];
        else
            quants[block * (each - 1) + at - 1] = blocks[i];
    }
}

int fb_cuda_split_blocks(const uint8_t *blocks, int64_t count, int quants, uint8_t *to_quants,
                         uint8_t *to_scales, const fb_cuda_context *cx) {
    const int each = quants / 2 + 1;
    const int64_t words = count * each, most = 16 * (int64_t)cx->limits->sms;
    if (count == 0) return 0;
    int64_t grid = (words + THREADS - 1) / THREADS;
    return FB_LAUNCH(cx, dim3((unsigned)(grid < most ? grid : most)), dim3(THREADS), 0, split_kernel,
                     (const uint16_t *)(const void *)blocks, words, each, (uint16_t *)(void *)to_quants,
                     (uint16_t *)(void *)to_scales);
}
