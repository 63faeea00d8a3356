/* rope_angles, rope, kv_append, and rope_kv, which is rope and kv_append in one: what happens to q, k and v
 * between their projections and attention. */
#include "backend/cuda/chunk.cuh"
#include "backend/cuda/persistent_list.h"

#define THREADS 128

/* Angles are computed in double: a position may be large, and its product with a frequency must keep the
 * fraction of a full turn. */
__global__ void __launch_bounds__(THREADS)
    angles_rows(const double *frequencies, const fb_row *batch, int64_t limit, double scale, float *out,
                int64_t row_stride, int64_t rows, int half) {
    fb_let_next_start();
    fb_wait_for_previous();
    const int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = item / half;
    if (row >= rows) return;
    const int i = (int)(item % half);
    int64_t at = batch[row].position;
    if (limit && at > limit) at = limit;
    double angle = (double)at * frequencies[i];
    out[row * row_stride + i] = (float)(cos(angle) * scale);
    out[row * row_stride + half + i] = (float)(sin(angle) * scale);
}

int fb_cuda_rope_angles(const fb_call *call, const fb_cuda_context *cx) {
    const int half = call->attr.rotary / 2;
    const fb_view *out = &call->out[0];
    if (half == 0) return 0;
    dim3 grid((unsigned)((call->rows * half + THREADS - 1) / THREADS));
    const double *frequencies = cx->frequencies + call->attr.table * half;
    const double scale = call->attr.scale ? (double)call->attr.scale : 1;
    return FB_LAUNCH(cx, grid, dim3(THREADS), 0, angles_rows, frequencies, call->row, call->attr.limit, scale,
                     (float *)out->data, out->row_stride, call->rows, half);
}

/* The heads of one input; heads 0: there is no such input. out NULL: the result goes to the cache. */
typedef struct head_args {
    const void *in;
    int64_t row_stride, head_stride;
    void *out;
    int64_t out_row_stride, out_head_stride;
    int32_t heads, width;
    int32_t half; /* pairs that rotate; 0: the heads are copied */
    const float *angles;
    int64_t angle_stride;
} head_args;

typedef struct rope_args {
    head_args q, sink_q, k, v;
    fb_kv kv;
    const fb_row *row; /* [rows] */
    int64_t rows;
    uint8_t *const *tables; /* NULL: nothing is appended */
    int64_t sequences;
} rope_args;

/* Loads and stores of `size` elements at p: 1, or 2 or 8, which are aligned for vector accesses. */
template <int size> FB_DEVICE void get(const float *p, float *x) {
    if constexpr (size == 8)
        fb_load_8(p, x);
    else if constexpr (size == 2)
        x[0] = ((const float2 *)p)->x, x[1] = ((const float2 *)p)->y;
    else
        x[0] = *p;
}
template <int size, class T> FB_DEVICE void get(const T *p, float *x) {
    if constexpr (size == 8) {
        fb_load_8(p, x);
    } else if constexpr (size == 2) {
        uint32_t v = *(const uint32_t *)p;
        x[0] = fb_widen(T{(uint16_t)v}), x[1] = fb_widen(T{(uint16_t)(v >> 16)});
    } else {
        x[0] = fb_widen(*p);
    }
}
template <int size> FB_DEVICE void put(float *p, const float *x) {
    if constexpr (size == 8)
        fb_store_8(p, x);
    else if constexpr (size == 2)
        *(float2 *)p = make_float2(x[0], x[1]);
    else
        *p = x[0];
}
template <int size, class T> FB_DEVICE void put(T *p, const float *x) {
    if constexpr (size == 8)
        fb_store_8(p, x);
    else if constexpr (size == 2)
        *(uint32_t *)p = fb_narrow<T>(x[0]).bits | (uint32_t)fb_narrow<T>(x[1]).bits << 16;
    else
        *p = fb_narrow<T>(x[0]);
}

/* Stores `size` elements from i on of a head and row: to the output, or to slot `slot` of a block's keys or
 * values, `cache`. */
template <class T, int size>
FB_DEVICE void put_head(const rope_args &args, const head_args &to, void *cache, int64_t row, int64_t slot,
                        int head, int i, float *x) {
    if (to.out) return put<size>((T *)to.out + row * to.out_row_stride + head * to.out_head_stride + i, x);
        /* Rounded as a rope op would have stored it, then as the cache stores it. */
#pragma unroll
    for (int n = 0; n < size; n++) x[n] = fb_rounded<T>(x[n]);
    const int64_t at = (head * args.kv.block + slot) * args.kv.width + i;
    if (args.kv.dtype == FB_F32)
        put<size>((float *)cache + at, x);
    else if (args.kv.dtype == FB_F16)
        put<size>((fb_half *)cache + at, x);
    else
        put<size>((fb_bfloat *)cache + at, x);
}

/* Where a row's keys and values are appended. */
struct row_place {
    uint8_t *block;
    int64_t slot; /* in the block */
};
FB_DEVICE row_place place_of(const rope_args &args, int64_t row) {
    if (!args.tables) return {NULL, 0};
    const fb_kv &kv = args.kv;
    int64_t slot = fb_ring_slot(&kv.ring, args.row[row].position);
    int64_t entry = (kv.table_at + (slot >> kv.shift)) * args.sequences + args.row[row].sequence;
    return {args.tables[entry], slot & (((int64_t)1 << kv.shift) - 1)};
}

/* Work items of an input: each is `size` pairs that rotate, or `size` elements that do not. */
FB_HOST_DEV int items_of(const head_args &h, int size) { return h.heads * ((h.width - h.half) / size); }

template <class T, int size>
FB_DEVICE void do_item(const rope_args &args, const head_args &h, void *cache, int64_t row, int64_t slot,
                       int item) {
    const int each = (h.width - h.half) / size, head = item / each, half = h.half;
    int i = item % each * size;
    const T *in = (const T *)h.in + row * h.row_stride + head * h.head_stride;
    float a[size], b[size], c[size], s[size];
    if (i >= half) {
        i += half;
        get<size>(in + i, a);
        return put_head<T, size>(args, h, cache, row, slot, head, i, a);
    }
    get<size>(in + i, a);
    get<size>(in + half + i, b);
    get<size>(h.angles + row * h.angle_stride + i, c);
    get<size>(h.angles + row * h.angle_stride + half + i, s);
#pragma unroll
    for (int n = 0; n < size; n++) {
        float x = a[n] * c[n] - b[n] * s[n], y = b[n] * c[n] + a[n] * s[n];
        a[n] = x, b[n] = y;
    }
    put_head<T, size>(args, h, cache, row, slot, head, i, a);
    put_head<T, size>(args, h, cache, row, slot, head, half + i, b);
}

/* The grid's x divides a row's items: q's first, then those of the second query, k and v. Its y divides the
 * rows. */
template <class T, int size> __global__ void __launch_bounds__(THREADS) rope_rows(rope_args args) {
    fb_let_next_start();
    /* The rows and the tables are written before the step's first kernel starts. */
    row_place place = place_of(args, blockIdx.y);
    fb_wait_for_previous();
    /* The end of each input's items. */
    const int q = items_of(args.q, size), sink_q = q + items_of(args.sink_q, size);
    const int k = sink_q + items_of(args.k, size), v = k + items_of(args.v, size);
    const int item = (int)(blockIdx.x * THREADS + threadIdx.x);
    for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
        if (item < q)
            do_item<T, size>(args, args.q, NULL, row, 0, item);
        else if (item < sink_q)
            do_item<T, size>(args, args.sink_q, NULL, row, 0, item - q);
        else if (item < k)
            do_item<T, size>(args, args.k, place.block + args.kv.k_at, row, place.slot, item - sink_q);
        else if (item < v)
            do_item<T, size>(args, args.v, place.block + args.kv.v_at, row, place.slot, item - k);
        if (row + gridDim.y < args.rows) place = place_of(args, row + gridDim.y);
    }
}

/* Whether `size` elements can be loaded and stored at a time. */
static bool fits(const head_args *h, const rope_args *args, fb_dtype dtype, int size) {
    if (h->heads == 0) return true;
    const int bytes = (int)fb_dtype_size(dtype) * size, most = bytes > 16 ? 16 : bytes;
    bool ok = fb_aligned(h->in, most) && h->row_stride % size == 0 && h->head_stride % size == 0;
    ok = ok && h->half % size == 0 && (h->width - h->half) % size == 0;
    if (h->out)
        ok =
            ok && fb_aligned(h->out, most) && h->out_row_stride % size == 0 && h->out_head_stride % size == 0;
    if (h->half) ok = ok && fb_aligned(h->angles, size > 2 ? 16 : 8) && h->angle_stride % size == 0;
    if (!h->out) ok = ok && args->kv.k_at % 16 == 0 && args->kv.v_at % 16 == 0; /* the cache's width is k's */
    return ok;
}

template <int size> static int launch_size(const fb_cuda_context *cx, fb_dtype dtype, const rope_args &args) {
    const int items = items_of(args.q, size) + items_of(args.sink_q, size) + items_of(args.k, size) +
                      items_of(args.v, size);
    dim3 grid((unsigned)((items + THREADS - 1) / THREADS), (unsigned)(args.rows < 65535 ? args.rows : 65535));
    FB_FOR_TYPE(dtype, T, return FB_LAUNCH(cx, grid, dim3(THREADS), 0, (rope_rows<T, size>), args));
    return 1; /* cudaErrorInvalidValue */
}

static int launch(const fb_cuda_context *cx, fb_dtype dtype, const rope_args &args) {
    const int sizes[] = {8, 2};
    for (int size : sizes)
        if (fits(&args.q, &args, dtype, size) && fits(&args.sink_q, &args, dtype, size) &&
            fits(&args.k, &args, dtype, size) && fits(&args.v, &args, dtype, size))
            return size == 8 ? launch_size<8>(cx, dtype, args) : launch_size<2>(cx, dtype, args);
    return launch_size<1>(cx, dtype, args);
}

/* The heads of a view, to be rotated by `angles` unless NULL. */
static head_args heads_of(const fb_view *in, const fb_view *out, const fb_view *angles, int64_t rotary) {
    head_args h = {};
    h.in = in->data;
    h.row_stride = in->row_stride;
    h.head_stride = in->head_stride;
    if (out) {
        h.out = out->data;
        h.out_row_stride = out->row_stride;
        h.out_head_stride = out->head_stride;
    }
    h.heads = (int32_t)in->heads;
    h.width = (int32_t)in->width;
    if (angles) {
        h.half = (int32_t)(rotary / 2);
        h.angles = (const float *)angles->data;
        h.angle_stride = angles->row_stride;
    }
    return h;
}

static rope_args args_of(const fb_call *call) {
    rope_args args = {};
    args.row = call->row;
    args.rows = call->rows;
    return args;
}

int fb_cuda_rope(const fb_call *call, const fb_cuda_context *cx) {
    rope_args args = args_of(call);
    args.q = heads_of(&call->in[0], &call->out[0], &call->in[1], call->attr.rotary);
    return launch(cx, call->in[0].dtype, args);
}

int fb_cuda_kv_append(const fb_call *call, const fb_cuda_context *cx) {
    if (cx->list) return pk_add_rotation(call, false, cx->list);
    rope_args args = args_of(call);
    args.kv = call->kv;
    args.tables = cx->tables;
    args.sequences = cx->sequences;
    args.k = heads_of(&call->in[0], NULL, NULL, 0);
    args.v = heads_of(&call->in[1], NULL, NULL, 0);
    return launch(cx, call->in[0].dtype, args);
}

/* in: q, k, v, angles; with sinks, also the second query's angles. out: the rotated q; with sinks, also the
 * second query. */
int fb_cuda_rope_kv(const fb_call *call, const fb_cuda_context *cx) {
    if (cx->list) return pk_add_rotation(call, true, cx->list);
    const int64_t rotary = call->attr.rotary;
    rope_args args = args_of(call);
    args.kv = call->kv;
    args.tables = cx->tables;
    args.sequences = cx->sequences;
    args.q = heads_of(&call->in[0], &call->out[0], &call->in[3], rotary);
    if (call->out[1].data) args.sink_q = heads_of(&call->in[0], &call->out[1], &call->in[4], rotary);
    args.k = heads_of(&call->in[1], NULL, &call->in[3], rotary);
    args.v = heads_of(&call->in[2], NULL, NULL, 0);
    return launch(cx, call->in[0].dtype, args);
}
