/* Global functions, and the tests behind `is`. */
#include <string.h>
#include <time.h>

#include "chat/call.h"
#include "text/utf8.h"

#define RANGE_LIMIT 100000 /* of jinja2's sandbox */

/* ---- functions ---- */

FB_JINJA_CALL(call_range) {
    int64_t at[3] = {0, 0, 1};
    (void)self;
    if (args->named.count > 0 || args->count < 1 || args->count > 3)
        return fb_jinja_fail(&run->base, "range: %lld arguments (1 to 3)", (long long)args->count);
    for (int64_t i = 0; i < args->count; i++)
        FB_TRY(fb_jinja_need_int(run, "range", &args->values[i], &at[args->count == 1 ? 1 : i]));
    if (at[2] == 0) return fb_jinja_fail(&run->base, "range: step is 0");
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_RANGE, 0, out));
    for (int64_t value = at[0]; at[2] > 0 ? value < at[1] : value > at[1];) {
        if (out->list->count == RANGE_LIMIT)
            return fb_jinja_fail(&run->base, "range: more than %d numbers", RANGE_LIMIT);
        FB_TRY(fb_jinja_append(run, out->list, fb_jinja_int(value)));
        if (__builtin_add_overflow(value, at[2], &value)) break;
    }
    return FB_OK;
}

/* dict(a=1) and namespace(a=1), which both may start from a dict. */
static fb_status make_dict(fb_jinja_run *run, const char *name, fb_jinja_kind kind,
                           const fb_jinja_arguments *args, fb_jinja_value *out) {
    FB_TRY(fb_jinja_new_dict(run, kind, out));
    if (args->count > 1 || (args->count == 1 && args->values[0].kind != FB_JINJA_DICT))
        return fb_jinja_fail(&run->base, "%s: expected names with values, or one dict", name);
    const fb_jinja_dict *from[] = {args->count == 1 ? args->values[0].dict : NULL, &args->named};
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; from[k] && i < from[k]->count; i++)
            FB_TRY(fb_jinja_dict_set(run, out->dict, from[k]->entries[i].key, from[k]->entries[i].value));
    return FB_OK;
}

FB_JINJA_CALL(call_dict) {
    (void)self;
    return make_dict(run, "dict", FB_JINJA_DICT, args, out);
}

FB_JINJA_CALL(call_namespace) {
    (void)self;
    return make_dict(run, "namespace", FB_JINJA_NAMESPACE, args, out);
}

FB_JINJA_CALL(call_raise_exception) {
    fb_jinja_text text;
    (void)self;
    (void)out;
    FB_TRY(fb_jinja_to_str(run, &args->values[0], &text));
    return fb_jinja_fail(&run->base, "the template refuses: %.*s", (int)(text.size < 300 ? text.size : 300),
                         text.bytes);
}

FB_JINJA_CALL(call_strftime_now) {
    char format[256], text[1024];
    struct tm parts;
    fb_jinja_text given;
    (void)self;
    FB_TRY(fb_jinja_need_text(run, "strftime_now", &args->values[0], &given));
    time_t now = (time_t)run->now;
    if (given.size >= (int64_t)sizeof format - 1 || memchr(given.bytes, 0, (size_t)given.size))
        return fb_jinja_fail(&run->base, "strftime_now: a format of %lld bytes (at most %zu)",
                             (long long)given.size, sizeof format - 2);
    if (!gmtime_r(&now, &parts)) return fb_jinja_fail(&run->base, "strftime_now: no date for the time");
    /* A space more, so that an empty text is not a failure. */
    memcpy(format, given.bytes, (size_t)given.size);
    memcpy(format + given.size, " ", 2);
    size_t size = strftime(text, sizeof text, format, &parts);
    if (size == 0) return fb_jinja_fail(&run->base, "strftime_now: the text is too long");
    if (!fb_utf8_valid(text, (int64_t)size)) return fb_jinja_fail(&run->base, "strftime_now: not UTF-8");
    fb_jinja_builder b = {0};
    FB_TRY(fb_jinja_put_marked(run, &b, text, (int64_t)size - 1, given.marks != NULL));
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

const fb_jinja_callable fb_jinja_functions[] = {
    {"range", NULL, call_range},
    {"dict", NULL, call_dict},
    {"namespace", NULL, call_namespace},
    {"raise_exception", "message", call_raise_exception},
    {"strftime_now", "format", call_strftime_now},
    {0},
};

/* ---- tests ---- */

#define TEST(name, expression)                                                                               \
    FB_JINJA_CALL(name) {                                                                                    \
        (void)run;                                                                                           \
        (void)args;                                                                                          \
        *out = fb_jinja_bool(expression);                                                                    \
        return FB_OK;                                                                                        \
    }

TEST(test_defined, self->kind != FB_JINJA_UNDEFINED)
TEST(test_undefined, self->kind == FB_JINJA_UNDEFINED)
TEST(test_none, self->kind == FB_JINJA_NONE)
TEST(test_boolean, self->kind == FB_JINJA_BOOL)
TEST(test_true, self->kind == FB_JINJA_BOOL && self->truth)
TEST(test_false, self->kind == FB_JINJA_BOOL && !self->truth)
TEST(test_integer, self->kind == FB_JINJA_INT)
TEST(test_float, self->kind == FB_JINJA_FLOAT)
TEST(test_number, fb_jinja_is_number(self))
TEST(test_string, self->kind == FB_JINJA_STRING)
TEST(test_mapping, self->kind == FB_JINJA_DICT)
TEST(test_sequence, fb_jinja_is_sequence(self) || self->kind == FB_JINJA_STRING ||
                        self->kind == FB_JINJA_DICT || self->kind == FB_JINJA_UNDEFINED)
TEST(test_iterable, fb_jinja_is_sequence(self) || self->kind == FB_JINJA_STRING ||
                        self->kind == FB_JINJA_DICT || self->kind == FB_JINJA_UNDEFINED ||
                        self->kind == FB_JINJA_ITERATOR || self->kind == FB_JINJA_VIEW ||
                        self->kind == FB_JINJA_LOOP)
TEST(test_callable, self->kind == FB_JINJA_FUNCTION || self->kind == FB_JINJA_METHOD ||
                        self->kind == FB_JINJA_MACRO || self->kind == FB_JINJA_UNDEFINED)
TEST(test_escaped, self->kind == FB_JINJA_ABSENT) /* nothing is: texts are plain */

/* The rest of a division, for odd, even and divisibleby. */
static fb_status rest_of(fb_jinja_run *run, const fb_jinja_value *v, const fb_jinja_value *by,
                         fb_jinja_value *out) {
    FB_TRY(fb_jinja_need(run, v));
    if (!fb_jinja_is_number(v))
        return fb_jinja_fail(&run->base, "%s (expected a number)", fb_jinja_type_name(v));
    return fb_jinja_binary(run, FB_JINJA_MOD, v, by, out);
}

FB_JINJA_CALL(test_odd) {
    fb_jinja_value two = fb_jinja_int(2);
    (void)args;
    FB_TRY(rest_of(run, self, &two, out));
    *out = fb_jinja_bool(fb_jinja_real_of(out) == 1);
    return FB_OK;
}

FB_JINJA_CALL(test_even) {
    fb_jinja_value two = fb_jinja_int(2);
    (void)args;
    FB_TRY(rest_of(run, self, &two, out));
    *out = fb_jinja_bool(fb_jinja_real_of(out) == 0);
    return FB_OK;
}

FB_JINJA_CALL(test_divisibleby) {
    FB_TRY(rest_of(run, self, &args->values[0], out));
    *out = fb_jinja_bool(fb_jinja_real_of(out) == 0);
    return FB_OK;
}

FB_JINJA_CALL(test_eq) {
    bool equal;
    FB_TRY(fb_jinja_equal(run, self, &args->values[0], &equal));
    *out = fb_jinja_bool(equal);
    return FB_OK;
}

FB_JINJA_CALL(test_ne) {
    FB_TRY(test_eq(run, self, args, out));
    out->truth = !out->truth;
    return FB_OK;
}

#define ORDER_TEST(name, condition)                                                                          \
    FB_JINJA_CALL(name) {                                                                                    \
        int order;                                                                                           \
        FB_TRY(fb_jinja_compare(run, self, &args->values[0], &order));                                       \
        *out = fb_jinja_bool(order condition 0);                                                             \
        return FB_OK;                                                                                        \
    }

ORDER_TEST(test_lt, <)
ORDER_TEST(test_le, <=)
ORDER_TEST(test_gt, >)
ORDER_TEST(test_ge, >=)

FB_JINJA_CALL(test_in) {
    bool found;
    FB_TRY(fb_jinja_contains(run, &args->values[0], self, &found));
    *out = fb_jinja_bool(found);
    return FB_OK;
}

/* Identity: the same object, or equal ones of those kinds of which Python keeps one. */
FB_JINJA_CALL(test_sameas) {
    const fb_jinja_value *other = &args->values[0];
    bool same = self->kind == other->kind;
    if (same && (self->kind == FB_JINJA_BOOL || self->kind == FB_JINJA_INT || self->kind == FB_JINJA_STRING ||
                 self->kind == FB_JINJA_NONE))
        FB_TRY(fb_jinja_equal(run, self, other, &same));
    else if (same)
        same = self->kind != FB_JINJA_FLOAT && self->list == other->list;
    *out = fb_jinja_bool(same);
    return FB_OK;
}

static fb_status test_case(fb_jinja_run *run, const fb_jinja_value *self, const char *method,
                           fb_jinja_value *out) {
    fb_jinja_text text;
    fb_jinja_arguments none = {0};
    FB_TRY(fb_jinja_to_str(run, self, &text));
    fb_jinja_value value = fb_jinja_string(text);
    return fb_jinja_find_callable(fb_jinja_string_methods, fb_jinja_literal(method))
        ->call(run, &value, &none, out);
}

FB_JINJA_CALL(test_upper) {
    (void)args;
    return test_case(run, self, "isupper", out);
}

FB_JINJA_CALL(test_lower) {
    (void)args;
    return test_case(run, self, "islower", out);
}

FB_JINJA_CALL(test_filter) {
    fb_jinja_text name;
    (void)args;
    FB_TRY(fb_jinja_need_text(run, "filter", self, &name));
    *out = fb_jinja_bool(fb_jinja_find_callable(fb_jinja_text_filters, name) ||
                         fb_jinja_find_callable(fb_jinja_list_filters, name));
    return FB_OK;
}

FB_JINJA_CALL(test_test) {
    fb_jinja_text name;
    (void)args;
    FB_TRY(fb_jinja_need_text(run, "test", self, &name));
    *out = fb_jinja_bool(fb_jinja_find_callable(fb_jinja_tests, name));
    return FB_OK;
}

const fb_jinja_callable fb_jinja_tests[] = {
    {"defined", "", test_defined},    {"undefined", "", test_undefined},
    {"none", "", test_none},          {"boolean", "", test_boolean},
    {"true", "", test_true},          {"false", "", test_false},
    {"integer", "", test_integer},    {"float", "", test_float},
    {"number", "", test_number},      {"string", "", test_string},
    {"mapping", "", test_mapping},    {"sequence", "", test_sequence},
    {"iterable", "", test_iterable},  {"callable", "", test_callable},
    {"escaped", "", test_escaped},    {"odd", "", test_odd},
    {"even", "", test_even},          {"divisibleby", "num", test_divisibleby},
    {"eq", "other", test_eq},         {"equalto", "other", test_eq},
    {"==", "other", test_eq},         {"ne", "other", test_ne},
    {"!=", "other", test_ne},         {"lt", "other", test_lt},
    {"lessthan", "other", test_lt},   {"<", "other", test_lt},
    {"le", "other", test_le},         {"<=", "other", test_le},
    {"gt", "other", test_gt},         {"greaterthan", "other", test_gt},
    {">", "other", test_gt},          {"ge", "other", test_ge},
    {">=", "other", test_ge},         {"in", "seq", test_in},
    {"sameas", "other", test_sameas}, {"upper", "", test_upper},
    {"lower", "", test_lower},        {"filter", "", test_filter},
    {"test", "", test_test},          {0},
};
