/* Arithmetic, and access to what is in a value. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chat/call.h"
#include "text/utf8.h"

/* ---- arithmetic ---- */

static fb_status fail_operands(fb_jinja_run *run, fb_jinja_op op, const fb_jinja_value *a,
                               const fb_jinja_value *b) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**", "~"};
    return fb_jinja_fail(&run->base, "unsupported operands for %s: '%s' and '%s'", names[op],
                         fb_jinja_type_name(a), fb_jinja_type_name(b));
}

static bool power(int64_t base, int64_t exponent, int64_t *out) {
    int64_t result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return false;
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return false;
    }
    *out = result;
    return true;
}

static fb_status int_arithmetic(fb_jinja_run *run, fb_jinja_op op, int64_t a, int64_t b,
                                fb_jinja_value *out) {
    int64_t result = 0;
    bool fits = true;
    if ((op == FB_JINJA_FLOOR_DIV || op == FB_JINJA_MOD) && b == 0)
        return fb_jinja_fail(&run->base, "division by zero");
    switch (op) {
    case FB_JINJA_ADD:
        fits = !__builtin_add_overflow(a, b, &result);
        break;
    case FB_JINJA_SUB:
        fits = !__builtin_sub_overflow(a, b, &result);
        break;
    case FB_JINJA_MUL:
        fits = !__builtin_mul_overflow(a, b, &result);
        break;
    case FB_JINJA_FLOOR_DIV:
        fits = !(a == INT64_MIN && b == -1);
        if (fits) result = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case FB_JINJA_MOD:
        result = b == -1 ? 0 : a % b;
        if (result != 0 && (result < 0) != (b < 0)) result += b;
        break;
    default:
        fits = power(a, b, &result);
    }
    if (!fits) return fb_jinja_fail(&run->base, "number beyond 64 bits");
    *out = fb_jinja_int(result);
    return FB_OK;
}

static fb_status real_arithmetic(fb_jinja_run *run, fb_jinja_op op, double a, double b, fb_jinja_value *out) {
    double result, rest;
    if ((op == FB_JINJA_DIV || op == FB_JINJA_FLOOR_DIV || op == FB_JINJA_MOD) && b == 0)
        return fb_jinja_fail(&run->base, "division by zero");
    switch (op) {
    case FB_JINJA_ADD:
        result = a + b;
        break;
    case FB_JINJA_SUB:
        result = a - b;
        break;
    case FB_JINJA_MUL:
        result = a * b;
        break;
    case FB_JINJA_DIV:
        result = a / b;
        break;
    case FB_JINJA_FLOOR_DIV:
    case FB_JINJA_MOD:
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
        result = op == FB_JINJA_MOD ? rest : floor((a - rest) / b + 0.5);
        break;
    default:
        result = pow(a, b);
    }
    *out = fb_jinja_float(result);
    return FB_OK;
}

static fb_status repeat(fb_jinja_run *run, const fb_jinja_value *what, int64_t times, fb_jinja_value *out) {
    if (what->kind == FB_JINJA_STRING) {
        fb_jinja_builder b = {0};
        for (int64_t i = 0; i < times && what->text.size > 0; i++) FB_TRY(fb_jinja_put(run, &b, what->text));
        *out = fb_jinja_string(fb_jinja_built(&b));
        return FB_OK;
    }
    FB_TRY(fb_jinja_new_list(run, what->kind, 0, out));
    for (int64_t i = 0; i < times && what->list->count > 0; i++)
        for (int64_t k = 0; k < what->list->count; k++)
            FB_TRY(fb_jinja_append(run, out->list, what->list->items[k]));
    return FB_OK;
}

static fb_status join_lists(fb_jinja_run *run, const fb_jinja_value *a, const fb_jinja_value *b,
                            fb_jinja_value *out) {
    FB_TRY(fb_jinja_new_list(run, a->kind, a->list->count + b->list->count, out));
    for (int64_t i = 0; i < a->list->count; i++) FB_TRY(fb_jinja_append(run, out->list, a->list->items[i]));
    for (int64_t i = 0; i < b->list->count; i++) FB_TRY(fb_jinja_append(run, out->list, b->list->items[i]));
    return FB_OK;
}

/* Markup escapes what it is added to. */
static fb_status add_texts(fb_jinja_run *run, const fb_jinja_value *a, const fb_jinja_value *b,
                           fb_jinja_value *out) {
    fb_jinja_value left = *a, right = *b;
    bool markup = a->markup || b->markup;
    if (markup) FB_TRY(fb_jinja_escape(run, a, &left));
    if (markup) FB_TRY(fb_jinja_escape(run, b, &right));
    FB_TRY(fb_jinja_concat(run, left.text, right.text, out));
    out->markup = markup;
    return FB_OK;
}

static bool repeats(const fb_jinja_value *v) {
    return v->kind == FB_JINJA_STRING || v->kind == FB_JINJA_LIST || v->kind == FB_JINJA_TUPLE;
}

fb_status fb_jinja_binary(fb_jinja_run *run, fb_jinja_op op, const fb_jinja_value *a, const fb_jinja_value *b,
                          fb_jinja_value *out) {
    if (op == FB_JINJA_CONCAT) {
        fb_jinja_text left, right;
        FB_TRY(fb_jinja_to_str(run, a, &left));
        FB_TRY(fb_jinja_to_str(run, b, &right));
        return fb_jinja_concat(run, left, right, out);
    }
    FB_TRY(fb_jinja_need(run, a));
    FB_TRY(fb_jinja_need(run, b));
    if (op == FB_JINJA_MOD && a->kind == FB_JINJA_STRING) return fb_jinja_percent(run, a->text, b, out);
    if (fb_jinja_is_int(a) && fb_jinja_is_int(b) && op != FB_JINJA_DIV &&
        (op != FB_JINJA_POW || fb_jinja_int_of(b) >= 0))
        return int_arithmetic(run, op, fb_jinja_int_of(a), fb_jinja_int_of(b), out);
    if (fb_jinja_is_number(a) && fb_jinja_is_number(b))
        return real_arithmetic(run, op, fb_jinja_real_of(a), fb_jinja_real_of(b), out);
    if (op == FB_JINJA_ADD && a->kind == b->kind) {
        if (a->kind == FB_JINJA_STRING) return add_texts(run, a, b, out);
        if (a->kind == FB_JINJA_LIST || a->kind == FB_JINJA_TUPLE) return join_lists(run, a, b, out);
    }
    if (op == FB_JINJA_MUL && repeats(a) && fb_jinja_is_int(b))
        return repeat(run, a, fb_jinja_int_of(b), out);
    if (op == FB_JINJA_MUL && repeats(b) && fb_jinja_is_int(a))
        return repeat(run, b, fb_jinja_int_of(a), out);
    return fail_operands(run, op, a, b);
}

/* ---- attributes and items ---- */

static fb_status bind_method(fb_jinja_run *run, const fb_jinja_callable *callable, const fb_jinja_value *self,
                             fb_jinja_value *out) {
    fb_jinja_method *method = fb_jinja_arena_take(&run->base.arena, sizeof *method);
    fb_jinja_value *copy = fb_jinja_arena_take(&run->base.arena, sizeof *copy);
    if (!method || !copy) return fb_jinja_fail_memory(&run->base);
    *copy = *self;
    *method = (fb_jinja_method){callable, copy};
    *out = (fb_jinja_value){.kind = FB_JINJA_METHOD, .method = method};
    return FB_OK;
}

static const fb_jinja_callable *methods_of(const fb_jinja_value *v) {
    static const fb_jinja_callable none[] = {{0}};
    switch (v->kind) {
    case FB_JINJA_STRING:
        return fb_jinja_string_methods;
    case FB_JINJA_LIST:
    case FB_JINJA_TUPLE:
        return fb_jinja_list_methods;
    case FB_JINJA_DICT:
        return fb_jinja_dict_methods;
    case FB_JINJA_LOOP:
        return fb_jinja_loop_methods;
    default:
        return none;
    }
}

/* loop.index and the like. */
static bool loop_field(const fb_jinja_loop *loop, fb_jinja_text name, fb_jinja_value *out) {
    int64_t count = loop->items->count, index = loop->index;
    const struct {
        const char *name;
        fb_jinja_value value;
    } fields[] = {
        {"index", fb_jinja_int(index + 1)},
        {"index0", fb_jinja_int(index)},
        {"revindex", fb_jinja_int(count - index)},
        {"revindex0", fb_jinja_int(count - index - 1)},
        {"first", fb_jinja_bool(index == 0)},
        {"last", fb_jinja_bool(index == count - 1)},
        {"length", fb_jinja_int(count)},
        {"depth", fb_jinja_int(1)}, /* only recursive loops go deeper */
        {"depth0", fb_jinja_int(0)},
        {"previtem",
         index > 0 ? loop->items->items[index - 1] : fb_jinja_undefined(fb_jinja_literal("loop.previtem"))},
        {"nextitem", index + 1 < count ? loop->items->items[index + 1]
                                       : fb_jinja_undefined(fb_jinja_literal("loop.nextitem"))},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fb_jinja_is(name, fields[i].name)) {
            *out = fields[i].value;
            return true;
        }
    return false;
}

fb_status fb_jinja_attribute(fb_jinja_run *run, const fb_jinja_value *object, fb_jinja_text name,
                             fb_jinja_value *out) {
    FB_TRY(fb_jinja_need(run, object));
    const fb_jinja_callable *method = fb_jinja_find_callable(methods_of(object), name);
    if (method) return bind_method(run, method, object, out);
    const fb_jinja_value *found = NULL;
    if (object->group && fb_jinja_is(name, "grouper")) found = &object->list->items[0];
    if (object->group && fb_jinja_is(name, "list")) found = &object->list->items[1];
    if (object->kind == FB_JINJA_LOOP && loop_field(object->loop, name, out)) return FB_OK;
    if (object->kind == FB_JINJA_DICT || object->kind == FB_JINJA_NAMESPACE) {
        FB_TRY(fb_jinja_work(run, object->dict->count / 8));
        found = fb_jinja_dict_named(object->dict, name);
    }
    *out = found ? *found : fb_jinja_undefined(name);
    return FB_OK;
}

static fb_status text_item(fb_jinja_run *run, fb_jinja_text text, int64_t index, fb_jinja_value *out) {
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    int64_t count = fb_jinja_characters(text);
    if (index < 0) index += count;
    if (index < 0 || index >= count) return FB_OK;
    int64_t start = fb_jinja_offset(text, index);
    *out = fb_jinja_string(fb_jinja_part(text, start, start + fb_utf8_length(text.bytes[start])));
    return FB_OK;
}

/* What is not there is undefined. */
fb_status fb_jinja_item(fb_jinja_run *run, const fb_jinja_value *object, const fb_jinja_value *key,
                        fb_jinja_value *out) {
    FB_TRY(fb_jinja_need(run, object));
    fb_jinja_text shown = {"element", NULL, 7};
    *out = fb_jinja_undefined(key->kind == FB_JINJA_STRING ? key->text : shown);
    if (object->kind == FB_JINJA_DICT && key->kind != FB_JINJA_LIST && key->kind != FB_JINJA_DICT) {
        fb_jinja_value *found;
        FB_TRY(fb_jinja_dict_find(run, object->dict, key, &found));
        if (found) {
            *out = *found;
            return FB_OK;
        }
    } else if (fb_jinja_is_sequence(object) && fb_jinja_is_int(key)) {
        int64_t index = fb_jinja_int_of(key), count = object->list->count;
        if (index < 0) index += count;
        if (index >= 0 && index < count) *out = object->list->items[index];
        return FB_OK;
    } else if (object->kind == FB_JINJA_STRING && fb_jinja_is_int(key)) {
        return text_item(run, object->text, fb_jinja_int_of(key), out);
    }
    return key->kind == FB_JINJA_STRING ? fb_jinja_attribute(run, object, key->text, out) : FB_OK;
}

/* ---- slices ---- */

/* Python's rule: a bound that is out of range is moved to the nearest one that is in it. */
static int64_t clamp(int64_t bound, int64_t count, int64_t low, int64_t high) {
    if (bound < 0) bound = bound < -count ? INT64_MIN : bound + count;
    return bound < low ? low : bound > high ? high : bound;
}

static fb_status slice_bounds(fb_jinja_run *run, const fb_jinja_value bounds[3], int64_t count,
                              int64_t at[3]) {
    at[2] = 1;
    if (bounds[2].kind != FB_JINJA_NONE) FB_TRY(fb_jinja_need_int(run, "slice", &bounds[2], &at[2]));
    if (at[2] == 0) return fb_jinja_fail(&run->base, "slice step cannot be zero");
    bool forward = at[2] > 0;
    int64_t low = forward ? 0 : -1, high = forward ? count : count - 1;
    at[0] = forward ? low : high;
    at[1] = forward ? high : low;
    for (int i = 0; i < 2; i++) {
        if (bounds[i].kind == FB_JINJA_NONE) continue;
        FB_TRY(fb_jinja_need_int(run, "slice", &bounds[i], &at[i]));
        at[i] = clamp(at[i], count, low, high);
    }
    return FB_OK;
}

static bool slice_next(const int64_t at[3], int64_t *index) {
    int64_t next;
    if (__builtin_add_overflow(*index, at[2], &next)) return false;
    *index = next;
    return at[2] > 0 ? next < at[1] : next > at[1];
}

static fb_status slice_list(fb_jinja_run *run, const fb_jinja_list *from, const int64_t at[3],
                            fb_jinja_list *to) {
    int64_t index = at[0];
    if (at[2] > 0 ? index >= at[1] : index <= at[1]) return FB_OK;
    do FB_TRY(fb_jinja_append(run, to, from->items[index]));
    while (slice_next(at, &index));
    return FB_OK;
}

static fb_status slice_text(fb_jinja_run *run, const fb_jinja_value *object, const fb_jinja_value bounds[3],
                            fb_jinja_value *out) {
    int64_t at[3];
    fb_jinja_text text = object->text;
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    FB_TRY(slice_bounds(run, bounds, fb_jinja_characters(text), at));
    if (at[2] == 1) {
        int64_t start = fb_jinja_offset(text, at[0]), end = fb_jinja_offset(text, at[1]);
        *out = fb_jinja_string(fb_jinja_part(text, start, end > start ? end : start));
        return FB_OK;
    }
    fb_jinja_list *characters;
    fb_jinja_list kept = {0};
    fb_jinja_builder b = {0};
    FB_TRY(fb_jinja_items(run, object, &characters));
    FB_TRY(slice_list(run, characters, at, &kept));
    for (int64_t i = 0; i < kept.count; i++) FB_TRY(fb_jinja_put(run, &b, kept.items[i].text));
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

fb_status fb_jinja_slice(fb_jinja_run *run, const fb_jinja_value *object, const fb_jinja_value bounds[3],
                         fb_jinja_value *out) {
    int64_t at[3];
    FB_TRY(fb_jinja_need(run, object));
    if (object->kind == FB_JINJA_STRING) return slice_text(run, object, bounds, out);
    if (!fb_jinja_is_sequence(object)) {
        *out = fb_jinja_undefined(fb_jinja_literal("slice"));
        return FB_OK;
    }
    FB_TRY(slice_bounds(run, bounds, object->list->count, at));
    FB_TRY(fb_jinja_new_list(run, object->kind, 0, out));
    return slice_list(run, object->list, at, out->list);
}

/* ---- paths ---- */

fb_status fb_jinja_path(fb_jinja_run *run, const fb_jinja_value *object, const fb_jinja_value *path,
                        const fb_jinja_value *fallback, fb_jinja_value *out) {
    *out = *object;
    if (path->kind != FB_JINJA_STRING) {
        FB_TRY(fb_jinja_item(run, object, path, out));
        if (fallback && out->kind == FB_JINJA_UNDEFINED) *out = *fallback;
        return FB_OK;
    }
    for (int64_t start = 0, end; start <= path->text.size; start = end + 1) {
        end = start;
        bool digits = true;
        for (; end < path->text.size && path->text.bytes[end] != '.'; end++)
            digits = digits && path->text.bytes[end] >= '0' && path->text.bytes[end] <= '9';
        fb_jinja_text part = fb_jinja_part(path->text, start, end);
        fb_jinja_value key = fb_jinja_string(part), from = *out;
        if (digits && end > start && end - start < 10) {
            key = fb_jinja_int(0);
            for (int64_t i = 0; i < part.size; i++) key.integer = 10 * key.integer + part.bytes[i] - '0';
        }
        FB_TRY(fb_jinja_item(run, &from, &key, out));
        if (fallback && out->kind == FB_JINJA_UNDEFINED) *out = *fallback;
    }
    return FB_OK;
}
