#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/gguf_pre.h"
#include "text/unicode.h"

#define PATTERN_LIMIT 65536         /* bytes of a pattern */
#define MATCH_LIMIT   10000000      /* steps of one match */
#define HEAP_LIMIT    (64 * 1024)   /* KiB of one match, without JIT */
#define STACK_LIMIT   (4096 * 1024) /* bytes of one match, with JIT */
#define MATCH_STEPS   10            /* that a match costs before it begins */
#define RANGES        64            /* of a class, which cost a step: the class is compared one by one */
#define REPEATS       32            /* or characters behind, which cost a step: nothing is called between */

struct fb_pattern {
    pcre2_code *code;
    char *source;
    fb_bytes literal; /* a plain text, which is not compiled; else empty */
    int64_t weight;   /* of a byte that an item goes over, in steps times RANGES */
};

/* ---- from Oniguruma to PCRE2 ----
 * The translation copies what means the same to both and refuses the rest: `\b`, `\h`, `^`, `$`, most script
 * names and nested classes exist in both engines with different meanings. Sets of characters it spells out.
 * White space: PCRE2 counts U+180E, which Unicode removed from it long ago; Oniguruma does not. Categories:
 * the PCRE2 of Debian 12 knows those of Unicode 14, `tokenizers` those of Unicode 16. */
#define SPACE "\\x09-\\x0d\\x{85}\\p{Z}"

typedef struct translation {
    const char *what;
    const char *source; /* NUL-terminated */
    int64_t size, at;
    bool in_class;
    int nested;                      /* classes inside it: their members are its own */
    int64_t ranges;                  /* of the class so far */
    int64_t most_ranges, most_times; /* of the largest class; that an item is repeated at least */
    fb_bytes out;
    fb_error *err;
} translation;

static fb_status put(translation *t, const char *text) {
    return fb_bytes_append(&t->out, text, (int64_t)strlen(text), t->err);
}

static fb_status copy(translation *t, int64_t size) {
    FB_TRY(fb_bytes_append(&t->out, t->source + t->at, size, t->err));
    t->at += size;
    return FB_OK;
}

static fb_status refuse(const translation *t, int64_t size, const char *why) {
    if (size > t->size - t->at) size = t->size - t->at;
    return fb_fail(t->err, FB_ERROR_UNSUPPORTED, "%s: pattern: \"%.*s\" at byte %lld (%s)", t->what,
                   (int)size, t->source + t->at, (long long)t->at, why);
}

static void count_ranges(translation *t, int64_t ranges) {
    t->ranges += ranges;
    if (t->ranges > t->most_ranges) t->most_ranges = t->ranges;
}

static fb_status put_span(translation *t, fb_unicode_span span) {
    char text[32];
    /* PCRE2 takes no surrogate as the end of a range. */
    if (span.first >= 0xD800 && span.first <= 0xDFFF) span.first = 0xE000;
    if (span.last >= 0xD800 && span.last <= 0xDFFF) span.last = 0xD7FF;
    if (span.first > span.last) return FB_OK;
    snprintf(text, sizeof text, "\\x{%x}-\\x{%x}", (unsigned)span.first, (unsigned)span.last);
    count_ranges(t, 1);
    return put(t, text);
}

/* Every code point of these categories. */
static fb_status put_categories(translation *t, uint32_t categories) {
    fb_unicode_span span;
    for (uint32_t from = 0; fb_unicode_next(categories, from, &span); from = span.last + 1)
        FB_TRY(put_span(t, span));
    return FB_OK;
}

/* Whether PCRE2 knows a Unicode beyond 16: then its own categories have too many members. */
static bool has_newer_tables(void) {
    char version[32] = "";
    if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL) > (int)sizeof version) return true;
    return pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version) <= 0 || strtol(version, NULL, 10) > 16;
}

/* PCRE2's name for these categories, which its own tables answer, and those that are newer. */
static fb_status put_named(translation *t, const char *name, int64_t size, uint32_t categories) {
    /* Code points that were unassigned, and the one that went from Mn to Mc, cannot be taken away again. */
    bool mn_alone = (categories & FB_CATEGORY(MN)) && !(categories & FB_CATEGORY(MC));
    if (mn_alone || (categories & FB_CATEGORY(CN)) || has_newer_tables())
        return put_categories(t, categories);
    FB_TRY(put(t, "\\p{"));
    FB_TRY(fb_bytes_append(&t->out, name, size, t->err));
    FB_TRY(put(t, "}"));
    for (int i = 0; i < fb_unicode_new_count; i++) {
        fb_unicode_span span;
        for (uint32_t from = fb_unicode_new[i].first;
             fb_unicode_next(categories, from, &span) && span.first <= fb_unicode_new[i].last;
             from = span.last + 1) {
            if (span.last > fb_unicode_new[i].last) span.last = fb_unicode_new[i].last;
            FB_TRY(put_span(t, span));
        }
    }
    return FB_OK;
}

/* \w of Oniguruma: of Latin-1's numbers it also takes the small ones. */
static bool is_word(uint32_t code) {
    if (code == 0xB2 || code == 0xB3 || code == 0xB9 || (code >= 0xBC && code <= 0xBE)) return true;
    return code != 0x200C && code != 0x200D && fb_unicode_is_word(code);
}

static fb_status put_word(translation *t, bool negated) {
    fb_unicode_span span = {0, 0};
    bool inside = false;
    for (uint32_t code = 0; code <= 0x110000; code++) {
        bool member = code < 0x110000 && is_word(code) != negated;
        if (member && !inside) span.first = code;
        if (!member && inside) {
            span.last = code - 1;
            FB_TRY(put_span(t, span));
        }
        inside = member;
    }
    return FB_OK;
}

static fb_status put_han(translation *t) {
    for (int i = 0; i < fb_unicode_han_count; i++) FB_TRY(put_span(t, fb_unicode_han[i]));
    return FB_OK;
}

/* A set of characters, on its own or as part of a class, where a negated one is the list of all others. */
typedef enum set_kind { SET_SPACE, SET_WORD, SET_HAN, SET_CATEGORIES } set_kind;

static fb_status put_members(translation *t, set_kind kind, const char *name, int64_t size, bool negated) {
    const uint32_t all = (1u << FB_CATEGORY_COUNT) - 1;
    uint32_t categories = name ? fb_unicode_categories(name, size) : 0;
    switch (kind) {
    case SET_SPACE:
        if (!negated) return put(t, SPACE);
        FB_TRY(put(t, "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{7f}-\\x{84}\\x{86}-\\x{9f}"));
        categories = all & ~(fb_unicode_categories("Z", 1) | FB_CATEGORY(CC));
        return put_categories(t, categories);
    case SET_WORD:
        return put_word(t, negated);
    case SET_HAN:
        return put_han(t);
    case SET_CATEGORIES:
        return negated ? put_categories(t, all & ~categories) : put_named(t, name, size, categories);
    }
    return FB_OK;
}

static fb_status put_set(translation *t, set_kind kind, const char *name, int64_t size, bool negated,
                         int64_t spelled) {
    bool listed = t->in_class || kind == SET_WORD; /* how a negated set is written */
    if (!t->in_class) t->ranges = 0;
    if (!t->in_class) FB_TRY(put(t, negated && !listed ? "[^" : "["));
    FB_TRY(put_members(t, kind, name, size, negated && listed));
    if (!t->in_class) FB_TRY(put(t, "]"));
    t->at += spelled;
    return FB_OK;
}

/* \p{L}, \P{Lu}: general categories, and one script. */
static fb_status translate_property(translation *t) {
    const char *name = t->source + t->at + 3;
    const char *end = t->source[t->at + 2] == '{' ? strchr(name, '}') : NULL;
    int64_t length = end ? end - name : 0;
    bool negated = t->source[t->at + 1] == 'P';
    if (length == 3 && memcmp(name, "Han", 3) == 0 && !(negated && t->in_class))
        return put_set(t, SET_HAN, NULL, 0, negated, length + 4);
    if (length == 0 || length > 2 || fb_unicode_categories(name, length) == 0)
        return refuse(t, end && length < 28 ? length + 4 : 3,
                      "known: the general categories, as in \\p{Lu}, and \\p{Han}");
    return put_set(t, SET_CATEGORIES, name, length, negated, length + 4);
}

static fb_status translate_escape(translation *t) {
    char next = t->source[t->at + 1];
    switch (next) {
    case 's':
    case 'S':
        return put_set(t, SET_SPACE, NULL, 0, next == 'S', 2);
    case 'w':
    case 'W':
        return put_set(t, SET_WORD, NULL, 0, next == 'W', 2);
    case 'd':
    case 'D':
        return put_set(t, SET_CATEGORIES, "Nd", 2, next == 'D', 2);
    case 'p':
    case 'P':
        return translate_property(t);
    case 'r':
    case 'n':
    case 't':
    case 'f':
        return copy(t, 2);
    default:
        if (next != '\0' && strchr(" !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", next)) return copy(t, 2);
        return refuse(t, 2, "known escapes: \\s \\S \\w \\W \\d \\D \\p \\P \\r \\n \\t \\f and punctuation");
    }
}

static fb_status translate_class(translation *t) {
    char c = t->source[t->at], next = t->source[t->at + 1];
    if (c == '[' && (next == '^' || next == ':' || next == ']' || t->source[t->at - 1] == '-'))
        return refuse(t, 2, "such a class inside a class is not supported");
    if (c == '[' || (c == ']' && t->nested > 0)) {
        t->nested += c == '[' ? 1 : -1;
        t->at++;
        return FB_OK;
    }
    if (strncmp(t->source + t->at, "&&", 2) == 0)
        return refuse(t, 2, "intersections of classes are not supported");
    if (c == ']') t->in_class = false;
    return copy(t, 1);
}

static fb_status open_class(translation *t) {
    int64_t size = t->source[t->at + 1] == '^' ? 2 : 1;
    if (t->source[t->at + size] == ']')
        return refuse(t, size + 1, "a class that starts with ] is not supported");
    t->in_class = true;
    t->ranges = 0;
    return copy(t, size);
}

static fb_status translate_group(translation *t) {
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    const char *group = t->source + t->at;
    if (group[1] == '*') return refuse(t, 2, "verbs are not supported");
    if (group[1] != '?') return copy(t, 1);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(group, known[i], strlen(known[i])) == 0) return copy(t, (int64_t)strlen(known[i]));
    return refuse(t, 4, "known groups: (?: (?i: (?= (?! (?<= (?<! (?>");
}

/* {n}, {n,} and {n,m}, which both read the same way unless a + or a ? follows. */
static fb_status translate_count(translation *t) {
    const char *s = t->source + t->at;
    int64_t size = 1 + (int64_t)strspn(s + 1, "0123456789");
    if (size > 1 && s[size] == ',') size += 1 + (int64_t)strspn(s + size + 1, "0123456789");
    if (size == 1 || s[size] != '}' || s[size + 1] == '+' || s[size + 1] == '?')
        return refuse(t, size + 2, "known counts: {n} {n,} {n,m}");
    int64_t least = strtoll(s + 1, NULL, 10); /* up to there nothing is between two items */
    if (least > t->most_times) t->most_times = least;
    return copy(t, size + 1);
}

static fb_status translate(translation *t) {
    while (t->at < t->size) {
        char c = t->source[t->at];
        if (t->in_class && ((unsigned char)c & 0xC0) != 0x80) count_ranges(t, 1);
        if (c == '\\')
            FB_TRY(translate_escape(t));
        else if (t->in_class)
            FB_TRY(translate_class(t));
        else if (c == '[')
            FB_TRY(open_class(t));
        else if (c == '(')
            FB_TRY(translate_group(t));
        else if (c == '{')
            FB_TRY(translate_count(t));
        else if (c == '^' || c == '$')
            return refuse(t, 1, "anchors are not supported");
        else
            FB_TRY(copy(t, 1));
    }
    return FB_OK;
}

/* ---- compiling ---- */

/* Compiles what a translation gave. PCRE2 limits the backtracking of one match, but neither the text that an
 * item goes over nor the matches of a text: `a*b|.` goes over the rest of a text of a's for each of them. So
 * a pattern that is not known to be cheap calls count_step before every item (PCRE2_AUTO_CALLOUT), and starts
 * everywhere without a look ahead for what it needs, which nothing would count. That makes it two to four
 * times as slow. */
static fb_status compile(const char *what, const char *source, int64_t size, bool counted,
                         fb_pattern *pattern, fb_error *err) {
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    if (counted) options |= PCRE2_AUTO_CALLOUT | PCRE2_NO_START_OPTIMIZE;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return fb_fail_memory(err, "pattern", 0);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* what a dot does not match */
    int code = 0;
    PCRE2_SIZE offset = 0;
    pattern->code = pcre2_compile((PCRE2_SPTR)source, (PCRE2_SIZE)size, options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!pattern->code) {
        PCRE2_UCHAR text[128];
        if (pcre2_get_error_message(code, text, sizeof text) < 0) text[0] = '\0';
        return fb_fail(err, FB_ERROR_FILE, "%s: pattern: %s (\"%.*s\")", what, (const char *)text,
                       (int)(size < 64 ? size : 64), source);
    }
    uint32_t empty = 0;
    pcre2_pattern_info(pattern->code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "%s: pattern: it can match nothing (every match must be of some text)", what);
    pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* without it, the interpreter does the same */
    return FB_OK;
}

static fb_status compile_source(const char *what, const char *source, int64_t size, fb_pattern *pattern,
                                fb_error *err) {
    translation t = {.what = what, .source = source, .size = size, .err = err};
    fb_status status = translate(&t);
    bool known = strlen(source) == (size_t)size && fb_gguf_pre_has(source); /* no NUL inside */
    if (status == FB_OK) status = compile(what, t.out.data, t.out.size, !known, pattern, err);
    fb_bytes_free(&t.out);
    if (status != FB_OK) return status;
    uint32_t behind = 0;
    pcre2_pattern_info(pattern->code, PCRE2_INFO_MAXLOOKBEHIND, &behind);
    pattern->weight = (RANGES + t.most_ranges) * (1 + (t.most_times + (int64_t)behind) / REPEATS);
    return FB_OK;
}

fb_status fb_pattern_compile(const char *what, const char *source, int64_t size, bool literal,
                             fb_pattern **out, fb_error *err) {
    *out = NULL;
    if (size == 0 || size > PATTERN_LIMIT)
        return fb_fail(err, FB_ERROR_FILE, "%s: pattern: %lld bytes (1 to %d)", what, (long long)size,
                       PATTERN_LIMIT);
    fb_pattern *pattern = calloc(1, sizeof *pattern);
    if (!pattern) return fb_fail_memory(err, "pattern", (int64_t)sizeof *pattern);
    fb_status status;
    pattern->source = strndup(literal ? "" : source, (size_t)size);
    if (!pattern->source)
        status = fb_fail_memory(err, "pattern", size);
    else if (literal)
        status = fb_bytes_append(&pattern->literal, source, size, err);
    else
        status = compile_source(what, source, size, pattern, err);
    if (status == FB_OK)
        *out = pattern;
    else
        fb_pattern_free(pattern);
    return status;
}

void fb_pattern_free(fb_pattern *pattern) {
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    fb_bytes_free(&pattern->literal);
    free(pattern->source);
    free(pattern);
}

const char *fb_pattern_source(const fb_pattern *pattern) { return pattern->source; }

/* ---- matching ---- */

/* Called before each item of a pattern: what it went over since the last call are steps. */
static int count_step(pcre2_callout_block *block, void *data) {
    fb_pattern_work *work = data;
    size_t at = block->current_position;
    size_t distance = at > work->at ? at - work->at : work->at - at;
    work->at = at;
    work->steps += 1 + work->weight * (int64_t)(distance + 1) / RANGES;
    return work->steps > work->limit ? PCRE2_ERROR_CALLOUT : 0;
}

static int64_t steps_limit(int64_t bytes) { return FB_PATTERN_STEPS + FB_PATTERN_STEPS_PER_BYTE * bytes; }

void fb_pattern_work_start(fb_pattern_work *work, int64_t bytes) {
    work->steps = 0;
    work->limit = steps_limit(bytes);
}

static fb_status prepare_work(fb_pattern_work *work, fb_error *err) {
    if (work->match) return FB_OK;
    work->context = pcre2_match_context_create(NULL);
    work->stack = pcre2_jit_stack_create(32 * 1024, STACK_LIMIT, NULL); /* NULL where there is no JIT */
    work->match = pcre2_match_data_create(1, NULL);
    if (!work->match || !work->context) return fb_fail_memory(err, "matching a pattern", STACK_LIMIT);
    pcre2_set_match_limit(work->context, MATCH_LIMIT);
    pcre2_set_heap_limit(work->context, HEAP_LIMIT);
    if (work->stack) pcre2_jit_stack_assign(work->context, NULL, work->stack);
    return FB_OK;
}

void fb_pattern_work_free(fb_pattern_work *work) {
    pcre2_match_data_free(work->match);
    pcre2_match_context_free(work->context);
    pcre2_jit_stack_free(work->stack);
    *work = (fb_pattern_work){0};
}

static fb_status fail_match(const fb_pattern *pattern, const fb_pattern_work *work, int64_t at, int found,
                            fb_error *err) {
    if (work->steps > work->limit)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "split pattern \"%.64s\": too expensive for this text: %lld steps (at most %lld)",
                       pattern->source, (long long)work->steps, (long long)work->limit);
    PCRE2_UCHAR message[128];
    if (pcre2_get_error_message(found, message, sizeof message) < 0) message[0] = '\0';
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "split pattern at byte %lld: %s (at most %d steps)",
                   (long long)at, (const char *)message, MATCH_LIMIT);
}

/* The first match in `text` behind `from`. */
static fb_status find_match(const fb_pattern *pattern, fb_pattern_work *work, const char *text, int64_t size,
                            int64_t from, bool *found, fb_span *match, fb_error *err) {
    work->steps += MATCH_STEPS;
    work->at = (size_t)from;
    if (!pattern->code) {
        const char *at =
            memmem(text + from, (size_t)(size - from), pattern->literal.data, (size_t)pattern->literal.size);
        *found = at != NULL;
        if (at) *match = (fb_span){at - text, at - text + pattern->literal.size};
    } else {
        int result = pcre2_match(pattern->code, (PCRE2_SPTR)text, (PCRE2_SIZE)size, (PCRE2_SIZE)from,
                                 PCRE2_NO_UTF_CHECK, work->match, work->context);
        *found = result >= 0;
        if (result < 0 && result != PCRE2_ERROR_NOMATCH) return fail_match(pattern, work, from, result, err);
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(work->match);
        if (*found) *match = (fb_span){(int64_t)at[0], (int64_t)at[1]};
    }
    return work->steps > work->limit ? fail_match(pattern, work, from, 0, err) : FB_OK;
}

/* Appends the matches and, if `between`, also what is between them. */
static fb_status scan(const fb_pattern *pattern, fb_pattern_work *work, const char *text, int64_t size,
                      int64_t base, bool between, fb_spans *spans, fb_error *err) {
    int64_t done = 0;
    while (done < size) {
        bool found;
        fb_span match = {0, 0};
        FB_TRY(find_match(pattern, work, text, size, done, &found, &match, err));
        if (!found) break;
        if (between) FB_TRY(fb_spans_add(spans, base + done, base + match.start, err));
        FB_TRY(fb_spans_add(spans, base + match.start, base + match.end, err));
        done = match.end;
    }
    return between ? fb_spans_add(spans, base + done, base + size, err) : FB_OK;
}

static fb_status scan_counted(const fb_pattern *pattern, fb_pattern_work *work, const char *text,
                              int64_t size, int64_t base, bool between, fb_spans *spans, fb_error *err) {
    FB_TRY(prepare_work(work, err));
    bool alone = work->limit == 0;
    if (alone) fb_pattern_work_start(work, size);
    work->weight = pattern->weight;
    pcre2_set_callout(work->context, count_step, work);
    fb_status status = scan(pattern, work, text, size, base, between, spans, err);
    if (alone) work->limit = 0;
    return status;
}

fb_status fb_pattern_split(const fb_pattern *pattern, fb_pattern_work *work, const char *text, int64_t size,
                           int64_t base, fb_spans *spans, fb_error *err) {
    return scan_counted(pattern, work, text, size, base, true, spans, err);
}

fb_status fb_pattern_find(const fb_pattern *pattern, fb_pattern_work *work, const char *text, int64_t size,
                          int64_t base, fb_spans *matches, fb_error *err) {
    return scan_counted(pattern, work, text, size, base, false, matches, err);
}
