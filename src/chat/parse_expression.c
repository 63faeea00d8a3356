#include <stdarg.h>
#include <stdio.h>

#include "chat/parser.h"

#define DEPTH_LIMIT 100 /* of nested expressions and blocks; a chain of operators is not nested */

/* ---- tokens ---- */

fb_status fb_jinja_parser_fail(fb_jinja_parser *p, const char *format, ...) {
    char message[300];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    p->base->line = p->at->line;
    return fb_jinja_fail(p->base, "%s", message);
}

static const char *token_name(const fb_jinja_token *t, char text[80]) {
    static const char *const names[] = {
        [FB_JINJA_DATA] = "text",        [FB_JINJA_VARIABLE_BEGIN] = "{{",   [FB_JINJA_VARIABLE_END] = "}}",
        [FB_JINJA_BLOCK_BEGIN] = "{%",   [FB_JINJA_BLOCK_END] = "%}",        [FB_JINJA_TEXT] = "a string",
        [FB_JINJA_INTEGER] = "a number", [FB_JINJA_REAL] = "a number",       [FB_JINJA_END] = "the end",
        [FB_JINJA_NAME] = "a name",      [FB_JINJA_OPERATOR] = "an operator"};
    if (t->kind != FB_JINJA_NAME && t->kind != FB_JINJA_OPERATOR) return names[t->kind];
    snprintf(text, 80, "'%.*s'", (int)(t->text.size < 60 ? t->text.size : 60), t->text.bytes);
    return text;
}

fb_status fb_jinja_parser_expected(fb_jinja_parser *p, const char *what) {
    char text[80];
    return fb_jinja_parser_fail(p, "expected %s, got %s", what, token_name(p->at, text));
}

fb_status fb_jinja_parser_enter(fb_jinja_parser *p) {
    if (p->depth >= DEPTH_LIMIT) return fb_jinja_parser_fail(p, "nested more than %d deep", DEPTH_LIMIT);
    p->depth++;
    return FB_OK;
}

fb_status fb_jinja_parser_node(fb_jinja_parser *p, fb_jinja_node_kind kind, fb_jinja_node **out) {
    p->base->line = p->at->line;
    *out = fb_jinja_arena_take(&p->base->arena, sizeof **out);
    if (!*out) return fb_jinja_fail_memory(p->base);
    (*out)->kind = kind;
    (*out)->line = p->at->line;
    return FB_OK;
}

bool fb_jinja_parser_is_operator(const fb_jinja_parser *p, const char *text) {
    return p->at->kind == FB_JINJA_OPERATOR && fb_jinja_is(p->at->text, text);
}

bool fb_jinja_parser_is_name(const fb_jinja_parser *p, const char *text) {
    return p->at->kind == FB_JINJA_NAME && fb_jinja_is(p->at->text, text);
}

bool fb_jinja_parser_skip_operator(fb_jinja_parser *p, const char *text) {
    bool there = fb_jinja_parser_is_operator(p, text);
    p->at += there;
    return there;
}

bool fb_jinja_parser_skip_name(fb_jinja_parser *p, const char *text) {
    bool there = fb_jinja_parser_is_name(p, text);
    p->at += there;
    return there;
}

fb_status fb_jinja_parser_need_operator(fb_jinja_parser *p, const char *text) {
    char quoted[8];
    snprintf(quoted, sizeof quoted, "'%s'", text);
    return fb_jinja_parser_skip_operator(p, text) ? FB_OK : fb_jinja_parser_expected(p, quoted);
}

fb_status fb_jinja_parser_need_name(fb_jinja_parser *p, fb_jinja_text *out) {
    if (p->at->kind != FB_JINJA_NAME) return fb_jinja_parser_expected(p, "a name");
    *out = (p->at++)->text;
    return FB_OK;
}

/* ---- primaries ---- */

static fb_status parse_postfix(fb_jinja_parser *p, fb_jinja_node *left, fb_jinja_node **out);

/* Elements up to `close`. */
static fb_status parse_elements(fb_jinja_parser *p, const char *close, bool pairs, fb_jinja_node **list) {
    fb_jinja_node **end = list;
    while (!fb_jinja_parser_skip_operator(p, close)) {
        if (end != list) {
            FB_TRY(fb_jinja_parser_need_operator(p, ","));
            if (fb_jinja_parser_skip_operator(p, close)) break;
        }
        FB_TRY(fb_jinja_parse_expression(p, true, end));
        end = &(*end)->next;
        if (!pairs) continue;
        FB_TRY(fb_jinja_parser_need_operator(p, ":"));
        FB_TRY(fb_jinja_parse_expression(p, true, end));
        end = &(*end)->next;
    }
    return FB_OK;
}

static const struct {
    const char *name;
    fb_jinja_value value;
} constants[] = {
    {"true", {.kind = FB_JINJA_BOOL, .truth = true}},
    {"True", {.kind = FB_JINJA_BOOL, .truth = true}},
    {"false", {.kind = FB_JINJA_BOOL, .truth = false}},
    {"False", {.kind = FB_JINJA_BOOL, .truth = false}},
    {"none", {.kind = FB_JINJA_NONE}},
    {"None", {.kind = FB_JINJA_NONE}},
};

static fb_status parse_name(fb_jinja_parser *p, fb_jinja_node **out) {
    static const struct {
        const char *name;
        int32_t flag;
    } special[] = {{"varargs", FB_MACRO_VARARGS}, {"kwargs", FB_MACRO_KWARGS}, {"caller", FB_MACRO_CALLER}};
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_NAME, out));
    (*out)->name = p->at->text;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (!fb_jinja_is(p->at->text, constants[i].name)) continue;
        (*out)->kind = FB_NODE_CONST;
        (*out)->value = constants[i].value;
    }
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (fb_jinja_is(p->at->text, special[i].name)) p->macro_flags |= special[i].flag;
    p->at++;
    return FB_OK;
}

/* A string, and those that follow it at once. */
static fb_status parse_string(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_CONST, out));
    int64_t size = 0, used = 0;
    const fb_jinja_token *first = p->at;
    for (; p->at->kind == FB_JINJA_TEXT; p->at++) size += p->at->text.size;
    (*out)->value = fb_jinja_string(first->text);
    if (p->at == first + 1) return FB_OK;
    char *bytes = fb_jinja_arena_take(&p->base->arena, size);
    if (!bytes) return fb_jinja_fail_memory(p->base);
    for (const fb_jinja_token *t = first; t < p->at; t++)
        for (int64_t i = 0; i < t->text.size; i++) bytes[used++] = t->text.bytes[i];
    (*out)->value = fb_jinja_string((fb_jinja_text){bytes, NULL, size});
    return FB_OK;
}

static fb_status parse_parentheses(fb_jinja_parser *p, fb_jinja_node **out) {
    if (fb_jinja_parser_skip_operator(p, ")")) return fb_jinja_parser_node(p, FB_NODE_TUPLE, out);
    FB_TRY(fb_jinja_parse_tuple(p, true, out));
    return fb_jinja_parser_need_operator(p, ")");
}

static fb_status parse_primary(fb_jinja_parser *p, fb_jinja_node **out) {
    const fb_jinja_token *t = p->at;
    if (t->kind == FB_JINJA_NAME) return parse_name(p, out);
    if (t->kind == FB_JINJA_TEXT) return parse_string(p, out);
    if (t->kind == FB_JINJA_INTEGER || t->kind == FB_JINJA_REAL) {
        FB_TRY(fb_jinja_parser_node(p, FB_NODE_CONST, out));
        (*out)->value = t->kind == FB_JINJA_INTEGER ? fb_jinja_int(t->integer) : fb_jinja_float(t->real);
        p->at++;
        return FB_OK;
    }
    if (fb_jinja_parser_skip_operator(p, "(")) return parse_parentheses(p, out);
    bool dict = fb_jinja_parser_is_operator(p, "{");
    if (!dict && !fb_jinja_parser_is_operator(p, "[")) return fb_jinja_parser_expected(p, "an expression");
    FB_TRY(fb_jinja_parser_node(p, dict ? FB_NODE_DICT : FB_NODE_LIST, out));
    p->at++;
    return parse_elements(p, dict ? "}" : "]", dict, &(*out)->list);
}

/* ---- what follows a primary ---- */

static fb_status parse_arguments(fb_jinja_parser *p, fb_jinja_node **list) {
    fb_jinja_node **end = list;
    bool keywords = false;
    FB_TRY(fb_jinja_parser_need_operator(p, "("));
    while (!fb_jinja_parser_skip_operator(p, ")")) {
        if (end != list) {
            FB_TRY(fb_jinja_parser_need_operator(p, ","));
            if (fb_jinja_parser_skip_operator(p, ")")) break;
        }
        if (fb_jinja_parser_is_operator(p, "*") || fb_jinja_parser_is_operator(p, "**"))
            return fb_jinja_parser_fail(p, "*args and **kwargs are not supported in a call");
        bool keyword = p->at->kind == FB_JINJA_NAME && p->at[1].kind == FB_JINJA_OPERATOR &&
                       fb_jinja_is(p->at[1].text, "=");
        if (keyword) {
            FB_TRY(fb_jinja_parser_node(p, FB_NODE_KEYWORD, end));
            (*end)->name = p->at->text;
            p->at += 2;
            FB_TRY(fb_jinja_parse_expression(p, true, &(*end)->left));
        } else if (keywords) {
            return fb_jinja_parser_fail(p, "an argument without a name behind one with a name");
        } else {
            FB_TRY(fb_jinja_parse_expression(p, true, end));
        }
        keywords = keywords || keyword;
        end = &(*end)->next;
    }
    return FB_OK;
}

/* start:stop:step, or an expression. */
static fb_status parse_subscript(fb_jinja_parser *p, fb_jinja_node **out) {
    fb_jinja_node *start = NULL, **parts[2];
    if (!fb_jinja_parser_is_operator(p, ":")) {
        FB_TRY(fb_jinja_parse_tuple(p, true, &start));
        *out = start;
        if (!fb_jinja_parser_is_operator(p, ":")) return FB_OK;
    }
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_SLICE, out));
    (*out)->left = start;
    parts[0] = &(*out)->right;
    parts[1] = &(*out)->other;
    for (int i = 0; i < 2 && fb_jinja_parser_skip_operator(p, ":"); i++)
        if (!fb_jinja_parser_is_operator(p, ":") && !fb_jinja_parser_is_operator(p, "]"))
            FB_TRY(fb_jinja_parse_expression(p, true, parts[i]));
    return FB_OK;
}

static fb_status parse_dot(fb_jinja_parser *p, fb_jinja_node *node) {
    if (p->at->kind == FB_JINJA_INTEGER) {
        node->kind = FB_NODE_ITEM;
        return parse_primary(p, &node->right);
    }
    return fb_jinja_parser_need_name(p, &node->name);
}

static fb_status parse_postfix(fb_jinja_parser *p, fb_jinja_node *left, fb_jinja_node **out) {
    for (;; left = *out) {
        *out = left;
        bool dot = fb_jinja_parser_is_operator(p, "."), bracket = fb_jinja_parser_is_operator(p, "["),
             call = fb_jinja_parser_is_operator(p, "(");
        if (!dot && !bracket && !call) return FB_OK;
        FB_TRY(fb_jinja_parser_node(p, dot ? FB_NODE_ATTRIBUTE : bracket ? FB_NODE_ITEM : FB_NODE_CALL, out));
        (*out)->left = left;
        if (call) {
            FB_TRY(parse_arguments(p, &(*out)->list));
            continue;
        }
        p->at++;
        if (dot) {
            FB_TRY(parse_dot(p, *out));
            continue;
        }
        FB_TRY(parse_subscript(p, &(*out)->right));
        FB_TRY(fb_jinja_parser_need_operator(p, "]"));
    }
}

/* ---- filters and tests ---- */

/* Names of filters and tests may have dots. */
static fb_status parse_filter(fb_jinja_parser *p, fb_jinja_node *left, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_FILTER, out));
    (*out)->left = left;
    FB_TRY(fb_jinja_parser_need_name(p, &(*out)->name));
    return fb_jinja_parser_is_operator(p, "(") ? parse_arguments(p, &(*out)->list) : FB_OK;
}

fb_status fb_jinja_parse_filters(fb_jinja_parser *p, fb_jinja_node *left, bool bare, fb_jinja_node **out) {
    *out = left;
    while (bare || fb_jinja_parser_skip_operator(p, "|")) {
        bare = false;
        left = *out;
        FB_TRY(parse_filter(p, left, out));
    }
    return FB_OK;
}

static bool begins_argument(const fb_jinja_parser *p) {
    static const char *const words[] = {"else", "or", "and", "is"};
    const fb_jinja_token *t = p->at;
    if (t->kind == FB_JINJA_NAME) {
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (fb_jinja_is(t->text, words[i])) return false;
        return !fb_jinja_is(t->text, "if") && !fb_jinja_is(t->text, "in") && !fb_jinja_is(t->text, "not");
    }
    return t->kind == FB_JINJA_TEXT || t->kind == FB_JINJA_INTEGER || t->kind == FB_JINJA_REAL ||
           fb_jinja_parser_is_operator(p, "[") || fb_jinja_parser_is_operator(p, "{");
}

static fb_status parse_test(fb_jinja_parser *p, fb_jinja_node *left, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_TEST, out));
    fb_jinja_node *test = *out;
    bool negated = fb_jinja_parser_skip_name(p, "not");
    test->left = left;
    FB_TRY(fb_jinja_parser_need_name(p, &test->name));
    if (fb_jinja_parser_is_operator(p, "(")) {
        FB_TRY(parse_arguments(p, &test->list));
    } else if (fb_jinja_parser_is_name(p, "is")) {
        return fb_jinja_parser_fail(p, "tests cannot be chained with 'is'");
    } else if (begins_argument(p)) {
        fb_jinja_node *argument;
        FB_TRY(parse_primary(p, &argument));
        FB_TRY(parse_postfix(p, argument, &test->list));
    }
    if (!negated) return FB_OK;
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_NOT, out));
    (*out)->left = test;
    return FB_OK;
}

static fb_status parse_suffixes(fb_jinja_parser *p, fb_jinja_node *left, fb_jinja_node **out) {
    for (*out = left;; left = *out) {
        if (fb_jinja_parser_skip_operator(p, "|")) {
            FB_TRY(parse_filter(p, left, out));
        } else if (fb_jinja_parser_skip_name(p, "is")) {
            FB_TRY(parse_test(p, left, out));
        } else if (fb_jinja_parser_is_operator(p, "(")) {
            FB_TRY(fb_jinja_parser_node(p, FB_NODE_CALL, out));
            (*out)->left = left;
            FB_TRY(parse_arguments(p, &(*out)->list));
        } else {
            return FB_OK;
        }
    }
}

/* ---- operators, by precedence ---- */

static fb_status parse_signed(fb_jinja_parser *p, bool suffixes, fb_jinja_node **out) {
    fb_jinja_node *node;
    bool minus = fb_jinja_parser_is_operator(p, "-");
    FB_TRY(fb_jinja_parser_enter(p));
    if (minus || fb_jinja_parser_is_operator(p, "+")) {
        FB_TRY(fb_jinja_parser_node(p, minus ? FB_NODE_NEGATE : FB_NODE_PLUS, &node));
        p->at++;
        FB_TRY(parse_signed(p, false, &node->left));
    } else {
        FB_TRY(parse_primary(p, &node));
    }
    p->depth--;
    FB_TRY(parse_postfix(p, node, out));
    return suffixes ? parse_suffixes(p, *out, out) : FB_OK;
}

fb_status fb_jinja_parse_unary(fb_jinja_parser *p, fb_jinja_node **out) { return parse_signed(p, true, out); }

/* Operators that bind from left to right, the strongest level last. */
static const struct {
    const char *text;
    fb_jinja_op op;
    int level;
} operators[] = {{"+", FB_JINJA_ADD, 0}, {"-", FB_JINJA_SUB, 0}, {"~", FB_JINJA_CONCAT, 1},
                 {"*", FB_JINJA_MUL, 2}, {"/", FB_JINJA_DIV, 2}, {"//", FB_JINJA_FLOOR_DIV, 2},
                 {"%", FB_JINJA_MOD, 2}, {"**", FB_JINJA_POW, 3}};
#define LEVELS 4

static fb_status parse_level(fb_jinja_parser *p, int level, fb_jinja_node **out) {
    if (level == LEVELS) return fb_jinja_parse_unary(p, out);
    FB_TRY(parse_level(p, level + 1, out));
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (operators[i].level != level || !fb_jinja_parser_is_operator(p, operators[i].text)) continue;
        fb_jinja_node *left = *out;
        FB_TRY(fb_jinja_parser_node(p, FB_NODE_BINARY, out));
        p->at++;
        (*out)->op = (int32_t)operators[i].op;
        (*out)->left = left;
        FB_TRY(parse_level(p, level + 1, &(*out)->right));
        i = (size_t)-1; /* once more from the first */
    }
    return FB_OK;
}

static bool take_comparison(fb_jinja_parser *p, int32_t *op) {
    static const struct {
        const char *text;
        fb_jinja_op op;
    } comparisons[] = {{"==", FB_JINJA_EQ}, {"!=", FB_JINJA_NE}, {"<", FB_JINJA_LT},
                       {"<=", FB_JINJA_LE}, {">", FB_JINJA_GT},  {">=", FB_JINJA_GE}};
    for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++)
        if (fb_jinja_parser_skip_operator(p, comparisons[i].text)) {
            *op = (int32_t)comparisons[i].op;
            return true;
        }
    if (fb_jinja_parser_skip_name(p, "in")) {
        *op = FB_JINJA_IN;
        return true;
    }
    if (!fb_jinja_parser_is_name(p, "not") || p->at[1].kind != FB_JINJA_NAME ||
        !fb_jinja_is(p->at[1].text, "in"))
        return false;
    p->at += 2;
    *op = FB_JINJA_NOT_IN;
    return true;
}

static fb_status parse_compare(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(parse_level(p, 0, out));
    fb_jinja_node **end = NULL;
    for (int32_t op; take_comparison(p, &op);) {
        if (!end) {
            fb_jinja_node *left = *out;
            FB_TRY(fb_jinja_parser_node(p, FB_NODE_COMPARE, out));
            (*out)->left = left;
            end = &(*out)->list;
        }
        FB_TRY(fb_jinja_parser_node(p, FB_NODE_OPERAND, end));
        (*end)->op = op;
        FB_TRY(parse_level(p, 0, &(*end)->left));
        end = &(*end)->next;
    }
    return FB_OK;
}

static fb_status parse_not(fb_jinja_parser *p, fb_jinja_node **out) {
    if (!fb_jinja_parser_is_name(p, "not")) return parse_compare(p, out);
    FB_TRY(fb_jinja_parser_enter(p));
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_NOT, out));
    p->at++;
    FB_TRY(parse_not(p, &(*out)->left));
    p->depth--;
    return FB_OK;
}

static fb_status parse_and(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(parse_not(p, out));
    while (fb_jinja_parser_skip_name(p, "and")) {
        fb_jinja_node *left = *out;
        FB_TRY(fb_jinja_parser_node(p, FB_NODE_AND, out));
        (*out)->left = left;
        FB_TRY(parse_not(p, &(*out)->right));
    }
    return FB_OK;
}

static fb_status parse_or(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(parse_and(p, out));
    while (fb_jinja_parser_skip_name(p, "or")) {
        fb_jinja_node *left = *out;
        FB_TRY(fb_jinja_parser_node(p, FB_NODE_OR, out));
        (*out)->left = left;
        FB_TRY(parse_and(p, &(*out)->right));
    }
    return FB_OK;
}

fb_status fb_jinja_parse_expression(fb_jinja_parser *p, bool conditional, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_enter(p));
    FB_TRY(parse_or(p, out));
    while (conditional && fb_jinja_parser_skip_name(p, "if")) {
        fb_jinja_node *then = *out;
        FB_TRY(fb_jinja_parser_node(p, FB_NODE_CONDITIONAL, out));
        (*out)->right = then;
        FB_TRY(parse_or(p, &(*out)->left));
        if (fb_jinja_parser_skip_name(p, "else")) FB_TRY(fb_jinja_parse_expression(p, true, &(*out)->other));
    }
    p->depth--;
    return FB_OK;
}

static bool ends_tuple(const fb_jinja_parser *p) {
    return p->at->kind == FB_JINJA_VARIABLE_END || p->at->kind == FB_JINJA_BLOCK_END ||
           fb_jinja_parser_is_operator(p, ")") || fb_jinja_parser_is_operator(p, "]") ||
           fb_jinja_parser_is_name(p, "in");
}

/* The rest of a tuple, whose first element is *out. */
static fb_status parse_rest(fb_jinja_parser *p, bool conditional,
                            fb_status (*element)(fb_jinja_parser *p, bool conditional, fb_jinja_node **out),
                            fb_jinja_node **out) {
    fb_jinja_node *first = *out, **end = &first->next;
    if (!fb_jinja_parser_is_operator(p, ",")) return FB_OK;
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_TUPLE, out));
    (*out)->list = first;
    while (fb_jinja_parser_skip_operator(p, ",") && !ends_tuple(p)) {
        FB_TRY(element(p, conditional, end));
        end = &(*end)->next;
    }
    return FB_OK;
}

fb_status fb_jinja_parse_tuple(fb_jinja_parser *p, bool conditional, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parse_expression(p, conditional, out));
    return parse_rest(p, conditional, fb_jinja_parse_expression, out);
}

static fb_status parse_one_target(fb_jinja_parser *p, bool attributes, fb_jinja_node **out) {
    if (fb_jinja_parser_skip_operator(p, "(")) {
        FB_TRY(fb_jinja_parser_enter(p));
        FB_TRY(fb_jinja_parse_target(p, attributes, out));
        p->depth--;
        return fb_jinja_parser_need_operator(p, ")");
    }
    if (p->at->kind != FB_JINJA_NAME) return fb_jinja_parser_expected(p, "a name");
    FB_TRY(parse_name(p, out));
    if ((*out)->kind != FB_NODE_NAME) return fb_jinja_parser_fail(p, "a constant cannot be assigned to");
    if (!attributes || !fb_jinja_parser_is_operator(p, ".")) return FB_OK;
    fb_jinja_node *left = *out;
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_ATTRIBUTE, out));
    p->at++;
    (*out)->left = left;
    return fb_jinja_parser_need_name(p, &(*out)->name);
}

fb_status fb_jinja_parse_target(fb_jinja_parser *p, bool attributes, fb_jinja_node **out) {
    FB_TRY(parse_one_target(p, attributes, out));
    return parse_rest(p, attributes, parse_one_target, out);
}
