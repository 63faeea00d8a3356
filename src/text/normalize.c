#include "text/normalize.h"

#include <string.h>
#include <utf8proc.h>

#include "text/unicode.h"
#include "text/utf8.h"

#define META_SPACE "\xE2\x96\x81" /* U+2581, SentencePiece's space */

void fb_replacement_free(fb_replacement *replace) {
    fb_bytes_free(&replace->from);
    fb_bytes_free(&replace->to);
    fb_pattern_free(replace->pattern);
    replace->pattern = NULL;
}

void fb_normalizer_free(fb_normalizer *step) {
    fb_replacement_free(&step->replace);
    fb_charsmap_free(&step->map);
}

/* ---- replacements ---- */

static fb_status append(const char *text, int64_t size, fb_growth *growth, fb_bytes *out, fb_error *err) {
    FB_TRY(fb_growth_add(growth, size, err));
    return fb_bytes_append(out, text, size, err);
}

static fb_status replace_matches(const fb_replacement *replace, fb_pattern_work *work, const char *text,
                                 int64_t size, fb_growth *growth, fb_bytes *out, fb_error *err) {
    fb_spans matches = {0};
    fb_status status = fb_pattern_find(replace->pattern, work, text, size, 0, &matches, err);
    int64_t at = 0;
    for (int64_t i = 0; i < matches.size && status == FB_OK; i++) {
        status = append(text + at, matches.data[i].start - at, growth, out, err);
        if (status == FB_OK) status = append(replace->to.data, replace->to.size, growth, out, err);
        at = matches.data[i].end;
    }
    fb_spans_free(&matches);
    return status == FB_OK ? append(text + at, size - at, growth, out, err) : status;
}

fb_status fb_replacement_apply(const fb_replacement *replace, fb_pattern_work *work, const char *text,
                               int64_t size, fb_growth *growth, fb_bytes *out, fb_error *err) {
    if (replace->pattern) return replace_matches(replace, work, text, size, growth, out, err);
    int64_t at = 0;
    while (at < size) {
        const char *found =
            memmem(text + at, (size_t)(size - at), replace->from.data, (size_t)replace->from.size);
        if (!found) break;
        FB_TRY(append(text + at, found - (text + at), growth, out, err));
        FB_TRY(append(replace->to.data, replace->to.size, growth, out, err));
        at = found - text + replace->from.size;
    }
    return append(text + at, size - at, growth, out, err);
}

/* ---- characters ---- */

/* Cased letters that are newer than utf8proc: each maps to the one `distance` further. */
static const struct {
    uint32_t first, last;
    int32_t distance;
} new_capitals[] = {
    {0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
    {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
    {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
    {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
    {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 0x1B},
};

static uint32_t lowercase(uint32_t code) {
    for (size_t i = 0; i < sizeof new_capitals / sizeof *new_capitals; i++)
        if (code >= new_capitals[i].first && code <= new_capitals[i].last)
            return (uint32_t)((int32_t)code + new_capitals[i].distance);
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
}

static fb_status append_lowercase(const char *text, int64_t size, fb_growth *growth, fb_bytes *out,
                                  fb_error *err) {
    for (int64_t at = 0; at < size;) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        char lower[8];
        int length = fb_utf8_write(c.code == 0x130 ? 'i' : lowercase(c.code), lower);
        if (c.code == 0x130) length += fb_utf8_write(0x307, lower + length); /* the one that becomes two */
        FB_TRY(append(lower, length, growth, out, err));
        at += c.size;
    }
    return FB_OK;
}

static fb_status append_without_accents(const char *text, int64_t size, fb_growth *growth, fb_bytes *out,
                                        fb_error *err) {
    for (int64_t at = 0; at < size;) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        if (!fb_unicode_is_accent(c.code)) FB_TRY(append(text + at, c.size, growth, out, err));
        at += c.size;
    }
    return FB_OK;
}

static fb_status append_stripped(const fb_normalizer *step, const char *text, int64_t size, fb_growth *growth,
                                 fb_bytes *out, fb_error *err) {
    int64_t start = 0, end = step->right ? 0 : size;
    bool leading = step->left;
    for (int64_t at = 0; at < size;) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        bool space = fb_unicode_is_space(c.code);
        at += c.size;
        leading = leading && space;
        if (leading) start = at;
        if (step->right && !space) end = at;
    }
    return end > start ? append(text + start, end - start, growth, out, err) : FB_OK;
}

/* ---- SentencePiece ---- */

static fb_status append_sentencepiece(const fb_normalizer *step, const char *text, int64_t size,
                                      fb_growth *growth, fb_bytes *out, fb_error *err) {
    bool prefixed = false, in_word = false;
    int64_t start = out->size, width = sizeof META_SPACE - 1;
    for (int64_t at = 0; at < size;) {
        fb_charsmap_match match = fb_charsmap_longest(&step->map, text + at, size - at);
        for (int64_t i = 0; i < match.size; i++) {
            bool space = match.text[i] == ' ';
            bool starts = !space && !in_word;
            if ((space && !step->merge_spaces) ||
                (starts && (step->merge_spaces || (step->prefix && !prefixed)))) {
                FB_TRY(append(META_SPACE, sizeof META_SPACE - 1, growth, out, err));
                prefixed = prefixed || starts;
            }
            if (!space) FB_TRY(append(match.text + i, 1, growth, out, err));
            in_word = !space;
        }
        at += match.consumed;
    }
    if (size == 0 || !step->exact) return FB_OK;
    while (step->merge_spaces && out->size - start >= width &&
           memcmp(out->data + out->size - width, META_SPACE, (size_t)width) == 0)
        out->size -= width;
    if (prefixed || step->merge_spaces || !step->prefix) return FB_OK;
    return append(META_SPACE, sizeof META_SPACE - 1, growth, out, err);
}

/* ---- all steps ---- */

fb_status fb_normalizer_apply(const fb_normalizer *step, fb_pattern_work *work, const char *text,
                              int64_t size, fb_growth *growth, fb_bytes *out, fb_error *err) {
    switch (step->kind) {
    case FB_NORMALIZER_NFC:
    case FB_NORMALIZER_NFD:
    case FB_NORMALIZER_NFKC:
    case FB_NORMALIZER_NFKD:
        FB_TRY(fb_append_normal_form(step->kind, text, size, out, err));
        return fb_growth_add(growth, out->size, err);
    case FB_NORMALIZER_LOWERCASE:
        return append_lowercase(text, size, growth, out, err);
    case FB_NORMALIZER_STRIP_ACCENTS:
        return append_without_accents(text, size, growth, out, err);
    case FB_NORMALIZER_STRIP:
        return append_stripped(step, text, size, growth, out, err);
    case FB_NORMALIZER_PREPEND:
        if (size > 0) FB_TRY(append(step->replace.to.data, step->replace.to.size, growth, out, err));
        return append(text, size, growth, out, err);
    case FB_NORMALIZER_REPLACE:
        return fb_replacement_apply(&step->replace, work, text, size, growth, out, err);
    case FB_NORMALIZER_CHARSMAP:
        return fb_charsmap_apply(&step->map, text, size, growth, out, err);
    case FB_NORMALIZER_SENTENCEPIECE:
        return append_sentencepiece(step, text, size, growth, out, err);
    }
    return FB_OK;
}
