/* Packed weights, quantize_q8, and linears of quantised weights. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/pack.h"
#include "base/quant.h"
#include "ops/linear.h"

struct fb_ops_weight {
    fb_ops *ops;
    fb_weight weight; /* in the layout of the device's kernels */
};

_Static_assert(sizeof(fb_ops_block) == sizeof(fb_q8) && offsetof(fb_ops_block, q) == offsetof(fb_q8, q) &&
                   offsetof(fb_ops_block, sum) == offsetof(fb_q8, sum),
               "fb_ops_block is the kernels' fb_q8");

/* Floats of a block: views of quantised activations count in floats. */
#define BLOCK_FLOATS ((int64_t)(sizeof(fb_q8) / sizeof(float)))

/* ---- packing ---- */

typedef struct packing {
    const fb_weight *from;
    uint8_t *to;
    int32_t threads;
} packing;

static void pack_share(void *arg, int32_t worker) {
    const packing *p = arg;
    const fb_weight *w = p->from;
    int64_t begin, end, row_bytes = fb_dtype_bytes(w->dtype, w->cols);
    fb_pool_share(w->rows, FB_PACK_ROWS, worker, p->threads, &begin, &end);
    for (int64_t row = begin; row < end; row++)
        fb_pack_row(w->dtype, (const uint8_t *)w->data + row * row_bytes, w->cols, row, p->to);
}

static fb_status pack_cpu(fb_ops *ops, const fb_weight *from, fb_weight *to, fb_error *err) {
    int64_t bytes = fb_pack_bytes(from->dtype, from->rows, from->cols);
    void *memory;
    FB_TRY(fb_memory_take("packed weight", bytes, &memory, err));
    memset(memory, 0, (size_t)bytes); /* rows beyond the last one are zeros */
    fb_pool *pool = ((fb_cpu_device *)ops->device)->pool;
    packing p = {from, memory, ops->threads};
    fb_status status = fb_pool_grow(pool, ops->threads, err);
    if (status != FB_OK) {
        free(memory);
        return status;
    }
    fb_pool_run(pool, ops->threads, pack_share, &p);
    *to = *from;
    to->data = memory;
    to->packed = true;
    return FB_OK;
}

/* What encoding and packing have in common. `data`: what is read, and its name. */
static fb_status check_blocks_of(const char *op, fb_dtype dtype, const char *name, const void *data,
                                 int64_t rows, int64_t cols, fb_error *err) {
    if (dtype != FB_Q8_0 && dtype != FB_Q4_0)
        return fb_fail(err, FB_ERROR_USAGE, "%s: dtype: %d (must be q8_0 or q4_0)", op, (int)dtype);
    if (!data) return fb_fail(err, FB_ERROR_USAGE, "%s: %s: NULL (must not be NULL)", op, name);
    if (rows < 1 || rows > FB_OPS_MAX_COLS)
        return fb_fail(err, FB_ERROR_USAGE, "%s: rows: %lld (from 1 to %lld)", op, (long long)rows,
                       (long long)FB_OPS_MAX_COLS);
    if (cols < 32 || cols > FB_OPS_MAX_COLS || cols % 32)
        return fb_fail(err, FB_ERROR_USAGE, "%s: columns: %lld (a multiple of 32, up to %lld)", op,
                       (long long)cols, (long long)FB_OPS_MAX_COLS);
    return FB_OK;
}

fb_status fb_ops_quantize_weight(fb_dtype dtype, const float *values, int64_t rows, int64_t cols,
                                 void *blocks, fb_error *err) {
    FB_TRY(check_blocks_of("quantize_weight", dtype, "values", values, rows, cols, err));
    if (!blocks) return fb_fail(err, FB_ERROR_USAGE, "quantize_weight: blocks: NULL (must not be NULL)");
    fb_quant_encode(dtype, values, rows * cols, blocks);
    return FB_OK;
}

fb_status fb_ops_pack(fb_ops *ops, fb_dtype dtype, const void *blocks, int64_t rows, int64_t cols,
                      fb_ops_weight **out, fb_error *err) {
    *out = NULL;
    FB_TRY(fb_check_ops(&(fb_check){ops, "pack", err}));
    FB_TRY(check_blocks_of("pack", dtype, "blocks", blocks, rows, cols, err));
    fb_ops_weight *weight = calloc(1, sizeof *weight);
    if (!weight) return fb_fail_memory(err, "packed weight", sizeof *weight);
    weight->ops = ops;
    fb_weight from = {.data = blocks, .dtype = dtype, .rows = rows, .cols = cols};
    fb_turn_take(&ops->device->turn);
    fb_status status = ops->cuda ? ops->cuda->pack(ops->gpu, &from, &weight->weight, err)
                                 : pack_cpu(ops, &from, &weight->weight, err);
    fb_turn_give(&ops->device->turn);
    if (status != FB_OK) {
        free(weight);
        return status;
    }
    *out = weight;
    return FB_OK;
}

void fb_ops_weight_free(fb_ops_weight *weight) {
    if (!weight) return;
    if (weight->ops->cuda)
        weight->ops->cuda->unpack(weight->ops->gpu, &weight->weight);
    else
        free((void *)(uintptr_t)weight->weight.data);
    free(weight);
}

/* ---- activations ---- */

static fb_status check_blocks(const fb_check *c, const char *name, const void *blocks, int64_t stride,
                              int64_t rows, int64_t least) {
    if (!blocks && rows) return fb_fail(c->err, FB_ERROR_USAGE, "%s: %s: NULL (must not be)", c->op, name);
    if ((uintptr_t)blocks % 8)
        return fb_fail(c->err, FB_ERROR_USAGE, "%s: %s: address %p (must be a multiple of 8)", c->op, name,
                       blocks);
    if (rows > 1 && (stride < least || stride > FB_OPS_MAX_STRIDE))
        return fb_fail(c->err, FB_ERROR_USAGE, "%s: stride: %lld (from %lld to %lld)", c->op,
                       (long long)stride, (long long)least, (long long)FB_OPS_MAX_STRIDE);
    return FB_OK;
}

static fb_view blocks_view(const fb_ops_block *blocks, int64_t stride, int64_t rows, int64_t cols) {
    int64_t width = fb_q8_floats(cols);
    return (fb_view){
        (void *)(uintptr_t)blocks, FB_F32, 1, width, rows > 1 ? stride * BLOCK_FLOATS : width, width};
}

fb_status fb_ops_quantize_q8(fb_ops *ops, void *stream, const fb_ops_tensor *x, fb_ops_block *out,
                             int64_t stride, fb_error *err) {
    const fb_check c = {ops, "quantize_q8", err};
    FB_TRY(fb_check_ops(&c));
    FB_TRY(fb_check_tensor(&c, "x", x, &(fb_expect){FB_OPS_ANY_DTYPE, -1, -1, false}));
    FB_TRY(fb_check_linear_rows(&c, x->rows));
    if (x->cols % 32)
        return fb_fail(err, FB_ERROR_USAGE, "quantize_q8: x: columns %lld (must be a multiple of 32)",
                       (long long)x->cols);
    FB_TRY(check_blocks(&c, "out", out, stride, x->rows, x->cols / 32));
    fb_call call = {.in = {fb_tensor_view(x)},
                    .out = {blocks_view(out, stride, x->rows, x->cols)},
                    .rows = x->rows,
                    .act = x->dtype};
    return fb_ops_run_one(ops, stream, FB_OP_QUANTIZE, &call, 2 * fb_tensor_bytes(x), err);
}

/* ---- linears ---- */

static fb_status check_weight(const fb_check *c, const fb_ops_weight *weight, fb_dtype dtype) {
    FB_TRY(fb_check_ops(c));
    if (!weight) return fb_fail(c->err, FB_ERROR_USAGE, "%s: weight: NULL (must be of fb_ops_pack)", c->op);
    if (weight->ops->device != c->ops->device)
        return fb_fail(c->err, FB_ERROR_USAGE, "%s: weight: of another device (must be of the context's)",
                       c->op);
    if (dtype != FB_OPS_ANY_DTYPE && weight->weight.dtype != dtype)
        return fb_fail(c->err, FB_ERROR_USAGE, "%s: weight: dtype %s (must be %s)", c->op,
                       fb_dtype_name(weight->weight.dtype), fb_dtype_name(dtype));
    return FB_OK;
}

/* The rest of a linear, once the caller has set in[0]. */
static fb_status run_linear(const fb_check *c, fb_ops *ops, void *stream, const fb_ops_weight *weight,
                            const fb_ops_tensor *bias, const fb_ops_tensor *out, fb_dtype act, int64_t rows,
                            fb_call *call) {
    FB_TRY(fb_check_vector(c, "bias", bias, weight->weight.rows, true, &call->weights[1]));
    FB_TRY(fb_check_tensor(c, "out", out, &(fb_expect){act, rows, weight->weight.rows, true}));
    FB_TRY(fb_check_linear_rows(c, out->rows));
    call->weights[0] = weight->weight;
    call->out[0] = fb_tensor_view(out);
    call->attr.segments = 1;
    call->attr.segment[0].norm = call->attr.segment[0].act = FB_OP_COUNT;
    call->rows = out->rows;
    call->act = out->dtype;
    return fb_ops_run_one(ops, stream, FB_OP_LINEAR_GROUP, call, fb_linear_bytes(call), c->err);
}

static fb_status linear(const fb_check *c, fb_ops *ops, void *stream, fb_dtype dtype, const fb_ops_tensor *x,
                        const fb_ops_weight *weight, const fb_ops_tensor *bias, const fb_ops_tensor *out) {
    fb_call call = {.attr.segment = {{.dot = FB_DOT_QUANTIZE}}};
    FB_TRY(check_weight(c, weight, dtype));
    FB_TRY(fb_check_tensor(c, "x", x, &(fb_expect){FB_OPS_ANY_DTYPE, -1, weight->weight.cols, false}));
    call.in[0] = fb_tensor_view(x);
    return run_linear(c, ops, stream, weight, bias, out, x->dtype, x->rows, &call);
}

fb_status fb_ops_linear_q8_0(fb_ops *ops, void *stream, const fb_ops_tensor *x, const fb_ops_weight *weight,
                             const fb_ops_tensor *bias, const fb_ops_tensor *out, fb_error *err) {
    return linear(&(fb_check){ops, "linear_q8_0", err}, ops, stream, FB_Q8_0, x, weight, bias, out);
}

fb_status fb_ops_linear_q4_0(fb_ops *ops, void *stream, const fb_ops_tensor *x, const fb_ops_weight *weight,
                             const fb_ops_tensor *bias, const fb_ops_tensor *out, fb_error *err) {
    return linear(&(fb_check){ops, "linear_q4_0", err}, ops, stream, FB_Q4_0, x, weight, bias, out);
}

fb_status fb_ops_linear_blocks(fb_ops *ops, void *stream, const fb_ops_block *x, int64_t stride,
                               const fb_ops_weight *weight, const fb_ops_tensor *bias,
                               const fb_ops_tensor *out, fb_error *err) {
    const fb_check c = {ops, "linear_blocks", err};
    fb_call call = {.attr.segment = {{.dot = FB_DOT_GIVEN}}};
    FB_TRY(check_weight(&c, weight, FB_OPS_ANY_DTYPE));
    FB_TRY(fb_check_tensor(&c, "out", out, &(fb_expect){FB_OPS_ANY_DTYPE, -1, weight->weight.rows, true}));
    FB_TRY(check_blocks(&c, "x", x, stride, out->rows, weight->weight.cols / 32));
    call.in[0] = blocks_view(x, stride, out->rows, weight->weight.cols);
    return run_linear(&c, ops, stream, weight, bias, out, FB_OPS_ANY_DTYPE, -1, &call);
}
