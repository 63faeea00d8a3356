/* The head of a model with float weights gets room for a screen, for greedy steps that want only the best
 * token. Pages that nobody fills cost nothing. */
#include "base/screen.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "model/model.h"

/* Where the system has large pages, the screen is in such. */
#define LARGE_PAGE (2 << 20)

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
    int64_t bytes = fb_screen_bytes(head->rows, head->cols), front = sizeof *m->screen + LARGE_PAGE;
    if (fb_memory_take("screen", front + bytes, &memory, NULL) != FB_OK) return;
    m->screen = memory;
    uintptr_t after = (uintptr_t)(m->screen + 1), at = (after + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    uint8_t *data = (uint8_t *)memory + (at - (uintptr_t)memory);
    (void)madvise(data, (size_t)bytes, MADV_HUGEPAGE);
    fb_screen_start(m->screen, head->rows, head->cols, data);
    for (int64_t layer = 0; layer < m->spec->program.layers; layer++) head[layer].screen = m->screen;
    m->spec->program.slots[slot].screened = true;
}
