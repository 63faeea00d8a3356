#include <stdio.h>
#include <stdlib.h>

#include "arch/gguf_names.h"
#include "model/model.h"

#define NAME_SIZE 128

/* Which stored types may be weights. */
static bool weight_dtype(fb_stored_type type, fb_dtype *out) {
    static const struct {
        bool weight;
        fb_dtype dtype;
    } table[FB_STORED_TYPE_COUNT] = {
        [FB_STORED_F32] = {true, FB_F32},       [FB_STORED_F16] = {true, FB_F16},
        [FB_STORED_BF16] = {true, FB_BF16},     [FB_STORED_Q8_0] = {true, FB_Q8_0},
        [FB_STORED_Q4_0] = {true, FB_Q4_0},     [FB_STORED_Q4_1] = {true, FB_Q4_1},
        [FB_STORED_Q5_0] = {true, FB_Q5_0},     [FB_STORED_Q5_1] = {true, FB_Q5_1},
        [FB_STORED_Q4_K] = {true, FB_Q4_K},     [FB_STORED_Q5_K] = {true, FB_Q5_K},
        [FB_STORED_Q6_K] = {true, FB_Q6_K},     [FB_STORED_Q2_K] = {true, FB_Q2_K},
        [FB_STORED_Q3_K] = {true, FB_Q3_K},     [FB_STORED_IQ4_NL] = {true, FB_IQ4_NL},
        [FB_STORED_IQ4_XS] = {true, FB_IQ4_XS}, [FB_STORED_MXFP4] = {true, FB_MXFP4},
    };
    *out = table[type].dtype;
    return table[type].weight;
}

/* A slot's tensor in one layer, as the file has it. */
typedef struct source {
    char name[NAME_SIZE];
    const fb_tensor_entry *entry; /* NULL: missing */
    fb_row_order order;
    bool expert; /* it is the tensor of one expert */
} source;

/* A name with a number in place of `mark`, if it has that. */
static void put_number(const char *from, const char *mark, int64_t number, char *name, size_t size) {
    const char *hole = strstr(from, mark);
    if (hole)
        snprintf(name, size, "%.*s%lld%s", (int)(hole - from), from, (long long)number, hole + strlen(mark));
    else
        snprintf(name, size, "%s", from);
}

/* `expert`: for a slot of experts of which each has a tensor, which one. */
static void find_source(const fb_model *m, const fb_slot *slot, int64_t layer, int64_t expert, source *from) {
    *from = (source){.order = slot->transposed && !m->gguf ? FB_ROWS_TRANSPOSED : FB_ROWS_SAME};
    put_number(slot->name, "{}", layer, from->name, sizeof from->name);
    if (slot->experts && !m->gguf) {
        char name[NAME_SIZE];
        memcpy(name, from->name, sizeof name);
        put_number(name, "[]", expert, from->name, sizeof from->name);
        from->expert = true;
    }
    if (m->gguf) {
        char name[FB_GGUF_NAME_SIZE];
        if (!fb_gguf_name(m->spec->architecture, from->name, name, &from->order)) return;
        memcpy(from->name, name, sizeof name);
    }
    from->entry = fb_tensors_find(m->tensors, from->name);
    const char *prefix = m->spec->optional_prefix;
    if (!from->entry && prefix && strncmp(from->name, prefix, strlen(prefix)) == 0)
        from->entry = fb_tensors_find(m->tensors, from->name + strlen(prefix));
}

/* Matrices may be quantised, vectors not: they are small, and kernels read them as floats. */
static fb_status check_dtype(const char *path, const fb_slot *slot, const source *from, fb_dtype *out,
                             fb_error *err) {
    if (weight_dtype(from->entry->type, out) && (!slot->vector || fb_dtype_is_float(*out))) return FB_OK;
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: dtype %s (F32, F16 or BF16%s)", path, from->name,
                   fb_stored_name(from->entry->type), slot->vector ? "" : ", or quantised");
}

static fb_status check_shape(const char *path, const fb_slot *slot, const source *from, fb_error *err) {
    const fb_tensor_entry *entry = from->entry;
    bool transposed = from->order == FB_ROWS_TRANSPOSED;
    int64_t rows = slot->of && !slot->vector ? slot->of : slot->rows;
    int64_t cols = slot->of && slot->vector ? slot->of : slot->cols;
    int64_t first = transposed ? cols : rows, second = transposed ? rows : cols;
    /* All experts in one tensor have three dimensions. */
    bool whole = slot->experts && !from->expert;
    if (slot->experts) first /= slot->experts;
    bool same = slot->vector ? entry->dims == 1 && entry->shape[0] == cols
                : whole ? entry->dims == 3 && entry->shape[0] == slot->experts && entry->shape[1] == first &&
                              entry->shape[2] == second
                        : entry->dims == 2 && entry->shape[0] == first && entry->shape[1] == second;
    if (same) return FB_OK;
    char have[96], want[96];
    fb_tensor_shape_text(entry, have, sizeof have);
    if (slot->vector)
        snprintf(want, sizeof want, "[%lld]", (long long)cols);
    else if (whole)
        snprintf(want, sizeof want, "[%lld, %lld, %lld]", (long long)slot->experts, (long long)first,
                 (long long)second);
    else
        snprintf(want, sizeof want, "[%lld, %lld]", (long long)first, (long long)second);
    return fb_fail(err, FB_ERROR_FILE, "%s: %s: shape %s (the config says %s)", path, entry->name, have,
                   want);
}

/* A float32 copy of a vector with 1 added; it belongs to the model. */
static fb_status add_one(fb_model *m, fb_weight *w, fb_error *err) {
    int64_t bytes = w->cols * (int64_t)sizeof(float);
    float *copy = malloc((size_t)bytes);
    if (!copy) return fb_fail_memory(err, "weights of a norm", bytes);
    for (int64_t i = 0; i < w->cols; i++) copy[i] = (float)(1 + fb_dtype_get(w->dtype, w->data, i));
    w->data = copy;
    w->dtype = FB_F32;
    w->mapped = false;
    fb_status status = fb_model_attach(m, free, copy, err);
    if (status != FB_OK) free(copy);
    return status;
}

/* The tensors of all experts but the first, which is bound already. */
static fb_status bind_experts(fb_model *m, const char *path, const fb_slot *slot, int64_t layer, fb_weight *w,
                              const fb_tensor_entry **used, fb_error *err) {
    int64_t bytes = slot->experts * (int64_t)sizeof *w->parts;
    const void **parts = malloc((size_t)bytes);
    if (!parts) return fb_fail_memory(err, "experts", bytes);
    fb_status status = fb_model_attach(m, free, (void *)parts, err);
    if (status != FB_OK) {
        free((void *)parts);
        return status;
    }
    parts[0] = w->data;
    w->parts = parts;
    for (int64_t e = 1; e < slot->experts; e++) {
        source from;
        fb_dtype dtype;
        find_source(m, slot, layer, e, &from);
        if (!from.entry) return fb_fail(err, FB_ERROR_FILE, "%s: %s: missing tensor", path, from.name);
        FB_TRY(check_dtype(path, slot, &from, &dtype, err));
        FB_TRY(check_shape(path, slot, &from, err));
        if (dtype != w->dtype)
            return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: dtype %s (%s, as expert 0 has)", path,
                           from.name, fb_stored_name(from.entry->type), fb_dtype_name(w->dtype));
        parts[e] = from.entry->data;
        used[e] = from.entry;
    }
    return FB_OK;
}

static fb_status bind_one(fb_model *m, const char *path, const fb_slot *slot, int64_t layer, int64_t index,
                          const fb_tensor_entry **used, fb_error *err) {
    source from;
    find_source(m, slot, layer, 0, &from);
    fb_weight *w = &m->weights[index];
    if (!from.entry) return fb_fail(err, FB_ERROR_FILE, "%s: %s: missing tensor", path, from.name);
    FB_TRY(check_dtype(path, slot, &from, &w->dtype, err));
    FB_TRY(check_shape(path, slot, &from, err));
    w->experts = slot->experts;
    w->rows = slot->rows;
    w->cols = slot->cols;
    w->data = from.entry->data + slot->first * fb_dtype_bytes(w->dtype, slot->vector ? 1 : w->cols);
    w->order = from.order;
    w->mapped = true;
    w->head_dim = m->spec->program.head_dim;
    m->info.parameters += w->rows * w->cols;
    m->parameters[w->dtype] += w->rows * w->cols;
    m->bytes[w->dtype] += fb_dtype_bytes(w->dtype, w->rows * w->cols);
    *used = from.entry;
    if (from.expert) return bind_experts(m, path, slot, layer, w, used, err);
    return slot->plus_one && !m->gguf ? add_one(m, w, err) : FB_OK;
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

static uint32_t dtypes_of(const fb_weight *weights, int64_t layers) {
    uint32_t dtypes = 0;
    for (int64_t layer = 0; layer < layers; layer++) dtypes |= 1u << weights[layer].dtype;
    return dtypes;
}

void fb_model_note_dtypes(fb_model *m) {
    fb_program *p = &m->spec->program;
    for (int32_t s = 0; s < p->slot_count; s++)
        p->slots[s].dtypes = dtypes_of(m->weights + s * p->layers, p->layers);
}

fb_status fb_model_bind(fb_model *m, const char *path, fb_error *err) {
    const fb_program *p = &m->spec->program;
    int64_t total = p->slot_count * p->layers, count = 0, tensors = total;
    for (int32_t s = 0; s < p->slot_count; s++) tensors += p->layers * p->slots[s].experts;
    m->weights = calloc((size_t)total, sizeof *m->weights);
    const fb_tensor_entry **used = calloc((size_t)tensors, sizeof *used);
    fb_status status = m->weights && used ? FB_OK : fb_fail_memory(err, path, total * 64);
    for (int32_t s = 0; s < p->slot_count && status == FB_OK; s++) {
        const fb_slot *slot = &p->slots[s];
        fb_weight *weights = m->weights + s * p->layers;
        for (int64_t layer = 0; layer < (slot->per_layer ? p->layers : 1) && status == FB_OK; layer++) {
            status = bind_one(m, path, slot, layer, s * p->layers + layer, &used[count], err);
            count += slot->experts && !m->gguf ? slot->experts : 1;
        }
        for (int64_t layer = 1; layer < p->layers && !slot->per_layer; layer++) weights[layer] = weights[0];
    }
    if (status == FB_OK) status = check_unused(m, path, used, count, err);
    if (status == FB_OK) fb_model_note_dtypes(m);
    free((void *)used);
    return status;
}
