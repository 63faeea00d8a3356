/* Inserts quantize ops before linears whose weights are multiplied with integers. Linears with the same input
 * share one. */
#include <stdio.h>

#include "base/quant.h"
#include "fuse/match.h"

#define FLOATS ((1u << FB_FLOAT_COUNT) - 1)

/* The weights of all layers must be of such types, because all layers run the same ops. */
static bool multiplies_integers(const fb_program *p, const fb_op *op, uint32_t float_types) {
    uint32_t dtypes = op->weights[0] == FB_NONE ? 0 : p->slots[op->weights[0]].dtypes;
    return (op->kind == FB_OP_LINEAR || op->kind == FB_OP_EXPERT_LINEAR) && dtypes &&
           !(dtypes & (FLOATS | float_types));
}

bool fb_program_quantizes(const fb_program *p, uint32_t float_types) {
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            if (multiplies_integers(p, &p->ops[s][i], float_types)) return true;
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

fb_status fb_program_quantize(fb_program *p, uint32_t float_types, fb_error *err) {
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            if (!multiplies_integers(p, &p->ops[s][i], float_types)) continue;
            int32_t input = quantized(p, (fb_section)s, p->ops[s][i].in[0], &i);
            if (input == FB_NONE)
                return fb_fail(err, FB_ERROR_SYSTEM, "program: more than %d ops or %d values", FB_MAX_OPS,
                               FB_MAX_VALUES);
            p->ops[s][i].in[0] = input;
            p->ops[s][i].attr.segment[0].dot = FB_DOT_GIVEN;
        }
    return FB_OK;
}
