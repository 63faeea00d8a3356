/* What a JSON schema says about one value: the schemas that apply to it together. */
#ifndef FB_SCHEMA_SHAPE_H
#define FB_SCHEMA_SHAPE_H

#include "file/json.h"
#include "schema/work.h"
#include "text/bytes.h"

#define FB_SHAPE_OBJECTS 16

/* More than one object after allOf, or a $ref with neighbours. */
typedef struct fb_shape {
    const fb_json *root;
    fb_work *work; /* of the whole schema */
    const fb_json *objects[FB_SHAPE_OBJECTS];
    /* Of each: its anyOf and its oneOf, if an alternative of it is among the objects. */
    bool taken[FB_SHAPE_OBJECTS][2];
    int count;
    bool never; /* false is among the schemas */
    bool arrays_only;
} fb_shape;

typedef enum fb_shape_type {
    FB_SHAPE_NULL = 1,
    FB_SHAPE_BOOL = 2,
    FB_SHAPE_INTEGER = 4,
    FB_SHAPE_NUMBER = 8, /* integers, too */
    FB_SHAPE_STRING = 16,
    FB_SHAPE_ARRAY = 32,
    FB_SHAPE_OBJECT = 64,
    FB_SHAPE_ANY = 127
} fb_shape_type;

/* Adds a schema, and what it refers to. Refuses keywords that are not supported. */
fb_status fb_shape_add(fb_shape *shape, const fb_json *schema, fb_error *err);
/* The value of a keyword; NULL: nowhere. Refuses two different ones. */
fb_status fb_shape_get(const fb_shape *shape, const char *keyword, const fb_json **value, fb_error *err);
/* Counts what fb_json_equal may have to look at. */
fb_status fb_shape_compare(const fb_shape *shape, const fb_json *left, const fb_json *right, fb_error *err);
/* A whole number from 0 on. */
fb_status fb_shape_count(const fb_shape *shape, const char *keyword, int64_t fallback, int64_t *value,
                         fb_error *err);
/* The types that the value may have, as bits. Without a type, keywords say which. */
fb_status fb_shape_types(const fb_shape *shape, unsigned *types, fb_error *err);
/* Whether one of the keywords is there: NULL ends them. */
bool fb_shape_has(const fb_shape *shape, const char *const *keywords);
/* The first anyOf or oneOf that is not taken; NULL: none. `*taken` is its mark. */
const fb_json *fb_shape_union(fb_shape *shape, bool **taken);

/* Appends a value as JSON without spaces, each character spelled as fb_nfa_characters does. */
fb_status fb_shape_spell(const fb_json *value, fb_bytes *out, fb_error *err);
fb_status fb_shape_spell_text(const char *text, size_t size, fb_bytes *out, fb_error *err);

extern const char *const fb_shape_of_strings[], *const fb_shape_of_numbers[],
                                                    *const fb_shape_of_arrays[], *const fb_shape_of_objects[];

#endif
