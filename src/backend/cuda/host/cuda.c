/* The CUDA backend: device memory, the walk through the program, and the recorded decode step. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/host/weights.h"
#include "backend/cuda/plugin.h"
#include "backend/cuda/step.h"
#include "backend/frame.h"

/* What attention's kernels hold of a head at once. */
#define MOST_HEAD_DIM 256

struct fb_engine {
    fb_frame frame;
    fb_gpu *gpu;
    const char *isa;
    fb_cuda_weights *weights;
    uint8_t *memory; /* on the device: values, state, frequencies, scratch */
    fb_shared *cache;
    fb_cuda_context cx;
    fb_cuda_state *state; /* on the device */
    /* On the host, where copies do not wait: the step's numbers on their way, and results. */
    fb_cuda_state *sent;
    uint8_t *rows;      /* hidden states, logits or the best token, as the device has them */
    float *hidden;      /* [chunk, hidden] */
    fb_cuda_list *list; /* the layers of a decode step, if one kernel does them all … */
    void *listed;       /* … on the device */
    fb_gpu_graph *graph;
    fb_trace recorded;  /* what one launch of the graph runs */
    bool state_is_next; /* the state on the device is that of a decode step … */
    int64_t next_position;
    int32_t next_id; /* … at this position, of this token */
    int32_t marks;   /* of the step that is profiled */
};

static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/* ---- opening --------------------------------------------------------------------------------------------
 */

static fb_status check_options(const fb_program *p, const fb_backend_options *o, fb_error *err) {
    if (o->act == FB_F64 || o->kv == FB_F64)
        return fb_fail(err, FB_ERROR_USAGE, "%s: f64 (only on the CPU, with isa ref)",
                       o->act == FB_F64 ? "act" : "kv");
    if (o->isa)
        return fb_fail(err, FB_ERROR_USAGE, "isa: %.32s (only on the CPU, not with backend cuda)", o->isa);
    if (p->head_dim > MOST_HEAD_DIM)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "cuda: heads of %lld elements (at most %d)",
                       (long long)p->head_dim, MOST_HEAD_DIM);
    return FB_OK;
}

/* "sm_90". Reports keep it when the engine is gone, so it must stay. */
static const char *isa_of(const fb_cuda_limits *limits) {
    static const char *const names[] = {"sm_80",  "sm_86",  "sm_87",  "sm_88",  "sm_89",  "sm_90",
                                        "sm_100", "sm_101", "sm_103", "sm_110", "sm_120", "sm_121"};
    char name[32];
    snprintf(name, sizeof name, "sm_%d%d", limits->major, limits->minor);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return names[i];
    return "sm_new";
}

/* The most that an op asks for; shapes count, not memory. */
static int64_t scratch_bytes(fb_engine *e) {
    fb_frame *f = &e->frame;
    const fb_program *p = f->bound.program;
    int64_t most = FB_CUDA_COUNTERS;
    fb_frame_place(f, NULL); /* shapes and types of the calls; where they lie comes later */
    fb_step step = {.rows = f->options.chunk, .epilogue_rows = f->options.epilogue_rows};
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            fb_call call;
            fb_frame_call(f, (fb_section)s, i, 0, &step, &call);
            switch (p->ops[s][i].kind) {
            case FB_OP_LINEAR:
            case FB_OP_LINEAR_GROUP:
            case FB_OP_HEAD_ARGMAX:
                most = max_of(most, fb_cuda_linear_scratch(&call, call.rows));
                break;
            case FB_OP_ATTN_SCORES:
            case FB_OP_ATTN_VALUES:
            case FB_OP_ATTN_ROWS:
            case FB_OP_ATTN_FLASH:
                call.kv = fb_frame_cache(f, NULL, 0);
                most = max_of(most, fb_cuda_attention_scratch(&call, call.rows, f->cache_capacity));
                break;
            default:
                break;
            }
        }
    return most;
}

/* Bytes of what is downloaded at most: a chunk of hidden states, or the epilogue's logits. */
static int64_t result_bytes(const fb_engine *e) {
    const fb_program *p = e->frame.bound.program;
    return max_of(e->frame.options.chunk * p->hidden, e->frame.options.epilogue_rows * p->vocab) * 4;
}

/* ---- the layers of a decode step as a list --------------------------------------------------------------
 */

/* Whether all of them are on the list. */
static bool append_layers(fb_engine *e) {
    const fb_program *p = e->frame.bound.program;
    fb_step step = {.rows = 1, .epilogue_rows = 1};
    for (int64_t layer = 0; layer < p->layers; layer++)
        for (int32_t i = 0; i < p->op_count[FB_BODY]; i++) {
            fb_call call;
            fb_frame_call(&e->frame, FB_BODY, i, layer, &step, &call);
            call.kv = fb_frame_cache(&e->frame, NULL, layer);
            if (fb_cuda_launches[p->ops[FB_BODY][i].kind](&call, &e->cx)) return false;
        }
    return true;
}

/* Without a list, where the kernel cannot do what is asked, the layers are launched op by op. */
static fb_status list_layers(fb_engine *e, fb_error *err) {
    const fb_program *p = e->frame.bound.program;
    const void *image;
    int64_t bytes, most = p->layers * p->op_count[FB_BODY];
    e->list = fb_cuda_list_new(most);
    if (!e->list) return fb_fail_memory(err, "list of a step's ops", most);
    e->cx.list = e->list;
    e->cx.context = e->frame.options.capacity;
    bool whole = append_layers(e);
    e->cx.list = NULL;
    if (!whole || fb_cuda_list_end(e->list, &e->cx, &image, &bytes)) {
        fb_cuda_list_free(e->list);
        e->list = NULL;
        return FB_OK;
    }
    FB_TRY(fb_gpu_take(e->gpu, "list of a step's ops", bytes, &e->listed, err));
    FB_TRY(fb_gpu_upload(e->gpu, e->listed, image, bytes, err));
    return fb_gpu_wait(e->gpu, err);
}

/* ---- memory ----------------------------------------------------------------------------------------------
 */

/* Memory for a cache of this engine's own. */
static fb_status take_cache(fb_engine *e, fb_shared **out, fb_error *err) {
    char what[64];
    void *memory;
    fb_frame_cache_name(&e->frame, what, sizeof what);
    FB_TRY(fb_gpu_take(e->gpu, what, fb_frame_cache_bytes(&e->frame), &memory, err));
    *out = fb_shared_new(memory);
    if (*out) return FB_OK;
    fb_gpu_give(e->gpu, memory);
    return fb_fail_memory(err, "KV cache", sizeof **out);
}

static fb_status start_cache(fb_engine *e, fb_error *err) {
    fb_engine *from = e->frame.options.fork_of;
    if (from) {
        e->cache = fb_shared_join(from->cache);
        return FB_OK;
    }
    FB_TRY(take_cache(e, &e->cache, err));
    /* Values between the sinks and the ring are read with a weight of zero: they must be numbers. */
    if (!e->frame.options.ring.window) return FB_OK;
    return fb_gpu_zero(e->gpu, e->cache->memory, fb_frame_cache_bytes(&e->frame), err);
}

/* Before a step writes to it, a shared cache becomes a copy. Every step ends with a wait for its stream, so
 * no other engine's is under way; and nobody may write to the old one before this engine's copy is done. */
static fb_status own_cache(fb_engine *e, fb_error *err) {
    if (fb_shared_alone(e->cache)) return FB_OK;
    fb_shared *own;
    FB_TRY(take_cache(e, &own, err));
    fb_status status =
        fb_gpu_copy(e->gpu, own->memory, e->cache->memory, fb_frame_cache_bytes(&e->frame), err);
    if (status == FB_OK) status = fb_gpu_wait(e->gpu, err);
    if (status != FB_OK) {
        fb_gpu_give(e->gpu, fb_shared_leave(own));
        return status;
    }
    fb_gpu_give(e->gpu, fb_shared_leave(e->cache));
    e->cache = own;
    e->state_is_next = false; /* the state has the old address */
    return FB_OK;
}

static fb_status take_memory(fb_engine *e, fb_error *err) {
    const fb_program *p = e->frame.bound.program;
    const fb_backend_options *o = &e->frame.options;
    int64_t values = aligned(fb_frame_bytes(&e->frame));
    int64_t state = aligned((int64_t)sizeof(fb_cuda_state) + o->chunk * (int64_t)sizeof(fb_row));
    int64_t half = p->head_dim / 2, frequencies = aligned(half * (int64_t)sizeof(double));
    int64_t scratch = aligned(scratch_bytes(e));
    void *memory;
    FB_TRY(fb_gpu_take(e->gpu, "activations", values + state + frequencies + scratch, &memory, err));
    uint8_t *at = e->memory = memory;
    fb_frame_place(&e->frame, at);
    e->state = (fb_cuda_state *)(void *)(at += values);
    e->frame.row = e->state->rows;
    e->cx.caches = &e->state->cache;
    e->cx.frequencies = (const double *)(void *)(at += state);
    e->cx.scratch = at += frequencies;
    e->cx.scratch_bytes = scratch;
    FB_TRY(fb_gpu_zero(e->gpu, e->cx.scratch, scratch, err));
    if (p->frequencies)
        for (int32_t i = 0; i < p->op_count[FB_PROLOGUE]; i++) {
            const fb_op *op = &p->ops[FB_PROLOGUE][i];
            if (op->kind == FB_OP_ROPE_ANGLES)
                FB_TRY(fb_gpu_upload(e->gpu, at - frequencies, op->attr.frequencies,
                                     op->attr.rotary / 2 * (int64_t)sizeof(double), err));
        }
    FB_TRY(start_cache(e, err));
    FB_TRY(fb_gpu_take_host(e->gpu, "results", state + result_bytes(e), &memory, err));
    e->sent = memory;
    e->rows = (uint8_t *)memory + state;
    return FB_OK;
}

static void cuda_close(fb_engine *e) {
    if (!e) return;
    if (e->gpu) {
        fb_gpu_wait(e->gpu, NULL);
        fb_gpu_graph_free(e->graph);
        fb_gpu_give(e->gpu, e->listed);
        fb_gpu_give(e->gpu, e->memory);
        fb_gpu_give(e->gpu, fb_shared_leave(e->cache));
        fb_gpu_give_host(e->gpu, e->sent);
        fb_cuda_weights_give(e->gpu, e->weights);
        fb_gpu_close(e->gpu);
    }
    fb_cuda_list_free(e->list);
    free(e->hidden);
    free(e);
}

static fb_status cuda_start(fb_engine *e, const fb_bound *bound, const fb_backend_options *o, fb_error *err) {
    FB_TRY(check_options(bound->program, o, err));
    FB_TRY(fb_frame_init(&e->frame, bound, o, err));
    FB_TRY(fb_gpu_open(o->device, &e->gpu, err));
    const fb_cuda_limits *limits = fb_gpu_limits(e->gpu);
    e->isa = isa_of(limits);
    fb_gpu_context(e->gpu, &e->cx);
    e->cx.overlap = limits->major >= 9 && !o->profile;
    FB_TRY(fb_cuda_weights_take(e->gpu, o->device, bound, &e->weights, err));
    e->frame.bound.weights = fb_cuda_weights_table(e->weights);
    int64_t hidden = o->chunk * bound->program->hidden * (int64_t)sizeof *e->hidden;
    e->hidden = malloc((size_t)hidden);
    if (!e->hidden) return fb_fail_memory(err, "hidden states", hidden);
    FB_TRY(take_memory(e, err));
    if (o->step) FB_TRY(list_layers(e, err));
    return fb_gpu_wait(e->gpu, err);
}

static fb_status cuda_open(const fb_bound *bound, const fb_backend_options *options, fb_engine **out,
                           fb_error *err) {
    *out = NULL;
    fb_engine *e = calloc(1, sizeof *e);
    if (!e) return fb_fail_memory(err, "cuda backend", sizeof *e);
    fb_status status = cuda_start(e, bound, options, err);
    if (status != FB_OK) {
        cuda_close(e);
        return status;
    }
    *out = e;
    return FB_OK;
}

/* ---- one pass over the program --------------------------------------------------------------------------
 */

static fb_status launch_section(fb_engine *e, const fb_step *step, fb_section section, int64_t layer,
                                fb_error *err) {
    const fb_program *p = e->frame.bound.program;
    for (int32_t i = 0; i < p->op_count[section]; i++) {
        const fb_op *op = &p->ops[section][i];
        fb_call call;
        fb_frame_call(&e->frame, section, i, layer, step, &call);
        if (section == FB_BODY) call.kv = fb_frame_cache(&e->frame, NULL, layer);
        FB_TRY(fb_gpu_check(fb_cuda_launches[op->kind](&call, &e->cx), fb_op_table[op->kind].name, err));
        fb_frame_count(&e->frame, op, true);
        if (e->frame.options.profile) FB_TRY(fb_gpu_mark(e->gpu, ++e->marks, err));
    }
    return FB_OK;
}

/* The last `rows` rows of a value, as float32, to `out`. */
static fb_status fetch(fb_engine *e, int32_t value, const fb_step *step, int64_t rows, float *out,
                       fb_error *err) {
    fb_view view = fb_frame_view(&e->frame, value);
    int64_t cols = view.heads * view.width, first = fb_frame_first(&e->frame, value, step, rows);
    /* A value of its own storage has no gaps between its rows; of a view, whole rows come along. */
    int64_t bytes = ((rows - 1) * view.row_stride + cols) * fb_dtype_size(view.dtype);
    FB_TRY(fb_gpu_download(e->gpu, e->rows, fb_view_at(&view, first, 0), bytes, err));
    FB_TRY(fb_gpu_wait(e->gpu, err));
    for (int64_t row = 0; row < rows; row++) {
        const void *x = fb_at(e->rows, view.dtype, row * view.row_stride);
        if (view.dtype == FB_F32)
            memcpy(out + row * cols, x, (size_t)cols * sizeof *out);
        else
            for (int64_t i = 0; i < cols; i++) out[row * cols + i] = (float)fb_dtype_get(view.dtype, x, i);
    }
    return FB_OK;
}

static fb_status show_hidden(fb_engine *e, const fb_step *step, int64_t layer, int32_t value, int64_t rows,
                             fb_error *err) {
    if (!step->on_hidden) return FB_OK;
    FB_TRY(fetch(e, value, step, rows, e->hidden, err));
    return step->on_hidden(step->user, layer, e->hidden, rows, e->frame.bound.program->hidden)
               ? FB_OK
               : fb_fail(err, FB_ERROR_STOPPED, "run: stopped");
}

/* All layers by the list's kernel; each op counts, and one launch. */
static fb_status launch_list(fb_engine *e, fb_error *err) {
    const fb_program *p = e->frame.bound.program;
    FB_TRY(fb_gpu_check(fb_cuda_list_launch(e->list, e->listed, &e->cx), "step", err));
    for (int64_t layer = 0; layer < p->layers; layer++)
        for (int32_t i = 0; i < p->op_count[FB_BODY]; i++)
            fb_frame_count(&e->frame, &p->ops[FB_BODY][i], false);
    e->frame.trace.barriers++;
    e->frame.trace.listed++;
    return FB_OK;
}

static fb_status launch_all(fb_engine *e, const fb_step *step, bool listed, fb_error *err) {
    const fb_program *p = e->frame.bound.program;
    FB_TRY(launch_section(e, step, FB_PROLOGUE, 0, err));
    FB_TRY(show_hidden(e, step, 0, p->residual, step->rows, err));
    if (listed) FB_TRY(launch_list(e, err));
    for (int64_t layer = 0; layer < (listed ? 0 : p->layers); layer++) {
        FB_TRY(launch_section(e, step, FB_BODY, layer, err));
        if (layer + 1 < p->layers) FB_TRY(show_hidden(e, step, layer + 1, p->residual, step->rows, err));
    }
    if (!step->epilogue_rows) return FB_OK;
    FB_TRY(launch_section(e, step, FB_EPILOGUE, 0, err));
    return show_hidden(e, step, p->layers, p->final_norm, step->epilogue_rows, err);
}

/* ---- a step, launched op by op --------------------------------------------------------------------------
 */

static fb_status send_state(fb_engine *e, const fb_step *step, fb_error *err) {
    e->sent->cache = e->cache->memory;
    e->sent->best = -1;
    fb_frame_rows(step, e->sent->rows);
    e->state_is_next = false;
    return fb_gpu_upload(e->gpu, e->state, e->sent,
                         (int64_t)sizeof *e->sent + step->rows * (int64_t)sizeof *e->sent->rows, err);
}

/* The times between the marks, in the order of launch_all. */
static fb_status add_times(fb_engine *e, const fb_step *step, fb_error *err) {
    const fb_program *p = e->frame.bound.program;
    fb_trace *trace = &e->frame.trace;
    int32_t mark = 0;
    for (int s = 0; s < FB_SECTIONS; s++) {
        if (s == FB_EPILOGUE && !step->epilogue_rows) break;
        for (int64_t layer = 0; layer < (s == FB_BODY ? p->layers : 1); layer++)
            for (int32_t i = 0; i < p->op_count[s]; i++, mark++) {
                double seconds;
                FB_TRY(fb_gpu_between(e->gpu, mark, mark + 1, &seconds, err));
                trace->seconds[s][i] += seconds;
                trace->walk += seconds;
            }
    }
    return FB_OK;
}

static fb_status fetch_results(fb_engine *e, const fb_step *step, fb_error *err) {
    const fb_program *p = e->frame.bound.program;
    if (!step->epilogue_rows) return fb_gpu_wait(e->gpu, err);
    if (p->logits != FB_NONE) return fetch(e, p->logits, step, step->epilogue_rows, step->logits, err);
    fb_view view = fb_frame_view(&e->frame, p->best);
    for (int64_t row = 0; row < step->epilogue_rows; row++) {
        FB_TRY(fb_gpu_download(e->gpu, e->rows, fb_view_at(&view, row, 0), 2 * (int64_t)sizeof(float), err));
        FB_TRY(fb_gpu_wait(e->gpu, err));
        step->best[row] = (int32_t)((const float *)(const void *)e->rows)[1];
    }
    return FB_OK;
}

static fb_status run_direct(fb_engine *e, const fb_step *step, fb_error *err) {
    FB_TRY(send_state(e, step, err));
    e->cx.context = fb_ring_count(&e->frame.options.ring, step->position + step->rows - 1);
    e->marks = 0;
    if (e->frame.options.profile) FB_TRY(fb_gpu_mark(e->gpu, 0, err));
    FB_TRY(launch_all(e, step, false, err));
    FB_TRY(fetch_results(e, step, err));
    return e->frame.options.profile ? add_times(e, step, err) : FB_OK;
}

/* ---- a decode step, recorded ----------------------------------------------------------------------------
 */

static fb_status record_ops(fb_engine *e, fb_error *err) {
    const fb_program *p = e->frame.bound.program;
    fb_step step = {.rows = 1, .epilogue_rows = 1};
    e->cx.context = e->frame.options.capacity;
    FB_TRY(launch_all(e, &step, e->list != NULL, err));
    const float *best = NULL;
    if (p->logits == FB_NONE) {
        fb_view view = fb_frame_view(&e->frame, p->best);
        best = view.data;
    }
    FB_TRY(fb_gpu_check(fb_cuda_advance(e->state, best, &e->cx), "advance", err));
    if (best) return fb_gpu_download(e->gpu, e->rows, &e->state->best, sizeof(int32_t), err);
    fb_view view = fb_frame_view(&e->frame, p->logits);
    return fb_gpu_download(e->gpu, e->rows, view.data, p->vocab * fb_dtype_size(view.dtype), err);
}

static fb_status record_step(fb_engine *e, fb_error *err) {
    fb_trace before = e->frame.trace;
    e->frame.trace = (fb_trace){0};
    FB_TRY(fb_gpu_record_begin(e->gpu, err));
    fb_status status = record_ops(e, err),
              ended = fb_gpu_record_end(e->gpu, &e->graph, status == FB_OK ? err : NULL);
    e->recorded = e->frame.trace;
    e->frame.trace = before;
    if (status != FB_OK) { /* the half of a step */
        fb_gpu_graph_free(e->graph);
        e->graph = NULL;
    }
    return status != FB_OK ? status : ended;
}

static void count_recorded(fb_engine *e) {
    fb_trace *trace = &e->frame.trace;
    for (int i = 0; i < FB_OP_COUNT; i++) trace->ops[i] += e->recorded.ops[i];
    for (int i = 0; i < 32; i++) trace->fuses[i] += e->recorded.fuses[i];
    trace->barriers += e->recorded.barriers;
    trace->graphs++;
    trace->listed += e->recorded.listed;
}

static fb_status run_recorded(fb_engine *e, const fb_step *step, fb_error *err) {
    const fb_program *p = e->frame.bound.program;
    if (!e->graph) FB_TRY(record_step(e, err));
    if (!e->state_is_next || e->next_position != step->position || e->next_id != step->ids[0])
        FB_TRY(send_state(e, step, err));
    FB_TRY(fb_gpu_graph_launch(e->gpu, e->graph, err));
    FB_TRY(fb_gpu_wait(e->gpu, err));
    count_recorded(e);
    e->next_position = step->position + 1;
    if (p->logits == FB_NONE) {
        memcpy(step->best, e->rows, sizeof *step->best);
        e->next_id = *step->best;
        e->state_is_next = *step->best >= 0;
        return FB_OK;
    }
    e->state_is_next = true; /* the position is right; the id is still the last one's */
    e->next_id = step->ids[0];
    fb_view view = fb_frame_view(&e->frame, p->logits);
    for (int64_t i = 0; i < p->vocab; i++) step->logits[i] = (float)fb_dtype_get(view.dtype, e->rows, i);
    return FB_OK;
}

static fb_status cuda_run(fb_engine *e, const fb_step *step, fb_error *err) {
    const fb_backend_options *o = &e->frame.options;
    bool recorded =
        o->graph && !o->profile && !step->on_hidden && step->rows == 1 && step->epilogue_rows == 1;
    fb_status status = own_cache(e, err);
    if (status == FB_OK) status = recorded ? run_recorded(e, step, err) : run_direct(e, step, err);
    if (status != FB_OK) {
        fb_gpu_wait(e->gpu, NULL); /* what was launched still writes to the cache */
        e->state_is_next = false;
        return status;
    }
    e->frame.trace.steps++;
    return FB_OK;
}

static const char *cuda_variant(const fb_engine *e) { return e->isa; }
static int32_t cuda_threads(const fb_engine *e) {
    (void)e;
    return 0;
}
static const fb_trace *cuda_trace(const fb_engine *e) { return &e->frame.trace; }
static bool cuda_lists(const fb_engine *e) { return e->list != NULL; }

static const fb_backend backend = {"cuda",       cuda_open,  cuda_run,   cuda_close, cuda_variant,
                                   cuda_threads, cuda_trace, cuda_lists, true,       false};

const fb_cuda_plugin *fb_cuda_plugin_get(void) {
    static const fb_cuda_plugin plugin = {FB_VERSION, FB_CUDA_LAYOUT, &backend, fb_gpu_count,
                                          fb_gpu_describe};
    return &plugin;
}
