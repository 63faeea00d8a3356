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

/* The informative part of a tensor's name: "…layers.{}.attention.dense.weight" → "attention.dense.weight". */
static const char *short_name(const char *name) {
    const char *layer = strstr(name, "{}.");
    return layer ? layer + 3 : name;
}

static void print_input(FILE *f, const fb_program *p, int32_t id) {
    const fb_value *v = &p->values[id], *storage = &p->values[v->storage];
    if (v == storage)
        fputs(v->name, f);
    else
        fprintf(f, "%s.%s", storage->name, v->name); /* a view, as in "qkv.q" */
}

static void print_weights(FILE *f, const fb_program *p, const fb_op *op, const char *separator) {
    for (int k = 0; k < FB_MAX_WEIGHTS; k++) {
        if (op->weights[k] == FB_NONE) continue;
        const fb_slot *slot = &p->slots[op->weights[k]];
        fprintf(f, "%s%s%s ", separator, op->next_layer ? "next " : "", short_name(slot->name));
        if (slot->vector)
            fprintf(f, "[%" PRId64 "]", slot->cols);
        else if (slot->experts)
            fprintf(f, "[%" PRId64 ", %" PRId64 ", %" PRId64 "]", slot->experts, slot->rows / slot->experts,
                    slot->cols);
        else
            fprintf(f, "[%" PRId64 ", %" PRId64 "]", slot->rows, slot->cols);
        separator = ", ";
    }
}

/* Prints an op's parameters. */
static void print_attr(FILE *f, const fb_op *op, const char *separator) {
    switch (op->kind) {
    case FB_OP_LAYERNORM:
    case FB_OP_RMSNORM:
    case FB_OP_ADD_NORM:
        fprintf(f, ", eps %g", (double)op->attr.eps);
        break;
    case FB_OP_ATTN_SCORES:
    case FB_OP_ATTN_ROWS:
    case FB_OP_ATTN_FLASH:
        fprintf(f, ", scale %g", (double)op->attr.scale);
        if (op->attr.cap) fprintf(f, ", cap %g", (double)op->attr.cap);
        break;
    case FB_OP_EMBED:
    case FB_OP_SCALE:
        if (op->attr.scale) fprintf(f, ", scale %g", (double)op->attr.scale);
        break;
    case FB_OP_SOFTCAP:
        fprintf(f, ", cap %g", (double)op->attr.cap);
        break;
    default:
        break;
    }
    if (op->attr.rotary) fprintf(f, "%srotary %d", separator, op->attr.rotary);
    if (op->attr.table) fprintf(f, ", table %d", op->attr.table);
    if (op->attr.limit) fprintf(f, ", at most %" PRId64, op->attr.limit);
}

/* Prints the names of the op's fuses, which say more than "linear_group". */
static void print_kind(FILE *f, const fb_op *op, fb_fuse_name_fn fuse_name) {
    if (!op->fuses) fputs(fb_op_table[op->kind].name, f);
    const char *separator = "";
    for (uint32_t bits = op->fuses; bits; bits &= bits - 1, separator = "+")
        fprintf(f, "%s%s", separator, fuse_name(__builtin_ctz(bits)));
}

#define USES_CACHE                                                                                           \
    (1ull << FB_OP_ATTN_SCORES | 1ull << FB_OP_ATTN_VALUES | 1ull << FB_OP_ATTN_ROWS |                       \
     1ull << FB_OP_ATTN_FLASH)

static void print_op(FILE *f, const fb_program *p, const fb_op *op, fb_fuse_name_fn fuse_name) {
    fputs("  ", f);
    const char *separator = "";
    for (int k = 0; k < FB_MAX_OUT; k++) {
        if (op->out[k] == FB_NONE) continue;
        fputs(separator, f);
        print_value(f, p, op->out[k]);
        separator = ", ";
    }
    if (op->kind == FB_OP_KV_APPEND || op->kind == FB_OP_ROPE_KV)
        fprintf(f, "%scache [P+T, 2, %" PRId64 ", %" PRId64 "]", separator, p->kv_heads, p->head_dim);
    fputs(" = ", f);
    print_kind(f, op, fuse_name);
    fputs("(", f);
    separator = "";
    for (int k = 0; k < FB_MAX_IN; k++) {
        bool again = false; /* segments often read the same value */
        for (int e = 0; e < k; e++) again = again || op->in[e] == op->in[k];
        if (op->in[k] == FB_NONE || again) continue;
        fputs(separator, f);
        print_input(f, p, op->in[k]);
        separator = ", ";
    }
    if (op->kind == FB_OP_EMBED) fputs("ids", f), separator = ", ";
    if (USES_CACHE >> op->kind & 1) fputs(", cache", f);
    print_weights(f, p, op, separator);
    print_attr(f, op, separator);
    fputs(")\n", f);
}

/* The layers of a kind, as "0 to 4, 6 to 10, 12". */
static void print_layers(FILE *f, const fb_program *p, int32_t kind) {
    const char *separator = "";
    for (int64_t i = 0; i < p->layers; i++) {
        if (p->kind_of[i] != kind) continue;
        int64_t last = i;
        while (last + 1 < p->layers && p->kind_of[last + 1] == kind) last++;
        fprintf(f, "%s%" PRId64, separator, i);
        if (last > i) fprintf(f, " to %" PRId64, last);
        separator = ", ";
        i = last;
    }
}

/* One line for each kind of layer, if there are several or one has a window. */
static void print_kinds(FILE *f, const fb_program *p) {
    if (p->kind_count == 1 && !p->kinds[0].window) return;
    for (int32_t k = 0; k < p->kind_count; k++) {
        const fb_kind *kind = &p->kinds[k];
        fputs("  layers ", f);
        print_layers(f, p, k);
        if (kind->window)
            fprintf(f, ": a token sees %" PRId64 " positions", kind->window);
        else
            fputs(": a token sees all positions", f);
        if (kind->angles != FB_NONE) fprintf(f, ", rotated by %s", p->values[kind->angles].name);
        fputs("\n", f);
    }
}

fb_status fb_program_print(const fb_program *p, fb_fuse_name_fn fuse_name, char **text, fb_error *err) {
    *text = NULL;
    size_t size;
    FILE *f = open_memstream(text, &size);
    if (!f) return fb_fail_memory(err, "program text", 0);
    for (int section = 0; section < FB_SECTIONS; section++) {
        if (section == FB_BODY)
            fprintf(f, "layer, %" PRId64 " times:\n", p->layers);
        else
            fputs(section == FB_PROLOGUE ? "prologue:\n" : "epilogue:\n", f);
        for (int32_t i = 0; i < p->op_count[section]; i++) print_op(f, p, &p->ops[section][i], fuse_name);
        if (section != FB_BODY) continue;
        print_kinds(f, p);
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
