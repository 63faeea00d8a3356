/* Fuses of additions, products and norms: all row operations without a matrix. */
#include "fuse/match.h"

/* Nodes: a + b, (a + b) + c. The model decides the order of the two additions. */
bool fb_rewrite_add3(const fb_match *m) {
    const fb_op *first = fb_match_op(m, 0), *second = fb_match_op(m, 1);
    fb_op op = fb_match_new(FB_OP_ADD3, FB_FUSE_ADD3);
    op.in[0] = first->in[0];
    op.in[1] = first->in[1];
    op.in[2] = second->in[second->in[0] == first->out[0] ? 1 : 0];
    op.out[0] = second->out[0];
    return fb_match_replace(m, &op, 2);
}

/* Nodes: an activation, mul. */
bool fb_rewrite_swiglu_vec(const fb_match *m) {
    const fb_op *silu = fb_match_op(m, 0), *mul = fb_match_op(m, 1);
    fb_op op = fb_match_new(FB_OP_SWIGLU, FB_FUSE_SWIGLU_VEC);
    op.attr.act = silu->kind;
    op.in[0] = silu->in[0];
    op.in[1] = mul->in[mul->in[0] == silu->out[0] ? 1 : 0];
    op.out[0] = mul->out[0];
    return fb_match_replace(m, &op, 2);
}

/* Nodes: norm, add. */
bool fb_rewrite_norm_add(const fb_match *m) {
    const fb_op *norm = fb_match_op(m, 0), *add = fb_match_op(m, 1);
    fb_op op = fb_match_new(FB_OP_NORM_ADD, FB_FUSE_NORM_ADD);
    op.attr.norm = norm->kind;
    op.attr.eps = norm->attr.eps;
    op.weights[0] = norm->weights[0];
    op.weights[1] = norm->weights[1];
    op.in[0] = norm->in[0];
    op.in[1] = add->in[add->in[0] == norm->out[0] ? 1 : 0];
    op.out[0] = add->out[0];
    return fb_match_replace(m, &op, 2);
}

/* The addition part of an add_norm, from an add or add3. */
static fb_op sum_part(const fb_op *add) {
    fb_op op = fb_match_new(FB_OP_ADD_NORM, FB_FUSE_ADD_NORM);
    op.attr.terms = add->kind == FB_OP_ADD3 ? 3 : 2;
    for (int k = 0; k < op.attr.terms; k++) op.in[k] = add->in[k];
    op.out[0] = add->out[0];
    return op;
}

static void norm_part(fb_op *op, const fb_op *norm, int32_t out) {
    int k = op->attr.norms++;
    op->attr.norm = norm->kind;
    op->attr.eps = norm->attr.eps;
    op->weights[2 * k] = norm->weights[0];
    op->weights[2 * k + 1] = norm->weights[1];
    op->out[1 + k] = out;
}

/* Nodes: add or add3, norm, in one layer. */
bool fb_rewrite_add_norm(const fb_match *m) {
    fb_op op = sum_part(fb_match_op(m, 0));
    norm_part(&op, fb_match_op(m, 1), fb_match_op(m, 1)->out[0]);
    return fb_match_replace(m, &op, 2);
}

/* ---- across the layer boundary: the sum that ends a layer and the norm(s) that begin the next ---- */

static const fb_carry *carry_written(const fb_program *p, const fb_op *op) {
    for (int32_t c = 0; c < p->carry_count; c++)
        if (p->carries[c].from == op->out[0]) return &p->carries[c];
    return NULL;
}

static bool is_norm_of(const fb_op *op, int32_t x, const fb_op *like) {
    bool norm = op->kind == FB_OP_LAYERNORM || op->kind == FB_OP_RMSNORM;
    return norm && op->in[0] == x && (!like || (op->kind == like->kind && op->attr.eps == like->attr.eps));
}

/* Node 0 writes the carried value. Node 1 is a norm of it in the following layer. */
bool fb_condition_across(const fb_match *m) {
    const fb_carry *carry = carry_written(m->program, fb_match_op(m, 0));
    return carry && is_norm_of(fb_match_op(m, 1), carry->next, NULL) &&
           m->program->carry_count < FB_MAX_CARRIES - 1;
}

/* Moves layer 0's norm to the prologue, where it reads layer 0's weights. */
static bool move_to_prologue(fb_program *p, const fb_op *norm) {
    if (p->op_count[FB_PROLOGUE] == FB_MAX_OPS) return false;
    p->ops[FB_PROLOGUE][p->op_count[FB_PROLOGUE]++] = *norm;
    return true;
}

/* After the last layer's sum comes the final norm. The carried value replaces it in the epilogue. */
static void take_final_norm(fb_program *p, fb_op *op, int32_t x, int32_t first) {
    for (int32_t i = 0; i < p->op_count[FB_EPILOGUE]; i++) {
        fb_op *final = &p->ops[FB_EPILOGUE][i];
        fb_op like = {.kind = op->attr.norm, .attr.eps = op->attr.eps};
        if (!is_norm_of(final, x, &like)) continue;
        op->last_weights[0] = final->weights[0];
        op->last_weights[1] = final->weights[1];
        if (p->final_norm == final->out[0]) p->final_norm = first;
        fb_value_replace(p, final->out[0], first);
        fb_op_remove(p, FB_EPILOGUE, i);
        return;
    }
}

bool fb_rewrite_add_norm_across(const fb_match *m) {
    fb_program *p = m->program;
    fb_op op = sum_part(fb_match_op(m, 0)), first = *fb_match_op(m, 1);
    int32_t x = carry_written(p, fb_match_op(m, 0))->next;
    op.next_layer = true;
    /* Takes all norms of x of the same kind, at most two. */
    for (int32_t i = 0; i < p->op_count[FB_BODY] && op.attr.norms < 2;) {
        fb_op norm = p->ops[FB_BODY][i];
        if (!is_norm_of(&norm, x, &first)) {
            i++;
            continue;
        }
        int32_t next = fb_value_new(p, norm.out[0], "'");
        if (next == FB_NONE || !move_to_prologue(p, &norm)) return false;
        norm_part(&op, &norm, next);
        p->carries[p->carry_count++] = (fb_carry){norm.out[0], next};
        fb_op_remove(p, FB_BODY, i);
    }
    take_final_norm(p, &op, x, p->carries[p->carry_count - op.attr.norms].next);
    int32_t sum = fb_op_writing(p, FB_BODY, op.out[0]);
    op.fuses |= p->ops[FB_BODY][sum].fuses;
    p->ops[FB_BODY][sum] = op;
    return fb_section_sort(p, FB_BODY);
}
