/* The CPU backend: buffers, the KV cache, threads, and the walk through the program.
 *
 * All lanes walk through a step together: each does its part of an op, then they meet at a barrier. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "backend/cpu/host/isa.h"
#include "base/clock.h"
#include "base/memory.h"

struct fb_engine {
    fb_bound bound;
    fb_backend_options options;
    const fb_isa *isa;
    fb_pool *pool;
    fb_layout layout;
    uint8_t *memory; /* one allocation: the buffers, the lanes' scratch, the hidden state for on_hidden */
    uint8_t *buffer[FB_MAX_VALUES];
    float *scratch;
    int64_t scratch_floats;                 /* of one lane */
    float *hidden;                          /* [chunk, hidden] */
    uint8_t *cache;                         /* [layers][k v][kv_heads][capacity][head_dim] */
    int64_t cache_half;                     /* bytes of one layer's k, or v */
    bool in_epilogue[FB_MAX_VALUES];        /* values of which only the epilogue's rows exist */
    fb_call calls[FB_SECTIONS][FB_MAX_OPS]; /* all but weights, cache and the step's numbers */
    const fb_step *step;
    bool stopped;
    bool by_head;                             /* attention's ops share whole KV heads among the lanes */
    bool no_barrier[FB_SECTIONS][FB_MAX_OPS]; /* after this op */
    double op_began;                          /* profile: when the op before ended */
    fb_trace trace;
};

#define ALIGN 64

static int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static fb_dtype buffer_dtype(const fb_engine *e, bool always_f32) {
    return always_f32 && e->options.act != FB_F64 ? FB_F32 : e->options.act;
}

/* Bytes of one token's row of a value's storage. */
static int64_t row_elements(const fb_engine *e, const fb_value *storage) {
    return storage->heads * (storage->width ? storage->width : e->options.capacity);
}

/* ---- opening
 * -------------------------------------------------------------------------------------------------------- */

static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* A lane's scratch holds: what a linear works in and the inputs that it prepares, or two rows of scores (of
 * doubles, in the reference). Rounded up so that a kernel may write whole vectors. */
static int64_t scratch_floats(const fb_engine *e) {
    const fb_program *p = e->bound.program;
    int64_t most = 4 * (e->options.capacity + 64);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            const fb_op *op = &p->ops[s][i];
            int64_t rows = s == FB_EPILOGUE ? e->options.epilogue_rows : e->options.chunk,
                    floats = FB_LINEAR_WORK;
            for (int k = 0; k < FB_MAX_WEIGHTS; k += 4)
                if (op->weights[k] != FB_NONE) floats += fb_linear_input(rows, p->slots[op->weights[k]].cols);
            most = max_of(most, floats);
        }
    return aligned((most + 64) * 4) / 4;
}

static int64_t buffer_bytes(const fb_engine *e, int32_t buffer) {
    const fb_program *p = e->bound.program;
    int64_t most = 0;
    for (int32_t v = 0; v < p->value_count; v++) {
        if (e->layout.buffer[v] != buffer || p->values[v].storage != v) continue;
        int64_t rows = e->in_epilogue[v] ? e->options.epilogue_rows : e->options.chunk;
        int64_t bytes =
            rows * row_elements(e, &p->values[v]) * fb_dtype_size(buffer_dtype(e, p->values[v].always_f32));
        if (bytes > most) most = bytes;
    }
    return aligned(most);
}

static fb_status allocate(fb_engine *e, fb_error *err) {
    const fb_program *p = e->bound.program;
    int32_t lanes = fb_pool_lanes(e->pool);
    e->scratch_floats = scratch_floats(e);
    int64_t scratch_bytes = lanes * e->scratch_floats * 4;
    int64_t hidden_bytes = aligned(e->options.chunk * p->hidden * 4);
    int64_t bytes = scratch_bytes + hidden_bytes;
    for (int32_t b = 0; b < e->layout.buffers; b++) bytes += buffer_bytes(e, b);
    void *memory;
    FB_TRY(fb_memory_take("activations", bytes, &memory, err));
    uint8_t *at = e->memory = memory;
    e->scratch = (float *)(void *)at;
    at += scratch_bytes;
    e->hidden = (float *)(void *)at;
    at += hidden_bytes;
    for (int32_t b = 0; b < e->layout.buffers; b++) {
        e->buffer[b] = at;
        at += buffer_bytes(e, b);
    }
    e->cache_half = aligned(p->kv_heads * e->options.capacity * p->head_dim * fb_dtype_size(e->options.act));
    int64_t cache_bytes = 2 * p->layers * e->cache_half;
    char what[64];
    snprintf(what, sizeof what, "KV cache of %lld tokens", (long long)e->options.capacity);
    FB_TRY(fb_memory_take(what, cache_bytes, &memory, err));
    e->cache = memory;
    return FB_OK;
}

static fb_view view_of(const fb_engine *e, int32_t value) {
    const fb_value *v = &e->bound.program->values[value], *storage = &e->bound.program->values[v->storage];
    fb_dtype dtype = buffer_dtype(e, storage->always_f32);
    fb_view view = {
        .dtype = dtype, .heads = v->heads, .width = v->width, .row_stride = row_elements(e, storage)};
    view.head_stride = v->width ? v->stride : e->options.capacity;
    view.data = fb_at(e->buffer[e->layout.buffer[value]], dtype, v->offset);
    return view;
}

/* What of a call stays the same from step to step. */
static void prepare_calls(fb_engine *e) {
    const fb_program *p = e->bound.program;
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            const fb_op *op = &p->ops[s][i];
            fb_call *call = &e->calls[s][i];
            call->attr = op->attr;
            call->act = e->options.act;
            for (int k = 0; k < FB_MAX_IN; k++)
                if (op->in[k] != FB_NONE) call->in[k] = view_of(e, op->in[k]);
            for (int k = 0; k < FB_MAX_OUT; k++)
                if (op->out[k] != FB_NONE) call->out[k] = view_of(e, op->out[k]);
        }
}

static void place_barriers(fb_engine *e) {
    const fb_program *p = e->bound.program;
    int32_t lanes = fb_pool_lanes(e->pool);
    e->by_head = fb_program_by_head(p, lanes);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            e->no_barrier[s][i] = !fb_program_barrier(p, (fb_section)s, i, lanes);
}

static fb_status check_options(const fb_backend_options *o, const fb_isa *isa, fb_error *err) {
    if (o->act == FB_F64 && strcmp(isa->name, "ref") != 0)
        return fb_fail(err, FB_ERROR_USAGE, "act: f64 (only with isa ref, not %s)", isa->name);
    return FB_OK;
}

static void cpu_close(fb_engine *e) {
    if (!e) return;
    fb_pool_free(e->pool);
    free(e->memory);
    free(e->cache);
    free(e);
}

static fb_status cpu_start(fb_engine *e, fb_error *err) {
    const fb_program *p = e->bound.program;
    FB_TRY(fb_isa_find(e->options.isa, &e->isa, err));
    FB_TRY(check_options(&e->options, e->isa, err));
    FB_TRY(fb_layout_make(p, &e->layout, err));
    for (int32_t i = 0; i < p->op_count[FB_EPILOGUE]; i++) {
        const fb_op *op = &p->ops[FB_EPILOGUE][i];
        for (int k = 0; k < FB_MAX_OUT; k++)
            if (op->out[k] != FB_NONE) e->in_epilogue[op->out[k]] = true;
    }
    FB_TRY(fb_pool_create(e->options.threads ? e->options.threads : fb_pool_cores(), &e->pool, err));
    FB_TRY(allocate(e, err));
    prepare_calls(e);
    place_barriers(e);
    return FB_OK;
}

static fb_status cpu_open(const fb_bound *bound, const fb_backend_options *options, fb_engine **out,
                          fb_error *err) {
    *out = NULL;
    fb_engine *e = calloc(1, sizeof *e);
    if (!e) return fb_fail_memory(err, "cpu backend", sizeof *e);
    e->bound = *bound;
    e->options = *options;
    fb_status status = cpu_start(e, err);
    if (status != FB_OK) {
        cpu_close(e);
        return status;
    }
    *out = e;
    return FB_OK;
}

/* ---- running
 * -------------------------------------------------------------------------------------------------------- */

static fb_kv layer_cache(const fb_engine *e, int64_t layer) {
    const fb_program *p = e->bound.program;
    uint8_t *k = e->cache + 2 * layer * e->cache_half;
    return (fb_kv){.k = k,
                   .v = k + e->cache_half,
                   .dtype = e->options.act,
                   .heads = p->kv_heads,
                   .capacity = e->options.capacity,
                   .width = p->head_dim};
}

/* The epilogue's ops see the step's last rows: views of what earlier sections wrote begin there. */
static void narrow_to_epilogue(const fb_engine *e, const fb_op *op, fb_call *call) {
    int64_t skipped = e->step->rows - e->step->epilogue_rows;
    call->rows = e->step->epilogue_rows;
    call->position += skipped;
    call->ids += skipped;
    for (int k = 0; k < FB_MAX_IN; k++)
        if (op->in[k] != FB_NONE && !e->in_epilogue[op->in[k]])
            call->in[k].data = fb_at(call->in[k].data, call->in[k].dtype, skipped * call->in[k].row_stride);
}

/* The op's weights in this layer, or in the next one. */
static void bind_weights(const fb_engine *e, const fb_op *op, int64_t layer, fb_call *call) {
    const fb_program *p = e->bound.program;
    bool last = op->next_layer && layer + 1 == p->layers;
    const int32_t *slots = last ? op->last_weights : op->weights;
    layer += op->next_layer && !last;
    for (int k = 0; k < FB_MAX_WEIGHTS; k++)
        if (slots[k] != FB_NONE)
            call->weights[k] = e->bound.weights[slots[k] * p->layers + layer];
        else
            call->weights[k].data = NULL;
}

static void count_call(fb_engine *e, const fb_op *op, bool barrier) {
    e->trace.ops[op->kind]++;
    e->trace.barriers += barrier;
    for (uint32_t fuses = op->fuses; fuses; fuses &= fuses - 1) e->trace.fuses[__builtin_ctz(fuses)]++;
}

static void run_section(fb_engine *e, fb_section section, int64_t layer, const fb_lane *lane) {
    const fb_program *p = e->bound.program;
    for (int32_t i = 0; i < p->op_count[section]; i++) {
        const fb_op *op = &p->ops[section][i];
        fb_call call = e->calls[section][i];
        bind_weights(e, op, layer, &call);
        if (section == FB_BODY) call.kv = layer_cache(e, layer);
        call.ids = e->step->ids;
        call.rows = e->step->rows;
        call.position = e->step->position;
        call.by_head = e->by_head;
        if (section == FB_EPILOGUE) narrow_to_epilogue(e, op, &call);
        e->isa->kernels[op->kind](&call, lane);
        bool barrier = !e->no_barrier[section][i];
        if (lane->index == 0) count_call(e, op, barrier);
        if (barrier) fb_pool_barrier(e->pool);
        if (e->options.profile && lane->index == 0) {
            double now = fb_now();
            e->trace.seconds[section][i] += now - e->op_began;
            e->trace.walk += now - e->op_began;
            e->op_began = now;
        }
    }
}

/* The last `rows` rows of a value as float32. */
static void widen(const fb_engine *e, int32_t value, int64_t rows, float *out) {
    fb_view view = view_of(e, value);
    int64_t cols = view.heads * view.width, first = e->in_epilogue[value] ? 0 : e->step->rows - rows;
    for (int64_t row = 0; row < rows; row++) {
        const void *x = fb_view_at(&view, first + row, 0);
        if (view.dtype == FB_F32)
            memcpy(out + row * cols, x, (size_t)cols * sizeof *out);
        else
            for (int64_t i = 0; i < cols; i++) out[row * cols + i] = (float)fb_dtype_get(view.dtype, x, i);
    }
}

/* The best of the lanes' best columns; the first among equals, as lanes are in the order of their columns. -1
 * if a score is NaN. */
static void take_best(const fb_engine *e, int64_t rows, int32_t *out) {
    fb_view view = view_of(e, e->bound.program->best);
    for (int64_t row = 0; row < rows; row++) {
        const void *best = fb_view_at(&view, row, 0);
        double most = -INFINITY;
        out[row] = (int32_t)fb_dtype_get(view.dtype, best, 1);
        for (int32_t lane = 0; lane < fb_pool_lanes(e->pool) && out[row] >= 0; lane++) {
            double score = fb_dtype_get(view.dtype, best, 2 * lane);
            if (score != score)
                out[row] = -1;
            else if (score > most) {
                most = score;
                out[row] = (int32_t)fb_dtype_get(view.dtype, best, 2 * lane + 1);
            }
        }
    }
}

/* Shows a hidden state to the step's owner, while the other lanes wait. */
static void show_hidden(fb_engine *e, int64_t layer, int32_t value, int64_t rows, const fb_lane *lane) {
    if (!e->step->on_hidden) return;
    int64_t cols = e->bound.program->hidden;
    if (lane->index == 0) {
        widen(e, value, rows, e->hidden);
        if (!e->step->on_hidden(e->step->user, layer, e->hidden, rows, cols)) e->stopped = true;
    }
    fb_pool_barrier(e->pool);
}

static void run_lane(void *arg, int32_t index) {
    fb_engine *e = arg;
    const fb_program *p = e->bound.program;
    fb_lane lane = {index, fb_pool_lanes(e->pool), e->scratch + index * e->scratch_floats};
    run_section(e, FB_PROLOGUE, 0, &lane);
    show_hidden(e, 0, p->residual, e->step->rows, &lane);
    for (int64_t layer = 0; layer < p->layers && !e->stopped; layer++) {
        run_section(e, FB_BODY, layer, &lane);
        if (layer + 1 < p->layers) show_hidden(e, layer + 1, p->residual, e->step->rows, &lane);
    }
    if (e->stopped || e->step->epilogue_rows == 0) return;
    run_section(e, FB_EPILOGUE, 0, &lane);
    show_hidden(e, p->layers, p->final_norm, e->step->epilogue_rows, &lane);
}

static fb_status cpu_run(fb_engine *e, const fb_step *step, fb_error *err) {
    e->step = step;
    e->stopped = false;
    e->op_began = e->options.profile ? fb_now() : 0;
    fb_pool_run(e->pool, run_lane, e);
    if (e->stopped) return fb_fail(err, FB_ERROR_STOPPED, "run: stopped");
    if (e->bound.program->logits != FB_NONE)
        widen(e, e->bound.program->logits, step->epilogue_rows, step->logits);
    else
        take_best(e, step->epilogue_rows, step->best);
    e->trace.steps++;
    return FB_OK;
}

static const char *cpu_variant(const fb_engine *e) { return e->isa->name; }
static int32_t cpu_threads(const fb_engine *e) { return fb_pool_lanes(e->pool); }
static const fb_trace *cpu_trace(const fb_engine *e) { return &e->trace; }

const fb_backend fb_backend_cpu = {"cpu", cpu_open, cpu_run, cpu_close, cpu_variant, cpu_threads, cpu_trace};
