/* Puts a caller's positions and numbers where the kernels of single ops read them (ops.h). */
#include "backend/cuda/device.cuh"
#include "backend/cuda/ops.h"

#define THREADS 128

__global__ void __launch_bounds__(THREADS) positions_kernel(const void *positions, bool wide, int64_t first,
                                                            int64_t last, int64_t count, fb_row *to) {
    fb_let_next_start();
    fb_wait_for_previous();
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= count) return;
    int64_t position = first + row;
    if (positions) position = wide ? ((const int64_t *)positions)[row] : ((const int32_t *)positions)[row];
    if (position > last) position = last;
    if (position < 0) position = 0;
    fb_row one = {};
    one.position = position;
    to[row] = one;
}

int fb_cuda_positions(const void *positions, bool wide, int64_t first, int64_t last, int64_t count,
                      fb_row *to, const fb_cuda_context *cx) {
    return FB_LAUNCH(cx, dim3((unsigned)((count + THREADS - 1) / THREADS)), dim3(THREADS), 0,
                     positions_kernel, positions, wide, first, last, count, to);
}

struct numbers {
    double of[FB_CUDA_NUMBERS];
};

__global__ void __launch_bounds__(FB_CUDA_NUMBERS) numbers_kernel(numbers from, int count, double *to) {
    fb_let_next_start();
    fb_wait_for_previous();
    if ((int)threadIdx.x < count) to[threadIdx.x] = from.of[threadIdx.x];
}

int fb_cuda_numbers(const double *from, int64_t count, double *to, const fb_cuda_context *cx) {
    numbers copy = {};
    for (int64_t i = 0; i < count && i < FB_CUDA_NUMBERS; i++) copy.of[i] = from[i];
    return FB_LAUNCH(cx, dim3(1), dim3(FB_CUDA_NUMBERS), 0, numbers_kernel, copy, (int)count, to);
}
