/* layernorm, rmsnorm, and add_norm, the residual additions with the norms that follow. A row is read once,
 * into registers: all that memory sees is each input once and each output once. */
#include "backend/cuda/norm.cuh"

/* y[k] = norm(x) with weights k, where x = in[0], or in[0] + in[1], or (in[0] + in[1]) + in[2], which then is
 * stored. */
typedef struct norm_args {
    const void *in[3];
    int64_t in_stride[3];
    void *sum; /* NULL: not stored */
    int64_t sum_stride;
    void *y[2]; /* NULL: no such norm */
    int64_t y_stride[2];
    const void *w[2], *b[2];
    fb_dtype w_dtype[2], b_dtype[2];
    int64_t rows;
    int32_t n;
    fb_op_kind norm;
    float eps;
} norm_args;

FB_DEVICE void prefetch(const void *p) {
#ifndef FB_EMULATED
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
    (void)p;
#endif
}

FB_DEVICE fb_dtype dtype_of(const float *) { return FB_F32; }
FB_DEVICE fb_dtype dtype_of(const fb_half *) { return FB_F16; }
FB_DEVICE fb_dtype dtype_of(const fb_bfloat *) { return FB_BF16; }

/* Norm k of a thread's chunks x of a row to y [n]; the weights are Ws. */
template <class T, class W, int threads, int chunks>
FB_DEVICE void put_norm(const norm_args &args, int k, const float (*x)[FB_CHUNK], fb_row_stats stats, T *y) {
    const W *weight = (const W *)args.w[k], *bias = (const W *)args.b[k];
#pragma unroll
    for (int j = 0; j < chunks; j++) {
        const int at = ((int)threadIdx.x % threads + j * threads) * FB_CHUNK;
        if (at >= args.n) continue;
        fb_chunk<W> raw_w, raw_b = {};
        float w[FB_CHUNK], b[FB_CHUNK], v[FB_CHUNK];
        raw_w.get_weight(weight + at);
        if (bias) raw_b.get_weight(bias + at);
        raw_w.widen(w);
        raw_b.widen(b);
#pragma unroll
        for (int i = 0; i < FB_CHUNK; i++) v[i] = fb_norm_apply(args.norm, x[j][i], stats, w[i], b[i]);
        fb_store_8(y + at, v);
    }
}

/* The same with weights of any types. */
template <class T, int threads, int chunks>
FB_DEVICE void put_norm_any(const norm_args &args, int k, const float (*x)[FB_CHUNK], fb_row_stats stats,
                            T *y) {
#pragma unroll
    for (int j = 0; j < chunks; j++) {
        const int at = ((int)threadIdx.x % threads + j * threads) * FB_CHUNK;
        if (at >= args.n) continue;
        float w[FB_CHUNK], b[FB_CHUNK], v[FB_CHUNK];
        fb_norm_weight_8(args.w[k], args.w_dtype[k], at, w);
        fb_norm_weight_8(args.b[k], args.b_dtype[k], at, b);
#pragma unroll
        for (int i = 0; i < FB_CHUNK; i++) v[i] = fb_norm_apply(args.norm, x[j][i], stats, w[i], b[i]);
        fb_store_8(y + at, v);
    }
}

/* `terms`: 1, or 3 for two or three of them. Threads of a row: a warp (four rows to a block), or a block of
 * 128 or 256. Thread t has chunks t, t + threads, …, `chunks` of them at most; they belong to the virtual
 * lanes of norm.cuh that it gives. */
template <class T, int terms, int threads, int chunks>
__global__ void __launch_bounds__(threads < 128 ? 128 : threads) norm_fast(norm_args args) {
    constexpr int lanes = FB_NORM_LANES / threads; /* virtual ones of a thread */
    __shared__ float room[FB_NORM_ROOM];
    fb_let_next_start();
    const int t = (int)threadIdx.x % threads, count = args.n / FB_CHUNK;
    /* With few rows, what a row waits for is memory's latency, and the weights can be fetched before the
     * wait. */
    if (threads == FB_NORM_LANES && gridDim.x <= 16)
#pragma unroll
        for (int j = 0; j < chunks; j++)
            if (t + j * threads < count)
                for (int k = 0; k < 2; k++) {
                    int64_t at = (int64_t)(t + j * threads) * FB_CHUNK;
                    if (args.y[k])
                        prefetch((const char *)args.w[k] + at * (args.w_dtype[k] == FB_F32 ? 4 : 2));
                    if (args.y[k] && args.b[k])
                        prefetch((const char *)args.b[k] + at * (args.b_dtype[k] == FB_F32 ? 4 : 2));
                }
    fb_wait_for_previous();
    const int64_t row = threads == FB_WARP
                            ? (int64_t)blockIdx.x * (blockDim.x / FB_WARP) + threadIdx.x / FB_WARP
                            : blockIdx.x;
    if (row >= args.rows) return; /* only whole warps that have a row of their own */

    fb_chunk<T> raw[terms][chunks];
    float x[chunks][FB_CHUNK];
#pragma unroll
    for (int k = 0; k < terms; k++)
#pragma unroll
        for (int j = 0; j < chunks; j++)
            if (t + j * threads < count && (k < 2 || args.in[k]))
                raw[k][j].get((const T *)args.in[k] + row * args.in_stride[k] + (t + j * threads) * FB_CHUNK);
#pragma unroll
    for (int j = 0; j < chunks; j++)
        if (t + j * threads < count) {
            raw[0][j].widen(x[j]);
            if (terms > 1) {
#pragma unroll
                for (int k = 1; k < terms; k++) {
                    if (k == 2 && !args.in[2]) break;
                    float more[FB_CHUNK];
                    raw[k][j].widen(more);
#pragma unroll
                    for (int i = 0; i < FB_CHUNK; i++) x[j][i] = fb_rounded<T>(x[j][i] + more[i]);
                }
                fb_store_8((T *)args.sum + row * args.sum_stride + (t + j * threads) * FB_CHUNK, x[j]);
            }
        }

    fb_row_stats stats = {0, 0};
    const float inverse = fb_norm_inverse(args.n);
#pragma unroll
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0 && args.norm != FB_OP_LAYERNORM) continue;
        float sums[lanes < 8 ? 8 : lanes] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < chunks; j++)
            if (t + j * threads < count)
                sums[j % lanes] = pass == 0 ? fb_norm_add(sums[j % lanes], x[j], FB_CHUNK)
                                            : fb_norm_add_square(sums[j % lanes], x[j], FB_CHUNK, stats.mean);
        float sum;
        if (threads == FB_WARP) {
            sum = fb_norm_tree(sums);
        } else {
#pragma unroll
            for (int k = 0; k < lanes; k++) room[pass * FB_NORM_LANES + t + k * threads] = sums[k];
            __syncthreads();
            sum = fb_norm_tree_shared(room + pass * FB_NORM_LANES);
        }
        if (pass == 0)
            stats.mean = fb_norm_mean(sum, args.n, inverse);
        else
            stats.scale = fb_norm_scale(sum, inverse, args.eps);
    }

    for (int k = 0; k < 2; k++) {
        if (!args.y[k]) continue;
        T *y = (T *)args.y[k] + row * args.y_stride[k];
        const fb_dtype w = args.w_dtype[k], b = args.b[k] ? args.b_dtype[k] : w;
        if (w == b && w == dtype_of((T *)NULL))
            put_norm<T, T, threads, chunks>(args, k, x, stats, y);
        else if (w == b && w == FB_F32)
            put_norm<T, float, threads, chunks>(args, k, x, stats, y);
        else
            put_norm_any<T, threads, chunks>(args, k, x, stats, y);
    }
}

/* Any width, any alignment: the row is read again for each pass. A thread reads nothing but what it wrote
 * itself. */
template <class T> __global__ void __launch_bounds__(FB_NORM_LANES) norm_any(norm_args args) {
    __shared__ float room[FB_NORM_ROOM];
    fb_let_next_start();
    fb_wait_for_previous();
    const int64_t row = blockIdx.x;
    const T *in[3], *x;
    for (int k = 0; k < 3; k++) in[k] = args.in[k] ? (const T *)args.in[k] + row * args.in_stride[k] : NULL;
    x = in[0];
    if (args.sum) {
        T *sum = (T *)args.sum + row * args.sum_stride;
        for (int c = (int)threadIdx.x; c * FB_CHUNK < args.n; c += FB_NORM_LANES)
            for (int i = c * FB_CHUNK; i < args.n && i < (c + 1) * FB_CHUNK; i++) {
                float v = fb_widen(in[0][i]) + fb_widen(in[1][i]);
                if (in[2]) v = fb_rounded<T>(v) + fb_widen(in[2][i]);
                sum[i] = fb_narrow<T>(v);
            }
        x = sum;
    }
    fb_row_stats stats = fb_norm_stats<false, 0>(args.norm, x, args.n, args.eps, room);
    for (int c = (int)threadIdx.x; c * FB_CHUNK < args.n; c += FB_NORM_LANES)
        for (int i = c * FB_CHUNK; i < args.n && i < (c + 1) * FB_CHUNK; i++) {
            float v = fb_widen(x[i]); /* before either is written: y may lie where x did */
            for (int k = 0; k < 2; k++)
                if (args.y[k])
                    ((T *)args.y[k])[row * args.y_stride[k] + i] = fb_narrow<T>(
                        fb_norm_apply(args.norm, v, stats, fb_norm_weight(args.w[k], args.w_dtype[k], i),
                                      fb_norm_weight(args.b[k], args.b_dtype[k], i)));
        }
}

template <class T, int terms> static int launch_fast(const fb_cuda_context *cx, const norm_args &args) {
    /* Many rows: what counts is bytes in flight, and a small block waits less for itself. Few: threads. */
    const bool many = args.rows > 4 * cx->limits->sms;
    const int count = args.n / FB_CHUNK;
    const dim3 rows((unsigned)args.rows), quarter((unsigned)((args.rows + 3) / 4));
    if (many && count <= 128) return FB_LAUNCH(cx, quarter, dim3(128), 0, (norm_fast<T, terms, 32, 4>), args);
    if (count <= 256) return FB_LAUNCH(cx, rows, dim3(256), 0, (norm_fast<T, terms, 256, 1>), args);
    if (many && count <= 384) return FB_LAUNCH(cx, rows, dim3(128), 0, (norm_fast<T, terms, 128, 3>), args);
    if (many && count <= 512) return FB_LAUNCH(cx, rows, dim3(128), 0, (norm_fast<T, terms, 128, 4>), args);
    if (count <= 512) return FB_LAUNCH(cx, rows, dim3(256), 0, (norm_fast<T, terms, 256, 2>), args);
    if (count <= 1024) return FB_LAUNCH(cx, rows, dim3(256), 0, (norm_fast<T, terms, 256, 4>), args);
    return FB_LAUNCH(cx, rows, dim3(256), 0, (norm_fast<T, terms, 256, 8>), args);
}

#define WIDEST (FB_NORM_LANES * FB_CHUNK * 8)

static bool fits(const void *data, int64_t stride, int64_t rows, fb_dtype dtype) {
    return fb_aligned(data, 16) && (rows == 1 || stride * fb_dtype_size(dtype) % 16 == 0);
}

static int launch(const fb_cuda_context *cx, fb_dtype dtype, const norm_args &args, int terms) {
    bool fast = args.n % FB_CHUNK == 0 && args.n <= WIDEST;
    for (int k = 0; k < terms; k++) fast = fast && fits(args.in[k], args.in_stride[k], args.rows, dtype);
    if (args.sum) fast = fast && fits(args.sum, args.sum_stride, args.rows, dtype);
    for (int k = 0; k < 2; k++)
        if (args.y[k])
            fast = fast && fits(args.y[k], args.y_stride[k], args.rows, dtype) && fb_aligned(args.w[k], 16) &&
                   fb_aligned(args.b[k], 16);
    FB_FOR_TYPE(
        dtype, T,
        if (!fast) return FB_LAUNCH(cx, dim3((unsigned)args.rows), dim3(FB_NORM_LANES), 0, norm_any<T>, args);
        return terms == 1 ? launch_fast<T, 1>(cx, args) : launch_fast<T, 3>(cx, args));
    return 1; /* cudaErrorInvalidValue */
}

static void set_norm(norm_args *args, int k, const fb_view *y, const fb_weight *w, const fb_weight *b) {
    args->y[k] = y->data;
    args->y_stride[k] = y->row_stride;
    args->w[k] = w->data;
    args->w_dtype[k] = w->dtype;
    args->b[k] = args->norm == FB_OP_LAYERNORM ? b->data : NULL;
    args->b_dtype[k] = b->dtype;
}

static int norm(const fb_call *call, const fb_cuda_context *cx, fb_op_kind kind) {
    norm_args args = {};
    args.in[0] = call->in[0].data;
    args.in_stride[0] = call->in[0].row_stride;
    args.rows = call->rows;
    args.n = (int32_t)call->weights[0].cols;
    args.norm = kind;
    args.eps = call->attr.eps;
    set_norm(&args, 0, &call->out[0], &call->weights[0], &call->weights[1]);
    return launch(cx, call->out[0].dtype, args, 1);
}

int fb_cuda_layernorm(const fb_call *call, const fb_cuda_context *cx) {
    return norm(call, cx, FB_OP_LAYERNORM);
}
int fb_cuda_rmsnorm(const fb_call *call, const fb_cuda_context *cx) { return norm(call, cx, FB_OP_RMSNORM); }

int fb_cuda_add_norm(const fb_call *call, const fb_cuda_context *cx) {
    norm_args args = {};
    for (int k = 0; k < call->attr.terms; k++) {
        args.in[k] = call->in[k].data;
        args.in_stride[k] = call->in[k].row_stride;
    }
    args.sum = call->out[0].data;
    args.sum_stride = call->out[0].row_stride;
    args.rows = call->rows;
    /* Of the sum: the weights are absent after the last layer, if the final norm is another one. */
    args.n = (int32_t)(call->out[0].heads * call->out[0].width);
    args.norm = call->attr.norm;
    args.eps = call->attr.eps;
    for (int k = 0; k < call->attr.norms; k++)
        if (call->weights[2 * k].data)
            set_norm(&args, k, &call->out[1 + k], &call->weights[2 * k], &call->weights[2 * k + 1]);
    return launch(cx, call->out[0].dtype, args, call->attr.terms);
}
