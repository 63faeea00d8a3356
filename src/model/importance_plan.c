/* Whose inputs are kept, and how many products of columns: a panel of many columns knows more, and takes more
 * memory. */
#include "base/quant.h"
#include "model/importance.h"

/* Products of linears take at most so much memory, and a panel is at most so wide. The storyteller's matrices
 * are whole panels. A Llama of 1B has panels of 1024 columns (0.9 GB), one of 8B panels of 512 (1.7 GB),
 * where whole matrices would take 33 GB. Factoring a panel takes the cube of its width. */
#define MOST_BYTES ((int64_t)2 << 30)
#define WIDEST     1024

/* Products of experts may take a byte for so many weights of the model, a tenth of a file in 16 bits, if that
 * is more. Mixtral 8x7B: all experts have their own, in panels of 256 (4.8 of 9.3 GB). Qwen3-30B-A3B: in
 * panels of 256 that would be 17.7 of 6.1 GB, so that gate and up share the layer's; down's own take 4.8 GB.
 */
#define WEIGHTS_A_BYTE 5

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t layers_of(const fb_program *p, int64_t slot) {
    return p->slots[slot].per_layer ? p->layers : 1;
}
static bool multiplies(const fb_op *op) {
    return op->kind == FB_OP_LINEAR || op->kind == FB_OP_EXPERT_LINEAR;
}

/* ---- owners -------------------------------------------------------------------------------------------- */

/* The first linear of this kind that reads the same as `op`, such as that of q for k and v, or gate for up.
 * FB_NONE: there is none. */
static int32_t first_reader(const fb_program *p, int section, fb_op_kind kind, const fb_op *op) {
    for (int32_t i = 0; i < p->op_count[section]; i++) {
        const fb_op *other = &p->ops[section][i];
        bool routes = kind != FB_OP_EXPERT_LINEAR || other->in[1] == op->in[1];
        if (other->kind == kind && other->in[0] == op->in[0] && routes) return other->weights[0];
    }
    return FB_NONE;
}

/* A matrix that several linears multiply has the inputs of all of them, and shares none. */
static void find_owners(const fb_program *p, fb_importance_plan *plan) {
    int readers[FB_MAX_SLOTS] = {0};
    for (int32_t slot = 0; slot < FB_MAX_SLOTS; slot++) plan->owner[slot] = plan->shared[slot] = FB_NONE;
    for (int pass = 0; pass < 2; pass++)
        for (int s = 0; s < FB_SECTIONS; s++)
            for (int32_t i = 0; i < p->op_count[s]; i++) {
                const fb_op *op = &p->ops[s][i];
                if (!multiplies(op)) continue;
                int32_t slot = op->weights[0], first = first_reader(p, s, op->kind, op);
                if (pass == 0)
                    readers[slot]++;
                else
                    plan->owner[slot] = readers[slot] == 1 && readers[first] == 1 ? first : slot;
                if (op->kind == FB_OP_EXPERT_LINEAR && !op->attr.each)
                    plan->shared[slot] = first_reader(p, s, FB_OP_LINEAR, op);
            }
}

/* ---- widths -------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const fb_program *p, const fb_importance_plan *plan, bool experts, int64_t width) {
    int64_t bytes = 0;
    for (int32_t s = 0; s < p->slot_count; s++) {
        int64_t cols = p->slots[s].cols, count = p->slots[s].experts;
        if (plan->owner[s] == s && (count > 0) == experts)
            bytes += layers_of(p, s) * (experts ? count : 1) * cols * smaller(cols, width) *
                     (int64_t)sizeof(float);
    }
    return bytes;
}

/* The bytes of the widest panels that fit, or of the narrowest. */
static int64_t choose_width(const fb_program *p, fb_importance_plan *plan, bool experts, int64_t most) {
    int64_t width = WIDEST, bytes;
    while ((bytes = bytes_of(p, plan, experts, width)) > most && width > FB_MAX_BLOCK) width /= 2;
    for (int32_t s = 0; s < p->slot_count; s++)
        if ((p->slots[s].experts > 0) == experts) plan->width[s] = smaller(p->slots[s].cols, width);
    return bytes;
}

static void forget_experts(const fb_program *p, fb_importance_plan *plan, bool all) {
    for (int32_t s = 0; s < p->slot_count; s++)
        if (p->slots[s].experts && (all || plan->shared[s] != FB_NONE)) plan->owner[s] = FB_NONE;
}

void fb_importance_plan_make(const fb_program *p, fb_importance_plan *out) {
    int64_t most = 0;
    *out = (fb_importance_plan){0};
    find_owners(p, out);
    for (int32_t s = 0; s < p->slot_count; s++)
        most += layers_of(p, s) * p->slots[s].rows * p->slots[s].cols / WEIGHTS_A_BYTE;
    if (most < MOST_BYTES) most = MOST_BYTES;
    out->linear_bytes = choose_width(p, out, false, MOST_BYTES);
    out->expert_bytes = choose_width(p, out, true, most);
    for (int all = 0; all < 2 && out->expert_bytes > most; all++) {
        forget_experts(p, out, all == 1);
        out->expert_bytes = choose_width(p, out, true, most);
    }
}
