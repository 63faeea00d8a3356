/* Strings and numbers of a schema. Each is a leaf: a rule of its own, which calls none. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schema/compile.h"

/* ---- strings ---- */

#define MONTHS_31 "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
#define MONTHS_30 "(0[469]|11)-(0[1-9]|[12][0-9]|30)"
#define FEBRUARY  "02-(0[1-9]|1[0-9]|2[0-8])"
#define DATE      "[1-9][0-9]{3}-(" MONTHS_31 "|" MONTHS_30 "|" FEBRUARY ")"
#define CLOCK     "([01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME      CLOCK ":[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]" CLOCK ")"
#define HEX(n)    "[0-9A-Fa-f]{" #n "}"
#define LABEL     "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define WORD      "[A-Za-z0-9_+-]+"
#define BYTE      "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

static const struct {
    const char *name, *pattern;
} formats[] = {{"date", "^" DATE "$"},
               {"time", "^" TIME "$"},
               {"date-time", "^" DATE "T" TIME "$"},
               {"uuid", "^" HEX(8) "-" HEX(4) "-" HEX(4) "-" HEX(4) "-" HEX(12) "$"},
               {"email", "^" WORD "(\\." WORD ")*@" LABEL "(\\." LABEL ")+$"},
               {"ipv4", "^" BYTE "(\\." BYTE "){3}$"}};

/* To copy the states of a string, and to read a pattern besides its bytes. */
#define CLONE_STEPS   1000
#define PATTERN_STEPS 1000

static const char *pattern_of_format(const fb_json *format) {
    const char *name = fb_json_text_of(format);
    for (size_t i = 0; name && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(name, formats[i].name) == 0) return formats[i].pattern;
    return NULL;
}

static fb_status make_pattern(fb_compiler *c, fb_string_rule *made, fb_error *err) {
    fb_nfa *nfa = &c->leaf;
    int32_t from, begin, end, to;
    FB_TRY(fb_work_add(&c->work, PATTERN_STEPS + 4 * (int64_t)made->size, err));
    fb_nfa_clear(nfa);
    FB_TRY(fb_nfa_node_add(nfa, &from, err));
    FB_TRY(fb_nfa_node_add(nfa, &begin, err));
    FB_TRY(fb_nfa_node_add(nfa, &end, err));
    FB_TRY(fb_nfa_node_add(nfa, &to, err));
    FB_TRY(fb_nfa_bytes(nfa, from, '"', '"', begin, err));
    FB_TRY(fb_nfa_pattern(nfa, begin, made->pattern, made->size, end, err));
    FB_TRY(fb_nfa_bytes(nfa, end, '"', '"', to, err));
    FB_TRY(fb_machine_add_rule(&c->machine, &made->rule, err));
    return fb_nfa_compile(nfa, from, to, &c->machine, made->rule, err);
}

static fb_status make_lengths(fb_compiler *c, fb_string_rule *made, fb_error *err) {
    int32_t limits;
    FB_TRY(fb_work_add(&c->work, CLONE_STEPS, err));
    FB_TRY(fb_machine_add_limits(&c->machine, made->min, made->max, &limits, err));
    return fb_machine_clone_rule(&c->machine, FB_RULE_STRING, c->string_end, limits, &made->rule, err);
}

static bool same_string(const fb_string_rule *a, const fb_string_rule *b) {
    if (!a->pattern || !b->pattern) return !a->pattern && !b->pattern && a->min == b->min && a->max == b->max;
    return a->size == b->size && memcmp(a->pattern, b->pattern, a->size) == 0;
}

/* Equal strings of a schema share a rule, and its masks. */
static fb_status string_rule(fb_compiler *c, fb_string_rule *wanted, fb_error *err) {
    for (int32_t i = 0; i < c->string_count; i++) {
        const bool compared = wanted->pattern && c->strings[i].size == wanted->size;
        FB_TRY(fb_work_add(&c->work, 1 + (compared ? (int64_t)wanted->size / 16 : 0), err));
        if (same_string(&c->strings[i], wanted)) {
            wanted->rule = c->strings[i].rule;
            return FB_OK;
        }
    }
    if (c->string_count == c->string_room) {
        int32_t room = c->string_room ? 2 * c->string_room : 16;
        fb_string_rule *strings = realloc(c->strings, (size_t)room * sizeof *strings);
        if (!strings) return fb_fail_memory(err, "schema", room * (int64_t)sizeof *strings);
        c->strings = strings;
        c->string_room = room;
    }
    FB_TRY(wanted->pattern ? make_pattern(c, wanted, err) : make_lengths(c, wanted, err));
    c->strings[c->string_count++] = *wanted;
    return FB_OK;
}

fb_status fb_compile_string(fb_compiler *c, const fb_shape *shape, int32_t from, int32_t to, fb_error *err) {
    int64_t min, max;
    const fb_json *pattern, *format;
    FB_TRY(fb_shape_count(shape, "minLength", 0, &min, err));
    FB_TRY(fb_shape_count(shape, "maxLength", INT32_MAX, &max, err));
    FB_TRY(fb_shape_get(shape, "pattern", &pattern, err));
    FB_TRY(fb_shape_get(shape, "format", &format, err));
    if (pattern && !fb_json_is(pattern, FB_JSON_STRING))
        return fb_fail(err, FB_ERROR_USAGE, "schema: pattern: not a string");
    fb_string_rule wanted = {.min = (int32_t)min, .max = (int32_t)max, .pattern = pattern_of_format(format)};
    if (wanted.pattern && pattern)
        return fb_fail(err, FB_ERROR_USAGE, "schema: pattern with this format: not supported");
    if (wanted.pattern) wanted.size = strlen(wanted.pattern);
    if (pattern) {
        wanted.pattern = fb_json_text_of(pattern);
        wanted.size = fb_json_size(pattern);
    }
    const bool lengths = min > 0 || max < INT32_MAX;
    if (wanted.pattern && lengths)
        return fb_fail(err, FB_ERROR_USAGE,
                       "schema: minLength or maxLength with a pattern or a format: not supported");
    if (min > max) return FB_OK;
    if (wanted.pattern || lengths)
        FB_TRY(string_rule(c, &wanted, err));
    else
        wanted.rule = FB_RULE_STRING;
    return fb_nfa_call(&c->nfa, from, wanted.rule, to, err);
}

/* ---- numbers ---- */

#define MOST_INTEGER 999999999999999999

/* One bound as an integer that is allowed itself unless *open; for integers always the innermost one. */
static fb_status take_bound(const char *keyword, const fb_json *value, bool fraction, bool exclusive,
                            int sign, int64_t *bound, bool *open, fb_error *err) {
    char shown[64];
    if (!fb_json_is_number(value))
        return fb_fail(err, FB_ERROR_USAGE, "schema: %s: %s (a number)", keyword,
                       fb_json_show(value, shown, sizeof shown));
    const double real = fb_json_real_of(value), whole = sign > 0 ? ceil(real) : floor(real);
    int64_t found = whole >= 1e18 ? MOST_INTEGER : whole <= -1e18 ? -MOST_INTEGER : (int64_t)whole;
    if (fb_json_is(value, FB_JSON_INT) && fabs(real) < 1e18) found = fb_json_int_of(value);
    if (fraction && whole != real)
        return fb_fail(err, FB_ERROR_USAGE, "schema: %s: %s (an integer, unless the type is integer)",
                       keyword, fb_json_show(value, shown, sizeof shown));
    if (exclusive && whole == real && !fraction) found += sign;
    const bool tighter = sign > 0 ? found > *bound : found < *bound;
    if (tighter) *bound = found;
    if (fraction && exclusive && found == *bound) *open = true;
    if (tighter && !(fraction && exclusive)) *open = false;
    return FB_OK;
}

static fb_status take_range(const fb_shape *shape, fb_nfa_range *range, fb_error *err) {
    static const struct {
        const char *keyword;
        int sign;
        bool exclusive;
    } bounds[] = {{"minimum", 1, false},
                  {"maximum", -1, false},
                  {"exclusiveMinimum", 1, true},
                  {"exclusiveMaximum", -1, true}};
    for (int i = 0; i < 4; i++) {
        const fb_json *value;
        FB_TRY(fb_shape_get(shape, bounds[i].keyword, &value, err));
        if (!value) continue;
        const bool min = bounds[i].sign > 0;
        FB_TRY(take_bound(bounds[i].keyword, value, range->fraction, bounds[i].exclusive, bounds[i].sign,
                          min ? &range->min : &range->max, min ? &range->above_min : &range->below_max, err));
    }
    return FB_OK;
}

fb_status fb_compile_number(fb_compiler *c, const fb_shape *shape, bool fraction, int32_t from, int32_t to,
                            fb_error *err) {
    fb_nfa_range range = {.min = -MOST_INTEGER, .max = MOST_INTEGER, .fraction = fraction};
    int32_t rule = fraction ? FB_RULE_NUMBER : FB_RULE_INTEGER, begin, end;
    if (fb_shape_has(shape, fb_shape_of_numbers)) {
        FB_TRY(take_range(shape, &range, err));
        fb_nfa_clear(&c->leaf);
        FB_TRY(fb_nfa_node_add(&c->leaf, &begin, err));
        FB_TRY(fb_nfa_node_add(&c->leaf, &end, err));
        FB_TRY(fb_nfa_between(&c->leaf, begin, &range, end, err));
        FB_TRY(fb_machine_add_rule(&c->machine, &rule, err));
        FB_TRY(fb_nfa_compile(&c->leaf, begin, end, &c->machine, rule, err));
    }
    return fb_nfa_call(&c->nfa, from, rule, to, err);
}
