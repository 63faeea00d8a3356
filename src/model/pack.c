/* Weights that a linear reads move into one piece of memory, in large pages where the system has them: Q8_0
 * and Q4_0 packed (base/pack.h), floats as they are, where they do not begin at a cache line and are few. The
 * file's pages are let go as they are done, so that memory holds the weights once. */
#include <stdlib.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "base/pack.h"
#include "file/map.h"
#include "model/model.h"

/* A large page; also keeps matrices from sharing a cache line. */
#define LARGE_PAGE (2 << 20)
#define LINE       64

/* Loads that cross cache lines cost a model that lives in the third-level cache a seventh of its speed. From
 * memory nothing is gained by a copy: floats of more than so many bytes stay where they are. */
#define FEW_FLOATS ((int64_t)64 << 20)

static bool read_by_linear(const fb_program *p, int32_t slot) {
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            if (p->ops[s][i].kind == FB_OP_LINEAR && p->ops[s][i].weights[0] == slot) return true;
    return false;
}

/* Bytes of a weight where it moves to. */
static int64_t room(const fb_weight *w) {
    int64_t bytes = fb_pack_has(w->dtype) ? fb_pack_bytes(w->dtype, w->rows, w->cols)
                                          : fb_dtype_bytes(w->dtype, w->rows * w->cols);
    return (bytes + LINE - 1) / LINE * LINE;
}

static void pack(fb_weight *w, uint8_t *to) {
    int64_t row_bytes = fb_dtype_bytes(w->dtype, w->cols), group = FB_PACK_ROWS * row_bytes;
    if (w->rows % FB_PACK_ROWS) memset(to + w->rows / FB_PACK_ROWS * group, 0, (size_t)group);
    for (int64_t row = 0; row < w->rows; row++)
        fb_pack_row(w->dtype, (const uint8_t *)w->data + row * row_bytes, w->cols, row, to);
    w->packed = true;
}

static bool crosses_lines(const fb_weight *w) {
    return fb_dtype_is_float(w->dtype) && (uintptr_t)w->data % LINE != 0;
}

static bool packs(const fb_weight *w) { return fb_pack_has(w->dtype); }
static bool packs_or_crosses(const fb_weight *w) { return packs(w) || crosses_lines(w); }

/* Calls `visit` for every weight that moves: one a layer, or one. */
typedef void (*visit_fn)(fb_model *m, int64_t index, bool repeats, void *arg);

static void each(fb_model *m, bool (*moves)(const fb_weight *), visit_fn visit, void *arg) {
    const fb_program *p = &m->spec->program;
    for (int32_t slot = 0; slot < p->slot_count; slot++) {
        if (!read_by_linear(p, slot)) continue;
        bool repeats = false;
        for (int64_t layer = 0; layer < p->layers; layer++) {
            int64_t index = slot * p->layers + layer;
            if (!repeats && !moves(&m->weights[index])) continue;
            visit(m, index, repeats, arg);
            repeats = !p->slots[slot].per_layer;
        }
    }
}

static void add_room(fb_model *m, int64_t index, bool repeats, void *arg) {
    if (!repeats) *(int64_t *)arg += room(&m->weights[index]);
}

static void move_one(fb_model *m, int64_t index, bool repeats, void *arg) {
    uint8_t **at = arg;
    fb_weight *w = &m->weights[index];
    if (repeats) {
        *w = w[-1];
        return;
    }
    const void *from = w->data;
    int64_t bytes = room(w);
    if (packs(w))
        pack(w, *at);
    else
        memcpy(*at, from, (size_t)fb_dtype_bytes(w->dtype, w->rows * w->cols));
    w->data = *at;
    *at += bytes;
    if (m->repacked[index])
        free(m->repacked[index]); /* a copy in another order of rows */
    else
        fb_map_release(from, (size_t)fb_dtype_bytes(w->dtype, w->rows * w->cols));
    m->repacked[index] = NULL;
}

static fb_status move(fb_model *m, bool (*moves)(const fb_weight *), fb_error *err) {
    int64_t bytes = 0;
    each(m, moves, add_room, &bytes);
    if (!bytes) return FB_OK;
    void *memory;
    FB_TRY(fb_memory_take("weights", bytes + LARGE_PAGE, &memory, err));
    m->packed = memory;
    uint8_t *at = (uint8_t *)(((uintptr_t)memory + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    (void)madvise(at, (size_t)bytes, MADV_HUGEPAGE);
    each(m, moves, move_one, &at);
    return FB_OK;
}

fb_status fb_model_pack(fb_model *m, fb_error *err) {
    int64_t floats = 0;
    each(m, crosses_lines, add_room, &floats);
    if (floats > 0 && floats <= FEW_FLOATS && move(m, packs_or_crosses, err) == FB_OK) return FB_OK;
    return move(m, packs, err); /* without room for the floats, too: they are only slower where they are */
}
