#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "program/program.h"

static void print_value(FILE *f, const fb_program *p, int32_t id) {
    const fb_value *v = &p->values[id];
    if (v->width == 0)
        fprintf(f, "%s [T, %" PRId64 ", P+T]", v->name, v->heads);
    else if (v->heads > 1)
        fprintf(f, "%s [T, %" PRId64 ", %" PRId64 "]", v->name, v->heads, v->width);
    else
        fprintf(f, "%s [T, %" PRId64 "]", v->name, v->width);
}

/* The part of a tensor's name that says what it is: "…layers.{}.attention.dense.weight" →
 * "attention.dense.weight". */
static const char *short_name(const char *name) {
    const char *layer = strstr(name, "{}.");
    return layer ? layer + 3 : name;
}

static void print_op(FILE *f, const fb_program *p, const fb_op *op) {
    const fb_op_row *row = &fb_op_table[op->kind];
    fputs("  ", f);
    for (int k = 0; k < FB_MAX_OUT && op->out[k] != FB_NONE; k++) {
        if (k) fputs(", ", f);
        print_value(f, p, op->out[k]);
    }
    if (op->kind == FB_OP_KV_APPEND)
        fprintf(f, "cache [P+T, 2, %" PRId64 ", %" PRId64 "]", p->kv_heads, p->head_dim);
    fprintf(f, " = %s(", row->name);
    const char *separator = "";
    for (int k = 0; k < FB_MAX_IN && op->in[k] != FB_NONE; k++, separator = ", ") {
        const fb_value *v = &p->values[op->in[k]], *storage = &p->values[v->storage];
        if (v == storage)
            fprintf(f, "%s%s", separator, v->name);
        else
            fprintf(f, "%s%s.%s", separator, storage->name, v->name); /* a view, as in "qkv.q" */
    }
    if (op->kind == FB_OP_EMBED) fputs("ids", f), separator = ", ";
    if (op->kind == FB_OP_ATTN_SCORES || op->kind == FB_OP_ATTN_VALUES) fputs(", cache", f);
    for (int k = 0; k < FB_MAX_WEIGHTS; k++) {
        if (op->weights[k] == FB_NONE) continue;
        const fb_slot *slot = &p->slots[op->weights[k]];
        fprintf(f, "%s%s ", separator, short_name(slot->name));
        if (slot->vector)
            fprintf(f, "[%" PRId64 "]", slot->cols);
        else
            fprintf(f, "[%" PRId64 ", %" PRId64 "]", slot->rows, slot->cols);
        separator = ", ";
    }
    if (op->kind == FB_OP_LAYERNORM || op->kind == FB_OP_RMSNORM)
        fprintf(f, ", eps %g", (double)op->attr.eps);
    if (op->kind == FB_OP_ATTN_SCORES) fprintf(f, ", scale %g", (double)op->attr.scale);
    if (op->attr.rotary) fprintf(f, "%srotary %d", separator, op->attr.rotary);
    fputs(")\n", f);
}

fb_status fb_program_print(const fb_program *p, char **text, fb_error *err) {
    *text = NULL;
    size_t size;
    FILE *f = open_memstream(text, &size);
    if (!f) return fb_fail_memory(err, "program text", 0);
    for (int section = 0; section < FB_SECTIONS; section++) {
        if (section == FB_BODY)
            fprintf(f, "layer, %" PRId64 " times:\n", p->layers);
        else
            fputs(section == FB_PROLOGUE ? "prologue:\n" : "epilogue:\n", f);
        for (int32_t i = 0; i < p->op_count[section]; i++) print_op(f, p, &p->ops[section][i]);
        if (section != FB_BODY) continue;
        for (int32_t c = 0; c < p->carry_count; c++)
            fprintf(f, "  next layer's %s = %s\n", p->values[p->carries[c].next].name,
                    p->values[p->carries[c].from].name);
    }
    bool failed = ferror(f);
    if (fclose(f) || failed || !*text) {
        free(*text);
        *text = NULL;
        return fb_fail_memory(err, "program text", (int64_t)size);
    }
    return FB_OK;
}

void fb_program_clear(fb_program *program) {
    free(program->frequencies);
    memset(program, 0, sizeof *program);
}
