/* Values of a template, and what they are made of: arena, texts with marks, lists, dicts. */
#ifndef FB_CHAT_VALUE_H
#define FB_CHAT_VALUE_H

#include "chat/jinja.h"

typedef enum fb_jinja_kind {
    FB_JINJA_ABSENT, /* an argument that was not given; never a value of a template */
    FB_JINJA_UNDEFINED,
    FB_JINJA_NONE,
    FB_JINJA_BOOL,
    FB_JINJA_INT,
    FB_JINJA_FLOAT,
    FB_JINJA_STRING,
    FB_JINJA_LIST,
    FB_JINJA_TUPLE,
    FB_JINJA_RANGE,    /* a list that tojson and == know from a list */
    FB_JINJA_VIEW,     /* keys(), values() or items() of a dict: it has a length, but no indices */
    FB_JINJA_ITERATOR, /* what map, select and the like give: it can be read once */
    FB_JINJA_DICT,
    FB_JINJA_NAMESPACE,
    FB_JINJA_LOOP,
    FB_JINJA_FUNCTION,
    FB_JINJA_METHOD,
    FB_JINJA_MACRO,
    FB_JINJA_KINDS
} fb_jinja_kind;

/* Valid UTF-8; not terminated. */
typedef struct fb_jinja_text {
    const char *bytes;
    const unsigned char *marks; /* [size]; NULL: all 0 */
    int64_t size;
} fb_jinja_text;

typedef struct fb_jinja_value fb_jinja_value;
typedef struct fb_jinja_node fb_jinja_node;
typedef struct fb_jinja_scope fb_jinja_scope;
typedef struct fb_jinja_run fb_jinja_run;
typedef struct fb_jinja_callable fb_jinja_callable;

typedef struct fb_jinja_list {
    fb_jinja_value *items;
    int64_t count, room;
    int64_t read; /* of an iterator: items that were read already */
} fb_jinja_list;

typedef struct fb_jinja_entry fb_jinja_entry;
typedef struct fb_jinja_dict {
    fb_jinja_entry *entries; /* in the order of insertion */
    int64_t count, room;
} fb_jinja_dict;

typedef struct fb_jinja_loop fb_jinja_loop;

typedef struct fb_jinja_macro {
    const fb_jinja_node *node;
    fb_jinja_scope *scope; /* where it was defined */
} fb_jinja_macro;

typedef struct fb_jinja_method {
    const fb_jinja_callable *callable;
    fb_jinja_value *self;
} fb_jinja_method;

struct fb_jinja_value {
    fb_jinja_kind kind;
    bool markup; /* of a string: escaped already, by safe or escape. Other filters and methods lose it */
    bool group;  /* of a tuple: (grouper, list), as groupby gives it */
    union {
        bool truth;
        int64_t integer;
        double real;
        fb_jinja_text text; /* of an undefined value: the name that has no value */
        fb_jinja_list *list;
        fb_jinja_dict *dict; /* also of a namespace */
        fb_jinja_loop *loop;
        const fb_jinja_callable *function;
        fb_jinja_method *method;
        fb_jinja_macro *macro;
    };
};

struct fb_jinja_entry {
    fb_jinja_value key, value;
};

struct fb_jinja_loop {
    fb_jinja_list *items;
    int64_t index;          /* from 0 */
    fb_jinja_value changed; /* the last arguments of loop.changed */
};

/* The values of a call. */
typedef struct fb_jinja_arguments {
    fb_jinja_value *values; /* [count], by position */
    int64_t count;
    fb_jinja_dict named;
} fb_jinja_arguments;

/* A function, filter, test or method. With `params`, the arguments are bound to these names before the call,
 * and values[i] is ABSENT where one is missing; "a b?": b is optional. Without, they come as they are. */
struct fb_jinja_callable {
    const char *name;
    const char *params;
    fb_status (*call)(fb_jinja_run *run, const fb_jinja_value *self, const fb_jinja_arguments *args,
                      fb_jinja_value *out);
};

/* ---- arena ---- */

typedef struct fb_jinja_arena {
    struct fb_jinja_chunk *chunks;
    int64_t used, limit; /* bytes in all chunks */
    bool full;           /* the limit kept it from giving memory */
} fb_jinja_arena;

void *fb_jinja_arena_take(fb_jinja_arena *arena,
                          int64_t size); /* zeroed; NULL: no memory or above the limit */
void fb_jinja_arena_free(fb_jinja_arena *arena);

/* ---- a run ---- */

typedef struct fb_jinja_builder {
    char *bytes;
    unsigned char *marks; /* NULL: all 0 so far */
    int64_t size, room;
} fb_jinja_builder;

typedef struct fb_jinja_shared {
    const char *name; /* of the template, for messages */
    fb_error *err;
    fb_jinja_arena arena;
    int32_t line; /* of what runs now */
} fb_jinja_shared;

struct fb_jinja_run {
    fb_jinja_shared base;
    int64_t steps, step_limit; /* that are left, and were there in the beginning */
    int64_t depth;
    int64_t now;
    fb_jinja_scope *scope;
    fb_jinja_builder *out;
    int32_t leave; /* a break or continue on its way to its loop */
};

/* Fails with "NAME: line N: message". */
fb_status fb_jinja_fail(fb_jinja_shared *base, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* After the arena gave nothing: the template is wrong if it used up its limit, else there is no memory. */
fb_status fb_jinja_fail_memory(fb_jinja_shared *base);

/* Every recursion that a template or its values control enters and leaves. */
fb_status fb_jinja_enter(fb_jinja_run *run);
static inline void fb_jinja_leave(fb_jinja_run *run) { run->depth--; }
/* Counts steps of work. */
fb_status fb_jinja_work(fb_jinja_run *run, int64_t steps);
/* The steps of going through so many bytes. */
static inline fb_status fb_jinja_work_bytes(fb_jinja_run *run, int64_t bytes) {
    return fb_jinja_work(run, 1 + bytes / 8);
}

/* ---- making values ---- */

static inline fb_jinja_value fb_jinja_none(void) { return (fb_jinja_value){.kind = FB_JINJA_NONE}; }
static inline fb_jinja_value fb_jinja_bool(bool truth) {
    return (fb_jinja_value){.kind = FB_JINJA_BOOL, .truth = truth};
}
static inline fb_jinja_value fb_jinja_int(int64_t integer) {
    return (fb_jinja_value){.kind = FB_JINJA_INT, .integer = integer};
}
static inline fb_jinja_value fb_jinja_float(double real) {
    return (fb_jinja_value){.kind = FB_JINJA_FLOAT, .real = real};
}
static inline fb_jinja_value fb_jinja_string(fb_jinja_text text) {
    return (fb_jinja_value){.kind = FB_JINJA_STRING, .text = text};
}
static inline fb_jinja_value fb_jinja_undefined(fb_jinja_text name) {
    return (fb_jinja_value){.kind = FB_JINJA_UNDEFINED, .text = name};
}
fb_jinja_text fb_jinja_literal(const char *text); /* of constant text */

/* The bytes [start, end) of a text. */
static inline fb_jinja_text fb_jinja_part(fb_jinja_text text, int64_t start, int64_t end) {
    return (fb_jinja_text){text.bytes + start, text.marks ? text.marks + start : NULL, end - start};
}

fb_status fb_jinja_new_list(fb_jinja_run *run, fb_jinja_kind kind, int64_t room, fb_jinja_value *out);
fb_status fb_jinja_append(fb_jinja_run *run, fb_jinja_list *list, fb_jinja_value item);
fb_status fb_jinja_new_dict(fb_jinja_run *run, fb_jinja_kind kind, fb_jinja_value *out);
fb_status fb_jinja_dict_set(fb_jinja_run *run, fb_jinja_dict *dict, fb_jinja_value key, fb_jinja_value value);
/* *out is NULL if the key is not there. */
fb_status fb_jinja_dict_find(fb_jinja_run *run, const fb_jinja_dict *dict, const fb_jinja_value *key,
                             fb_jinja_value **out);
/* The same for a text, which cannot fail; names of variables and arguments. */
fb_jinja_value *fb_jinja_dict_named(const fb_jinja_dict *dict, fb_jinja_text name);
/* A value from JSON. Its strings are marked, except for the well-known roles of messages: a template may make
 * a special token of one, as in '<|' + message.role + '|>'. */
fb_status fb_jinja_from_json(fb_jinja_run *run, const fb_json *json, fb_jinja_value *out);

/* ---- building texts ---- */

fb_status fb_jinja_put(fb_jinja_run *run, fb_jinja_builder *b, fb_jinja_text text);
fb_status fb_jinja_put_string(fb_jinja_run *run, fb_jinja_builder *b, const char *text); /* trusted */
/* `size` bytes that stand for others: they get the mark. */
fb_status fb_jinja_put_marked(fb_jinja_run *run, fb_jinja_builder *b, const char *bytes, int64_t size,
                              unsigned char mark);
fb_status fb_jinja_put_code(fb_jinja_run *run, fb_jinja_builder *b, uint32_t code, unsigned char mark);
static inline fb_jinja_text fb_jinja_built(const fb_jinja_builder *b) {
    return (fb_jinja_text){b->bytes ? b->bytes : "", b->marks, b->size};
}
fb_status fb_jinja_concat(fb_jinja_run *run, fb_jinja_text left, fb_jinja_text right, fb_jinja_value *out);

/* str() and repr() of a value, appended. */
fb_status fb_jinja_put_str(fb_jinja_run *run, fb_jinja_builder *b, const fb_jinja_value *value);
fb_status fb_jinja_put_repr(fb_jinja_run *run, fb_jinja_builder *b, const fb_jinja_value *value);
fb_status fb_jinja_to_str(fb_jinja_run *run, const fb_jinja_value *value, fb_jinja_text *out);
/* repr() of a float into `text` [32]. */
void fb_jinja_show_float(double real, char text[32]);

/* json.dumps(value, ensure_ascii, indent, separators, sort_keys). */
typedef struct fb_jinja_json_style {
    bool ascii, sort, indented;
    fb_jinja_text indent, comma, colon;
} fb_jinja_json_style;
fb_status fb_jinja_put_json(fb_jinja_run *run, fb_jinja_builder *b, const fb_jinja_value *value,
                            const fb_jinja_json_style *style);

/* ---- asking values ---- */

const char *fb_jinja_type_name(const fb_jinja_value *value); /* Python's: "str", "dict" */
bool fb_jinja_is_sequence(const fb_jinja_value *value);      /* a list, tuple or range */
static inline bool fb_jinja_is_int(const fb_jinja_value *v) {
    return v->kind == FB_JINJA_INT || v->kind == FB_JINJA_BOOL;
}
static inline bool fb_jinja_is_number(const fb_jinja_value *v) {
    return fb_jinja_is_int(v) || v->kind == FB_JINJA_FLOAT;
}
int64_t fb_jinja_int_of(const fb_jinja_value *value); /* of an int or bool */
double fb_jinja_real_of(const fb_jinja_value *value); /* of a number */
bool fb_jinja_truth(const fb_jinja_value *value);
fb_status fb_jinja_equal(fb_jinja_run *run, const fb_jinja_value *a, const fb_jinja_value *b, bool *out);
/* *order < 0, 0 or > 0. Fails where Python raises a TypeError. */
fb_status fb_jinja_compare(fb_jinja_run *run, const fb_jinja_value *a, const fb_jinja_value *b, int *order);
fb_status fb_jinja_contains(fb_jinja_run *run, const fb_jinja_value *container, const fb_jinja_value *item,
                            bool *out);
/* The items that a loop over the value sees. The list may be the value's own. */
fb_status fb_jinja_items(fb_jinja_run *run, const fb_jinja_value *value, fb_jinja_list **out);
fb_status fb_jinja_length(fb_jinja_run *run, const fb_jinja_value *value, int64_t *out);
/* Fails for an undefined value: "'name' is undefined". */
fb_status fb_jinja_need(fb_jinja_run *run, const fb_jinja_value *value);
fb_status fb_jinja_need_text(fb_jinja_run *run, const char *what, const fb_jinja_value *value,
                             fb_jinja_text *out);
fb_status fb_jinja_need_int(fb_jinja_run *run, const char *what, const fb_jinja_value *value, int64_t *out);

bool fb_jinja_same(fb_jinja_text a, fb_jinja_text b);
bool fb_jinja_is(fb_jinja_text text, const char *constant);

/* ---- characters ---- */

int64_t fb_jinja_characters(fb_jinja_text text);
/* The byte at which character `index` begins; the size for the index behind the last one. */
int64_t fb_jinja_offset(fb_jinja_text text, int64_t index);
bool fb_jinja_is_space(uint32_t code); /* as str.isspace */
/* Without the characters at its ends that are in `set`; NULL: white space. */
fb_jinja_text fb_jinja_strip(fb_jinja_text text, const fb_jinja_text *set, bool left, bool right);
/* Where `part` first (last) occurs in [start, end), or -1. */
int64_t fb_jinja_find(fb_jinja_text text, fb_jinja_text part, int64_t start, int64_t end, bool last);

#endif
