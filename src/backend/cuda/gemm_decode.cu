/* What a prompt's products with quantised weights need: weights as the floats that they stand for, and
 * quantised rows likewise. The products are then those of floats: integer products would scale and add after
 * every 32 columns, which takes four times as long as the products themselves. */
#include "backend/cuda/chunk.cuh"
#include "backend/cuda/gemm.cuh"
#include "backend/cuda/records.cuh"

#define THREADS 256

/* ---- weights ---- */

struct decode_args {
    const uint8_t *data;
    const fb_half *scales;          /* of Q8_0 and Q4_0, where they are no records */
    int64_t first, rows, row_bytes; /* first: the row that becomes row 0 */
    int chunks;                     /* of 32 columns, of a row */
};

/* Elements [8 eighth, 8 eighth + 8) of a chunk of a row. */
template <fb_dtype D, bool records>
FB_DEVICE void decode_eight(const decode_args &args, int64_t row, int chunk, int eighth, float *to) {
    if (records) {
        constexpr fb_record_type t = fb_record_type_of(D);
        const fb_record_of of = fb_record_find(t, args.data + row * args.row_bytes, args.chunks, &chunk);
        return fb_record_eight(t, fb_record_at(t, of.record, of.count, chunk), eighth, to);
    }
    const int64_t block = row * args.chunks + chunk;
    const bool wide = D == FB_Q8_0;
    const uint2 v =
        *(const uint2 *)(args.data + (wide ? block * 32 + 8 * eighth : block * 16 + eighth % 2 * 8));
    const float scale = fb_widen(args.scales[block]);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t byte = (i < 4 ? v.x : v.y) >> 8 * (i % 4);
        to[i] = scale * (float)(wide ? (int)(int8_t)byte : (int)(byte >> eighth / 2 * 4 & 15) - 8);
    }
}

template <fb_dtype D, bool records, class T>
__global__ void __launch_bounds__(THREADS) decode_kernel(decode_args args, T *to) {
    fb_let_next_start();
    fb_wait_for_previous();
    const int e = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (e >= args.chunks * 4) return;
    for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
        float v[8];
        decode_eight<D, records>(args, args.first + row, e / 4, e % 4, v);
        fb_store_8(to + (row * args.chunks * 4 + e) * 8, v);
    }
}

template <class T>
static int decode(const fb_weight *w, int64_t first, int64_t count, T *to, const fb_cuda_context *cx) {
    decode_args args = {(const uint8_t *)w->data, NULL, first, count, 0, (int)(w->cols / 32)};
    const int across = (args.chunks * 4 + THREADS - 1) / THREADS, some = 16 * cx->limits->sms / across + 1;
    dim3 grid((unsigned)across, (unsigned)(count < some ? count : some));
    if (w->packed) {
        const bool wide = w->dtype == FB_Q8_0;
        args.scales =
            (const fb_half *)(const void *)(args.data + w->rows * (w->cols / 32) * (wide ? 32 : 16));
        return wide ? FB_LAUNCH(cx, grid, dim3(THREADS), 0, (decode_kernel<FB_Q8_0, false, T>), args, to)
                    : FB_LAUNCH(cx, grid, dim3(THREADS), 0, (decode_kernel<FB_Q4_0, false, T>), args, to);
    }
    args.row_bytes = fb_record_row_bytes(w->dtype, w->cols);
    switch (w->dtype) {
#define DECODE(D)                                                                                            \
    case D:                                                                                                  \
        return FB_LAUNCH(cx, grid, dim3(THREADS), 0, (decode_kernel<D, true, T>), args, to);
        FB_EACH_RECORD_TYPE(DECODE)
#undef DECODE
    default:
        return 1; /* cudaErrorInvalidValue */
    }
}

int gemm_decode_weights(const fb_weight *w, int64_t first, int64_t count, fb_dtype type, void *to,
                        const fb_cuda_context *cx) {
    FB_FOR_TYPE(type, T, return decode(w, first, count, (T *)to, cx));
    return 1; /* cudaErrorInvalidValue */
}

/* ---- rows ---- */

template <class T>
__global__ void __launch_bounds__(THREADS)
    decode_rows(const float *x, int64_t x_stride, T *to, int64_t blocks, int64_t count) {
    fb_let_next_start();
    fb_wait_for_previous();
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < count;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t row = e / (blocks * 4), in = e - row * blocks * 4;
        const fb_q8 *block = (const fb_q8 *)(x + row * x_stride) + in / 4;
        const uint2 q = *(const uint2 *)(block->q + in % 4 * 8);
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = (float)(int8_t)((i < 4 ? q.x : q.y) >> 8 * (i % 4)) * block->scale;
        fb_store_8(to + e * 8, v);
    }
}

int gemm_decode_rows(const fb_view *x, int64_t rows, int64_t cols, fb_dtype type, void *to,
                     const fb_cuda_context *cx) {
    const int64_t count = rows * (cols / 8), grid = (count + THREADS - 1) / THREADS;
    const int64_t some = 16 * (int64_t)cx->limits->sms;
    FB_FOR_TYPE(type, T,
                return FB_LAUNCH(cx, dim3((unsigned)(grid < some ? grid : some)), dim3(THREADS), 0,
                                 decode_rows<T>, (const float *)x->data, x->row_stride, (T *)to, cols / 32,
                                 count));
    return 1; /* cudaErrorInvalidValue */
}
