/* Fuses around projections. All of them make one linear_group out of one to three linears and the ops before
 * and after them. */
#include "fuse/match.h"

#define LINEARS (FB_KIND(LINEAR) | FB_KIND(LINEAR_GROUP))

/* The attributes of a linear, as a group of one segment. A group keeps its own. */
static fb_op_attr group_attr(const fb_op *op) {
    fb_op_attr attr = op->attr;
    if (op->kind != FB_OP_LINEAR) return attr;
    attr.segments = 1;
    attr.combine = FB_COMBINE_NONE;
    for (int s = 0; s < FB_MAX_SEGMENTS; s++)
        attr.segment[s] = (fb_segment){FB_OP_COUNT, FB_OP_COUNT, 0, op->attr.segment[s].dot};
    return attr;
}

/* Appends all segments of `from` to `to`. */
static bool add_segments(fb_op *to, const fb_op *from) {
    fb_op_attr attr = group_attr(from);
    if (to->attr.segments + attr.segments > FB_MAX_SEGMENTS || attr.combine != FB_COMBINE_NONE) return false;
    for (int s = 0; s < attr.segments; s++) {
        int t = to->attr.segments++;
        to->in[t] = from->in[s];
        to->in[FB_UNQUANTIZED + t] = from->in[FB_UNQUANTIZED + s];
        to->out[t] = from->out[s];
        to->attr.segment[t] = attr.segment[s];
        for (int w = 0; w < 4; w++)
            to->weights[4 * t + w] = w < 2 || from->kind != FB_OP_LINEAR ? from->weights[4 * s + w] : FB_NONE;
    }
    return true;
}

static fb_op group_of(const fb_match *m, fb_fuse_id fuse, int first, int count, bool *ok) {
    fb_op group = fb_match_new(FB_OP_LINEAR_GROUP, fuse);
    *ok = true;
    for (int n = first; n < first + count; n++) *ok = *ok && add_segments(&group, fb_match_op(m, n));
    return group;
}

/* ---- several projections as one ---- */

/* The value that op `node` of the match projects: what its input was quantised from, or the input. */
static int32_t projected(const fb_match *m, int node) {
    int32_t value = fb_match_op(m, node)->in[0], writer = fb_op_writing(m->program, m->section, value);
    const fb_op *op = writer == FB_NONE ? NULL : &m->program->ops[m->section][writer];
    return op && op->kind == FB_OP_QUANTIZE ? op->in[0] : value;
}

bool fb_condition_same_input(const fb_match *m) { return projected(m, 0) == projected(m, 2); }

/* Directly, or through a norm of q or k. */
static bool feeds_attention(const fb_match *m, const fb_op *op) {
    const uint64_t kinds = FB_KIND(ROPE) | FB_KIND(KV_APPEND) | FB_KIND(ROPE_KV) | FB_KIND(ATTN_SCORES) |
                           FB_KIND(ATTN_ROWS) | FB_KIND(ATTN_FLASH);
    const fb_program *p = m->program;
    if (fb_value_feeds(p, m->section, op->out[0], kinds)) return true;
    for (int32_t i = 0; i < p->op_count[m->section]; i++) {
        const fb_op *norm = &p->ops[m->section][i];
        if (norm->kind == FB_OP_RMSNORM && p->values[norm->in[0]].storage == p->values[op->out[0]].storage &&
            fb_value_feeds(p, m->section, norm->out[0], kinds))
            return true;
    }
    return false;
}

bool fb_condition_qkv(const fb_match *m) {
    for (int n = 0; n < 3; n++) {
        if (projected(m, n) != projected(m, 0) || !feeds_attention(m, fb_match_op(m, n))) return false;
        if (n && m->op[n] < m->op[n - 1]) return false; /* accept the three in one order only */
    }
    return true;
}

/* The value that `value` is a norm of, quantised or not; otherwise `value` itself. */
static int32_t behind_norm(const fb_match *m, int32_t value) {
    for (;;) {
        int32_t writer = fb_op_writing(m->program, m->section, value);
        if (writer == FB_NONE) return value;
        const fb_op *op = &m->program->ops[m->section][writer];
        bool norm = op->kind == FB_OP_LAYERNORM || op->kind == FB_OP_RMSNORM;
        if (!norm && op->kind != FB_OP_QUANTIZE) return value;
        value = op->in[0];
        if (norm) return value;
    }
}

bool fb_condition_qkv_up(const fb_match *m) {
    const fb_op *qkv = fb_match_op(m, 0), *up = fb_match_op(m, 1);
    return feeds_attention(m, qkv) && !feeds_attention(m, up) &&
           behind_norm(m, qkv->in[0]) == behind_norm(m, up->in[0]);
}

/* qkv (three linears) and qkv_up (two groups): joins all nodes of the pattern. */
bool fb_rewrite_group(const fb_match *m) {
    bool ok;
    int nodes = m->op[2] == FB_NONE ? 2 : 3;
    fb_op group = group_of(m, nodes == 2 ? FB_FUSE_QKV_UP : FB_FUSE_QKV, 0, nodes, &ok);
    return ok && fb_match_replace(m, &group, nodes);
}

/* ---- before: quantising ---- */

/* Every reader of a quantize op is a projection (fuse/lower.c). Each now quantises its input itself. */
bool fb_rewrite_quant_gemm(const fb_match *m) {
    fb_program *p = m->program;
    fb_op quantize = *fb_match_op(m, 0);
    for (int32_t i = 0; i < p->op_count[m->section]; i++) {
        fb_op *op = &p->ops[m->section][i];
        for (int s = 0; s < FB_MAX_SEGMENTS; s++) {
            if (op->in[s] != quantize.out[0]) continue;
            op->in[s] = quantize.in[0];
            op->in[FB_UNQUANTIZED + s] = FB_NONE;
            op->attr.segment[s].dot = FB_DOT_QUANTIZE;
            op->fuses |= FB_FUSE_BIT(FB_FUSE_QUANT_GEMM) | quantize.fuses;
        }
    }
    fb_op_remove(p, m->section, m->op[0]);
    return fb_section_sort(p, m->section);
}

/* ---- before: the norm ---- */

/* Every reader of the norm must be a projection, and the value must not be needed elsewhere. */
bool fb_condition_norm_linear(const fb_match *m) {
    const fb_program *p = m->program;
    int32_t value = fb_match_op(m, 0)->out[0], projections = 0;
    for (int32_t i = 0; i < p->op_count[m->section]; i++)
        for (int s = 0; s < FB_MAX_SEGMENTS; s++)
            projections +=
                (LINEARS >> p->ops[m->section][i].kind & 1) && p->ops[m->section][i].in[s] == value;
    return value != p->final_norm && projections == fb_value_reads(p, value);
}

bool fb_rewrite_norm_linear(const fb_match *m) {
    fb_program *p = m->program;
    fb_op norm = *fb_match_op(m, 0);
    for (int32_t i = 0; i < p->op_count[m->section]; i++) {
        fb_op *op = &p->ops[m->section][i];
        if (!(LINEARS >> op->kind & 1)) continue;
        fb_op_attr attr = group_attr(op);
        bool reads = false;
        for (int s = 0; s < attr.segments; s++) {
            if (op->in[s] != norm.out[0]) continue;
            reads = true;
            op->in[s] = norm.in[0];
            attr.segment[s].norm = norm.kind;
            attr.segment[s].eps = norm.attr.eps;
            op->weights[4 * s + 2] = norm.weights[0];
            op->weights[4 * s + 3] = norm.weights[1];
        }
        if (!reads) continue;
        op->kind = FB_OP_LINEAR_GROUP;
        op->attr = attr;
        op->fuses |= FB_FUSE_BIT(FB_FUSE_NORM_LINEAR) | norm.fuses;
    }
    fb_op_remove(p, m->section, m->op[0]);
    return fb_section_sort(p, m->section);
}

/* ---- after: activation, product, residual ---- */

/* Node 1 is an activation of a gate: it is multiplied. */
bool fb_condition_gate(const fb_match *m) {
    return fb_value_feeds(m->program, m->section, fb_match_op(m, 1)->out[0], FB_KIND(MUL));
}

bool fb_condition_no_gate(const fb_match *m) { return !fb_condition_gate(m); }

/* A projection and the activation of one of its segments: swiglu_gemm for a gate, bias_act for others. */
bool fb_rewrite_linear_act(const fb_match *m) {
    bool ok;
    const fb_op *act = fb_match_op(m, 1);
    fb_op group = group_of(m, fb_condition_gate(m) ? FB_FUSE_SWIGLU_GEMM : FB_FUSE_BIAS_ACT, 0, 1, &ok);
    for (int s = 0; ok && s < group.attr.segments; s++)
        if (group.out[s] == act->in[0]) {
            group.attr.segment[s].act = act->kind;
            group.out[s] = act->out[0];
            return fb_match_replace(m, &group, 2);
        }
    return false;
}

/* Nodes: gate, an activation, up, mul. */
bool fb_rewrite_swiglu_dual(const fb_match *m) {
    fb_op group = fb_match_new(FB_OP_LINEAR_GROUP, FB_FUSE_SWIGLU_DUAL);
    if (!add_segments(&group, fb_match_op(m, 0)) || !add_segments(&group, fb_match_op(m, 2)) ||
        group.attr.segments != 2)
        return false;
    group.attr.segment[0].act = fb_match_op(m, 1)->kind;
    group.attr.combine = FB_COMBINE_MUL;
    group.out[0] = fb_match_op(m, 3)->out[0];
    group.out[1] = FB_NONE;
    return fb_match_replace(m, &group, 4);
}

static int32_t other_input(const fb_op *add, int32_t value) { return add->in[add->in[0] == value ? 1 : 0]; }

/* Turns a group into one that adds `residual` and writes `out`. */
static void add_residual(fb_op *group, int32_t residual, int32_t out) {
    group->attr.combine = FB_COMBINE_ADD;
    group->in[FB_RESIDUAL] = residual;
    group->out[0] = out;
    group->out[1] = FB_NONE;
}

/* Nodes: linear, add. */
bool fb_rewrite_down_add(const fb_match *m) {
    bool ok;
    const fb_op *add = fb_match_op(m, 1);
    fb_op group = group_of(m, FB_FUSE_DOWN_ADD, 0, 1, &ok);
    if (!ok || group.attr.segments != 1) return false;
    add_residual(&group, other_input(add, group.out[0]), add->out[0]);
    return fb_match_replace(m, &group, 2);
}

/* Nodes: linear a, linear b, a + b, (a + b) + residual. */
bool fb_rewrite_down_add_parallel(const fb_match *m) {
    bool ok;
    fb_op group = group_of(m, FB_FUSE_DOWN_ADD, 0, 2, &ok);
    if (!ok || group.attr.segments != 2) return false;
    const fb_op *sum = fb_match_op(m, 2), *last = fb_match_op(m, 3);
    add_residual(&group, other_input(last, sum->out[0]), last->out[0]);
    return fb_match_replace(m, &group, 4);
}

/* ---- the head ---- */

bool fb_condition_greedy(const fb_match *m) {
    return m->options->greedy && fb_match_op(m, 0)->out[0] == m->program->logits;
}

bool fb_condition_screen(const fb_match *m) {
    const fb_op *head = fb_match_op(m, 0);
    return fb_condition_greedy(m) && m->options->screen && head->attr.segment[0].dot == FB_DOT_FLOAT;
}

static bool rewrite_head(const fb_match *m, fb_fuse_id fuse) {
    fb_program *p = m->program;
    const fb_op *head = fb_match_op(m, 0);
    fb_op op = fb_match_new(FB_OP_HEAD_ARGMAX, fuse);
    op.attr.screen = fuse == FB_FUSE_HEAD_SCREEN;
    if (head->weights[1] != FB_NONE) return false;
    op.in[0] = head->in[0];
    op.weights[0] = head->weights[0];
    op.attr.segment[0].dot = head->attr.segment[0].dot;
    op.out[0] = fb_value_new(p, head->out[0], "_best");
    if (op.out[0] == FB_NONE) return false;
    p->values[op.out[0]].width = p->values[op.out[0]].stride = FB_ARGMAX_WIDTH;
    p->values[op.out[0]].always_f32 = true;
    p->best = op.out[0];
    p->logits = FB_NONE;
    return fb_match_replace(m, &op, 1);
}

bool fb_rewrite_head_argmax(const fb_match *m) { return rewrite_head(m, FB_FUSE_HEAD_ARGMAX); }

bool fb_rewrite_head_screen(const fb_match *m) { return rewrite_head(m, FB_FUSE_HEAD_SCREEN); }
