/* An executor on a GPU: its memory, the persistent kernel's work list, and the caches of its sequences. */
#include <stdlib.h>

#include "backend/cuda/host/host.h"
#include "backend/cuda/persistent_ops.h"

/* The widest head that the attention kernels hold at once. */
#define MAX_HEAD_DIM 256

static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

static fb_status check_options(const fb_program *p, const fb_executor_options *o, fb_error *err) {
    if (o->act == FB_F64 || o->kv == FB_F64)
        return fb_fail(err, FB_ERROR_USAGE, "%s: f64 (only on the CPU, with isa ref)",
                       o->act == FB_F64 ? "act" : "kv");
    if (o->isa)
        return fb_fail(err, FB_ERROR_USAGE, "isa: %.32s (only on the CPU, not with backend cuda)", o->isa);
    if (p->head_dim > MAX_HEAD_DIM)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "cuda: heads of %lld elements (at most %d)",
                       (long long)p->head_dim, MAX_HEAD_DIM);
    return FB_OK;
}

/* ---- workspace ---- */

static int64_t product_scratch(fb_op_kind kind, const fb_call *call) {
    switch (kind) {
    case FB_OP_LINEAR:
    case FB_OP_LINEAR_GROUP:
    case FB_OP_HEAD_ARGMAX:
        return fb_cuda_linear_scratch(call, call->rows);
    case FB_OP_ROUTER:
    case FB_OP_EXPERT_LINEAR:
    case FB_OP_EXPERT_GROUP:
        return fb_cuda_expert_scratch(call, kind, call->rows);
    default:
        return 0;
    }
}

/* The most that an op needs. It depends on shapes, not on addresses. */
static int64_t workspace_bytes(fb_frame *f) {
    const fb_program *p = f->bound.program;
    int64_t most = fb_cuda_candidates_scratch(f->options.epilogue_rows, p->vocab);
    fb_batch batch = {.count = f->options.chunk, .wanted = f->options.epilogue_rows};
    fb_frame_place(f, NULL); /* only shapes and types of the calls are used; addresses come later */
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            fb_call call;
            /* A weight may have another type in each layer. */
            for (int64_t layer = 0; layer < (s == FB_BODY ? p->layers : 1); layer++) {
                fb_frame_call(f, (fb_section)s, i, layer, &batch, NULL, &call);
                most = max_of(most, product_scratch(p->ops[s][i].kind, &call));
            }
            switch (p->ops[s][i].kind) {
            case FB_OP_ATTN_SCORES:
            case FB_OP_ATTN_VALUES:
            case FB_OP_ATTN_ROWS:
            case FB_OP_ATTN_FLASH:
                for (int64_t layer = 0; layer < p->layers; layer++) {
                    if (layer && p->kind_of[layer] == p->kind_of[layer - 1]) continue;
                    call.kv = fb_frame_cache(f, layer);
                    most = max_of(most, fb_cuda_attention_scratch(&call, call.rows, call.kv.capacity));
                }
                break;
            default:
                break;
            }
        }
    return aligned(most);
}

void fb_cuda_workspace_leave(fb_gpu *gpu, fb_cuda_workspace *w) {
    if (!w || --w->users > 0) return;
    fb_gpu_give(gpu, w->memory);
    free(w);
}

static fb_status grow_workspace(fb_cuda_device *d, int64_t bytes, fb_error *err) {
    if (d->workspace && d->workspace->bytes >= bytes) return FB_OK;
    fb_cuda_workspace *w = calloc(1, sizeof *w);
    if (!w) return fb_fail_memory(err, "workspace", sizeof *w);
    *w = (fb_cuda_workspace){.users = 1, .bytes = bytes};
    void *memory = NULL;
    fb_status status = fb_gpu_take(d->gpu, "workspace", bytes, &memory, err);
    w->memory = memory;
    if (status == FB_OK) status = fb_gpu_zero(d->gpu, w->memory, bytes, err);
    if (status != FB_OK) {
        fb_cuda_workspace_leave(d->gpu, w);
        return status;
    }
    fb_cuda_workspace_leave(d->gpu, d->workspace);
    d->workspace = w;
    return FB_OK;
}

static fb_status take_workspace(fb_cuda_executor *e, fb_error *err) {
    fb_cuda_device *d = (fb_cuda_device *)e->base.device;
    FB_TRY(grow_workspace(d, workspace_bytes(&e->base.frame), err));
    e->workspace = d->workspace;
    e->workspace->users++;
    e->cx.scratch = e->workspace->memory;
    e->cx.scratch_bytes = e->workspace->bytes;
    return FB_OK;
}

/* ---- the work list of the persistent kernel ---- */

/* Appends all layers; false if the persistent kernel cannot run one of their ops. */
static bool append_layers(const fb_frame *f, const fb_row *rows, const fb_cuda_context *cx) {
    const fb_program *p = f->bound.program;
    fb_batch batch = {.count = 1, .wanted = 1};
    for (int64_t layer = 0; layer < p->layers; layer++)
        for (int32_t i = 0; i < p->op_count[FB_BODY]; i++) {
            fb_call call;
            fb_frame_call(f, FB_BODY, i, layer, &batch, rows, &call);
            call.kv = fb_frame_cache(f, layer);
            if (fb_cuda_launches[p->ops[FB_BODY][i].kind](&call, cx)) return false;
        }
    return true;
}

/* Makes the list and its image for the device. *out stays NULL if the persistent kernel cannot run it. */
static fb_status make_list(const fb_frame *f, const fb_row *rows, const fb_cuda_context *context,
                           fb_cuda_work_list **out, const void **image, int64_t *bytes, fb_error *err) {
    const fb_program *p = f->bound.program;
    int64_t most = p->layers * p->op_count[FB_BODY];
    *out = NULL;
    fb_cuda_work_list *list = fb_cuda_work_list_new(most);
    if (!list) return fb_fail_memory(err, "list of a step's ops", most);
    fb_cuda_context cx = *context;
    cx.list = list;
    cx.context = f->options.capacity;
    int ended =
        append_layers(f, rows, &cx) ? fb_cuda_work_list_end(list, &cx, image, bytes) : FB_CUDA_NOT_LISTED;
    if (ended == 0)
        *out = list;
    else
        fb_cuda_work_list_free(list);
    return ended == FB_CUDA_NO_MEMORY ? fb_fail_memory(err, "list of a step's ops", *bytes) : FB_OK;
}

static fb_status list_layers(fb_cuda_executor *e, fb_error *err) {
    const void *image;
    int64_t bytes;
    FB_TRY(make_list(&e->base.frame, e->state->rows, &e->cx, &e->list, &image, &bytes, err));
    if (!e->list)
        return fb_fail(err, FB_ERROR_SYSTEM, "cuda: step: its kernel cannot do what the device said it can");
    FB_TRY(fb_gpu_take(e->gpu, "list of a step's ops", bytes, &e->listed, err));
    FB_TRY(fb_gpu_upload(e->gpu, e->listed, image, bytes, err));
    return fb_gpu_wait(e->gpu, err);
}

/* Does what list_layers will do, on made-up addresses: only their differences matter. */
static const char *try_list(fb_cuda_device *d, const fb_bound *bound, const fb_executor_options *o,
                            fb_frame *f) {
    uint8_t *address = (uint8_t *)(uintptr_t)(1 << 20);
    fb_cuda_context cx;
    fb_cuda_work_list *list;
    const void *image;
    int64_t bytes;
    if (fb_frame_init(f, bound, o, NULL) != FB_OK) return FB_NO_MEMORY;
    fb_gpu_context(d->gpu, &cx);
    cx.scratch_bytes = workspace_bytes(f);
    fb_frame_place(f, address);
    cx.scratch = address + aligned(fb_frame_bytes(f));
    const fb_row *rows = (const fb_row *)(void *)(cx.scratch + cx.scratch_bytes);
    if (make_list(f, rows, &cx, &list, &image, &bytes, NULL) != FB_OK) return FB_NO_MEMORY;
    if (!list) return "its kernel has not these weights, or this device";
    fb_cuda_work_list_free(list);
    return NULL;
}

const char *fb_cuda_persistent_why_not(fb_device *device, const fb_bound *bound,
                                       const fb_executor_options *o) {
    if (o->act != o->kv || (o->act != FB_F16 && o->act != FB_BF16)) return "only of 16 bits, the cache too";
    bool forgets = o->ring.window != 0;
    for (int32_t k = 0; k < bound->program->kind_count; k++) forgets = forgets || o->rings[k].window;
    if (forgets || !fb_cuda_persistent_has_ops(bound->program))
        return "its kernel has not all of a layer's ops";
    fb_frame *f = malloc(sizeof *f);
    const char *why = f ? try_list((fb_cuda_device *)device, bound, o, f) : FB_NO_MEMORY;
    free(f);
    return why;
}

/* ---- memory ---- */

/* The most bytes that are downloaded at once: a chunk of hidden states, or the epilogue's logits. */
static int64_t result_bytes(const fb_frame *f) {
    const fb_program *p = f->bound.program;
    return max_of(f->options.chunk * p->hidden, f->options.epilogue_rows * p->vocab) * 4;
}

static fb_status upload_frequencies(fb_cuda_executor *e, uint8_t *to, fb_error *err) {
    const fb_program *p = e->base.frame.bound.program;
    e->cx.frequencies = (const double *)(void *)to;
    for (int32_t i = 0; p->frequencies && i < p->op_count[FB_PROLOGUE]; i++) {
        const fb_op *op = &p->ops[FB_PROLOGUE][i];
        int64_t bytes = op->attr.rotary / 2 * (int64_t)sizeof(double);
        if (op->kind == FB_OP_ROPE_ANGLES)
            FB_TRY(fb_gpu_upload(e->gpu, to + op->attr.table * bytes, op->attr.frequencies, bytes, err));
    }
    return FB_OK;
}

/* Assigns memory from `*at` on, at a multiple of 256 bytes. NULL: only counts. */
static void *place(uint8_t *memory, int64_t *at, int64_t bytes) {
    void *here = memory ? memory + *at : NULL;
    *at += aligned(bytes);
    return here;
}

static void place_choices(const fb_frame *f, uint8_t *memory, int64_t *at, fb_cuda_choices *c) {
    int64_t rows = f->options.epilogue_rows, all = rows * FB_CANDIDATES;
    c->ids = place(memory, at, all * (int64_t)sizeof *c->ids);
    c->id_count = place(memory, at, rows * (int64_t)sizeof *c->id_count);
    c->best = place(memory, at, all * (int64_t)sizeof *c->best);
    c->gathered = place(memory, at, all * (int64_t)sizeof *c->gathered);
}

/* The columns of the block tables: the sequences, and one for rows that fill up a recorded step. */
static int64_t columns_of(const fb_frame *f) { return f->options.sequences + 1; }

/* The device's memory besides values; returns its size. */
static int64_t place_device(fb_cuda_executor *e, uint8_t *memory, uint8_t **frequencies) {
    const fb_frame *f = &e->base.frame;
    const fb_program *p = f->bound.program;
    int64_t at = aligned(fb_frame_bytes(f));
    e->state = place(memory, &at, (int64_t)sizeof *e->state + f->options.chunk * (int64_t)sizeof(fb_row));
    e->tables = place(memory, &at, f->entries * columns_of(f) * (int64_t)sizeof *e->tables);
    *frequencies =
        place(memory, &at, max_of(p->frequency_tables, 1) * p->head_dim / 2 * (int64_t)sizeof(double));
    place_choices(f, memory, &at, &e->there);
    return at;
}

static int64_t place_host(fb_cuda_executor *e, uint8_t *memory) {
    const fb_frame *f = &e->base.frame;
    int64_t at = 0;
    e->sent = place(memory, &at, (int64_t)sizeof *e->sent + f->options.chunk * (int64_t)sizeof(fb_row));
    e->sent_tables = place(memory, &at, f->entries * columns_of(f) * (int64_t)sizeof *e->sent_tables);
    e->results = place(memory, &at, result_bytes(f));
    place_choices(f, memory, &at, &e->here);
    return at;
}

/* All entries of the last column are a block that no sequence has. */
static fb_status take_spare(fb_cuda_executor *e, fb_error *err) {
    const fb_frame *f = &e->base.frame;
    int64_t columns = columns_of(f), bytes = f->entries * columns * (int64_t)sizeof *e->tables;
    memset(e->sent_tables, 0, (size_t)bytes);
    if (f->options.sequences > 1) FB_TRY(fb_cuda_cache_take(&e->base, 1, &e->spare, err));
    for (int64_t i = 0; i < f->entries; i++) e->sent_tables[i * columns + columns - 1] = e->spare;
    return fb_gpu_upload(e->gpu, e->tables, e->sent_tables, bytes, err);
}

static fb_status take_memory(fb_cuda_executor *e, fb_error *err) {
    fb_frame *f = &e->base.frame;
    const fb_program *p = f->bound.program;
    FB_TRY(take_workspace(e, err));
    int64_t hidden = f->options.chunk * p->hidden * (int64_t)sizeof *e->hidden;
    int64_t runs = f->options.chunk * (int64_t)sizeof *e->runs;
    uint8_t *frequencies;
    void *memory;
    FB_TRY(fb_gpu_take(e->gpu, "activations", place_device(e, NULL, &frequencies), &memory, err));
    e->memory = memory;
    place_device(e, e->memory, &frequencies);
    fb_frame_place(f, e->memory);
    e->cx.tables = (uint8_t *const *)e->tables;
    e->cx.sequences = columns_of(f);
    e->next_position = -1;
    FB_TRY(upload_frequencies(e, frequencies, err));
    FB_TRY(fb_gpu_take_host(e->gpu, "results", place_host(e, NULL), &memory, err));
    e->host = memory;
    place_host(e, e->host);
    e->hidden = malloc((size_t)hidden);
    if (!e->hidden) return fb_fail_memory(err, "hidden states", hidden);
    e->runs = malloc((size_t)runs);
    if (!e->runs) return fb_fail_memory(err, "rows of a step", runs);
    return take_spare(e, err);
}

void fb_cuda_close(fb_executor *executor) {
    fb_cuda_executor *e = (fb_cuda_executor *)executor;
    fb_gpu_wait(e->gpu, NULL);
    for (int r = 0; r < FB_CUDA_ROW_SIZES; r++)
        for (int c = 0; c < FB_CUDA_CONTEXT_SIZES; c++) fb_gpu_graph_free(e->recordings[r][c].graph);
    fb_gpu_give(e->gpu, e->spare);
    fb_gpu_give(e->gpu, e->listed);
    fb_gpu_give(e->gpu, e->memory);
    fb_gpu_give_host(e->gpu, e->host);
    fb_cuda_workspace_leave(e->gpu, e->workspace);
    fb_cuda_work_list_free(e->list);
    free(e->hidden);
    free(e->runs);
    free(e);
}

static fb_status start(fb_cuda_executor *e, const fb_bound *bound, const fb_executor_options *o,
                       fb_error *err) {
    FB_TRY(check_options(bound->program, o, err));
    FB_TRY(fb_frame_init(&e->base.frame, bound, o, err));
    fb_gpu_context(e->gpu, &e->cx);
    e->cx.overlap = fb_gpu_limits(e->gpu)->major >= 9 && !o->profile;
    e->cx.invariant = o->invariant;
    FB_TRY(take_memory(e, err));
    if (o->step) FB_TRY(list_layers(e, err));
    return fb_gpu_wait(e->gpu, err);
}

fb_status fb_cuda_open(fb_device *device, const fb_bound *bound, const fb_executor_options *options,
                       fb_executor **out, fb_error *err) {
    fb_cuda_executor *e = calloc(1, sizeof *e);
    if (!e) return fb_fail_memory(err, "executor", sizeof *e);
    e->base.device = device;
    e->gpu = ((fb_cuda_device *)device)->gpu;
    fb_status status = start(e, bound, options, err);
    if (status != FB_OK) {
        fb_cuda_close(&e->base);
        return status;
    }
    *out = &e->base;
    return FB_OK;
}

/* ---- caches ---- */

fb_status fb_cuda_cache_take(fb_executor *executor, int64_t count, uint8_t **out, fb_error *err) {
    fb_cuda_executor *e = (fb_cuda_executor *)executor;
    const fb_frame *f = &executor->frame;
    char what[64];
    void *memory;
    fb_frame_cache_name(f, what, sizeof what);
    int64_t bytes = count * f->block_bytes;
    FB_TRY(fb_gpu_take(e->gpu, what, bytes, &memory, err));
    *out = memory;
    return FB_OK;
}

void fb_cuda_cache_give(fb_device *device, uint8_t *memory) {
    fb_gpu_give(((fb_cuda_device *)device)->gpu, memory);
}

/* Copies the slots of the tokens before `position`; of a ring or a block of several, all slots. */
fb_status fb_cuda_cache_copy(fb_executor *executor, uint8_t *to, const uint8_t *from, int64_t position,
                             fb_error *err) {
    fb_cuda_executor *e = (fb_cuda_executor *)executor;
    const fb_frame *f = &executor->frame;
    const fb_program *p = f->bound.program;
    int64_t slot = p->head_dim * fb_dtype_size(f->options.kv);
    if (f->options.block) {
        FB_TRY(fb_gpu_copy_rows(e->gpu, to, from, f->block_bytes, f->block_bytes, 1, err));
        return fb_gpu_wait(e->gpu, err);
    }
    for (int64_t layer = 0; layer < p->layers && position > 0; layer++) {
        fb_kv kv = fb_frame_cache(f, layer);
        int64_t slots = kv.ring.window ? kv.capacity : position;
        for (int half = 0; half < 2; half++) {
            int64_t at = half ? kv.v_at : kv.k_at;
            FB_TRY(fb_gpu_copy_rows(e->gpu, to + at, from + at, kv.capacity * slot, slots * slot, p->kv_heads,
                                    err));
        }
    }
    return fb_gpu_wait(e->gpu, err);
}
