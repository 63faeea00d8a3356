#include "schema/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *const fb_shape_of_strings[] = {"minLength", "maxLength", "pattern", "format", NULL};
const char *const fb_shape_of_numbers[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                           NULL};
const char *const fb_shape_of_arrays[] = {"items", "prefixItems", "minItems", "maxItems", NULL};
const char *const fb_shape_of_objects[] = {"properties", "required", "additionalProperties", NULL};

/* They would change what is valid. Keywords in none of these lists are annotations. */
static const char *const refused[] = {"patternProperties",
                                      "propertyNames",
                                      "minProperties",
                                      "maxProperties",
                                      "dependentRequired",
                                      "dependentSchemas",
                                      "dependencies",
                                      "if",
                                      "not",
                                      "contains",
                                      "unevaluatedProperties",
                                      "unevaluatedItems",
                                      "multipleOf",
                                      "additionalItems",
                                      "$dynamicRef",
                                      "$recursiveRef"};

/* Steps to look at a schema for keywords that are refused. */
#define SCHEMA_STEPS 100

/* ---- which schemas ---- */

static fb_status refuse(fb_error *err, const char *keyword, const fb_json *value, const char *why) {
    char shown[64];
    return fb_fail(err, FB_ERROR_USAGE, "schema: %s: %s (%s)", keyword,
                   fb_json_show(value, shown, sizeof shown), why);
}

/* One key of a JSON pointer, up to the next '/'. */
static const fb_json *step(const fb_json *at, const char *text, size_t size, fb_work *work) {
    char key[256];
    size_t length = 0;
    for (size_t i = 0; i < size; i++) {
        if (length + 1 == sizeof key) return NULL;
        char c = text[i];
        if (c == '~' && i + 1 < size && (text[i + 1] == '0' || text[i + 1] == '1'))
            c = text[++i] == '0' ? '~' : '/';
        key[length++] = c;
    }
    key[length] = 0;
    if (fb_json_is(at, FB_JSON_OBJECT)) return fb_json_get(at, key);
    if (!fb_json_is(at, FB_JSON_ARRAY) || length == 0 || length > 6 || strspn(key, "0123456789") != length)
        return NULL;
    const int64_t index = strtol(key, NULL, 10);
    if (fb_work_add(work, FB_VALUE_STEPS * index, NULL) != FB_OK) return NULL;
    return fb_json_at(at, (size_t)index);
}

static fb_status resolve(const fb_json *root, const fb_json *ref, fb_work *work, const fb_json **out,
                         fb_error *err) {
    const char *text = fb_json_text_of(ref);
    if (!text) return refuse(err, "$ref", ref, "a string");
    if (text[0] != '#' || (text[1] && text[1] != '/') || strlen(text) != fb_json_size(ref) ||
        strchr(text, '%'))
        return refuse(err, "$ref", ref, "# or #/... within the schema");
    const fb_json *at = root;
    for (text++; *text == '/' && at;) {
        size_t size = strcspn(++text, "/");
        at = step(at, text, size, work);
        text += size;
        FB_TRY(fb_work_add(work, 10 + (int64_t)size, err));
    }
    if (!at) return refuse(err, "$ref", ref, "nothing is there");
    *out = at;
    return FB_OK;
}

static fb_status check_keywords(const fb_json *schema, fb_error *err) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (fb_json_get(schema, refused[i]))
            return fb_fail(err, FB_ERROR_USAGE, "schema: %s: not supported", refused[i]);
    const fb_json *unique = fb_json_get(schema, "uniqueItems");
    if (unique && (!fb_json_is(unique, FB_JSON_BOOL) || fb_json_bool_of(unique)))
        return fb_fail(err, FB_ERROR_USAGE, "schema: uniqueItems: not supported");
    return FB_OK;
}

fb_status fb_shape_add(fb_shape *shape, const fb_json *schema, fb_error *err) {
    const fb_json *target;
    FB_TRY(fb_work_add(shape->work, FB_VALUE_STEPS, err));
    if (fb_json_is(schema, FB_JSON_BOOL)) {
        shape->never = shape->never || !fb_json_bool_of(schema);
        return FB_OK;
    }
    if (!fb_json_is(schema, FB_JSON_OBJECT))
        return refuse(err, "a schema", schema, "an object, true or false");
    if (shape->count == FB_SHAPE_OBJECTS)
        return fb_fail(err, FB_ERROR_USAGE,
                       "schema: more than %d schemas apply to one value ($ref, allOf or anyOf; perhaps one "
                       "refers to itself)",
                       FB_SHAPE_OBJECTS);
    shape->objects[shape->count++] = schema;
    FB_TRY(fb_work_add(shape->work, SCHEMA_STEPS, err));
    FB_TRY(check_keywords(schema, err));
    const fb_json *ref = fb_json_get(schema, "$ref"), *all = fb_json_get(schema, "allOf");
    if (ref) {
        FB_TRY(resolve(shape->root, ref, shape->work, &target, err));
        FB_TRY(fb_shape_add(shape, target, err));
    }
    if (!all) return FB_OK;
    if (!fb_json_is(all, FB_JSON_ARRAY)) return refuse(err, "allOf", all, "an array");
    for (const fb_json *part = fb_json_first(all); part; part = fb_json_next(part))
        FB_TRY(fb_shape_add(shape, part, err));
    return FB_OK;
}

/* ---- what they say ---- */

#define COMPARED_DEPTH 16 /* as deep as fb_json_equal goes */

/* The least of all that is in two values. */
static int64_t steps_of(const fb_json *value, int depth) {
    if (fb_json_is(value, FB_JSON_STRING)) return 1 + (int64_t)fb_json_size(value) / 16;
    int64_t steps = 10;
    for (const fb_json *v = fb_json_first(value); v && depth > 0; v = fb_json_next(v))
        steps += steps_of(v, depth - 1);
    return steps;
}

fb_status fb_shape_compare(const fb_shape *shape, const fb_json *left, const fb_json *right, fb_error *err) {
    const bool quick = left == right || fb_json_kind_of(left) != fb_json_kind_of(right) ||
                       fb_json_size(left) != fb_json_size(right);
    return fb_work_add(shape->work, quick ? FB_VALUE_STEPS : steps_of(left, COMPARED_DEPTH), err);
}

fb_status fb_shape_get(const fb_shape *shape, const char *keyword, const fb_json **value, fb_error *err) {
    *value = NULL;
    for (int i = 0; i < shape->count; i++) {
        const fb_json *found = fb_json_get(shape->objects[i], keyword);
        if (!found) continue;
        if (*value) FB_TRY(fb_shape_compare(shape, *value, found, err));
        if (*value && !fb_json_equal(*value, found))
            return refuse(err, keyword, found, "another one applies to the same value");
        *value = found;
    }
    return FB_OK;
}

bool fb_shape_has(const fb_shape *shape, const char *const *keywords) {
    for (; *keywords; keywords++)
        for (int i = 0; i < shape->count; i++)
            if (fb_json_get(shape->objects[i], *keywords)) return true;
    return false;
}

fb_status fb_shape_count(const fb_shape *shape, const char *keyword, int64_t fallback, int64_t *out,
                         fb_error *err) {
    const fb_json *value;
    FB_TRY(fb_shape_get(shape, keyword, &value, err));
    *out = fallback;
    if (!value) return FB_OK;
    *out = fb_json_int_of(value);
    if (fb_json_is(value, FB_JSON_INT) && *out >= 0 && *out <= INT32_MAX) return FB_OK;
    return refuse(err, keyword, value, "an integer, 0 to 2147483647");
}

const fb_json *fb_shape_union(fb_shape *shape, bool **taken) {
    static const char *const keywords[] = {"anyOf", "oneOf"};
    for (int i = 0; i < shape->count; i++)
        for (int k = 0; k < 2; k++) {
            const fb_json *found = fb_json_get(shape->objects[i], keywords[k]);
            *taken = &shape->taken[i][k];
            if (found && !**taken) return found;
        }
    return NULL;
}

static unsigned type_by_name(const char *name) {
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    for (unsigned i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return (1u << i) | (i == 3 ? FB_SHAPE_INTEGER : 0);
    return 0;
}

static fb_status types_of(const fb_json *schema, unsigned *types, fb_error *err) {
    const fb_json *type = fb_json_get(schema, "type"), *nullable = fb_json_get(schema, "nullable");
    const bool list = fb_json_is(type, FB_JSON_ARRAY);
    *types = type ? 0 : FB_SHAPE_ANY;
    for (const fb_json *t = list ? fb_json_first(type) : type; t; t = list ? fb_json_next(t) : NULL) {
        unsigned one = type_by_name(fb_json_text_of(t));
        if (!one) return refuse(err, "type", t, "null, boolean, integer, number, string, array or object");
        *types |= one;
    }
    if (fb_json_bool_of(nullable) && !fb_json_get(schema, "enum") && !fb_json_get(schema, "const"))
        *types |= FB_SHAPE_NULL;
    return FB_OK;
}

fb_status fb_shape_types(const fb_shape *shape, unsigned *types, fb_error *err) {
    static const struct {
        const char *const *keywords;
        unsigned types;
    } hints[] = {{fb_shape_of_strings, FB_SHAPE_STRING},
                 {fb_shape_of_numbers, FB_SHAPE_INTEGER | FB_SHAPE_NUMBER},
                 {fb_shape_of_arrays, FB_SHAPE_ARRAY},
                 {fb_shape_of_objects, FB_SHAPE_OBJECT}};
    unsigned hinted = 0;
    bool typed = false;
    *types = FB_SHAPE_ANY;
    for (int i = 0; i < shape->count; i++) {
        unsigned own;
        FB_TRY(types_of(shape->objects[i], &own, err));
        *types &= own;
        typed = typed || fb_json_get(shape->objects[i], "type");
    }
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (fb_shape_has(shape, hints[i].keywords)) hinted |= hints[i].types;
    if (!typed && hinted) *types = hinted;
    if (shape->arrays_only) *types = FB_SHAPE_ARRAY;
    return FB_OK;
}

/* ---- values as text ---- */

fb_status fb_shape_spell_text(const char *text, size_t size, fb_bytes *out, fb_error *err) {
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    FB_TRY(fb_bytes_append(out, "\"", 1, err));
    for (size_t i = 0; i < size; i++) {
        const char c = text[i], *found = c ? strchr(plain, c) : NULL;
        char escaped[8] = {c, 0};
        if (found)
            snprintf(escaped, sizeof escaped, "\\%c", letters[found - plain]);
        else if ((unsigned char)c < 0x20)
            snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)c);
        FB_TRY(fb_bytes_append(out, escaped, (int64_t)strlen(escaped), err));
    }
    return fb_bytes_append(out, "\"", 1, err);
}

/* The shortest text that is read as this number. */
static fb_status spell_real(double value, fb_bytes *out, fb_error *err) {
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    for (char *c = text; *c; c++)
        if (*c == ',') *c = '.'; /* another locale's */
    return fb_bytes_append(out, text, (int64_t)strlen(text), err);
}

fb_status fb_shape_spell(const fb_json *value, fb_bytes *out, fb_error *err) {
    const bool object = fb_json_is(value, FB_JSON_OBJECT);
    char number[32];
    switch (fb_json_kind_of(value)) {
    case FB_JSON_STRING:
        return fb_shape_spell_text(fb_json_text_of(value), fb_json_size(value), out, err);
    case FB_JSON_REAL:
        return spell_real(fb_json_real_of(value), out, err);
    case FB_JSON_INT:
        snprintf(number, sizeof number, "%lld", (long long)fb_json_int_of(value));
        return fb_bytes_append(out, number, (int64_t)strlen(number), err);
    case FB_JSON_BOOL:
        return fb_bytes_append(out, fb_json_bool_of(value) ? "true" : "false", fb_json_bool_of(value) ? 4 : 5,
                               err);
    case FB_JSON_ARRAY:
    case FB_JSON_OBJECT:
        FB_TRY(fb_bytes_append(out, object ? "{" : "[", 1, err));
        for (const fb_json *v = fb_json_first(value); v; v = fb_json_next(v)) {
            if (v != fb_json_first(value)) FB_TRY(fb_bytes_append(out, ",", 1, err));
            if (object) {
                FB_TRY(fb_shape_spell_text(fb_json_key(v), strlen(fb_json_key(v)), out, err));
                FB_TRY(fb_bytes_append(out, ":", 1, err));
            }
            FB_TRY(fb_shape_spell(v, out, err));
        }
        return fb_bytes_append(out, object ? "}" : "]", 1, err);
    default:
        return fb_bytes_append(out, "null", 4, err);
    }
}
