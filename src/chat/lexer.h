/* From the source of a template to tokens. Whitespace control is done here. */
#ifndef FB_CHAT_LEXER_H
#define FB_CHAT_LEXER_H

#include "chat/value.h"

typedef enum fb_jinja_token_kind {
    FB_JINJA_DATA,           /* text outside of tags */
    FB_JINJA_VARIABLE_BEGIN, /* {{ */
    FB_JINJA_VARIABLE_END,
    FB_JINJA_BLOCK_BEGIN, /* {% */
    FB_JINJA_BLOCK_END,
    FB_JINJA_NAME,
    FB_JINJA_TEXT,    /* a string, without its quotes and escapes */
    FB_JINJA_INTEGER, /* its value is in `integer` */
    FB_JINJA_REAL,
    FB_JINJA_OPERATOR,
    FB_JINJA_END
} fb_jinja_token_kind;

typedef struct fb_jinja_token {
    fb_jinja_token_kind kind;
    int32_t line;
    fb_jinja_text text; /* of an operator: "+", "==" */
    int64_t integer;
    double real;
} fb_jinja_token;

/* All tokens of valid UTF-8 `source`, the last of which is FB_JINJA_END. They lie in the arena, and so does
 * what their texts point to. */
fb_status fb_jinja_lex(fb_jinja_shared *base, const char *source, int64_t size, fb_jinja_token **out);

#endif
