/* The second query of a cache with sinks. Keys are stored rotated at their positions and are never rotated
 * again. RoPE is relative: a query rotated at its own position has the right distance to every key of the
 * ring. Sink keys keep their positions (0 to 3 with four sinks) while the query moves on. The model must see
 * the sinks right before the ring. So the query for them is rotated at the position that it has in the cache.
 */
#include <stdio.h>

#include "program/program.h"

static int32_t find(const fb_program *p, fb_section section, fb_op_kind kind) {
    for (int32_t i = 0; i < p->op_count[section]; i++)
        if (p->ops[section][i].kind == kind) return i;
    return FB_NONE;
}

/* Inserts a copy of the op after it, with an output of its own. */
static fb_op *copy_after(fb_program *p, fb_section section, int32_t index, const char *suffix) {
    fb_op *op = &p->ops[section][index], *copy = op + 1;
    memmove(copy + 1, copy, (size_t)(p->op_count[section]++ - index - 1) * sizeof *op);
    *copy = *op;
    int32_t out = p->value_count++;
    fb_value v = p->values[op->out[0]];
    v.storage = out;
    snprintf(v.name, sizeof v.name, "%.16s_%s", p->values[op->out[0]].name, suffix);
    p->values[out] = v;
    copy->out[0] = out;
    return copy;
}

void fb_program_use_long(fb_program *p) {
    for (int32_t i = 0; i < p->op_count[FB_PROLOGUE]; i++) {
        fb_op_attr *attr = &p->ops[FB_PROLOGUE][i].attr;
        if (p->ops[FB_PROLOGUE][i].kind != FB_OP_ROPE_ANGLES) continue;
        attr->table++;
        attr->frequencies += attr->rotary / 2;
    }
}

fb_status fb_program_add_sinks(fb_program *p, int64_t limit, fb_error *err) {
    int32_t angles = find(p, FB_PROLOGUE, FB_OP_ROPE_ANGLES), scores = find(p, FB_BODY, FB_OP_ATTN_SCORES);
    int32_t rope = FB_NONE;
    for (int32_t i = 0; scores != FB_NONE && i < scores; i++)
        if (p->ops[FB_BODY][i].kind == FB_OP_ROPE &&
            p->ops[FB_BODY][i].out[0] == p->ops[FB_BODY][scores].in[0])
            rope = i;
    for (int32_t k = 0; k < p->kind_count; k++)
        if (p->kind_count > 1 || p->kinds[k].window)
            return fb_fail(err, FB_ERROR_UNSUPPORTED,
                           "cache: sinks (this model's layers have windows of "
                           "their own, or differ in their positions)");
    if (angles == FB_NONE || rope == FB_NONE)
        return fb_fail(err, FB_ERROR_SYSTEM, "program: sinks without rotary positions");
    if (p->op_count[FB_PROLOGUE] == FB_MAX_OPS || p->op_count[FB_BODY] == FB_MAX_OPS ||
        p->value_count + 2 > FB_MAX_VALUES)
        return fb_fail(err, FB_ERROR_SYSTEM, "program: more than %d ops or %d values", FB_MAX_OPS,
                       FB_MAX_VALUES);
    fb_op *sink_angles = copy_after(p, FB_PROLOGUE, angles, "sinks");
    sink_angles->attr.limit = limit;
    fb_op *sink_query = copy_after(p, FB_BODY, rope, "sinks");
    sink_query->in[1] = sink_angles->out[0];
    p->ops[FB_BODY][scores + 1].in[1] = sink_query->out[0];
    return FB_OK;
}
