/* What a step reads and gives besides the values of its program: rows and block tables before it, hidden
 * states, logits or candidates after it. */
#include "backend/cuda/host/host.h"
#include "backend/sequence.h"

/* ---- before ---- */

/* Rows beyond the batch's fill up a recorded step. Their cache is the spare block. */
fb_status fb_cuda_send_rows(fb_cuda_executor *e, const fb_batch *batch, int64_t rows, fb_error *err) {
    const fb_row spare = {.sequence = (int32_t)e->cx.sequences - 1};
    e->sent->best = -1;
    memcpy(e->sent->rows, batch->rows, (size_t)batch->count * sizeof *batch->rows);
    for (int64_t i = batch->count; i < rows; i++) e->sent->rows[i] = spare;
    e->next_position = -1;
    return fb_gpu_upload(e->gpu, e->state, e->sent,
                         (int64_t)sizeof *e->sent + rows * (int64_t)sizeof *batch->rows, err);
}

/* How many entries of a group's table a sequence uses that has tokens up to `position`. */
static int64_t used_entries(const fb_frame *f, int32_t group, int64_t position) {
    if (f->cache[f->group[group].kind].ring.window) return f->group[group].entries;
    return fb_frame_entry(f, group, position) - f->group[group].table_at + 1;
}

/* The tables of one sequence. `first` and `last`: the entries that have changed so far. */
static void compare_table(fb_cuda_executor *e, const fb_sequence *sequence, int64_t column, int64_t position,
                          int64_t *first, int64_t *last) {
    const fb_frame *f = &e->base.frame;
    for (int32_t group = 0; group < f->groups; group++) {
        int64_t begin = f->group[group].table_at, end = begin + used_entries(f, group, position);
        for (int64_t entry = begin; entry < end; entry++) {
            int64_t at = entry * e->cx.sequences + column;
            if (e->sent_tables[at] == sequence->table[entry]) continue;
            e->sent_tables[at] = sequence->table[entry];
            if (at < *first) *first = at;
            if (at > *last) *last = at;
        }
    }
}

fb_status fb_cuda_send_tables(fb_cuda_executor *e, const fb_batch *batch, bool *changed, fb_error *err) {
    int64_t first = INT64_MAX, last = -1;
    for (int64_t i = 0; i < batch->count; i++) {
        const fb_row *row = &batch->rows[i];
        bool newest = i + 1 == batch->count || batch->rows[i + 1].sequence != row->sequence;
        if (newest)
            compare_table(e, batch->sequences[row->sequence], row->sequence, row->position, &first, &last);
    }
    *changed = last >= 0;
    if (!*changed) return FB_OK;
    return fb_gpu_upload(e->gpu, e->tables + first, e->sent_tables + first,
                         (last - first + 1) * (int64_t)sizeof *e->tables, err);
}

/* ---- after ---- */

static void widen(fb_dtype dtype, const void *from, int64_t count, float *out) {
    if (dtype == FB_F32)
        memcpy(out, from, (size_t)count * sizeof *out);
    else
        for (int64_t i = 0; i < count; i++) out[i] = (float)fb_dtype_get(dtype, from, i);
}

/* Downloads the last `rows` rows of a value to `out`, as float32. */
fb_status fb_cuda_fetch(fb_cuda_executor *e, int32_t value, const fb_batch *batch, int64_t rows, float *out,
                        fb_error *err) {
    fb_view view = fb_frame_view(&e->base.frame, value);
    int64_t cols = view.heads * view.width, first = fb_frame_first(&e->base.frame, value, batch, rows);
    /* A value with storage of its own has no gaps between rows. For a view, whole rows are downloaded. */
    int64_t bytes = ((rows - 1) * view.row_stride + cols) * fb_dtype_size(view.dtype);
    FB_TRY(fb_gpu_download(e->gpu, e->results, fb_view_at(&view, first, 0), bytes, err));
    FB_TRY(fb_gpu_wait(e->gpu, err));
    for (int64_t row = 0; row < rows; row++)
        widen(view.dtype, fb_at(e->results, view.dtype, row * view.row_stride), cols, out + row * cols);
    return FB_OK;
}

static fb_status fetch_best(fb_cuda_executor *e, const fb_batch *batch, fb_error *err) {
    fb_view view = fb_frame_view(&e->base.frame, e->base.frame.bound.program->best);
    for (int64_t row = 0; row < batch->wanted; row++) {
        FB_TRY(
            fb_gpu_download(e->gpu, e->results, fb_view_at(&view, row, 0), 2 * (int64_t)sizeof(float), err));
        FB_TRY(fb_gpu_wait(e->gpu, err));
        batch->best[row] = (int32_t)((const float *)(const void *)e->results)[1];
    }
    return FB_OK;
}

/* Launches the selection of all wanted rows' candidates, `count` of each. `most`: ids of a row. */
static fb_status select_candidates(fb_cuda_executor *e, const fb_batch *batch, int64_t count, int64_t most,
                                   fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    fb_view logits = fb_frame_view(&e->base.frame, p->logits);
    fb_cuda_selection selection = {.logits = logits.data,
                                   .dtype = logits.dtype,
                                   .row_stride = logits.row_stride,
                                   .rows = batch->wanted,
                                   .vocab = p->vocab,
                                   .count = count,
                                   .best = e->there.best,
                                   .ids_stride = most};
    if (most) {
        for (int64_t row = 0; row < batch->wanted; row++) {
            const fb_choice *c = &batch->choices[row];
            e->here.id_count[row] = (int32_t)c->id_count;
            memcpy(e->here.ids + row * most, c->ids, (size_t)c->id_count * sizeof *c->ids);
        }
        FB_TRY(fb_gpu_upload(e->gpu, e->there.ids, e->here.ids,
                             batch->wanted * most * (int64_t)sizeof *e->here.ids, err));
        FB_TRY(fb_gpu_upload(e->gpu, e->there.id_count, e->here.id_count,
                             batch->wanted * (int64_t)sizeof *e->here.id_count, err));
        selection.ids = e->there.ids;
        selection.id_count = e->there.id_count;
        selection.gathered = e->there.gathered;
    }
    FB_TRY(fb_gpu_check(fb_cuda_candidates(&selection, &e->cx), "candidates", err));
    FB_TRY(fb_gpu_download(e->gpu, e->here.best, e->there.best,
                           batch->wanted * count * (int64_t)sizeof *e->here.best, err));
    if (!most) return FB_OK;
    return fb_gpu_download(e->gpu, e->here.gathered, e->there.gathered,
                           batch->wanted * most * (int64_t)sizeof *e->here.gathered, err);
}

/* Candidates of the rows that ask for them, all logits of the others. */
static fb_status fetch_choices(fb_cuda_executor *e, const fb_batch *batch, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    fb_view logits = fb_frame_view(&e->base.frame, p->logits);
    int64_t count = 0, most = 0, bytes = p->vocab * fb_dtype_size(logits.dtype);
    for (int64_t row = 0; row < batch->wanted; row++) {
        const fb_choice *c = &batch->choices[row];
        if (c->count > count) count = c->count;
        if (c->id_count > most) most = c->id_count;
        if (!c->count)
            FB_TRY(
                fb_gpu_download(e->gpu, e->results + row * bytes, fb_view_at(&logits, row, 0), bytes, err));
    }
    if (count) FB_TRY(select_candidates(e, batch, count, most, err));
    FB_TRY(fb_gpu_wait(e->gpu, err));
    for (int64_t row = 0; row < batch->wanted; row++) {
        fb_choice *c = &batch->choices[row];
        if (!c->count) {
            widen(logits.dtype, e->results + row * bytes, p->vocab, batch->logits + row * p->vocab);
            continue;
        }
        memcpy(c->best, e->here.best + row * count, (size_t)c->count * sizeof *c->best);
        memcpy(c->gathered, e->here.gathered + row * most, (size_t)c->id_count * sizeof *c->gathered);
    }
    return FB_OK;
}

fb_status fb_cuda_fetch_results(fb_cuda_executor *e, const fb_batch *batch, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    if (!batch->wanted) return fb_gpu_wait(e->gpu, err);
    if (p->logits == FB_NONE) return fetch_best(e, batch, err);
    if (batch->choices) return fetch_choices(e, batch, err);
    return fb_cuda_fetch(e, p->logits, batch, batch->wanted, batch->logits, err);
}
