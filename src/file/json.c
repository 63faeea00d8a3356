#include "file/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/map.h"

fb_status fb_json_parse(const char *what, const char *bytes, size_t size, json_t **out, fb_error *err) {
    *out = NULL;
    json_error_t where;
    /* JSON_ALLOW_NUL: a tokenizer's vocabulary may hold the NUL character. */
    json_t *value = json_loadb(bytes, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!value)
        return fb_fail(err, FB_ERROR_FILE, "%s: not JSON: %s (line %d, column %d)", what, where.text,
                       where.line, where.column);
    *out = value;
    return FB_OK;
}

fb_status fb_json_load(const char *path, size_t limit, json_t **out, fb_error *err) {
    *out = NULL;
    fb_map map;
    FB_TRY(fb_map_open(path, &map, err));
    fb_status status;
    if (map.size == 0)
        status = fb_fail(err, FB_ERROR_FILE, "%s: empty file", path);
    else if (map.size > limit)
        status = fb_fail(err, FB_ERROR_FILE, "%s: %zu bytes (at most %zu)", path, map.size, limit);
    else
        status = fb_json_parse(path, (const char *)map.data, map.size, out, err);
    fb_map_close(&map);
    if (status == FB_OK && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        status = fb_fail(err, FB_ERROR_FILE, "%s: not a JSON object", path);
    }
    return status;
}

const json_t *fb_json_member(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) ? value : NULL;
}

const char *fb_json_show(const json_t *value, char *text, size_t size) {
    char *dump = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (dump && strlen(dump) >= size && size > 4)
        snprintf(text, size, "%.*s...", (int)size - 4, dump);
    else
        snprintf(text, size, "%s", dump ? dump : "nothing");
    free(dump);
    return text;
}

static fb_status wrong_type(const char *what, const char *key, const json_t *value, const char *expected,
                            fb_error *err) {
    char text[64];
    return fb_fail(err, FB_ERROR_FILE, "%s: %s: %s (expected %s)", what, key,
                   fb_json_show(value, text, sizeof text), expected);
}

static fb_status missing(const char *what, const char *key, const char *expected, fb_error *err) {
    return fb_fail(err, FB_ERROR_FILE, "%s: %s: missing (expected %s)", what, key, expected);
}

fb_status fb_json_int(const char *what, const json_t *object, const char *key, int64_t min, int64_t max,
                      int64_t fallback, int64_t *out, fb_error *err) {
    const json_t *value = fb_json_member(object, key);
    *out = fallback;
    if (!value) return FB_OK;
    if (!json_is_integer(value)) return wrong_type(what, key, value, "an integer", err);
    json_int_t number = json_integer_value(value);
    if (number < min || number > max)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %lld (%lld to %lld)", what, key, (long long)number,
                       (long long)min, (long long)max);
    *out = number;
    return FB_OK;
}

fb_status fb_json_need_int(const char *what, const json_t *object, const char *key, int64_t min, int64_t max,
                           int64_t *out, fb_error *err) {
    *out = 0;
    if (!fb_json_member(object, key)) return missing(what, key, "an integer", err);
    return fb_json_int(what, object, key, min, max, 0, out, err);
}

fb_status fb_json_real(const char *what, const json_t *object, const char *key, double min, double max,
                       double fallback, double *out, fb_error *err) {
    const json_t *value = fb_json_member(object, key);
    *out = fallback;
    if (!value) return FB_OK;
    if (!json_is_number(value)) return wrong_type(what, key, value, "a number", err);
    double number = json_number_value(value);
    if (!(number >= min && number <= max))
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %g (%g to %g)", what, key, number, min, max);
    *out = number;
    return FB_OK;
}

fb_status fb_json_bool(const char *what, const json_t *object, const char *key, bool fallback, bool *out,
                       fb_error *err) {
    const json_t *value = fb_json_member(object, key);
    *out = fallback;
    if (!value) return FB_OK;
    if (!json_is_boolean(value)) return wrong_type(what, key, value, "true or false", err);
    *out = json_is_true(value);
    return FB_OK;
}

fb_status fb_json_string(const char *what, const json_t *object, const char *key, const char *fallback,
                         const char **out, fb_error *err) {
    const json_t *value = fb_json_member(object, key);
    *out = fallback;
    if (!value) return FB_OK;
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
        return wrong_type(what, key, value, "a string", err);
    *out = json_string_value(value);
    return FB_OK;
}

fb_status fb_json_need_string(const char *what, const json_t *object, const char *key, const char **out,
                              fb_error *err) {
    *out = NULL;
    if (!fb_json_member(object, key)) return missing(what, key, "a string", err);
    return fb_json_string(what, object, key, NULL, out, err);
}
