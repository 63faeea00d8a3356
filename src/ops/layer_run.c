/* Runs a layer on the caller's memory: op after op of its plan.
 *
 * A GPU's kernels read and write the caller's cache in place. The CPU's kernels have a layout of their own:
 * there, the slots that the rows see are copied to the workspace before, and the new ones back afterwards. */
#include "ops/layer.h"

/* Rows of one pass over the ops. Buffers of the pass grow with it; the bits do not depend on it. */
#define PASS_ROWS 512

/* The rows of a step, of all its sequences. `angles` are those of rotary positions. */
typedef struct step {
    fb_ops_layer *layer;
    fb_view x, out, angles;
    const fb_row *rows; /* [sequences, each] */
    const fb_ops_cache *cache;
    int64_t sequences, each;
    /* CPU: the copy of the cache, of all sequences. */
    uint8_t *copy;
    int64_t slots, half; /* slots of a sequence's copy; bytes of its k */
} step;

static int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- places ---- */

int64_t fb_ops_places_bytes(const fb_ops_layer *l, int64_t rows) {
    if (!l || rows < 0 || rows > FB_OPS_MAX_LINEAR_ROWS) return 0;
    return fb_rows_bytes(rows) + aligned(rows * l->rotary * (int64_t)sizeof(float));
}

int64_t fb_ops_places_angles(const fb_ops_layer *l, int64_t rows, int32_t *rotary) {
    *rotary = l ? l->rotary : 0;
    return fb_rows_bytes(rows);
}

static fb_view angles_of(const fb_ops_layer *l, const void *places, int64_t rows) {
    uint8_t *data = (uint8_t *)(uintptr_t)places + fb_rows_bytes(rows);
    return (fb_view){data, FB_F32, 1, l->rotary, l->rotary, l->rotary};
}

static fb_status fill_angles(fb_job *job, const fb_ops_layer *l, const fb_row *rows, int64_t count,
                             void *places, fb_error *err) {
    fb_ops *ops = l->ops;
    const double *frequencies = l->spec->program.frequencies;
    double *given = (double *)(void *)job->temp;
    if (ops->cuda)
        FB_TRY(ops->cuda->numbers(ops->gpu, frequencies, l->rotary / 2, given, err));
    else
        memcpy(given, frequencies, (size_t)(l->rotary / 2) * sizeof *given);
    fb_call call = {.out = {angles_of(l, places, count)},
                    .attr = {.rotary = l->rotary, .frequencies = given},
                    .rows = count,
                    .row = rows,
                    .act = l->act};
    /* A cosine and a sine in double take as long as some hundred bytes. */
    return fb_job_run(job, FB_OP_ROPE_ANGLES, &call, count * l->rotary * 100, err);
}

static fb_status fill_places(fb_job *job, const fb_ops_layer *l, fb_ops_positions positions, int64_t first,
                             int64_t sequences, int64_t each, int64_t capacity, void *places, fb_error *err) {
    fb_row *rows = places;
    if (positions.data) FB_TRY(fb_job_rows(job, &positions, 0, capacity - 1, sequences * each, rows, err));
    for (int64_t s = 0; s < (positions.data ? 0 : sequences); s++)
        FB_TRY(fb_job_rows(job, &positions, first, capacity - 1, each, rows + s * each, err));
    return l->angles == FB_NONE ? FB_OK : fill_angles(job, l, rows, sequences * each, places, err);
}

static fb_status check_size(const fb_check *c, const char *name, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return FB_OK;
    return fb_fail(c->err, FB_ERROR_USAGE, "%s: %s: %lld (from %lld to %lld)", c->op, name, (long long)value,
                   (long long)least, (long long)most);
}

fb_status fb_ops_places(fb_ops_layer *l, void *stream, fb_ops_positions positions, int64_t first,
                        int64_t sequences, int64_t rows, int64_t capacity, void *places, fb_error *err) {
    const fb_check c = {l ? l->ops : NULL, "places", err};
    fb_job job;
    FB_TRY(fb_check_ops(&c));
    FB_TRY(fb_check_positions(&c, &positions, false));
    FB_TRY(check_size(&c, "sequences", sequences, 0, FB_OPS_MAX_LINEAR_ROWS));
    FB_TRY(check_size(&c, "rows", rows, 0, sequences ? FB_OPS_MAX_LINEAR_ROWS / sequences : 0));
    if (sequences * rows == 0) return FB_OK;
    FB_TRY(check_size(&c, "capacity", capacity, 1, (int64_t)1 << 30));
    if (!positions.data) FB_TRY(check_size(&c, "first", first, 0, capacity - rows));
    if (!places || (uintptr_t)places % 8)
        return fb_fail(err, FB_ERROR_USAGE, "places: address %p (must be a multiple of 8)", places);
    FB_TRY(fb_job_begin(l->ops, stream, FB_CUDA_NUMBERS * (int64_t)sizeof(double), &job, err));
    fb_status status = fill_places(&job, l, positions, first, sequences, rows, capacity, places, err);
    fb_job_end(&job);
    return status;
}

/* ---- one op ---- */

/* The value's rows from `first` on, if they are the caller's. */
static void use_callers(const step *s, int32_t value, int64_t first, fb_view *view) {
    const fb_ops_layer *l = s->layer;
    const fb_view *callers = value == FB_NONE     ? NULL
                             : value == l->in     ? &s->x
                             : value == l->out    ? &s->out
                             : value == l->angles ? &s->angles
                                                  : NULL;
    if (!callers) return;
    *view = *callers;
    view->data = fb_view_at(callers, first, 0);
}

static bool has_cache(fb_op_kind kind) {
    return kind == FB_OP_KV_APPEND || kind == FB_OP_ROPE_KV || kind == FB_OP_ATTN_SCORES ||
           kind == FB_OP_SOFTMAX || kind == FB_OP_ATTN_VALUES || kind == FB_OP_ATTN_ROWS ||
           kind == FB_OP_ATTN_FLASH;
}

static fb_kv kv_of(const step *s, int64_t sequence) {
    const fb_ops_layer *l = s->layer;
    const fb_program *p = &l->plan.program;
    const fb_ops_cache *c = s->cache;
    fb_kv kv = {.dtype = l->act, .heads = p->kv_heads, .width = p->head_dim, .shift = FB_KV_WHOLE};
    if (l->ops->cuda) { /* see fb_cuda_ops_table.launch */
        int64_t at = sequence * c->sequence_stride;
        kv.capacity = kv.heads > 1 ? c->head_stride / kv.width : c->capacity;
        kv.k_at = (int64_t)(uintptr_t)fb_at(c->k, l->act, at);
        kv.v_at = (int64_t)(uintptr_t)fb_at(c->v, l->act, at);
    } else {
        kv.capacity = s->slots;
        kv.k = s->copy + 2 * sequence * s->half;
        kv.v = s->copy + (2 * sequence + 1) * s->half;
    }
    kv.block = kv.capacity;
    return kv;
}

/* What an op reads and writes, roughly: it decides how many threads are worth waking. */
static int64_t work_of(const fb_call *call, bool attends, int64_t context) {
    int64_t bytes = 0, elements = 0;
    for (int k = 0; k < FB_MAX_WEIGHTS; k++)
        if (call->weights[k].data)
            bytes += fb_dtype_bytes(call->weights[k].dtype, call->weights[k].rows * call->weights[k].cols) *
                     (1 + call->rows / 4);
    for (int k = 0; k < FB_MAX_IN; k++) elements += call->in[k].heads * call->in[k].width;
    for (int k = 0; k < FB_MAX_OUT; k++) elements += call->out[k].heads * call->out[k].width;
    if (attends) elements += call->kv.heads * call->kv.width * context;
    return bytes + call->rows * elements * fb_dtype_size(call->act);
}

/* Rows [first, first + rows) of the call's views. */
static void narrow(fb_call *call, int64_t first, int64_t rows) {
    call->rows = rows;
    call->row += first;
    for (int k = 0; k < FB_MAX_IN; k++)
        if (call->in[k].data) call->in[k].data = fb_view_at(&call->in[k], first, 0);
    for (int k = 0; k < FB_MAX_OUT; k++)
        if (call->out[k].data) call->out[k].data = fb_view_at(&call->out[k], first, 0);
}

/* `count` rows from `first` on: of one sequence, or of all. */
static fb_status run_op(fb_job *job, const step *s, const fb_op *op, int64_t first, int64_t count,
                        const fb_call *whole, fb_error *err) {
    int64_t context = s->layer->ops->cuda ? s->cache->capacity : s->slots;
    if (!has_cache(op->kind)) return fb_job_run(job, op->kind, whole, work_of(whole, false, 0), err);
    for (int64_t done = 0; done < count;) {
        int64_t sequence = (first + done) / s->each, left = (sequence + 1) * s->each - (first + done);
        fb_call call = *whole;
        narrow(&call, done, min_of(left, count - done));
        call.kv = kv_of(s, sequence);
        FB_TRY(fb_job_attend(job, op->kind, &call, context, work_of(&call, true, context), err));
        done += call.rows;
    }
    return FB_OK;
}

static fb_status run_pass(fb_job *job, const step *s, int64_t first, int64_t count, fb_trace *trace,
                          fb_error *err) {
    fb_ops_layer *l = s->layer;
    const fb_program *p = &l->plan.program;
    fb_batch batch = {.count = count};
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++) {
        const fb_op *op = &p->ops[FB_BODY][i];
        fb_call call;
        fb_frame_call(&l->frame, FB_BODY, i, 0, &batch, s->rows + first, &call);
        for (int k = 0; k < FB_MAX_IN; k++) use_callers(s, op->in[k], first, &call.in[k]);
        for (int k = 0; k < FB_MAX_OUT; k++) use_callers(s, op->out[k], first, &call.out[k]);
        FB_TRY(run_op(job, s, op, first, count, &call, err));
        if (trace) fb_trace_count(trace, op, FB_BODY, false);
    }
    return FB_OK;
}

/* ---- the CPU's copy of the cache ---- */

static fb_view cache_view(const step *s, const void *data, int64_t sequence) {
    const fb_program *p = &s->layer->plan.program;
    const fb_ops_cache *c = s->cache;
    return (fb_view){fb_at(data, s->layer->act, sequence * c->sequence_stride),
                     s->layer->act,
                     p->kv_heads,
                     p->head_dim,
                     p->head_dim,
                     p->kv_heads > 1 ? c->head_stride : c->capacity * p->head_dim};
}

/* The slots below the sequence's first position. `all` has room for so many rows. */
static fb_status copy_in(fb_job *job, const step *s, int64_t sequence, fb_row *all, fb_error *err) {
    int64_t count = s->rows[sequence * s->each].position;
    for (int64_t slot = 0; slot < count; slot++) all[slot] = (fb_row){.position = slot};
    fb_call call = {.in = {cache_view(s, s->cache->k, sequence), cache_view(s, s->cache->v, sequence)},
                    .kv = kv_of(s, sequence),
                    .rows = count,
                    .row = all,
                    .act = s->layer->act};
    return count ? fb_job_run(job, FB_OP_KV_APPEND, &call, work_of(&call, false, 0), err) : FB_OK;
}

static void copy_out(const step *s, int64_t sequence) {
    fb_kv kv = kv_of(s, sequence);
    fb_view k = cache_view(s, s->cache->k, sequence), v = cache_view(s, s->cache->v, sequence);
    size_t size = (size_t)fb_dtype_size(kv.dtype);
    for (int64_t r = 0; r < s->each; r++) {
        int64_t slot = s->rows[sequence * s->each + r].position;
        for (int64_t head = 0; head < kv.heads; head++) {
            const uint8_t *key = fb_key_at(&kv, head, slot);
            uint8_t *to = fb_view_at(&k, slot, head);
            for (int64_t i = 0; i < kv.width; i++)
                memcpy(to + (size_t)i * size, key + (size_t)(i * FB_KV_GROUP) * size, size);
            memcpy(fb_view_at(&v, slot, head), fb_value_at(&kv, head, slot), (size_t)kv.width * size);
        }
    }
}

static fb_status run_passes(fb_job *job, const step *s, fb_trace *trace, fb_error *err) {
    int64_t total = s->sequences * s->each;
    for (int64_t first = 0; first < total; first += PASS_ROWS)
        FB_TRY(run_pass(job, s, first, min_of(PASS_ROWS, total - first), first ? NULL : trace, err));
    return FB_OK;
}

static fb_status run_cpu(fb_job *job, const step *s, fb_row *all, fb_trace *trace, fb_error *err) {
    for (int64_t q = 0; q < s->sequences; q++) FB_TRY(copy_in(job, s, q, all, err));
    FB_TRY(run_passes(job, s, trace, err));
    for (int64_t q = 0; q < s->sequences; q++) copy_out(s, q);
    return FB_OK;
}

/* ---- a run ---- */

/* Positions ascend within the capacity. Only the CPU can see them. */
static fb_status check_rows(const fb_check *c, step *s) {
    int64_t most = 0;
    for (int64_t i = 0; i < s->sequences * s->each; i++) {
        int64_t position = s->rows[i].position, before = i % s->each ? s->rows[i - 1].position : position - 1;
        if (position != before + 1 || position < 0 || position >= s->cache->capacity)
            return fb_fail(c->err, FB_ERROR_USAGE,
                           "layer: position %lld of row %lld (one more than the row before it, below %lld)",
                           (long long)position, (long long)i, (long long)s->cache->capacity);
        if (position > most) most = position;
    }
    s->slots = (most + 1 + FB_KV_GROUP - 1) / FB_KV_GROUP * FB_KV_GROUP;
    return FB_OK;
}

static fb_status check_cache(const fb_check *c, const fb_ops_layer *l, const fb_ops_cache *cache,
                             int64_t rows) {
    const fb_program *p = &l->plan.program;
    int64_t size = fb_dtype_size(l->act);
    if (!cache) return fb_fail(c->err, FB_ERROR_USAGE, "layer: cache: NULL (must be a cache)");
    FB_TRY(check_size(c, "cache: sequences", cache->sequences, rows ? 1 : 0, FB_OPS_MAX_LINEAR_ROWS));
    if (rows == 0) return FB_OK;
    FB_TRY(check_size(c, "cache: capacity", cache->capacity, rows / cache->sequences, (int64_t)1 << 30));
    if (cache->heads != p->kv_heads || cache->width != p->head_dim)
        return fb_fail(
            c->err, FB_ERROR_USAGE, "layer: cache: %lld heads of %lld elements (must be %lld of %lld)",
            (long long)cache->heads, (long long)cache->width, (long long)p->kv_heads, (long long)p->head_dim);
    if (rows % cache->sequences)
        return fb_fail(c->err, FB_ERROR_USAGE, "layer: x: rows %lld (must be a multiple of %lld sequences)",
                       (long long)rows, (long long)cache->sequences);
    if (p->kv_heads > 1 &&
        (cache->head_stride % p->head_dim || cache->head_stride < cache->capacity * p->head_dim))
        return fb_fail(
            c->err, FB_ERROR_USAGE,
            "layer: cache: head stride %lld (a multiple of %lld, and at least %lld for %lld slots)",
            (long long)cache->head_stride, (long long)p->head_dim, (long long)(cache->capacity * p->head_dim),
            (long long)cache->capacity);
    if (cache->sequence_stride < 0 || cache->sequence_stride > FB_OPS_MAX_STRIDE << 8)
        return fb_fail(c->err, FB_ERROR_USAGE, "layer: cache: sequence stride %lld (from 0 to %lld)",
                       (long long)cache->sequence_stride, (long long)FB_OPS_MAX_STRIDE << 8);
    if (!cache->k || !cache->v || (uintptr_t)cache->k % (uintptr_t)size ||
        (uintptr_t)cache->v % (uintptr_t)size)
        return fb_fail(c->err, FB_ERROR_USAGE,
                       "layer: cache: k %p, v %p (must be multiples of %lld, not NULL)", cache->k, cache->v,
                       (long long)size);
    return FB_OK;
}

/* The frame for this many rows and slots; its bytes. Without a fuse of attention, scores have a column for
 * each slot. */
static int64_t size_frame(fb_ops_layer *l, int64_t rows, int64_t slots) {
    l->frame.options.chunk = min_of(rows, PASS_ROWS);
    l->frame.options.capacity = slots;
    return fb_frame_bytes(&l->frame);
}

static fb_status run(const fb_check *c, step *s, void *stream) {
    fb_ops_layer *l = s->layer;
    const fb_program *p = &l->plan.program;
    fb_trace trace = {0};
    fb_job job;
    int64_t total = s->sequences * s->each, copies = 0, all = 0;
    if (!l->ops->cuda) {
        FB_TRY(check_rows(c, s));
        s->half = aligned(p->kv_heads * s->slots * p->head_dim * fb_dtype_size(l->act));
        copies = 2 * s->sequences * s->half;
        all = fb_rows_bytes(s->slots);
    }
    int64_t frame = size_frame(l, total, l->ops->cuda ? s->cache->capacity : s->slots);
    FB_TRY(fb_job_begin(l->ops, stream, frame + copies + all, &job, c->err));
    fb_frame_place(&l->frame, job.temp);
    s->copy = job.temp + frame;
    fb_status status = l->ops->cuda ? run_passes(&job, s, &trace, c->err)
                                    : run_cpu(&job, s, (fb_row *)(void *)(s->copy + copies), &trace, c->err);
    fb_job_end(&job);
    for (int f = 0; f < FB_FUSE_COUNT; f++) l->calls[f] += trace.fuses[f];
    return status;
}

fb_status fb_ops_layer_run(fb_ops_layer *l, void *stream, const fb_ops_tensor *x, const void *places,
                           const fb_ops_cache *cache, const fb_ops_tensor *out, fb_error *err) {
    const fb_check c = {l ? l->ops : NULL, "layer", err};
    FB_TRY(fb_check_ops(&c));
    FB_TRY(fb_check_tensor(&c, "x", x, &(fb_expect){l->act, -1, l->plan.program.hidden, false}));
    FB_TRY(check_size(&c, "x: rows", x->rows, 0, FB_OPS_MAX_LINEAR_ROWS));
    FB_TRY(fb_check_tensor(&c, "out", out, &(fb_expect){l->act, x->rows, x->cols, true}));
    FB_TRY(check_cache(&c, l, cache, x->rows));
    if (x->rows == 0) return FB_OK;
    if (x->data == out->data)
        return fb_fail(err, FB_ERROR_USAGE, "layer: out: the memory of x (must be another)");
    if (!places || (uintptr_t)places % 8)
        return fb_fail(err, FB_ERROR_USAGE, "layer: places: address %p (must be a multiple of 8)", places);
    step s = {.layer = l,
              .x = fb_tensor_view(x),
              .out = fb_tensor_view(out),
              .angles = angles_of(l, places, x->rows),
              .rows = places,
              .cache = cache,
              .sequences = cache->sequences,
              .each = x->rows / cache->sequences};
    pthread_mutex_lock(&l->lock);
    fb_status status = run(&c, &s, stream);
    pthread_mutex_unlock(&l->lock);
    return status;
}
