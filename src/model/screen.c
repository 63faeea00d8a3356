/* The head of a model with float weights can have a screen, for greedy steps that want only the best token.
 */
#include "base/screen.h"

#include <stdlib.h>

#include "model/model.h"

static fb_weight *head_of(fb_model *m, int32_t *slot) {
    const fb_program *p = &m->spec->program;
    for (int32_t i = 0; i < p->op_count[FB_EPILOGUE]; i++) {
        const fb_op *op = &p->ops[FB_EPILOGUE][i];
        if (op->kind != FB_OP_LINEAR || op->out[0] != p->logits) continue;
        *slot = op->weights[0];
        return &m->weights[*slot * p->layers];
    }
    return NULL;
}

fb_status fb_model_screen(fb_model *m, fb_error *err) {
    int32_t slot;
    fb_weight *head = head_of(m, &slot);
    if (!head || !fb_screen_fits(head)) return FB_OK;
    m->screen = malloc(sizeof *m->screen);
    if (!m->screen) return fb_fail_memory(err, "screen", sizeof *m->screen);
    fb_screen_start(m->screen, head);
    for (int64_t layer = 0; layer < m->spec->program.layers; layer++) head[layer].screen = m->screen;
    m->spec->program.slots[slot].screened = true;
    return FB_OK;
}
