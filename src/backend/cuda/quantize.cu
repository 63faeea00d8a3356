/* quantize: rows become blocks of 8-bit integers. A block has four threads. With a norm before it, a row is
 * read once and its normalised elements are never stored: a launch of 3 us less. */
#include "backend/cuda/norm.cuh"
#include "backend/cuda/quantize.cuh"
#include "backend/cuda/quantize.h"

#define THREADS 256

/* Stores one of the four parts of a block. A row may begin at any float. */
FB_DEVICE void put_eight(fb_q8 *to, int part, const fb_eight &eight) {
    uint32_t *words = (uint32_t *)to->q + 2 * part;
    words[0] = eight.words.x;
    words[1] = eight.words.y;
    if (part == 0) {
        to->scale = eight.scale;
        to->sum = eight.sum;
    }
}

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
    if (real) put_eight((fb_q8 *)(out + row * out_stride) + block, part, eight);
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

/* ---- after a norm ---- */

typedef struct norm_quantize_args {
    const void *x;
    int64_t x_stride;
    float *out;
    int64_t out_stride;
    const void *w, *b;
    fb_dtype w_dtype, b_dtype;
    fb_op_kind norm;
    float eps;
    int32_t n;
    bool early; /* weights may be loaded before the kernel before this one has ended */
} norm_quantize_args;

/* A block has a row. Thread t has chunks t, t + 256, …: a chain of norm.cuh. */
template <class T, int chunks>
__global__ void __launch_bounds__(FB_NORM_CHAINS) norm_quantize_rows(norm_quantize_args args) {
    constexpr int held = chunks <= 2 ? chunks : 0; /* weights that are loaded together with the row */
    __shared__ float smem[FB_NORM_SMEM];
    const int t = (int)threadIdx.x, count = args.n / FB_CHUNK;
    const T *x = (const T *)args.x + (int64_t)blockIdx.x * args.x_stride;
    float w[FB_CHUNK], b[FB_CHUNK], held_w[held + 1][FB_CHUNK], held_b[held + 1][FB_CHUNK];
    auto get_weights = [&] {
#pragma unroll
        for (int j = 0; j < held; j++)
            if (t + j * FB_NORM_CHAINS < count) {
                fb_norm_weight_8(args.w, args.w_dtype, (t + j * FB_NORM_CHAINS) * FB_CHUNK, held_w[j]);
                fb_norm_weight_8(args.b, args.b_dtype, (t + j * FB_NORM_CHAINS) * FB_CHUNK, held_b[j]);
            }
    };
    fb_let_next_start();
    if (args.early) get_weights();
    fb_wait_for_previous();
    fb_chunk<T> raw[chunks];
#pragma unroll
    for (int j = 0; j < chunks; j++)
        if (t + j * FB_NORM_CHAINS < count) raw[j].get(x + (t + j * FB_NORM_CHAINS) * FB_CHUNK);
    if (!args.early) get_weights();

    fb_row_stats stats = {0, 0};
    const float inverse = fb_norm_inverse(args.n);
#pragma unroll
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0 && args.norm != FB_OP_LAYERNORM) continue;
        float chain = 0, v[FB_CHUNK];
#pragma unroll
        for (int j = 0; j < chunks; j++) {
            if (t + j * FB_NORM_CHAINS >= count) continue;
            raw[j].widen(v);
            chain =
                pass ? fb_norm_add_square(chain, v, FB_CHUNK, stats.mean) : fb_norm_add(chain, v, FB_CHUNK);
        }
        smem[pass * FB_NORM_CHAINS + t] = chain;
        __syncthreads();
        const float sum = fb_norm_tree_shared(smem + pass * FB_NORM_CHAINS);
        if (pass)
            stats.scale = fb_norm_scale(sum, inverse, args.eps);
        else
            stats.mean = fb_norm_mean(sum, args.n, inverse);
    }

    fb_q8 *out = (fb_q8 *)(args.out + (int64_t)blockIdx.x * args.out_stride);
#pragma unroll
    for (int j = 0; j < chunks; j++) {
        const int at = t + j * FB_NORM_CHAINS;
        const bool real = at < count;
        float v[FB_CHUNK] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (real) {
            raw[j].widen(v);
            if (j >= held) {
                fb_norm_weight_8(args.w, args.w_dtype, at * FB_CHUNK, w);
                fb_norm_weight_8(args.b, args.b_dtype, at * FB_CHUNK, b);
            }
            const float *weight = j < held ? held_w[j < held ? j : 0] : w;
            const float *bias = j < held ? held_b[j < held ? j : 0] : b;
#pragma unroll
            for (int i = 0; i < FB_CHUNK; i++)
                v[i] = fb_rounded<T>(fb_norm_apply(args.norm, v[i], stats, weight[i], bias[i]));
        }
        const fb_eight eight = fb_quantize_eight(v); /* all threads take part in its shuffles */
        if (real) put_eight(out + at / FB_Q8_THREADS, at % FB_Q8_THREADS, eight);
    }
}

#define MOST_CHUNKS 8

bool fb_cuda_norm_quantize_fits(const fb_call *call) {
    const fb_view *x = &call->in[0];
    const int64_t n = call->weights[0].cols;
    return n % 32 == 0 && n <= MOST_CHUNKS * FB_NORM_CHAINS * FB_CHUNK && fb_aligned(x->data, 16) &&
           (call->rows == 1 || x->row_stride * fb_dtype_size(x->dtype) % 16 == 0) &&
           fb_aligned(call->weights[0].data, 16) && fb_aligned(call->weights[1].data, 16);
}

int fb_cuda_norm_quantize(const fb_call *call, const fb_cuda_context *given) {
    fb_cuda_context context = *given, *cx = &context;
    const fb_view *x = &call->in[0], *out = &call->out[0];
    const fb_weight *w = &call->weights[0], *b = &call->weights[1];
    norm_quantize_args args = {};
    args.x = x->data;
    args.x_stride = x->row_stride;
    args.out = (float *)out->data;
    args.out_stride = out->row_stride;
    args.w = w->data;
    args.w_dtype = w->dtype;
    args.b = call->attr.norm == FB_OP_LAYERNORM ? b->data : NULL;
    args.b_dtype = b->dtype;
    args.norm = call->attr.norm;
    args.eps = call->attr.eps;
    args.n = (int32_t)w->cols;
    args.early = cx->overlap;
    if (cx->late) cx->overlap = true; /* only weights are read early, and these only if that is allowed */
    const int64_t chunks = (args.n / FB_CHUNK + FB_NORM_CHAINS - 1) / FB_NORM_CHAINS;
    const dim3 rows((unsigned)call->rows), threads(FB_NORM_CHAINS);
    FB_FOR_TYPE(x->dtype, T,
                if (chunks == 1) return FB_LAUNCH(cx, rows, threads, 0, (norm_quantize_rows<T, 1>), args);
                if (chunks == 2) return FB_LAUNCH(cx, rows, threads, 0, (norm_quantize_rows<T, 2>), args);
                return FB_LAUNCH(cx, rows, threads, 0, (norm_quantize_rows<T, MOST_CHUNKS>), args));
    return 1; /* cudaErrorInvalidValue */
}
