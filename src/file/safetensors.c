/* The format: eight bytes of header length (little endian), the header (a JSON object: name -> dtype, shape
 * and data_offsets, and strings under __metadata__), then the data, which the tensors tile without a hole or
 * an overlap. */
#include "file/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "file/tensors_table.h"

#define HEADER_LIMIT 100000000 /* the format's own */
#define METADATA     "__metadata__"

/* What is being parsed, for checks and messages. */
typedef struct source {
    const char *what;
    const char *name;    /* the tensor at hand */
    const uint8_t *data; /* [data_size] */
    int64_t data_size;
} source;

#define FAIL(src, status, err, format, ...)                                                                  \
    fb_fail(err, status, "%s: tensor %.100s: " format, (src)->what, (src)->name, __VA_ARGS__)

static fb_status parse_type(const source *src, const fb_json *info, fb_stored_type *out, fb_error *err) {
    char text[64];
    const fb_json *value = fb_json_get(info, "dtype");
    if (!fb_json_is(value, FB_JSON_STRING))
        return FAIL(src, FB_ERROR_FILE, err, "dtype: %s (expected a string)",
                    fb_json_show(value, text, sizeof text));
    size_t length = fb_json_size(value); /* a NUL may hide inside */
    for (*out = 0; *out < FB_STORED_PLAIN_COUNT; ++*out) {
        const char *name = fb_stored_name(*out);
        if (length == strlen(name) && !memcmp(fb_json_text_of(value), name, length)) return FB_OK;
    }
    return FAIL(src, FB_ERROR_UNSUPPORTED, err,
                "unknown dtype: %s (F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL)",
                fb_json_show(value, text, sizeof text));
}

static fb_status parse_shape(const source *src, const fb_json *info, fb_tensor_entry *entry, fb_error *err) {
    char text[64];
    const fb_json *shape = fb_json_get(info, "shape");
    fb_json_show(shape, text, sizeof text);
    if (!fb_json_is(shape, FB_JSON_ARRAY))
        return FAIL(src, FB_ERROR_FILE, err, "shape: %s (expected an array)", text);
    if (fb_json_size(shape) > FB_MAX_DIMS)
        return FAIL(src, FB_ERROR_UNSUPPORTED, err, "shape: %zu dimensions (at most %d)", fb_json_size(shape),
                    FB_MAX_DIMS);
    entry->dims = (int32_t)fb_json_size(shape);
    entry->count = 1;
    for (int32_t d = 0; d < entry->dims; d++) {
        const fb_json *value = fb_json_at(shape, (size_t)d);
        if (!fb_json_is(value, FB_JSON_INT) || fb_json_int_of(value) < 0)
            return FAIL(src, FB_ERROR_FILE, err, "shape: %s (expected integers, 0 or more)", text);
        entry->shape[d] = fb_json_int_of(value);
        if (__builtin_mul_overflow(entry->count, entry->shape[d], &entry->count))
            return FAIL(src, FB_ERROR_FILE, err, "shape: %s (more than 2^63 elements)", text);
    }
    return FB_OK;
}

/* The shape and the type are known: the range must have room for exactly that. */
static fb_status parse_offsets(const source *src, const fb_json *info, fb_tensor_entry *entry,
                               fb_tensor_range *out, fb_error *err) {
    char text[64];
    const fb_json *offsets = fb_json_get(info, "data_offsets");
    const fb_json *begin = fb_json_at(offsets, 0), *end = fb_json_at(offsets, 1);
    if (fb_json_size(offsets) != 2 || !fb_json_is(begin, FB_JSON_INT) || !fb_json_is(end, FB_JSON_INT))
        return FAIL(src, FB_ERROR_FILE, err, "data_offsets: %s (expected two integers)",
                    fb_json_show(offsets, text, sizeof text));
    *out = (fb_tensor_range){fb_json_int_of(begin), fb_json_int_of(end), src->name};
    long long first = out->begin, last = out->end;
    if (first < 0 || first > last || last > src->data_size)
        return FAIL(src, FB_ERROR_FILE, err, "data_offsets: %lld to %lld (0 to %lld are in the file)", first,
                    last, (long long)src->data_size);
    int64_t bytes = fb_stored_bytes(entry->type, entry->count);
    if (bytes != last - first)
        return FAIL(src, FB_ERROR_FILE, err, "data_offsets: %lld bytes (%s %s has %lld)", last - first,
                    fb_stored_name(entry->type), fb_tensor_shape_text(entry, text, sizeof text),
                    (long long)bytes);
    if (bytes > 0) entry->data = src->data + first;
    return FB_OK;
}

static fb_status parse_entry(const source *src, const fb_json *info, fb_tensor_entry *entry,
                             fb_tensor_range *where, fb_error *err) {
    char text[64];
    entry->name = src->name;
    if (!fb_tensors_good_name(src->name))
        return FAIL(src, FB_ERROR_FILE, err, "name: %s", *src->name ? "control character in it" : "empty");
    if (!fb_json_is(info, FB_JSON_OBJECT) || fb_json_size(info) != 3)
        return FAIL(src, FB_ERROR_FILE, err, "%s (expected dtype, shape and data_offsets)",
                    fb_json_show(info, text, sizeof text));
    FB_TRY(parse_type(src, info, &entry->type, err));
    FB_TRY(parse_shape(src, info, entry, err));
    return parse_offsets(src, info, entry, where, err);
}

static fb_status check_tiling(const source *src, fb_tensor_range *ranges, int64_t count, fb_error *err) {
    int64_t end;
    FB_TRY(fb_tensors_check_ranges(src->what, ranges, count, 0, &end, err));
    if (end != src->data_size)
        return fb_fail(err, FB_ERROR_FILE, "%s: bytes behind the last tensor: %lld (0)", src->what,
                       (long long)(src->data_size - end));
    return FB_OK;
}

static fb_status check_metadata(const char *what, const fb_json *metadata, fb_error *err) {
    char text[64];
    if (!fb_json_is(metadata, FB_JSON_OBJECT))
        return fb_fail(err, FB_ERROR_FILE, "%s: " METADATA ": %s (expected an object)", what,
                       fb_json_show(metadata, text, sizeof text));
    for (const fb_json *value = fb_json_first(metadata); value; value = fb_json_next(value)) {
        if (!fb_json_is(value, FB_JSON_STRING))
            return fb_fail(err, FB_ERROR_FILE, "%s: " METADATA ": %.100s: %s (expected a string)", what,
                           fb_json_key(value), fb_json_show(value, text, sizeof text));
    }
    return FB_OK;
}

/* Fills the entries, which have room for every member of the header. */
static fb_status parse_entries(source *src, fb_tensor_table *table, fb_tensor_range *ranges, fb_error *err) {
    for (const fb_json *info = fb_json_first(table->header); info; info = fb_json_next(info)) {
        src->name = fb_json_key(info);
        if (!strcmp(src->name, METADATA)) {
            FB_TRY(check_metadata(src->what, info, err));
            continue;
        }
        FB_TRY(parse_entry(src, info, &table->entries[table->count], &ranges[table->count], err));
        table->count++;
    }
    FB_TRY(check_tiling(src, ranges, table->count, err));
    fb_tensors_sort(table);
    return FB_OK;
}

static fb_status fill_table(source *src, fb_tensor_table *table, fb_error *err) {
    size_t room = fb_json_size(table->header) + 1; /* + 1: never an allocation of nothing */
    table->entries = calloc(room, sizeof *table->entries);
    fb_tensor_range *ranges = calloc(room, sizeof *ranges);
    fb_status status;
    if (table->entries && ranges)
        status = parse_entries(src, table, ranges, err);
    else
        status = fb_fail_memory(err, src->what, (int64_t)(room * (sizeof *table->entries + sizeof *ranges)));
    free(ranges);
    return status;
}

static fb_status parse_header(const char *what, const fb_map *file, fb_tensor_table *table, fb_error *err) {
    size_t size = file->size;
    if (size < 8) return fb_fail(err, FB_ERROR_FILE, "%s: %zu bytes (at least 8)", what, size);
    uint8_t bytes[8];
    uint64_t length = 0;
    FB_TRY(fb_map_copy(file, what, 0, sizeof bytes, bytes, err));
    for (int i = 0; i < 8; i++) length |= (uint64_t)bytes[i] << (8 * i);
    if (length > HEADER_LIMIT)
        return fb_fail(err, FB_ERROR_FILE, "%s: header length: %llu (at most %d)", what,
                       (unsigned long long)length, HEADER_LIMIT);
    if (length > size - 8)
        return fb_fail(err, FB_ERROR_FILE, "%s: header length: %llu (%zu bytes follow)", what,
                       (unsigned long long)length, size - 8);
    char label[512];
    snprintf(label, sizeof label, "%.480s: header", what);
    FB_TRY(fb_json_parse_map(label, file, 8, (size_t)length, HEADER_LIMIT, &table->header, err));
    uint8_t first;
    FB_TRY(fb_map_copy(file, what, 8, 1, &first, err));
    if (first != '{' || !fb_json_is(table->header, FB_JSON_OBJECT))
        return fb_fail(err, FB_ERROR_FILE, "%s: header: does not start as an object", what);
    source src = {.what = what, .data = file->data + 8 + length, .data_size = (int64_t)(size - 8 - length)};
    return fill_table(&src, table, err);
}

static fb_status parse(const char *what, const fb_map *file, fb_tensor_table **out, fb_error *err) {
    *out = NULL;
    fb_tensor_table *table = calloc(1, sizeof *table);
    if (!table) return fb_fail_memory(err, what, sizeof *table);
    fb_status status = parse_header(what, file, table, err);
    if (status == FB_OK)
        *out = table;
    else
        fb_tensors_free(table);
    return status;
}

fb_status fb_tensors_parse(const char *what, const uint8_t *bytes, size_t size, fb_tensor_table **out,
                           fb_error *err) {
    return parse(what, &(fb_map){.data = bytes, .size = size}, out, err);
}

fb_status fb_tensors_open(const char *path, fb_tensor_table **out, fb_error *err) {
    *out = NULL;
    fb_map map;
    FB_TRY(fb_map_open(path, &map, err));
    fb_status status = parse(path, &map, out, err);
    if (status == FB_OK)
        (*out)->map = map;
    else
        fb_map_close(&map);
    return status;
}

const char *fb_tensors_metadata(const fb_tensor_table *table, const char *key) {
    const char *text = fb_json_text_of(fb_json_get(fb_json_get(table->header, METADATA), key));
    for (int64_t i = 0; !text && i < table->shard_count; i++)
        text = fb_tensors_metadata(table->shards[i], key);
    return text;
}
