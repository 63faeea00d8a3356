#include "backend/cuda/host/weights.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/pack.h"
#include "base/quant.h"

/* Copies that change the layout go through this much host memory at a time. */
#define STAGE_BYTES (8 << 20)

/* One tensor on a device. */
typedef struct shared {
    const void *host;
    int64_t rows, cols;
    int32_t device;
    int64_t users;
    fb_weight weight;
    struct shared *next;
} shared;

struct fb_cuda_weights {
    int64_t count;
    fb_weight *table;
    shared **used; /* [count], NULL where absent */
};

static shared *everything;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- one tensor -----------------------------------------------------------------------------------------
 */

/* What the kernels read it as: quantised types that they do not have are decoded to float16, float64 to
 * float32. */
static fb_dtype device_dtype(fb_dtype dtype) {
    if (fb_pack_has(dtype)) return dtype;
    if (dtype == FB_F64) return FB_F32;
    return fb_dtype_is_float(dtype) ? dtype : FB_F16;
}

/* A row of blocks in file order as integers and scales. */
static void split_row(fb_dtype dtype, const uint8_t *row, int64_t blocks, uint8_t *quants, uint8_t *scales) {
    int64_t block = fb_dtype_bytes(dtype, 32);
    for (int64_t b = 0; b < blocks; b++) {
        memcpy(scales + 2 * b, row + b * block, 2);
        memcpy(quants + b * (block - 2), row + b * block + 2, (size_t)(block - 2));
    }
}

typedef struct staging {
    fb_gpu *gpu;
    uint8_t *device;
    uint8_t *stage[2]; /* of the quants and of the scales; or of the elements */
    uint8_t *row;      /* one, in file order */
} staging;

/* Quants of all rows, then scales of all rows; `rows` at a time. */
static fb_status copy_split(const staging *s, const fb_weight *w, int64_t rows, fb_error *err) {
    int64_t blocks = w->cols / 32, quant = fb_dtype_bytes(w->dtype, 32) - 2,
            row_bytes = fb_dtype_bytes(w->dtype, w->cols);
    uint8_t *scales = s->device + w->rows * blocks * quant;
    for (int64_t first = 0; first < w->rows; first += rows) {
        int64_t count = w->rows - first < rows ? w->rows - first : rows;
        for (int64_t i = 0; i < count; i++) {
            const uint8_t *from = (const uint8_t *)w->data + (first + i) * row_bytes;
            if (w->packed) {
                fb_unpack_row(w->dtype, w->data, w->cols, first + i, s->row);
                from = s->row;
            }
            split_row(w->dtype, from, blocks, s->stage[0] + i * blocks * quant, s->stage[1] + i * blocks * 2);
        }
        FB_TRY(fb_gpu_upload(s->gpu, s->device + first * blocks * quant, s->stage[0], count * blocks * quant,
                             err));
        FB_TRY(fb_gpu_upload(s->gpu, scales + first * blocks * 2, s->stage[1], count * blocks * 2, err));
        FB_TRY(fb_gpu_wait(s->gpu, err));
    }
    return FB_OK;
}

static fb_status copy_decoded(const staging *s, const fb_weight *w, fb_dtype to, int64_t rows,
                              fb_error *err) {
    int64_t size = fb_dtype_size(to);
    float *floats = (float *)(void *)s->row;
    for (int64_t first = 0; first < w->rows; first += rows) {
        int64_t count = w->rows - first < rows ? w->rows - first : rows;
        for (int64_t i = 0; i < count; i++) {
            fb_weight_row(w, first + i, 0, w->cols, floats);
            for (int64_t k = 0; k < w->cols; k++)
                fb_dtype_set(to, s->stage[0], i * w->cols + k, (double)floats[k]);
        }
        FB_TRY(fb_gpu_upload(s->gpu, s->device + first * w->cols * size, s->stage[0], count * w->cols * size,
                             err));
        FB_TRY(fb_gpu_wait(s->gpu, err));
    }
    return FB_OK;
}

static fb_status copy_through_stage(fb_gpu *gpu, const fb_weight *w, fb_weight *to, fb_error *err) {
    int64_t row_bytes = w->cols * 4; /* of any type that comes here, and of its decoded floats */
    int64_t rows = STAGE_BYTES / row_bytes < 1 ? 1 : STAGE_BYTES / row_bytes;
    uint8_t *memory = malloc((size_t)(row_bytes * (2 * rows + 1)));
    if (!memory) return fb_fail_memory(err, "copy of weights", row_bytes * (2 * rows + 1));
    staging s = {gpu,
                 (uint8_t *)(uintptr_t)to->data,
                 {memory, memory + row_bytes * rows},
                 memory + 2 * row_bytes * rows};
    fb_status status =
        fb_pack_has(w->dtype) ? copy_split(&s, w, rows, err) : copy_decoded(&s, w, to->dtype, rows, err);
    free(memory);
    return status;
}

static fb_status copy_tensor(fb_gpu *gpu, const fb_weight *w, fb_weight *to, fb_error *err) {
    *to = (fb_weight){
        .dtype = device_dtype(w->dtype), .rows = w->rows, .cols = w->cols, .packed = fb_pack_has(w->dtype)};
    int64_t bytes = fb_dtype_bytes(to->dtype, w->rows * w->cols);
    void *memory;
    FB_TRY(fb_gpu_take(gpu, "weights", bytes, &memory, err));
    to->data = memory;
    fb_status status = to->dtype == w->dtype && !to->packed ? fb_gpu_upload(gpu, memory, w->data, bytes, err)
                                                            : copy_through_stage(gpu, w, to, err);
    if (status != FB_OK) fb_gpu_give(gpu, memory);
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------------------
 */

/* The tensor on the device, copied if it is not there yet; the caller holds the lock. */
static fb_status find(fb_gpu *gpu, int32_t device, const fb_weight *w, shared **out, fb_error *err) {
    for (shared *s = everything; s; s = s->next)
        if (s->host == w->data && s->rows == w->rows && s->cols == w->cols && s->device == device) {
            s->users++;
            *out = s;
            return FB_OK;
        }
    shared *s = calloc(1, sizeof *s);
    if (!s) return fb_fail_memory(err, "weights", sizeof *s);
    *s = (shared){.host = w->data, .rows = w->rows, .cols = w->cols, .device = device, .users = 1};
    fb_status status = copy_tensor(gpu, w, &s->weight, err);
    if (status != FB_OK) {
        free(s);
        return status;
    }
    s->next = everything;
    everything = s;
    *out = s;
    return FB_OK;
}

static void let_go(fb_gpu *gpu, shared *s) {
    if (--s->users) return;
    for (shared **at = &everything; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    fb_gpu_give(gpu, (void *)(uintptr_t)s->weight.data);
    free(s);
}

void fb_cuda_weights_give(fb_gpu *gpu, fb_cuda_weights *w) {
    if (!w) return;
    pthread_mutex_lock(&lock);
    for (int64_t i = 0; w->used && i < w->count; i++)
        if (w->used[i]) let_go(gpu, w->used[i]);
    pthread_mutex_unlock(&lock);
    free(w->used);
    free(w->table);
    free(w);
}

static fb_status fill(fb_gpu *gpu, int32_t device, const fb_bound *bound, fb_cuda_weights *w, fb_error *err) {
    int64_t layers = bound->program->layers;
    for (int64_t i = 0; i < w->count; i++) {
        const fb_weight *from = &bound->weights[i];
        if (!from->data) continue;
        if (i % layers && from->data == from[-1].data) { /* not one a layer */
            w->table[i] = w->table[i - 1];
            continue;
        }
        FB_TRY(find(gpu, device, from, &w->used[i], err));
        w->table[i] = w->used[i]->weight;
    }
    return fb_gpu_wait(gpu, err);
}

fb_status fb_cuda_weights_take(fb_gpu *gpu, int32_t device, const fb_bound *bound, fb_cuda_weights **out,
                               fb_error *err) {
    *out = NULL;
    int64_t count = bound->program->slot_count * bound->program->layers;
    fb_cuda_weights *w = calloc(1, sizeof *w);
    if (w) {
        w->count = count;
        w->table = calloc((size_t)count, sizeof *w->table);
        w->used = calloc((size_t)count, sizeof(void *));
    }
    if (!w || !w->table || !w->used) {
        fb_cuda_weights_give(gpu, w);
        return fb_fail_memory(err, "weights", count * (int64_t)sizeof(fb_weight));
    }
    pthread_mutex_lock(&lock);
    fb_status status = fill(gpu, device, bound, w, err);
    pthread_mutex_unlock(&lock);
    if (status != FB_OK) {
        fb_cuda_weights_give(gpu, w);
        return status;
    }
    *out = w;
    return FB_OK;
}

const fb_weight *fb_cuda_weights_table(const fb_cuda_weights *w) { return w->table; }
