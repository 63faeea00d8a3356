/* The rules of JSON itself. */
#include <string.h>

#include "schema/compile.h"

#define INDENT_SPACES 64
#define INDENT_TABS   16

/* ---- strings ---- */

/* The four digits of an escape, in which surrogates come in pairs. */
static fb_status unicode_escape(fb_nfa *nfa, int32_t from, int32_t to, fb_error *err) {
    static const char *const digits[] = {"09", "af", "AF"};
    int32_t rest[3], low[6];
    for (int i = 0; i < 3; i++) FB_TRY(fb_nfa_node_add(nfa, &rest[i], err));
    for (int i = 0; i < 6; i++) FB_TRY(fb_nfa_node_add(nfa, &low[i], err));
    int32_t after_d, high[2];
    FB_TRY(fb_nfa_node_add(nfa, &after_d, err));
    for (int i = 0; i < 2; i++) FB_TRY(fb_nfa_node_add(nfa, &high[i], err));
    static const char first[][2] = {{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}};
    for (int i = 0; i < 5; i++) FB_TRY(fb_nfa_bytes(nfa, from, first[i][0], first[i][1], rest[0], err));
    FB_TRY(fb_nfa_bytes(nfa, from, 'd', 'd', after_d, err));
    FB_TRY(fb_nfa_bytes(nfa, from, 'D', 'D', after_d, err));
    FB_TRY(fb_nfa_bytes(nfa, after_d, '0', '7', rest[1], err));
    static const char second[][2] = {{'8', '9'}, {'a', 'b'}, {'A', 'B'}};
    for (int i = 0; i < 3; i++) FB_TRY(fb_nfa_bytes(nfa, after_d, second[i][0], second[i][1], high[0], err));
    for (int i = 0; i < 3; i++) {
        const int a = digits[i][0], b = digits[i][1];
        FB_TRY(fb_nfa_bytes(nfa, rest[0], a, b, rest[1], err));
        FB_TRY(fb_nfa_bytes(nfa, rest[1], a, b, rest[2], err));
        FB_TRY(fb_nfa_bytes(nfa, rest[2], a, b, to, err));
        FB_TRY(fb_nfa_bytes(nfa, high[0], a, b, high[1], err));
        FB_TRY(fb_nfa_bytes(nfa, high[1], a, b, low[0], err));
    }
    FB_TRY(fb_nfa_bytes(nfa, low[0], '\\', '\\', low[1], err));
    FB_TRY(fb_nfa_bytes(nfa, low[1], 'u', 'u', low[2], err));
    FB_TRY(fb_nfa_bytes(nfa, low[2], 'd', 'd', low[3], err));
    FB_TRY(fb_nfa_bytes(nfa, low[2], 'D', 'D', low[3], err));
    FB_TRY(fb_nfa_bytes(nfa, low[3], 'c', 'f', low[4], err));
    FB_TRY(fb_nfa_bytes(nfa, low[3], 'C', 'F', low[4], err));
    FB_TRY(fb_nfa_bytes(nfa, low[4], '0', '9', rest[2], err));
    FB_TRY(fb_nfa_bytes(nfa, low[4], 'a', 'f', rest[2], err));
    return fb_nfa_bytes(nfa, low[4], 'A', 'F', rest[2], err);
}

/* Between the quotes at `inside`, each character in any spelling. */
static fb_status any_spelling(fb_nfa *nfa, int32_t inside, fb_error *err) {
    int32_t escape, unicode;
    FB_TRY(fb_nfa_node_add(nfa, &escape, err));
    FB_TRY(fb_nfa_node_add(nfa, &unicode, err));
    FB_TRY(fb_nfa_bytes(nfa, inside, 0x20, '"' - 1, inside, err));
    FB_TRY(fb_nfa_bytes(nfa, inside, '"' + 1, '\\' - 1, inside, err));
    FB_TRY(fb_nfa_bytes(nfa, inside, '\\' + 1, 0x7f, inside, err));
    FB_TRY(fb_nfa_characters(nfa, inside, 0x80, 0x10ffff, inside, err));
    FB_TRY(fb_nfa_bytes(nfa, inside, '\\', '\\', escape, err));
    for (const char *letter = "\"\\/bfnrt"; *letter; letter++)
        FB_TRY(fb_nfa_bytes(nfa, escape, *letter, *letter, inside, err));
    FB_TRY(fb_nfa_bytes(nfa, escape, 'u', 'u', unicode, err));
    return unicode_escape(nfa, unicode, inside, err);
}

static fb_status string_between(fb_compiler *c, int32_t from, bool one_spelling, int32_t to, fb_error *err) {
    int32_t inside, limits;
    FB_TRY(fb_nfa_node_add(&c->nfa, &inside, err));
    FB_TRY(fb_nfa_bytes(&c->nfa, from, '"', '"', inside, err));
    FB_TRY(fb_nfa_bytes(&c->nfa, inside, '"', '"', to, err));
    if (one_spelling) return fb_nfa_characters(&c->nfa, inside, 0, 0x10ffff, inside, err);
    FB_TRY(fb_machine_add_limits(&c->machine, 0, INT32_MAX, &limits, err));
    c->nfa.nodes[inside].limits = limits;
    c->nfa.nodes[inside].close = '"';
    return any_spelling(&c->nfa, inside, err);
}

/* ---- white space, and values of any kind ---- */

static fb_status line(fb_nfa *nfa, int32_t from, int32_t to, fb_error *err) {
    static const struct {
        char byte;
        int most;
    } indents[] = {{' ', INDENT_SPACES}, {'\t', INDENT_TABS}};
    int32_t begin, at, next;
    FB_TRY(fb_nfa_node_add(nfa, &begin, err));
    FB_TRY(fb_nfa_bytes(nfa, from, '\n', '\n', begin, err));
    FB_TRY(fb_nfa_skip(nfa, begin, to, err));
    for (int i = 0; i < 2; i++) {
        at = begin;
        for (int k = 0; k < indents[i].most; k++, at = next) {
            FB_TRY(fb_nfa_node_add(nfa, &next, err));
            FB_TRY(fb_nfa_bytes(nfa, at, indents[i].byte, indents[i].byte, next, err));
            FB_TRY(fb_nfa_skip(nfa, next, to, err));
        }
    }
    return FB_OK;
}

fb_status fb_compile_space(fb_nfa *nfa, int32_t from, int32_t to, fb_error *err) {
    FB_TRY(fb_nfa_skip(nfa, from, to, err));
    FB_TRY(fb_nfa_bytes(nfa, from, ' ', ' ', to, err));
    return fb_nfa_call(nfa, from, FB_RULE_LINE, to, err);
}

fb_status fb_compile_items(fb_nfa *nfa, int32_t from, int32_t rule, int32_t to, fb_error *err) {
    int32_t open;
    FB_TRY(fb_nfa_nodes_add(nfa, 5, &open, err));
    const int32_t item = open + 1, after = open + 2, comma = open + 3, close = open + 4;
    FB_TRY(fb_nfa_bytes(nfa, from, '[', '[', open, err));
    FB_TRY(fb_nfa_bytes(nfa, open, ']', ']', to, err));
    FB_TRY(fb_compile_space(nfa, open, item, err));
    FB_TRY(fb_nfa_call(nfa, item, rule, after, err));
    FB_TRY(fb_nfa_bytes(nfa, after, ',', ',', comma, err));
    FB_TRY(fb_compile_space(nfa, comma, item, err));
    FB_TRY(fb_compile_space(nfa, after, close, err));
    return fb_nfa_bytes(nfa, close, ']', ']', to, err);
}

fb_status fb_compile_members(fb_nfa *nfa, int32_t from, int32_t rule, int32_t to, fb_error *err) {
    int32_t open;
    FB_TRY(fb_nfa_nodes_add(nfa, 8, &open, err));
    const int32_t key = open + 1, colon = open + 2, space = open + 3, value = open + 4, after = open + 5,
                  comma = open + 6, close = open + 7;
    FB_TRY(fb_nfa_bytes(nfa, from, '{', '{', open, err));
    FB_TRY(fb_nfa_bytes(nfa, open, '}', '}', to, err));
    FB_TRY(fb_compile_space(nfa, open, key, err));
    FB_TRY(fb_nfa_call(nfa, key, FB_RULE_STRING, colon, err));
    FB_TRY(fb_nfa_bytes(nfa, colon, ':', ':', space, err));
    FB_TRY(fb_nfa_bytes(nfa, space, ' ', ' ', value, err));
    FB_TRY(fb_nfa_skip(nfa, space, value, err));
    FB_TRY(fb_nfa_call(nfa, value, rule, after, err));
    FB_TRY(fb_nfa_bytes(nfa, after, ',', ',', comma, err));
    FB_TRY(fb_compile_space(nfa, comma, key, err));
    FB_TRY(fb_compile_space(nfa, after, close, err));
    return fb_nfa_bytes(nfa, close, '}', '}', to, err);
}

static fb_status any_value(fb_nfa *nfa, int32_t from, int32_t to, fb_error *err) {
    static const char *const words[] = {"null", "true", "false"};
    FB_TRY(fb_nfa_call(nfa, from, FB_RULE_STRING, to, err));
    FB_TRY(fb_nfa_call(nfa, from, FB_RULE_NUMBER, to, err));
    for (int i = 0; i < 3; i++) FB_TRY(fb_nfa_text(nfa, from, words[i], strlen(words[i]), to, err));
    FB_TRY(fb_compile_items(nfa, from, FB_RULE_ANY, to, err));
    return fb_compile_members(nfa, from, FB_RULE_ANY, to, err);
}

static fb_status base_rule(fb_compiler *c, fb_base_rule rule, int32_t from, int32_t to, fb_error *err) {
    switch (rule) {
    case FB_RULE_STRING:
    case FB_RULE_KEY:
        return string_between(c, from, rule == FB_RULE_KEY, to, err);
    case FB_RULE_NUMBER:
    case FB_RULE_INTEGER:
        return fb_nfa_number(&c->nfa, from, rule == FB_RULE_NUMBER, to, err);
    case FB_RULE_LINE:
        return line(&c->nfa, from, to, err);
    case FB_RULE_OBJECT:
        return fb_compile_members(&c->nfa, from, FB_RULE_ANY, to, err);
    default:
        return any_value(&c->nfa, from, to, err);
    }
}

fb_status fb_compile_base(fb_machine *out, int32_t *string_end, fb_error *err) {
    fb_compiler c = {0};
    fb_status status = FB_OK;
    c.nfa.work = &c.work;
    *string_end = 0;
    for (int32_t i = 0; i < FB_RULE_BASE && status == FB_OK; i++) {
        int32_t rule, from, to;
        fb_nfa_clear(&c.nfa);
        status = fb_machine_add_rule(&c.machine, &rule, err);
        if (status == FB_OK) status = fb_nfa_node_add(&c.nfa, &from, err);
        if (status == FB_OK) status = fb_nfa_node_add(&c.nfa, &to, err);
        if (status == FB_OK) status = base_rule(&c, (fb_base_rule)i, from, to, err);
        if (status == FB_OK) status = fb_nfa_compile(&c.nfa, from, to, &c.machine, rule, err);
        if (i == FB_RULE_STRING) *string_end = c.machine.state_count;
    }
    fb_nfa_free(&c.nfa);
    if (status == FB_OK) status = fb_machine_finish(&c.machine, 0, &c.work, err);
    if (status != FB_OK) fb_machine_free(&c.machine);
    *out = c.machine;
    return status;
}
