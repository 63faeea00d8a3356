#include "chat/parser.h"
#include "text/utf8.h"

/* Statements up to a tag whose name is in `ends` (NULL-terminated; NULL: the end of the source). The parser
 * then stands behind that name, which *end names. */
static fb_status parse_body(fb_jinja_parser *p, const char *const *ends, fb_jinja_node **list,
                            const char **end);

static fb_status need_block_end(fb_jinja_parser *p) {
    if (p->at->kind != FB_JINJA_BLOCK_END) return fb_jinja_parser_expected(p, "%}");
    p->at++;
    return FB_OK;
}

/* The body of a block that ends with one tag. */
static fb_status parse_block(fb_jinja_parser *p, const char *end, fb_jinja_node **list) {
    const char *const ends[] = {end, NULL};
    const char *found;
    FB_TRY(need_block_end(p));
    FB_TRY(parse_body(p, ends, list, &found));
    return need_block_end(p);
}

static fb_status parse_if(fb_jinja_parser *p, fb_jinja_node **out) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_IF, out));
    fb_jinja_node **branch = &(*out)->list;
    for (const char *word = ends[0];;) {
        FB_TRY(fb_jinja_parser_node(p, FB_NODE_BRANCH, branch));
        if (word == ends[0]) FB_TRY(fb_jinja_parse_tuple(p, false, &(*branch)->left));
        FB_TRY(need_block_end(p));
        bool last = word == ends[1];
        FB_TRY(parse_body(p, last ? ends + 2 : ends, &(*branch)->list, &word));
        if (word == ends[2]) return need_block_end(p);
        branch = &(*branch)->next;
    }
}

static fb_status parse_for(fb_jinja_parser *p, fb_jinja_node **out) {
    static const char *const ends[] = {"endfor", "else", NULL};
    const char *found;
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_FOR, out));
    fb_jinja_node *node = *out;
    FB_TRY(fb_jinja_parse_target(p, false, &node->left));
    if (!fb_jinja_parser_skip_name(p, "in")) return fb_jinja_parser_expected(p, "'in'");
    FB_TRY(fb_jinja_parse_tuple(p, false, &node->right));
    if (fb_jinja_parser_skip_name(p, "if")) FB_TRY(fb_jinja_parse_expression(p, true, &node->other));
    if (fb_jinja_parser_is_name(p, "recursive"))
        return fb_jinja_parser_fail(p, "a recursive loop is not supported");
    FB_TRY(need_block_end(p));
    p->loops++;
    FB_TRY(parse_body(p, ends, &node->list, &found));
    p->loops--;
    if (found == ends[0]) return need_block_end(p);
    return parse_block(p, ends[0], &node->orelse);
}

static fb_status parse_set(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_SET, out));
    FB_TRY(fb_jinja_parse_target(p, true, &(*out)->left));
    if (fb_jinja_parser_skip_operator(p, "=")) {
        FB_TRY(fb_jinja_parse_tuple(p, true, &(*out)->right));
        return need_block_end(p);
    }
    (*out)->kind = FB_NODE_SET_BLOCK;
    FB_TRY(fb_jinja_parse_filters(p, NULL, false, &(*out)->right));
    return parse_block(p, "endset", &(*out)->list);
}

/* (a, b=1) */
static fb_status parse_parameters(fb_jinja_parser *p, fb_jinja_node **list) {
    fb_jinja_node **end = list;
    bool defaults = false;
    FB_TRY(fb_jinja_parser_need_operator(p, "("));
    while (!fb_jinja_parser_skip_operator(p, ")")) {
        if (end != list) FB_TRY(fb_jinja_parser_need_operator(p, ","));
        FB_TRY(fb_jinja_parser_node(p, FB_NODE_PARAM, end));
        FB_TRY(fb_jinja_parser_need_name(p, &(*end)->name));
        if (fb_jinja_parser_skip_operator(p, "=")) {
            defaults = true;
            FB_TRY(fb_jinja_parse_expression(p, true, &(*end)->left));
        } else if (defaults) {
            return fb_jinja_parser_fail(p, "a parameter without a default behind one with a default");
        }
        end = &(*end)->next;
    }
    return FB_OK;
}

/* Parameters and body, which may not break out of a loop around the macro. */
static fb_status parse_macro_rest(fb_jinja_parser *p, fb_jinja_node *macro, const char *end) {
    int32_t loops = p->loops, flags = p->macro_flags;
    p->loops = p->macro_flags = 0;
    FB_TRY(parse_block(p, end, &macro->list));
    macro->op = p->macro_flags;
    p->loops = loops;
    p->macro_flags = flags;
    return FB_OK;
}

static fb_status parse_macro(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_MACRO, out));
    FB_TRY(fb_jinja_parser_need_name(p, &(*out)->name));
    FB_TRY(parse_parameters(p, &(*out)->orelse));
    return parse_macro_rest(p, *out, "endmacro");
}

static fb_status parse_call(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_CALL_BLOCK, out));
    fb_jinja_node *node = *out;
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_MACRO, &node->other));
    node->other->name = fb_jinja_literal("caller");
    if (fb_jinja_parser_is_operator(p, "(")) FB_TRY(parse_parameters(p, &node->other->orelse));
    FB_TRY(fb_jinja_parse_unary(p, &node->left));
    if (node->left->kind != FB_NODE_CALL) return fb_jinja_parser_expected(p, "a call");
    return parse_macro_rest(p, node->other, "endcall");
}

static fb_status parse_filter_block(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_FILTER_BLOCK, out));
    FB_TRY(fb_jinja_parse_filters(p, NULL, true, &(*out)->left));
    return parse_block(p, "endfilter", &(*out)->list);
}

static fb_status parse_with(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_WITH, out));
    fb_jinja_node **end = &(*out)->orelse;
    while (p->at->kind != FB_JINJA_BLOCK_END) {
        if (end != &(*out)->orelse) FB_TRY(fb_jinja_parser_need_operator(p, ","));
        FB_TRY(fb_jinja_parser_node(p, FB_NODE_SET, end));
        FB_TRY(fb_jinja_parser_node(p, FB_NODE_NAME, &(*end)->left));
        FB_TRY(fb_jinja_parser_need_name(p, &(*end)->left->name));
        FB_TRY(fb_jinja_parser_need_operator(p, "="));
        FB_TRY(fb_jinja_parse_expression(p, true, &(*end)->right));
        end = &(*end)->next;
    }
    return parse_block(p, "endwith", &(*out)->list);
}

/* transformers marks the answers of a model with it; it prints its body. */
static fb_status parse_generation(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_SCOPE, out));
    return parse_block(p, "endgeneration", &(*out)->list);
}

static fb_status parse_jump(fb_jinja_parser *p, fb_jinja_node_kind kind, const char *name,
                            fb_jinja_node **out) {
    if (p->loops == 0) return fb_jinja_parser_fail(p, "'%s' outside of a loop", name);
    FB_TRY(fb_jinja_parser_node(p, kind, out));
    return need_block_end(p);
}
static fb_status parse_break(fb_jinja_parser *p, fb_jinja_node **out) {
    return parse_jump(p, FB_NODE_BREAK, "break", out);
}
static fb_status parse_continue(fb_jinja_parser *p, fb_jinja_node **out) {
    return parse_jump(p, FB_NODE_CONTINUE, "continue", out);
}

static const struct {
    const char *name;
    fb_status (*parse)(fb_jinja_parser *p, fb_jinja_node **out);
} statements[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"break", parse_break},
    {"continue", parse_continue},
    {"generation", parse_generation},
};

/* The parser stands at the name of a tag. */
static fb_status parse_statement(fb_jinja_parser *p, fb_jinja_node **out) {
    if (p->at->kind != FB_JINJA_NAME) return fb_jinja_parser_expected(p, "the name of a tag");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (fb_jinja_parser_skip_name(p, statements[i].name)) return statements[i].parse(p, out);
    return fb_jinja_parser_fail(p, "unknown tag '%.*s'", (int)(p->at->text.size < 60 ? p->at->text.size : 60),
                                p->at->text.bytes);
}

static fb_status parse_output(fb_jinja_parser *p, fb_jinja_node **out) {
    FB_TRY(fb_jinja_parser_node(p, FB_NODE_OUTPUT, out));
    p->at++;
    FB_TRY(fb_jinja_parse_tuple(p, true, &(*out)->left));
    if (p->at->kind != FB_JINJA_VARIABLE_END) return fb_jinja_parser_expected(p, "}}");
    p->at++;
    return FB_OK;
}

static const char *find_end(const fb_jinja_parser *p, const char *const *ends) {
    for (; ends && *ends; ends++)
        if (fb_jinja_parser_is_name(p, *ends)) return *ends;
    return NULL;
}

static fb_status parse_body(fb_jinja_parser *p, const char *const *ends, fb_jinja_node **list,
                            const char **end) {
    FB_TRY(fb_jinja_parser_enter(p));
    for (;; list = &(*list)->next) {
        if (p->at->kind == FB_JINJA_END) {
            if (ends) return fb_jinja_parser_fail(p, "'%s' is missing", ends[0]);
            break;
        }
        if (p->at->kind == FB_JINJA_DATA) {
            FB_TRY(fb_jinja_parser_node(p, FB_NODE_DATA, list));
            (*list)->value = fb_jinja_string((p->at++)->text);
            continue;
        }
        if (p->at->kind == FB_JINJA_VARIABLE_BEGIN) {
            FB_TRY(parse_output(p, list));
            continue;
        }
        p->at++;
        if ((*end = find_end(p, ends)) != NULL) {
            p->at++;
            break;
        }
        FB_TRY(parse_statement(p, list));
    }
    p->depth--;
    return FB_OK;
}

fb_status fb_jinja_parse_source(fb_jinja_shared *base, const char *source, int64_t size,
                                fb_jinja_node **out) {
    fb_jinja_token *tokens;
    const char *end;
    if (!fb_utf8_valid(source, size)) return fb_jinja_fail(base, "not UTF-8");
    *out = NULL;
    FB_TRY(fb_jinja_lex(base, source, size, &tokens));
    fb_jinja_parser p = {.base = base, .at = tokens};
    return parse_body(&p, NULL, out, &end);
}
