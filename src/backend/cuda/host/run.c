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
        fb_trace_count(e->trace, op, section, true);
        if (e->base.frame.options.profile) FB_TRY(fb_gpu_mark(e->gpu, ++e->marks, err));
    }
    return FB_OK;
}

static fb_status show_hidden(fb_cuda_executor *e, const fb_batch *batch, int64_t layer, int32_t value,
                             int64_t rows, fb_error *err) {
    if (!batch->on_hidden) return FB_OK;
    FB_TRY(fb_cuda_fetch(e, value, batch, rows, e->hidden, err));
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
            fb_trace_count(e->trace, &p->ops[FB_BODY][i], FB_BODY, false);
    e->trace->barriers++;
    e->trace->layer_barriers++;
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
    /* The head is computed as for generated tokens, whatever a row's role is: head_argmax has no other way.
     */
    const fb_cuda_rows wanted = {.rows = batch->wanted};
    e->cx.runs = &wanted;
    e->cx.run_count = 1;
    fb_status status = launch_section(e, batch, FB_EPILOGUE, 0, err);
    e->cx.runs = NULL;
    FB_TRY(status);
    return show_hidden(e, batch, p->layers, p->final_norm, batch->wanted, err);
}

/* ---- a step, launched op by op ---- */

/* The rows by their role: generated ones together, those of a prompt by themselves. `one_role`: all are
 * generated ones. */
static int32_t find_runs(const fb_batch *batch, bool one_role, fb_cuda_rows *runs) {
    int32_t count = 0;
    for (int64_t i = 0; i < batch->count; i++) {
        const fb_row *row = &batch->rows[i], *before = row - 1;
        fb_cuda_rows *run = count ? &runs[count - 1] : NULL;
        bool prompt = row->prompt && !one_role;
        bool goes_on =
            run && run->prompt == prompt &&
            (!prompt || (row->sequence == before->sequence && row->position == before->position + 1));
        if (goes_on)
            run->rows++;
        else
            runs[count++] = (fb_cuda_rows){.first = i, .rows = 1, .prompt = prompt};
    }
    return count;
}

/* The slots that the batch's rows look into. */
static int64_t context_of(const fb_cuda_executor *e, const fb_batch *batch) {
    int64_t most = 0;
    for (int64_t i = 0; i < batch->count; i++) {
        int64_t count = fb_ring_count(&e->base.frame.options.ring, batch->rows[i].position);
        if (count > most) most = count;
    }
    return most;
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

static fb_status run_direct(fb_cuda_executor *e, const fb_batch *batch, fb_error *err) {
    bool changed;
    FB_TRY(fb_cuda_send_rows(e, batch, batch->count, err));
    FB_TRY(fb_cuda_send_tables(e, batch, &changed, err));
    e->cx.context = context_of(e, batch);
    e->cx.runs = e->runs;
    e->cx.run_count = find_runs(batch, e->base.frame.options.one_role, e->runs);
    e->marks = 0;
    if (e->base.frame.options.profile) FB_TRY(fb_gpu_mark(e->gpu, 0, err));
    FB_TRY(launch_all(e, batch, false, err));
    FB_TRY(fb_cuda_fetch_results(e, batch, err));
    return e->base.frame.options.profile ? add_times(e, batch, err) : FB_OK;
}

/* ---- a decode step, recorded ---- */

/* A step of one row ends with the state of the next one: the best token, if the program computes only that.
 */
static fb_status record_ops(fb_cuda_executor *e, int64_t rows, int64_t context, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    fb_batch batch = {.count = rows, .wanted = rows};
    fb_cuda_rows run = {.rows = rows};
    e->cx.context = context;
    e->cx.runs = &run;
    e->cx.run_count = 1;
    fb_status status = launch_all(e, &batch, rows == 1 && e->list, err);
    if (status != FB_OK || rows > 1) return status;
    const float *best = NULL;
    if (p->logits == FB_NONE) {
        fb_view view = fb_frame_view(&e->base.frame, p->best);
        best = view.data;
    }
    FB_TRY(fb_gpu_check(fb_cuda_advance(e->state, best, &e->cx), "advance", err));
    if (!best) return FB_OK;
    return fb_gpu_download(e->gpu, e->results, &e->state->best, sizeof(int32_t), err);
}

static fb_status record_step(fb_cuda_executor *e, fb_cuda_recording *recording, int64_t rows, int64_t context,
                             fb_error *err) {
    fb_trace *asked = e->trace;
    recording->ops = (fb_trace){0};
    FB_TRY(fb_gpu_record_begin(e->gpu, err));
    e->trace = &recording->ops;
    fb_status status = record_ops(e, rows, context, err),
              ended = fb_gpu_record_end(e->gpu, &recording->graph, status == FB_OK ? err : NULL);
    e->trace = asked;
    if (status != FB_OK) { /* only part of a step */
        fb_gpu_graph_free(recording->graph);
        recording->graph = NULL;
    }
    return status != FB_OK ? status : ended;
}

static void count_recorded(fb_trace *trace, const fb_trace *recorded) {
    for (int i = 0; i < FB_OP_COUNT; i++) trace->ops[i] += recorded->ops[i];
    for (int i = 0; i < 32; i++) trace->fuses[i] += recorded->fuses[i];
    trace->barriers += recorded->barriers;
    trace->layer_barriers += recorded->layer_barriers;
    trace->graphs++;
    trace->listed += recorded->listed;
}

/* The recording for so many rows, which are a power of two, and a context. One row has one for all contexts:
 * its unused splits cost little, and it must not be recorded while a text is being written. */
static fb_status find_recording(fb_cuda_executor *e, int64_t rows, int64_t context, fb_cuda_recording **out,
                                fb_error *err) {
    int64_t size = e->base.frame.options.capacity;
    int r = __builtin_ctzll((unsigned long long)rows), c = 0;
    if (rows > 1)
        for (size = FB_CUDA_CONTEXT; size < context && c + 1 < FB_CUDA_CONTEXT_SIZES; c++) size *= 2;
    if (size < context || size > e->base.frame.options.capacity) size = e->base.frame.options.capacity;
    *out = &e->recordings[r][c];
    return (*out)->graph ? FB_OK : record_step(e, *out, rows, size, err);
}

/* The rows of a recording that has room for a batch; 0: there is none. */
static int64_t recorded_rows(const fb_cuda_executor *e, const fb_batch *batch) {
    const fb_executor_options *o = &e->base.frame.options;
    int64_t rows = 1, most = o->chunk < o->epilogue_rows ? o->chunk : o->epilogue_rows;
    if (!o->graph || o->profile || batch->on_hidden || batch->count != batch->wanted) return 0;
    for (int64_t i = 0; i < batch->count; i++)
        if (batch->rows[i].prompt) return 0;
    while (rows < batch->count) rows *= 2;
    if (rows > most || rows >= 1 << FB_CUDA_ROW_SIZES || (rows > batch->count && !e->spare)) return 0;
    return rows;
}

static fb_status run_recorded(fb_cuda_executor *e, const fb_batch *batch, int64_t rows, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    const fb_row *row = &batch->rows[0];
    fb_cuda_recording *recording;
    bool changed;
    FB_TRY(find_recording(e, rows, context_of(e, batch), &recording, err));
    FB_TRY(fb_cuda_send_tables(e, batch, &changed, err));
    if (rows > 1 || e->next_position != row->position || e->next_token != row->token)
        FB_TRY(fb_cuda_send_rows(e, batch, rows, err));
    FB_TRY(fb_gpu_graph_launch(e->gpu, recording->graph, err));
    if (p->logits == FB_NONE && rows == 1) {
        FB_TRY(fb_gpu_wait(e->gpu, err));
        memcpy(batch->best, e->results, sizeof *batch->best);
    } else {
        FB_TRY(fb_cuda_fetch_results(e, batch, err));
    }
    count_recorded(e->trace, &recording->ops);
    if (rows > 1) return FB_OK;
    /* The device has advanced the position, and the token if it knows it. */
    e->next_position = row->position + 1;
    e->next_token = p->logits == FB_NONE ? *batch->best : row->token;
    if (e->next_token < 0) e->next_position = -1;
    return FB_OK;
}

fb_status fb_cuda_run(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err) {
    fb_cuda_executor *e = (fb_cuda_executor *)executor;
    int64_t rows = recorded_rows(e, batch);
    e->trace = trace;
    fb_status status = rows ? run_recorded(e, batch, rows, err) : run_direct(e, batch, err);
    if (status != FB_OK) {
        fb_gpu_wait(e->gpu, NULL); /* launched kernels still write to the cache */
        e->next_position = -1;
    }
    return status;
}
