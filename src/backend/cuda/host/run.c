/* Steps on a GPU: launched op by op, or recorded once and launched as one graph. */
#include "backend/cuda/host/host.h"
#include "backend/sequence.h"

/* ---- one pass over the program ---- */

static fb_status launch_section(fb_cuda_executor *e, const fb_batch *batch, fb_section section, int64_t layer,
                                fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    for (int32_t i = 0; i < p->op_count[section]; i++) {
        const fb_op *op = &p->ops[section][i];
        fb_call call;
        fb_frame_call(&e->base.frame, section, i, layer, batch, e->state->rows, &call);
        if (section == FB_BODY) call.kv = fb_frame_cache(&e->base.frame, layer);
        FB_TRY(fb_gpu_check(fb_cuda_launches[op->kind](&call, &e->cx), fb_op_table[op->kind].name, err));
        fb_trace_count(e->trace, op, true);
        if (e->base.frame.options.profile) FB_TRY(fb_gpu_mark(e->gpu, ++e->marks, err));
    }
    return FB_OK;
}

/* Downloads the last `rows` rows of a value to `out`, as float32. */
static fb_status fetch(fb_cuda_executor *e, int32_t value, const fb_batch *batch, int64_t rows, float *out,
                       fb_error *err) {
    fb_view view = fb_frame_view(&e->base.frame, value);
    int64_t cols = view.heads * view.width, first = fb_frame_first(&e->base.frame, value, batch, rows);
    /* A value with storage of its own has no gaps between rows. For a view, whole rows are downloaded. */
    int64_t bytes = ((rows - 1) * view.row_stride + cols) * fb_dtype_size(view.dtype);
    FB_TRY(fb_gpu_download(e->gpu, e->results, fb_view_at(&view, first, 0), bytes, err));
    FB_TRY(fb_gpu_wait(e->gpu, err));
    for (int64_t row = 0; row < rows; row++) {
        const void *x = fb_at(e->results, view.dtype, row * view.row_stride);
        if (view.dtype == FB_F32)
            memcpy(out + row * cols, x, (size_t)cols * sizeof *out);
        else
            for (int64_t i = 0; i < cols; i++) out[row * cols + i] = (float)fb_dtype_get(view.dtype, x, i);
    }
    return FB_OK;
}

static fb_status show_hidden(fb_cuda_executor *e, const fb_batch *batch, int64_t layer, int32_t value,
                             int64_t rows, fb_error *err) {
    if (!batch->on_hidden) return FB_OK;
    FB_TRY(fetch(e, value, batch, rows, e->hidden, err));
    return batch->on_hidden(batch->user, layer, e->hidden, rows, e->base.frame.bound.program->hidden)
               ? FB_OK
               : fb_fail(err, FB_ERROR_STOPPED, "run: stopped");
}

/* All layers by the persistent kernel. The trace counts every op, and one launch. */
static fb_status launch_list(fb_cuda_executor *e, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    FB_TRY(fb_gpu_check(fb_cuda_work_list_launch(e->list, e->listed, &e->cx), "step", err));
    for (int64_t layer = 0; layer < p->layers; layer++)
        for (int32_t i = 0; i < p->op_count[FB_BODY]; i++)
            fb_trace_count(e->trace, &p->ops[FB_BODY][i], false);
    e->trace->barriers++;
    e->trace->listed++;
    return FB_OK;
}

static fb_status launch_all(fb_cuda_executor *e, const fb_batch *batch, bool listed, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    FB_TRY(launch_section(e, batch, FB_PROLOGUE, 0, err));
    FB_TRY(show_hidden(e, batch, 0, p->residual, batch->count, err));
    if (listed) FB_TRY(launch_list(e, err));
    for (int64_t layer = 0; layer < (listed ? 0 : p->layers); layer++) {
        if (batch->cancel && atomic_load(batch->cancel))
            return fb_fail(err, FB_ERROR_STOPPED, "run: stopped");
        FB_TRY(launch_section(e, batch, FB_BODY, layer, err));
        if (layer + 1 < p->layers) FB_TRY(show_hidden(e, batch, layer + 1, p->residual, batch->count, err));
    }
    if (!batch->wanted) return FB_OK;
    FB_TRY(launch_section(e, batch, FB_EPILOGUE, 0, err));
    return show_hidden(e, batch, p->layers, p->final_norm, batch->wanted, err);
}

/* ---- a step, launched op by op ---- */

static uint8_t *cache_of(const fb_batch *batch) { return batch->sequences[0]->table[0]; }

static fb_status send_state(fb_cuda_executor *e, const fb_batch *batch, fb_error *err) {
    e->sent->best = -1;
    e->sent->cache = cache_of(batch);
    memcpy(e->sent->rows, batch->rows, (size_t)batch->count * sizeof *batch->rows);
    e->next_cache = NULL;
    return fb_gpu_upload(e->gpu, e->state, e->sent,
                         (int64_t)sizeof *e->sent + batch->count * (int64_t)sizeof *batch->rows, err);
}

/* Adds the times between marks to the trace. Marks are in the order of launch_all. */
static fb_status add_times(fb_cuda_executor *e, const fb_batch *batch, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    fb_trace *trace = e->trace;
    int32_t mark = 0;
    for (int s = 0; s < FB_SECTIONS; s++) {
        if (s == FB_EPILOGUE && !batch->wanted) break;
        for (int64_t layer = 0; layer < (s == FB_BODY ? p->layers : 1); layer++)
            for (int32_t i = 0; i < p->op_count[s]; i++, mark++) {
                double seconds;
                FB_TRY(fb_gpu_between(e->gpu, mark, mark + 1, &seconds, err));
                trace->seconds[s][i] += seconds;
                trace->op_seconds += seconds;
            }
    }
    return FB_OK;
}

static fb_status fetch_results(fb_cuda_executor *e, const fb_batch *batch, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    if (!batch->wanted) return fb_gpu_wait(e->gpu, err);
    if (p->logits != FB_NONE) return fetch(e, p->logits, batch, batch->wanted, batch->logits, err);
    fb_view view = fb_frame_view(&e->base.frame, p->best);
    for (int64_t row = 0; row < batch->wanted; row++) {
        FB_TRY(
            fb_gpu_download(e->gpu, e->results, fb_view_at(&view, row, 0), 2 * (int64_t)sizeof(float), err));
        FB_TRY(fb_gpu_wait(e->gpu, err));
        batch->best[row] = (int32_t)((const float *)(const void *)e->results)[1];
    }
    return FB_OK;
}

static fb_status run_direct(fb_cuda_executor *e, const fb_batch *batch, fb_error *err) {
    FB_TRY(send_state(e, batch, err));
    e->cx.context = fb_ring_count(&e->base.frame.options.ring, batch->rows[batch->count - 1].position);
    e->marks = 0;
    if (e->base.frame.options.profile) FB_TRY(fb_gpu_mark(e->gpu, 0, err));
    FB_TRY(launch_all(e, batch, false, err));
    FB_TRY(fetch_results(e, batch, err));
    return e->base.frame.options.profile ? add_times(e, batch, err) : FB_OK;
}

/* ---- a decode step, recorded ---- */

static fb_status record_ops(fb_cuda_executor *e, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    fb_batch batch = {.count = 1, .wanted = 1};
    e->cx.context = e->base.frame.options.capacity;
    FB_TRY(launch_all(e, &batch, e->list != NULL, err));
    const float *best = NULL;
    if (p->logits == FB_NONE) {
        fb_view view = fb_frame_view(&e->base.frame, p->best);
        best = view.data;
    }
    FB_TRY(fb_gpu_check(fb_cuda_advance(e->state, best, &e->cx), "advance", err));
    if (best) return fb_gpu_download(e->gpu, e->results, &e->state->best, sizeof(int32_t), err);
    fb_view view = fb_frame_view(&e->base.frame, p->logits);
    return fb_gpu_download(e->gpu, e->results, view.data, p->vocab * fb_dtype_size(view.dtype), err);
}

static fb_status record_step(fb_cuda_executor *e, fb_error *err) {
    fb_trace *asked = e->trace;
    e->recorded = (fb_trace){0};
    FB_TRY(fb_gpu_record_begin(e->gpu, err));
    e->trace = &e->recorded;
    fb_status status = record_ops(e, err),
              ended = fb_gpu_record_end(e->gpu, &e->graph, status == FB_OK ? err : NULL);
    e->trace = asked;
    if (status != FB_OK) { /* only part of a step */
        fb_gpu_graph_free(e->graph);
        e->graph = NULL;
    }
    return status != FB_OK ? status : ended;
}

static void count_recorded(fb_cuda_executor *e) {
    fb_trace *trace = e->trace;
    for (int i = 0; i < FB_OP_COUNT; i++) trace->ops[i] += e->recorded.ops[i];
    for (int i = 0; i < 32; i++) trace->fuses[i] += e->recorded.fuses[i];
    trace->barriers += e->recorded.barriers;
    trace->graphs++;
    trace->listed += e->recorded.listed;
}

static fb_status run_recorded(fb_cuda_executor *e, const fb_batch *batch, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    if (!e->graph) FB_TRY(record_step(e, err));
    const fb_row *row = &batch->rows[0];
    if (e->next_cache != cache_of(batch) || e->next_position != row->position || e->next_token != row->token)
        FB_TRY(send_state(e, batch, err));
    FB_TRY(fb_gpu_graph_launch(e->gpu, e->graph, err));
    FB_TRY(fb_gpu_wait(e->gpu, err));
    count_recorded(e);
    e->next_cache = cache_of(batch);
    e->next_position = row->position + 1;
    if (p->logits == FB_NONE) {
        memcpy(batch->best, e->results, sizeof *batch->best);
        e->next_token = *batch->best;
        if (*batch->best < 0) e->next_cache = NULL;
        return FB_OK;
    }
    e->next_token = row->token; /* the device advanced the position; the token there is still this step's */
    fb_view view = fb_frame_view(&e->base.frame, p->logits);
    for (int64_t i = 0; i < p->vocab; i++) batch->logits[i] = (float)fb_dtype_get(view.dtype, e->results, i);
    return FB_OK;
}

fb_status fb_cuda_run(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err) {
    fb_cuda_executor *e = (fb_cuda_executor *)executor;
    const fb_executor_options *o = &executor->frame.options;
    bool recorded = o->graph && !o->profile && !batch->on_hidden && batch->count == 1 && batch->wanted == 1;
    e->trace = trace;
    fb_status status = recorded ? run_recorded(e, batch, err) : run_direct(e, batch, err);
    if (status != FB_OK) {
        fb_gpu_wait(e->gpu, NULL); /* launched kernels still write to the cache */
        e->next_cache = NULL;
    }
    return status;
}
