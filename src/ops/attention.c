/* attention: decode and prefill. */
#include <math.h>

#include "ops/rope.h"

#define MAX_WIDTH   256
#define MAX_CONTEXT ((int64_t)1 << 30)
#define MAX_ROWS    ((int64_t)1 << 20)

typedef struct attention {
    const fb_ops_heads *q, *k, *v, *out;
    fb_ops_positions positions;
    fb_op_kind kind;
    float scale;
    int64_t context; /* positions that can be seen */
} attention;

static fb_status check_limit(const fb_check *c, const char *name, const char *what, int64_t value,
                             int64_t least, int64_t most) {
    if (value >= least && value <= most) return FB_OK;
    return fb_fail(c->err, FB_ERROR_USAGE, "%s: %s: %s %lld (from %lld to %lld)", c->op, name, what,
                   (long long)value, (long long)least, (long long)most);
}

static fb_status check_shapes(const fb_check *c, const attention *a) {
    FB_TRY(fb_check_ops(c));
    FB_TRY(fb_check_heads(c, "q", a->q, &(fb_expect){FB_OPS_ANY_DTYPE, -1, -1, false}, -1));
    FB_TRY(check_limit(c, "q", "width", a->q->width, 1, MAX_WIDTH));
    FB_TRY(check_limit(c, "q", "rows", a->q->rows, 0, MAX_ROWS));
    FB_TRY(fb_check_heads(c, "k", a->k, &(fb_expect){a->q->dtype, -1, a->q->width, false}, -1));
    FB_TRY(check_limit(c, "k", "rows", a->k->rows, a->q->rows ? 1 : 0, MAX_CONTEXT));
    if (a->q->heads % a->k->heads)
        return fb_fail(c->err, FB_ERROR_USAGE, "attention: k: heads %lld (must divide q's %lld)",
                       (long long)a->k->heads, (long long)a->q->heads);
    FB_TRY(
        fb_check_heads(c, "v", a->v, &(fb_expect){a->q->dtype, a->k->rows, a->q->width, false}, a->k->heads));
    FB_TRY(fb_check_heads(c, "out", a->out, &(fb_expect){a->q->dtype, a->q->rows, a->q->width, true},
                          a->q->heads));
    if (!isfinite(a->scale))
        return fb_fail(c->err, FB_ERROR_USAGE, "attention: scale: %g (must be finite)", (double)a->scale);
    return fb_check_positions(c, &a->positions, false);
}

/* On the CPU: positions are ascending and inside the context, of which only what they see is needed. */
static fb_status check_positions(const fb_check *c, attention *a) {
    int64_t before = 0;
    if (!a->positions.data) return check_limit(c, "q", "rows without positions", a->q->rows, 0, a->context);
    if (c->ops->cuda) return FB_OK;
    for (int64_t row = 0; row < a->q->rows; row++) {
        int64_t position = fb_position_at(&a->positions, row);
        if (position < before || position >= a->context)
            return fb_fail(c->err, FB_ERROR_USAGE, "attention: positions[%lld]: %lld (from %lld to %lld)",
                           (long long)row, (long long)position, (long long)before,
                           (long long)(a->context - 1));
        before = position;
    }
    if (a->q->rows) a->context = before + 1;
    return FB_OK;
}

/* ---- the cache ---- */

/* Whether a GPU's kernels can read k and v where they are; `capacity` is then the slots of a head. */
static bool in_place(const fb_ops *ops, const attention *a, int64_t *capacity) {
    const fb_ops_heads *k = a->k, *v = a->v;
    *capacity = k->rows;
    if (!ops->cuda || (k->rows > 1 && (k->row_stride != k->width || v->row_stride != v->width))) return false;
    if (k->heads == 1) return true;
    *capacity = k->head_stride / k->width;
    return k->head_stride == v->head_stride && k->head_stride % k->width == 0 && *capacity >= k->rows;
}

static fb_kv cache_of(const fb_ops *ops, const attention *a, int64_t capacity, const void *k, const void *v) {
    fb_kv kv = {.dtype = a->k->dtype,
                .heads = a->k->heads,
                .capacity = capacity,
                .width = a->k->width,
                .block = capacity,
                .shift = FB_KV_WHOLE};
    if (ops->cuda) { /* see fb_cuda_ops_table.launch */
        kv.k_at = (int64_t)(uintptr_t)k;
        kv.v_at = (int64_t)(uintptr_t)v;
    } else {
        kv.k = (void *)(uintptr_t)k;
        kv.v = (void *)(uintptr_t)v;
    }
    return kv;
}

static int64_t half_bytes(const attention *a, int64_t capacity) {
    int64_t bytes = a->k->heads * capacity * a->k->width * fb_dtype_size(a->k->dtype);
    return (bytes + 255) / 256 * 256;
}

static int64_t work_bytes(const attention *a, int64_t rows) {
    return 2 * rows * a->k->heads * a->k->width * fb_dtype_size(a->k->dtype);
}

/* Copies k and v to `kv` with the engine's kv_append. */
static fb_status copy_cache(fb_job *job, const attention *a, const fb_kv *kv, fb_row *rows, fb_error *err) {
    FB_TRY(fb_job_rows(job, &(fb_ops_positions){NULL, 64}, 0, INT64_MAX, a->context, rows, err));
    fb_call call = {.in = {fb_heads_view(a->k), fb_heads_view(a->v)},
                    .kv = *kv,
                    .rows = a->context,
                    .row = rows,
                    .act = a->k->dtype};
    return fb_job_run(job, FB_OP_KV_APPEND, &call, 2 * work_bytes(a, a->context), err);
}

/* The temporary memory: the rows of q, then, where the cache is copied, k, v and a row for each position. */
static fb_status run_attention(fb_job *job, const attention *a, bool copied, int64_t capacity,
                               fb_error *err) {
    fb_row *rows = (fb_row *)(void *)job->temp;
    uint8_t *copy = job->temp + fb_rows_bytes(a->q->rows);
    int64_t half = half_bytes(a, capacity);
    fb_kv kv = copied ? cache_of(job->ops, a, capacity, copy, copy + half)
                      : cache_of(job->ops, a, capacity, a->k->data, a->v->data);
    if (copied) FB_TRY(copy_cache(job, a, &kv, (fb_row *)(void *)(copy + 2 * half), err));
    FB_TRY(fb_job_rows(job, &a->positions, a->k->rows - a->q->rows, a->k->rows - 1, a->q->rows, rows, err));
    fb_call call = {.in = {fb_heads_view(a->q)},
                    .out = {fb_heads_view(a->out)},
                    .attr.scale = a->scale,
                    .kv = kv,
                    .rows = a->q->rows,
                    .row = rows,
                    .act = a->q->dtype};
    int64_t items = a->q->rows * (a->q->heads / a->k->heads);
    return fb_job_attend(job, a->kind, &call, a->context, work_bytes(a, a->context) * (1 + items / 4), err);
}

fb_status fb_ops_attention(fb_ops *ops, void *stream, const fb_ops_heads *q, const fb_ops_heads *k,
                           const fb_ops_heads *v, fb_ops_positions positions, float scale, bool exact,
                           const fb_ops_heads *out, fb_error *err) {
    const fb_check c = {ops, "attention", err};
    attention a = {.q = q,
                   .k = k,
                   .v = v,
                   .out = out,
                   .positions = positions,
                   .kind = exact ? FB_OP_ATTN_ROWS : FB_OP_ATTN_FLASH,
                   .scale = scale};
    int64_t capacity;
    fb_job job;
    FB_TRY(check_shapes(&c, &a));
    a.context = k->rows;
    FB_TRY(check_positions(&c, &a));
    if (q->rows == 0) return FB_OK;
    bool copied = !in_place(ops, &a, &capacity);
    if (copied) capacity = (a.context + FB_KV_GROUP - 1) / FB_KV_GROUP * FB_KV_GROUP;
    int64_t bytes = fb_rows_bytes(q->rows);
    if (copied) bytes += 2 * half_bytes(&a, capacity) + fb_rows_bytes(a.context);
    FB_TRY(fb_job_begin(ops, stream, bytes, &job, err));
    fb_status status = run_attention(&job, &a, copied, capacity, err);
    fb_job_end(&job);
    return status;
}
