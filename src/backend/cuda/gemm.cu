/* linear_group with many rows: prepares the inputs, then launches the product kernels.
 *
 * The plain ops' kernels normalise and quantise the inputs once. The product's blocks do not, because a row
 * is read by as many of them as there are tiles of outputs. */
#include "backend/cuda/gemm.cuh"
#include "backend/cuda/quantize.h"

#define THREADS 256

/* ---- scratch ---- */

/* Byte offsets in scratch. */
typedef struct gemm_workspace {
    int64_t floats[FB_MAX_SEGMENTS]; /* of x, normalised, or copied to aligned rows for the tensor cores */
    int64_t blocks[FB_MAX_SEGMENTS]; /* of x, quantised */
    int64_t kept, blas, few, decoded, end;
} gemm_workspace;

static int64_t take(int64_t *end, int64_t bytes) {
    int64_t at = *end;
    *end += (bytes + 255) / 256 * 256;
    return at;
}

/* Whether the weights of segment s are decoded to floats before they are multiplied, and to which. Those of
 * generated rows are not. Q8_0 and Q4_0 have kernels of their own, which are faster only where the floats
 * would be float32. */
static bool decodes(const fb_call *call, int s, bool few) {
    const fb_weight *w = &call->weights[4 * s];
    if (few || fb_dtype_is_float(w->dtype)) return false;
    if (fb_weight_is_records(w)) return true;
    const bool combined = call->attr.combine != FB_COMBINE_NONE;
    return call->attr.segment[s].dot != FB_DOT_FLOAT && call->out[combined ? 0 : s].dtype != FB_F32;
}
static fb_dtype decoded_type(const fb_call *call, int s) {
    const bool combined = call->attr.combine != FB_COMBINE_NONE;
    return call->attr.segment[s].dot == FB_DOT_FLOAT ? call->in[s].dtype : call->out[combined ? 0 : s].dtype;
}

/* So many outputs are decoded and multiplied at a time: what DECODED_BYTES hold of the longest rows. The
 * products then read them from the L2. */
#define DECODED_BYTES ((int64_t)32 << 20)
static int64_t slice_rows(const fb_call *call, bool few) {
    int64_t most = 0;
    for (int s = 0; s < call->attr.segments; s++) {
        const int64_t row = call->weights[4 * s].cols * fb_dtype_size(decoded_type(call, s));
        if (decodes(call, s, few) && row > most) most = row;
    }
    if (most == 0) return INT64_MAX / 2;
    return most * 64 > DECODED_BYTES ? 64 : DECODED_BYTES / most / 64 * 64;
}

static gemm_kind kind_of(const fb_call *call, int s, bool few) {
    const fb_weight *w = &call->weights[4 * s];
    if (decodes(call, s, few)) return decoded_type(call, s) == FB_F32 ? GEMM_ANY : GEMM_HALF;
    if (call->attr.segment[s].dot != FB_DOT_FLOAT) return GEMM_QUANT;
    bool half = w->dtype == FB_F16 || w->dtype == FB_BF16;
    /* A device's weights are aligned, a caller's (fusebox_ops.h) may not be. */
    bool whole = w->cols % 8 == 0 && fb_aligned(w->data, 16);
    return half && call->in[s].dtype == w->dtype && whole ? GEMM_HALF : GEMM_ANY;
}

/* Depends on the call's shapes and types, and on its pointers only where weights are not aligned, so that it
 * can be allocated beforehand. */
static gemm_workspace workspace_of(const fb_call *call, int64_t rows, bool generated) {
    gemm_workspace workspace = {};
    int64_t most = 0, few = 0, decoded = 0;
    bool two = call->attr.combine != FB_COMBINE_NONE && call->attr.segments == 2, wide = false;
    workspace.end = FB_CUDA_COUNTERS;
    for (int s = 0; s < call->attr.segments; s++) {
        const fb_weight *w = &call->weights[4 * s];
        const fb_segment *segment = &call->attr.segment[s];
        const gemm_kind kind = kind_of(call, s, generated);
        const bool decoding = decodes(call, s, generated);
        int64_t size = fb_dtype_size(call->in[s].dtype);
        if (decoding && fb_dtype_size(decoded_type(call, s)) > size) size = 4;
        if (segment->norm != FB_OP_COUNT || kind == GEMM_HALF || decoding)
            workspace.floats[s] = take(&workspace.end, rows * w->cols * size);
        if (segment->dot == FB_DOT_QUANTIZE)
            workspace.blocks[s] = take(&workspace.end, rows * (w->cols / 32) * (int64_t)sizeof(fb_q8));
        const int64_t rows_at_once = min(w->rows, slice_rows(call, generated));
        const int64_t slice = rows_at_once * w->cols * fb_dtype_size(decoded_type(call, s));
        if (decoding && slice > decoded) decoded = slice;
        if (kind == GEMM_QUANT && !fb_weight_is_records(w))
            few += gemm_few_quant_workspace_bytes(w->cols, w->rows, w->dtype);
        if (kind != GEMM_HALF) continue;
        if (!decoding) few += gemm_few_half_workspace_bytes(w->cols, w->rows);
        if (rows_at_once > most) most = rows_at_once;
        if (call->weights[4 * s + 1].data)
            wide = wide || !gemm_blas_biased(call->weights[4 * s + 1].data, call->weights[4 * s + 1].dtype,
                                             call->out[two ? 0 : s].dtype);
    }
    if (two)
        workspace.kept =
            take(&workspace.end, rows * call->weights[0].rows * fb_dtype_size(call->out[0].dtype));
    workspace.few = take(&workspace.end, few);
    workspace.decoded = take(&workspace.end, decoded);
    wide = wide || call->out[0].dtype == FB_F32;
    if (most)
        workspace.blas =
            take(&workspace.end, gemm_blas_workspace_bytes(two ? 2 : 1, rows * most, wide ? FB_F32 : FB_F16));
    return workspace;
}

int64_t fb_cuda_gemm_scratch(const fb_call *call, int64_t rows) {
    int64_t few = workspace_of(call, rows, true).end, many = workspace_of(call, rows, false).end;
    return few > many ? few : many;
}

/* ---- inputs ---- */

__global__ void gemm_move_kernel(const uint16_t *from, int64_t from_row, uint16_t *to, int64_t width,
                                 int64_t count) {
    fb_let_next_start();
    fb_wait_for_previous();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS)
        to[i] = from[i / width * from_row + i % width];
}

static fb_view rows_at(void *data, fb_dtype dtype, int64_t width) {
    fb_view view = {data, dtype, 1, width, width, width};
    return view;
}

/* The norm of segment s as a call of its own. */
static fb_call norm_call(const fb_call *call, int s, const fb_view *x) {
    fb_call norm = {};
    norm.in[0] = *x;
    norm.weights[0] = call->weights[4 * s + 2];
    norm.weights[1] = call->weights[4 * s + 3];
    norm.attr.norm = call->attr.segment[s].norm;
    norm.attr.eps = call->attr.segment[s].eps;
    norm.rows = call->rows;
    norm.act = x->dtype;
    return norm;
}

static int normalise(const fb_call *call, int s, const fb_cuda_context *cx, fb_view *x, uint8_t *to) {
    fb_call norm = norm_call(call, s, x);
    *x = norm.out[0] = rows_at(to, x->dtype, x->width);
    return norm.attr.norm == FB_OP_LAYERNORM ? fb_cuda_layernorm(&norm, cx) : fb_cuda_rmsnorm(&norm, cx);
}

static int quantise(const fb_call *call, const fb_cuda_context *cx, fb_view *x, uint8_t *to) {
    fb_call quantize = {};
    quantize.in[0] = *x;
    quantize.out[0] = rows_at(to, FB_F32, fb_q8_floats(x->width));
    quantize.rows = call->rows;
    quantize.act = x->dtype;
    *x = quantize.out[0];
    return fb_cuda_quantize(&quantize, cx);
}

static int move(const fb_call *call, const fb_cuda_context *cx, fb_view *x, uint8_t *to) {
    fb_view from = *x;
    int64_t count = call->rows * x->width, blocks = (count + THREADS - 1) / THREADS;
    *x = rows_at(to, x->dtype, x->width);
    return FB_LAUNCH(cx, dim3((unsigned)(blocks < 65536 ? blocks : 65536)), dim3(THREADS), 0,
                     gemm_move_kernel, (const uint16_t *)from.data, from.row_stride, (uint16_t *)to,
                     from.width, count);
}

/* Quantised rows become floats again, rounded as the quantize op rounds. */
static int decode_x(const fb_call *call, int s, const fb_cuda_context *cx, fb_view *x, uint8_t *to) {
    const int64_t cols = call->weights[4 * s].cols;
    const fb_view blocks = *x;
    *x = rows_at(to, decoded_type(call, s), cols);
    return gemm_decode_rows(&blocks, call->rows, cols, x->dtype, to, cx);
}

/* Whether segments e and s have the same prepared input. */
static bool same_input(const fb_call *call, int e, int s, bool few) {
    const fb_segment *a = &call->attr.segment[e], *b = &call->attr.segment[s];
    return call->in[e].data == call->in[s].data && call->in[e].dtype == call->in[s].dtype &&
           call->in[e].row_stride == call->in[s].row_stride &&
           kind_of(call, e, few) == kind_of(call, s, few) && decodes(call, e, few) == decodes(call, s, few) &&
           decoded_type(call, e) == decoded_type(call, s) &&
           call->weights[4 * e].cols == call->weights[4 * s].cols && a->norm == b->norm && a->eps == b->eps &&
           a->dot == b->dot && call->weights[4 * e + 2].data == call->weights[4 * s + 2].data &&
           call->weights[4 * e + 3].data == call->weights[4 * s + 3].data;
}

/* Prepares the input of segment s for its product: views[s]. */
static int prepare(const fb_call *call, int s, bool few, const fb_cuda_context *cx,
                   const gemm_workspace *workspace, fb_view *views) {
    fb_dot dot = call->attr.segment[s].dot;
    fb_view *x = &views[s];
    int code = 0;
    for (int e = 0; e < s; e++)
        if (same_input(call, e, s, few)) {
            *x = views[e];
            return 0;
        }
    *x = call->in[s];
    if (dot == FB_DOT_GIVEN && decodes(call, s, few))
        return decode_x(call, s, cx, x, cx->scratch + workspace->floats[s]);
    if (dot == FB_DOT_GIVEN) return 0;
    x->heads = 1;
    x->width = call->weights[4 * s].cols;
    const bool normed = call->attr.segment[s].norm != FB_OP_COUNT, quantised = dot == FB_DOT_QUANTIZE;
    uint8_t *blocks = cx->scratch + workspace->blocks[s];
    fb_call both = norm_call(call, s, x);
    if (normed && quantised && fb_cuda_norm_quantize_fits(&both)) {
        *x = both.out[0] = rows_at(blocks, FB_F32, fb_q8_floats(x->width));
        code = fb_cuda_norm_quantize(&both, cx);
    } else {
        if (normed) code = normalise(call, s, cx, x, cx->scratch + workspace->floats[s]);
        if (code == 0 && quantised) code = quantise(call, cx, x, blocks);
    }
    if (quantised && decodes(call, s, few))
        return code ? code : decode_x(call, s, cx, x, cx->scratch + workspace->floats[s]);
    if (kind_of(call, s, few) == GEMM_HALF && code == 0 &&
        (x->row_stride != x->width || !fb_aligned(x->data, 16)))
        code = move(call, cx, x, cx->scratch + workspace->floats[s]);
    return code;
}

/* ---- products ---- */

static gemm_segment segment_of(const fb_call *call, int s, const fb_view *x, const uint8_t *decoded) {
    const fb_weight *w = &call->weights[4 * s], *bias = &call->weights[4 * s + 1];
    gemm_segment segment = {};
    segment.x = (const uint8_t *)x->data;
    segment.x_row = x->row_stride * fb_dtype_size(x->dtype);
    segment.w = (const uint8_t *)w->data;
    if (fb_weight_is_records(w))
        segment.w_row = fb_record_row_bytes(w->dtype, w->cols);
    else if (!fb_dtype_is_float(w->dtype))
        segment.scales = segment.w + w->rows * (w->cols / 32) * (w->dtype == FB_Q8_0 ? 32 : 16);
    segment.bias = bias->data;
    segment.bias_dtype = bias->dtype;
    segment.k = w->cols;
    segment.n = w->rows;
    segment.x_dtype = x->dtype;
    segment.w_dtype = w->dtype;
    if (decoded) {
        segment.w = decoded;
        segment.w_dtype = x->dtype;
        segment.scales = NULL;
    }
    segment.act = call->attr.segment[s].act;
    return segment;
}

/* Whether segment s can be added in the order of sums.h. */
static bool has_order(const fb_call *call, int s, const fb_cuda_context *cx) {
    const fb_weight *w = &call->weights[4 * s];
    gemm_kind kind = kind_of(call, s, true);
    if (kind == GEMM_QUANT && fb_weight_is_records(w))
        return gemm_few_records_fits(w, call->attr.segment[s].dot == FB_DOT_GIVEN ? &call->in[s] : NULL,
                                     cx->limits);
    return kind == GEMM_HALF || (kind == GEMM_QUANT && gemm_few_quant_fits(w->cols, w->dtype, cx->limits));
}

int64_t fb_cuda_gemm_few_rows(const fb_call *call, const fb_cuda_context *cx) {
    for (int s = 0; s < call->attr.segments; s++)
        if (!has_order(call, s, cx)) return 0;
    return GEMM_FEW_ROWS;
}

/* Whether one launch can compute both segments. Decoded weights have one place, for one segment at a time. */
static bool same_kernel(const fb_call *call, int a, int b, bool few) {
    const fb_weight *v = &call->weights[4 * a], *w = &call->weights[4 * b];
    const bool records = fb_weight_is_records(v);
    return !decodes(call, a, few) && !decodes(call, b, few) &&
           kind_of(call, a, few) == kind_of(call, b, few) && records == fb_weight_is_records(w) &&
           (call->attr.combine != FB_COMBINE_NONE || call->out[a].dtype == call->out[b].dtype) &&
           (kind_of(call, a, few) == GEMM_ANY || records || v->dtype == w->dtype) &&
           (v->rows % 8 == 0) == (w->rows % 8 == 0);
}

/* Launches a job whose segments all take the kernel of segment s. `few`: of generated rows. */
static int product(const fb_call *call, int s, bool few, const gemm_job *job, const fb_cuda_context *cx,
                   const gemm_workspace *workspace) {
    switch (kind_of(call, s, few)) {
    case GEMM_QUANT:
        if (few && fb_weight_is_records(&call->weights[4 * s])) return gemm_few_bulk_records(job, cx);
        if (few && gemm_few_bulk_quant_fits(job, cx->limits)) return gemm_few_bulk_quant(job, cx);
        return few ? gemm_few_quant(job, cx, cx->scratch + workspace->few) : gemm_quant(job, cx);
    case GEMM_ANY:
        return gemm_any(job, cx);
    default:
        if (few && gemm_few_bulk_half_fits(cx->limits)) return gemm_few_bulk_half(job, cx);
        if (few) return gemm_few_half(job, cx, cx->scratch + workspace->few);
        if (cx->blas && call->weights[4 * s].rows % 8 == 0) {
            int code = gemm_blas(job, cx, cx->scratch + workspace->blas);
            if (code != GEMM_UNSERVED) return code;
        }
        return gemm_half(job, cx);
    }
}

/* Moves a segment to outputs [first, first + count). */
static void slice_segment(gemm_segment *segment, bool decoded, int64_t first, int64_t count) {
    if (!decoded && fb_dtype_is_float(segment->w_dtype))
        segment->w += first * segment->k * fb_dtype_size(segment->w_dtype);
    if (!decoded && segment->scales) {
        segment->w += first * (segment->k / 32) * (segment->w_dtype == FB_Q8_0 ? 32 : 16);
        segment->scales += first * (segment->k / 32) * 2;
    }
    segment->bias = fb_at(segment->bias, segment->bias_dtype, segment->bias ? first : 0);
    segment->n = count;
}

/* Launches segments [s, end), which one kernel can compute. Outputs [first, first + count): all, or those of
 * a slice; several segments with an output each are not cut. */
static int launch_outputs(const fb_call *call, int s, int end, bool few, gemm_job job, int64_t first,
                          int64_t count, const fb_cuda_context *cx, const gemm_workspace *workspace) {
    const bool combined = call->attr.combine != FB_COMBINE_NONE;
    job.units = combined ? 1 : end - s;
    job.first = combined ? s : 0;
    job.count = combined ? end - s : 1;
    job.dtype = call->out[combined ? 0 : s].dtype;
    for (int u = 0; u < job.units; u++) {
        const fb_view *out = &call->out[combined ? 0 : s + u];
        gemm_unit unit = {(uint8_t *)fb_at(out->data, out->dtype, first), out->row_stride,
                          combined ? 0 : s + u, 0};
        job.unit[u] = unit;
    }
    for (int p = s; p < end && (combined || end == s + 1); p++)
        slice_segment(&job.segment[p], decodes(call, p, few), first, count);
    if (job.residual) job.residual += first * fb_dtype_size(job.dtype);
    job.kept += first * job.rows * fb_dtype_size(job.dtype);
    if (decodes(call, s, few)) {
        int code = gemm_decode_weights(&call->weights[4 * s], first, count, decoded_type(call, s),
                                       cx->scratch + workspace->decoded, cx);
        if (code) return code;
    }
    return product(call, s, few, &job, cx, workspace);
}

static int run(const fb_call *call, bool few, const fb_cuda_context *cx) {
    gemm_workspace workspace = workspace_of(call, call->rows, few);
    fb_view x[FB_MAX_SEGMENTS];
    gemm_job job = {};
    int segments = call->attr.segments;
    bool combined = call->attr.combine != FB_COMBINE_NONE;
    job.combine = call->attr.combine;
    job.parts = combined ? segments : 1;
    job.residual = (const uint8_t *)call->in[FB_RESIDUAL].data;
    job.residual_row = call->in[FB_RESIDUAL].row_stride;
    job.kept = cx->scratch + workspace.kept;
    job.rows = call->rows;
    for (int s = 0; s < segments; s++) {
        int code = prepare(call, s, few, cx, &workspace, x);
        if (code) return code;
        job.segment[s] =
            segment_of(call, s, &x[s], decodes(call, s, few) ? cx->scratch + workspace.decoded : NULL);
    }
    const int64_t most = slice_rows(call, few), rows = call->weights[0].rows;
    for (int64_t first = 0; combined && first < rows; first += most)
        for (int s = 0, end; s < segments; s = end) {
            for (end = s + 1; end < segments && same_kernel(call, s, end, few);) end++;
            int code = launch_outputs(call, s, end, few, job, first, min(most, rows - first), cx, &workspace);
            if (code) return code;
        }
    for (int s = 0, end = 0; !combined && s < segments; s = end) {
        for (end = s + 1; end < segments && same_kernel(call, s, end, few);) end++;
        const int64_t n = call->weights[4 * s].rows, each = decodes(call, s, few) ? most : n;
        for (int64_t first = 0; first < n; first += each) {
            int code = launch_outputs(call, s, end, few, job, first, min(each, n - first), cx, &workspace);
            if (code) return code;
        }
    }
    return 0;
}

int fb_cuda_gemm_group(const fb_call *call, const fb_cuda_context *cx) { return run(call, false, cx); }
int fb_cuda_gemm_few(const fb_call *call, const fb_cuda_context *cx) { return run(call, true, cx); }
