/* "%s" % values and "{}".format(values). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "chat/call.h"
#include "text/utf8.h"

#define WIDTH_LIMIT 1000000

typedef struct spec {
    bool left, zero, plus, space, alternate;
    int64_t width, precision; /* precision: -1 if not given */
    char type;
} spec;

/* The number as text, with its sign and without padding. */
static fb_status show_number(fb_jinja_run *run, const spec *s, const fb_jinja_value *v, char text[512]) {
    const char *sign = s->plus ? "+" : s->space ? " " : "";
    if (!fb_jinja_is_number(v))
        return fb_jinja_fail(&run->base, "%%%c: %s (expected a number)", s->type, fb_jinja_type_name(v));
    if (strchr("dixXo", s->type)) {
        bool whole = fb_jinja_is_int(v) || s->type == 'd' || s->type == 'i';
        if (!whole || (v->kind == FB_JINJA_FLOAT && !(fabs(v->real) < 9e18)))
            return fb_jinja_fail(&run->base, "%%%c: float (expected an integer)", s->type);
        int64_t n = v->kind == FB_JINJA_FLOAT ? (int64_t)v->real : fb_jinja_int_of(v);
        uint64_t size = n < 0 ? -(uint64_t)n : (uint64_t)n;
        const char *minus = n < 0 ? "-" : sign;
        if (s->type == 'x')
            snprintf(text, 512, "%s%s%" PRIx64, minus, s->alternate ? "0x" : "", size);
        else if (s->type == 'X')
            snprintf(text, 512, "%s%s%" PRIX64, minus, s->alternate ? "0X" : "", size);
        else if (s->type == 'o')
            snprintf(text, 512, "%s%s%" PRIo64, minus, s->alternate ? "0o" : "", size);
        else
            snprintf(text, 512, "%s%" PRIu64, minus, size);
        return FB_OK;
    }
    double real = fb_jinja_real_of(v);
    int precision = s->precision < 0 ? 6 : s->precision > 100 ? 100 : (int)s->precision;
    const char *before = signbit(real) ? "" : sign;
    if (s->type == 'f' || s->type == 'F')
        snprintf(text, 512, "%s%.*f", before, precision, real);
    else if (s->type == 'e')
        snprintf(text, 512, "%s%.*e", before, precision, real);
    else
        snprintf(text, 512, "%s%.*g", before, precision ? precision : 1, real);
    return FB_OK;
}

static fb_status put_padded(fb_jinja_run *run, fb_jinja_builder *b, const spec *s, fb_jinja_text text,
                            bool number) {
    fb_jinja_value padded;
    if (number && s->zero && !s->left) {
        int64_t sign = text.size > 0 && strchr("+- ", text.bytes[0]) ? 1 : 0;
        FB_TRY(fb_jinja_put(run, b, fb_jinja_part(text, 0, sign)));
        FB_TRY(fb_jinja_pad(run, fb_jinja_part(text, sign, text.size), fb_jinja_literal("0"), '>',
                            s->width - sign, &padded));
    } else {
        FB_TRY(fb_jinja_pad(run, text, fb_jinja_literal(" "), s->left ? '<' : '>', s->width, &padded));
    }
    return fb_jinja_put(run, b, padded.text);
}

static fb_status put_value(fb_jinja_run *run, fb_jinja_builder *b, const spec *s, const fb_jinja_value *v) {
    char number[512];
    fb_jinja_text text;
    FB_TRY(v->kind == FB_JINJA_UNDEFINED && s->type != 's' ? fb_jinja_need(run, v) : FB_OK);
    if (s->type == 's' || s->type == 'r') {
        fb_jinja_builder shown = {0};
        FB_TRY(s->type == 's' ? fb_jinja_put_str(run, &shown, v) : fb_jinja_put_repr(run, &shown, v));
        text = fb_jinja_built(&shown);
        if (s->precision >= 0) text = fb_jinja_part(text, 0, fb_jinja_offset(text, s->precision));
        return put_padded(run, b, s, text, false);
    }
    if (!strchr("dixXofFeg", s->type))
        return fb_jinja_fail(&run->base, "format: unsupported conversion %%%c", s->type);
    FB_TRY(show_number(run, s, v, number));
    return put_padded(run, b, s, fb_jinja_literal(number), true);
}

static int64_t read_count(fb_jinja_text format, int64_t *at) {
    int64_t count = 0;
    for (; *at < format.size && format.bytes[*at] >= '0' && format.bytes[*at] <= '9'; (*at)++)
        if (count < WIDTH_LIMIT) count = 10 * count + format.bytes[*at] - '0';
    return count;
}

static bool take_flag(char c, spec *s) {
    const struct {
        char letter;
        bool *flag;
    } flags[] = {{'-', &s->left}, {'0', &s->zero}, {'+', &s->plus}, {' ', &s->space}, {'#', &s->alternate}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flags[i].letter == c) return *flags[i].flag = true;
    return false;
}

/* Flags, width, precision and type from `at` on. */
static fb_status read_spec(fb_jinja_run *run, fb_jinja_text format, int64_t *at, spec *s) {
    *s = (spec){.precision = -1};
    while (*at < format.size && take_flag(format.bytes[*at], s)) (*at)++;
    s->width = read_count(format, at);
    if (*at < format.size && format.bytes[*at] == '.') {
        (*at)++;
        s->precision = read_count(format, at);
    }
    while (*at < format.size && strchr("hlL", format.bytes[*at]) && format.bytes[*at]) (*at)++;
    if (*at >= format.size) return fb_jinja_fail(&run->base, "format: a conversion is incomplete");
    s->type = format.bytes[(*at)++];
    if (s->width >= WIDTH_LIMIT)
        return fb_jinja_fail(&run->base, "format: width of more than %d", WIDTH_LIMIT);
    return FB_OK;
}

typedef struct formatting {
    fb_jinja_run *run;
    const fb_jinja_value *values;
    int64_t next; /* value */
} formatting;

/* The value for a conversion: the next one, or that of "(name)". */
static fb_status take_value(formatting *f, fb_jinja_text format, int64_t *at, const fb_jinja_value **out) {
    const fb_jinja_value *values = f->values;
    if (*at < format.size && format.bytes[*at] == '(') {
        int64_t end = fb_jinja_find(format, fb_jinja_literal(")"), *at, format.size, false);
        if (end < 0 || values->kind != FB_JINJA_DICT)
            return fb_jinja_fail(&f->run->base, "format: %%(name) needs a dict");
        *out = fb_jinja_dict_named(values->dict, fb_jinja_part(format, *at + 1, end));
        *at = end + 1;
        return *out ? FB_OK : fb_jinja_fail(&f->run->base, "format: a name is not in the dict");
    }
    int64_t count = values->kind == FB_JINJA_TUPLE ? values->list->count : 1;
    if (f->next >= count) return fb_jinja_fail(&f->run->base, "format: not enough values");
    *out = values->kind == FB_JINJA_TUPLE ? &values->list->items[f->next] : values;
    f->next++;
    return FB_OK;
}

fb_status fb_jinja_percent(fb_jinja_run *run, fb_jinja_text format, const fb_jinja_value *values,
                           fb_jinja_value *out) {
    formatting f = {run, values, 0};
    fb_jinja_builder b = {0};
    for (int64_t at = 0; at < format.size;) {
        int64_t found = fb_jinja_find(format, fb_jinja_literal("%"), at, format.size, false);
        FB_TRY(fb_jinja_put(run, &b, fb_jinja_part(format, at, found < 0 ? format.size : found)));
        if (found < 0) break;
        at = found + 1;
        if (at < format.size && format.bytes[at] == '%') {
            FB_TRY(fb_jinja_put(run, &b, fb_jinja_part(format, at, at + 1)));
            at++;
            continue;
        }
        const fb_jinja_value *value;
        spec s;
        FB_TRY(take_value(&f, format, &at, &value));
        FB_TRY(read_spec(run, format, &at, &s));
        FB_TRY(put_value(run, &b, &s, value));
    }
    if (values->kind == FB_JINJA_TUPLE
            ? f.next < values->list->count
            : f.next == 0 && values->kind != FB_JINJA_DICT && values->kind != FB_JINJA_LIST)
        return fb_jinja_fail(&run->base, "format: not all values are used");
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

/* ---- str.format ---- */

/* "", "0" or "name" inside of braces. */
static fb_status field_value(fb_jinja_run *run, const fb_jinja_arguments *args, fb_jinja_text name,
                             int64_t *next, const fb_jinja_value **out) {
    int64_t at = 0, index = name.size > 0 ? read_count(name, &at) : (*next)++;
    *out = NULL;
    if (at < name.size)
        *out = fb_jinja_dict_named(&args->named, name);
    else if (index < args->count)
        *out = &args->values[index];
    return *out ? FB_OK
                : fb_jinja_fail(&run->base, "format: no value for {%.*s}", (int)name.size, name.bytes);
}

/* What follows ":": an alignment, flags as those of %, and a type. */
static fb_status put_field(fb_jinja_run *run, fb_jinja_builder *b, fb_jinja_text text,
                           const fb_jinja_value *value) {
    int64_t at = 0;
    spec s = {.precision = -1};
    bool number = fb_jinja_is_number(value) && value->kind != FB_JINJA_BOOL;
    s.left = !number;
    if (text.size > 0 && (text.bytes[0] == '<' || text.bytes[0] == '>')) s.left = text.bytes[at++] == '<';
    fb_jinja_value rest = fb_jinja_string(fb_jinja_part(text, at, text.size));
    bool typed = text.size > 0 && strchr("sdfxXoeg", text.bytes[text.size - 1]);
    if (!typed) FB_TRY(fb_jinja_concat(run, rest.text, fb_jinja_literal("s"), &rest));
    spec read;
    at = 0;
    FB_TRY(read_spec(run, rest.text, &at, &read));
    if (at < rest.text.size || read.left)
        return fb_jinja_fail(&run->base, "format: unsupported specification :%.*s",
                             (int)(text.size < 40 ? text.size : 40), text.bytes);
    read.left = s.left;
    return put_value(run, b, &read, value);
}

fb_status fb_jinja_format(fb_jinja_run *run, fb_jinja_text format, const fb_jinja_arguments *args,
                          fb_jinja_value *out) {
    fb_jinja_builder b = {0};
    int64_t next = 0;
    for (int64_t at = 0; at < format.size;) {
        char c = format.bytes[at];
        if (c != '{' && c != '}') {
            int64_t size = fb_utf8_length(c);
            FB_TRY(fb_jinja_put(run, &b, fb_jinja_part(format, at, at + size)));
            at += size;
            continue;
        }
        if (at + 1 < format.size && format.bytes[at + 1] == c) {
            FB_TRY(fb_jinja_put(run, &b, fb_jinja_part(format, at, at + 1)));
            at += 2;
            continue;
        }
        int64_t end = c == '{' ? fb_jinja_find(format, fb_jinja_literal("}"), at, format.size, false) : -1;
        if (end < 0) return fb_jinja_fail(&run->base, "format: a single %c", c);
        int64_t colon = fb_jinja_find(format, fb_jinja_literal(":"), at, end, false);
        int64_t stop = colon < 0 ? end : colon;
        const fb_jinja_value *value;
        FB_TRY(field_value(run, args, fb_jinja_part(format, at + 1, stop), &next, &value));
        FB_TRY(put_field(run, &b, fb_jinja_part(format, colon < 0 ? end : colon + 1, end), value));
        at = end + 1;
    }
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}
