/* The parser: RFC 8259, less what it leaves to the reader (duplicate keys, lone surrogates, numbers that do
 * not fit). One walk over the bytes counts what the document needs, a second one fills it. */
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "file/json_tree.h"

#define DEPTH_LIMIT 2048
#define NO_NODE     UINT32_MAX
#define NEAR        24 /* bytes of a token in messages */

typedef struct parser {
    const char *bytes;
    size_t size, at;
    fb_json *nodes;
    uint32_t count, room;
    fb_json_entry *entries; /* the next free one, and its end */
    const fb_json_entry *entries_end;
    char *text, *text_end; /* the same of the strings */
    uint32_t open;         /* the innermost array or object that is not complete, or NO_NODE */
    uint32_t done;         /* the value that was completed last */
    int depth;             /* arrays and objects that are open */
    locale_t locale;
    uint32_t watched; /* a node, and where in the bytes it begins once that is known */
    size_t watched_at;
    char reason[128]; /* what is wrong, and where; empty until something is */
    size_t where;
} parser;

static bool refuse(parser *p, size_t where, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool refuse(parser *p, size_t where, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(p->reason, sizeof p->reason, format, args);
    va_end(args);
    p->where = where;
    return false;
}

static bool refuse_end(parser *p) { return refuse(p, p->at, "premature end of input"); }
static bool refuse_token(parser *p, size_t where) { return refuse(p, where, "invalid token"); }

/* ---- bytes --------------------------------------------------------------------------------------------- */

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
/* What may follow a number or a word. */
static bool ends_scalar(char c) { return is_space(c) || c == ',' || c == ']' || c == '}'; }
static bool is_plain(char c) {
    return (unsigned char)c >= 0x20 && (unsigned char)c < 0x80 && c != '"' && c != '\\';
}

static bool is_punctuation(char c) {
    return is_space(c) || c == ',' || c == ':' || c == '"' || c == '[' || c == ']' || c == '{' || c == '}';
}

static void skip_space(parser *p) {
    while (p->at < p->size && is_space(p->bytes[p->at])) p->at++;
}

/* ---- room ---------------------------------------------------------------------------------------------- */

typedef struct needs {
    size_t nodes, entries, text;
} needs;

/* Behind the string that begins at `at`. */
static size_t skip_string(const char *bytes, size_t size, size_t at) {
    for (at++; at < size && bytes[at] != '"';) at += bytes[at] == '\\' ? 2 : 1;
    return at < size ? at + 1 : size;
}

static size_t skip_scalar(const char *bytes, size_t size, size_t at) {
    while (at < size && !is_punctuation(bytes[at])) at++;
    return at;
}

/* What a document of these bytes needs, at most up to where two values follow each other without a comma: the
 * parser goes no further either. */
static needs count_needs(const char *bytes, size_t size) {
    needs n = {0};
    uint32_t members[DEPTH_LIMIT + 1];
    int depth = 0;
    bool behind_value = false;
    for (size_t at = 0; at < size;) {
        char c = bytes[at];
        size_t end = at + 1;
        if (is_space(c) || c == ',' || c == ':') {
            behind_value = behind_value && is_space(c);
            if (c == ':' && depth > 0) members[depth]++;
        } else if (c == ']' || c == '}') {
            if (depth == 0) break;
            n.entries += fb_json_entries(members[depth--]);
            behind_value = true;
        } else { /* a value begins */
            bool container = c == '[' || c == '{';
            if (behind_value || (container && depth == DEPTH_LIMIT)) break;
            n.nodes++;
            behind_value = !container;
            if (container)
                members[++depth] = 0;
            else
                end = c == '"' ? skip_string(bytes, size, at) : skip_scalar(bytes, size, at);
            if (c == '"') n.text += end - at - 1; /* the quotes are gone, a NUL comes */
        }
        at = end;
    }
    return n;
}

static fb_json *add_node(parser *p, uint8_t kind) {
    if (p->count == p->room) {
        refuse_end(p);
        return NULL;
    }
    if (p->count == p->watched) p->watched_at = p->at;
    fb_json *node = &p->nodes[p->count++];
    *node = (fb_json){.kind = kind};
    return node;
}

/* ---- strings ------------------------------------------------------------------------------------------- */

static bool put_text(parser *p, const char *text, size_t size) {
    if (size > (size_t)(p->text_end - p->text)) return refuse_end(p);
    memcpy(p->text, text, size);
    p->text += size;
    return true;
}

static bool read_hex(parser *p, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        if (p->at == p->size) return refuse_end(p);
        char c = p->bytes[p->at], lower = (char)(c | 0x20);
        if (!is_digit(c) && !(lower >= 'a' && lower <= 'f'))
            return refuse(p, p->at, "invalid escape: not four hexadecimal digits");
        *out = *out * 16 + (uint32_t)(is_digit(c) ? c - '0' : lower - 'a' + 10);
    }
    return true;
}

static size_t encode(uint32_t code, char out[4]) {
    size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = size; i-- > 1; code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(first[size] | code);
    return size;
}

/* The four digits behind "\u" and, for the first half of a surrogate pair, the second half. */
static bool read_unicode(parser *p, size_t where) {
    uint32_t code, low = 0;
    if (!read_hex(p, &code)) return false;
    if (code >= 0xd800 && code < 0xdc00) {
        bool more = p->size - p->at >= 2 && p->bytes[p->at] == '\\' && p->bytes[p->at + 1] == 'u';
        p->at += more ? 2 : 0;
        if (more && !read_hex(p, &low)) return false;
        if (low < 0xdc00 || low > 0xdfff)
            return refuse(p, where, "invalid Unicode: half a surrogate pair \\u%04X", code);
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return refuse(p, where, "invalid Unicode: half a surrogate pair \\u%04X", code);
    }
    char text[4];
    size_t size = encode(code, text);
    return put_text(p, text, size);
}

static bool read_escape(parser *p) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    size_t where = p->at++;
    if (p->at == p->size) return refuse_end(p);
    char c = p->bytes[p->at++];
    if (c == 'u') return read_unicode(p, where);
    const char *letter = c ? strchr(letters, c) : NULL;
    if (!letter) return refuse(p, where, "invalid escape");
    return put_text(p, &meanings[letter - letters], 1);
}

/* Plain characters, or one that is not. */
static bool read_characters(parser *p) {
    size_t begin = p->at;
    while (p->at < p->size && is_plain(p->bytes[p->at])) p->at++;
    if (p->at > begin) return put_text(p, p->bytes + begin, p->at - begin);
    unsigned char c = (unsigned char)p->bytes[p->at];
    if (c == '\\') return read_escape(p);
    if (c < 0x20) return refuse(p, p->at, "control character 0x%02x in a string", c);
    size_t length = fb_json_character(p->bytes + p->at, p->size - p->at);
    if (length == 0) return refuse(p, p->at, "unable to decode byte 0x%02x", c);
    p->at += length;
    return put_text(p, p->bytes + p->at - length, length);
}

static bool read_string(parser *p, uint8_t kind) {
    size_t where = p->at;
    fb_json *node = add_node(p, kind);
    if (!node) return false;
    const char *text = node->text = p->text;
    for (p->at++; p->at < p->size && p->bytes[p->at] != '"';)
        if (!read_characters(p)) return false;
    if (p->at >= p->size) return refuse_end(p);
    p->at++;
    node->size = (uint32_t)(p->text - text);
    if (kind == FB_JSON_KEY && memchr(text, 0, node->size)) return refuse(p, where, "NUL in an object key");
    return put_text(p, "", 1);
}

/* ---- numbers and words --------------------------------------------------------------------------------- */

static size_t skip_digits(const parser *p, size_t at) {
    while (at < p->size && is_digit(p->bytes[at])) at++;
    return at;
}

static bool take_any(const parser *p, size_t *at, const char *characters) {
    if (*at == p->size || !p->bytes[*at] || !strchr(characters, p->bytes[*at])) return false;
    ++*at;
    return true;
}

/* The number at p->at: where it ends, and whether it is a real. False if it is not one. */
static bool scan_number(const parser *p, size_t *end, bool *real) {
    size_t at = p->at, digits;
    take_any(p, &at, "-");
    digits = at;
    at = take_any(p, &at, "0") ? at : skip_digits(p, at);
    if (at == digits) return false;
    bool point = take_any(p, &at, ".");
    digits = at;
    if (point && (at = skip_digits(p, at)) == digits) return false;
    bool exponent = take_any(p, &at, "eE");
    if (exponent) take_any(p, &at, "+-");
    digits = at;
    if (exponent && (at = skip_digits(p, at)) == digits) return false;
    *end = at;
    *real = point || exponent;
    return true;
}

static bool read_integer(parser *p, fb_json *node, size_t end) {
    bool negative = p->bytes[p->at] == '-', over = false;
    int64_t value = 0; /* below 0 there is one more number */
    for (size_t i = p->at + negative; i < end; i++) {
        over = over || __builtin_mul_overflow(value, 10, &value);
        over = over || __builtin_sub_overflow(value, p->bytes[i] - '0', &value);
    }
    if (over || (!negative && value == INT64_MIN))
        return refuse(p, p->at, "too big %sinteger", negative ? "negative " : "");
    node->integer = negative ? value : -value;
    return true;
}

static bool read_number(parser *p) {
    size_t end;
    bool real;
    if (!scan_number(p, &end, &real)) return refuse_token(p, p->at);
    if (end == p->size) return refuse_end(p); /* no top value is a number */
    if (!ends_scalar(p->bytes[end])) return refuse_token(p, p->at);
    fb_json *node = add_node(p, real ? FB_JSON_REAL : FB_JSON_INT);
    if (!node) return false;
    if (real) {
        /* What ends the number for JSON ends it for strtod, too. */
        node->real = strtod_l(p->bytes + p->at, NULL, p->locale);
        if (isinf(node->real)) return refuse(p, p->at, "real number overflow");
    } else if (!read_integer(p, node, end)) {
        return false;
    }
    p->at = end;
    return true;
}

static bool read_word(parser *p) {
    static const struct {
        const char *word;
        uint8_t kind;
        bool truth;
    } words[] = {{"null", FB_JSON_NULL, false}, {"true", FB_JSON_BOOL, true}, {"false", FB_JSON_BOOL, false}};
    size_t length = skip_scalar(p->bytes, p->size, p->at) - p->at;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (length != strlen(words[i].word) || memcmp(p->bytes + p->at, words[i].word, length) != 0) continue;
        fb_json *node = add_node(p, words[i].kind);
        if (!node) return false;
        node->truth = words[i].truth;
        p->at += length;
        return true;
    }
    return refuse_token(p, p->at);
}

/* ---- arrays and objects -------------------------------------------------------------------------------- */

/* A value is complete: it is one more of what is open. */
static void complete(parser *p, uint32_t value) {
    if (p->open != NO_NODE) {
        p->nodes[p->open].size++;
        p->nodes[value].keyed = p->nodes[p->open].kind == FB_JSON_OBJECT;
    }
    p->done = value;
}

static bool open_container(parser *p, uint8_t kind) {
    uint32_t at = p->count;
    fb_json *node = add_node(p, kind);
    if (!node) return false;
    node->nodes = p->open;
    p->open = at;
    p->depth++;
    p->at++;
    return true;
}

static bool fail_duplicate(parser *p, const fb_json *key) {
    p->watched = (uint32_t)(key - p->nodes);
    return refuse(p, p->at, "duplicate object key");
}

static bool close_container(parser *p) {
    uint32_t at = p->open;
    fb_json *node = &p->nodes[at];
    if (node->size > 0) p->nodes[p->done].last = true;
    p->open = node->nodes;
    node->nodes = p->count - at;
    p->depth--;
    p->at++;
    complete(p, at);
    if (node->kind != FB_JSON_OBJECT) return true;
    uint32_t entries = fb_json_entries(node->size);
    if (entries > p->entries_end - p->entries) return refuse_end(p);
    const fb_json *duplicate = fb_json_index(node, p->entries);
    p->entries += entries;
    return !duplicate || fail_duplicate(p, duplicate);
}

static bool expect(parser *p, const char *characters, const char *names) {
    skip_space(p);
    if (p->at == p->size) return refuse_end(p);
    char c = p->bytes[p->at];
    return (c && strchr(characters, c)) || refuse(p, p->at, "%s expected", names);
}

static bool read_key(parser *p) {
    if (!expect(p, "\"", "string") || !read_string(p, FB_JSON_KEY) || !expect(p, ":", "':'")) return false;
    p->at++;
    return true;
}

/* A value, of an array or object only its begin. */
static bool read_value(parser *p) {
    skip_space(p);
    if (p->at == p->size) return refuse_end(p);
    char c = p->bytes[p->at];
    if (p->depth == DEPTH_LIMIT) return refuse(p, p->at, "depth of more than %d", DEPTH_LIMIT);
    if (c == '[' || c == '{') return open_container(p, c == '[' ? FB_JSON_ARRAY : FB_JSON_OBJECT);
    uint32_t at = p->count;
    if (!(c == '"'                  ? read_string(p, FB_JSON_STRING)
          : c == '-' || is_digit(c) ? read_number(p)
                                    : read_word(p)))
        return false;
    complete(p, at);
    return true;
}

/* Up to the next value, or to the end of the array or object that is open. */
static bool read_between(parser *p) {
    const fb_json *open = &p->nodes[p->open];
    bool object = open->kind == FB_JSON_OBJECT, first = p->open + 1 == p->count;
    char end = object ? '}' : ']';
    skip_space(p);
    if (p->at == p->size) return refuse_end(p);
    if (p->bytes[p->at] == end) return close_container(p);
    if (!first) {
        if (!expect(p, ",", object ? "',' or '}'" : "',' or ']'")) return false;
        p->at++;
    }
    return (!object || read_key(p)) && read_value(p);
}

static bool read_document(parser *p) {
    if (!expect(p, "[{", "'[' or '{'") || !read_value(p)) return false;
    while (p->open != NO_NODE)
        if (!read_between(p)) return false;
    skip_space(p);
    return p->at == p->size || refuse(p, p->at, "end of file expected");
}

/* ---- documents ----------------------------------------------------------------------------------------- */

static parser make_parser(const char *bytes, size_t size, const needs *n, void *memory, locale_t locale) {
    fb_json *nodes = memory;
    fb_json_entry *entries = (fb_json_entry *)(void *)(nodes + n->nodes);
    char *text = (char *)(entries + n->entries);
    return (parser){.bytes = bytes,
                    .size = size,
                    .nodes = nodes,
                    .room = (uint32_t)n->nodes,
                    .entries = entries,
                    .entries_end = entries + n->entries,
                    .text = text,
                    .text_end = text + n->text,
                    .open = NO_NODE,
                    .locale = locale,
                    .watched = NO_NODE};
}

/* With the line and column of bytes[where], and what is there as far as it can be shown. */
static fb_status fail(const char *what, const parser *p, fb_error *err) {
    int line = 1, column = 1, near = 0;
    for (size_t i = 0; i < p->where; i++) {
        bool newline = p->bytes[i] == '\n';
        line += newline;
        column = newline ? 1 : column + ((p->bytes[i] & 0xc0) != 0x80);
    }
    const char *text = p->bytes + p->where;
    while (near < NEAR && p->where + (size_t)near < p->size && text[near] > 0x20 && text[near] < 0x7f) near++;
    return fb_fail(err, FB_ERROR_FILE, "%s: not JSON: %s%s%.*s%s (line %d, column %d)", what, p->reason,
                   near ? " near '" : "", near, text, near ? "'" : "", line, column);
}

/* A duplicate is found when its object ends: the same walk again, to see where it begins. */
static void find_watched(parser *p, const needs *n) {
    parser again = make_parser(p->bytes, p->size, n, p->nodes, p->locale);
    again.watched = p->watched;
    read_document(&again);
    p->where = again.watched_at;
}

static fb_status parse(const char *what, const char *bytes, size_t size, locale_t locale, fb_json **out,
                       fb_error *err) {
    needs n = count_needs(bytes, size);
    size_t room = n.nodes * sizeof(fb_json) + n.entries * sizeof(fb_json_entry) + n.text;
    char label[512];
    void *memory;
    snprintf(label, sizeof label, "%.480s: values in memory", what);
    FB_TRY(fb_memory_take(label, (int64_t)room, &memory, err));
    parser p = make_parser(bytes, size, &n, memory, locale);
    if (read_document(&p)) {
        *out = memory;
        return FB_OK;
    }
    if (p.watched != NO_NODE) find_watched(&p, &n);
    free(memory);
    return fail(what, &p, err);
}

fb_status fb_json_check_size(const char *what, size_t size, size_t limit, fb_error *err) {
    if (limit > FB_JSON_MAX_NODES) limit = FB_JSON_MAX_NODES; /* every node takes a byte */
    if (size <= limit) return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: %zu bytes (at most %zu)", what, size, limit);
}

fb_status fb_json_parse(const char *what, const char *bytes, size_t size, size_t limit, fb_json **out,
                        fb_error *err) {
    *out = NULL;
    FB_TRY(fb_json_check_size(what, size, limit, err));
    /* Reals have a point, whatever the program's locale. */
    locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!locale) return fb_fail_memory(err, what, 1);
    fb_status status = parse(what, bytes, size, locale, out, err);
    freelocale(locale);
    return status;
}

void fb_json_free(fb_json *document) { free(document); }
