/* Elementwise ops of one to three inputs: a thread takes chunks of 8 elements. */
#ifndef FB_BACKEND_CUDA_ELEMENTWISE_CUH
#define FB_BACKEND_CUDA_ELEMENTWISE_CUH

#include "backend/cuda/activation.cuh"
#include "backend/cuda/chunk.cuh"

#define FB_MAP_THREADS 256
/* Chunks of a thread, if there are enough to fill the device: more loads in flight hide latency. */
#define FB_MAP_DEEP 2

/* One op on [rows, heads, width]. Index 3 of the strides is the output's. n: elements of a row. */
typedef struct fb_map {
    const void *in[3];
    void *out;
    int64_t row_stride[4], head_stride[4];
    int64_t rows, n, width;
    bool whole;      /* no gaps between heads */
    bool fast;       /* 16 bytes at a time */
    fb_op_kind act;  /* swiglu */
    float parameter; /* of scale and softcap */
} fb_map;

/* Fused ops round where the plain ops would have stored. */
template <class T> FB_DEVICE float fb_map_value(const fb_map &map, fb_op_kind op, float a, float b, float c) {
    switch (op) {
    case FB_OP_ADD:
        return a + b;
    case FB_OP_MUL:
        return a * b;
    case FB_OP_ADD3:
        return fb_rounded<T>(a + b) + c;
    case FB_OP_SWIGLU:
        return fb_rounded<T>(map.act == FB_OP_GELU        ? fb_gelu(a)
                             : map.act == FB_OP_GELU_TANH ? fb_gelu_tanh(a)
                                                          : fb_silu(a)) *
               b;
    case FB_OP_SCALE:
        return a * map.parameter;
    case FB_OP_SOFTCAP:
        return fb_softcap(a, map.parameter);
    default:
        return fb_activate(op, a);
    }
}

/* One element at a time: for ends of rows, and for rows that do not lie at multiples of 16 bytes. */
template <class T, fb_op_kind op, int inputs>
FB_DEVICE void fb_map_slow(const fb_map &map, int64_t row, int64_t first, int count) {
    for (int64_t i = first; i < first + count; i++) {
        int64_t head = map.whole ? 0 : i / map.width, at = map.whole ? i : i % map.width;
        float x[3] = {0, 0, 0};
        for (int k = 0; k < inputs; k++)
            x[k] = fb_widen(((const T *)map.in[k])[row * map.row_stride[k] + head * map.head_stride[k] + at]);
        ((T *)map.out)[row * map.row_stride[3] + head * map.head_stride[3] + at] =
            fb_narrow<T>(fb_map_value<T>(map, op, x[0], x[1], x[2]));
    }
}

/* The grid's x divides a row, its y the rows. The output may be one of the inputs: the same thread reads an
 * element before it writes it. */
template <class T, fb_op_kind op, int inputs, int deep>
__global__ void __launch_bounds__(FB_MAP_THREADS) fb_map_rows(fb_map map) {
    fb_let_next_start();
    fb_wait_for_previous();
    int64_t begin = ((int64_t)blockIdx.x * deep * FB_MAP_THREADS + threadIdx.x) * FB_CHUNK;
    const int64_t stride = FB_MAP_THREADS * FB_CHUNK;
    for (int64_t row = blockIdx.y; row < map.rows; row += gridDim.y) {
        fb_chunk<T> raw[deep][inputs];
#pragma unroll
        for (int j = 0; j < deep; j++)
            if (map.fast && begin + j * stride + FB_CHUNK <= map.n)
#pragma unroll
                for (int k = 0; k < inputs; k++)
                    raw[j][k].get((const T *)map.in[k] + row * map.row_stride[k] + begin + j * stride);
#pragma unroll
        for (int j = 0; j < deep; j++) {
            int64_t first = begin + j * stride;
            if (map.fast && first + FB_CHUNK <= map.n) {
                float x[3][FB_CHUNK] = {}, y[FB_CHUNK];
#pragma unroll
                for (int k = 0; k < inputs; k++) raw[j][k].widen(x[k]);
#pragma unroll
                for (int i = 0; i < FB_CHUNK; i++) y[i] = fb_map_value<T>(map, op, x[0][i], x[1][i], x[2][i]);
                fb_store_8((T *)map.out + row * map.row_stride[3] + first, y);
            } else if (first < map.n) {
                fb_map_slow<T, op, inputs>(map, row, first, (int)min((int64_t)FB_CHUNK, map.n - first));
            }
        }
    }
}

template <class T, fb_op_kind op, int inputs, int deep>
static int fb_map_launch(const fb_cuda_context *cx, const fb_map &map) {
    int64_t share = (int64_t)FB_MAP_THREADS * FB_CHUNK * deep;
    dim3 grid((unsigned)((map.n + share - 1) / share), (unsigned)(map.rows < 65535 ? map.rows : 65535));
    return FB_LAUNCH(cx, grid, dim3(FB_MAP_THREADS), 0, (fb_map_rows<T, op, inputs, deep>), map);
}

template <fb_op_kind op, int inputs> static int fb_map_call(const fb_call *call, const fb_cuda_context *cx) {
    fb_map map = {};
    map.act = call->attr.act;
    map.parameter = op == FB_OP_SOFTCAP ? call->attr.cap : call->attr.scale;
    const fb_view *out = &call->out[0];
    map.rows = call->rows;
    map.n = out->heads * out->width;
    map.width = out->width;
    map.whole = map.fast = true;
    bool flat = true;
    const int64_t size = fb_dtype_size(out->dtype);
    for (int k = 0; k < 4; k++) {
        if (k >= inputs && k < 3) continue;
        const fb_view *view = k == 3 ? out : &call->in[k];
        if (k == 3)
            map.out = view->data;
        else
            map.in[k] = view->data;
        map.row_stride[k] = view->row_stride;
        map.head_stride[k] = view->head_stride;
        map.whole = map.whole && (out->heads == 1 || view->head_stride == out->width);
        map.fast =
            map.fast && fb_aligned(view->data, 16) && (map.rows == 1 || view->row_stride * size % 16 == 0);
        flat = flat && view->row_stride == map.n;
    }
    map.fast = map.fast && map.whole;
    flat = flat && map.whole;
    if (flat) { /* one long row, of which only the end may be no whole chunk */
        map.fast = true;
        for (int k = 0; k < inputs; k++) map.fast = map.fast && fb_aligned(map.in[k], 16);
        map.fast = map.fast && fb_aligned(map.out, 16);
        map.n *= map.rows;
        map.rows = 1;
    }
    bool deep = map.n * map.rows >= (int64_t)cx->limits->sms * 2048 * FB_CHUNK * FB_MAP_DEEP;
    FB_FOR_TYPE(out->dtype, T,
                return deep ? fb_map_launch<T, op, inputs, FB_MAP_DEEP>(cx, map)
                            : fb_map_launch<T, op, inputs, 1>(cx, map));
    return 1; /* cudaErrorInvalidValue */
}

#endif
