/* The filter wordwrap: textwrap.wrap of Python, without tabs and other white space being changed. */
#include <string.h>

#include "chat/call.h"
#include "chat/wrap.h"
#include "text/unicode.h"
#include "text/utf8.h"

/* A paragraph by its characters. */
typedef struct paragraph {
    const uint32_t *codes;  /* [count] */
    const int64_t *offsets; /* [count + 1]: where each begins in the text */
    int64_t count;
    fb_jinja_text text;
} paragraph;

/* ---- chunks: white space, or a word up to where a line may be broken ---- */

/* As in Python's regular expressions: \w, [^\d\W], and what textwrap takes for white space and for the end of
 * a word before a dash. */
static bool is_word(uint32_t code) {
    return code == '_' ||
           fb_unicode_is(code, FB_CATEGORY(LL) | FB_CATEGORY(LM) | FB_CATEGORY(LO) | FB_CATEGORY(LT) |
                                   FB_CATEGORY(LU) | FB_CATEGORY(ND) | FB_CATEGORY(NL) | FB_CATEGORY(NO));
}
static bool is_letter(uint32_t code) { return is_word(code) && !fb_unicode_is(code, FB_CATEGORY(ND)); }
static bool is_blank(uint32_t code) { return code == ' ' || (code >= '\t' && code <= '\r'); }
static bool ends_word(uint32_t code) {
    return is_word(code) || (code && code < 0x80 && strchr("!\"'&.,?", (int)code));
}

static bool letter_at(const paragraph *p, int64_t at) {
    return at >= 0 && at < p->count && is_letter(p->codes[at]);
}

/* The characters of a dash of two or more hyphens between words, which begins at `at`; 0: there is none. */
static int64_t dash_at(const paragraph *p, int64_t at) {
    int64_t end = at;
    if (at == 0 || !ends_word(p->codes[at - 1])) return 0;
    while (end < p->count && p->codes[end] == '-') end++;
    return end - at >= 2 && end < p->count && is_word(p->codes[end]) ? end - at : 0;
}

/* Whether a line may be broken behind the hyphen at `at`: ab-cd, a-b-cd, but not a-b and not 1-2. */
static bool breaks_behind(const paragraph *p, int64_t at) {
    bool two = letter_at(p, at - 2) && letter_at(p, at - 1);
    bool one = letter_at(p, at - 3) && p->codes[at - 2] == '-' && letter_at(p, at - 1);
    bool hyphen = at + 2 < p->count && p->codes[at + 2] == '-';
    return (two || one) && letter_at(p, at + 1) && letter_at(p, at + (hyphen ? 3 : 2));
}

static int64_t chunk_end(const paragraph *p, int64_t start, bool hyphens) {
    int64_t end = start;
    if (is_blank(p->codes[start])) {
        while (end < p->count && is_blank(p->codes[end])) end++;
        return end;
    }
    int64_t dash = hyphens ? dash_at(p, start) : 0;
    if (dash > 0) return start + dash;
    for (end = start + 1; end < p->count && !is_blank(p->codes[end]); end++) {
        if (hyphens && p->codes[end] == '-' && breaks_behind(p, end)) return end + 1;
        if (hyphens && dash_at(p, end) > 0) break;
    }
    return end;
}

/* ---- lines ---- */

/* All white space, as str.strip sees it; also of nothing. */
static bool is_space(const paragraph *p, int64_t start, int64_t end) {
    while (start < end && fb_jinja_is_space(p->codes[start])) start++;
    return start == end;
}

/* How much of a chunk [start, end) that is too long goes into `room` characters. */
static int64_t cut_chunk(const paragraph *p, int64_t start, int64_t end, int64_t room, bool hyphens) {
    int64_t cut = start + room < end ? start + room : end;
    bool other = false; /* than a hyphen */
    if (!hyphens || end - start <= room) return cut;
    int64_t behind = 0;
    for (int64_t i = start; i < cut; i++) {
        if (p->codes[i] == '-' && other) behind = i + 1;
        other = other || p->codes[i] != '-';
    }
    return behind ? behind : cut;
}

/* A line is [line, at); its last chunk is [last, at). The next chunk is [at, next). */
static fb_status wrap(fb_jinja_run *run, const paragraph *p, const fb_jinja_wrap *w, fb_jinja_builder *b) {
    int64_t at = 0, next = 0, lines = 0;
    while (at < p->count) {
        if (next <= at) next = chunk_end(p, at, w->on_hyphens);
        if (lines > 0 && is_space(p, at, next)) at = next;
        int64_t line = at, last = at, chunks = 0;
        while (at < p->count) {
            if (next <= at) next = chunk_end(p, at, w->on_hyphens);
            if (next - line > w->width) break;
            last = at;
            at = next;
            chunks++;
        }
        if (at < p->count && next - at > w->width && (w->long_words || chunks == 0)) {
            last = at;
            at = w->long_words ? cut_chunk(p, at, next, w->width - (at - line), w->on_hyphens) : next;
            chunks++;
        }
        bool dropped = chunks > 0 && is_space(p, last, at);
        FB_TRY(fb_jinja_work(run, 1 + (at - line) / 8));
        if (chunks - dropped == 0) continue;
        if (lines++ > 0) FB_TRY(fb_jinja_put(run, b, w->between));
        FB_TRY(
            fb_jinja_put(run, b, fb_jinja_part(p->text, p->offsets[line], p->offsets[dropped ? last : at])));
    }
    return FB_OK;
}

static fb_status read_paragraph(fb_jinja_run *run, fb_jinja_text text, paragraph *out) {
    int64_t count = fb_jinja_characters(text), at = 0;
    uint32_t *codes = fb_jinja_arena_take(&run->base.arena, (count + 1) * (int64_t)sizeof *codes);
    int64_t *offsets = fb_jinja_arena_take(&run->base.arena, (count + 1) * (int64_t)sizeof *offsets);
    if (!codes || !offsets) return fb_jinja_fail_memory(&run->base);
    for (int64_t i = 0; i < count; i++) {
        fb_utf8_char c = fb_utf8_read(text.bytes + at, text.size - at);
        codes[i] = c.code;
        offsets[i] = at;
        at += c.size;
    }
    offsets[count] = text.size;
    *out = (paragraph){codes, offsets, count, text};
    return FB_OK;
}

fb_status fb_jinja_wrap_text(fb_jinja_run *run, fb_jinja_text text, const fb_jinja_wrap *w,
                             fb_jinja_value *out) {
    fb_jinja_list lines = {0};
    fb_jinja_builder b = {0};
    FB_TRY(fb_jinja_split_lines(run, text, false, &lines));
    if (lines.count > 0 && w->width < 1)
        return fb_jinja_fail(&run->base, "wordwrap: width %lld (at least 1)", (long long)w->width);
    for (int64_t i = 0; i < lines.count; i++) {
        paragraph p = {0};
        if (i > 0) FB_TRY(fb_jinja_put(run, &b, w->between));
        FB_TRY(fb_jinja_work_bytes(run, lines.items[i].text.size));
        FB_TRY(read_paragraph(run, lines.items[i].text, &p));
        FB_TRY(wrap(run, &p, w, &b));
    }
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}
