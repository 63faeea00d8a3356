/* embed, embed_position: look up rows of a table. */
#include "backend/cuda/chunk.cuh"
#include "backend/cuda/records.cuh"

#define THREADS 128

typedef struct embed_args {
    fb_weight table;
    int64_t record_row; /* bytes of a row in records; 0: it has another layout */
    const fb_row *row;  /* [rows] */
    bool by_position;   /* else by token */
    void *out;
    int64_t row_stride, rows;
    bool fast; /* 16 bytes at a time */
    float scale;
} embed_args;

template <class T> FB_DEVICE void get_floats(const T *x, int count, bool fast, float *to) {
    if (fast)
        fb_load_8(x, to);
    else
        for (int k = 0; k < count; k++) to[k] = fb_widen(x[k]);
}

/* `count` elements (up to 8) of row `index` from `first` on, a multiple of 8. */
FB_DEVICE void get_chunk(const embed_args &args, int64_t index, int64_t first, int count, float *to) {
    const fb_weight *w = &args.table;
    const int64_t at = index * w->cols + first;
    if (w->dtype == FB_F32) return get_floats((const float *)w->data + at, count, args.fast, to);
    if (w->dtype == FB_F16) return get_floats((const fb_half *)w->data + at, count, args.fast, to);
    if (w->dtype == FB_BF16) return get_floats((const fb_bfloat *)w->data + at, count, args.fast, to);
    if (args.record_row) {
        const fb_record_type t = fb_record_type_of(w->dtype);
        int chunk = (int)(first / 32);
        fb_record_of of = fb_record_find(t, (const uint8_t *)w->data + index * args.record_row,
                                         (int)(w->cols / 32), &chunk);
        return fb_record_eight(t, fb_record_at(t, of.record, of.count, chunk), (int)(first % 32 / 8), to);
    }
    /* A quantised row is whole blocks of 32, so `at` is a multiple of 8 and the 8 bytes of Q8_0 are aligned.
     * In a Q4_0 block chunks 0 and 1 are the low nibbles of its 16 bytes, chunks 2 and 3 the high ones. */
    const int64_t all = w->rows * w->cols;
    const bool wide = w->dtype == FB_Q8_0;
    const uint8_t *bytes = (const uint8_t *)w->data;
    float scale = fb_widen(((const fb_half *)(bytes + (wide ? all : all / 2)))[at / 32]);
    bytes += wide ? at : at / 32 * 16 + at % 16;
    uint2 v = *(const uint2 *)bytes;
    const int shift = at % 32 < 16 ? 0 : 4;
#pragma unroll
    for (int k = 0; k < FB_CHUNK; k++) {
        uint32_t byte = (k < 4 ? v.x : v.y) >> k % 4 * 8;
        int q = wide ? (int)(int8_t)byte : (int)(byte >> shift & 15) - 8;
        to[k] = (float)q * scale;
    }
}

template <class T> __global__ void __launch_bounds__(THREADS) embed_rows(embed_args args) {
    fb_let_next_start();
    fb_wait_for_previous();
    const int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * FB_CHUNK,
                  left = args.table.cols - first;
    if (left <= 0) return;
    const int count = left < FB_CHUNK ? (int)left : FB_CHUNK;
    for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
        float x[FB_CHUNK] = {};
        get_chunk(args, args.by_position ? args.row[row].position : args.row[row].token, first, count, x);
        for (int k = 0; k < FB_CHUNK; k++) x[k] *= args.scale;
        T *out = (T *)args.out + row * args.row_stride + first;
        if (args.fast)
            fb_store_8(out, x);
        else
            for (int k = 0; k < count; k++) out[k] = fb_narrow<T>(x[k]);
    }
}

static int look_up(const fb_call *call, const fb_cuda_context *cx, bool by_position) {
    const fb_view *out = &call->out[0];
    embed_args args = {call->weights[0], 0,         call->row,
                       by_position,      out->data, out->row_stride,
                       call->rows,       false,     call->attr.scale ? call->attr.scale : 1};
    const int64_t cols = args.table.cols, share = THREADS * FB_CHUNK;
    if (fb_weight_is_records(&args.table)) args.record_row = fb_record_row_bytes(args.table.dtype, cols);
    args.fast = cols % FB_CHUNK == 0 && fb_aligned(args.table.data, 16) && fb_aligned(out->data, 16) &&
                (call->rows == 1 || out->row_stride * fb_dtype_size(out->dtype) % 16 == 0);
    dim3 grid((unsigned)((cols + share - 1) / share), (unsigned)(call->rows < 65535 ? call->rows : 65535));
    FB_FOR_TYPE(out->dtype, T, return FB_LAUNCH(cx, grid, dim3(THREADS), 0, embed_rows<T>, args));
    return 1; /* cudaErrorInvalidValue */
}

int fb_cuda_embed(const fb_call *call, const fb_cuda_context *cx) { return look_up(call, cx, false); }
int fb_cuda_embed_position(const fb_call *call, const fb_cuda_context *cx) { return look_up(call, cx, true); }
