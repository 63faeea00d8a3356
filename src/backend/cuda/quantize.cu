/* quantize: rows become blocks of 8-bit integers. A block has four threads. */
#include "backend/cuda/chunk.cuh"
#include "backend/cuda/quantize.cuh"

#define THREADS 256

template <class T>
__global__ void __launch_bounds__(THREADS) quantize_rows(const T *x, int64_t x_stride, float *out,
                                                         int64_t out_stride, int64_t blocks, int64_t total) {
    fb_let_next_start();
    fb_wait_for_previous();
    int64_t number = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / FB_Q8_THREADS;
    bool real = number < total;
    if (!real) number = total - 1; /* the thread still takes part in its warp's shuffles */
    int part = (int)threadIdx.x % FB_Q8_THREADS;
    int64_t row = number / blocks, block = number % blocks;
    const T *from = x + row * x_stride + 32 * block + 8 * part;
    float v[8];
    if (fb_aligned(from, 16)) {
        fb_load_8(from, v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = fb_widen(from[i]);
    }
    fb_eight eight = fb_quantize_eight(v);
    if (!real) return;
    fb_q8 *to = (fb_q8 *)(out + row * out_stride) + block;
    uint32_t *words = (uint32_t *)to->q + 2 * part; /* a row may begin at any float */
    words[0] = eight.words.x;
    words[1] = eight.words.y;
    if (part == 0) {
        to->scale = eight.scale;
        to->sum = eight.sum;
    }
}

int fb_cuda_quantize(const fb_call *call, const fb_cuda_context *cx) {
    const fb_view *x = &call->in[0], *out = &call->out[0];
    int64_t blocks = x->heads * x->width / 32, total = blocks * call->rows;
    int64_t grid = (total * FB_Q8_THREADS + THREADS - 1) / THREADS;
    int code = 1; /* cudaErrorInvalidValue */
    FB_FOR_TYPE(x->dtype, T,
                code = FB_LAUNCH(cx, dim3((unsigned)grid), dim3(THREADS), 0, quantize_rows<T>,
                                 (const T *)x->data, x->row_stride, (float *)out->data, out->row_stride,
                                 blocks, total));
    return code;
}
