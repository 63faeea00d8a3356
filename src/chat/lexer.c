#include "chat/lexer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

typedef struct lexer {
    fb_jinja_shared *base;
    const char *source; /* newlines are \n */
    int64_t size, at;
    int32_t line;
    bool line_start; /* what was read last ended with a newline */
    fb_jinja_token *tokens;
    int64_t count, room;
    char closing[128]; /* brackets that are open in a tag */
    int32_t open;
} lexer;

static fb_status fail(lexer *l, const char *message, const char *what, int64_t size) {
    l->base->line = l->line;
    return fb_jinja_fail(l->base, "%s%.*s", message, (int)(size < 60 ? size : 60), what);
}

static fb_status add(lexer *l, fb_jinja_token token) {
    if (l->count == l->room) {
        int64_t room = l->room ? 2 * l->room : 256;
        fb_jinja_token *tokens = fb_jinja_arena_take(&l->base->arena, room * (int64_t)sizeof *tokens);
        if (!tokens) return fb_jinja_fail_memory(l->base);
        if (l->count > 0) memcpy(tokens, l->tokens, (size_t)l->count * sizeof *tokens);
        l->tokens = tokens;
        l->room = room;
    }
    token.line = l->line;
    l->tokens[l->count++] = token;
    return FB_OK;
}

/* Moves on, counting lines. */
static void advance(lexer *l, int64_t to) {
    for (; l->at < to; l->at++) l->line += l->source[l->at] == '\n';
}

static bool starts(const lexer *l, int64_t at, const char *text) {
    int64_t size = (int64_t)strlen(text);
    return l->size - at >= size && memcmp(l->source + at, text, (size_t)size) == 0;
}

static int64_t skip_space(const lexer *l, int64_t at) {
    while (at < l->size) {
        fb_utf8_char c = fb_utf8_read(l->source + at, l->size - at);
        if (!fb_jinja_is_space(c.code)) break;
        at += c.size;
    }
    return at;
}

/* ---- data and the beginning of tags ---- */

/* Emits the text up to the tag at `tag`, less what its sign or lstrip_blocks takes away. */
static fb_status add_data(lexer *l, int64_t tag, char sign, bool variable) {
    fb_jinja_text text = {l->source + l->at, NULL, tag - l->at};
    if (sign == '-') {
        text = fb_jinja_strip(text, NULL, false, true);
    } else if (sign != '+' && !variable) {
        int64_t line = text.size;
        while (line > 0 && text.bytes[line - 1] != '\n') line--;
        if ((line > 0 || l->line_start) &&
            fb_jinja_strip(fb_jinja_part(text, line, text.size), NULL, true, false).size == 0)
            text.size = line;
    }
    fb_status status = text.size > 0 ? add(l, (fb_jinja_token){.kind = FB_JINJA_DATA, .text = text}) : FB_OK;
    advance(l, tag);
    return status;
}

/* Moves behind the end of a tag at `at`, of which `sign` was read, and what it takes with it. */
static void end_tag(lexer *l, int64_t at, char sign, bool trim) {
    if (sign == '-')
        at = skip_space(l, at);
    else if (sign != '+' && trim && at < l->size && l->source[at] == '\n')
        at++;
    advance(l, at);
    l->line_start = at > 0 && l->source[at - 1] == '\n';
}

static char sign_at(const lexer *l, int64_t at) {
    return at < l->size && (l->source[at] == '-' || l->source[at] == '+') ? l->source[at] : '\0';
}

static fb_status lex_comment(lexer *l) {
    int64_t body = l->at + 2;
    if (sign_at(l, body)) body++;
    for (int64_t at = body; at + 1 < l->size; at++) {
        if (!starts(l, at, "#}")) continue;
        end_tag(l, at + 2, at > body ? sign_at(l, at - 1) : '\0', true);
        return FB_OK;
    }
    return fail(l, "missing end of comment tag", "", 0);
}

/* The end of a tag {% NAME %} at `at`; -1 if it is another one. `sign` is set to what precedes its end. */
static int64_t word_tag(const lexer *l, int64_t at, const char *name, char *sign) {
    at += 2;
    if (sign_at(l, at)) at++;
    at = skip_space(l, at);
    if (!starts(l, at, name)) return -1;
    at = skip_space(l, at + (int64_t)strlen(name));
    *sign = sign_at(l, at);
    if (*sign) at++;
    return starts(l, at, "%}") ? at + 2 : -1;
}

/* Everything up to {% endraw %} is data. */
static fb_status lex_raw(lexer *l, int64_t body, char sign) {
    end_tag(l, body, sign == '-' ? '-' : '+', false); /* trim_blocks leaves the newline behind it alone */
    for (int64_t at = l->at; at + 1 < l->size; at++) {
        if (!starts(l, at, "{%")) continue;
        char end_sign;
        int64_t end = word_tag(l, at, "endraw", &end_sign);
        if (end < 0) continue;
        FB_TRY(add_data(l, at, sign_at(l, at + 2), false));
        end_tag(l, end, end_sign, true);
        return FB_OK;
    }
    return fail(l, "missing end of raw directive", "", 0);
}

/* ---- inside of tags ---- */

static bool is_name_start(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c >= 0x80;
}
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_name(char c) { return is_name_start((unsigned char)c) || is_digit(c); }

static fb_status lex_name(lexer *l) {
    int64_t end = l->at;
    while (end < l->size && is_name(l->source[end])) end++;
    fb_jinja_token token = {.kind = FB_JINJA_NAME, .text = {l->source + l->at, NULL, end - l->at}};
    l->at = end;
    return add(l, token);
}

/* Digits with single underscores between them. */
static int64_t skip_digits(const lexer *l, int64_t at, const char *digits) {
    while (at < l->size && (strchr(digits, l->source[at]) ||
                            (l->source[at] == '_' && at + 1 < l->size && strchr(digits, l->source[at + 1]) &&
                             strchr(digits, l->source[at - 1])))) {
        if (l->source[at] == '\0') break;
        at++;
    }
    return at;
}

static fb_status add_number(lexer *l, int64_t end, int base, bool real) {
    char digits[64];
    int64_t used = 0;
    for (int64_t i = l->at; i < end; i++) {
        if (l->source[i] == '_') continue;
        if (used == (int64_t)sizeof digits - 1) return fail(l, "number of more than 63 digits", "", 0);
        digits[used++] = l->source[i];
    }
    digits[used] = '\0';
    fb_jinja_token token = {.kind = real ? FB_JINJA_REAL : FB_JINJA_INTEGER};
    errno = 0;
    if (real)
        token.real = strtod(digits, NULL);
    else
        token.integer = strtoll(base == 10 ? digits : digits + 2, NULL, base);
    if (errno && !real) return fail(l, "number beyond 64 bits: ", digits, used);
    l->at = end;
    return add(l, token);
}

static fb_status lex_number(lexer *l) {
    static const struct {
        char letter;
        int base;
        const char *digits;
    } bases[] = {{'x', 16, "0123456789abcdefABCDEF"}, {'o', 8, "01234567"}, {'b', 2, "01"}};
    static const char decimal[] = "0123456789";
    int64_t at = l->at;
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        if (l->source[at] != '0' || at + 2 >= l->size || (l->source[at + 1] | 0x20) != bases[i].letter)
            continue;
        int64_t end = skip_digits(l, at + 2, bases[i].digits);
        if (end > at + 2) return add_number(l, end, bases[i].base, false);
    }
    int64_t end = skip_digits(l, at, decimal);
    bool real = false, after_dot = at > 0 && l->source[at - 1] == '.';
    if (!after_dot && end + 1 < l->size && l->source[end] == '.' && is_digit(l->source[end + 1])) {
        end = skip_digits(l, end + 1, decimal);
        real = true;
    }
    int64_t exponent = end + 1;
    if (!after_dot && end < l->size && (l->source[end] | 0x20) == 'e') {
        if (exponent < l->size && (l->source[exponent] == '-' || l->source[exponent] == '+')) exponent++;
        if (exponent < l->size && is_digit(l->source[exponent])) {
            end = skip_digits(l, exponent, decimal);
            real = true;
        }
    }
    return add_number(l, end, 10, real);
}

/* The code point of `digits` hexadecimal digits at `at`, or -1. */
static int64_t read_hex(const lexer *l, int64_t at, int digits, int64_t end) {
    int64_t code = 0;
    if (end - at < digits) return -1;
    for (int i = 0; i < digits; i++) {
        const char *all = "0123456789abcdef";
        char c = l->source[at + i];
        const char *found = c ? strchr(all, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
        if (!found) return -1;
        code = code * 16 + (found - all);
    }
    return code;
}

static fb_status read_escape(lexer *l, int64_t *at, int64_t end, char **to) {
    static const char letters[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
    char c = l->source[*at];
    const char *found = c ? strchr(letters, c) : NULL;
    if (found) {
        *(*to)++ = values[found - letters];
        (*at)++;
        return FB_OK;
    }
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits) {
        int64_t code = read_hex(l, *at + 1, digits, end);
        if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            return fail(l, "not a character: \\", l->source + *at, digits + 1);
        *to += fb_utf8_write((uint32_t)code, *to);
        *at += digits + 1;
    } else if (c >= '0' && c <= '7') {
        uint32_t code = 0;
        for (int i = 0; i < 3 && *at < end && l->source[*at] >= '0' && l->source[*at] <= '7'; i++)
            code = code * 8 + (uint32_t)(l->source[(*at)++] - '0');
        *to += fb_utf8_write(code, *to);
    } else if (c == '\n') {
        (*at)++;
    } else if (c == 'N') {
        return fail(l, "a character by its name: \\N (give \\u and its number)", "", 0);
    } else {
        *(*to)++ = '\\'; /* Python keeps what it does not know */
    }
    return FB_OK;
}

static fb_status lex_string(lexer *l) {
    char quote = l->source[l->at];
    int64_t end = l->at + 1;
    while (end < l->size && l->source[end] != quote) end += l->source[end] == '\\' ? 2 : 1;
    if (end >= l->size) return fail(l, "unexpected char ", l->source + l->at, 1);
    char *text = fb_jinja_arena_take(&l->base->arena, end - l->at), *to = text;
    if (!text) return fb_jinja_fail_memory(l->base);
    for (int64_t at = l->at + 1; at < end;) {
        if (l->source[at] == '\\') {
            at++;
            FB_TRY(read_escape(l, &at, end, &to));
        } else {
            *to++ = l->source[at++];
        }
    }
    FB_TRY(add(l, (fb_jinja_token){.kind = FB_JINJA_TEXT, .text = {text, NULL, to - text}}));
    advance(l, end + 1);
    return FB_OK;
}

static fb_status lex_operator(lexer *l) {
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                            "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!starts(l, l->at, operators[i])) continue;
        char c = operators[i][0];
        if (strchr("([{", c)) {
            if (l->open == (int32_t)sizeof l->closing) return fail(l, "brackets nested too deep", "", 0);
            l->closing[l->open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (strchr(")]}", c) && (l->open == 0 || l->closing[--l->open] != c)) {
            return fail(l, "unexpected ", operators[i], 1);
        }
        l->at += (int64_t)strlen(operators[i]);
        return add(l, (fb_jinja_token){.kind = FB_JINJA_OPERATOR, .text = fb_jinja_literal(operators[i])});
    }
    int64_t size = fb_utf8_length(l->source[l->at]);
    return fail(l, "unexpected char ", l->source + l->at, size);
}

/* Reads a tag up to its end: "}}" or "%}". */
static fb_status lex_tag(lexer *l, bool variable) {
    const char *end = variable ? "}}" : "%}";
    l->open = 0;
    for (;;) {
        advance(l, skip_space(l, l->at));
        if (l->at >= l->size) return fail(l, "a tag is not closed with ", end, 2);
        char c = l->source[l->at], sign = sign_at(l, l->at);
        if (variable && sign == '+') sign = '\0';
        if (l->open == 0 && (starts(l, l->at, end) || (sign && starts(l, l->at + 1, end)))) {
            bool plain = starts(l, l->at, end);
            FB_TRY(add(l, (fb_jinja_token){.kind = variable ? FB_JINJA_VARIABLE_END : FB_JINJA_BLOCK_END}));
            end_tag(l, l->at + (plain ? 2 : 3), plain ? '\0' : sign, !variable);
            return FB_OK;
        }
        if (is_digit(c))
            FB_TRY(lex_number(l));
        else if (is_name_start((unsigned char)c))
            FB_TRY(lex_name(l));
        else if (c == '\'' || c == '"')
            FB_TRY(lex_string(l));
        else
            FB_TRY(lex_operator(l));
    }
}

/* ---- the whole source ---- */

static int64_t find_tag(const lexer *l) {
    for (int64_t at = l->at; at + 1 < l->size; at++)
        if (l->source[at] == '{' && strchr("{%#", l->source[at + 1]) && l->source[at + 1]) return at;
    return -1;
}

static fb_status lex_all(lexer *l) {
    l->line_start = true;
    for (int64_t tag; (tag = find_tag(l)) >= 0;) {
        char kind = l->source[tag + 1], sign = sign_at(l, tag + 2), end_sign;
        FB_TRY(add_data(l, tag, sign, kind == '{'));
        if (kind == '#') {
            FB_TRY(lex_comment(l));
            continue;
        }
        int64_t raw = kind == '%' ? word_tag(l, tag, "raw", &end_sign) : -1;
        if (raw >= 0) {
            FB_TRY(lex_raw(l, raw, end_sign));
            continue;
        }
        FB_TRY(
            add(l, (fb_jinja_token){.kind = kind == '{' ? FB_JINJA_VARIABLE_BEGIN : FB_JINJA_BLOCK_BEGIN}));
        advance(l, tag + (sign ? 3 : 2));
        FB_TRY(lex_tag(l, kind == '{'));
    }
    if (l->at < l->size)
        FB_TRY(add(
            l, (fb_jinja_token){.kind = FB_JINJA_DATA, .text = {l->source + l->at, NULL, l->size - l->at}}));
    return add(l, (fb_jinja_token){.kind = FB_JINJA_END});
}

fb_status fb_jinja_lex(fb_jinja_shared *base, const char *source, int64_t size, fb_jinja_token **out) {
    char *text = fb_jinja_arena_take(&base->arena, size + 1);
    if (!text) return fb_jinja_fail_memory(base);
    int64_t used = 0;
    for (int64_t i = 0; i < size; i++) {
        if (source[i] == '\r' && i + 1 < size && source[i + 1] == '\n') continue;
        text[used++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (used > 0 && text[used - 1] == '\n') used--; /* keep_trailing_newline is off */
    lexer l = {.base = base, .source = text, .size = used, .line = 1};
    FB_TRY(lex_all(&l));
    *out = l.tokens;
    return FB_OK;
}
