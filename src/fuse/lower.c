/* Inserts quantize ops before linears whose weights are multiplied with integers, in all layers or in some.
 * Linears with the same input share one. */
#include <stdio.h>

#include "base/quant.h"
#include "fuse/match.h"

#define FLOATS ((1u << FB_FLOAT_COUNT) - 1)

/* The dtypes that a projection's matrix has, in one layer or another. */
static uint32_t matrix_dtypes(const fb_program *p, const fb_op *op) {
    bool projects = op->kind == FB_OP_LINEAR || op->kind == FB_OP_EXPERT_LINEAR;
    return projects && op->weights[0] != FB_NONE ? p->slots[op->weights[0]].dtypes : 0;
}

static bool multiplies_integers(const fb_program *p, const fb_op *op) {
    return matrix_dtypes(p, op) & ~FLOATS;
}

bool fb_program_quantizes(const fb_program *p) {
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            if (multiplies_integers(p, &p->ops[s][i])) return true;
    return false;
}

/* The output of the op that quantises `value` before op `*index`: an existing op or a new one. FB_NONE: a
 * table is full. */
static int32_t quantized(fb_program *p, fb_section section, int32_t value, int32_t *index) {
    for (int32_t i = 0; i < *index; i++)
        if (p->ops[section][i].kind == FB_OP_QUANTIZE && p->ops[section][i].in[0] == value)
            return p->ops[section][i].out[0];
    if (p->value_count == FB_MAX_VALUES || p->op_count[section] == FB_MAX_OPS) return FB_NONE;
    int32_t out = p->value_count++;
    const fb_value *x = &p->values[value];
    int64_t width = fb_q8_floats(x->heads * x->width);
    fb_value v = {.storage = out, .heads = 1, .width = width, .stride = width, .always_f32 = true};
    snprintf(v.name, sizeof v.name, "%.19s_q8", x->name);
    p->values[out] = v;
    fb_op op = fb_op_new(FB_OP_QUANTIZE);
    op.in[0] = value;
    op.out[0] = out;
    fb_op *at = &p->ops[section][*index];
    memmove(at + 1, at, (size_t)(p->op_count[section]++ - *index) * sizeof *at);
    *at = op;
    ++*index;
    return out;
}

fb_status fb_program_quantize(fb_program *p, fb_error *err) {
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            if (!multiplies_integers(p, &p->ops[s][i])) continue;
            int32_t input = quantized(p, (fb_section)s, p->ops[s][i].in[0], &i);
            if (input == FB_NONE)
                return fb_fail(err, FB_ERROR_SYSTEM, "program: more than %d ops or %d values", FB_MAX_OPS,
                               FB_MAX_VALUES);
            fb_op *op = &p->ops[s][i];
            if (matrix_dtypes(p, op) & FLOATS) op->in[FB_UNQUANTIZED] = op->in[0];
            op->in[0] = input;
            op->attr.segment[0].dot = FB_DOT_GIVEN;
        }
    return FB_OK;
}
