/* Finds when each value is live, and from that a buffer for it. The prologue, one pass over the body and the
 * epilogue are treated as one straight list of ops. A value that enters the body stays live throughout the
 * body, because the next pass reads it again. */
#include "program/program.h"

#define NEVER (-1)

typedef struct life {
    int32_t begin[FB_MAX_VALUES], end[FB_MAX_VALUES]; /* by storage: index of the first op that writes it, and
                                                         of the last op that reads it */
} life;

typedef struct op_order {
    const fb_op *op[FB_SECTIONS * FB_MAX_OPS];
    int32_t count, body_begin, body_end;
} op_order;

static void line_up(const fb_program *p, op_order *s) {
    s->count = 0;
    for (int section = 0; section < FB_SECTIONS; section++) {
        if (section == FB_BODY) s->body_begin = s->count;
        for (int32_t i = 0; i < p->op_count[section]; i++) s->op[s->count++] = &p->ops[section][i];
        if (section == FB_BODY) s->body_end = s->count;
    }
}

static int32_t storage_of(const fb_program *p, int32_t value) { return p->values[value].storage; }

/* The storage that a carried value shares: both ends of a carry use the same memory. */
static int32_t carried_root(const fb_program *p, int32_t storage) {
    for (int32_t c = 0; c < p->carry_count; c++)
        if (storage_of(p, p->carries[c].from) == storage) return storage_of(p, p->carries[c].next);
    return storage;
}

/* Whether each head of `value`, a view of a projection's output, lies within the columns of its KV head. */
static bool head_by_head(const fb_program *p, const fb_value *value) {
    const fb_value *out = &p->values[value->storage];
    int64_t each = out->heads * out->width / p->kv_heads, group = value->heads / p->kv_heads;
    if (each == 0 || each * p->kv_heads != out->heads * out->width || each % FB_LINEAR_GRAIN ||
        group * p->kv_heads != value->heads)
        return false;
    for (int64_t head = 0; head < value->heads; head++) {
        int64_t begin = value->offset + head * value->stride;
        if (begin / each != head / group || (begin + value->width - 1) / each != head / group) return false;
    }
    return true;
}

/* Whether `next` reads something that `op` writes, and every such input divides by KV heads. */
static bool reads_by_head(const fb_program *p, const fb_op *op, const fb_op *next) {
    bool reads = false;
    for (int k = 0; k < FB_MAX_IN; k++)
        for (int s = 0; s < FB_MAX_OUT; s++) {
            if (next->in[k] == FB_NONE || op->out[s] == FB_NONE ||
                storage_of(p, next->in[k]) != storage_of(p, op->out[s]))
                continue;
            if (!head_by_head(p, &p->values[next->in[k]])) return false;
            reads = true;
        }
    return reads;
}

bool fb_program_joined(const fb_program *p, const fb_op *op, const fb_op *next) {
    if (!next || fb_op_table[next->kind].parts != FB_PARTS_HEAD) return false;
    if (op->kind == FB_OP_LINEAR_GROUP)
        return op->attr.combine == FB_COMBINE_NONE && reads_by_head(p, op, next);
    return fb_op_table[op->kind].parts == FB_PARTS_HEAD;
}

bool fb_program_barrier(const fb_program *p, fb_section section, int32_t index, int32_t workers) {
    const fb_op *op = &p->ops[section][index];
    bool last = index + 1 == p->op_count[section];
    bool shared =
        op->kind == FB_OP_LINEAR_GROUP ? p->kv_heads % workers == 0 : fb_program_by_head(p, workers);
    return last || !shared || !fb_program_joined(p, op, op + 1);
}

bool fb_program_by_head(const fb_program *p, int32_t workers) { return p->kv_heads >= workers; }

/* Whether the op may overwrite its input k. */
static bool may_overwrite(const fb_op *op, int k) {
    return fb_op_table[op->kind].parts == FB_PARTS_ELEMENT &&
           (op->kind != FB_OP_LINEAR_GROUP || k == FB_RESIDUAL);
}

static fb_status find_lives(const fb_program *p, const op_order *s, life *l, fb_error *err) {
    for (int32_t v = 0; v < FB_MAX_VALUES; v++) l->begin[v] = l->end[v] = NEVER;
    for (int32_t i = 0; i < s->count; i++) {
        const fb_op *op = s->op[i];
        int32_t done = i; /* the op after which all workers have finished this one */
        while (fb_program_joined(p, s->op[done], done + 1 < s->count ? s->op[done + 1] : NULL)) done++;
        for (int k = 0; k < FB_MAX_IN; k++) {
            if (op->in[k] == FB_NONE) continue;
            int32_t v = storage_of(p, op->in[k]);
            if (l->begin[v] == NEVER)
                return fb_fail(err, FB_ERROR_SYSTEM, "program: %s: read before it is written",
                               p->values[op->in[k]].name);
            l->end[v] = done;
        }
        for (int k = 0; k < FB_MAX_OUT; k++) {
            if (op->out[k] == FB_NONE) continue;
            int32_t v = storage_of(p, op->out[k]);
            if (l->begin[v] == NEVER) l->begin[v] = i;
            if (l->end[v] < done) l->end[v] = done;
        }
    }
    /* Layers of other kinds read other angles than those that the body names. */
    for (int32_t k = 0; k < p->kind_count; k++)
        if (p->kinds[k].angles != FB_NONE && s->body_end > s->body_begin &&
            l->end[storage_of(p, p->kinds[k].angles)] < s->body_begin)
            l->end[storage_of(p, p->kinds[k].angles)] = s->body_begin;
    /* The body reads what the prologue wrote again in every pass. */
    for (int32_t v = 0; v < p->value_count; v++)
        if (l->begin[v] != NEVER && l->begin[v] < s->body_begin && l->end[v] >= s->body_begin &&
            l->end[v] < s->body_end)
            l->end[v] = s->body_end - 1;
    return FB_OK;
}

/* A carried value may be overwritten only after the last read of its old content. */
static fb_status check_carries(const fb_program *p, const op_order *s, const life *l, fb_error *err) {
    for (int32_t c = 0; c < p->carry_count; c++) {
        int32_t next = p->carries[c].next, from = p->carries[c].from;
        int32_t written = l->begin[storage_of(p, from)];
        for (int32_t i = s->body_begin; i < s->body_end; i++)
            for (int k = 0; k < FB_MAX_IN; k++) {
                if (s->op[i]->in[k] == FB_NONE || storage_of(p, s->op[i]->in[k]) != storage_of(p, next))
                    continue;
                if (i > written || (i == written && !may_overwrite(s->op[i], k)))
                    return fb_fail(
                        err, FB_ERROR_SYSTEM, "program: %s: overwritten by %s while %s still reads it",
                        p->values[next].name, p->values[from].name, fb_op_table[s->op[i]->kind].name);
            }
    }
    return FB_OK;
}

static int64_t columns(const fb_program *p, int32_t storage, bool context) {
    const fb_value *v = &p->values[storage];
    if (context) return v->width == 0 ? v->heads : 0;
    return v->heads * v->width;
}

/* Whether the op also reads its input k as another input, which must not change. */
static bool read_besides(const fb_program *p, const fb_op *op, int k) {
    for (int j = 0; j < FB_MAX_IN; j++)
        if (op->in[j] != FB_NONE && storage_of(p, op->in[j]) == storage_of(p, op->in[k]) &&
            !may_overwrite(op, j))
            return true;
    return false;
}

/* An input whose buffer `v` may take over: the op that writes `v` is elementwise, the sizes are equal, and
 * the input is not read later. */
static int32_t inherit(const fb_program *p, const op_order *s, const life *l, const fb_layout *layout,
                       int32_t v) {
    const fb_op *op = s->op[l->begin[v]];
    if (op->out[0] != v) return FB_NONE; /* only the first output may take over a buffer */
    for (int k = 0; k < FB_MAX_IN; k++) {
        if (op->in[k] == FB_NONE || p->values[op->in[k]].storage != op->in[k] || !may_overwrite(op, k) ||
            read_besides(p, op, k))
            continue;
        int32_t in = op->in[k];
        bool same =
            columns(p, in, false) == columns(p, v, false) && columns(p, in, true) == columns(p, v, true);
        if (same && l->end[in] == l->begin[v] && p->values[in].always_f32 == p->values[v].always_f32)
            return layout->buffer[in];
    }
    return FB_NONE;
}

fb_status fb_layout_make(const fb_program *p, fb_layout *layout, fb_error *err) {
    op_order s = {0};
    life l;
    line_up(p, &s);
    FB_TRY(find_lives(p, &s, &l, err));
    FB_TRY(check_carries(p, &s, &l, err));
    /* Both ends of a carry are live together, from the first write to the last read. */
    for (int32_t c = 0; c < p->carry_count; c++) {
        int32_t next = storage_of(p, p->carries[c].next), from = storage_of(p, p->carries[c].from);
        if (l.end[from] > l.end[next]) l.end[next] = l.end[from];
        if (l.end[next] < s.body_end) l.end[next] = s.body_end;
    }
    memset(layout, 0, sizeof *layout);
    int32_t free_after[FB_MAX_VALUES]; /* by buffer: index of the op after which it is free */
    for (int32_t v = 0; v < p->value_count; v++) layout->buffer[v] = FB_NONE;
    for (int32_t i = 0; i < s.count; i++)
        for (int k = 0; k < FB_MAX_OUT; k++) {
            int32_t v = s.op[i]->out[k] == FB_NONE ? FB_NONE : storage_of(p, s.op[i]->out[k]);
            if (v == FB_NONE || layout->buffer[v] != FB_NONE) continue;
            int32_t root = carried_root(p, v);
            int32_t buffer = root != v ? layout->buffer[root] : inherit(p, &s, &l, layout, v);
            for (int32_t other = 0; buffer == FB_NONE && other < layout->buffers; other++)
                if (free_after[other] < i && layout->always_f32[other] == p->values[v].always_f32 &&
                    (layout->context_cols[other] > 0) == (columns(p, v, true) > 0))
                    buffer = other;
            if (buffer == FB_NONE) {
                buffer = layout->buffers++;
                free_after[buffer] = NEVER;
                layout->always_f32[buffer] = p->values[v].always_f32;
            }
            layout->buffer[v] = buffer;
            if (l.end[v] > free_after[buffer]) free_after[buffer] = l.end[v];
            if (columns(p, v, false) > layout->cols[buffer]) layout->cols[buffer] = columns(p, v, false);
            if (columns(p, v, true) > layout->context_cols[buffer])
                layout->context_cols[buffer] = columns(p, v, true);
        }
    for (int32_t v = 0; v < p->value_count; v++) layout->buffer[v] = layout->buffer[storage_of(p, v)];
    return FB_OK;
}
