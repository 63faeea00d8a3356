/* Values as text: str(), repr() and json.dumps() of Python. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "chat/value.h"
#include "text/utf8.h"

/* ---- numbers ---- */

/* The shortest digits that give the number again, with an exponent where Python has one. */
void fb_jinja_show_float(double real, char text[32]) {
    if (isnan(real) || isinf(real)) {
        snprintf(text, 32, "%s", isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
        return;
    }
    char digits[32];
    int precision = 0;
    do snprintf(digits, sizeof digits, "%.*e", precision, real);
    while (strtod(digits, NULL) != real && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int decimals = precision - exponent;
        snprintf(text, 32, "%.*f", decimals > 0 ? decimals : 1, real);
    } else {
        *strchr(digits, 'e') = '\0';
        snprintf(text, 32, "%se%+03d", digits, exponent);
    }
}

static fb_status put_int(fb_jinja_run *run, fb_jinja_builder *b, int64_t integer) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)integer);
    return fb_jinja_put_string(run, b, text);
}

static fb_status put_float(fb_jinja_run *run, fb_jinja_builder *b, double real) {
    char text[32];
    fb_jinja_show_float(real, text);
    return fb_jinja_put_string(run, b, text);
}

/* ---- repr ---- */

static bool is_printable(uint32_t code) {
    if (code < 0x80) return code >= 0x20 && code < 0x7f;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static const char *escape_of(uint32_t code, char quote, char text[16]) {
    if (code == '\\' || code == (unsigned char)quote)
        snprintf(text, 16, "\\%c", (char)code);
    else if (code == '\n')
        return "\\n";
    else if (code == '\r')
        return "\\r";
    else if (code == '\t')
        return "\\t";
    else if (is_printable(code))
        return NULL;
    else
        snprintf(text, 16, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
    return text;
}

static fb_status put_repr_text(fb_jinja_run *run, fb_jinja_builder *b, fb_jinja_text text) {
    char quote = text.size > 0 && memchr(text.bytes, '\'', (size_t)text.size) &&
                         !memchr(text.bytes, '"', (size_t)text.size)
                     ? '"'
                     : '\'';
    char room[16];
    FB_TRY(fb_jinja_put_marked(run, b, &quote, 1, 0));
    for (int64_t at = 0, size; at < text.size; at += size) {
        fb_utf8_char c = fb_utf8_read(text.bytes + at, text.size - at);
        size = c.size;
        const char *escape = escape_of(c.code, quote, room);
        if (escape)
            FB_TRY(fb_jinja_put_marked(run, b, escape, (int64_t)strlen(escape),
                                       text.marks ? text.marks[at] : 0));
        else
            FB_TRY(fb_jinja_put(run, b, fb_jinja_part(text, at, at + size)));
    }
    return fb_jinja_put_marked(run, b, &quote, 1, 0);
}

static fb_status put_repr_list(fb_jinja_run *run, fb_jinja_builder *b, const fb_jinja_value *v) {
    bool tuple = v->kind == FB_JINJA_TUPLE;
    FB_TRY(fb_jinja_put_string(run, b, tuple ? "(" : "["));
    for (int64_t i = 0; i < v->list->count; i++) {
        if (i > 0) FB_TRY(fb_jinja_put_string(run, b, ", "));
        FB_TRY(fb_jinja_put_repr(run, b, &v->list->items[i]));
    }
    return fb_jinja_put_string(run, b, !tuple ? "]" : v->list->count == 1 ? ",)" : ")");
}

static fb_status put_repr_dict(fb_jinja_run *run, fb_jinja_builder *b, const fb_jinja_dict *dict) {
    FB_TRY(fb_jinja_put_string(run, b, "{"));
    for (int64_t i = 0; i < dict->count; i++) {
        if (i > 0) FB_TRY(fb_jinja_put_string(run, b, ", "));
        FB_TRY(fb_jinja_put_repr(run, b, &dict->entries[i].key));
        FB_TRY(fb_jinja_put_string(run, b, ": "));
        FB_TRY(fb_jinja_put_repr(run, b, &dict->entries[i].value));
    }
    return fb_jinja_put_string(run, b, "}");
}

static fb_status put_value(fb_jinja_run *run, fb_jinja_builder *b, const fb_jinja_value *v) {
    switch (v->kind) {
    case FB_JINJA_UNDEFINED:
        return fb_jinja_put_string(run, b, "Undefined");
    case FB_JINJA_NONE:
        return fb_jinja_put_string(run, b, "None");
    case FB_JINJA_BOOL:
        return fb_jinja_put_string(run, b, v->truth ? "True" : "False");
    case FB_JINJA_INT:
        return put_int(run, b, v->integer);
    case FB_JINJA_FLOAT:
        return put_float(run, b, v->real);
    case FB_JINJA_STRING:
        if (v->markup) FB_TRY(fb_jinja_put_string(run, b, "Markup("));
        FB_TRY(put_repr_text(run, b, v->text));
        return v->markup ? fb_jinja_put_string(run, b, ")") : FB_OK;
    case FB_JINJA_LIST:
    case FB_JINJA_TUPLE:
        return put_repr_list(run, b, v);
    case FB_JINJA_DICT:
        return put_repr_dict(run, b, v->dict);
    default:
        return fb_jinja_fail(&run->base, "a %s cannot be written as text", fb_jinja_type_name(v));
    }
}

fb_status fb_jinja_put_repr(fb_jinja_run *run, fb_jinja_builder *b, const fb_jinja_value *v) {
    FB_TRY(fb_jinja_enter(run));
    FB_TRY(put_value(run, b, v));
    fb_jinja_leave(run);
    return FB_OK;
}

fb_status fb_jinja_put_str(fb_jinja_run *run, fb_jinja_builder *b, const fb_jinja_value *v) {
    if (v->kind == FB_JINJA_UNDEFINED) return FB_OK;
    if (v->kind == FB_JINJA_STRING) return fb_jinja_put(run, b, v->text);
    return fb_jinja_put_repr(run, b, v);
}

fb_status fb_jinja_to_str(fb_jinja_run *run, const fb_jinja_value *v, fb_jinja_text *out) {
    if (v->kind == FB_JINJA_STRING) {
        *out = v->text;
        return FB_OK;
    }
    fb_jinja_builder b = {0};
    FB_TRY(fb_jinja_put_str(run, &b, v));
    *out = fb_jinja_built(&b);
    return FB_OK;
}

/* ---- JSON ---- */

static const char *json_escape_of(uint32_t code, bool ascii, char text[16]) {
    static const char *const names[] = {['\b'] = "\\b", ['\f'] = "\\f", ['\n'] = "\\n", ['\r'] = "\\r",
                                        ['\t'] = "\\t", ['"'] = "\\\"", ['\\'] = "\\\\"};
    if (code < sizeof names / sizeof *names && names[code]) return names[code];
    if (code >= 0x20 && (code < 0x7f || !ascii)) return NULL;
    if (code < 0x10000)
        snprintf(text, 16, "\\u%04x", code);
    else
        snprintf(text, 16, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                 0xdc00 + ((code - 0x10000) & 0x3ff));
    return text;
}

static fb_status put_json_text(fb_jinja_run *run, fb_jinja_builder *b, fb_jinja_text text, bool ascii) {
    char room[16];
    FB_TRY(fb_jinja_put_string(run, b, "\""));
    int64_t done = 0;
    for (int64_t at = 0, size; at < text.size; at += size) {
        fb_utf8_char c = fb_utf8_read(text.bytes + at, text.size - at);
        size = c.size;
        const char *escape = json_escape_of(c.code, ascii, room);
        if (!escape) continue;
        FB_TRY(fb_jinja_put(run, b, fb_jinja_part(text, done, at)));
        FB_TRY(fb_jinja_put_marked(run, b, escape, (int64_t)strlen(escape), text.marks ? text.marks[at] : 0));
        done = at + size;
    }
    FB_TRY(fb_jinja_put(run, b, fb_jinja_part(text, done, text.size)));
    return fb_jinja_put_string(run, b, "\"");
}

typedef struct dumping {
    fb_jinja_run *run;
    fb_jinja_builder *b;
    const fb_jinja_json_style *style;
    int64_t level;
} dumping;

static fb_status dump(dumping *d, const fb_jinja_value *v);

static fb_status dump_line(dumping *d) {
    if (!d->style->indented) return FB_OK;
    FB_TRY(fb_jinja_put_string(d->run, d->b, "\n"));
    for (int64_t i = 0; i < d->level; i++) FB_TRY(fb_jinja_put(d->run, d->b, d->style->indent));
    return FB_OK;
}

/* Begins item `index`. */
static fb_status dump_between(dumping *d, int64_t index) {
    if (index > 0) FB_TRY(fb_jinja_put(d->run, d->b, d->style->comma));
    return dump_line(d);
}

static fb_status dump_list(dumping *d, const fb_jinja_list *list) {
    if (list->count == 0) return fb_jinja_put_string(d->run, d->b, "[]");
    FB_TRY(fb_jinja_put_string(d->run, d->b, "["));
    d->level++;
    for (int64_t i = 0; i < list->count; i++) {
        FB_TRY(dump_between(d, i));
        FB_TRY(dump(d, &list->items[i]));
    }
    d->level--;
    FB_TRY(dump_line(d));
    return fb_jinja_put_string(d->run, d->b, "]");
}

static fb_status dump_scalar(dumping *d, const fb_jinja_value *v) {
    if (v->kind == FB_JINJA_NONE) return fb_jinja_put_string(d->run, d->b, "null");
    if (v->kind == FB_JINJA_BOOL) return fb_jinja_put_string(d->run, d->b, v->truth ? "true" : "false");
    if (v->kind == FB_JINJA_INT) return put_int(d->run, d->b, v->integer);
    if (v->kind != FB_JINJA_FLOAT)
        return fb_jinja_fail(&d->run->base, "tojson: %s (not JSON serializable)", fb_jinja_type_name(v));
    if (isnan(v->real)) return fb_jinja_put_string(d->run, d->b, "NaN");
    if (isinf(v->real)) return fb_jinja_put_string(d->run, d->b, v->real < 0 ? "-Infinity" : "Infinity");
    return put_float(d->run, d->b, v->real);
}

static fb_status dump_key(dumping *d, const fb_jinja_value *key) {
    if (key->kind == FB_JINJA_STRING) return put_json_text(d->run, d->b, key->text, d->style->ascii);
    FB_TRY(fb_jinja_put_string(d->run, d->b, "\""));
    FB_TRY(dump_scalar(d, key));
    return fb_jinja_put_string(d->run, d->b, "\"");
}

/* The entries in order of their keys: a copy. */
static fb_status sort_entries(fb_jinja_run *run, fb_jinja_dict *dict) {
    fb_jinja_entry *sorted = fb_jinja_arena_take(&run->base.arena, dict->count * (int64_t)sizeof *sorted);
    if (!sorted) return fb_jinja_fail_memory(&run->base);
    for (int64_t i = 0; i < dict->count; i++) {
        int64_t at = i;
        for (; at > 0; at--) {
            int order;
            FB_TRY(fb_jinja_compare(run, &sorted[at - 1].key, &dict->entries[i].key, &order));
            if (order <= 0) break;
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = dict->entries[i];
    }
    dict->entries = sorted;
    return FB_OK;
}

static fb_status dump_dict(dumping *d, fb_jinja_dict dict) {
    if (dict.count == 0) return fb_jinja_put_string(d->run, d->b, "{}");
    if (d->style->sort) FB_TRY(sort_entries(d->run, &dict));
    FB_TRY(fb_jinja_put_string(d->run, d->b, "{"));
    d->level++;
    for (int64_t i = 0; i < dict.count; i++) {
        FB_TRY(dump_between(d, i));
        FB_TRY(dump_key(d, &dict.entries[i].key));
        FB_TRY(fb_jinja_put(d->run, d->b, d->style->colon));
        FB_TRY(dump(d, &dict.entries[i].value));
    }
    d->level--;
    FB_TRY(dump_line(d));
    return fb_jinja_put_string(d->run, d->b, "}");
}

static fb_status dump(dumping *d, const fb_jinja_value *v) {
    FB_TRY(fb_jinja_enter(d->run));
    if (v->kind == FB_JINJA_STRING)
        FB_TRY(put_json_text(d->run, d->b, v->text, d->style->ascii));
    else if (v->kind == FB_JINJA_LIST || v->kind == FB_JINJA_TUPLE)
        FB_TRY(dump_list(d, v->list));
    else if (v->kind == FB_JINJA_DICT)
        FB_TRY(dump_dict(d, *v->dict));
    else
        FB_TRY(dump_scalar(d, v));
    fb_jinja_leave(d->run);
    return FB_OK;
}

fb_status fb_jinja_put_json(fb_jinja_run *run, fb_jinja_builder *b, const fb_jinja_value *value,
                            const fb_jinja_json_style *style) {
    dumping d = {run, b, style, 0};
    return dump(&d, value);
}
