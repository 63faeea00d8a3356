#include "file/gguf_split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/gguf_cursor.h"
#include "file/tensors_table.h"

/* "-00001-of-00003.gguf" */
#define ENDING_BYTES 20

fb_status fb_gguf_split_count(const char *what, const fb_gguf *gguf, int64_t *out, fb_error *err) {
    return fb_json_int(what, gguf->values, "split.count", 0, UINT16_MAX, 1, out, err);
}

/* ---- names --------------------------------------------------------------------------------------------- */

static void write_ending(char ending[ENDING_BYTES + 1], int64_t index, int64_t count) {
    snprintf(ending, ENDING_BYTES + 1, "-%05d-of-%05d.gguf", (int)(index + 1) % 100000, (int)count % 100000);
}

/* Where the ending of a part's name begins, or NULL. Any number may stand for the part's. */
static const char *find_ending(const char *path, int64_t count) {
    char ending[ENDING_BYTES + 1];
    size_t length = strlen(path);
    if (length <= ENDING_BYTES) return NULL;
    const char *found = path + length - ENDING_BYTES;
    write_ending(ending, 0, count);
    bool same = found[0] == '-' && strspn(found + 1, "0123456789") == 5 && !strcmp(found + 6, ending + 6);
    return same ? found : NULL;
}

char *fb_gguf_split_path(const char *path, int64_t index, int64_t count) {
    char ending[ENDING_BYTES + 1], *out;
    const char *found = find_ending(path, count);
    if (!found) return NULL;
    write_ending(ending, index, count);
    return asprintf(&out, "%.*s%s", (int)(found - path), path, ending) < 0 ? NULL : out;
}

/* ---- parts --------------------------------------------------------------------------------------------- */

/* What all parts must agree on. */
typedef struct split {
    const char *path; /* the part that was asked for */
    int64_t count, tensors;
} split;

static fb_status read_split(const char *path, const fb_gguf *part, split *out, int64_t *no, fb_error *err) {
    *out = (split){.path = path};
    FB_TRY(fb_gguf_split_count(path, part, &out->count, err));
    FB_TRY(fb_json_need_int(path, part->values, "split.no", 0, UINT16_MAX, no, err));
    return fb_json_need_int(path, part->values, "split.tensors.count", 0, INT32_MAX, &out->tensors, err);
}

static fb_status check_part(const char *path, const fb_gguf *part, const split *all, int64_t index,
                            fb_error *err) {
    split own;
    int64_t no;
    FB_TRY(read_split(path, part, &own, &no, err));
    if (no != index)
        return fb_fail(err, FB_ERROR_FILE, "%s: split.no: %lld (%lld: the name says part %lld)", path,
                       (long long)no, (long long)index, (long long)index + 1);
    if (own.count != all->count)
        return fb_fail(err, FB_ERROR_FILE, "%s: split.count: %lld (%lld in the other parts)", path,
                       (long long)own.count, (long long)all->count);
    if (own.tensors != all->tensors)
        return fb_fail(err, FB_ERROR_FILE, "%s: split.tensors.count: %lld (%lld in the other parts)", path,
                       (long long)own.tensors, (long long)all->tensors);
    return FB_OK;
}

static fb_status open_part(const split *all, int64_t index, fb_gguf **out, fb_error *err) {
    char *path = fb_gguf_split_path(all->path, index, all->count);
    if (!path) return fb_fail_memory(err, all->path, (int64_t)strlen(all->path));
    fb_status status;
    if (fb_map_missing(path))
        status = fb_fail(err, FB_ERROR_FILE, "%s: No such file or directory (part %lld of the model's %lld)",
                         path, (long long)index + 1, (long long)all->count);
    else
        status = fb_gguf_open_part(path, out, err);
    if (status == FB_OK) status = check_part(path, *out, all, index, err);
    free(path);
    return status;
}

/* The tensors of all parts in one table, whose shards they are: the parts' own tables, taken from them. */
static fb_status gather(const split *all, fb_gguf **parts, fb_tensor_table **out, fb_error *err) {
    int64_t count = 0;
    for (int64_t i = 0; i < all->count; i++) count += parts[i]->tensors->count;
    if (count != all->tensors)
        return fb_fail(err, FB_ERROR_FILE, "%s: split.tensors.count: %lld (the %lld parts have %lld)",
                       all->path, (long long)all->tensors, (long long)all->count, (long long)count);
    fb_tensor_table *table = calloc(1, sizeof *table);
    if (table) table->entries = calloc((size_t)count + 1, sizeof *table->entries);
    if (table) table->shards = calloc((size_t)all->count, sizeof(fb_tensor_table *));
    if (!table || !table->entries || !table->shards) {
        fb_tensors_free(table);
        return fb_fail_memory(err, all->path, count * (int64_t)sizeof *table->entries);
    }
    for (int64_t i = 0; i < all->count; i++) {
        fb_tensor_table *shard = table->shards[table->shard_count++] = parts[i]->tensors;
        memcpy(&table->entries[table->count], shard->entries, (size_t)shard->count * sizeof *shard->entries);
        table->count += shard->count;
        parts[i]->tensors = NULL;
    }
    fb_tensors_sort(table);
    *out = table;
    return FB_OK;
}

static fb_status join(const split *all, fb_gguf **parts, fb_error *err) {
    for (int64_t i = 0; i < all->count; i++)
        if (!parts[i]) FB_TRY(open_part(all, i, &parts[i], err));
    fb_tensor_table *table = NULL;
    FB_TRY(gather(all, parts, &table, err));
    parts[0]->tensors = table;
    return fb_gguf_check_names(all->path, table, err);
}

fb_status fb_gguf_join(const char *path, fb_gguf **gguf, fb_error *err) {
    split all;
    int64_t no;
    FB_TRY(read_split(path, *gguf, &all, &no, err));
    char ending[ENDING_BYTES + 1];
    const char *found = no < all.count ? find_ending(path, all.count) : NULL;
    write_ending(ending, no, all.count);
    if (!found || strcmp(found, ending) != 0)
        return fb_fail(
            err, FB_ERROR_FILE,
            "%s: part %lld of %lld (its name must end in -%05lld-of-%05lld.gguf, or the others are not "
            "found)",
            path, (long long)no + 1, (long long)all.count, (long long)no + 1, (long long)all.count);
    fb_gguf **parts = calloc((size_t)all.count, sizeof(fb_gguf *));
    if (!parts) return fb_fail_memory(err, path, all.count * (int64_t)sizeof(fb_gguf *));
    parts[no] = *gguf;
    fb_status status = join(&all, parts, err);
    /* The first has the metadata, and the tensors of all. */
    *gguf = parts[0];
    for (int64_t i = 1; i < all.count; i++)
        if (parts[i] != *gguf) fb_gguf_free(parts[i]);
    free(parts);
    return status;
}
