/* Inside of the parser: expressions (parse_expression.c) and statements (parse_statement.c). */
#ifndef FB_CHAT_PARSER_H
#define FB_CHAT_PARSER_H

#include "chat/lexer.h"
#include "chat/node.h"

typedef struct fb_jinja_parser {
    fb_jinja_shared *base;
    const fb_jinja_token *at; /* the next token */
    int32_t depth;
    int32_t loops;       /* around it: break and continue need one */
    int32_t macro_flags; /* names that the macro around it reads */
} fb_jinja_parser;

fb_status fb_jinja_parser_fail(fb_jinja_parser *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "expected X, got Y". */
fb_status fb_jinja_parser_expected(fb_jinja_parser *p, const char *what);
fb_status fb_jinja_parser_enter(fb_jinja_parser *p);
fb_status fb_jinja_parser_node(fb_jinja_parser *p, fb_jinja_node_kind kind, fb_jinja_node **out);

bool fb_jinja_parser_is_operator(const fb_jinja_parser *p, const char *text);
bool fb_jinja_parser_is_name(const fb_jinja_parser *p, const char *text);
bool fb_jinja_parser_skip_operator(fb_jinja_parser *p, const char *text); /* if it is there */
bool fb_jinja_parser_skip_name(fb_jinja_parser *p, const char *text);
fb_status fb_jinja_parser_need_operator(fb_jinja_parser *p, const char *text);
fb_status fb_jinja_parser_need_name(fb_jinja_parser *p, fb_jinja_text *out);

/* An expression; without `conditional`, no `a if b else c`. */
fb_status fb_jinja_parse_expression(fb_jinja_parser *p, bool conditional, fb_jinja_node **out);
/* One or several with commas between them. */
fb_status fb_jinja_parse_tuple(fb_jinja_parser *p, bool conditional, fb_jinja_node **out);
/* Filters behind `left`, which may be NULL; the first of them without its "|" if `bare`. */
fb_status fb_jinja_parse_filters(fb_jinja_parser *p, fb_jinja_node *left, bool bare, fb_jinja_node **out);
/* Names, or ns.attribute if `attributes`, for set, for and with. */
fb_status fb_jinja_parse_target(fb_jinja_parser *p, bool attributes, fb_jinja_node **out);
fb_status fb_jinja_parse_unary(fb_jinja_parser *p, fb_jinja_node **out);

#endif
