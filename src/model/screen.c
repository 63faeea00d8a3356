/* The head of a model with float weights gets a screen, for greedy steps that want only the best token. */
#include "base/screen.h"

#include <stdlib.h>

#include "base/memory.h"
#include "model/model.h"

/* A screen is made whenever a model is opened, in 3 ms for 2 MB: heads of more bytes do without. */
#define LARGEST_HEAD ((int64_t)64 << 20)

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
    const fb_program *p = &m->spec->program;
    fb_weight *head = head_of(m, &slot);
    if (!head || !fb_screen_fits(head) || fb_dtype_bytes(head->dtype, head->rows * head->cols) > LARGEST_HEAD)
        return;
    void *memory;
    int64_t front = (sizeof(fb_screen) + 63) / 64 * 64, bytes = fb_screen_bytes(head->rows, head->cols);
    if (fb_memory_take("screen", front + bytes, &memory, NULL) != FB_OK) return;
    float *row = malloc((size_t)head->cols * sizeof *row);
    fb_screen *screen = memory;
    if (!row || !fb_screen_fill(head, (uint8_t *)memory + front, row, screen)) {
        free(row);
        free(memory);
        return;
    }
    free(row);
    m->screen = screen;
    for (int64_t layer = 0; layer < p->layers; layer++) head[layer].screen = screen;
    m->spec->program.slots[slot].screened = true;
}
