/* A checkpoint of several files: model.safetensors.index.json says in its `weight_map` which tensor is in
 * which file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "file/safetensors.h"
#include "file/tensors_table.h"

#define INDEX_LIMIT 100000000 /* bytes of JSON; real ones have less than a hundredth */

/* One line of the weight map; the strings are the JSON's. */
typedef struct listing {
    const char *file, *name;
} listing;

typedef struct weight_map {
    const char *directory, *path; /* of the index */
    const fb_json *map;
    listing *lines; /* [count], in order of file, then name */
    int64_t count;
} weight_map;

/* Files lie beside the index, nowhere else. */
static bool is_plain_name(const char *name) {
    if (!*name || *name == '.') return false;
    for (; *name; name++)
        if ((unsigned char)*name < 0x20 || *name == 0x7f || *name == '/') return false;
    return true;
}

static int compare_listings(const void *left, const void *right) {
    const listing *a = left, *b = right;
    int order = strcmp(a->file, b->file);
    return order ? order : strcmp(a->name, b->name);
}

static fb_status read_listings(weight_map *index, const fb_json *map, fb_error *err) {
    size_t room = fb_json_size(map);
    if (room == 0) return fb_fail(err, FB_ERROR_FILE, "%s: weight_map: no tensors (at least 1)", index->path);
    index->map = map;
    index->lines = calloc(room, sizeof *index->lines);
    if (!index->lines) return fb_fail_memory(err, index->path, (int64_t)(room * sizeof *index->lines));
    char text[128];
    for (const fb_json *value = fb_json_first(map); value; value = fb_json_next(value)) {
        const char *key = fb_json_key(value);
        const char *file = fb_json_text_of(value);
        if (!file || strlen(file) != fb_json_size(value) || !is_plain_name(file))
            return fb_fail(err, FB_ERROR_FILE,
                           "%s: weight_map: %.100s: %s (expected the name of a file in this directory)",
                           index->path, key, fb_json_show(value, text, sizeof text));
        index->lines[index->count++] = (listing){file, key};
    }
    qsort(index->lines, (size_t)index->count, sizeof *index->lines, compare_listings);
    return FB_OK;
}

/* The shard holds a tensor that the index does not expect in it. */
static fb_status fail_unexpected(const weight_map *index, const char *file, const char *name, fb_error *err) {
    const char *other = fb_json_text_of(fb_json_get(index->map, name));
    if (other)
        return fb_fail(err, FB_ERROR_FILE, "%s: duplicate tensor %.100s: in %.100s and %.100s (one of them)",
                       index->path, name, other, file);
    return fb_fail(err, FB_ERROR_FILE, "%s: tensor %.100s of %.100s: not in weight_map", index->path, name,
                   file);
}

/* The lines that name this shard and the shard's own tensors must be the same list; both are in order of
 * name. */
static fb_status check_shard(const weight_map *index, const listing *lines, int64_t count,
                             const fb_tensor_table *shard, fb_error *err) {
    int64_t i = 0, j = 0;
    while (i < count || j < shard->count) {
        int order = i == count ? 1 : j == shard->count ? -1 : strcmp(lines[i].name, shard->entries[j].name);
        if (order < 0)
            return fb_fail(err, FB_ERROR_FILE,
                           "%s: tensor %.100s: not in %.100s (where weight_map says it is)", index->path,
                           lines[i].name, lines[i].file);
        if (order > 0) return fail_unexpected(index, lines->file, shard->entries[j].name, err);
        i++, j++;
    }
    return FB_OK;
}

static fb_status open_shard(const weight_map *index, const char *file, fb_tensor_table **out, fb_error *err) {
    char *path = NULL;
    if (asprintf(&path, "%s/%s", index->directory, file) < 0)
        return fb_fail_memory(err, file, (int64_t)strlen(file));
    fb_status status = fb_tensors_open(path, out, err);
    free(path);
    return status;
}

/* Opens each file once and gathers its entries. */
static fb_status open_shards(const weight_map *index, fb_tensor_table *table, fb_error *err) {
    /* At most one shard a line. */
    table->entries = calloc((size_t)index->count, sizeof *table->entries);
    table->shards = calloc((size_t)index->count, sizeof(fb_tensor_table *));
    if (!table->entries || !table->shards)
        return fb_fail_memory(err, index->path,
                              index->count * (int64_t)(sizeof *table->entries + sizeof(void *)));
    for (int64_t begin = 0, end; begin < index->count; begin = end) {
        const listing *lines = &index->lines[begin];
        for (end = begin + 1; end < index->count && !strcmp(index->lines[end].file, lines->file);) end++;
        fb_tensor_table **shard = &table->shards[table->shard_count];
        FB_TRY(open_shard(index, lines->file, shard, err));
        table->shard_count++;
        FB_TRY(check_shard(index, lines, end - begin, *shard, err));
        memcpy(&table->entries[begin], (*shard)->entries, (size_t)(end - begin) * sizeof *table->entries);
    }
    table->count = index->count;
    fb_tensors_sort(table);
    return FB_OK;
}

static fb_status open_index(const char *directory, const char *path, fb_tensor_table **out, fb_error *err) {
    fb_json *json;
    FB_TRY(fb_json_load(path, INDEX_LIMIT, &json, err));
    weight_map index = {.directory = directory, .path = path};
    const fb_json *map = fb_json_get(json, "weight_map");
    char text[64];
    fb_status status = fb_json_is(map, FB_JSON_OBJECT)
                           ? read_listings(&index, map, err)
                           : fb_fail(err, FB_ERROR_FILE, "%s: weight_map: %s (expected an object)", path,
                                     fb_json_show(map, text, sizeof text));
    fb_tensor_table *table = NULL;
    if (status == FB_OK) {
        table = calloc(1, sizeof *table);
        status = table ? open_shards(&index, table, err) : fb_fail_memory(err, path, sizeof *table);
    }
    free(index.lines);
    fb_json_free(json);
    if (status == FB_OK)
        *out = table;
    else
        fb_tensors_free(table);
    return status;
}

fb_status fb_tensors_open_model(const char *directory, fb_tensor_table **out, fb_error *err) {
    *out = NULL;
    char *whole = NULL, *index = NULL;
    fb_status status = FB_OK;
    if (asprintf(&whole, "%s/model.safetensors", directory) < 0) whole = NULL;
    if (asprintf(&index, "%s/model.safetensors.index.json", directory) < 0) index = NULL;
    if (!whole || !index)
        status = fb_fail_memory(err, directory, (int64_t)strlen(directory));
    else if (fb_map_missing(whole) && !fb_map_missing(index))
        status = open_index(directory, index, out, err);
    else
        status = fb_tensors_open(whole, out, err);
    free(whole);
    free(index);
    return status;
}
