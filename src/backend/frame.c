#include "backend/frame.h"

#include <stdio.h>
#include <stdlib.h>

/* Alignment of buffers: enough for the vectors of a CPU and a GPU and for cache lines. */
#define ALIGN 256

static int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static fb_dtype buffer_dtype(const fb_frame *f, bool always_f32) {
    return always_f32 && f->options.act != FB_F64 ? FB_F32 : f->options.act;
}

/* Elements of one token's row in a value's storage. */
static int64_t row_elements(const fb_frame *f, const fb_value *storage) {
    return storage->heads * (storage->width ? storage->width : f->options.capacity);
}

static int64_t buffer_bytes(const fb_frame *f, int32_t buffer) {
    const fb_program *p = f->bound.program;
    int64_t most = 0;
    for (int32_t v = 0; v < p->value_count; v++) {
        if (f->layout.buffer[v] != buffer || p->values[v].storage != v) continue;
        int64_t rows = f->in_epilogue[v] ? f->options.epilogue_rows : f->options.chunk;
        int64_t bytes =
            rows * row_elements(f, &p->values[v]) * fb_dtype_size(buffer_dtype(f, p->values[v].always_f32));
        if (bytes > most) most = bytes;
    }
    return aligned(most);
}

static int64_t greatest_divisor(int64_t a, int64_t b) { return b ? greatest_divisor(b, a % b) : a; }

/* Slots, positions and bytes of each kind's cache; `block`: of how many slots a block is, 0: of all. */
static void divide_kinds(fb_frame *f, int64_t block) {
    const fb_program *p = f->bound.program;
    const fb_executor_options *o = &f->options;
    for (int k = 0; k < FB_MAX_KINDS; k++) {
        int64_t slots = o->slots[k] ? o->slots[k] : o->capacity, unit = block ? block : FB_KV_GROUP;
        int64_t capacity = (slots + unit - 1) / unit * unit;
        f->cache[k].capacity = capacity;
        f->cache[k].half =
            aligned(p->kv_heads * (block ? block : capacity) * p->head_dim * fb_dtype_size(o->kv));
        f->cache[k].ring = o->slots[k] ? o->rings[k] : o->ring;
    }
}

/* One block for the whole cache, layer after layer. */
static void divide_whole(fb_frame *f) {
    const fb_program *p = f->bound.program;
    for (int64_t layer = 0; layer < p->layers; layer++) {
        f->cache_at[layer] = f->block_bytes;
        f->block_bytes += 2 * f->cache[p->kind_of[layer]].half;
    }
    f->groups = 1;
    f->group[0].entries = 1;
    f->entries = 1;
    f->shift = FB_KV_WHOLE;
}

/* Groups of as many layers as divide those of every kind. So all blocks have one size, whatever the kind, and
 * come from one pool. */
static void divide_blocks(fb_frame *f, int64_t block) {
    const fb_program *p = f->bound.program;
    int64_t layers[FB_MAX_KINDS] = {0}, each = 0;
    int32_t last[FB_MAX_KINDS] = {0}; /* the kind's group that is being filled */
    for (int64_t layer = 0; layer < p->layers; layer++) layers[p->kind_of[layer]]++;
    for (int k = 0; k < FB_MAX_KINDS; k++) each = greatest_divisor(each, layers[k]);
    memset(layers, 0, sizeof layers);
    for (int64_t layer = 0; layer < p->layers; layer++) {
        int kind = p->kind_of[layer];
        int64_t in_group = layers[kind]++ % each;
        if (in_group == 0) {
            last[kind] = f->groups++;
            f->group[last[kind]].kind = kind;
            f->group[last[kind]].table_at = f->entries;
            f->group[last[kind]].entries = f->cache[kind].capacity / block;
            f->entries += f->group[last[kind]].entries;
        }
        f->group_of[layer] = (int16_t)last[kind];
        f->cache_at[layer] = in_group * 2 * f->cache[kind].half;
    }
    f->block_bytes = each * 2 * f->cache[p->kind_of[0]].half;
    f->shift = (int32_t)__builtin_ctzll((unsigned long long)block);
}

static void divide_cache(fb_frame *f) {
    int64_t block = f->options.block;
    divide_kinds(f, block);
    if (block && f->bound.program->layers)
        divide_blocks(f, block);
    else
        divide_whole(f);
}

fb_status fb_frame_init(fb_frame *f, const fb_bound *bound, const fb_executor_options *options,
                        fb_error *err) {
    const fb_program *p = bound->program;
    memset(f, 0, sizeof *f);
    f->bound = *bound;
    f->options = *options;
    divide_cache(f);
    FB_TRY(fb_layout_make(p, &f->layout, err));
    for (int32_t i = 0; i < p->op_count[FB_EPILOGUE]; i++)
        for (int k = 0; k < FB_MAX_OUT; k++)
            if (p->ops[FB_EPILOGUE][i].out[k] != FB_NONE)
                f->in_epilogue[p->ops[FB_EPILOGUE][i].out[k]] = true;
    return FB_OK;
}

int64_t fb_frame_bytes(const fb_frame *f) {
    int64_t bytes = 0;
    for (int32_t b = 0; b < f->layout.buffers; b++) bytes += buffer_bytes(f, b);
    return bytes;
}

fb_view fb_frame_view(const fb_frame *f, int32_t value) {
    const fb_value *v = &f->bound.program->values[value], *storage = &f->bound.program->values[v->storage];
    fb_dtype dtype = buffer_dtype(f, storage->always_f32);
    fb_view view = {
        .dtype = dtype, .heads = v->heads, .width = v->width, .row_stride = row_elements(f, storage)};
    view.head_stride = v->width ? v->stride : f->options.capacity;
    view.data = fb_at(f->buffer[f->layout.buffer[value]], dtype, v->offset);
    return view;
}

/* The fields of a call that are the same in every step. */
static void prepare_call(const fb_frame *f, const fb_op *op, fb_call *call) {
    call->attr = op->attr;
    call->act = f->options.act;
    for (int k = 0; k < FB_MAX_IN; k++)
        if (op->in[k] != FB_NONE) call->in[k] = fb_frame_view(f, op->in[k]);
    for (int k = 0; k < FB_MAX_OUT; k++)
        if (op->out[k] != FB_NONE) call->out[k] = fb_frame_view(f, op->out[k]);
}

void fb_frame_place(fb_frame *f, uint8_t *memory) {
    const fb_program *p = f->bound.program;
    for (int32_t b = 0; b < f->layout.buffers; b++) {
        f->buffer[b] = memory;
        memory += buffer_bytes(f, b);
    }
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) prepare_call(f, &p->ops[s][i], &f->calls[s][i]);
}

int64_t fb_frame_first(const fb_frame *f, int32_t value, const fb_batch *batch, int64_t rows) {
    return f->in_epilogue[value] ? 0 : batch->count - rows;
}

fb_kv fb_frame_cache(const fb_frame *f, int64_t layer) {
    const fb_program *p = f->bound.program;
    int kind = p->kind_of[layer];
    int64_t k_at = f->cache_at[layer];
    return (fb_kv){.k_at = k_at,
                   .v_at = k_at + f->cache[kind].half,
                   .dtype = f->options.kv,
                   .heads = p->kv_heads,
                   .capacity = f->cache[kind].capacity,
                   .width = p->head_dim,
                   .ring = f->cache[kind].ring,
                   .table_at = f->group[f->group_of[layer]].table_at,
                   .block = f->options.block ? f->options.block : f->cache[kind].capacity,
                   .shift = f->shift};
}

int64_t fb_frame_entry(const fb_frame *f, int32_t group, int64_t position) {
    int64_t slot = fb_ring_slot(&f->cache[f->group[group].kind].ring, position);
    return f->group[group].table_at + (slot >> f->shift);
}

void fb_frame_cache_name(const fb_frame *f, char *name, size_t size) {
    snprintf(name, size, "KV cache of %lld tokens", (long long)f->options.capacity);
}

/* Sets the op's weights: those of this layer, or of the next one. */
static void bind_weights(const fb_frame *f, const fb_op *op, int64_t layer, fb_call *call) {
    const fb_program *p = f->bound.program;
    bool last = op->next_layer && layer + 1 == p->layers;
    const int32_t *slots = last ? op->last_weights : op->weights;
    layer += op->next_layer && !last;
    for (int k = 0; k < FB_MAX_WEIGHTS; k++)
        if (slots[k] != FB_NONE)
            call->weights[k] = f->bound.weights[slots[k] * p->layers + layer];
        else
            call->weights[k].data = NULL;
}

/* Layers of other kinds than 0 are rotated by other angles. */
static void choose_angles(const fb_frame *f, const fb_op *op, int64_t layer, fb_call *call) {
    const fb_program *p = f->bound.program;
    int32_t named = p->kinds[0].angles, angles = p->kinds[p->kind_of[layer]].angles;
    for (int k = 0; angles != named && k < FB_MAX_IN; k++)
        if (op->in[k] == named && named != FB_NONE) call->in[k] = fb_frame_view(f, angles);
}

/* Views of values begin `rows` rows further on. */
static void skip_rows(fb_view *view, int64_t rows) {
    view->data = fb_at(view->data, view->dtype, rows * view->row_stride);
}

/* Held rows come first. Other layers than theirs leave them out. */
static void leave_out_held(const fb_op *op, int64_t layer, const fb_batch *batch, fb_call *call) {
    if (layer >= batch->held_from && layer < batch->held_to) return;
    call->rows -= batch->held;
    call->row += batch->held;
    for (int k = 0; k < FB_MAX_IN; k++)
        if (op->in[k] != FB_NONE) skip_rows(&call->in[k], batch->held);
    for (int k = 0; k < FB_MAX_OUT; k++)
        if (op->out[k] != FB_NONE) skip_rows(&call->out[k], batch->held);
}

/* The epilogue reads only the rows whose logits are wanted, which are the last ones. So views of values that
 * earlier sections wrote begin at the first wanted row. */
static void narrow_to_epilogue(const fb_frame *f, const fb_op *op, const fb_batch *batch, fb_call *call) {
    int64_t skipped = batch->count - batch->wanted;
    call->rows = batch->wanted;
    call->row += skipped;
    for (int k = 0; k < FB_MAX_IN; k++)
        if (op->in[k] != FB_NONE && !f->in_epilogue[op->in[k]]) skip_rows(&call->in[k], skipped);
}

/* A matrix of floats in this layer is multiplied with floats, whatever that of other layers is. */
static void choose_products(const fb_op *op, fb_call *call) {
    for (int s = 0; s < FB_MAX_SEGMENTS; s++) {
        fb_dot *dot = &call->attr.segment[s].dot;
        if (*dot == FB_DOT_FLOAT || fb_dot_in(*dot, call->weights[4 * s].dtype) != FB_DOT_FLOAT) continue;
        *dot = FB_DOT_FLOAT;
        if (op->in[FB_UNQUANTIZED + s] != FB_NONE) call->in[s] = call->in[FB_UNQUANTIZED + s];
    }
}

void fb_frame_call(const fb_frame *f, fb_section section, int32_t index, int64_t layer, const fb_batch *batch,
                   const fb_row *rows, fb_call *call) {
    const fb_op *op = &f->bound.program->ops[section][index];
    *call = f->calls[section][index];
    bind_weights(f, op, layer, call);
    call->row = rows;
    call->rows = batch->count;
    if (section == FB_BODY) choose_angles(f, op, layer, call);
    if (section == FB_BODY && batch->held) leave_out_held(op, layer, batch, call);
    if (section == FB_EPILOGUE) narrow_to_epilogue(f, op, batch, call);
    choose_products(op, call);
}

void fb_trace_count(fb_trace *trace, const fb_op *op, fb_section section, bool barrier) {
    trace->ops[op->kind]++;
    trace->barriers += barrier;
    trace->layer_barriers += barrier && section == FB_BODY;
    for (uint32_t fuses = op->fuses; fuses; fuses &= fuses - 1) trace->fuses[__builtin_ctz(fuses)]++;
}

/* Both ends of a carry have the same memory. */
static int64_t carried_bytes(const fb_frame *f, int32_t carry, int64_t rows, fb_view *view) {
    *view = fb_frame_view(f, f->bound.program->values[f->bound.program->carries[carry].next].storage);
    return rows * view->row_stride * fb_dtype_size(view->dtype);
}

int64_t fb_frame_state_bytes(const fb_frame *f, int64_t rows) {
    int64_t bytes = 0;
    fb_view view;
    for (int32_t c = 0; c < f->bound.program->carry_count; c++) bytes += carried_bytes(f, c, rows, &view);
    return bytes;
}

void fb_frame_state_save(const fb_frame *f, int64_t rows, uint8_t *state) {
    fb_view view;
    for (int32_t c = 0; c < f->bound.program->carry_count; c++) {
        int64_t bytes = carried_bytes(f, c, rows, &view);
        memcpy(state, view.data, (size_t)bytes);
        state += bytes;
    }
}

void fb_frame_state_load(const fb_frame *f, int64_t rows, const uint8_t *state) {
    fb_view view;
    for (int32_t c = 0; c < f->bound.program->carry_count; c++) {
        int64_t bytes = carried_bytes(f, c, rows, &view);
        memcpy(view.data, state, (size_t)bytes);
        state += bytes;
    }
}
