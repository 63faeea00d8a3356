/* From JSON schemas to rules. */
#ifndef FB_SCHEMA_COMPILE_H
#define FB_SCHEMA_COMPILE_H

#include "schema/machine.h"
#include "schema/nfa.h"
#include "schema/shape.h"

/* Rules that every machine begins with. */
typedef enum fb_base_rule {
    FB_RULE_STRING,
    FB_RULE_KEY, /* a string whose characters are spelled in one way only */
    FB_RULE_NUMBER,
    FB_RULE_INTEGER,
    FB_RULE_LINE, /* a line end and an indent */
    FB_RULE_OBJECT,
    FB_RULE_ANY,
    FB_RULE_BASE /* how many there are */
} fb_base_rule;

typedef struct fb_string_rule {
    int32_t rule, min, max;
    const char *pattern; /* or NULL: lengths */
    size_t size;
} fb_string_rule;

typedef struct fb_rule_memo {
    const fb_json *schema;
    int32_t rule;
} fb_rule_memo;

typedef struct fb_compiler {
    fb_machine machine;
    fb_nfa nfa, leaf; /* of the rule that is built, and of a leaf that it calls */
    const fb_json *root;
    fb_shape *sources; /* [source_count]: of the rules behind the base's and the leaves', by `waiting` */
    int32_t *waiting;  /* their rules */
    int32_t source_count, source_room;
    fb_rule_memo *memo; /* a hash table by address */
    int32_t memo_count, memo_slots;
    fb_string_rule *strings;
    int32_t string_count, string_room;
    int32_t string_end; /* the state behind FB_RULE_STRING's */
    fb_bytes text;      /* scratch */
    int64_t values;     /* that were met */
    fb_work work;
} fb_compiler;

/* The base rules alone. `string_end` as in the compiler. */
fb_status fb_compile_base(fb_machine *out, int32_t *string_end, fb_error *err);
/* Adds the rules of a schema (NULL: any object) to a copy of the base. `first` is that of a whole document.
 */
fb_status fb_compile_schema(const fb_machine *base, int32_t string_end, const fb_json *schema,
                            fb_machine *out, int32_t *first, fb_error *err);

/* ---- within the compiler ---- */

/* The rule of a schema, which is compiled later. */
fb_status fb_compile_rule(fb_compiler *c, const fb_json *schema, int32_t *rule, fb_error *err);
fb_status fb_compile_shape(fb_compiler *c, const fb_shape *shape, int32_t *rule, fb_error *err);
/* Adds what a shape allows between two nodes. */
fb_status fb_compile_string(fb_compiler *c, const fb_shape *shape, int32_t from, int32_t to, fb_error *err);
fb_status fb_compile_number(fb_compiler *c, const fb_shape *shape, bool fraction, int32_t from, int32_t to,
                            fb_error *err);
fb_status fb_compile_array(fb_compiler *c, const fb_shape *shape, int32_t from, int32_t to, fb_error *err);
fb_status fb_compile_object(fb_compiler *c, const fb_shape *shape, int32_t from, int32_t to, fb_error *err);

/* The same where rules are known: values of any rule in brackets; members of any rule in braces. */
fb_status fb_compile_items(fb_nfa *nfa, int32_t from, int32_t rule, int32_t to, fb_error *err);
fb_status fb_compile_members(fb_nfa *nfa, int32_t from, int32_t rule, int32_t to, fb_error *err);
/* White space between two nodes, or none: a space, or a line end with an indent. */
fb_status fb_compile_space(fb_nfa *nfa, int32_t from, int32_t to, fb_error *err);
fb_status fb_compile_literal(fb_compiler *c, int32_t from, const fb_json *value, int32_t to, fb_error *err);

#endif
