/* The format: "GGUF", version, number of tensors, number of values; the values (key, type, value); the tensor
 * infos (gguf_tensors.c); padding; the tensors' data. Strings are a length and bytes, lengths have 64 bits.
 */
#include "file/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/gguf_cursor.h"
#include "file/gguf_split.h"
#include "file/json_build.h"
#include "file/tensors_table.h"

#define KEY_SIZE     256 /* bytes of a key and its NUL; known ones have less than 64 */
#define VALUE_BYTES  13  /* the least that a value takes: a length, a type and one byte */
#define VALUES_LIMIT (1 << 24)

typedef enum number_kind { NO_NUMBER, SIGNED, UNSIGNED, REAL } number_kind;

static const struct {
    const char *name;
    int64_t size;
    number_kind kind;
} types[FB_GGUF_TYPE_COUNT] = {
    [FB_GGUF_U8] = {"u8", 1, UNSIGNED},        [FB_GGUF_I8] = {"i8", 1, SIGNED},
    [FB_GGUF_U16] = {"u16", 2, UNSIGNED},      [FB_GGUF_I16] = {"i16", 2, SIGNED},
    [FB_GGUF_U32] = {"u32", 4, UNSIGNED},      [FB_GGUF_I32] = {"i32", 4, SIGNED},
    [FB_GGUF_U64] = {"u64", 8, UNSIGNED},      [FB_GGUF_I64] = {"i64", 8, SIGNED},
    [FB_GGUF_F32] = {"f32", 4, REAL},          [FB_GGUF_F64] = {"f64", 8, REAL},
    [FB_GGUF_BOOL] = {"bool", 1, UNSIGNED},    [FB_GGUF_STRING] = {"string", 0, NO_NUMBER},
    [FB_GGUF_ARRAY] = {"array", 0, NO_NUMBER},
};

const char *fb_gguf_type_name(fb_gguf_type type) { return types[type].name; }
int64_t fb_gguf_type_size(fb_gguf_type type) { return types[type].size; }
bool fb_gguf_is_int(fb_gguf_type type) { return types[type].kind == SIGNED || types[type].kind == UNSIGNED; }
bool fb_gguf_is_real(fb_gguf_type type) { return types[type].kind == REAL; }

/* ---- elements ------------------------------------------------------------------------------------------ */

int64_t fb_gguf_int_at(const fb_gguf_array *array, int64_t index) {
    int64_t size = types[array->type].size;
    uint64_t bits = 0;
    memcpy(&bits, array->data + index * size, (size_t)size);
    int unused = 64 - 8 * (int)size;
    if (types[array->type].kind == SIGNED && unused) return (int64_t)(bits << unused) >> unused;
    return (int64_t)bits;
}

double fb_gguf_real_at(const fb_gguf_array *array, int64_t index) {
    float narrow;
    double wide;
    if (array->type == FB_GGUF_F32) {
        memcpy(&narrow, array->data + index * (int64_t)sizeof narrow, sizeof narrow);
        return (double)narrow;
    }
    memcpy(&wide, array->data + index * (int64_t)sizeof wide, sizeof wide);
    return wide;
}

fb_gguf_text fb_gguf_next_text(const uint8_t **at) {
    int64_t size;
    memcpy(&size, *at, sizeof size);
    fb_gguf_text text = {(const char *)*at + sizeof size, size};
    *at += (int64_t)sizeof size + size;
    return text;
}

/* ---- values -------------------------------------------------------------------------------------------- */

static double shortest_decimal(float value) {
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return strtod(text, NULL);
}

static void put_real(fb_json_builder *values, const char *key, const fb_gguf_array *one) {
    double value = fb_gguf_real_at(one, 0);
    if (isfinite(value)) {
        fb_json_put_real(values, key, one->type == FB_GGUF_F32 ? shortest_decimal((float)value) : value);
        return;
    }
    const char *text = isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; /* not a number in JSON either */
    fb_json_put_text(values, key, text, strlen(text));
}

static void put_int(fb_json_builder *values, const char *key, const fb_gguf_array *one) {
    int64_t value = fb_gguf_int_at(one, 0);
    if (one->type == FB_GGUF_BOOL)
        fb_json_put_bool(values, key, value != 0);
    else if (one->type == FB_GGUF_U64 && value < 0)
        fb_json_put_real(values, key, (double)(uint64_t)value);
    else
        fb_json_put_int(values, key, value);
}

static fb_status check_bools(const fb_gguf_cursor *c, const char *key, const fb_gguf_array *array,
                             fb_error *err) {
    for (int64_t i = 0; array->type == FB_GGUF_BOOL && i < array->count; i++)
        if (array->data[i] > 1)
            return fb_fail(err, FB_ERROR_FILE, "%s: %s: %d as a bool (0 or 1)", c->what, key, array->data[i]);
    return FB_OK;
}

/* `array->count` elements of `array->type`, which is neither STRING nor ARRAY. */
static fb_status take_numbers(fb_gguf_cursor *c, const char *key, fb_gguf_array *array, fb_error *err) {
    uint64_t size = (uint64_t)types[array->type].size, count = (uint64_t)array->count;
    FB_TRY(fb_gguf_take(c, key, count > UINT64_MAX / size ? UINT64_MAX : count * size, &array->data, err));
    return check_bools(c, key, array, err);
}

static fb_status check_type(const fb_gguf_cursor *c, const char *key, uint32_t type, fb_error *err) {
    if (type < FB_GGUF_TYPE_COUNT) return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: %s: value type %u (0 to %d)", c->what, key, type,
                   FB_GGUF_TYPE_COUNT - 1);
}

static fb_status take_array(fb_gguf_cursor *c, const char *key, fb_gguf_array *array, fb_error *err) {
    uint32_t type;
    uint64_t count;
    fb_gguf_text text;
    FB_TRY(fb_gguf_take_u32(c, key, &type, err));
    FB_TRY(check_type(c, key, type, err));
    if (type == FB_GGUF_ARRAY)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: array of arrays (known: one level)", c->what, key);
    FB_TRY(fb_gguf_take_u64(c, key, &count, err));
    if (count > c->size - c->at) /* an element has at least a byte */
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: array of %llu elements (%zu bytes are left in the file)",
                       c->what, key, (unsigned long long)count, c->size - c->at);
    *array = (fb_gguf_array){.type = (fb_gguf_type)type, .count = (int64_t)count, .at = c->at};
    if (type != FB_GGUF_STRING) return take_numbers(c, key, array, err);
    for (uint64_t i = 0; i < count; i++) FB_TRY(fb_gguf_take_text(c, key, &text, err));
    return FB_OK;
}

static fb_status check_utf8(const fb_gguf_cursor *c, const char *key, const char *text, size_t size,
                            fb_error *err) {
    if (fb_json_is_utf8(text, size)) return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: %s: not UTF-8, in the key or its value", c->what, key);
}

static fb_status take_string(fb_gguf_cursor *c, const char *key, fb_json_builder *values, fb_error *err) {
    fb_gguf_text text;
    FB_TRY(fb_gguf_take_text(c, key, &text, err));
    FB_TRY(check_utf8(c, key, text.data, (size_t)text.size, err));
    fb_json_put_text(values, key, text.data, (size_t)text.size);
    return FB_OK;
}

static fb_status take_scalar(fb_gguf_cursor *c, const char *key, fb_gguf_type type, fb_json_builder *values,
                             fb_error *err) {
    if (type == FB_GGUF_STRING) return take_string(c, key, values, err);
    fb_gguf_array one = {.type = type, .count = 1};
    FB_TRY(take_numbers(c, key, &one, err));
    (types[type].kind == REAL ? put_real : put_int)(values, key, &one);
    return FB_OK;
}

/* One value into `values`; an array, for which there is room, also into `arrays`. */
static fb_status read_value(fb_gguf_cursor *c, fb_gguf *gguf, fb_json_builder *values, uint64_t index,
                            fb_error *err) {
    char key[KEY_SIZE];
    uint32_t type;
    FB_TRY(fb_gguf_take_name(c, "metadata value", index, key, sizeof key, err));
    FB_TRY(fb_gguf_take_u32(c, key, &type, err));
    FB_TRY(check_type(c, key, type, err));
    FB_TRY(check_utf8(c, key, key, strlen(key), err));
    if (type != FB_GGUF_ARRAY) return take_scalar(c, key, (fb_gguf_type)type, values, err);
    FB_TRY(take_array(c, key, &gguf->arrays[gguf->array_count++], err));
    fb_json_put_null(values, key);
    return FB_OK;
}

/* The arrays are the nulls of `values`, in their order. */
static void name_arrays(fb_gguf *gguf) {
    fb_gguf_array *array = gguf->arrays;
    for (const fb_json *value = fb_json_first(gguf->values); value; value = fb_json_next(value))
        if (fb_json_is(value, FB_JSON_NULL)) array++->key = fb_json_key(value);
}

static int compare_arrays(const void *left, const void *right) {
    return strcmp(((const fb_gguf_array *)left)->key, ((const fb_gguf_array *)right)->key);
}

static fb_status read_values(fb_gguf_cursor *c, fb_gguf *gguf, uint64_t count, fb_error *err) {
    if (count > (c->size - c->at) / VALUE_BYTES)
        return fb_fail(err, FB_ERROR_FILE, "%s: %llu metadata values (%zu bytes are left in the file)",
                       c->what, (unsigned long long)count, c->size - c->at);
    if (count > VALUES_LIMIT)
        return fb_fail(err, FB_ERROR_FILE, "%s: %llu metadata values (at most %d)", c->what,
                       (unsigned long long)count, VALUES_LIMIT);
    gguf->arrays = calloc((size_t)count + 1, sizeof *gguf->arrays);
    if (!gguf->arrays) return fb_fail_memory(err, c->what, (int64_t)(count * sizeof *gguf->arrays));
    fb_json_builder values = {0};
    fb_status status = FB_OK;
    for (uint64_t i = 0; i < count && status == FB_OK; i++) status = read_value(c, gguf, &values, i, err);
    if (status == FB_OK)
        status = fb_json_finish(&values, c->what, &gguf->values, err);
    else
        fb_json_builder_free(&values);
    FB_TRY(status);
    name_arrays(gguf);
    qsort(gguf->arrays, (size_t)gguf->array_count, sizeof *gguf->arrays, compare_arrays);
    return FB_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

static fb_status check_version(const fb_gguf_cursor *c, uint32_t version, fb_error *err) {
    if (version == 2 || version == 3) return FB_OK;
    if (version && !(version & 0xffff))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: a big-endian GGUF file (only little endian)", c->what);
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: GGUF version %u (2 and 3)", c->what, version);
}

static fb_status read_file(fb_gguf_cursor *c, fb_gguf *gguf, fb_error *err) {
    const uint8_t *magic = NULL;
    uint32_t version;
    uint64_t tensors, values;
    FB_TRY(fb_gguf_take(c, "magic number", 4, &magic, err));
    if (memcmp(magic, "GGUF", 4) != 0)
        return fb_fail(err, FB_ERROR_FILE, "%s: does not start with \"GGUF\"", c->what);
    FB_TRY(fb_gguf_take_u32(c, "version", &version, err));
    FB_TRY(check_version(c, version, err));
    FB_TRY(fb_gguf_take_u64(c, "number of tensors", &tensors, err));
    FB_TRY(fb_gguf_take_u64(c, "number of values", &values, err));
    FB_TRY(read_values(c, gguf, values, err));
    return fb_gguf_read_tensors(c, gguf, tensors, err);
}

/* What was read belongs to the file from here on. */
static fb_status keep_metadata(fb_gguf_cursor *c, fb_gguf *gguf, fb_error *err) {
    gguf->metadata = realloc(c->bytes, c->at); /* never nothing: the magic number is in it */
    if (!gguf->metadata) return fb_fail_memory(err, c->what, (int64_t)c->at);
    gguf->metadata_size = c->at;
    c->bytes = NULL;
    for (int64_t i = 0; i < gguf->array_count; i++)
        gguf->arrays[i].data = gguf->metadata + gguf->arrays[i].at;
    return FB_OK;
}

static fb_status parse(const char *what, const fb_map *file, fb_gguf **out, fb_error *err) {
    *out = NULL;
    fb_gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf) return fb_fail_memory(err, what, sizeof *gguf);
    fb_gguf_cursor cursor = {.what = what, .file = file, .size = file->size};
    fb_status status = read_file(&cursor, gguf, err);
    if (status == FB_OK) status = keep_metadata(&cursor, gguf, err);
    if (status == FB_OK) {
        *out = gguf;
    } else {
        free(cursor.bytes);
        fb_gguf_free(gguf);
    }
    return status;
}

/* Bytes have no other files beside them. */
static fb_status check_whole(const char *what, const fb_gguf *gguf, fb_error *err) {
    int64_t files;
    FB_TRY(fb_gguf_split_count(what, gguf, &files, err));
    if (files <= 1) return FB_OK;
    return fb_fail(err, FB_ERROR_UNSUPPORTED,
                   "%s: split.count: one of %lld files (only a model in one piece)", what, (long long)files);
}

static void drop(fb_gguf **out) {
    fb_gguf_free(*out);
    *out = NULL;
}

fb_status fb_gguf_parse(const char *what, const uint8_t *bytes, size_t size, fb_gguf **out, fb_error *err) {
    FB_TRY(parse(what, &(fb_map){.data = bytes, .size = size}, out, err));
    fb_status status = check_whole(what, *out, err);
    if (status != FB_OK) drop(out);
    return status;
}

fb_status fb_gguf_open_part(const char *path, fb_gguf **out, fb_error *err) {
    *out = NULL;
    fb_map map;
    FB_TRY(fb_map_open(path, &map, err));
    fb_status status = parse(path, &map, out, err);
    if (status == FB_OK)
        (*out)->tensors->map = map;
    else
        fb_map_close(&map);
    return status;
}

fb_status fb_gguf_open(const char *path, fb_gguf **out, fb_error *err) {
    int64_t files;
    FB_TRY(fb_gguf_open_part(path, out, err));
    fb_status status = fb_gguf_split_count(path, *out, &files, err);
    if (status == FB_OK && files > 1) status = fb_gguf_join(path, out, err);
    if (status != FB_OK) drop(out);
    return status;
}

void fb_gguf_free(fb_gguf *gguf) {
    if (!gguf) return;
    fb_tensors_free(gguf->tensors);
    free(gguf->arrays);
    free(gguf->metadata);
    fb_json_free(gguf->values);
    free(gguf);
}

const fb_gguf_array *fb_gguf_find_array(const fb_gguf *gguf, const char *key) {
    const fb_gguf_array wanted = {.key = key};
    return bsearch(&wanted, gguf->arrays, (size_t)gguf->array_count, sizeof wanted, compare_arrays);
}
