/* The CPU backend: buffers, the KV cache, threads, and the walk through the program.
 *
 * All lanes walk through a step together: each does its part of an op, then they meet at a barrier, unless
 * the next op's part needs no other lane's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/host/isa.h"
#include "backend/frame.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/screen.h"

struct fb_engine {
    fb_frame frame;
    const fb_isa *isa;
    fb_pool *pool;
    uint8_t *memory; /* one allocation: the lanes' scratch, the hidden state for on_hidden, rows, values */
    float *scratch;
    int64_t scratch_floats; /* of one lane */
    float *hidden;          /* [chunk, hidden] */
    fb_row *row;            /* [chunk] */
    fb_shared *cache;
    const fb_step *step;
    bool stopped;
    bool by_head;                             /* attention's ops share whole KV heads among the lanes */
    bool no_barrier[FB_SECTIONS][FB_MAX_OPS]; /* after this op */
    double op_began;                          /* profile: when the op before ended */
};

#define ALIGN 64

static int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* ---- opening
 * -------------------------------------------------------------------------------------------------------- */

static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* A lane's scratch holds: what a linear works in and the inputs that it prepares, or what attention works on.
 * Rounded up so that a kernel may write whole vectors. */
static int64_t scratch_floats(const fb_engine *e) {
    const fb_program *p = e->frame.bound.program;
    const fb_backend_options *o = &e->frame.options;
    int64_t most = fb_attention_scratch(p->head_dim, o->capacity);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            const fb_op *op = &p->ops[s][i];
            int64_t rows = s == FB_EPILOGUE ? o->epilogue_rows : o->chunk, floats = FB_LINEAR_WORK;
            for (int k = 0; k < FB_MAX_WEIGHTS; k += 4)
                if (op->weights[k] != FB_NONE) floats += fb_linear_input(rows, p->slots[op->weights[k]].cols);
            most = max_of(most, floats);
        }
    return aligned((most + 64) * 4) / 4;
}

/* A cache of this engine's own. Pages that nobody writes to cost nothing: it is not cleared. */
static fb_status take_cache(fb_engine *e, uint8_t **out, fb_error *err) {
    char what[64];
    void *memory;
    fb_frame_cache_name(&e->frame, what, sizeof what);
    FB_TRY(fb_memory_take(what, fb_frame_cache_bytes(&e->frame), &memory, err));
    *out = memory;
    return FB_OK;
}

static fb_status start_cache(fb_engine *e, fb_error *err) {
    fb_engine *from = e->frame.options.fork_of;
    if (from) {
        e->cache = fb_shared_join(from->cache);
        return FB_OK;
    }
    uint8_t *memory;
    FB_TRY(take_cache(e, &memory, err));
    e->cache = fb_shared_new(memory);
    if (e->cache) return FB_OK;
    free(memory);
    return fb_fail_memory(err, "KV cache", sizeof *e->cache);
}

/* What tokens before `position` left in the slots, and no more: the rest may never be needed. */
static void copy_cache(const fb_engine *e, uint8_t *to, int64_t position) {
    const fb_frame *f = &e->frame;
    int64_t slots = position ? fb_ring_count(&f->options.ring, position - 1) : 0;
    slots = (slots + FB_KV_LANES - 1) / FB_KV_LANES * FB_KV_LANES; /* keys lie side by side */
    for (int64_t layer = 0; layer < f->bound.program->layers; layer++) {
        fb_kv from = fb_frame_cache(f, e->cache->memory, layer), copy = fb_frame_cache(f, to, layer);
        size_t bytes = (size_t)(slots * from.width * fb_dtype_size(from.dtype));
        for (int64_t head = 0; head < from.heads; head++) {
            memcpy(fb_key_at(&copy, head, 0), fb_key_at(&from, head, 0), bytes);
            memcpy(fb_value_at(&copy, head, 0), fb_value_at(&from, head, 0), bytes);
        }
    }
}

/* Before a step writes to it, a shared cache becomes a copy. */
static fb_status own_cache(fb_engine *e, int64_t position, fb_error *err) {
    if (fb_shared_alone(e->cache)) return FB_OK;
    uint8_t *memory;
    FB_TRY(take_cache(e, &memory, err));
    fb_shared *own = fb_shared_new(memory);
    if (!own) {
        free(memory);
        return fb_fail_memory(err, "KV cache", sizeof *own);
    }
    copy_cache(e, memory, position);
    free(fb_shared_leave(e->cache));
    e->cache = own;
    return FB_OK;
}

static fb_status allocate(fb_engine *e, fb_error *err) {
    const fb_program *p = e->frame.bound.program;
    const fb_backend_options *o = &e->frame.options;
    int32_t lanes = fb_pool_lanes(e->pool);
    e->scratch_floats = scratch_floats(e);
    int64_t scratch_bytes = lanes * e->scratch_floats * 4;
    int64_t hidden_bytes = aligned(o->chunk * p->hidden * 4);
    int64_t row_bytes = aligned(o->chunk * (int64_t)sizeof *e->row);
    void *memory;
    FB_TRY(fb_memory_take("activations", scratch_bytes + hidden_bytes + row_bytes + fb_frame_bytes(&e->frame),
                          &memory, err));
    e->memory = memory;
    e->scratch = memory;
    e->hidden = (float *)(void *)(e->memory + scratch_bytes);
    e->row = (fb_row *)(void *)(e->memory + scratch_bytes + hidden_bytes);
    e->frame.row = e->row;
    fb_frame_place(&e->frame, e->memory + scratch_bytes + hidden_bytes + row_bytes);
    return start_cache(e, err);
}

static void place_barriers(fb_engine *e) {
    const fb_program *p = e->frame.bound.program;
    int32_t lanes = fb_pool_lanes(e->pool);
    e->by_head = fb_program_by_head(p, lanes);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            e->no_barrier[s][i] = !fb_program_barrier(p, (fb_section)s, i, lanes);
}

/* ---- screens ---- */

typedef struct filling {
    fb_engine *engine;
    fb_call call;
} filling;

static void fill_lane(void *arg, int32_t lane) {
    const filling *f = arg;
    f->engine->isa->screen(&f->call, &(fb_lane){lane, fb_pool_lanes(f->engine->pool), NULL});
}

static void fill_screen(void *arg) {
    filling *f = arg;
    fb_pool_run(f->engine->pool, fb_pool_lanes(f->engine->pool), fill_lane, f);
}

/* Those that the program reads are filled by the first engine that wants them. */
static void fill_screens(fb_engine *e) {
    const fb_program *p = e->frame.bound.program;
    for (int32_t i = 0; i < p->op_count[FB_EPILOGUE]; i++) {
        const fb_op *op = &p->ops[FB_EPILOGUE][i];
        if (!op->attr.screen) continue;
        filling f = {e, {.weights = {e->frame.bound.weights[op->weights[0] * p->layers]}}};
        if (f.call.weights[0].screen) fb_screen_fill(f.call.weights[0].screen, fill_screen, &f);
    }
}

static fb_status check_options(const fb_backend_options *o, const fb_isa *isa, fb_error *err) {
    if (o->act == FB_F64 && strcmp(isa->name, "ref") != 0)
        return fb_fail(err, FB_ERROR_USAGE, "act: f64 (only with isa ref, not %s)", isa->name);
    if (o->kv == FB_F64 && strcmp(isa->name, "ref") != 0)
        return fb_fail(err, FB_ERROR_USAGE, "kv: f64 (only with isa ref, not %s)", isa->name);
    return FB_OK;
}

static void cpu_close(fb_engine *e) {
    if (!e) return;
    fb_pool_free(e->pool);
    free(e->memory);
    free(fb_shared_leave(e->cache));
    free(e);
}

static fb_status cpu_start(fb_engine *e, const fb_bound *bound, const fb_backend_options *options,
                           fb_error *err) {
    FB_TRY(fb_isa_find(options->isa, &e->isa, err));
    FB_TRY(check_options(options, e->isa, err));
    FB_TRY(fb_frame_init(&e->frame, bound, options, err));
    FB_TRY(fb_pool_create(options->threads ? options->threads : fb_pool_cores(), &e->pool, err));
    FB_TRY(allocate(e, err));
    place_barriers(e);
    fill_screens(e);
    return FB_OK;
}

static fb_status cpu_open(const fb_bound *bound, const fb_backend_options *options, fb_engine **out,
                          fb_error *err) {
    *out = NULL;
    fb_engine *e = calloc(1, sizeof *e);
    if (!e) return fb_fail_memory(err, "cpu backend", sizeof *e);
    fb_status status = cpu_start(e, bound, options, err);
    if (status != FB_OK) {
        cpu_close(e);
        return status;
    }
    *out = e;
    return FB_OK;
}

/* ---- running
 * -------------------------------------------------------------------------------------------------------- */

static void run_section(fb_engine *e, fb_section section, int64_t layer, const fb_lane *lane) {
    const fb_program *p = e->frame.bound.program;
    for (int32_t i = 0; i < p->op_count[section]; i++) {
        const fb_op *op = &p->ops[section][i];
        fb_call call;
        fb_frame_call(&e->frame, section, i, layer, e->step, &call);
        if (section == FB_BODY) call.kv = fb_frame_cache(&e->frame, e->cache->memory, layer);
        call.by_head = e->by_head;
        call.apart = e->no_barrier[section][i];
        e->isa->kernels[op->kind](&call, lane);
        bool barrier = !e->no_barrier[section][i];
        if (lane->index == 0) fb_frame_count(&e->frame, op, barrier);
        if (barrier) fb_pool_barrier(e->pool);
        if (e->frame.options.profile && lane->index == 0) {
            double now = fb_now();
            e->frame.trace.seconds[section][i] += now - e->op_began;
            e->frame.trace.walk += now - e->op_began;
            e->op_began = now;
        }
    }
}

/* The last `rows` rows of a value as float32. */
static void widen(const fb_engine *e, int32_t value, int64_t rows, float *out) {
    fb_view view = fb_frame_view(&e->frame, value);
    int64_t cols = view.heads * view.width, first = fb_frame_first(&e->frame, value, e->step, rows);
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
    fb_view view = fb_frame_view(&e->frame, e->frame.bound.program->best);
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
    int64_t cols = e->frame.bound.program->hidden;
    if (lane->index == 0) {
        widen(e, value, rows, e->hidden);
        if (!e->step->on_hidden(e->step->user, layer, e->hidden, rows, cols)) e->stopped = true;
    }
    fb_pool_barrier(e->pool);
}

static void run_lane(void *arg, int32_t index) {
    fb_engine *e = arg;
    const fb_program *p = e->frame.bound.program;
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
    FB_TRY(own_cache(e, step->position, err));
    e->step = step;
    fb_frame_rows(step, e->row);
    e->stopped = false;
    e->op_began = e->frame.options.profile ? fb_now() : 0;
    fb_pool_run(e->pool, fb_pool_lanes(e->pool), run_lane, e);
    if (e->stopped) return fb_fail(err, FB_ERROR_STOPPED, "run: stopped");
    if (e->frame.bound.program->logits != FB_NONE)
        widen(e, e->frame.bound.program->logits, step->epilogue_rows, step->logits);
    else
        take_best(e, step->epilogue_rows, step->best);
    e->frame.trace.steps++;
    return FB_OK;
}

static const char *cpu_variant(const fb_engine *e) { return e->isa->name; }
static int32_t cpu_threads(const fb_engine *e) { return fb_pool_lanes(e->pool); }
static const fb_trace *cpu_trace(const fb_engine *e) { return &e->frame.trace; }

const fb_backend fb_backend_cpu = {"cpu",       cpu_open,  cpu_run, cpu_close, cpu_variant,
                                   cpu_threads, cpu_trace, NULL,    false,     true};
