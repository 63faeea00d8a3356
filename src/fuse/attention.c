/* Fuses around attention. */
#include "fuse/match.h"

/* Nodes: attn_scores, softmax, attn_values. Online softmax adds in another order and rounds less, so its bits
 * differ. attn_rows runs the same three kernels without the buffer of scores. */
bool fb_rewrite_attention(const fb_match *m) {
    const fb_op *scores = fb_match_op(m, 0);
    fb_op op = fb_match_new(m->options->exact ? FB_OP_ATTN_ROWS : FB_OP_ATTN_FLASH, FB_FUSE_ATTN_FLASH);
    op.in[0] = scores->in[0];
    op.in[1] = scores->in[1];
    op.attr = scores->attr;
    op.out[0] = fb_match_op(m, 2)->out[0];
    return fb_match_replace(m, &op, 3);
}

/* Nodes: rope (q), rope (k), kv_append. Both ropes use the same angles. */
bool fb_condition_rope_kv(const fb_match *m) {
    const fb_op *q = fb_match_op(m, 0), *k = fb_match_op(m, 1);
    return q->in[1] == k->in[1] && q->attr.rotary == k->attr.rotary;
}

/* Another rope of the same q: the query for the sinks. FB_NONE without sinks. */
static int32_t second_query(const fb_match *m) {
    const fb_op *q = fb_match_op(m, 0);
    for (int32_t i = 0; i < m->program->op_count[m->section]; i++) {
        const fb_op *op = &m->program->ops[m->section][i];
        if (op != q && op->kind == FB_OP_ROPE && op->in[0] == q->in[0] && op->attr.rotary == q->attr.rotary)
            return i;
    }
    return FB_NONE;
}

bool fb_rewrite_rope_kv(const fb_match *m) {
    const fb_op *q = fb_match_op(m, 0), *k = fb_match_op(m, 1), *append = fb_match_op(m, 2);
    fb_match all = *m;
    all.op[3] = second_query(m);
    fb_op op = fb_match_new(FB_OP_ROPE_KV, FB_FUSE_ROPE_KV);
    op.in[0] = q->in[0];
    op.in[1] = k->in[0];
    op.in[2] = append->in[1];
    op.in[3] = q->in[1];
    op.out[0] = q->out[0];
    op.attr = q->attr;
    if (all.op[3] == FB_NONE) return fb_match_replace(m, &op, 3);
    op.in[4] = fb_match_op(&all, 3)->in[1];
    op.out[1] = fb_match_op(&all, 3)->out[0];
    return fb_match_replace(&all, &op, 4);
}
