/* layernorm, rmsnorm; norm_add: a norm with the residual addition that follows; add_norm: residual additions
 * with the norms that follow. A row is read once, into registers, so that each input is read once and each
 * output written once. */
#include "backend/cuda/norm.cuh"

/* y[k] = norm(x) with weights k. x is in[0]; or a sum that is also stored: in[0] + in[1], or
 * (in[0] + in[1]) + in[2]. With `after`, x is in[0] and y[0] = norm(x) + in[1]. */
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
    bool after;
    bool early; /* weights may be prefetched before the kernel before this one has ended */
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

/* Rounds a chunk as the plain norm would store it, and adds `more`. */
template <class T> FB_DEVICE void add_after(const fb_chunk<T> &more, float *v) {
    float r[FB_CHUNK];
    more.widen(r);
#pragma unroll
    for (int i = 0; i < FB_CHUNK; i++) v[i] = fb_rounded<T>(v[i]) + r[i];
}

/* A chunk of a row: norm k of it, with weight w and bias b; plus `more`, if something is added after the
 * norm. */
template <class T>
FB_DEVICE void put_chunk(const norm_args &args, const fb_chunk<T> &x, fb_row_stats stats, const float *w,
                         const float *b, const fb_chunk<T> *more, T *y) {
    float v[FB_CHUNK];
    x.widen(v);
#pragma unroll
    for (int i = 0; i < FB_CHUNK; i++) v[i] = fb_norm_apply(args.norm, v[i], stats, w[i], b[i]);
    if (more) add_after(*more, v);
    fb_store_8(y, v);
}

/* A thread's chunks of norm k's weight and bias. */
template <class W, int threads, int chunks> struct norm_weights {
    fb_chunk<W> w[chunks], b[chunks];
    FB_DEVICE void get(const norm_args &args, int k) {
        const W *weight = (const W *)args.w[k], *bias = (const W *)args.b[k];
#pragma unroll
        for (int j = 0; j < chunks; j++) {
            const int at = ((int)threadIdx.x % threads + j * threads) * FB_CHUNK;
            b[j] = {};
            if (at >= args.n) continue;
            w[j].get_weight(weight + at);
            if (bias) b[j].get_weight(bias + at);
        }
    }
};

/* Stores norm k of a thread's chunks x of a row to y [n]. `more`: what is added after the norm, or NULL. */
template <class T, class W, int threads, int chunks>
FB_DEVICE void put_norm(const norm_args &args, const fb_chunk<T> *x, fb_row_stats stats,
                        const norm_weights<W, threads, chunks> &weights, const fb_chunk<T> *more, T *y) {
#pragma unroll
    for (int j = 0; j < chunks; j++) {
        const int at = ((int)threadIdx.x % threads + j * threads) * FB_CHUNK;
        if (at >= args.n) continue;
        float w[FB_CHUNK], b[FB_CHUNK];
        weights.w[j].widen(w);
        weights.b[j].widen(b);
        put_chunk(args, x[j], stats, w, b, more ? more + j : NULL, y + at);
    }
}

/* Chunk `at` of a weight or bias of type W, or of any. */
template <class W> struct weight_chunk {
    FB_DEVICE static void get(const void *data, fb_dtype, int at, float *to) {
        fb_chunk<W> raw = {};
        if (data) raw.get_weight((const W *)data + at);
        raw.widen(to);
    }
};
template <> struct weight_chunk<void> {
    FB_DEVICE static void get(const void *data, fb_dtype dtype, int at, float *to) {
        fb_norm_weight_8(data, dtype, at, to);
    }
};

/* The same as put_norm; weights are loaded chunk by chunk. */
template <class T, class W, int threads, int chunks>
FB_DEVICE void load_norm(const norm_args &args, int k, const fb_chunk<T> *x, fb_row_stats stats,
                         const fb_chunk<T> *more, T *y) {
#pragma unroll
    for (int j = 0; j < chunks; j++) {
        const int at = ((int)threadIdx.x % threads + j * threads) * FB_CHUNK;
        if (at >= args.n) continue;
        float w[FB_CHUNK], b[FB_CHUNK];
        weight_chunk<W>::get(args.w[k], args.w_dtype[k], at, w);
        weight_chunk<W>::get(args.b[k], args.b_dtype[k], at, b);
        put_chunk(args, x[j], stats, w, b, more ? more + j : NULL, y + at);
    }
}

/* `terms`: of the sum, 1 to 3; with `after`, one, and in[1] is added after the norm. `threads` of a row: a
 * warp (four rows to a block), or a block of 128 or 256. Thread t has chunks t, t + threads, …, `chunks` of
 * them at most: all the elements of the chains (norm.cuh) that it sums. Chunks stay in registers as they are
 * stored: a row of 16-bit elements then needs half as many, and more rows are in flight. `few`: with few
 * rows, time goes into the memory's latency, so the weights are loaded together with the row. */
template <class T, int terms, bool after, int threads, int chunks, bool few>
__global__ void __launch_bounds__(threads < 128 ? 128 : threads) norm_fast(norm_args args) {
    constexpr int chains = FB_NORM_CHAINS / threads; /* of a thread */
    constexpr int inputs = terms + after;
    __shared__ float smem[FB_NORM_SMEM];
    fb_let_next_start();
    const int t = (int)threadIdx.x % threads, count = args.n / FB_CHUNK;
    if (few && args.early)
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
    if (row >= args.rows) return; /* only whole warps return here: those with a row of their own */

    fb_chunk<T> raw[inputs][chunks];
#pragma unroll
    for (int k = 0; k < inputs; k++)
#pragma unroll
        for (int j = 0; j < chunks; j++)
            if (t + j * threads < count)
                raw[k][j].get((const T *)args.in[k] + row * args.in_stride[k] + (t + j * threads) * FB_CHUNK);
    const fb_dtype type = dtype_of((T *)NULL);
    const bool plain = args.w_dtype[0] == type && (!args.b[0] || args.b_dtype[0] == type);
    norm_weights<T, threads, few ? chunks : 1> first;
    if constexpr (few)
        if (plain && args.y[0]) first.get(args, 0);
    if constexpr (terms > 1) {
#pragma unroll
        for (int j = 0; j < chunks; j++) {
            if (t + j * threads >= count) continue;
            float x[FB_CHUNK], more[FB_CHUNK];
            raw[0][j].widen(x);
#pragma unroll
            for (int k = 1; k < terms; k++) {
                raw[k][j].widen(more);
#pragma unroll
                for (int i = 0; i < FB_CHUNK; i++) x[i] = fb_rounded<T>(x[i] + more[i]);
            }
            raw[0][j].narrow(x);
            raw[0][j].put((T *)args.sum + row * args.sum_stride + (t + j * threads) * FB_CHUNK);
        }
    }

    fb_row_stats stats = {0, 0};
    const float inverse = fb_norm_inverse(args.n);
#pragma unroll
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0 && args.norm != FB_OP_LAYERNORM) continue;
        float sums[chains < 8 ? 8 : chains] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < chunks; j++) {
            if (t + j * threads >= count) continue;
            float x[FB_CHUNK];
            raw[0][j].widen(x);
            sums[j % chains] = pass == 0 ? fb_norm_add(sums[j % chains], x, FB_CHUNK)
                                         : fb_norm_add_square(sums[j % chains], x, FB_CHUNK, stats.mean);
        }
        float sum;
        if (threads == FB_WARP) {
            sum = fb_norm_tree(sums);
        } else {
#pragma unroll
            for (int k = 0; k < chains; k++) smem[pass * FB_NORM_CHAINS + t + k * threads] = sums[k];
            __syncthreads();
            sum = fb_norm_tree_shared(smem + pass * FB_NORM_CHAINS);
        }
        if (pass == 0)
            stats.mean = fb_norm_mean(sum, args.n, inverse);
        else
            stats.scale = fb_norm_scale(sum, inverse, args.eps);
    }

    const fb_chunk<T> *more = after ? raw[inputs - 1] : NULL;
    for (int k = 0; k < 2; k++) {
        if (!args.y[k]) continue;
        T *y = (T *)args.y[k] + row * args.y_stride[k];
        const fb_dtype w = args.w_dtype[k], b = args.b[k] ? args.b_dtype[k] : w;
        if constexpr (few)
            if (k == 0 && plain) {
                put_norm<T, T, threads, chunks>(args, raw[0], stats, first, more, y);
                continue;
            }
        if (w == b && w == type)
            load_norm<T, T, threads, chunks>(args, k, raw[0], stats, more, y);
        else if (w == b && w == FB_F32)
            load_norm<T, float, threads, chunks>(args, k, raw[0], stats, more, y);
        else
            load_norm<T, void, threads, chunks>(args, k, raw[0], stats, more, y);
    }
}

/* For any width and alignment. The row is read again in each pass. A thread reads back only what it wrote
 * itself. */
template <class T> __global__ void __launch_bounds__(FB_NORM_CHAINS) norm_any(norm_args args) {
    __shared__ float smem[FB_NORM_SMEM];
    fb_let_next_start();
    fb_wait_for_previous();
    const int64_t row = blockIdx.x;
    const T *in[3], *x;
    for (int k = 0; k < 3; k++) in[k] = args.in[k] ? (const T *)args.in[k] + row * args.in_stride[k] : NULL;
    x = in[0];
    if (args.sum) {
        T *sum = (T *)args.sum + row * args.sum_stride;
        for (int c = (int)threadIdx.x; c * FB_CHUNK < args.n; c += FB_NORM_CHAINS)
            for (int i = c * FB_CHUNK; i < args.n && i < (c + 1) * FB_CHUNK; i++) {
                float v = fb_widen(in[0][i]) + fb_widen(in[1][i]);
                if (in[2]) v = fb_rounded<T>(v) + fb_widen(in[2][i]);
                sum[i] = fb_narrow<T>(v);
            }
        x = sum;
    }
    fb_row_stats stats = fb_norm_stats<false, 0>(args.norm, x, args.n, args.eps, smem);
    for (int c = (int)threadIdx.x; c * FB_CHUNK < args.n; c += FB_NORM_CHAINS)
        for (int i = c * FB_CHUNK; i < args.n && i < (c + 1) * FB_CHUNK; i++) {
            /* Read before either y is written: y may be the memory of x or of what is added. */
            float v = fb_widen(x[i]), more = args.after ? fb_widen(in[1][i]) : 0;
            for (int k = 0; k < 2; k++)
                if (args.y[k]) {
                    float y =
                        fb_norm_apply(args.norm, v, stats, fb_norm_weight(args.w[k], args.w_dtype[k], i),
                                      fb_norm_weight(args.b[k], args.b_dtype[k], i));
                    if (args.after) y = fb_rounded<T>(y) + more;
                    ((T *)args.y[k])[row * args.y_stride[k] + i] = fb_narrow<T>(y);
                }
        }
}

template <class T, int terms, bool after>
static int launch_fast(const fb_cuda_context *cx, const norm_args &args) {
    /* Many rows need bytes in flight, and a small block loses less time in its own barriers; the weights,
     * which each row reads, stay in the cache. Few rows need threads. */
    const bool many = args.rows > 4 * cx->limits->sms;
    const int count = args.n / FB_CHUNK;
    const dim3 rows((unsigned)args.rows), quarter((unsigned)((args.rows + 3) / 4));
    if (many && count <= 128)
        return FB_LAUNCH_CACHED(cx, quarter, dim3(128), (norm_fast<T, terms, after, 32, 4, false>), args);
    if (count <= 256)
        return FB_LAUNCH(cx, rows, dim3(256), 0, (norm_fast<T, terms, after, 256, 1, true>), args);
    if (many && count <= 384)
        return FB_LAUNCH_CACHED(cx, rows, dim3(128), (norm_fast<T, terms, after, 128, 3, false>), args);
    if (many && count <= 512)
        return FB_LAUNCH_CACHED(cx, rows, dim3(128), (norm_fast<T, terms, after, 128, 4, false>), args);
    if (count <= 512)
        return FB_LAUNCH(cx, rows, dim3(256), 0, (norm_fast<T, terms, after, 256, 2, true>), args);
    if (count <= 1024)
        return FB_LAUNCH(cx, rows, dim3(256), 0, (norm_fast<T, terms, after, 256, 4, false>), args);
    return FB_LAUNCH(cx, rows, dim3(256), 0, (norm_fast<T, terms, after, 256, 8, false>), args);
}

#define MAX_FAST_WIDTH (FB_NORM_CHAINS * FB_CHUNK * 8)

static bool fits(const void *data, int64_t stride, int64_t rows, fb_dtype dtype) {
    return fb_aligned(data, 16) && (rows == 1 || stride * fb_dtype_size(dtype) % 16 == 0);
}

static int launch(const fb_cuda_context *given, fb_dtype dtype, norm_args args, int terms) {
    fb_cuda_context context = *given, *cx = &context;
    args.early = cx->overlap;
    if (cx->late)
        cx->overlap = true; /* these kernels read nothing before fb_wait_for_previous but weights, if early */
    bool fast = args.n % FB_CHUNK == 0 && args.n <= MAX_FAST_WIDTH;
    for (int k = 0; k < terms; k++) fast = fast && fits(args.in[k], args.in_stride[k], args.rows, dtype);
    if (args.sum) fast = fast && fits(args.sum, args.sum_stride, args.rows, dtype);
    for (int k = 0; k < 2; k++)
        if (args.y[k])
            fast = fast && fits(args.y[k], args.y_stride[k], args.rows, dtype) && fb_aligned(args.w[k], 16) &&
                   fb_aligned(args.b[k], 16);
    FB_FOR_TYPE(dtype, T,
                if (!fast) return FB_LAUNCH(cx, dim3((unsigned)args.rows), dim3(FB_NORM_CHAINS), 0,
                                            norm_any<T>, args);
                if (args.after) return (launch_fast<T, 1, true>(cx, args));
                if (terms == 1) return (launch_fast<T, 1, false>(cx, args));
                return terms == 2 ? launch_fast<T, 2, false>(cx, args) : launch_fast<T, 3, false>(cx, args));
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
    const fb_view *x = &call->in[0], *y = &call->out[0];
    if (x->heads > 1 && x->width == args.n) { /* a norm of each head: heads without gaps are rows */
        if (x->head_stride != x->width || y->head_stride != x->width ||
            (call->rows > 1 && (x->row_stride != x->heads * x->width || y->row_stride != x->row_stride)))
            return 1; /* cudaErrorInvalidValue */
        args.rows *= x->heads;
        args.in_stride[0] = x->width;
        set_norm(&args, 0, y, &call->weights[0], &call->weights[1]);
        args.y_stride[0] = x->width;
        args.eps = call->attr.eps;
        return launch(cx, y->dtype, args, 1);
    }
    args.eps = call->attr.eps;
    set_norm(&args, 0, &call->out[0], &call->weights[0], &call->weights[1]);
    return launch(cx, call->out[0].dtype, args, 1);
}

int fb_cuda_layernorm(const fb_call *call, const fb_cuda_context *cx) {
    return norm(call, cx, FB_OP_LAYERNORM);
}
int fb_cuda_rmsnorm(const fb_call *call, const fb_cuda_context *cx) { return norm(call, cx, FB_OP_RMSNORM); }

int fb_cuda_norm_add(const fb_call *call, const fb_cuda_context *cx) {
    norm_args args = {};
    for (int k = 0; k < 2; k++) {
        args.in[k] = call->in[k].data;
        args.in_stride[k] = call->in[k].row_stride;
    }
    args.after = true;
    args.rows = call->rows;
    args.n = (int32_t)call->weights[0].cols;
    args.norm = call->attr.norm;
    args.eps = call->attr.eps;
    set_norm(&args, 0, &call->out[0], &call->weights[0], &call->weights[1]);
    return launch(cx, call->out[0].dtype, args, 2);
}

int fb_cuda_add_norm(const fb_call *call, const fb_cuda_context *cx) {
    norm_args args = {};
    for (int k = 0; k < call->attr.terms; k++) {
        args.in[k] = call->in[k].data;
        args.in_stride[k] = call->in[k].row_stride;
    }
    args.sum = call->out[0].data;
    args.sum_stride = call->out[0].row_stride;
    args.rows = call->rows;
    /* From the sum, not from the weights: these are absent after the last layer if the final norm is another
     * one. */
    args.n = (int32_t)(call->out[0].heads * call->out[0].width);
    args.norm = call->attr.norm;
    args.eps = call->attr.eps;
    for (int k = 0; k < call->attr.norms; k++)
        if (call->weights[2 * k].data)
            set_norm(&args, k, &call->out[1 + k], &call->weights[2 * k], &call->weights[2 * k + 1]);
    return launch(cx, call->out[0].dtype, args, call->attr.terms);
}
