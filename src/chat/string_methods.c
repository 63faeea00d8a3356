/* Methods of str. */
#include <string.h>
#include <utf8proc.h>

#include "chat/call.h"
#include "text/utf8.h"

/* ---- case and kinds of characters ---- */

static bool is_cased(uint32_t code) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}
static uint32_t to_upper(uint32_t code) { return (uint32_t)utf8proc_toupper((utf8proc_int32_t)code); }
static uint32_t to_lower(uint32_t code) { return (uint32_t)utf8proc_tolower((utf8proc_int32_t)code); }
static uint32_t to_title(uint32_t code) { return (uint32_t)utf8proc_totitle((utf8proc_int32_t)code); }

fb_status fb_jinja_change_case(fb_jinja_run *run, fb_jinja_text text, fb_jinja_case to, fb_jinja_value *out) {
    fb_jinja_builder b = {0};
    bool first = true; /* of the text, or of a word */
    for (int64_t at = 0, size; at < text.size; at += size) {
        fb_utf8_char c = fb_utf8_read(text.bytes + at, text.size - at);
        uint32_t code = c.code;
        size = c.size;
        bool upper = to == FB_JINJA_UPPER || (to == FB_JINJA_SWAP && to_lower(code) != code);
        if (to == FB_JINJA_SWAP)
            code = upper ? to_lower(code) : to_upper(code);
        else if (to == FB_JINJA_CAPITALIZE || to == FB_JINJA_TITLE_WORDS)
            code = first ? to_title(code) : to_lower(code);
        else
            code = upper ? to_upper(code) : to_lower(code);
        first = to == FB_JINJA_TITLE_WORDS && !is_cased(c.code);
        FB_TRY(fb_jinja_put_code(run, &b, code, text.marks ? text.marks[at] : 0));
    }
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

#define CASE_METHOD(name, to)                                                                                \
    FB_JINJA_CALL(name) {                                                                                    \
        (void)args;                                                                                          \
        return fb_jinja_change_case(run, self->text, to, out);                                               \
    }
CASE_METHOD(str_upper, FB_JINJA_UPPER)
CASE_METHOD(str_lower, FB_JINJA_LOWER)
CASE_METHOD(str_swapcase, FB_JINJA_SWAP)
CASE_METHOD(str_capitalize, FB_JINJA_CAPITALIZE)
CASE_METHOD(str_title, FB_JINJA_TITLE_WORDS)

static bool is_alpha(uint32_t code) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
static bool is_decimal(uint32_t code) {
    return utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_ND;
}
static bool is_alnum(uint32_t code) { return is_alpha(code) || is_decimal(code); }
static bool is_ascii(uint32_t code) { return code < 0x80; }

/* True if there is a character (`some`: unless empty is fine) and all are of that kind. */
static fb_status all_are(fb_jinja_run *run, fb_jinja_text text, bool (*is)(uint32_t), bool some,
                         fb_jinja_value *out) {
    bool all = text.size > 0 || !some;
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    for (int64_t at = 0, size; at < text.size && all; at += size) {
        fb_utf8_char c = fb_utf8_read(text.bytes + at, text.size - at);
        size = c.size;
        all = is(c.code);
    }
    *out = fb_jinja_bool(all);
    return FB_OK;
}

#define KIND_METHOD(name, is, some)                                                                          \
    FB_JINJA_CALL(name) {                                                                                    \
        (void)args;                                                                                          \
        return all_are(run, self->text, is, some, out);                                                      \
    }
KIND_METHOD(str_isalpha, is_alpha, true)
KIND_METHOD(str_isdigit, is_decimal, true)
KIND_METHOD(str_isalnum, is_alnum, true)
KIND_METHOD(str_isspace, fb_jinja_is_space, true)
KIND_METHOD(str_isascii, is_ascii, false)

/* There is a letter with a case, and none of the other case. */
static fb_status has_case(fb_jinja_run *run, fb_jinja_text text, bool upper, fb_jinja_value *out) {
    bool some = false, all = true;
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    for (int64_t at = 0, size; at < text.size; at += size) {
        fb_utf8_char c = fb_utf8_read(text.bytes + at, text.size - at);
        size = c.size;
        if (!is_cased(c.code)) continue;
        bool lower = utf8proc_category((utf8proc_int32_t)c.code) == UTF8PROC_CATEGORY_LL;
        some = true;
        all = all && lower != upper;
    }
    *out = fb_jinja_bool(some && all);
    return FB_OK;
}

FB_JINJA_CALL(str_isupper) {
    (void)args;
    return has_case(run, self->text, true, out);
}
FB_JINJA_CALL(str_islower) {
    (void)args;
    return has_case(run, self->text, false, out);
}

/* ---- cutting ---- */

static fb_status strip(fb_jinja_run *run, const fb_jinja_value *self, const fb_jinja_arguments *args,
                       bool left, bool right, fb_jinja_value *out) {
    fb_jinja_text set;
    bool given = fb_jinja_given(args, 0) && args->values[0].kind != FB_JINJA_NONE;
    if (given) FB_TRY(fb_jinja_need_text(run, "strip", &args->values[0], &set));
    FB_TRY(fb_jinja_work_bytes(run, self->text.size));
    *out = fb_jinja_string(fb_jinja_strip(self->text, given ? &set : NULL, left, right));
    return FB_OK;
}
FB_JINJA_CALL(str_strip) { return strip(run, self, args, true, true, out); }
FB_JINJA_CALL(str_lstrip) { return strip(run, self, args, true, false, out); }
FB_JINJA_CALL(str_rstrip) { return strip(run, self, args, false, true, out); }

FB_JINJA_CALL(str_removeprefix) {
    fb_jinja_text part, text = self->text;
    FB_TRY(fb_jinja_need_text(run, "removeprefix", &args->values[0], &part));
    bool there = part.size <= text.size && fb_jinja_same(fb_jinja_part(text, 0, part.size), part);
    *out = fb_jinja_string(fb_jinja_part(text, there ? part.size : 0, text.size));
    return FB_OK;
}

FB_JINJA_CALL(str_removesuffix) {
    fb_jinja_text part, text = self->text;
    FB_TRY(fb_jinja_need_text(run, "removesuffix", &args->values[0], &part));
    bool there =
        part.size <= text.size && fb_jinja_same(fb_jinja_part(text, text.size - part.size, text.size), part);
    *out = fb_jinja_string(fb_jinja_part(text, 0, text.size - (there ? part.size : 0)));
    return FB_OK;
}

static fb_status append_text(fb_jinja_run *run, fb_jinja_list *list, fb_jinja_text text) {
    return fb_jinja_append(run, list, fb_jinja_string(text));
}

/* The next run of white space or of other characters from `at` on. */
static int64_t skip_run(fb_jinja_text text, int64_t at, bool space) {
    while (at < text.size) {
        fb_utf8_char c = fb_utf8_read(text.bytes + at, text.size - at);
        if (fb_jinja_is_space(c.code) != space) break;
        at += c.size;
    }
    return at;
}

static fb_status split_words(fb_jinja_run *run, fb_jinja_text text, int64_t most, fb_jinja_list *out) {
    int64_t at = skip_run(text, 0, true);
    while (at < text.size) {
        int64_t end = skip_run(text, at, false);
        if (most >= 0 && out->count == most) return append_text(run, out, fb_jinja_part(text, at, text.size));
        FB_TRY(append_text(run, out, fb_jinja_part(text, at, end)));
        at = skip_run(text, end, true);
    }
    return FB_OK;
}

static fb_status split_at(fb_jinja_run *run, fb_jinja_text text, fb_jinja_text separator, int64_t most,
                          fb_jinja_list *out) {
    int64_t at = 0;
    while (most < 0 || out->count < most) {
        int64_t found = fb_jinja_find(text, separator, at, text.size, false);
        if (found < 0) break;
        FB_TRY(append_text(run, out, fb_jinja_part(text, at, found)));
        at = found + separator.size;
    }
    return append_text(run, out, fb_jinja_part(text, at, text.size));
}

/* From the end: the pieces come in reverse and are turned round. */
static fb_status split_at_from_end(fb_jinja_run *run, fb_jinja_text text, fb_jinja_text separator,
                                   int64_t most, fb_jinja_list *out) {
    int64_t end = text.size;
    while (most < 0 || out->count < most) {
        FB_TRY(fb_jinja_work_bytes(run, end));
        int64_t found = fb_jinja_find(text, separator, 0, end, true);
        if (found < 0) break;
        FB_TRY(append_text(run, out, fb_jinja_part(text, found + separator.size, end)));
        end = found;
    }
    FB_TRY(append_text(run, out, fb_jinja_part(text, 0, end)));
    for (int64_t i = 0, k = out->count - 1; i < k; i++, k--) {
        fb_jinja_value item = out->items[i];
        out->items[i] = out->items[k];
        out->items[k] = item;
    }
    return FB_OK;
}

static fb_status split(fb_jinja_run *run, const fb_jinja_value *self, const fb_jinja_arguments *args,
                       bool from_end, fb_jinja_value *out) {
    fb_jinja_text separator;
    int64_t most = -1;
    FB_TRY(fb_jinja_work_bytes(run, self->text.size));
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_LIST, 0, out));
    if (fb_jinja_given(args, 1)) FB_TRY(fb_jinja_need_int(run, "split", &args->values[1], &most));
    if (!fb_jinja_given(args, 0) || args->values[0].kind == FB_JINJA_NONE) {
        if (from_end && most >= 0)
            return fb_jinja_fail(&run->base, "rsplit: a limit without a separator is not supported");
        return split_words(run, self->text, most, out->list);
    }
    FB_TRY(fb_jinja_need_text(run, "split", &args->values[0], &separator));
    if (separator.size == 0) return fb_jinja_fail(&run->base, "split: empty separator");
    return (from_end ? split_at_from_end : split_at)(run, self->text, separator, most, out->list);
}
FB_JINJA_CALL(str_split) { return split(run, self, args, false, out); }
FB_JINJA_CALL(str_rsplit) { return split(run, self, args, true, out); }

static bool ends_line(uint32_t code) {
    return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

fb_status fb_jinja_split_lines(fb_jinja_run *run, fb_jinja_text text, bool keep, fb_jinja_list *out) {
    int64_t start = 0;
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    for (int64_t at = 0; at < text.size;) {
        fb_utf8_char c = fb_utf8_read(text.bytes + at, text.size - at);
        int64_t end = at;
        at += c.size;
        if (!ends_line(c.code)) continue;
        if (c.code == '\r' && at < text.size && text.bytes[at] == '\n') at++;
        FB_TRY(append_text(run, out, fb_jinja_part(text, start, keep ? at : end)));
        start = at;
    }
    return start < text.size ? append_text(run, out, fb_jinja_part(text, start, text.size)) : FB_OK;
}

FB_JINJA_CALL(str_splitlines) {
    bool keep = fb_jinja_given(args, 0) && fb_jinja_truth(&args->values[0]);
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_LIST, 0, out));
    return fb_jinja_split_lines(run, self->text, keep, out->list);
}

static fb_status partition(fb_jinja_run *run, const fb_jinja_value *self, const fb_jinja_arguments *args,
                           bool last, fb_jinja_value *out) {
    fb_jinja_text separator, text = self->text;
    FB_TRY(fb_jinja_need_text(run, "partition", &args->values[0], &separator));
    if (separator.size == 0) return fb_jinja_fail(&run->base, "partition: empty separator");
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    int64_t at = fb_jinja_find(text, separator, 0, text.size, last);
    int64_t start = at < 0 ? (last ? 0 : text.size) : at, end = at < 0 ? start : at + separator.size;
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_TUPLE, 3, out));
    FB_TRY(append_text(run, out->list, fb_jinja_part(text, 0, start)));
    FB_TRY(append_text(run, out->list, fb_jinja_part(text, start, end)));
    return append_text(run, out->list, fb_jinja_part(text, end, text.size));
}
FB_JINJA_CALL(str_partition) { return partition(run, self, args, false, out); }
FB_JINJA_CALL(str_rpartition) { return partition(run, self, args, true, out); }

/* ---- searching ---- */

/* The bytes between the characters start and end, as str.find takes them. False: none, start is behind them.
 */
static fb_status search_range(fb_jinja_run *run, fb_jinja_text text, const fb_jinja_arguments *args,
                              int64_t *start, int64_t *end, bool *valid) {
    int64_t count = fb_jinja_characters(text), bounds[2] = {0, count};
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    for (int i = 0; i < 2; i++) {
        if (!fb_jinja_given(args, i + 1) || args->values[i + 1].kind == FB_JINJA_NONE) continue;
        FB_TRY(fb_jinja_need_int(run, "index", &args->values[i + 1], &bounds[i]));
        if (bounds[i] < 0) bounds[i] = bounds[i] < -count ? 0 : bounds[i] + count;
    }
    *valid = bounds[0] <= count && bounds[0] <= bounds[1];
    *start = fb_jinja_offset(text, bounds[0]);
    *end = fb_jinja_offset(text, bounds[1]);
    return FB_OK;
}

static fb_status find(fb_jinja_run *run, const fb_jinja_value *self, const fb_jinja_arguments *args,
                      bool last, bool need, fb_jinja_value *out) {
    fb_jinja_text part, text = self->text;
    int64_t start, end;
    bool valid;
    FB_TRY(fb_jinja_need_text(run, "find", &args->values[0], &part));
    FB_TRY(search_range(run, text, args, &start, &end, &valid));
    int64_t at = valid ? fb_jinja_find(text, part, start, end, last) : -1;
    if (at < 0 && need) return fb_jinja_fail(&run->base, "index: substring not found");
    *out = fb_jinja_int(at < 0 ? -1 : fb_jinja_characters(fb_jinja_part(text, 0, at)));
    return FB_OK;
}
FB_JINJA_CALL(str_find) { return find(run, self, args, false, false, out); }
FB_JINJA_CALL(str_rfind) { return find(run, self, args, true, false, out); }
FB_JINJA_CALL(str_index) { return find(run, self, args, false, true, out); }
FB_JINJA_CALL(str_rindex) { return find(run, self, args, true, true, out); }

FB_JINJA_CALL(str_count) {
    fb_jinja_text part, text = self->text;
    int64_t at, end, count = 0;
    bool valid;
    FB_TRY(fb_jinja_need_text(run, "count", &args->values[0], &part));
    FB_TRY(search_range(run, text, args, &at, &end, &valid));
    if (part.size == 0)
        count = valid ? fb_jinja_characters(fb_jinja_part(text, at, end)) + 1 : 0;
    else
        for (; valid && (at = fb_jinja_find(text, part, at, end, false)) >= 0; at += part.size) count++;
    *out = fb_jinja_int(count);
    return FB_OK;
}

static fb_status is_at(fb_jinja_run *run, const char *what, fb_jinja_text text, const fb_jinja_value *part,
                       bool at_end, bool *out) {
    fb_jinja_text wanted;
    FB_TRY(fb_jinja_need_text(run, what, part, &wanted));
    int64_t start = at_end ? text.size - wanted.size : 0;
    *out = wanted.size <= text.size && fb_jinja_same(fb_jinja_part(text, start, start + wanted.size), wanted);
    return FB_OK;
}

/* A text, or a tuple of those that would do. */
static fb_status has_affix(fb_jinja_run *run, const char *what, const fb_jinja_value *self,
                           const fb_jinja_arguments *args, bool at_end, fb_jinja_value *out) {
    const fb_jinja_value *parts = &args->values[0];
    int64_t start, end;
    bool valid, found = false;
    FB_TRY(search_range(run, self->text, args, &start, &end, &valid));
    fb_jinja_text text = fb_jinja_part(self->text, start, end > start ? end : start);
    if (parts->kind != FB_JINJA_TUPLE) FB_TRY(is_at(run, what, text, parts, at_end, &found));
    for (int64_t i = 0; parts->kind == FB_JINJA_TUPLE && i < parts->list->count && !found; i++)
        FB_TRY(is_at(run, what, text, &parts->list->items[i], at_end, &found));
    *out = fb_jinja_bool(found && valid);
    return FB_OK;
}
FB_JINJA_CALL(str_startswith) { return has_affix(run, "startswith", self, args, false, out); }
FB_JINJA_CALL(str_endswith) { return has_affix(run, "endswith", self, args, true, out); }

/* ---- making ---- */

fb_status fb_jinja_replace(fb_jinja_run *run, fb_jinja_text text, fb_jinja_text from, fb_jinja_text to,
                           int64_t count, fb_jinja_value *out) {
    fb_jinja_builder b = {0};
    int64_t at = 0;
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    while (count != 0 && at <= text.size) {
        int64_t found = fb_jinja_find(text, from, at, text.size, false);
        if (found < 0) break;
        FB_TRY(fb_jinja_put(run, &b, fb_jinja_part(text, at, found)));
        FB_TRY(fb_jinja_put(run, &b, to));
        FB_TRY(fb_jinja_work(run, 1));
        at = found + from.size;
        count -= count > 0;
        if (from.size > 0) continue;
        /* Between all characters, and at both ends. */
        int64_t next = at < text.size ? at + fb_utf8_length(text.bytes[at]) : at + 1;
        if (at < text.size) FB_TRY(fb_jinja_put(run, &b, fb_jinja_part(text, at, next)));
        at = next;
    }
    if (at < text.size) FB_TRY(fb_jinja_put(run, &b, fb_jinja_part(text, at, text.size)));
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

FB_JINJA_CALL(str_replace) {
    fb_jinja_text from, to;
    int64_t count = -1;
    FB_TRY(fb_jinja_need_text(run, "replace", &args->values[0], &from));
    FB_TRY(fb_jinja_need_text(run, "replace", &args->values[1], &to));
    if (fb_jinja_given(args, 2)) FB_TRY(fb_jinja_need_int(run, "replace", &args->values[2], &count));
    return fb_jinja_replace(run, self->text, from, to, count, out);
}

FB_JINJA_CALL(str_join) {
    fb_jinja_list *items;
    fb_jinja_builder b = {0};
    FB_TRY(fb_jinja_need(run, &args->values[0]));
    FB_TRY(fb_jinja_items(run, &args->values[0], &items));
    for (int64_t i = 0; i < items->count; i++) {
        fb_jinja_text text;
        FB_TRY(fb_jinja_need_text(run, "join", &items->items[i], &text));
        if (i > 0) FB_TRY(fb_jinja_put(run, &b, self->text));
        FB_TRY(fb_jinja_put(run, &b, text));
    }
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

fb_status fb_jinja_pad(fb_jinja_run *run, fb_jinja_text text, fb_jinja_text fill, char align, int64_t width,
                       fb_jinja_value *out) {
    int64_t missing = width - fb_jinja_characters(text), left;
    *out = fb_jinja_string(text);
    if (missing <= 0) return FB_OK;
    /* Python's str.center puts the odd one on the left if the width is odd. */
    left = align == '>' ? missing : align == '<' ? 0 : missing / 2 + (missing & width & 1);
    fb_jinja_builder b = {0};
    for (int64_t i = 0; i < left; i++) FB_TRY(fb_jinja_put(run, &b, fill));
    FB_TRY(fb_jinja_put(run, &b, text));
    for (int64_t i = left; i < missing; i++) FB_TRY(fb_jinja_put(run, &b, fill));
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

static fb_status pad(fb_jinja_run *run, const fb_jinja_value *self, const fb_jinja_arguments *args,
                     char align, fb_jinja_value *out) {
    int64_t width;
    fb_jinja_text fill = fb_jinja_literal(" ");
    FB_TRY(fb_jinja_need_int(run, "width", &args->values[0], &width));
    if (fb_jinja_given(args, 1)) FB_TRY(fb_jinja_need_text(run, "fill", &args->values[1], &fill));
    if (fb_jinja_characters(fill) != 1) return fb_jinja_fail(&run->base, "fill: expected one character");
    return fb_jinja_pad(run, self->text, fill, align, width, out);
}
FB_JINJA_CALL(str_ljust) { return pad(run, self, args, '<', out); }
FB_JINJA_CALL(str_rjust) { return pad(run, self, args, '>', out); }
FB_JINJA_CALL(str_center) { return pad(run, self, args, '^', out); }

FB_JINJA_CALL(str_zfill) {
    int64_t width;
    fb_jinja_text text = self->text;
    fb_jinja_value digits;
    FB_TRY(fb_jinja_need_int(run, "zfill", &args->values[0], &width));
    bool sign = text.size > 0 && (text.bytes[0] == '-' || text.bytes[0] == '+');
    FB_TRY(fb_jinja_pad(run, fb_jinja_part(text, sign, text.size), fb_jinja_literal("0"), '>', width - sign,
                        &digits));
    return fb_jinja_concat(run, fb_jinja_part(text, 0, sign), digits.text, out);
}

FB_JINJA_CALL(str_format) { return fb_jinja_format(run, self->text, args, out); }

const fb_jinja_callable fb_jinja_string_methods[] = {
    {"upper", "", str_upper},
    {"lower", "", str_lower},
    {"casefold", "", str_lower},
    {"swapcase", "", str_swapcase},
    {"capitalize", "", str_capitalize},
    {"title", "", str_title},
    {"isalpha", "", str_isalpha},
    {"isdigit", "", str_isdigit},
    {"isdecimal", "", str_isdigit},
    {"isnumeric", "", str_isdigit},
    {"isalnum", "", str_isalnum},
    {"isspace", "", str_isspace},
    {"isascii", "", str_isascii},
    {"isupper", "", str_isupper},
    {"islower", "", str_islower},
    {"strip", "chars?", str_strip},
    {"lstrip", "chars?", str_lstrip},
    {"rstrip", "chars?", str_rstrip},
    {"removeprefix", "prefix", str_removeprefix},
    {"removesuffix", "suffix", str_removesuffix},
    {"split", "sep? maxsplit?", str_split},
    {"rsplit", "sep? maxsplit?", str_rsplit},
    {"splitlines", "keepends?", str_splitlines},
    {"partition", "sep", str_partition},
    {"rpartition", "sep", str_rpartition},
    {"find", "sub start? end?", str_find},
    {"rfind", "sub start? end?", str_rfind},
    {"index", "sub start? end?", str_index},
    {"rindex", "sub start? end?", str_rindex},
    {"count", "sub start? end?", str_count},
    {"startswith", "prefix start? end?", str_startswith},
    {"endswith", "suffix start? end?", str_endswith},
    {"replace", "old new count?", str_replace},
    {"join", "iterable", str_join},
    {"ljust", "width fillchar?", str_ljust},
    {"rjust", "width fillchar?", str_rjust},
    {"center", "width fillchar?", str_center},
    {"zfill", "width", str_zfill},
    {"format", NULL, str_format},
    {0},
};
