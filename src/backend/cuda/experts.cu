/* Mixtures of experts: top_k, expert_linear, expert_sum, and the fused router and expert_group.
 *
 * Few rows: a warp has an output of one (row, expert). Many rows: a block gathers the rows of an expert, and
 * its warps take eight of them at a time, so that a row of weights is loaded once for eight products. A lane
 * adds its chunks in the same order in both, so the bits are the same. */
#include "backend/cuda/activation.cuh"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/records.cuh"

#define WARPS   8
#define THREADS (WARPS * FB_WARP)
#define MANY    8 /* rows of an expert at a time */
/* Up to so many rows, each warp has one. */
#define FEW_ROWS 4

static int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/* ---- choosing ---- */

/* (score, column) a comes before b. A NaN comes first. */
FB_DEVICE bool before(float a, int i, float b, int j) {
    if (a != a || b != b) return a != a && (b == b || i < j);
    return a > b || (a == b && i < j);
}

/* Pairs (column, share) of the `used` largest of `count` scores, by one warp. `chosen`: bytes of shared
 * memory. */
template <class T>
FB_DEVICE void choose(const T *scores, int count, int used, bool one, uint8_t *chosen, float *pairs) {
    const int lane = (int)threadIdx.x % FB_WARP;
    float most = 0, sum = 0, shares = 0;
    for (int i = lane; i < count; i += FB_WARP) chosen[i] = 0;
    for (int k = 0; k < used; k++) {
        float best = -INFINITY;
        int at = count;
        for (int i = lane; i < count; i += FB_WARP) {
            float x = fb_widen(scores[i]);
            if (!chosen[i] && (at == count || before(x, i, best, at))) best = x, at = i;
        }
        for (int offset = 16; offset; offset >>= 1) {
            float x = __shfl_xor_sync(FB_ALL, best, offset);
            int i = __shfl_xor_sync(FB_ALL, at, offset);
            if (i < count && (at == count || before(x, i, best, at))) best = x, at = i;
        }
        if (k == 0) most = best;
        if (at % FB_WARP == lane) chosen[at] = 1; /* the lane that reads it */
    }
    for (int i = lane; i < count; i += FB_WARP) sum += expf(fb_widen(scores[i]) - most);
    sum = fb_warp_sum(sum);
    for (int i = lane; i < count; i += FB_WARP)
        if (chosen[i]) shares += expf(fb_widen(scores[i]) - most) / sum;
    shares = one ? fb_warp_sum(shares) : 1;
    for (int first = 0, filled = 0; first < count; first += FB_WARP) {
        int i = first + lane;
        bool mine = i < count && chosen[i];
        uint32_t mask = __ballot_sync(FB_ALL, mine);
        if (mine) {
            float *to = pairs + 2 * (filled + __popc(mask & ((1u << lane) - 1)));
            to[0] = (float)i;
            to[1] = expf(fb_widen(scores[i]) - most) / sum / shares;
        }
        filled += __popc(mask);
    }
}

typedef struct choice_args {
    const void *scores;
    int64_t scores_row;
    float *pairs;
    int64_t pairs_row;
    int count, used;
    bool one;
    /* router: the norm that the scores were computed of, and where it is stored */
    const void *x;
    void *y;
    int64_t x_row, y_row;
    int n;
    fb_op_kind norm;
    float eps;
    const void *w, *b;
    fb_dtype w_dtype, b_dtype;
} choice_args;

/* A block has a row. Its first warp chooses; with a norm, all of them normalise. */
template <class T> __global__ void __launch_bounds__(THREADS) choose_kernel(choice_args args) {
    __shared__ float smem[FB_NORM_SMEM];
    __shared__ uint8_t chosen[FB_LIMIT_EXPERTS];
    fb_let_next_start();
    fb_wait_for_previous();
    const int64_t row = blockIdx.x;
    if (args.x) {
        const T *x = (const T *)args.x + row * args.x_row;
        fb_row_stats stats = fb_norm_stats<false, 0>(args.norm, x, args.n, args.eps, smem);
        for (int i = (int)threadIdx.x; i < args.n; i += (int)blockDim.x)
            ((T *)args.y)[row * args.y_row + i] = fb_narrow<T>(
                fb_norm_apply(args.norm, fb_widen(x[i]), stats, fb_norm_weight(args.w, args.w_dtype, i),
                              fb_norm_weight(args.b, args.b_dtype, i)));
    }
    if (threadIdx.x < FB_WARP)
        choose((const T *)args.scores + row * args.scores_row, args.count, args.used, args.one, chosen,
               args.pairs + row * args.pairs_row);
}

static int launch_choice(const fb_cuda_context *cx, fb_dtype dtype, int64_t rows, const choice_args &args) {
    const dim3 threads(args.x ? THREADS : FB_WARP);
    FB_FOR_TYPE(dtype, T, return FB_LAUNCH(cx, dim3((unsigned)rows), threads, 0, choose_kernel<T>, args));
    return 1; /* cudaErrorInvalidValue */
}

static choice_args choice_of(const fb_call *call, const fb_view *scores, const fb_view *pairs) {
    choice_args args = {};
    args.scores = scores->data;
    args.scores_row = scores->row_stride;
    args.count = (int)(scores->heads * scores->width);
    args.pairs = (float *)pairs->data;
    args.pairs_row = pairs->row_stride;
    args.used = call->attr.used;
    args.one = call->attr.shares_sum_to_one;
    return args;
}

int fb_cuda_top_k(const fb_call *call, const fb_cuda_context *cx) {
    if (cx->list) return FB_CUDA_NOT_LISTED;
    return launch_choice(cx, call->in[0].dtype, call->rows, choice_of(call, &call->in[0], &call->out[0]));
}

/* The router's linear, with its norm. */
static fb_call scores_call(const fb_call *call) {
    fb_call linear = *call;
    linear.attr.segments = 1;
    linear.attr.combine = FB_COMBINE_NONE;
    linear.attr.segment[0].act = FB_OP_COUNT;
    linear.weights[1].data = NULL;
    linear.out[0].heads = 1;
    linear.out[0].width = linear.out[0].head_stride = linear.out[0].row_stride = call->weights[0].rows;
    linear.out[1] = {};
    return linear;
}

/* Two launches: the linear with its norm; the choice, and the norm once more, which the experts read. */
int fb_cuda_router(const fb_call *call, const fb_cuda_context *cx) {
    if (cx->list) return FB_CUDA_NOT_LISTED;
    fb_call linear = scores_call(call);
    linear.out[0].data = cx->scratch + aligned(fb_cuda_linear_scratch(&linear, call->rows));
    int code = fb_cuda_linear_group(&linear, cx);
    if (code) return code;
    choice_args args = choice_of(call, &linear.out[0], &call->out[1]);
    args.x = call->in[0].data;
    args.x_row = call->in[0].row_stride;
    args.y = call->out[0].data;
    args.y_row = call->out[0].row_stride;
    args.n = (int)call->weights[0].cols;
    args.norm = call->attr.segment[0].norm;
    args.eps = call->attr.segment[0].eps;
    args.w = call->weights[2].data;
    args.w_dtype = call->weights[2].dtype;
    args.b = args.norm == FB_OP_LAYERNORM ? call->weights[3].data : NULL;
    args.b_dtype = call->weights[3].dtype;
    return launch_choice(cx, call->out[0].dtype, call->rows, args);
}

/* ---- products ---- */

typedef struct expert_weight {
    const uint8_t *data;
    const fb_half *scales; /* of Q8_0 and Q4_0 */
    fb_dtype dtype;        /* of records, and the bytes of a row of them */
    int64_t row_bytes;
} expert_weight;

typedef struct expert_args {
    const void *x; /* [rows] of T or of fb_q8, or [rows][used] */
    int64_t x_row, x_each;
    const float *pairs;
    int64_t pairs_row;
    expert_weight w[2];
    int segments, used, experts;
    int64_t rows, n, k; /* n: outputs of an expert */
    fb_combine combine;
    fb_op_kind act;
    void *out;
    int64_t out_row, out_each;
    const void *residual;
    int64_t residual_row;
} expert_args;

/* Elements [i, i + 8) of a row of k; zeros beyond. */
template <class T> FB_DEVICE void load_some(const T *row, int64_t i, int64_t k, float *to) {
    if (i + FB_CHUNK <= k && fb_aligned(row + i, 16)) {
        fb_load_8(row + i, to);
        return;
    }
#pragma unroll
    for (int j = 0; j < FB_CHUNK; j++) to[j] = i + j < k ? fb_widen(row[i + j]) : 0;
}

struct blocks_8 {}; /* Q8_0 */
struct blocks_4 {}; /* Q4_0 */
struct records {};  /* of any quantised type, which is known at run time */

/* Weights as floats: elements [i, i + 8) of row n. */
template <class W> struct weights_of {
    static FB_DEVICE void load(const expert_weight &w, int64_t n, int64_t i, int64_t k, float *to) {
        load_some((const W *)w.data + n * k, i, k, to);
    }
};
template <int b> struct blocks_of {
    static const int bits = b;
    static FB_DEVICE void load(const expert_weight &w, int64_t n, int64_t i, int64_t k, float *to) {
        const int64_t block = n * (k / 32) + i / 32;
        const int in = (int)(i % 32);
        const uint2 q = *(const uint2 *)(w.data + block * 4 * bits + (bits == 8 ? in : in % 16));
        const float scale = fb_widen(w.scales[block]);
#pragma unroll
        for (int j = 0; j < FB_CHUNK; j++) {
            int byte = (int)((j < 4 ? q.x : q.y) >> (8 * (j % 4)) & 0xff);
            to[j] = scale * (float)(bits == 8 ? (int)(int8_t)byte : (byte >> (in / 16 * 4) & 15) - 8);
        }
    }
};
template <> struct weights_of<blocks_8> : blocks_of<8> {};
template <> struct weights_of<blocks_4> : blocks_of<4> {};

template <> struct weights_of<records> {
    static FB_DEVICE void load(const expert_weight &w, int64_t n, int64_t i, int64_t k, float *to) {
        const fb_record_type t = fb_record_type_of(w.dtype);
        int chunk = (int)(i / 32);
        const fb_record_of of = fb_record_find(t, w.data + n * w.row_bytes, (int)(k / 32), &chunk);
        fb_record_eight(t, fb_record_at(t, of.record, of.count, chunk), (int)(i % 32 / 8), to);
    }
};

FB_DEVICE float dot_8(const float *x, const float *w) {
    float low = x[0] * w[0], high = x[4] * w[4];
#pragma unroll
    for (int i = 1; i < 4; i++) low = fmaf(x[i], w[i], low), high = fmaf(x[4 + i], w[4 + i], high);
    return low + high;
}

/* Adds this lane's part of the products of weight row n and `count` rows of x to acc. */
template <class X, class W> struct lane_products {
    template <int M>
    static FB_DEVICE void add(const expert_weight &w, int64_t n, int64_t k, const void *const *x,
                              float *acc) {
#pragma unroll 4
        for (int64_t i = (int64_t)(threadIdx.x % FB_WARP) * FB_CHUNK; i < k; i += FB_WARP * FB_CHUNK) {
            float ws[FB_CHUNK], xs[FB_CHUNK];
            weights_of<W>::load(w, n, i, k, ws);
#pragma unroll
            for (int m = 0; m < M; m++) {
                load_some((const X *)x[m], i, k, xs);
                acc[m] += dot_8(xs, ws);
            }
        }
    }
};
/* Integers: a lane has whole blocks. */
template <class W> struct lane_products<fb_q8, W> {
    template <int M>
    static FB_DEVICE void add(const expert_weight &w, int64_t n, int64_t k, const void *const *x,
                              float *acc) {
        constexpr bool nibbles = weights_of<W>::bits == 4;
        const int64_t blocks = k / 32;
#pragma unroll 2
        for (int64_t b = (int64_t)(threadIdx.x % FB_WARP); b < blocks; b += FB_WARP) {
            const int64_t block = n * blocks + b;
            const float scale = fb_widen(w.scales[block]);
            uint4 v[2];
            v[0] = ((const uint4 *)w.data)[nibbles ? block : 2 * block];
            v[1] = nibbles ? v[0] : ((const uint4 *)w.data)[2 * block + 1];
            const uint32_t words[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
#pragma unroll
            for (int m = 0; m < M; m++) {
                const fb_q8 *q = (const fb_q8 *)x[m] + b;
                const uint32_t *xs = (const uint32_t *)q->q;
                int sum = nibbles ? -8 * q->sum : 0;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    uint32_t word = nibbles ? words[i % 4] >> (i / 4 * 4) & 0x0f0f0f0fu : words[i];
                    sum = __dp4a((int)word, (int)xs[i], sum);
                }
                acc[m] = fmaf((float)sum, scale * q->scale, acc[m]);
            }
        }
    }
};

template <> struct lane_products<fb_q8, records> {
    template <int M>
    static FB_DEVICE void add(const expert_weight &w, int64_t n, int64_t k, const void *const *x,
                              float *acc) {
        const fb_record_type t = fb_record_type_of(w.dtype);
        const int blocks = (int)(k / 32);
#pragma unroll 1
        for (int b = (int)(threadIdx.x % FB_WARP); b < blocks; b += FB_WARP) {
            int chunk = b;
            const fb_record_of of = fb_record_find(t, w.data + n * w.row_bytes, blocks, &chunk);
            const fb_record_place at = fb_record_at(t, of.record, of.count, chunk);
            const fb_record_scales scales = fb_record_scales_of(t, at);
            uint32_t quads[8];
            fb_record_quads<false>(t, at, quads);
#pragma unroll
            for (int m = 0; m < M; m++) {
                const fb_q8 *q = (const fb_q8 *)x[m] + b;
                const uint32_t *xs = (const uint32_t *)q->q;
                int half[2] = {0, 0}, sums[2] = {0, 0};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    half[0] = __dp4a((int)quads[i], (int)xs[i], half[0]);
                    half[1] = __dp4a((int)quads[i + 4], (int)xs[i + 4], half[1]);
                    sums[0] = __dp4a((int)xs[i], 0x01010101, sums[0]);
                }
                sums[1] = q->sum - sums[0];
                acc[m] = fmaf(fb_record_product(t, scales, half[0], half[1], sums), q->scale, acc[m]);
            }
        }
    }
};

/* The product of expert `expert` and the inputs x[0 .. M - 1], in every lane. */
template <class X, class W, int M>
FB_DEVICE void products(const expert_args &args, int s, int64_t expert, int64_t n, const void *const *x,
                        float *sums) {
#pragma unroll
    for (int m = 0; m < M; m++) sums[m] = 0;
    lane_products<X, W>::template add<M>(args.w[s], expert * args.n + n, args.k, x, sums);
#pragma unroll
    for (int m = 0; m < M; m++) sums[m] = fb_warp_sum(sums[m]);
}

template <class X> FB_DEVICE const void *input_at(const expert_args &args, int64_t row, int64_t j) {
    return (const X *)args.x + row * args.x_row + j * args.x_each;
}

template <class T>
FB_DEVICE void store_product(const expert_args &args, int64_t row, int64_t j, int64_t n, float first,
                             float second) {
    float v = fb_rounded<T>(first);
    if (args.combine == FB_COMBINE_MUL) v = fb_rounded<T>(fb_activate(args.act, v)) * fb_rounded<T>(second);
    ((T *)args.out)[row * args.out_row + j * args.out_each + n] = fb_narrow<T>(v);
}

/* `acc`, rounded as expert_sum would have stored it, plus the residual. */
template <class T> FB_DEVICE void store_sum(const expert_args &args, int64_t row, int64_t n, float acc) {
    if (args.residual)
        acc = fb_rounded<T>(acc) + fb_widen(((const T *)args.residual)[row * args.residual_row + n]);
    ((T *)args.out)[row * args.out_row + n] = fb_narrow<T>(acc);
}

/* y: rows times experts; of a sum, rows. */
template <class T, class X, class W>
__global__ void __launch_bounds__(THREADS) experts_few(expert_args args) {
    fb_let_next_start();
    fb_wait_for_previous();
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / FB_WARP;
    const bool sum = args.combine == FB_COMBINE_SUM;
    const int64_t row = sum ? blockIdx.y : blockIdx.y / args.used;
    if (n >= args.n) return;
    const float *pairs = args.pairs + row * args.pairs_row;
    float acc = 0, first = 0, second = 0;
    for (int j = sum ? 0 : (int)(blockIdx.y % args.used); j < args.used; j++) {
        const void *x = input_at<X>(args, row, j);
        products<X, W, 1>(args, 0, (int64_t)pairs[2 * j], n, &x, &first);
        if (sum) {
            acc = fmaf(pairs[2 * j + 1], fb_rounded<T>(first), acc);
            continue;
        }
        if (args.segments == 2) products<X, W, 1>(args, 1, (int64_t)pairs[2 * j], n, &x, &second);
        if (threadIdx.x % FB_WARP == 0) store_product<T>(args, row, j, n, first, second);
        return;
    }
    if (threadIdx.x % FB_WARP == 0) store_sum<T>(args, row, n, acc);
}

/* y: experts. Dynamic shared memory: the numbers of all pairs, row * used + j. */
template <class T, class X, class W>
__global__ void __launch_bounds__(THREADS) experts_many(expert_args args) {
    FB_SHARED(int32_t, list);
    __shared__ int32_t counts[WARPS], total;
    fb_let_next_start();
    fb_wait_for_previous();
    const int warp = (int)threadIdx.x / FB_WARP, lane = (int)threadIdx.x % FB_WARP;
    const int64_t expert = blockIdx.y, n = (int64_t)blockIdx.x * WARPS + warp, pairs = args.rows * args.used;
    if (threadIdx.x == 0) total = 0;
    for (int64_t first = 0; first < pairs; first += THREADS) { /* those of this expert, in order */
        const int64_t p = first + threadIdx.x;
        const bool mine =
            p < pairs && args.pairs[p / args.used * args.pairs_row + p % args.used * 2] == (float)expert;
        const uint32_t mask = __ballot_sync(FB_ALL, mine);
        if (lane == 0) counts[warp] = __popc(mask);
        __syncthreads();
        int at = total;
        for (int w = 0; w < warp; w++) at += counts[w];
        if (mine) list[at + __popc(mask & ((1u << lane) - 1))] = (int32_t)p;
        __syncthreads();
        if (threadIdx.x == 0)
            for (int w = 0; w < WARPS; w++) total += counts[w];
        __syncthreads();
    }
    const int count = total;
    for (int first = 0; first < count && n < args.n; first += MANY) {
        const void *x[MANY];
        float sums[2][MANY];
#pragma unroll
        for (int m = 0; m < MANY; m++) {
            const int32_t p = list[first + m < count ? first + m : count - 1];
            x[m] = input_at<X>(args, p / args.used, p % args.used);
            sums[1][m] = 0;
        }
        products<X, W, MANY>(args, 0, expert, n, x, sums[0]);
        if (args.segments == 2) products<X, W, MANY>(args, 1, expert, n, x, sums[1]);
#pragma unroll
        for (int m = 0; m < MANY; m++)
            if (lane == m && first + m < count)
                store_product<T>(args, list[first + m] / args.used, list[first + m] % args.used, n,
                                 sums[0][m], sums[1][m]);
    }
}

template <class T> __global__ void __launch_bounds__(THREADS) sum_kernel(expert_args args) {
    fb_let_next_start();
    fb_wait_for_previous();
    const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (n >= args.n) return;
    for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
        const float *pairs = args.pairs + row * args.pairs_row;
        const T *x = (const T *)args.x + row * args.x_row + n;
        float acc = 0;
        for (int j = 0; j < args.used; j++) acc = fmaf(pairs[2 * j + 1], fb_widen(x[j * args.x_each]), acc);
        store_sum<T>(args, row, n, acc);
    }
}

/* ---- launches ---- */

static int launch_sum(const fb_cuda_context *cx, fb_dtype dtype, const expert_args &args) {
    const dim3 grid((unsigned)((args.n + THREADS - 1) / THREADS),
                    (unsigned)(args.rows < 65535 ? args.rows : 65535));
    FB_FOR_TYPE(dtype, T, return FB_LAUNCH(cx, grid, dim3(THREADS), 0, sum_kernel<T>, args));
    return 1; /* cudaErrorInvalidValue */
}

template <class T, class X, class W>
static int launch_typed(const fb_cuda_context *cx, const expert_args &args) {
    const unsigned tiles = (unsigned)((args.n + WARPS - 1) / WARPS);
    if (args.rows <= FEW_ROWS) {
        const int64_t units = args.combine == FB_COMBINE_SUM ? args.rows : args.rows * args.used;
        return FB_LAUNCH(cx, dim3(tiles, (unsigned)units), dim3(THREADS), 0, (experts_few<T, X, W>), args);
    }
    return FB_LAUNCH(cx, dim3(tiles, (unsigned)args.experts), dim3(THREADS),
                     (size_t)(args.rows * args.used) * sizeof(int32_t), (experts_many<T, X, W>), args);
}

template <class T>
static int launch_weights(const fb_cuda_context *cx, const fb_weight *weight, bool integers,
                          const expert_args &args) {
    const fb_dtype w = weight->dtype;
    if (fb_weight_is_records(weight))
        return integers ? launch_typed<T, fb_q8, records>(cx, args) : launch_typed<T, T, records>(cx, args);
    if (w == FB_Q8_0)
        return integers ? launch_typed<T, fb_q8, blocks_8>(cx, args) : launch_typed<T, T, blocks_8>(cx, args);
    if (w == FB_Q4_0)
        return integers ? launch_typed<T, fb_q8, blocks_4>(cx, args) : launch_typed<T, T, blocks_4>(cx, args);
    FB_FOR_TYPE(w, W, return (launch_typed<T, T, W>(cx, args)));
    return 1; /* cudaErrorInvalidValue */
}

static expert_weight weight_of(const fb_weight *w) {
    const uint8_t *data = (const uint8_t *)w->data;
    if (fb_weight_is_records(w)) return {data, NULL, w->dtype, fb_record_row_bytes(w->dtype, w->cols)};
    int64_t quants = w->packed ? w->rows * (w->cols / 32) * (fb_dtype_bytes(w->dtype, 32) - 2) : 0;
    return {data, (const fb_half *)(const void *)(data + quants), w->dtype, 0};
}

/* Scratch: x as integers, then what the experts of many rows computed, before it is added up. */
static int64_t quantised_bytes(const fb_call *call) {
    int64_t parts = call->attr.each ? call->attr.used : 1;
    return aligned(call->rows * parts * fb_q8_floats(call->weights[0].cols) * (int64_t)sizeof(float));
}

int64_t fb_cuda_expert_scratch(const fb_call *call, fb_op_kind kind, int64_t rows) {
    if (kind == FB_OP_ROUTER) {
        fb_call linear = scores_call(call);
        return aligned(fb_cuda_linear_scratch(&linear, rows)) + aligned(rows * call->weights[0].rows * 4);
    }
    fb_call all = *call;
    all.rows = rows;
    int64_t outputs = call->weights[0].experts ? call->weights[0].rows / call->weights[0].experts : 0;
    return FB_CUDA_COUNTERS + quantised_bytes(&all) + aligned(rows * call->attr.used * outputs * 4);
}

static int run_experts(const fb_call *call, const fb_cuda_context *cx, int segments, fb_combine combine) {
    const fb_weight *w = &call->weights[0];
    const fb_view *x = &call->in[0];
    fb_view quantised;
    uint8_t *scratch = cx->scratch + FB_CUDA_COUNTERS;
    const fb_dtype act = call->out[0].dtype;
    if (call->attr.segment[0].dot == FB_DOT_QUANTIZE) {
        int64_t width = fb_q8_floats(x->heads * x->width);
        quantised = {scratch, FB_F32, 1, width, width, width};
        fb_call quantise = {};
        quantise.in[0] = *x;
        quantise.out[0] = quantised;
        quantise.rows = call->rows;
        int code = fb_cuda_quantize(&quantise, cx);
        if (code) return code;
        x = &quantised;
    }
    const bool integers = call->attr.segment[0].dot != FB_DOT_FLOAT;
    expert_args args = {};
    args.x = x->data;
    args.x_row = integers ? x->row_stride / fb_q8_floats(32) : x->row_stride;
    args.x_each = !call->attr.each ? 0 : integers ? w->cols / 32 : x->head_stride;
    args.pairs = (const float *)call->in[1].data;
    args.pairs_row = call->in[1].row_stride;
    for (int s = 0; s < segments; s++) args.w[s] = weight_of(&call->weights[4 * s]);
    args.segments = segments;
    args.used = call->attr.used;
    args.experts = (int)w->experts;
    args.rows = call->rows;
    args.n = w->rows / w->experts;
    args.k = w->cols;
    args.combine = combine;
    args.act = call->attr.segment[0].act;
    args.out = call->out[0].data;
    args.out_row = call->out[0].row_stride;
    args.out_each = call->out[0].head_stride;
    args.residual = call->in[FB_RESIDUAL].data;
    args.residual_row = call->in[FB_RESIDUAL].row_stride;
    const bool apart = combine == FB_COMBINE_SUM && call->rows > FEW_ROWS;
    expert_args parts = args;
    if (apart) {
        parts.combine = FB_COMBINE_NONE;
        parts.out = scratch + quantised_bytes(call);
        parts.out_each = args.n;
        parts.out_row = args.n * args.used;
    }
    int code = 1; /* cudaErrorInvalidValue */
    FB_FOR_TYPE(act, T, code = launch_weights<T>(cx, w, integers, parts));
    if (code || !apart) return code;
    args.x = parts.out;
    args.x_row = parts.out_row;
    args.x_each = parts.out_each;
    return launch_sum(cx, act, args);
}

/* So many (row, expert) in a launch, at most: their numbers lie in shared memory, and count in a grid's y. */
#define MOST_PAIRS 8192

static int experts(const fb_call *call, const fb_cuda_context *cx, int segments, fb_combine combine) {
    const int64_t most = MOST_PAIRS / call->attr.used;
    if (cx->list) return FB_CUDA_NOT_LISTED;
    for (int64_t first = 0; first < call->rows; first += most) {
        fb_call part = *call;
        part.rows = call->rows - first < most ? call->rows - first : most;
        for (int k = 0; k < FB_MAX_IN; k++)
            if (part.in[k].data) part.in[k].data = fb_view_at(&call->in[k], first, 0);
        part.out[0].data = fb_view_at(&call->out[0], first, 0);
        int code = run_experts(&part, cx, segments, combine);
        if (code) return code;
    }
    return 0;
}

int fb_cuda_expert_linear(const fb_call *call, const fb_cuda_context *cx) {
    fb_call plain = *call;
    plain.in[FB_RESIDUAL].data = NULL;
    return experts(&plain, cx, 1, FB_COMBINE_NONE);
}

int fb_cuda_expert_group(const fb_call *call, const fb_cuda_context *cx) {
    return experts(call, cx, call->attr.segments, call->attr.combine);
}

int fb_cuda_expert_sum(const fb_call *call, const fb_cuda_context *cx) {
    if (cx->list) return FB_CUDA_NOT_LISTED;
    expert_args args = {};
    args.x = call->in[0].data;
    args.x_row = call->in[0].row_stride;
    args.x_each = call->in[0].head_stride;
    args.pairs = (const float *)call->in[1].data;
    args.pairs_row = call->in[1].row_stride;
    args.used = call->attr.used;
    args.rows = call->rows;
    args.n = call->out[0].width;
    args.out = call->out[0].data;
    args.out_row = call->out[0].row_stride;
    return launch_sum(cx, call->out[0].dtype, args);
}
