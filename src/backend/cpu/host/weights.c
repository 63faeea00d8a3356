/* Weights in the layout of the CPU kernels.
 *
 * Floats stay in the mapped file. Two kinds are copied: floats that the file has in another order, and, if
 * they are few, floats that do not start at a cache line. Quantised matrices of a linear are packed
 * (base/pack.h). All copies lie in one allocation, in large pages if the system has them. The file's pages
 * are released as they are copied, so that memory holds each weight once. */
#include <stdlib.h>
#include <sys/mman.h>

#include "backend/cpu/host/host.h"
#include "base/memory.h"
#include "base/pack.h"
#include "base/screen.h"
#include "file/map.h"

/* A large page. Also the alignment that keeps matrices from sharing a cache line. */
#define LARGE_PAGE (2 << 20)
#define LINE       64

/* Floats of at most this many bytes in all are moved to cache line boundaries. Loads across cache lines cost
 * a model in the L3 cache a seventh of its speed. From memory a copy gains nothing. */
#define FEW_FLOATS ((int64_t)64 << 20)

typedef struct cpu_loaded {
    fb_loaded base;
    const fb_bound *file;
    bool move_floats; /* move the floats that do not start at a cache line */
    void *memory;
    uint8_t *at;      /* while loading: address of the next weight */
    int64_t *moves;   /* [count]: indices of the weights that are copied … */
    uint8_t **places; /* … and their new addresses */
    int64_t move_count;
    fb_screen *screen; /* screen of the head; NULL: nobody asked for it, or it cannot have one */
} cpu_loaded;

#define MATRIX_KINDS                                                                                         \
    (1ull << FB_OP_LINEAR | 1ull << FB_OP_LINEAR_GROUP | 1ull << FB_OP_HEAD_ARGMAX |                         \
     1ull << FB_OP_EXPERT_LINEAR | 1ull << FB_OP_EXPERT_GROUP)

/* Whether a linear, or a fused op with a linear, reads the slot as its matrix. */
static bool is_matrix(const fb_op *op, int32_t slot) {
    if (!(MATRIX_KINDS >> op->kind & 1)) return false;
    for (int k = 0; k < FB_MAX_WEIGHTS; k += 4)
        if (op->weights[k] == slot) return true;
    return false;
}

static bool read_by_linear(const fb_program *p, int32_t slot) {
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            if (is_matrix(&p->ops[s][i], slot)) return true;
    return false;
}

static bool crosses_lines(const fb_weight *w) {
    return fb_dtype_is_float(w->dtype) && (uintptr_t)w->data % LINE != 0;
}

static int64_t bytes_of(const fb_weight *w) { return fb_dtype_bytes(w->dtype, w->rows * w->cols); }

static bool packs(const fb_weight *w, bool linear) { return linear && fb_pack_has(w->dtype); }

static bool moves(const cpu_loaded *l, const fb_weight *w, bool linear) {
    if (!w->data) return false;
    return w->order != FB_ROWS_SAME || packs(w, linear) ||
           (l->move_floats && linear && !w->parts && crosses_lines(w));
}

/* Bytes of a weight after it is copied. */
static int64_t loaded_bytes(const fb_weight *w, bool linear) {
    int64_t count = w->experts ? w->experts : 1;
    int64_t bytes =
        packs(w, linear) ? count * fb_pack_bytes(w->dtype, w->rows / count, w->cols) : bytes_of(w);
    return (bytes + LINE - 1) / LINE * LINE;
}

/* ---- which weights move, and where to ---- */

/* Calls `visit` for each weight of the file; once for a slot that is not per layer. */
typedef void (*visit_fn)(cpu_loaded *l, int64_t index, bool linear, int64_t *sum);

static int64_t each(cpu_loaded *l, visit_fn visit) {
    const fb_program *p = l->file->program;
    int64_t sum = 0;
    for (int32_t slot = 0; slot < p->slot_count; slot++) {
        bool linear = read_by_linear(p, slot);
        for (int64_t layer = 0; layer < (p->slots[slot].per_layer ? p->layers : 1); layer++)
            visit(l, slot * p->layers + layer, linear, &sum);
    }
    return sum;
}

static void add_crossing(cpu_loaded *l, int64_t index, bool linear, int64_t *sum) {
    const fb_weight *w = &l->file->weights[index];
    if (linear && w->data && !w->parts && crosses_lines(w)) *sum += loaded_bytes(w, linear);
}

static void add_moving(cpu_loaded *l, int64_t index, bool linear, int64_t *sum) {
    const fb_weight *w = &l->file->weights[index];
    if (moves(l, w, linear)) *sum += loaded_bytes(w, linear);
}

static void place(cpu_loaded *l, int64_t index, bool linear, int64_t *sum) {
    const fb_weight *from = &l->file->weights[index];
    fb_weight *to = &l->base.table[index];
    (void)sum;
    *to = *from;
    if (!moves(l, from, linear)) return;
    l->moves[l->move_count] = index;
    l->places[l->move_count++] = l->at;
    to->data = l->at;
    to->order = FB_ROWS_SAME;
    to->mapped = false;
    to->parts = NULL;
    to->packed = packs(from, linear);
    l->at += loaded_bytes(from, linear);
}

static fb_status take_memory(cpu_loaded *l, fb_error *err) {
    int64_t bytes = each(l, add_moving);
    if (!bytes) return FB_OK;
    FB_TRY(fb_memory_take("weights", bytes + LARGE_PAGE, &l->memory, err));
    l->at = (uint8_t *)(((uintptr_t)l->memory + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    (void)madvise(l->at, (size_t)bytes, MADV_HUGEPAGE);
    return FB_OK;
}

/* ---- loading ---- */

static void release(const fb_weight *w) {
    for (int64_t e = 0; w->mapped && e < (w->parts ? w->experts : 1); e++) {
        fb_weight one = w->parts ? fb_weight_expert(w, e) : *w;
        fb_map_release(one.data, (size_t)bytes_of(&one));
    }
}

static void move_one(const cpu_loaded *l, int64_t index, uint8_t *to) {
    const fb_weight *from = &l->file->weights[index];
    if (l->base.table[index].packed)
        fb_pack(from, to);
    else
        fb_weight_copy(from, 0, from->rows, to);
    release(from);
}

typedef struct loading {
    cpu_loaded *loaded;
    atomic_llong next;
} loading;

/* Each worker takes the next weight when it is free, because weights differ in size. */
static void move_some(void *arg, int32_t worker) {
    loading *work = arg;
    const cpu_loaded *l = work->loaded;
    (void)worker;
    for (;;) {
        int64_t i = atomic_fetch_add(&work->next, 1);
        if (i >= l->move_count) return;
        move_one(l, l->moves[i], l->places[i]);
    }
}

static fb_status load(cpu_loaded *l, fb_cpu_device *d, int32_t threads, fb_error *err) {
    const fb_program *p = l->file->program;
    int64_t count = p->slot_count * p->layers;
    l->base.table = calloc((size_t)count, sizeof *l->base.table);
    l->moves = calloc((size_t)count, sizeof *l->moves);
    l->places = calloc((size_t)count, sizeof *l->places);
    if (!l->base.table || !l->moves || !l->places) return fb_fail_memory(err, "weights", count * 128);
    int64_t floats = each(l, add_crossing);
    l->move_floats = floats > 0 && floats <= FEW_FLOATS;
    /* If memory is too short to copy the floats, they stay in the file: they are only slower there. */
    if (l->move_floats && take_memory(l, NULL) != FB_OK) l->move_floats = false;
    if (!l->memory) FB_TRY(take_memory(l, err));
    each(l, place);
    for (int32_t slot = 0; slot < p->slot_count; slot++)
        for (int64_t layer = 1; layer < p->layers && !p->slots[slot].per_layer; layer++)
            l->base.table[slot * p->layers + layer] = l->base.table[slot * p->layers];
    loading work = {.loaded = l};
    FB_TRY(fb_cpu_threads(d, threads, &threads, err));
    fb_pool_run(d->pool, threads, move_some, &work);
    return FB_OK;
}

static void free_loaded(cpu_loaded *l) {
    if (l->screen) fb_screen_end(l->screen);
    free(l->screen);
    free(l->memory);
    free(l->moves);
    free((void *)l->places);
    free(l->base.table);
    free(l);
}

fb_status fb_cpu_load(fb_device *device, const fb_bound *file, int32_t threads, fb_loaded **out,
                      fb_error *err) {
    cpu_loaded *l = calloc(1, sizeof *l);
    if (!l) return fb_fail_memory(err, "weights", sizeof *l);
    l->file = file;
    fb_status status = load(l, (fb_cpu_device *)device, threads, err);
    l->file = NULL; /* belongs to the caller */
    if (status != FB_OK) {
        free_loaded(l);
        return status;
    }
    *out = &l->base;
    return FB_OK;
}

void fb_cpu_unload(fb_device *device, fb_loaded *loaded) {
    (void)device;
    free_loaded((cpu_loaded *)loaded);
}

/* ---- the head's screen, for greedy steps that want only the best token ---- */

typedef struct filling {
    fb_cpu_device *device;
    int32_t threads;
    const fb_isa *isa;
    fb_call call;
} filling;

static void fill_worker(void *arg, int32_t worker) {
    const filling *f = arg;
    f->isa->screen(&f->call, &(fb_worker){.index = worker, .count = f->threads});
}

static void fill_screen(void *arg) {
    filling *f = arg;
    fb_pool_run(f->device->pool, f->threads, fill_worker, f);
}

static cpu_loaded *loaded_of(fb_device *device, const fb_weight *table) {
    for (fb_loaded *l = device->loaded; l; l = l->next)
        if (l->table == table) return (cpu_loaded *)l;
    return NULL;
}

fb_status fb_cpu_screen(fb_device *device, const fb_bound *bound, int32_t threads, const char *isa,
                        bool *ready) {
    const fb_program *p = bound->program;
    cpu_loaded *l = loaded_of(device, bound->weights);
    int32_t slot = fb_program_head(p);
    filling f = {.device = (fb_cpu_device *)device};
    if (!l || slot == FB_NONE || !fb_screen_fits(&l->base.table[slot * p->layers])) return FB_OK;
    fb_weight *head = &l->base.table[slot * p->layers];
    FB_TRY(fb_isa_find(isa, &f.isa, NULL));
    FB_TRY(fb_cpu_threads(f.device, threads, &f.threads, NULL));
    if (!l->screen) {
        l->screen = malloc(sizeof *l->screen);
        if (!l->screen) return FB_ERROR_MEMORY;
        fb_screen_start(l->screen, head);
        for (int64_t layer = 0; layer < p->layers; layer++) head[layer].screen = l->screen;
    }
    f.call.weights[0] = *head;
    fb_screen_fill(l->screen, fill_screen, &f);
    *ready = l->screen->ready;
    return l->screen->memory ? FB_OK : FB_ERROR_MEMORY;
}
