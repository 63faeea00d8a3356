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

static fb_status parse_type(const source *src, const json_t *info, fb_stored_type *out, fb_error *err) {
    char text[64];
    const json_t *value = json_object_get(info, "dtype");
    if (!json_is_string(value))
        return FAIL(src, FB_ERROR_FILE, err, "dtype: %s (expected a string)",
                    fb_json_show(value, text, sizeof text));
    size_t length = json_string_length(value); /* a NUL may hide inside */
    for (*out = 0; *out < FB_STORED_PLAIN_COUNT; ++*out) {
        const char *name = fb_stored_name(*out);
        if (length == strlen(name) && !memcmp(json_string_value(value), name, length)) return FB_OK;
    }
    return FAIL(src, FB_ERROR_UNSUPPORTED, err,
                "unknown dtype: %s (F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL)",
                fb_json_show(value, text, sizeof text));
}

static fb_status parse_shape(const source *src, const json_t *info, fb_tensor_entry *entry, fb_error *err) {
    char text[64];
    const json_t *shape = json_object_get(info, "shape");
    fb_json_show(shape, text, sizeof text);
    if (!json_is_array(shape)) return FAIL(src, FB_ERROR_FILE, err, "shape: %s (expected an array)", text);
    if (json_array_size(shape) > FB_MAX_DIMS)
        return FAIL(src, FB_ERROR_UNSUPPORTED, err, "shape: %zu dimensions (at most %d)",
                    json_array_size(shape), FB_MAX_DIMS);
    entry->dims = (int32_t)json_array_size(shape);
    entry->count = 1;
    for (int32_t d = 0; d < entry->dims; d++) {
        const json_t *value = json_array_get(shape, (size_t)d);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return FAIL(src, FB_ERROR_FILE, err, "shape: %s (expected integers, 0 or more)", text);
        entry->shape[d] = json_integer_value(value);
        if (__builtin_mul_overflow(entry->count, entry->shape[d], &entry->count))
            return FAIL(src, FB_ERROR_FILE, err, "shape: %s (more than 2^63 elements)", text);
    }
    return FB_OK;
}

/* The shape and the type are known: the range must have room for exactly that. */
static fb_status parse_offsets(const source *src, const json_t *info, fb_tensor_entry *entry,
                               fb_tensor_range *out, fb_error *err) {
    char text[64];
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return FAIL(src, FB_ERROR_FILE, err, "data_offsets: %s (expected two integers)",
                    fb_json_show(offsets, text, sizeof text));
    *out = (fb_tensor_range){json_integer_value(begin), json_integer_value(end), src->name};
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

static fb_status parse_entry(const source *src, const json_t *info, fb_tensor_entry *entry,
                             fb_tensor_range *where, fb_error *err) {
    char text[64];
    entry->name = src->name;
    if (!fb_tensors_good_name(src->name))
        return FAIL(src, FB_ERROR_FILE, err, "name: %s", *src->name ? "control character in it" : "empty");
    if (!json_is_object(info) || json_object_size(info) != 3)
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

static fb_status check_metadata(const char *what, json_t *metadata, fb_error *err) {
    char text[64];
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return fb_fail(err, FB_ERROR_FILE, "%s: " METADATA ": %s (expected an object)", what,
                       fb_json_show(metadata, text, sizeof text));
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return fb_fail(err, FB_ERROR_FILE, "%s: " METADATA ": %.100s: %s (expected a string)", what, key,
                           fb_json_show(value, text, sizeof text));
    }
    return FB_OK;
}

/* Fills the entries, which have room for every member of the header. */
static fb_status parse_entries(source *src, fb_tensor_table *table, fb_tensor_range *ranges, fb_error *err) {
    const char *key;
    json_t *info;
    json_object_foreach(table->header, key, info) {
        src->name = key;
        if (!strcmp(key, METADATA)) {
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
    size_t room = json_object_size(table->header) + 1; /* + 1: never an allocation of nothing */
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

static fb_status parse_header(const char *what, const uint8_t *bytes, size_t size, fb_tensor_table *table,
                              fb_error *err) {
    if (size < 8) return fb_fail(err, FB_ERROR_FILE, "%s: %zu bytes (at least 8)", what, size);
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)bytes[i] << (8 * i);
    if (length > HEADER_LIMIT)
        return fb_fail(err, FB_ERROR_FILE, "%s: header length: %llu (at most %d)", what,
                       (unsigned long long)length, HEADER_LIMIT);
    if (length > size - 8)
        return fb_fail(err, FB_ERROR_FILE, "%s: header length: %llu (%zu bytes follow)", what,
                       (unsigned long long)length, size - 8);
    char *label = NULL;
    if (asprintf(&label, "%s: header", what) < 0) return fb_fail_memory(err, what, (int64_t)strlen(what));
    fb_status status = fb_json_parse(label, (const char *)bytes + 8, (size_t)length, &table->header, err);
    free(label);
    FB_TRY(status);
    if (bytes[8] != '{' || !json_is_object(table->header))
        return fb_fail(err, FB_ERROR_FILE, "%s: header: does not start as an object", what);
    source src = {.what = what, .data = bytes + 8 + length, .data_size = (int64_t)(size - 8 - length)};
    return fill_table(&src, table, err);
}

fb_status fb_tensors_parse(const char *what, const uint8_t *bytes, size_t size, fb_tensor_table **out,
                           fb_error *err) {
    *out = NULL;
    fb_tensor_table *table = calloc(1, sizeof *table);
    if (!table) return fb_fail_memory(err, what, sizeof *table);
    fb_status status = parse_header(what, bytes, size, table, err);
    if (status == FB_OK)
        *out = table;
    else
        fb_tensors_free(table);
    return status;
}

fb_status fb_tensors_open(const char *path, fb_tensor_table **out, fb_error *err) {
    *out = NULL;
    fb_map map;
    FB_TRY(fb_map_open(path, &map, err));
    fb_status status = fb_tensors_parse(path, map.data, map.size, out, err);
    if (status == FB_OK)
        (*out)->map = map;
    else
        fb_map_close(&map);
    return status;
}

const char *fb_tensors_metadata(const fb_tensor_table *table, const char *key) {
    const char *text = json_string_value(json_object_get(json_object_get(table->header, METADATA), key));
    for (int64_t i = 0; !text && i < table->shard_count; i++)
        text = fb_tensors_metadata(table->shards[i], key);
    return text;
}
