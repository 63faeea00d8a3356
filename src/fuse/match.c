#include "fuse/match.h"

#include <stdio.h>

fb_op *fb_match_op(const fb_match *match, int node) {
    return &match->program->ops[match->section][match->op[node]];
}

static int32_t storage_of(const fb_program *p, int32_t value) { return p->values[value].storage; }

static bool op_reads(const fb_program *p, const fb_op *op, int32_t storage) {
    for (int k = 0; k < FB_MAX_IN; k++)
        if (op->in[k] != FB_NONE && storage_of(p, op->in[k]) == storage) return true;
    return false;
}

static bool op_writes(const fb_program *p, const fb_op *op, int32_t storage) {
    for (int k = 0; k < FB_MAX_OUT; k++)
        if (op->out[k] != FB_NONE && storage_of(p, op->out[k]) == storage) return true;
    return false;
}

int32_t fb_op_writing(const fb_program *p, fb_section section, int32_t value) {
    for (int32_t i = 0; i < p->op_count[section]; i++)
        if (op_writes(p, &p->ops[section][i], storage_of(p, value))) return i;
    return FB_NONE;
}

int32_t fb_value_reads(const fb_program *p, int32_t value) {
    int32_t storage = storage_of(p, value), count = 0;
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            for (int k = 0; k < FB_MAX_IN; k++)
                count += p->ops[s][i].in[k] != FB_NONE && storage_of(p, p->ops[s][i].in[k]) == storage;
    for (int32_t c = 0; c < p->carry_count; c++) count += storage_of(p, p->carries[c].from) == storage;
    return count;
}

bool fb_value_feeds(const fb_program *p, fb_section section, int32_t value, uint64_t kinds) {
    for (int32_t i = 0; i < p->op_count[section]; i++)
        if ((kinds >> p->ops[section][i].kind & 1) && op_reads(p, &p->ops[section][i], storage_of(p, value)))
            return true;
    return false;
}

/* ---- matching
 * ---------------------------------------------------------------------------------------------------------
 */

static bool edge_holds(const fb_match *m, const fb_edge *edge) {
    const fb_op *reader = fb_match_op(m, edge->reader), *writer = fb_match_op(m, edge->writer);
    for (int k = 0; k < FB_MAX_IN; k++) {
        if (reader->in[k] == FB_NONE || (edge->input != FB_ANY && edge->input != k)) continue;
        int32_t storage = storage_of(m->program, reader->in[k]);
        if (storage != reader->in[k] || !op_writes(m->program, writer, storage)) continue;
        return !edge->sole || fb_value_reads(m->program, reader->in[k]) == 1;
    }
    return false;
}

/* Whether node `node` may be the op that m->op[node] names, given the nodes before it. */
static bool node_fits(const fb_pattern *p, const fb_match *m, int node) {
    if (!(p->kinds[node] >> fb_match_op(m, node)->kind & 1)) return false;
    for (int other = 0; other < node; other++)
        if (m->op[other] == m->op[node]) return false;
    for (int e = 0; e < FB_MAX_NODES; e++) {
        const fb_edge *edge = &p->edges[e];
        if (edge->reader == edge->writer) continue; /* an unused row */
        int last = edge->reader > edge->writer ? edge->reader : edge->writer;
        if (last == node && !edge_holds(m, edge)) return false;
    }
    return true;
}

/* On the stack, 40 KB: a fuse that is left out for lack of memory would change the answer's bits. */
static bool try_rewrite(const fb_pattern *p, const fb_match *m) {
    if (p->condition && !p->condition(m)) return false;
    fb_program before = *m->program;
    fb_layout layout;
    bool done = p->rewrite(m) && fb_layout_make(m->program, &layout, NULL) == FB_OK;
    if (!done) *m->program = before;
    return done;
}

static bool search(const fb_pattern *p, fb_match *m, int node) {
    if (node == p->nodes) return try_rewrite(p, m);
    for (int32_t i = 0; i < m->program->op_count[m->section]; i++) {
        m->op[node] = i;
        if (node_fits(p, m, node) && search(p, m, node + 1)) return true;
    }
    m->op[node] = FB_NONE;
    return false;
}

bool fb_pattern_apply(const fb_pattern *pattern, fb_program *program, const fb_plan_options *options) {
    fb_match m = {.program = program, .section = pattern->section, .options = options};
    for (int n = 0; n < FB_MAX_NODES; n++) m.op[n] = FB_NONE;
    return search(pattern, &m, 0);
}

/* ---- rewriting
 * -------------------------------------------------------------------------------------------------------- */

fb_op fb_match_new(fb_op_kind kind, fb_fuse_id fuse) {
    fb_op op = fb_op_new(kind);
    op.fuses = FB_FUSE_BIT(fuse);
    return op;
}

bool fb_op_remove(fb_program *p, fb_section section, int32_t index) {
    int32_t *count = &p->op_count[section];
    memmove(&p->ops[section][index], &p->ops[section][index + 1],
            (size_t)(*count - index - 1) * sizeof(fb_op));
    (*count)--;
    return true;
}

bool fb_match_replace(const fb_match *m, const fb_op *op, int nodes) {
    fb_program *p = m->program;
    fb_op fused = *op;
    int32_t last = 0;
    bool gone[FB_MAX_OPS] = {false};
    for (int n = 0; n < nodes; n++) {
        if (m->op[n] > last) last = m->op[n];
        gone[m->op[n]] = true;
        fused.fuses |= p->ops[m->section][m->op[n]].fuses;
    }
    p->ops[m->section][last] = fused;
    gone[last] = false;
    for (int32_t i = p->op_count[m->section]; i-- > 0;)
        if (gone[i]) fb_op_remove(p, m->section, i);
    return fb_section_sort(p, m->section);
}

void fb_value_replace(fb_program *p, int32_t old, int32_t by) {
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            for (int k = 0; k < FB_MAX_IN; k++)
                if (p->ops[s][i].in[k] == old) p->ops[s][i].in[k] = by;
}

int32_t fb_value_new(fb_program *p, int32_t like, const char *suffix) {
    if (p->value_count == FB_MAX_VALUES) return FB_NONE;
    int32_t id = p->value_count++;
    fb_value v = p->values[like];
    v.storage = id;
    v.offset = 0;
    v.stride = v.width;
    snprintf(v.name, sizeof v.name, "%.16s%s", p->values[like].name, suffix);
    p->values[id] = v;
    return id;
}

/* Ops whose effect on the cache the value edges do not show. */
#define APPENDS (FB_KIND(KV_APPEND) | FB_KIND(ROPE_KV))
#define ATTENDS (FB_KIND(ATTN_SCORES) | FB_KIND(ATTN_VALUES) | FB_KIND(ATTN_ROWS) | FB_KIND(ATTN_FLASH))

/* Whether `op` must come after `other`: it reads what that writes, or overwrites (through a carry) what that
 * reads. */
static bool depends(const fb_program *p, const fb_op *op, const fb_op *other) {
    for (int k = 0; k < FB_MAX_OUT; k++)
        if (other->out[k] != FB_NONE && op_reads(p, op, storage_of(p, other->out[k]))) return true;
    for (int32_t c = 0; c < p->carry_count; c++)
        if (op_writes(p, op, storage_of(p, p->carries[c].from)) &&
            op_reads(p, other, storage_of(p, p->carries[c].next)))
            return true;
    return (ATTENDS >> op->kind & 1) && (APPENDS >> other->kind & 1);
}

bool fb_section_sort(fb_program *p, fb_section section) {
    int32_t count = p->op_count[section], done = 0;
    fb_op sorted[FB_MAX_OPS];
    bool placed[FB_MAX_OPS] = {false};
    while (done < count) {
        int32_t next = FB_NONE;
        for (int32_t i = 0; i < count && next == FB_NONE; i++) {
            bool ready = !placed[i];
            for (int32_t j = 0; j < count && ready; j++)
                if (j != i && !placed[j] && depends(p, &p->ops[section][i], &p->ops[section][j]))
                    ready = false;
            if (ready) next = i;
        }
        if (next == FB_NONE) break;
        placed[next] = true;
        sorted[done++] = p->ops[section][next];
    }
    if (done == count) memcpy(p->ops[section], sorted, (size_t)count * sizeof(fb_op));
    return done == count;
}
