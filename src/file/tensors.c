#include "file/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/tensors_table.h"

static const struct {
    const char *name;
    int64_t block, bytes; /* elements and bytes of a block */
} stored_types[FB_STORED_TYPE_COUNT] = {
    [FB_STORED_F64] = {"F64", 1, 8},         [FB_STORED_F32] = {"F32", 1, 4},
    [FB_STORED_F16] = {"F16", 1, 2},         [FB_STORED_BF16] = {"BF16", 1, 2},
    [FB_STORED_I64] = {"I64", 1, 8},         [FB_STORED_I32] = {"I32", 1, 4},
    [FB_STORED_I16] = {"I16", 1, 2},         [FB_STORED_I8] = {"I8", 1, 1},
    [FB_STORED_U8] = {"U8", 1, 1},           [FB_STORED_BOOL] = {"BOOL", 1, 1},
    [FB_STORED_Q8_0] = {"Q8_0", 32, 34},     [FB_STORED_Q4_0] = {"Q4_0", 32, 18},
    [FB_STORED_Q4_1] = {"Q4_1", 32, 20},     [FB_STORED_Q5_0] = {"Q5_0", 32, 22},
    [FB_STORED_Q5_1] = {"Q5_1", 32, 24},     [FB_STORED_Q4_K] = {"Q4_K", 256, 144},
    [FB_STORED_Q5_K] = {"Q5_K", 256, 176},   [FB_STORED_Q6_K] = {"Q6_K", 256, 210},
    [FB_STORED_Q2_K] = {"Q2_K", 256, 84},    [FB_STORED_Q3_K] = {"Q3_K", 256, 110},
    [FB_STORED_IQ4_NL] = {"IQ4_NL", 32, 18}, [FB_STORED_IQ4_XS] = {"IQ4_XS", 256, 136},
    [FB_STORED_MXFP4] = {"MXFP4", 32, 17},
};

const char *fb_stored_name(fb_stored_type type) { return stored_types[type].name; }
int64_t fb_stored_block(fb_stored_type type) { return stored_types[type].block; }

int64_t fb_stored_bytes(fb_stored_type type, int64_t count) {
    int64_t bytes;
    bool over = __builtin_mul_overflow(count / stored_types[type].block, stored_types[type].bytes, &bytes);
    return over ? INT64_MAX : bytes;
}

void fb_tensors_free(fb_tensor_table *table) {
    if (!table) return;
    for (int64_t i = 0; i < table->shard_count; i++) fb_tensors_free(table->shards[i]);
    free(table->shards);
    free(table->entries);
    free(table->names);
    fb_json_free(table->header);
    fb_map_close(&table->map);
    free(table);
}

fb_status fb_tensors_check_files(const fb_tensor_table *table, fb_error *err) {
    for (int64_t i = 0; i < table->shard_count; i++) FB_TRY(fb_tensors_check_files(table->shards[i], err));
    return fb_map_check(&table->map, err);
}

static int compare_names(const void *left, const void *right) {
    return strcmp(((const fb_tensor_entry *)left)->name, ((const fb_tensor_entry *)right)->name);
}

void fb_tensors_sort(fb_tensor_table *table) {
    qsort(table->entries, (size_t)table->count, sizeof *table->entries, compare_names);
}

int64_t fb_tensors_count(const fb_tensor_table *table) { return table->count; }

const fb_tensor_entry *fb_tensors_at(const fb_tensor_table *table, int64_t index) {
    return index >= 0 && index < table->count ? &table->entries[index] : NULL;
}

const fb_tensor_entry *fb_tensors_find(const fb_tensor_table *table, const char *name) {
    const fb_tensor_entry key = {.name = name};
    return bsearch(&key, table->entries, (size_t)table->count, sizeof key, compare_names);
}

const char *fb_tensor_shape_text(const fb_tensor_entry *entry, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int32_t d = 0; d < entry->dims && used < size; d++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%lld", d ? ", " : "", (long long)entry->shape[d]);
    if (used < size) snprintf(text + used, size - used, "]");
    return text;
}

/* ---- checks that the readers share --------------------------------------------------------------------- */

bool fb_tensors_good_name(const char *name) {
    bool good = *name != 0;
    for (; *name; name++) good = good && (unsigned char)*name >= 0x20 && *name != 0x7f;
    return good;
}

static int compare_ranges(const void *left, const void *right) {
    const fb_tensor_range *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

fb_status fb_tensors_check_ranges(const char *what, fb_tensor_range *ranges, int64_t count, int64_t slack,
                                  int64_t *end, fb_error *err) {
    qsort(ranges, (size_t)count, sizeof *ranges, compare_ranges);
    *end = 0;
    for (int64_t i = 0; i < count; i++) {
        const fb_tensor_range *r = &ranges[i];
        if (r->begin < *end)
            return fb_fail(err, FB_ERROR_FILE,
                           "%s: tensors %.100s and %.100s overlap: %lld (the first ends at %lld)", what,
                           ranges[i - 1].name, r->name, (long long)r->begin, (long long)*end);
        if (r->begin - *end > slack)
            return fb_fail(err, FB_ERROR_FILE, "%s: hole in the data before tensor %.100s: %lld to %lld",
                           what, r->name, (long long)*end, (long long)r->begin);
        *end = r->end;
    }
    return FB_OK;
}
