#include <stdio.h>
#include <stdlib.h>

#include "model/model.h"

/* Which stored types may be weights. */
static bool weight_dtype(fb_stored_type type, fb_dtype *out) {
    switch (type) {
    case FB_STORED_F32:
        *out = FB_F32;
        return true;
    case FB_STORED_F16:
        *out = FB_F16;
        return true;
    case FB_STORED_BF16:
        *out = FB_BF16;
        return true;
    default:
        return false;
    }
}

/* A slot's tensor name in one layer. */
static void tensor_name(const fb_slot *slot, int64_t layer, char *name, size_t size) {
    const char *hole = strstr(slot->name, "{}");
    if (hole)
        snprintf(name, size, "%.*s%lld%s", (int)(hole - slot->name), slot->name, (long long)layer, hole + 2);
    else
        snprintf(name, size, "%s", slot->name);
}

static const fb_tensor_entry *find(const fb_model *m, const char *name) {
    const fb_tensor_entry *entry = fb_tensors_find(m->tensors, name);
    const char *prefix = m->spec->optional_prefix;
    if (!entry && prefix && strncmp(name, prefix, strlen(prefix)) == 0)
        entry = fb_tensors_find(m->tensors, name + strlen(prefix));
    return entry;
}

static fb_status check_shape(const char *path, const fb_slot *slot, const fb_tensor_entry *entry,
                             fb_error *err) {
    int64_t first = slot->transposed ? slot->cols : slot->rows,
            second = slot->transposed ? slot->rows : slot->cols;
    bool same = slot->vector ? entry->dims == 1 && entry->shape[0] == slot->cols
                             : entry->dims == 2 && entry->shape[0] == first && entry->shape[1] == second;
    if (same) return FB_OK;
    char have[96], want[96];
    fb_tensor_shape_text(entry, have, sizeof have);
    if (slot->vector)
        snprintf(want, sizeof want, "[%lld]", (long long)slot->cols);
    else
        snprintf(want, sizeof want, "[%lld, %lld]", (long long)first, (long long)second);
    return fb_fail(err, FB_ERROR_FILE, "%s: %s: shape %s (the config says %s)", path, entry->name, have,
                   want);
}

/* A copy of a matrix with rows and columns exchanged; blocks of 32 x 32 keep both sides in cache. */
static void *transpose(const uint8_t *from, int64_t rows, int64_t cols, int64_t size) {
    uint8_t *to = malloc((size_t)(rows * cols * size));
    if (!to) return NULL;
    for (int64_t r0 = 0; r0 < rows; r0 += 32)
        for (int64_t c0 = 0; c0 < cols; c0 += 32)
            for (int64_t r = r0; r < rows && r < r0 + 32; r++)
                for (int64_t c = c0; c < cols && c < c0 + 32; c++)
                    memcpy(to + (c * rows + r) * size, from + (r * cols + c) * size, (size_t)size);
    return to;
}

static fb_status bind_one(fb_model *m, const char *path, const fb_slot *slot, int64_t layer, int64_t index,
                          const fb_tensor_entry **used, fb_error *err) {
    char name[128];
    tensor_name(slot, layer, name, sizeof name);
    const fb_tensor_entry *entry = find(m, name);
    fb_weight *w = &m->weights[index];
    if (!entry) return fb_fail(err, FB_ERROR_FILE, "%s: %s: missing tensor", path, name);
    if (!weight_dtype(entry->type, &w->dtype))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: dtype %s (F32, F16 or BF16)", path, name,
                       fb_stored_name(entry->type));
    FB_TRY(check_shape(path, slot, entry, err));
    w->rows = slot->rows;
    w->cols = slot->cols;
    w->data = entry->data;
    if (slot->transposed) {
        w->data = m->repacked[index] =
            transpose(entry->data, slot->cols, slot->rows, fb_dtype_size(w->dtype));
        if (!w->data) return fb_fail_memory(err, name, fb_dtype_bytes(w->dtype, entry->count));
    }
    m->info.parameters += entry->count;
    m->info.weights[w->dtype] += entry->count;
    m->info.weight_bytes[w->dtype] += fb_dtype_bytes(w->dtype, entry->count);
    *used = entry;
    return FB_OK;
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t) * (const fb_tensor_entry *const *)a,
              y = (uintptr_t) * (const fb_tensor_entry *const *)b;
    return (x > y) - (x < y);
}

static bool is_ignored(const fb_spec *spec, const char *name) {
    size_t length = strlen(name);
    for (int i = 0; i < FB_MAX_IGNORED; i++) {
        size_t ending = spec->ignored[i] ? strlen(spec->ignored[i]) : 0;
        if (ending && ending <= length && strcmp(name + length - ending, spec->ignored[i]) == 0) return true;
    }
    return false;
}

static fb_status check_unused(const fb_model *m, const char *path, const fb_tensor_entry **used,
                              int64_t count, fb_error *err) {
    qsort((void *)used, (size_t)count, sizeof *used, by_address);
    for (int64_t i = 0; i < fb_tensors_count(m->tensors); i++) {
        const fb_tensor_entry *entry = fb_tensors_at(m->tensors, i);
        if (!is_ignored(m->spec, entry->name) &&
            !bsearch(&entry, (const void *)used, (size_t)count, sizeof *used, by_address))
            return fb_fail(err, FB_ERROR_UNSUPPORTED,
                           "%s: %s: unexpected tensor (nothing in a %s of this config reads it)", path,
                           entry->name, m->spec->architecture);
    }
    return FB_OK;
}

fb_status fb_model_bind(fb_model *m, const char *path, fb_error *err) {
    const fb_program *p = &m->spec->program;
    int64_t total = p->slot_count * p->layers, count = 0;
    m->weights = calloc((size_t)total, sizeof *m->weights);
    m->repacked = calloc((size_t)total, sizeof *m->repacked);
    const fb_tensor_entry **used = calloc((size_t)total, sizeof *used);
    fb_status status = m->weights && m->repacked && used ? FB_OK : fb_fail_memory(err, path, total * 64);
    for (int32_t s = 0; s < p->slot_count && status == FB_OK; s++) {
        const fb_slot *slot = &p->slots[s];
        fb_weight *weights = m->weights + s * p->layers;
        for (int64_t layer = 0; layer < (slot->per_layer ? p->layers : 1) && status == FB_OK; layer++)
            status = bind_one(m, path, slot, layer, s * p->layers + layer, &used[count++], err);
        for (int64_t layer = 1; layer < p->layers && !slot->per_layer; layer++) weights[layer] = weights[0];
    }
    if (status == FB_OK) status = check_unused(m, path, used, count, err);
    free((void *)used);
    return status;
}
