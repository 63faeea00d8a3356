/* Values as text, for messages and for the little JSON that the library writes. */
#include <stdio.h>

#include "file/json_tree.h"

/* ---- UTF-8 --------------------------------------------------------------------------------------------- */

/* Overlong forms, surrogates and what is beyond U+10FFFF are not well formed; all of them show in the first
 * two bytes. */
size_t fb_json_character(const char *text, size_t size) {
    const unsigned char *at = (const unsigned char *)text;
    unsigned char first = at[0];
    if (first < 0x80) return 1;
    size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || length > size) return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f)) return 0;
    if ((first == 0xf0 && at[1] < 0x90) || (first == 0xf4 && at[1] > 0x8f)) return 0;
    return length;
}

bool fb_json_is_utf8(const char *text, size_t size) {
    for (size_t at = 0, length; at < size; at += length) {
        length = fb_json_character(text + at, size - at);
        if (length == 0) return false;
    }
    return true;
}

/* ---- text of limited room ------------------------------------------------------------------------------ */

typedef struct sink {
    char *text;
    size_t used, size; /* without the NUL */
    bool full;         /* something had no room */
} sink;

/* All of it or nothing: no character is cut. */
static void put(sink *out, const char *bytes, size_t count) {
    if (out->full || count > out->size - out->used) {
        out->full = true;
        return;
    }
    memcpy(out->text + out->used, bytes, count);
    out->used += count;
}

static void put_text(sink *out, const char *text) { put(out, text, strlen(text)); }

static void put_string(sink *out, const char *bytes, size_t count) {
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    put_text(out, "\"");
    for (size_t at = 0, length; at < count && !out->full; at += length) {
        char c = bytes[at], unicode[8];
        const char *special = c ? strchr(escaped, c) : NULL;
        length = fb_json_character(bytes + at, count - at);
        if (length == 0) length = 1;
        if (special) {
            put(out, (char[]){'\\', letters[special - escaped]}, 2);
        } else if ((unsigned char)c < 0x20) {
            snprintf(unicode, sizeof unicode, "\\u%04X", (unsigned)c);
            put_text(out, unicode);
        } else {
            put(out, bytes + at, length);
        }
    }
    put_text(out, "\"");
}

/* 17 digits, and always a '.' or an exponent, the latter as in 1e-5. The point that the locale prints may be
 * anything. */
static void put_real(sink *out, double value) {
    char printed[40];
    snprintf(printed, sizeof printed, "%.17g", value);
    size_t whole = strspn(printed, "-0123456789"), point = strcspn(printed + whole, "0123456789e");
    const char *rest = printed + whole + point;
    size_t fraction = strspn(rest, "0123456789");
    put(out, printed, whole);
    if (point || !rest[fraction]) put_text(out, ".");
    if (point)
        put(out, rest, fraction);
    else if (!rest[fraction])
        put_text(out, "0");
    if (!rest[fraction]) return;
    const char *exponent = rest + fraction + 1;
    put_text(out, *exponent == '-' ? "e-" : "e");
    put_text(out, exponent + strspn(exponent, "+-0"));
}

static void put_scalar(sink *out, const fb_json *value) {
    char text[32];
    switch ((fb_json_kind)value->kind) {
    case FB_JSON_BOOL:
        put_text(out, value->truth ? "true" : "false");
        break;
    case FB_JSON_INT:
        snprintf(text, sizeof text, "%lld", (long long)value->integer);
        put_text(out, text);
        break;
    case FB_JSON_REAL:
        put_real(out, value->real);
        break;
    case FB_JSON_STRING:
        put_string(out, value->text, value->size);
        break;
    default:
        put_text(out, "null");
    }
}

/* No deeper than there is room: every level takes a character. */
static void put_value(sink *out, const fb_json *value) {
    bool object = value->kind == FB_JSON_OBJECT;
    if (!object && value->kind != FB_JSON_ARRAY) {
        put_scalar(out, value);
        return;
    }
    put_text(out, object ? "{" : "[");
    for (const fb_json *child = fb_json_first(value); child && !out->full; child = fb_json_next(child)) {
        if (child->keyed) {
            put_string(out, child[-1].text, child[-1].size);
            put_text(out, ":");
        }
        put_value(out, child);
        if (!child->last) put_text(out, ",");
    }
    put_text(out, object ? "}" : "]");
}

/* The text ends with "..." if not all of it had room. */
static const char *finish(sink *out) {
    if (out->full && out->size > 3) {
        size_t end = out->used < out->size - 3 ? out->used : out->size - 3;
        while (end > 0 && end < out->used && (out->text[end] & 0xc0) == 0x80) end--;
        memcpy(out->text + end, "...", 3);
        out->used = end + 3;
    }
    out->text[out->used] = 0;
    return out->text;
}

const char *fb_json_show(const fb_json *value, char *text, size_t size) {
    sink out = {.text = text, .size = size - 1};
    if (value)
        put_value(&out, value);
    else
        put_text(&out, "nothing");
    return finish(&out);
}

const char *fb_json_quote(const char *bytes, size_t count, char *text, size_t size) {
    sink out = {.text = text, .size = size - 1};
    put_string(&out, bytes, count);
    return finish(&out);
}
