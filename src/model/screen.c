/* The head of a model with float weights gets room for a screen, for greedy steps that want only the best
 * token. Pages that nobody fills cost nothing. */
#include "base/screen.h"

#include <stdlib.h>

#include "base/memory.h"
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

void fb_model_screen(fb_model *m) {
    int32_t slot;
    void *memory;
    fb_weight *head = head_of(m, &slot);
    if (!head || !fb_screen_fits(head)) return;
    int64_t front = (sizeof *m->screen + 63) / 64 * 64, bytes = fb_screen_bytes(head->rows, head->cols);
    if (fb_memory_take("screen", front + bytes, &memory, NULL) != FB_OK) return;
    m->screen = memory;
    fb_screen_start(m->screen, head->rows, head->cols, (uint8_t *)memory + front);
    for (int64_t layer = 0; layer < m->spec->program.layers; layer++) head[layer].screen = m->screen;
    m->spec->program.slots[slot].screened = true;
}
