#include "file/json.h"

#include <stdio.h>
#include <stdlib.h>

#include "file/json_tree.h"
#include "file/map.h"

#define EQUAL_DEPTH 16

fb_status fb_json_parse_map(const char *what, const fb_map *map, size_t at, size_t size, size_t limit,
                            fb_json **out, fb_error *err) {
    *out = NULL;
    FB_TRY(fb_json_check_size(what, size, limit, err));
    uint8_t *text = malloc(size);
    if (!text) return fb_fail_memory(err, what, (int64_t)size);
    fb_status status = fb_map_copy(map, what, at, size, text, err);
    if (status == FB_OK) status = fb_json_parse(what, (const char *)text, size, limit, out, err);
    free(text);
    return status;
}

fb_status fb_json_load(const char *path, size_t limit, fb_json **out, fb_error *err) {
    *out = NULL;
    fb_map map;
    FB_TRY(fb_map_open(path, &map, err));
    fb_status status = map.size ? fb_json_parse_map(path, &map, 0, map.size, limit, out, err)
                                : fb_fail(err, FB_ERROR_FILE, "%s: empty file", path);
    fb_map_close(&map);
    if (status == FB_OK && !fb_json_is(*out, FB_JSON_OBJECT)) {
        fb_json_free(*out);
        *out = NULL;
        status = fb_fail(err, FB_ERROR_FILE, "%s: not a JSON object", path);
    }
    return status;
}

/* ---- values -------------------------------------------------------------------------------------------- */

fb_json_kind fb_json_kind_of(const fb_json *value) {
    return value ? (fb_json_kind)value->kind : FB_JSON_NONE;
}
bool fb_json_is(const fb_json *value, fb_json_kind kind) { return fb_json_kind_of(value) == kind; }

bool fb_json_is_number(const fb_json *value) {
    return fb_json_is(value, FB_JSON_INT) || fb_json_is(value, FB_JSON_REAL);
}

bool fb_json_bool_of(const fb_json *value) { return fb_json_is(value, FB_JSON_BOOL) && value->truth; }
int64_t fb_json_int_of(const fb_json *value) { return fb_json_is(value, FB_JSON_INT) ? value->integer : 0; }

double fb_json_real_of(const fb_json *value) {
    return fb_json_is(value, FB_JSON_REAL) ? value->real : (double)fb_json_int_of(value);
}

const char *fb_json_text_of(const fb_json *value) {
    return fb_json_is(value, FB_JSON_STRING) ? value->text : NULL;
}

size_t fb_json_size(const fb_json *value) { return value ? value->size : 0; }

const fb_json *fb_json_first(const fb_json *container) {
    bool object = fb_json_is(container, FB_JSON_OBJECT);
    if (!object && !fb_json_is(container, FB_JSON_ARRAY)) return NULL;
    return container->size ? container + 1 + object : NULL;
}

const fb_json *fb_json_next(const fb_json *value) {
    return value && !value->last ? fb_json_behind(value) + value->keyed : NULL;
}

const char *fb_json_key(const fb_json *value) { return value && value->keyed ? value[-1].text : NULL; }

const fb_json *fb_json_at(const fb_json *array, size_t index) {
    if (!fb_json_is(array, FB_JSON_ARRAY) || index >= array->size) return NULL;
    const fb_json *value = fb_json_first(array);
    while (index-- > 0) value = fb_json_next(value);
    return value;
}

const fb_json *fb_json_member(const fb_json *object, const char *key) {
    const fb_json *value = fb_json_get(object, key);
    return fb_json_is(value, FB_JSON_NULL) ? NULL : value;
}

static bool equal(const fb_json *left, const fb_json *right, int depth) {
    if (depth == 0 || left->kind != right->kind || left->size != right->size) return false;
    const fb_json *other = fb_json_first(right);
    switch ((fb_json_kind)left->kind) {
    case FB_JSON_BOOL:
        return left->truth == right->truth;
    case FB_JSON_INT:
        return left->integer == right->integer;
    case FB_JSON_REAL:
        return left->real == right->real;
    case FB_JSON_STRING:
        return memcmp(left->text, right->text, left->size) == 0;
    default:
        break;
    }
    for (const fb_json *value = fb_json_first(left); value; value = fb_json_next(value)) {
        const fb_json *same = value->keyed ? fb_json_get(right, fb_json_key(value)) : other;
        if (!same || !equal(value, same, depth - 1)) return false;
        other = fb_json_next(other);
    }
    return true;
}

bool fb_json_equal(const fb_json *left, const fb_json *right) {
    return left == right || (left && right && equal(left, right, EQUAL_DEPTH));
}

/* ---- members with a type ------------------------------------------------------------------------------- */

static fb_status wrong_type(const char *what, const char *key, const fb_json *value, const char *expected,
                            fb_error *err) {
    char text[64];
    return fb_fail(err, FB_ERROR_FILE, "%s: %s: %s (expected %s)", what, key,
                   fb_json_show(value, text, sizeof text), expected);
}

static fb_status missing(const char *what, const char *key, const char *expected, fb_error *err) {
    return fb_fail(err, FB_ERROR_FILE, "%s: %s: missing (expected %s)", what, key, expected);
}

fb_status fb_json_int(const char *what, const fb_json *object, const char *key, int64_t min, int64_t max,
                      int64_t fallback, int64_t *out, fb_error *err) {
    const fb_json *value = fb_json_member(object, key);
    *out = fallback;
    if (!value) return FB_OK;
    if (!fb_json_is(value, FB_JSON_INT)) return wrong_type(what, key, value, "an integer", err);
    int64_t number = fb_json_int_of(value);
    if (number < min || number > max)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %lld (%lld to %lld)", what, key, (long long)number,
                       (long long)min, (long long)max);
    *out = number;
    return FB_OK;
}

fb_status fb_json_need_int(const char *what, const fb_json *object, const char *key, int64_t min, int64_t max,
                           int64_t *out, fb_error *err) {
    *out = 0;
    if (!fb_json_member(object, key)) return missing(what, key, "an integer", err);
    return fb_json_int(what, object, key, min, max, 0, out, err);
}

fb_status fb_json_real(const char *what, const fb_json *object, const char *key, double min, double max,
                       double fallback, double *out, fb_error *err) {
    const fb_json *value = fb_json_member(object, key);
    *out = fallback;
    if (!value) return FB_OK;
    if (!fb_json_is_number(value)) return wrong_type(what, key, value, "a number", err);
    double number = fb_json_real_of(value);
    if (!(number >= min && number <= max))
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %g (%g to %g)", what, key, number, min, max);
    *out = number;
    return FB_OK;
}

fb_status fb_json_bool(const char *what, const fb_json *object, const char *key, bool fallback, bool *out,
                       fb_error *err) {
    const fb_json *value = fb_json_member(object, key);
    *out = fallback;
    if (!value) return FB_OK;
    if (!fb_json_is(value, FB_JSON_BOOL)) return wrong_type(what, key, value, "true or false", err);
    *out = fb_json_bool_of(value);
    return FB_OK;
}

fb_status fb_json_string(const char *what, const fb_json *object, const char *key, const char *fallback,
                         const char **out, fb_error *err) {
    const fb_json *value = fb_json_member(object, key);
    *out = fallback;
    if (!value) return FB_OK;
    const char *text = fb_json_text_of(value);
    if (!text || strlen(text) != fb_json_size(value)) return wrong_type(what, key, value, "a string", err);
    *out = text;
    return FB_OK;
}

fb_status fb_json_need_string(const char *what, const fb_json *object, const char *key, const char **out,
                              fb_error *err) {
    *out = NULL;
    if (!fb_json_member(object, key)) return missing(what, key, "a string", err);
    return fb_json_string(what, object, key, NULL, out, err);
}
