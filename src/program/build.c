#include "program/build.h"

#include <stdio.h>

fb_op fb_op_new(fb_op_kind kind) {
    fb_op op = {.kind = kind};
    for (int i = 0; i < FB_MAX_IN; i++) op.in[i] = FB_NONE;
    for (int i = 0; i < FB_MAX_OUT; i++) op.out[i] = FB_NONE;
    for (int i = 0; i < FB_MAX_WEIGHTS; i++) op.weights[i] = op.last_weights[i] = FB_NONE;
    return op;
}

static fb_value *value_at(fb_build *b, int32_t value) { return &b->program->values[value]; }

static int32_t add_value(fb_build *b, const char *name, int64_t heads, int64_t width) {
    fb_program *p = b->program;
    if (p->value_count == FB_MAX_VALUES) {
        b->full = true;
        return 0;
    }
    int32_t id = p->value_count++;
    fb_value *v = &p->values[id];
    *v = (fb_value){.storage = id, .heads = heads, .width = width, .stride = width};
    snprintf(v->name, sizeof v->name, "%s", name);
    return id;
}

static int32_t add_like(fb_build *b, const char *name, int32_t x) {
    return add_value(b, name, value_at(b, x)->heads, value_at(b, x)->width);
}

static int32_t add_slot(fb_build *b, const char *name, fb_slot slot) {
    fb_program *p = b->program;
    if (p->slot_count == FB_MAX_SLOTS || strlen(name) >= sizeof slot.name) {
        b->full = true;
        return 0;
    }
    snprintf(slot.name, sizeof slot.name, "%s", name);
    slot.per_layer = strstr(name, "{}") != NULL;
    p->slots[p->slot_count] = slot;
    return p->slot_count++;
}

int32_t fb_build_vector(fb_build *b, const char *name, int64_t cols) {
    return add_slot(b, name, (fb_slot){.rows = 1, .cols = cols, .vector = true});
}

int32_t fb_build_vector_plus_one(fb_build *b, const char *name, int64_t cols) {
    return add_slot(b, name, (fb_slot){.rows = 1, .cols = cols, .vector = true, .plus_one = true});
}

int32_t fb_build_matrix(fb_build *b, const char *name, int64_t rows, int64_t cols) {
    return add_slot(b, name, (fb_slot){.rows = rows, .cols = cols});
}

int32_t fb_build_matrix_transposed(fb_build *b, const char *name, int64_t rows, int64_t cols) {
    return add_slot(b, name, (fb_slot){.rows = rows, .cols = cols, .transposed = true});
}

int32_t fb_build_matrix_part(fb_build *b, const char *name, int64_t first, int64_t rows, int64_t of,
                             int64_t cols) {
    return add_slot(b, name, (fb_slot){.rows = rows, .cols = cols, .first = first, .of = of});
}

int32_t fb_build_vector_part(fb_build *b, const char *name, int64_t first, int64_t cols, int64_t of) {
    return add_slot(b, name, (fb_slot){.rows = 1, .cols = cols, .vector = true, .first = first, .of = of});
}

int32_t fb_build_view(fb_build *b, const char *name, int32_t of, int64_t heads, int64_t width, int64_t offset,
                      int64_t stride) {
    int32_t id = add_value(b, name, heads, width);
    fb_value *v = value_at(b, id);
    v->storage = value_at(b, of)->storage;
    v->offset = offset;
    v->stride = stride;
    return id;
}

static fb_op *add_op(fb_build *b, fb_op_kind kind) {
    fb_program *p = b->program;
    int32_t *count = &p->op_count[b->section];
    if (*count == FB_MAX_OPS) {
        b->full = true;
        *count = 0;
    }
    fb_op *op = &p->ops[b->section][(*count)++];
    *op = fb_op_new(kind);
    return op;
}

static int32_t emit(fb_build *b, fb_op_kind kind, int32_t x, int32_t y, int32_t weight, int32_t bias,
                    int32_t out, fb_op_attr attr) {
    fb_op *op = add_op(b, kind);
    op->in[0] = x;
    op->in[1] = y;
    op->weights[0] = weight;
    op->weights[1] = bias;
    op->out[0] = out;
    op->attr = attr;
    return out;
}

/* A factor as ops have it: 0 is none. */
static float factor(double scale) { return scale == 1 ? 0 : (float)scale; }

int32_t fb_build_embed(fb_build *b, const char *name, int32_t table, double scale) {
    int32_t out = add_value(b, name, 1, b->program->slots[table].cols);
    return emit(b, FB_OP_EMBED, FB_NONE, FB_NONE, table, FB_NONE, out, (fb_op_attr){.scale = factor(scale)});
}

int32_t fb_build_embed_position(fb_build *b, const char *name, int32_t table) {
    int32_t out = add_value(b, name, 1, b->program->slots[table].cols);
    return emit(b, FB_OP_EMBED_POSITION, FB_NONE, FB_NONE, table, FB_NONE, out, (fb_op_attr){0});
}

int32_t fb_build_rope_angles(fb_build *b, const char *name, int32_t rotary, int32_t table, double scale) {
    int32_t out = add_value(b, name, 1, rotary);
    value_at(b, out)->always_f32 = true;
    const double *tables = b->program->frequencies;
    return emit(b, FB_OP_ROPE_ANGLES, FB_NONE, FB_NONE, FB_NONE, FB_NONE, out,
                (fb_op_attr){.rotary = rotary,
                             .frequencies = tables ? tables + table * (rotary / 2) : NULL,
                             .table = table,
                             .scale = factor(scale)});
}

int32_t fb_build_layernorm(fb_build *b, const char *name, int32_t x, int32_t weight, int32_t bias,
                           double eps) {
    return emit(b, FB_OP_LAYERNORM, x, FB_NONE, weight, bias, add_like(b, name, x),
                (fb_op_attr){.eps = (float)eps});
}

int32_t fb_build_rmsnorm(fb_build *b, const char *name, int32_t x, int32_t weight, double eps) {
    return emit(b, FB_OP_RMSNORM, x, FB_NONE, weight, FB_NONE, add_like(b, name, x),
                (fb_op_attr){.eps = (float)eps});
}

int32_t fb_build_linear(fb_build *b, const char *name, int32_t x, int32_t weight, int32_t bias) {
    int32_t out = add_value(b, name, 1, b->program->slots[weight].rows);
    return emit(b, FB_OP_LINEAR, x, FB_NONE, weight, bias, out, (fb_op_attr){0});
}

int32_t fb_build_rope(fb_build *b, const char *name, int32_t x, int32_t angles) {
    int32_t rotary = (int32_t)value_at(b, angles)->width;
    return emit(b, FB_OP_ROPE, x, angles, FB_NONE, FB_NONE, add_like(b, name, x),
                (fb_op_attr){.rotary = rotary});
}

void fb_build_kv_append(fb_build *b, int32_t k, int32_t v) {
    emit(b, FB_OP_KV_APPEND, k, v, FB_NONE, FB_NONE, FB_NONE, (fb_op_attr){0});
}

int32_t fb_build_attention(fb_build *b, const char *name, int32_t q, double scale, double cap) {
    int64_t heads = value_at(b, q)->heads, width = value_at(b, q)->width;
    fb_op_attr scaled = {.scale = (float)scale, .cap = (float)cap};
    int32_t scores = add_value(b, "scores", heads, 0), probs = add_value(b, "probs", heads, 0);
    emit(b, FB_OP_ATTN_SCORES, q, FB_NONE, FB_NONE, FB_NONE, scores, scaled);
    emit(b, FB_OP_SOFTMAX, scores, FB_NONE, FB_NONE, FB_NONE, probs, (fb_op_attr){0});
    return emit(b, FB_OP_ATTN_VALUES, probs, FB_NONE, FB_NONE, FB_NONE, add_value(b, name, heads, width),
                (fb_op_attr){0});
}

int32_t fb_build_unary(fb_build *b, fb_op_kind kind, const char *name, int32_t x) {
    return emit(b, kind, x, FB_NONE, FB_NONE, FB_NONE, add_like(b, name, x), (fb_op_attr){0});
}

int32_t fb_build_binary(fb_build *b, fb_op_kind kind, const char *name, int32_t x, int32_t y) {
    return emit(b, kind, x, y, FB_NONE, FB_NONE, add_like(b, name, x), (fb_op_attr){0});
}

int32_t fb_build_scale(fb_build *b, const char *name, int32_t x, double scale) {
    return emit(b, FB_OP_SCALE, x, FB_NONE, FB_NONE, FB_NONE, add_like(b, name, x),
                (fb_op_attr){.scale = (float)scale});
}

int32_t fb_build_softcap(fb_build *b, const char *name, int32_t x, double cap) {
    return emit(b, FB_OP_SOFTCAP, x, FB_NONE, FB_NONE, FB_NONE, add_like(b, name, x),
                (fb_op_attr){.cap = (float)cap});
}

int32_t fb_build_expert_matrix(fb_build *b, const char *name, int64_t experts, int64_t rows, int64_t cols) {
    return add_slot(b, name, (fb_slot){.rows = experts * rows, .cols = cols, .experts = experts});
}

int32_t fb_build_top_k(fb_build *b, const char *name, int32_t scores, int32_t used, bool one) {
    int32_t out = add_value(b, name, 1, 2 * used);
    value_at(b, out)->always_f32 = true;
    return emit(b, FB_OP_TOP_K, scores, FB_NONE, FB_NONE, FB_NONE, out,
                (fb_op_attr){.used = used, .shares_sum_to_one = one});
}

int32_t fb_build_expert_linear(fb_build *b, const char *name, int32_t x, int32_t routes, int32_t weight,
                               bool each) {
    const fb_slot *slot = &b->program->slots[weight];
    int32_t used = (int32_t)value_at(b, routes)->width / 2;
    int32_t out = add_value(b, name, used, slot->rows / slot->experts);
    return emit(b, FB_OP_EXPERT_LINEAR, x, routes, weight, FB_NONE, out,
                (fb_op_attr){.used = used, .each = each});
}

int32_t fb_build_expert_sum(fb_build *b, const char *name, int32_t x, int32_t routes) {
    return emit(b, FB_OP_EXPERT_SUM, x, routes, FB_NONE, FB_NONE,
                add_value(b, name, 1, value_at(b, x)->width),
                (fb_op_attr){.used = (int32_t)value_at(b, x)->heads});
}

void fb_build_carry(fb_build *b, int32_t next, int32_t from) {
    fb_program *p = b->program;
    if (p->carry_count == FB_MAX_CARRIES)
        b->full = true;
    else
        p->carries[p->carry_count++] = (fb_carry){next, from};
}

fb_status fb_build_end(fb_build *b, fb_error *err) {
    b->program->best = FB_NONE;
    if (!b->program->kind_count) {
        b->program->kind_count = 1;
        b->program->kinds[0].angles = FB_NONE;
    }
    if (b->full)
        return fb_fail(err, FB_ERROR_SYSTEM, "program: too long (%d ops a section, %d values, %d weights)",
                       FB_MAX_OPS, FB_MAX_VALUES, FB_MAX_SLOTS);
    return FB_OK;
}
