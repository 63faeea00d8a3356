/* Filters that make a text or a number. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/call.h"
#include "chat/wrap.h"
#include "text/unicode.h"
#include "text/utf8.h"

/* A filter that is a change of the text of its input. */
static fb_status change_case(fb_jinja_run *run, const fb_jinja_value *self, fb_jinja_case to,
                             fb_jinja_value *out) {
    fb_jinja_text text;
    FB_TRY(fb_jinja_to_str(run, self, &text));
    return fb_jinja_change_case(run, text, to, out);
}
FB_JINJA_CALL(filter_upper) {
    (void)args;
    return change_case(run, self, FB_JINJA_UPPER, out);
}
FB_JINJA_CALL(filter_lower) {
    (void)args;
    return change_case(run, self, FB_JINJA_LOWER, out);
}
FB_JINJA_CALL(filter_capitalize) {
    (void)args;
    return change_case(run, self, FB_JINJA_CAPITALIZE, out);
}

/* Jinja's own: words begin behind white space and one of -({[<. */
FB_JINJA_CALL(filter_title) {
    fb_jinja_text text;
    fb_jinja_builder b = {0};
    int64_t start = 0;
    (void)args;
    FB_TRY(fb_jinja_to_str(run, self, &text));
    for (int64_t at = 0, size; at <= text.size; at += size) {
        fb_utf8_char c = {.code = ' ', .size = 1};
        if (at < text.size) c = fb_utf8_read(text.bytes + at, text.size - at);
        size = c.size;
        bool breaks = fb_jinja_is_space(c.code) || (c.code && c.code < 0x80 && strchr("-({[<", (int)c.code));
        if (!breaks) continue;
        fb_jinja_value word;
        FB_TRY(fb_jinja_change_case(run, fb_jinja_part(text, start, at), FB_JINJA_CAPITALIZE, &word));
        FB_TRY(fb_jinja_put(run, &b, word.text));
        if (at < text.size) FB_TRY(fb_jinja_put(run, &b, fb_jinja_part(text, at, at + size)));
        start = at + size;
    }
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

FB_JINJA_CALL(filter_trim) {
    fb_jinja_text text, set;
    bool given = fb_jinja_given(args, 0) && args->values[0].kind != FB_JINJA_NONE;
    FB_TRY(fb_jinja_to_str(run, self, &text));
    if (given) FB_TRY(fb_jinja_need_text(run, "trim", &args->values[0], &set));
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    *out = fb_jinja_string(fb_jinja_strip(text, given ? &set : NULL, true, true));
    return FB_OK;
}

FB_JINJA_CALL(filter_string) {
    fb_jinja_text text;
    (void)args;
    FB_TRY(fb_jinja_to_str(run, self, &text));
    *out = fb_jinja_string(text);
    out->markup = self->kind == FB_JINJA_STRING && self->markup;
    return FB_OK;
}

FB_JINJA_CALL(filter_replace) {
    fb_jinja_text text, from, to;
    int64_t count = -1;
    FB_TRY(fb_jinja_to_str(run, self, &text));
    FB_TRY(fb_jinja_to_str(run, &args->values[0], &from));
    FB_TRY(fb_jinja_to_str(run, &args->values[1], &to));
    if (fb_jinja_given(args, 2) && args->values[2].kind != FB_JINJA_NONE)
        FB_TRY(fb_jinja_need_int(run, "replace", &args->values[2], &count));
    return fb_jinja_replace(run, text, from, to, count, out);
}

FB_JINJA_CALL(filter_center) {
    fb_jinja_text text;
    int64_t width = 80;
    FB_TRY(fb_jinja_to_str(run, self, &text));
    if (fb_jinja_given(args, 0)) FB_TRY(fb_jinja_need_int(run, "center", &args->values[0], &width));
    return fb_jinja_pad(run, text, fb_jinja_literal(" "), '^', width, out);
}

/* indent(width=4, first=False, blank=False): lines of `\n`; blank ones are left alone. */
FB_JINJA_CALL(filter_indent) {
    fb_jinja_text text, space;
    fb_jinja_value spaces = {.kind = FB_JINJA_NONE};
    bool first = fb_jinja_given(args, 1) && fb_jinja_truth(&args->values[1]);
    bool blank = fb_jinja_given(args, 2) && fb_jinja_truth(&args->values[2]);
    FB_TRY(fb_jinja_need(run, self));
    FB_TRY(fb_jinja_to_str(run, self, &text));
    if (fb_jinja_given(args, 0) && args->values[0].kind == FB_JINJA_STRING) {
        space = args->values[0].text;
    } else {
        int64_t width = 4;
        if (fb_jinja_given(args, 0)) FB_TRY(fb_jinja_need_int(run, "indent", &args->values[0], &width));
        FB_TRY(fb_jinja_pad(run, (fb_jinja_text){"", NULL, 0}, fb_jinja_literal(" "), '>', width, &spaces));
        space = spaces.text;
    }
    /* Jinja adds a newline, splits the lines, and joins them again: what ends in one keeps it. */
    fb_jinja_value ended;
    fb_jinja_list lines = {0};
    fb_jinja_builder b = {0};
    FB_TRY(fb_jinja_concat(run, text, fb_jinja_literal("\n"), &ended));
    FB_TRY(fb_jinja_split_lines(run, ended.text, false, &lines));
    for (int64_t i = 0; i < lines.count; i++) {
        fb_jinja_text line = lines.items[i].text;
        if (i > 0) FB_TRY(fb_jinja_put_string(run, &b, "\n"));
        if (i == 0 ? first : blank || line.size > 0) FB_TRY(fb_jinja_put(run, &b, space));
        FB_TRY(fb_jinja_put(run, &b, line));
    }
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

FB_JINJA_CALL(filter_wordcount) {
    fb_jinja_text text;
    int64_t count = 0;
    bool inside = false;
    (void)args;
    FB_TRY(fb_jinja_to_str(run, self, &text));
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    for (int64_t at = 0, size; at < text.size; at += size) {
        fb_utf8_char c = fb_utf8_read(text.bytes + at, text.size - at);
        size = c.size;
        bool word = fb_unicode_is_word(c.code);
        count += word && !inside;
        inside = word;
    }
    *out = fb_jinja_int(count);
    return FB_OK;
}

/* ---- markup ---- */

fb_status fb_jinja_escape(fb_jinja_run *run, const fb_jinja_value *value, fb_jinja_value *out) {
    static const char special[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    fb_jinja_text text;
    fb_jinja_builder b = {0};
    int64_t start = 0;
    *out = *value;
    if (value->kind == FB_JINJA_STRING && value->markup) return FB_OK;
    FB_TRY(fb_jinja_to_str(run, value, &text));
    for (int64_t at = 0; at < text.size; at++) {
        const char *found = text.bytes[at] ? strchr(special, text.bytes[at]) : NULL;
        if (!found) continue;
        const char *entity = entities[found - special];
        FB_TRY(fb_jinja_put(run, &b, fb_jinja_part(text, start, at)));
        FB_TRY(
            fb_jinja_put_marked(run, &b, entity, (int64_t)strlen(entity), text.marks ? text.marks[at] : 0));
        start = at + 1;
    }
    FB_TRY(fb_jinja_put(run, &b, fb_jinja_part(text, start, text.size)));
    *out = fb_jinja_string(fb_jinja_built(&b));
    out->markup = true;
    return FB_OK;
}

FB_JINJA_CALL(filter_escape) {
    (void)args;
    return fb_jinja_escape(run, self, out);
}

FB_JINJA_CALL(filter_safe) {
    FB_TRY(filter_string(run, self, args, out));
    out->markup = true;
    return FB_OK;
}

/* truncate(length=255, killwords=False, end="...", leeway=5): up to the last space, unless words may be cut.
 */
FB_JINJA_CALL(filter_truncate) {
    enum { LENGTH, KILL_WORDS, END, LEEWAY };
    fb_jinja_text text, end = fb_jinja_literal("...");
    int64_t length = 255, leeway = 5;
    FB_TRY(fb_jinja_need(run, self));
    FB_TRY(fb_jinja_need_text(run, "truncate", self, &text));
    if (fb_jinja_given(args, LENGTH))
        FB_TRY(fb_jinja_need_int(run, "truncate: length", &args->values[LENGTH], &length));
    if (fb_jinja_given(args, END)) FB_TRY(fb_jinja_need_text(run, "truncate: end", &args->values[END], &end));
    if (fb_jinja_given(args, LEEWAY) && args->values[LEEWAY].kind != FB_JINJA_NONE)
        FB_TRY(fb_jinja_need_int(run, "truncate: leeway", &args->values[LEEWAY], &leeway));
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    int64_t least = fb_jinja_characters(end);
    if (length < least || leeway < 0)
        return fb_jinja_fail(&run->base, "truncate: length %lld, leeway %lld (at least %lld and 0)",
                             (long long)length, (long long)leeway, (long long)least);
    *out = *self;
    if (fb_jinja_characters(text) - leeway <= length) return FB_OK;
    fb_jinja_text kept = fb_jinja_part(text, 0, fb_jinja_offset(text, length - least));
    if (!fb_jinja_given(args, KILL_WORDS) || !fb_jinja_truth(&args->values[KILL_WORDS])) {
        int64_t space = fb_jinja_find(kept, fb_jinja_literal(" "), 0, kept.size, true);
        if (space >= 0) kept = fb_jinja_part(kept, 0, space);
    }
    return fb_jinja_concat(run, kept, end, out);
}

/* wordwrap(width=79, break_long_words=True, wrapstring=None, break_on_hyphens=True) */
FB_JINJA_CALL(filter_wordwrap) {
    enum { WIDTH, LONG_WORDS, BETWEEN, HYPHENS };
    fb_jinja_text text;
    fb_jinja_wrap wrap = {.width = 79, .between = fb_jinja_literal("\n")};
    wrap.long_words = !fb_jinja_given(args, LONG_WORDS) || fb_jinja_truth(&args->values[LONG_WORDS]);
    wrap.on_hyphens = !fb_jinja_given(args, HYPHENS) || fb_jinja_truth(&args->values[HYPHENS]);
    FB_TRY(fb_jinja_need(run, self));
    FB_TRY(fb_jinja_need_text(run, "wordwrap", self, &text));
    if (fb_jinja_given(args, WIDTH))
        FB_TRY(fb_jinja_need_int(run, "wordwrap: width", &args->values[WIDTH], &wrap.width));
    if (fb_jinja_given(args, BETWEEN) && args->values[BETWEEN].kind != FB_JINJA_NONE)
        FB_TRY(fb_jinja_need_text(run, "wordwrap: wrapstring", &args->values[BETWEEN], &wrap.between));
    return fb_jinja_wrap_text(run, text, &wrap, out);
}

FB_JINJA_CALL(filter_format) {
    fb_jinja_text text;
    fb_jinja_value values;
    FB_TRY(fb_jinja_to_str(run, self, &text));
    if (args->count > 0 && args->named.count > 0)
        return fb_jinja_fail(&run->base, "format: arguments with and without names");
    if (args->named.count > 0) {
        FB_TRY(fb_jinja_new_dict(run, FB_JINJA_DICT, &values));
        *values.dict = args->named;
    } else {
        FB_TRY(fb_jinja_new_list(run, FB_JINJA_TUPLE, args->count, &values));
        for (int64_t i = 0; i < args->count; i++) FB_TRY(fb_jinja_append(run, values.list, args->values[i]));
    }
    return fb_jinja_percent(run, text, &values, out);
}

/* ---- tojson ---- */

static fb_status json_indent(fb_jinja_run *run, const fb_jinja_value *indent, fb_jinja_json_style *style) {
    fb_jinja_value spaces;
    int64_t width;
    style->indented = true;
    if (indent->kind == FB_JINJA_STRING) {
        style->indent = indent->text;
        return FB_OK;
    }
    FB_TRY(fb_jinja_need_int(run, "indent", indent, &width));
    FB_TRY(fb_jinja_pad(run, (fb_jinja_text){"", NULL, 0}, fb_jinja_literal(" "), '>', width, &spaces));
    style->indent = spaces.text;
    return FB_OK;
}

FB_JINJA_CALL(filter_tojson) {
    fb_jinja_json_style style = {.comma = fb_jinja_literal(", "), .colon = fb_jinja_literal(": ")};
    enum { ASCII, INDENT, SEPARATORS, SORT };
    style.ascii = fb_jinja_given(args, ASCII) && fb_jinja_truth(&args->values[ASCII]);
    style.sort = fb_jinja_given(args, SORT) && fb_jinja_truth(&args->values[SORT]);
    if (fb_jinja_given(args, INDENT) && args->values[INDENT].kind != FB_JINJA_NONE) {
        FB_TRY(json_indent(run, &args->values[INDENT], &style));
        style.comma = fb_jinja_literal(",");
    }
    if (fb_jinja_given(args, SEPARATORS) && args->values[SEPARATORS].kind != FB_JINJA_NONE) {
        const fb_jinja_value *pair = &args->values[SEPARATORS];
        if (!fb_jinja_is_sequence(pair) || pair->list->count != 2)
            return fb_jinja_fail(&run->base, "tojson: separators: expected two texts");
        FB_TRY(fb_jinja_need_text(run, "separators", &pair->list->items[0], &style.comma));
        FB_TRY(fb_jinja_need_text(run, "separators", &pair->list->items[1], &style.colon));
    }
    fb_jinja_builder b = {0};
    FB_TRY(fb_jinja_put_json(run, &b, self, &style));
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

/* ---- numbers ---- */

FB_JINJA_CALL(filter_abs) {
    (void)args;
    FB_TRY(fb_jinja_need(run, self));
    if (!fb_jinja_is_number(self))
        return fb_jinja_fail(&run->base, "abs: %s (expected a number)", fb_jinja_type_name(self));
    if (self->kind == FB_JINJA_FLOAT)
        *out = fb_jinja_float(fabs(self->real));
    else if (fb_jinja_int_of(self) == INT64_MIN)
        return fb_jinja_fail(&run->base, "number beyond 64 bits");
    else
        *out = fb_jinja_int(llabs(fb_jinja_int_of(self)));
    return FB_OK;
}

/* A copy of a short text, without white space around it, that ends with a NUL. False: it is too long. */
static bool plain_number(fb_jinja_text text, char copy[64]) {
    text = fb_jinja_strip(text, NULL, true, true);
    if (text.size == 0 || text.size >= 64 || memchr(text.bytes, 0, (size_t)text.size)) return false;
    memcpy(copy, text.bytes, (size_t)text.size);
    copy[text.size] = '\0';
    return true;
}

static bool real_from_text(fb_jinja_text text, double *out) {
    char copy[64], *end;
    if (!plain_number(text, copy) || strpbrk(copy, "xXpP(")) return false;
    *out = strtod(copy, &end);
    return *end == '\0';
}

static bool int_from_real(double real, int64_t *out) {
    if (!(real > -9.2e18 && real < 9.2e18)) return false;
    *out = (int64_t)real;
    return true;
}

static bool to_int(const fb_jinja_value *v, int base, int64_t *out) {
    char copy[64], *end;
    double real;
    if (fb_jinja_is_int(v)) {
        *out = fb_jinja_int_of(v);
        return true;
    }
    if (v->kind == FB_JINJA_FLOAT) return int_from_real(v->real, out);
    if (v->kind != FB_JINJA_STRING) return false;
    errno = 0;
    if (plain_number(v->text, copy)) {
        *out = strtoll(copy, &end, base);
        if (*end == '\0' && errno == 0) return true;
    }
    return real_from_text(v->text, &real) && int_from_real(real, out);
}

FB_JINJA_CALL(filter_int) {
    int64_t result = 0, base = 10;
    if (fb_jinja_given(args, 1)) FB_TRY(fb_jinja_need_int(run, "base", &args->values[1], &base));
    if (base != 2 && base != 8 && base != 10 && base != 16)
        return fb_jinja_fail(&run->base, "int: base %lld (2, 8, 10 or 16)", (long long)base);
    FB_TRY(fb_jinja_need(run, self));
    if (to_int(self, (int)base, &result))
        *out = fb_jinja_int(result);
    else
        *out = fb_jinja_given(args, 0) ? args->values[0] : fb_jinja_int(0);
    return FB_OK;
}

FB_JINJA_CALL(filter_float) {
    double real = 0;
    FB_TRY(fb_jinja_need(run, self));
    if (fb_jinja_is_number(self))
        *out = fb_jinja_float(fb_jinja_real_of(self));
    else if (self->kind == FB_JINJA_STRING && real_from_text(self->text, &real))
        *out = fb_jinja_float(real);
    else
        *out = fb_jinja_given(args, 0) ? args->values[0] : fb_jinja_float(0);
    return FB_OK;
}

FB_JINJA_CALL(filter_round) {
    int64_t precision = 0;
    fb_jinja_text method = fb_jinja_literal("common");
    char digits[512];
    FB_TRY(fb_jinja_need(run, self));
    if (!fb_jinja_is_number(self))
        return fb_jinja_fail(&run->base, "round: %s (expected a number)", fb_jinja_type_name(self));
    if (fb_jinja_given(args, 0)) FB_TRY(fb_jinja_need_int(run, "precision", &args->values[0], &precision));
    if (fb_jinja_given(args, 1)) FB_TRY(fb_jinja_need_text(run, "method", &args->values[1], &method));
    if (precision < 0 || precision > 100)
        return fb_jinja_fail(&run->base, "round: precision %lld (0 to 100)", (long long)precision);
    if (fb_jinja_is(method, "common")) {
        if (fb_jinja_is_int(self)) {
            *out = fb_jinja_int(fb_jinja_int_of(self));
            return FB_OK;
        }
        snprintf(digits, sizeof digits, "%.*f", (int)precision, self->real);
        *out = fb_jinja_float(strtod(digits, NULL));
        return FB_OK;
    }
    bool up = fb_jinja_is(method, "ceil");
    if (!up && !fb_jinja_is(method, "floor"))
        return fb_jinja_fail(&run->base, "round: unknown method (common, ceil, floor)");
    double scale = pow(10, (double)precision), real = fb_jinja_real_of(self) * scale;
    *out = fb_jinja_float((up ? ceil(real) : floor(real)) / scale);
    return FB_OK;
}

const fb_jinja_callable fb_jinja_text_filters[] = {
    {"upper", "", filter_upper},
    {"lower", "", filter_lower},
    {"capitalize", "", filter_capitalize},
    {"title", "", filter_title},
    {"trim", "chars?", filter_trim},
    {"string", "", filter_string},
    {"safe", "", filter_safe},
    {"escape", "", filter_escape},
    {"e", "", filter_escape},
    {"replace", "old new count?", filter_replace},
    {"center", "width?", filter_center},
    {"indent", "width? first? blank?", filter_indent},
    {"wordcount", "", filter_wordcount},
    {"truncate", "length? killwords? end? leeway?", filter_truncate},
    {"wordwrap", "width? break_long_words? wrapstring? break_on_hyphens?", filter_wordwrap},
    {"format", NULL, filter_format},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", filter_tojson},
    {"abs", "", filter_abs},
    {"int", "default? base?", filter_int},
    {"float", "default?", filter_float},
    {"round", "precision? method?", filter_round},
    {0},
};
