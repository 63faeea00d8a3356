/* What values are to each other: truth, equality, order, membership, length, items. */
#include <string.h>

#include "chat/value.h"
#include "text/utf8.h"

static const char *const type_names[FB_JINJA_KINDS] = {
    [FB_JINJA_ABSENT] = "nothing",   [FB_JINJA_UNDEFINED] = "Undefined",
    [FB_JINJA_NONE] = "NoneType",    [FB_JINJA_BOOL] = "bool",
    [FB_JINJA_INT] = "int",          [FB_JINJA_FLOAT] = "float",
    [FB_JINJA_STRING] = "str",       [FB_JINJA_LIST] = "list",
    [FB_JINJA_TUPLE] = "tuple",      [FB_JINJA_RANGE] = "range",
    [FB_JINJA_VIEW] = "dict view",   [FB_JINJA_ITERATOR] = "generator",
    [FB_JINJA_DICT] = "dict",        [FB_JINJA_NAMESPACE] = "Namespace",
    [FB_JINJA_LOOP] = "LoopContext", [FB_JINJA_FUNCTION] = "function",
    [FB_JINJA_METHOD] = "method",    [FB_JINJA_MACRO] = "Macro",
};

const char *fb_jinja_type_name(const fb_jinja_value *value) { return type_names[value->kind]; }

bool fb_jinja_is_sequence(const fb_jinja_value *v) {
    return v->kind == FB_JINJA_LIST || v->kind == FB_JINJA_TUPLE || v->kind == FB_JINJA_RANGE;
}

int64_t fb_jinja_int_of(const fb_jinja_value *v) { return v->kind == FB_JINJA_BOOL ? v->truth : v->integer; }

double fb_jinja_real_of(const fb_jinja_value *v) {
    return v->kind == FB_JINJA_FLOAT ? v->real : (double)fb_jinja_int_of(v);
}

bool fb_jinja_truth(const fb_jinja_value *v) {
    switch (v->kind) {
    case FB_JINJA_ABSENT:
    case FB_JINJA_UNDEFINED:
    case FB_JINJA_NONE:
        return false;
    case FB_JINJA_BOOL:
        return v->truth;
    case FB_JINJA_INT:
        return v->integer != 0;
    case FB_JINJA_FLOAT:
        return v->real != 0;
    case FB_JINJA_STRING:
        return v->text.size > 0;
    case FB_JINJA_LIST:
    case FB_JINJA_TUPLE:
    case FB_JINJA_RANGE:
    case FB_JINJA_VIEW:
        return v->list->count > 0;
    case FB_JINJA_DICT:
        return v->dict->count > 0;
    default:
        return true;
    }
}

fb_status fb_jinja_need(fb_jinja_run *run, const fb_jinja_value *v) {
    if (v->kind != FB_JINJA_UNDEFINED) return FB_OK;
    return fb_jinja_fail(&run->base, "'%.*s' is undefined", (int)(v->text.size < 80 ? v->text.size : 80),
                         v->text.bytes ? v->text.bytes : "");
}

fb_status fb_jinja_need_text(fb_jinja_run *run, const char *what, const fb_jinja_value *v,
                             fb_jinja_text *out) {
    FB_TRY(fb_jinja_need(run, v));
    if (v->kind != FB_JINJA_STRING)
        return fb_jinja_fail(&run->base, "%s: %s (expected str)", what, fb_jinja_type_name(v));
    *out = v->text;
    return FB_OK;
}

fb_status fb_jinja_need_int(fb_jinja_run *run, const char *what, const fb_jinja_value *v, int64_t *out) {
    FB_TRY(fb_jinja_need(run, v));
    if (!fb_jinja_is_int(v))
        return fb_jinja_fail(&run->base, "%s: %s (expected int)", what, fb_jinja_type_name(v));
    *out = fb_jinja_int_of(v);
    return FB_OK;
}

/* ---- equality and order ---- */

static fb_status equal_lists(fb_jinja_run *run, const fb_jinja_list *a, const fb_jinja_list *b, bool *out) {
    *out = a->count == b->count;
    FB_TRY(fb_jinja_enter(run));
    for (int64_t i = 0; i < a->count && *out; i++)
        FB_TRY(fb_jinja_equal(run, &a->items[i], &b->items[i], out));
    fb_jinja_leave(run);
    return FB_OK;
}

static fb_status equal_dicts(fb_jinja_run *run, const fb_jinja_dict *a, const fb_jinja_dict *b, bool *out) {
    *out = a->count == b->count;
    FB_TRY(fb_jinja_enter(run));
    for (int64_t i = 0; i < a->count && *out; i++) {
        fb_jinja_value *other;
        FB_TRY(fb_jinja_dict_find(run, b, &a->entries[i].key, &other));
        *out = other != NULL;
        if (other) FB_TRY(fb_jinja_equal(run, &a->entries[i].value, other, out));
    }
    fb_jinja_leave(run);
    return FB_OK;
}

fb_status fb_jinja_equal(fb_jinja_run *run, const fb_jinja_value *a, const fb_jinja_value *b, bool *out) {
    FB_TRY(fb_jinja_work(run, 1));
    *out = false;
    if (fb_jinja_is_int(a) && fb_jinja_is_int(b)) {
        *out = fb_jinja_int_of(a) == fb_jinja_int_of(b);
        return FB_OK;
    }
    if (fb_jinja_is_number(a) && fb_jinja_is_number(b)) {
        *out = fb_jinja_real_of(a) == fb_jinja_real_of(b);
        return FB_OK;
    }
    if (a->kind != b->kind) return FB_OK;
    switch (a->kind) {
    case FB_JINJA_UNDEFINED:
    case FB_JINJA_NONE:
        *out = true;
        return FB_OK;
    case FB_JINJA_STRING:
        *out = fb_jinja_same(a->text, b->text);
        return a->text.size == b->text.size ? fb_jinja_work_bytes(run, a->text.size) : FB_OK;
    case FB_JINJA_LIST:
    case FB_JINJA_TUPLE:
    case FB_JINJA_RANGE:
        return equal_lists(run, a->list, b->list, out);
    case FB_JINJA_DICT:
        return equal_dicts(run, a->dict, b->dict, out);
    case FB_JINJA_FUNCTION:
        *out = a->function == b->function;
        return FB_OK;
    default: /* by identity */
        *out = a->list == b->list;
        return FB_OK;
    }
}

static int order_of(double a, double b) { return (a > b) - (a < b); }

static int compare_texts(fb_jinja_text a, fb_jinja_text b) {
    int64_t size = a.size < b.size ? a.size : b.size;
    int order = size > 0 ? memcmp(a.bytes, b.bytes, (size_t)size) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

static fb_status compare_lists(fb_jinja_run *run, const fb_jinja_list *a, const fb_jinja_list *b,
                               int *order) {
    FB_TRY(fb_jinja_enter(run));
    *order = (a->count > b->count) - (a->count < b->count);
    for (int64_t i = 0; i < a->count && i < b->count; i++) {
        bool equal;
        FB_TRY(fb_jinja_equal(run, &a->items[i], &b->items[i], &equal));
        if (equal) continue;
        FB_TRY(fb_jinja_compare(run, &a->items[i], &b->items[i], order));
        break;
    }
    fb_jinja_leave(run);
    return FB_OK;
}

fb_status fb_jinja_compare(fb_jinja_run *run, const fb_jinja_value *a, const fb_jinja_value *b, int *order) {
    FB_TRY(fb_jinja_work(run, 1));
    FB_TRY(fb_jinja_need(run, a));
    FB_TRY(fb_jinja_need(run, b));
    if (fb_jinja_is_int(a) && fb_jinja_is_int(b)) {
        int64_t x = fb_jinja_int_of(a), y = fb_jinja_int_of(b);
        *order = (x > y) - (x < y);
        return FB_OK;
    }
    if (fb_jinja_is_number(a) && fb_jinja_is_number(b)) {
        *order = order_of(fb_jinja_real_of(a), fb_jinja_real_of(b));
        return FB_OK;
    }
    if (a->kind == b->kind && a->kind == FB_JINJA_STRING) {
        *order = compare_texts(a->text, b->text);
        return fb_jinja_work_bytes(run, a->text.size);
    }
    if (a->kind == b->kind && (a->kind == FB_JINJA_LIST || a->kind == FB_JINJA_TUPLE))
        return compare_lists(run, a->list, b->list, order);
    return fb_jinja_fail(&run->base, "cannot compare %s and %s", fb_jinja_type_name(a),
                         fb_jinja_type_name(b));
}

/* ---- what is in a value ---- */

fb_status fb_jinja_contains(fb_jinja_run *run, const fb_jinja_value *container, const fb_jinja_value *item,
                            bool *out) {
    *out = false;
    if (container->kind == FB_JINJA_STRING) {
        fb_jinja_text part;
        FB_TRY(fb_jinja_need_text(run, "'in <string>'", item, &part));
        FB_TRY(fb_jinja_work_bytes(run, container->text.size));
        *out = fb_jinja_find(container->text, part, 0, container->text.size, false) >= 0;
        return FB_OK;
    }
    if (container->kind == FB_JINJA_DICT) {
        fb_jinja_value *found;
        FB_TRY(fb_jinja_dict_find(run, container->dict, item, &found));
        *out = found != NULL;
        return FB_OK;
    }
    fb_jinja_list *items;
    FB_TRY(fb_jinja_items(run, container, &items));
    for (int64_t i = 0; i < items->count && !*out; i++)
        FB_TRY(fb_jinja_equal(run, &items->items[i], item, out));
    return FB_OK;
}

static fb_status text_items(fb_jinja_run *run, fb_jinja_text text, fb_jinja_list *list) {
    for (int64_t at = 0, size; at < text.size; at += size) {
        size = fb_utf8_length(text.bytes[at]);
        FB_TRY(fb_jinja_append(run, list, fb_jinja_string(fb_jinja_part(text, at, at + size))));
    }
    return FB_OK;
}

/* What has not been read of an iterator, which is empty then. */
static fb_status iterator_items(fb_jinja_run *run, fb_jinja_list *from, fb_jinja_list *list) {
    for (; from->read < from->count; from->read++)
        FB_TRY(fb_jinja_append(run, list, from->items[from->read]));
    return FB_OK;
}

fb_status fb_jinja_items(fb_jinja_run *run, const fb_jinja_value *v, fb_jinja_list **out) {
    if (fb_jinja_is_sequence(v) || v->kind == FB_JINJA_VIEW) {
        *out = v->list;
        return FB_OK;
    }
    fb_jinja_value list;
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_LIST, 0, &list));
    *out = list.list;
    switch (v->kind) {
    case FB_JINJA_UNDEFINED:
        return FB_OK;
    case FB_JINJA_STRING:
        return text_items(run, v->text, list.list);
    case FB_JINJA_ITERATOR:
        return iterator_items(run, v->list, list.list);
    case FB_JINJA_DICT:
        for (int64_t i = 0; i < v->dict->count; i++)
            FB_TRY(fb_jinja_append(run, list.list, v->dict->entries[i].key));
        return FB_OK;
    default:
        return fb_jinja_fail(&run->base, "'%s' is not iterable", fb_jinja_type_name(v));
    }
}

fb_status fb_jinja_length(fb_jinja_run *run, const fb_jinja_value *v, int64_t *out) {
    *out = 0;
    if (fb_jinja_is_sequence(v) || v->kind == FB_JINJA_VIEW)
        *out = v->list->count;
    else if (v->kind == FB_JINJA_DICT)
        *out = v->dict->count;
    else if (v->kind == FB_JINJA_STRING) {
        FB_TRY(fb_jinja_work_bytes(run, v->text.size));
        *out = fb_jinja_characters(v->text);
    } else if (v->kind != FB_JINJA_UNDEFINED)
        return fb_jinja_fail(&run->base, "'%s' has no length", fb_jinja_type_name(v));
    return FB_OK;
}
