/* An executor on the CPU: its buffers, and the loop over the ops of a step.
 *
 * All workers run through a step together. Each computes its part of an op, then waits at a barrier. There is
 * no barrier where a worker's part of the next op needs nothing from other workers. */
#include <math.h>
#include <stdlib.h>

#include "backend/cpu/host/host.h"
#include "backend/sequence.h"
#include "base/clock.h"
#include "base/memory.h"

typedef struct cpu_executor {
    fb_executor base;
    const fb_isa *isa;
    int32_t threads;
    uint8_t *memory;                          /* one allocation: the buffer for on_hidden, then the values */
    float *hidden;                            /* [chunk, hidden] */
    uint8_t *const **tables;                  /* [chunk]: the tables of a step's sequences */
    bool by_head;                             /* in attention's ops each worker takes whole KV heads */
    bool no_barrier[FB_SECTIONS][FB_MAX_OPS]; /* no barrier after this op */
} cpu_executor;

/* The state of one step. */
typedef struct cpu_step {
    cpu_executor *e;
    fb_cpu_device *device;
    const fb_batch *batch;
    fb_trace *trace;
    atomic_llong stop_at; /* no layer from this one on runs; set by worker 0 before a barrier */
    atomic_bool left_out; /* the step was cancelled, and a worker left out work: there is no result */
    double op_began;      /* profile: when the op before ended */
} cpu_step;

#define ALIGN 64

static int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }
static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- opening ---- */

/* Floats of scratch that a worker needs: for a linear and the inputs that it prepares, or for attention.
 * Rounded up so that a kernel may write whole vectors. */
static int64_t scratch_floats(const fb_frame *f) {
    const fb_program *p = f->bound.program;
    const fb_executor_options *o = &f->options;
    int64_t most = fb_attention_scratch(p->head_dim, o->capacity);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            const fb_op *op = &p->ops[s][i];
            int64_t rows = s == FB_EPILOGUE ? o->epilogue_rows : o->chunk, floats = FB_LINEAR_WORK;
            for (int k = 0; k < FB_MAX_WEIGHTS; k += 4)
                if (op->weights[k] != FB_NONE) floats += fb_linear_input(rows, p->slots[op->weights[k]].cols);
            if (op->kind == FB_OP_QUANTIZE)
                floats = max_of(floats, p->values[op->in[0]].heads * p->values[op->in[0]].width);
            if (op->attr.used && op->weights[0] != FB_NONE) {
                const fb_slot *slot = &p->slots[op->weights[0]];
                int64_t outputs = slot->experts ? slot->rows / slot->experts : slot->rows;
                floats = fb_expert_scratch(rows, op->attr.used, outputs, slot->cols);
            }
            most = max_of(most, floats);
        }
    return aligned((most + 64) * 4) / 4;
}

/* All executors share the device's scratch, because only one step runs at a time. */
static fb_status grow_scratch(fb_cpu_device *d, int32_t threads, int64_t floats, fb_error *err) {
    if (threads <= d->scratch_threads && floats <= d->scratch_floats) return FB_OK;
    int32_t most_threads = threads > d->scratch_threads ? threads : d->scratch_threads;
    int64_t most = max_of(floats, d->scratch_floats);
    void *memory;
    FB_TRY(fb_memory_take("workspace", (most_threads + 1) * most * 4, &memory, err));
    free(d->workspace);
    d->workspace = memory;
    d->scratch = memory;
    d->scratch_threads = most_threads;
    d->scratch_floats = most;
    return FB_OK;
}

static fb_status allocate(cpu_executor *e, fb_error *err) {
    fb_frame *f = &e->base.frame;
    int64_t hidden_bytes = aligned(f->options.chunk * f->bound.program->hidden * 4);
    void *memory;
    FB_TRY(grow_scratch((fb_cpu_device *)e->base.device, e->threads, scratch_floats(f), err));
    FB_TRY(fb_memory_take("activations", hidden_bytes + fb_frame_bytes(f), &memory, err));
    e->memory = memory;
    e->hidden = memory;
    e->tables = malloc((size_t)f->options.chunk * sizeof *e->tables);
    if (!e->tables)
        return fb_fail_memory(err, "tables of the KV cache", f->options.chunk * (int64_t)sizeof *e->tables);
    fb_frame_place(f, e->memory + hidden_bytes);
    return FB_OK;
}

static void place_barriers(cpu_executor *e) {
    const fb_program *p = e->base.frame.bound.program;
    e->by_head = fb_program_by_head(p, e->threads);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            e->no_barrier[s][i] = !fb_program_barrier(p, (fb_section)s, i, e->threads);
}

static fb_status check_options(const fb_executor_options *o, const fb_isa *isa, fb_error *err) {
    if (o->act == FB_F64 && strcmp(isa->name, "ref") != 0)
        return fb_fail(err, FB_ERROR_USAGE, "act: f64 (only with isa ref, not %s)", isa->name);
    if (o->kv == FB_F64 && strcmp(isa->name, "ref") != 0)
        return fb_fail(err, FB_ERROR_USAGE, "kv: f64 (only with isa ref, not %s)", isa->name);
    return FB_OK;
}

static fb_status start(cpu_executor *e, const fb_bound *bound, const fb_executor_options *options,
                       fb_error *err) {
    FB_TRY(fb_isa_find(options->isa, &e->isa, err));
    FB_TRY(check_options(options, e->isa, err));
    FB_TRY(fb_frame_init(&e->base.frame, bound, options, err));
    FB_TRY(fb_cpu_threads((fb_cpu_device *)e->base.device, options->threads, &e->threads, err));
    FB_TRY(allocate(e, err));
    place_barriers(e);
    return FB_OK;
}

void fb_cpu_close(fb_executor *executor) {
    cpu_executor *e = (cpu_executor *)executor;
    free(e->memory);
    free(e->tables);
    free(e);
}

fb_status fb_cpu_open(fb_device *device, const fb_bound *bound, const fb_executor_options *options,
                      fb_executor **out, fb_error *err) {
    cpu_executor *e = calloc(1, sizeof *e);
    if (!e) return fb_fail_memory(err, "executor", sizeof *e);
    e->base.device = device;
    fb_status status = start(e, bound, options, err);
    if (status != FB_OK) {
        fb_cpu_close(&e->base);
        return status;
    }
    *out = &e->base;
    return FB_OK;
}

/* ---- running ---- */

static void take_time(cpu_step *step, fb_section section, int32_t index) {
    double now = fb_now();
    step->trace->seconds[section][index] += now - step->op_began;
    step->trace->op_seconds += now - step->op_began;
    step->op_began = now;
}

/* Shows a linear's input to the step's owner. */
static void show_input(cpu_step *step, const fb_op *op, int64_t layer, const fb_call *call,
                       const fb_worker *worker) {
    fb_linear_rows in = {.x = &call->in[0], .rows = call->rows};
    if (op->kind == FB_OP_EXPERT_LINEAR) {
        in.routes = &call->in[1];
        in.used = op->attr.used;
        in.each = op->attr.each;
    }
    fb_pool_barrier(step->device->pool);
    step->batch->on_linear(step->batch->user, op->weights[0], layer, &in, worker->index, worker->count);
    fb_pool_barrier(step->device->pool);
}

/* Before an op: the workers prepare its inputs together, if that is worth a barrier. The op before ended with
 * one, or needs no such inputs: nobody reads those of an earlier op any more. */
static void prepare(cpu_step *step, const fb_op *op, const fb_call *call, fb_worker *worker) {
    const fb_cpu_device *d = step->device;
    const fb_isa *isa = step->e->isa;
    worker->prepared = NULL;
    if (!isa->prepare || worker->count == 1 || op->kind != FB_OP_LINEAR_GROUP || !fb_prepares(call)) return;
    worker->prepared = d->scratch + d->scratch_threads * d->scratch_floats;
    if (!fb_worker_cancelled(worker)) isa->prepare(call, worker);
    fb_pool_barrier(d->pool);
}

static void run_section(cpu_step *step, fb_section section, int64_t layer, fb_worker *worker) {
    cpu_executor *e = step->e;
    const fb_frame *f = &e->base.frame;
    const fb_program *p = f->bound.program;
    for (int32_t i = 0; i < p->op_count[section]; i++) {
        const fb_op *op = &p->ops[section][i];
        bool barrier = !e->no_barrier[section][i];
        fb_call call;
        fb_frame_call(f, section, i, layer, step->batch, step->batch->rows, &call);
        if (section == FB_BODY) {
            call.kv = fb_frame_cache(f, layer);
            call.kv.tables = e->tables;
        }
        worker->apart = !barrier;
        if (step->batch->on_linear && (op->kind == FB_OP_LINEAR || op->kind == FB_OP_EXPERT_LINEAR))
            show_input(step, op, layer, &call, worker);
        prepare(step, op, &call, worker);
        if (!fb_worker_cancelled(worker)) e->isa->kernels[op->kind](&call, worker);
        if (worker->index == 0) fb_trace_count(step->trace, op, section, barrier);
        if (barrier) fb_pool_barrier(step->device->pool);
        if (f->options.profile && worker->index == 0) take_time(step, section, i);
    }
}

/* Converts the last `rows` rows of a value to float32. */
static void widen(const fb_frame *f, const fb_batch *batch, int32_t value, int64_t rows, float *out) {
    fb_view view = fb_frame_view(f, value);
    int64_t cols = view.heads * view.width, first = fb_frame_first(f, value, batch, rows);
    for (int64_t row = 0; row < rows; row++) {
        const void *x = fb_view_at(&view, first + row, 0);
        if (view.dtype == FB_F32)
            memcpy(out + row * cols, x, (size_t)cols * sizeof *out);
        else
            for (int64_t i = 0; i < cols; i++) out[row * cols + i] = (float)fb_dtype_get(view.dtype, x, i);
    }
}

/* The best of the workers' best columns. Workers are in the order of their columns, so the first among equals
 * wins. -1 if a score is NaN. */
static void take_best(const cpu_executor *e, int64_t rows, int32_t *out) {
    const fb_frame *f = &e->base.frame;
    fb_view view = fb_frame_view(f, f->bound.program->best);
    for (int64_t row = 0; row < rows; row++) {
        const void *best = fb_view_at(&view, row, 0);
        double most = -INFINITY;
        out[row] = (int32_t)fb_dtype_get(view.dtype, best, 1);
        for (int32_t worker = 0; worker < e->threads && out[row] >= 0; worker++) {
            double score = fb_dtype_get(view.dtype, best, 2 * worker);
            if (score != score)
                out[row] = -1;
            else if (score > most) {
                most = score;
                out[row] = (int32_t)fb_dtype_get(view.dtype, best, 2 * worker + 1);
            }
        }
    }
}

static bool left_out(cpu_step *step) { return atomic_load_explicit(&step->left_out, memory_order_relaxed); }

/* Shows a hidden state to the step's owner, while the other workers wait. */
static void show_hidden(cpu_step *step, int64_t layer, int32_t value, int64_t rows, const fb_worker *worker) {
    const fb_batch *b = step->batch;
    if (!b->on_hidden) return;
    const fb_frame *f = &step->e->base.frame;
    if (worker->index == 0 && !left_out(step)) {
        widen(f, b, value, rows, step->e->hidden);
        if (!b->on_hidden(b->user, layer, step->e->hidden, rows, f->bound.program->hidden))
            atomic_store_explicit(&step->stop_at, 0, memory_order_relaxed);
    }
    fb_pool_barrier(step->device->pool);
}

static int64_t stop_at(cpu_step *step) { return atomic_load_explicit(&step->stop_at, memory_order_relaxed); }

/* What held rows carry into their first layer, or out of their last one, while the other workers wait. */
static void move_state(cpu_step *step, bool save, const fb_worker *worker) {
    const fb_batch *b = step->batch;
    const fb_frame *f = &step->e->base.frame;
    if (!b->held || (save ? b->held_to == f->bound.program->layers : b->held_from == 0)) return;
    if (worker->index == 0) {
        if (save)
            fb_frame_state_save(f, b->held, b->held_state);
        else
            fb_frame_state_load(f, b->held, b->held_state);
    }
    fb_pool_barrier(step->device->pool);
}

/* A step of held rows alone has nothing to do in other layers than theirs. */
static bool has_rows(const fb_batch *b, int64_t layer) {
    return b->count > b->held || (layer >= b->held_from && layer < b->held_to);
}

static void run_worker(void *arg, int32_t index) {
    cpu_step *step = arg;
    const fb_batch *b = step->batch;
    const fb_program *p = step->e->base.frame.bound.program;
    fb_worker worker = {.index = index,
                        .count = step->e->threads,
                        .scratch = step->device->scratch + index * step->device->scratch_floats,
                        .by_head = step->e->by_head,
                        .cancel = b->cancel,
                        .left_out = &step->left_out};
    run_section(step, FB_PROLOGUE, 0, &worker);
    show_hidden(step, 0, p->residual, b->count, &worker);
    move_state(step, false, &worker);
    for (int64_t layer = 0; layer < stop_at(step); layer++) {
        if (layer == p->layers) break;
        if (!has_rows(b, layer)) continue;
        /* All workers still run this layer. It ends with a barrier, after which they see the new value. */
        if (index == 0 && b->cancel && atomic_load_explicit(b->cancel, memory_order_relaxed))
            atomic_store_explicit(&step->stop_at, layer + 1, memory_order_relaxed);
        run_section(step, FB_BODY, layer, &worker);
        if (layer + 1 < p->layers) show_hidden(step, layer + 1, p->residual, b->count, &worker);
    }
    move_state(step, true, &worker);
    if (stop_at(step) <= p->layers || b->wanted == 0) return;
    run_section(step, FB_EPILOGUE, 0, &worker);
    show_hidden(step, p->layers, p->final_norm, b->wanted, &worker);
}

fb_status fb_cpu_run(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err) {
    cpu_executor *e = (cpu_executor *)executor;
    const fb_frame *f = &e->base.frame;
    cpu_step step = {.e = e,
                     .device = (fb_cpu_device *)e->base.device,
                     .batch = batch,
                     .trace = trace,
                     .stop_at = INT64_MAX,
                     .op_began = f->options.profile ? fb_now() : 0};
    for (int32_t i = 0; i < batch->sequence_count; i++) e->tables[i] = batch->sequences[i]->table;
    FB_TRY(fb_pool_grow(step.device->pool, e->threads, err)); /* this may be a fork of who opened it */
    fb_pool_run(step.device->pool, e->threads, run_worker, &step);
    if (left_out(&step) || stop_at(&step) <= f->bound.program->layers)
        return fb_fail(err, FB_ERROR_STOPPED, "run: stopped");
    if (f->bound.program->logits != FB_NONE)
        widen(f, batch, f->bound.program->logits, batch->wanted, batch->logits);
    else
        take_best(e, batch->wanted, batch->best);
    return FB_OK;
}

const char *fb_cpu_variant(const fb_executor *executor) {
    return ((const cpu_executor *)executor)->isa->name;
}
int32_t fb_cpu_thread_count(const fb_executor *executor) { return ((const cpu_executor *)executor)->threads; }
