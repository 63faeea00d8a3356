/* Fuses of a mixture of experts: around the choice, and around the experts' projections. */
#include "fuse/match.h"

bool fb_condition_router(const fb_match *m) {
    const fb_op *linear = fb_match_op(m, 1);
    return linear->weights[1] == FB_NONE && linear->attr.segment[0].dot == FB_DOT_FLOAT;
}

/* Nodes: norm, linear, top_k. The normalised row is still stored, because the experts read it. */
bool fb_rewrite_router(const fb_match *m) {
    const fb_op *norm = fb_match_op(m, 0), *linear = fb_match_op(m, 1), *choice = fb_match_op(m, 2);
    fb_op op = fb_match_new(FB_OP_ROUTER, FB_FUSE_ROUTER);
    op.attr = choice->attr;
    op.attr.segment[0] = (fb_segment){norm->kind, FB_OP_COUNT, norm->attr.eps, FB_DOT_FLOAT};
    op.in[0] = norm->in[0];
    op.out[0] = norm->out[0];
    op.out[1] = choice->out[0];
    op.weights[0] = linear->weights[0];
    op.weights[2] = norm->weights[0];
    op.weights[3] = norm->weights[1];
    return fb_match_replace(m, &op, 3);
}

/* A group that begins with the expert_linear of node `node`. */
static fb_op group_of(const fb_match *m, int node) {
    const fb_op *linear = fb_match_op(m, node);
    fb_op op = fb_match_new(FB_OP_EXPERT_GROUP, FB_FUSE_EXPERTS);
    op.attr = linear->attr;
    op.attr.segments = 1;
    op.attr.segment[0].norm = op.attr.segment[0].act = FB_OP_COUNT;
    op.in[0] = linear->in[0];
    op.in[1] = linear->in[1];
    op.in[FB_UNQUANTIZED] = linear->in[FB_UNQUANTIZED];
    op.weights[0] = linear->weights[0];
    return op;
}

/* Nodes: gate, an activation, up, mul. */
bool fb_rewrite_experts_gated(const fb_match *m) {
    const fb_op *up = fb_match_op(m, 2);
    fb_op op = group_of(m, 0);
    const fb_slot *slots = m->program->slots;
    uint32_t dtypes = slots[op.weights[0]].dtypes;
    /* Of one type, so that both multiply the same form of x. */
    if (up->in[1] != op.in[1] || !dtypes || (dtypes & (dtypes - 1)) || slots[up->weights[0]].dtypes != dtypes)
        return false;
    op.attr.segments = 2;
    op.attr.combine = FB_COMBINE_MUL;
    op.attr.segment[0].act = fb_match_op(m, 1)->kind;
    op.attr.segment[1] = (fb_segment){FB_OP_COUNT, FB_OP_COUNT, 0, up->attr.segment[0].dot};
    op.weights[4] = up->weights[0];
    op.out[0] = fb_match_op(m, 3)->out[0];
    return fb_match_replace(m, &op, 4);
}

/* Nodes: down, expert_sum, perhaps the residual's add. */
bool fb_rewrite_experts_sum(const fb_match *m) {
    const fb_op *sum = fb_match_op(m, 1);
    bool residual = m->op[2] != FB_NONE;
    fb_op op = group_of(m, 0);
    if (sum->in[1] != op.in[1]) return false;
    op.attr.combine = FB_COMBINE_SUM;
    op.out[0] = sum->out[0];
    if (residual) {
        const fb_op *add = fb_match_op(m, 2);
        op.in[FB_RESIDUAL] = add->in[add->in[0] == sum->out[0] ? 1 : 0];
        op.out[0] = add->out[0];
    }
    return fb_match_replace(m, &op, residual ? 3 : 2);
}
