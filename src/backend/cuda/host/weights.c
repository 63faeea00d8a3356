/* Loads weights to a GPU, in the layout of kernel.h, straight from the file's mapping. Threads copy rows, in
 * the order in which ops read them, to page-locked memory. The device fetches them from there while the next
 * rows are copied. Blocks of Q8_0 and Q4_0 are split on the device, other quantised types are packed by the
 * threads that copy.
 *
 * Q8_0 and Q4_0 have kernels of their own, also as the persistent kernel, which has one kind of weights for
 * all layers. So where layers mix them with each other or with other types, they become records, too. */
#include <stdlib.h>

#include "backend/cuda/host/host.h"
#include "backend/cuda/load.h"
#include "base/pack_gpu.h"
#include "base/pool.h"
#include "base/quant.h"
#include "file/map.h"

/* Size of a staging buffer, at most: there are two of page-locked memory and one of device memory. */
#define STAGE_BYTES ((int64_t)32 << 20)
/* Threads that copy, at most; more gain nothing. */
#define MAX_THREADS 8
/* Fewer bytes than this are copied by one thread: to wake others would take longer. */
#define FEW_BYTES (1 << 16)

typedef struct cuda_loaded {
    fb_loaded base;
    void *memory; /* of all weights, on the device */
} cuda_loaded;

/* The state while weights are loaded. */
typedef struct loader {
    const fb_program *program;
    const fb_weight *file;
    fb_weight *table;
    fb_gpu *gpu;
    fb_cuda_context cx;
    fb_pool *pool;
    bool mixed;          /* mixes_types */
    int64_t stage_bytes; /* of each staging buffer: no more than the largest weight */
    uint8_t *stage[2];   /* staging buffers, page-locked */
    int filling;         /* the one that is filled next */
    uint8_t *blocks;     /* staging buffer on the device, for blocks as the file has them */
    /* The rows that the threads copy now. */
    const fb_weight *from, *to;
    int64_t first, count;
    int32_t threads;
    atomic_bool no_memory; /* one of them had none for a row */
} loader;

static int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/* The type on the device, and the bytes of a row there. */
static fb_dtype device_dtype(fb_dtype dtype) { return dtype == FB_F64 ? FB_F32 : dtype; }
static int64_t device_row(const fb_weight *to) {
    return fb_weight_is_records(to) ? fb_record_row_bytes(to->dtype, to->cols)
                                    : fb_dtype_bytes(to->dtype, to->cols);
}

/* ---- types ---- */

/* Whether the slot has a matrix that a linear of the layers multiplies. */
static bool is_matrix_of_layers(const fb_program *p, int32_t slot) {
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++)
        if (p->ops[FB_BODY][i].kind == FB_OP_LINEAR && p->ops[FB_BODY][i].weights[0] == slot) return true;
    return false;
}

/* Whether these matrices are of several types, all of them quantised. Devices before sm_90 have no persistent
 * kernel, and it has no experts. */
static bool mixes_types(const loader *l) {
    const fb_program *p = l->program;
    uint32_t types = 0;
    if (l->cx.limits->major < 9) return false;
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++)
        if (p->ops[FB_BODY][i].kind == FB_OP_EXPERT_LINEAR) return false;
    for (int32_t slot = 0; slot < p->slot_count; slot++)
        for (int64_t layer = 0; layer < p->layers && is_matrix_of_layers(p, slot); layer++)
            types |= 1u << l->file[slot * p->layers + layer].dtype;
    return !(types & ((1u << FB_FLOAT_COUNT) - 1)) && (types & (types - 1));
}

/* Whether the device gets the weight in the layout that only Q8_0 and Q4_0 have. */
static bool has_own_layout(const loader *l, int32_t slot, fb_dtype dtype) {
    return (dtype == FB_Q8_0 || dtype == FB_Q4_0) && !(l->mixed && is_matrix_of_layers(l->program, slot));
}

/* ---- the table ---- */

/* An earlier slot with the same tensors, or FB_NONE: a head may be the embedding. */
static int32_t twin_of(const loader *l, int32_t slot) {
    int64_t layers = l->program->layers;
    const fb_weight *w = &l->file[slot * layers];
    for (int32_t s = 0; s < slot; s++) {
        const fb_weight *other = &l->file[s * layers];
        if (w->data && other->data == w->data && other->rows == w->rows && other->cols == w->cols &&
            other->dtype == w->dtype && other->order == w->order)
            return s;
    }
    return FB_NONE;
}

/* Whether the weight is neither the layer's before nor another slot's. */
static bool is_new(const loader *l, int32_t slot, int64_t layer) {
    const fb_weight *w = &l->file[slot * l->program->layers + layer];
    return w->data && (layer == 0 || w->data != w[-1].data) && twin_of(l, slot) == FB_NONE;
}

/* Fills the table with addresses from `memory` on; NULL: only counts. Returns the bytes of all weights. */
static int64_t place(loader *l, uint8_t *memory) {
    int64_t layers = l->program->layers, bytes = 0;
    for (int32_t slot = 0; slot < l->program->slot_count; slot++) {
        int32_t twin = twin_of(l, slot);
        for (int64_t layer = 0; layer < layers; layer++) {
            const fb_weight *from = &l->file[slot * layers + layer];
            fb_weight *to = &l->table[slot * layers + layer];
            if (!from->data) continue;
            if (!is_new(l, slot, layer)) {
                *to = twin != FB_NONE ? l->table[twin * layers + layer] : to[-1];
                continue;
            }
            *to = (fb_weight){.data = memory ? memory + bytes : NULL,
                              .dtype = device_dtype(from->dtype),
                              .rows = from->rows,
                              .cols = from->cols,
                              .experts = from->experts,
                              .packed = has_own_layout(l, slot, from->dtype)};
            int64_t row = device_row(to), each = aligned(to->rows * row);
            int64_t stage = each < STAGE_BYTES ? each : STAGE_BYTES;
            if (stage < row) stage = aligned(row);
            if (stage > l->stage_bytes) l->stage_bytes = stage;
            bytes += each;
        }
    }
    return bytes;
}

/* ---- one weight ---- */

static void decode_row(const fb_weight *w, int64_t row, fb_dtype to, uint8_t *out, float *floats) {
    fb_weight_row(w, row, 0, w->cols, floats);
    for (int64_t k = 0; k < w->cols; k++) fb_dtype_set(to, out, k, (double)floats[k]);
}

static void pack_row(const fb_weight *w, int64_t row, uint8_t *out, void *blocks) {
    fb_weight_copy(w, row, 1, blocks);
    fb_record_pack(w->dtype, blocks, w->cols, out);
}

/* Copies a thread's share of the rows to the staging buffer, unchanged, packed or decoded. */
static void copy_share(void *arg, int32_t thread) {
    loader *l = arg;
    const fb_weight *w = l->from;
    int64_t begin, end, row_bytes = device_row(l->to);
    uint8_t *to = l->stage[l->filling];
    fb_pool_share(l->count, 1, thread, l->threads, &begin, &end);
    if (begin == end) return;
    bool records = fb_weight_is_records(l->to);
    if (l->to->dtype == w->dtype && !records) {
        fb_weight_copy(w, l->first + begin, end - begin, to + begin * row_bytes);
        return;
    }
    float *floats = malloc((size_t)w->cols * sizeof *floats);
    for (int64_t i = begin; i < end && floats; i++)
        if (records)
            pack_row(w, l->first + i, to + i * row_bytes, floats);
        else
            decode_row(w, l->first + i, l->to->dtype, to + i * row_bytes, floats);
    if (!floats) atomic_store(&l->no_memory, true);
    free(floats);
}

/* Uploads the staged rows: to their place, or, if packed, to where the device splits their blocks. */
static fb_status send_rows(loader *l, const fb_weight *to, fb_error *err) {
    int64_t row_bytes = device_row(to), bytes = l->count * row_bytes;
    uint8_t *data = (uint8_t *)(uintptr_t)to->data;
    if (!to->packed)
        return fb_gpu_upload(l->gpu, data + l->first * row_bytes, l->stage[l->filling], bytes, err);
    int64_t blocks = to->cols / 32, quants = fb_dtype_bytes(to->dtype, 32) - 2;
    FB_TRY(fb_gpu_upload(l->gpu, l->blocks, l->stage[l->filling], bytes, err));
    return fb_gpu_check(
        fb_cuda_split_blocks(l->blocks, l->count * blocks, (int)quants, data + l->first * blocks * quants,
                             data + to->rows * blocks * quants + l->first * blocks * 2, &l->cx),
        "splitting blocks", err);
}

static fb_status load_one(loader *l, const fb_weight *from, const fb_weight *to, fb_error *err) {
    int64_t row_bytes = device_row(to), most = l->stage_bytes / row_bytes;
    bool vector = from->rows == 1; /* a vector is copied whole, whatever its order */
    l->from = from;
    l->to = to;
    for (l->first = 0; l->first < from->rows; l->first += l->count) {
        l->count = from->rows - l->first < most ? from->rows - l->first : most;
        l->threads = vector || l->count * row_bytes < FEW_BYTES ? 1 : fb_pool_workers(l->pool);
        fb_pool_run(l->pool, l->threads, copy_share, l);
        if (atomic_load(&l->no_memory))
            return fb_fail_memory(err, "rows of a weight", from->cols * (int64_t)sizeof(float));
        FB_TRY(fb_gpu_wait(l->gpu, err)); /* for the upload of the other buffer */
        FB_TRY(send_rows(l, to, err));
        l->filling ^= 1;
    }
    for (int64_t e = 0; from->mapped && e < (from->parts ? from->experts : 1); e++) {
        fb_weight one = from->parts ? fb_weight_expert(from, e) : *from;
        fb_map_release(one.data, (size_t)fb_dtype_bytes(one.dtype, one.rows * one.cols));
    }
    return FB_OK;
}

/* ---- all of them ---- */

static fb_status load_all(loader *l, fb_error *err) {
    int64_t layers = l->program->layers;
    for (int32_t slot = 0; slot < l->program->slot_count; slot++)
        for (int64_t layer = 0; layer < layers; layer++)
            if (is_new(l, slot, layer))
                FB_TRY(load_one(l, &l->file[slot * layers + layer], &l->table[slot * layers + layer], err));
    return fb_gpu_wait(l->gpu, err);
}

static fb_status open_loader(loader *l, fb_error *err) {
    void *memory;
    int32_t cores = fb_pool_cores();
    FB_TRY(fb_pool_create(cores < MAX_THREADS ? cores : MAX_THREADS, &l->pool, err));
    FB_TRY(fb_gpu_take_host(l->gpu, "weights on their way", 2 * l->stage_bytes, &memory, err));
    l->stage[0] = memory;
    l->stage[1] = l->stage[0] + l->stage_bytes;
    FB_TRY(fb_gpu_take(l->gpu, "weights on their way", l->stage_bytes, &memory, err));
    l->blocks = memory;
    return FB_OK;
}

static void close_loader(loader *l) {
    fb_gpu_wait(l->gpu, NULL);
    fb_gpu_give(l->gpu, l->blocks);
    fb_gpu_give_host(l->gpu, l->stage[0]);
    fb_pool_free(l->pool);
}

static fb_status load(cuda_loaded *to, loader *l, fb_error *err) {
    int64_t count = l->program->slot_count * l->program->layers;
    to->base.table = l->table = calloc((size_t)count, sizeof *l->table);
    if (!l->table) return fb_fail_memory(err, "weights", count * (int64_t)sizeof *l->table);
    FB_TRY(fb_gpu_take(l->gpu, "weights", place(l, NULL), &to->memory, err));
    place(l, to->memory);
    FB_TRY(open_loader(l, err));
    return load_all(l, err);
}

void fb_cuda_unload(fb_device *device, fb_loaded *loaded) {
    cuda_loaded *l = (cuda_loaded *)loaded;
    fb_gpu_give(((fb_cuda_device *)device)->gpu, l->memory);
    free(l->base.table);
    free(l);
}

fb_status fb_cuda_load(fb_device *device, const fb_bound *file, int32_t threads, fb_loaded **out,
                       fb_error *err) {
    (void)threads;
    cuda_loaded *to = calloc(1, sizeof *to);
    if (!to) return fb_fail_memory(err, "weights", sizeof *to);
    loader l = {.program = file->program, .file = file->weights, .gpu = ((fb_cuda_device *)device)->gpu};
    fb_gpu_context(l.gpu, &l.cx);
    l.mixed = mixes_types(&l);
    fb_status status = load(to, &l, err);
    close_loader(&l);
    if (status != FB_OK) {
        fb_cuda_unload(device, &to->base);
        return status;
    }
    *out = &to->base;
    return FB_OK;
}
