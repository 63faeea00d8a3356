#include "text/charsmap.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/utf8.h"

#define MAP_LIMIT (INT64_C(1) << 26) /* bytes; published maps have 300 KB */
#define GRAPHEME  6                  /* one of fewer bytes is replaced as a whole */

void fb_charsmap_free(fb_charsmap *map) {
    free(map->units);
    free(map->texts);
    *map = (fb_charsmap){0};
}

static uint32_t read_u32(const unsigned char *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

fb_status fb_charsmap_create(const char *what, const void *bytes, int64_t size, fb_charsmap *out,
                             fb_error *err) {
    const unsigned char *data = bytes;
    *out = (fb_charsmap){0};
    if (size == 0) return FB_OK;
    int64_t array = size >= 4 && size <= MAP_LIMIT ? (int64_t)read_u32(data) : -1;
    if (array < 4 || array % 4 != 0 || array > size - 4)
        return fb_fail(err, FB_ERROR_FILE,
                       "%s: precompiled_charsmap: %lld bytes, an array of %lld (a multiple of 4 that fits)",
                       what, (long long)size, (long long)array);
    out->unit_count = array / 4;
    out->text_size = size - 4 - array;
    out->units = malloc((size_t)array);
    out->texts = calloc((size_t)out->text_size + 1, 1);
    if (!out->units || !out->texts) return fb_fail_memory(err, "precompiled_charsmap", size);
    for (int64_t i = 0; i < out->unit_count; i++) out->units[i] = read_u32(data + 4 + 4 * i);
    memcpy(out->texts, data + 4 + array, (size_t)out->text_size);
    if (!fb_utf8_valid(out->texts, out->text_size))
        return fb_fail(err, FB_ERROR_FILE, "%s: precompiled_charsmap: replacements are not UTF-8", what);
    return FB_OK;
}

/* ---- base64 ---- */

static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

fb_status fb_charsmap_parse(const char *what, const char *text, int64_t size, fb_charsmap *out,
                            fb_error *err) {
    *out = (fb_charsmap){0};
    while (size > 0 && text[size - 1] == '=') size--;
    unsigned char *bytes = malloc((size_t)size + 1);
    if (!bytes) return fb_fail_memory(err, "precompiled_charsmap", size);
    int64_t count = 0;
    uint32_t bits = 0;
    fb_status status = FB_OK;
    for (int64_t i = 0; i < size && status == FB_OK; i++) {
        int digit = base64_digit(text[i]);
        if (digit < 0)
            status = fb_fail(err, FB_ERROR_FILE, "%s: precompiled_charsmap: byte %lld (base64)", what,
                             (long long)i);
        bits = bits << 6 | (uint32_t)(digit & 63);
        if (i % 4 > 0) bytes[count++] = (unsigned char)(bits >> (6 - 2 * (i % 4)));
    }
    if (status == FB_OK) status = fb_charsmap_create(what, bytes, count, out, err);
    free(bytes);
    return status;
}

/* ---- the double array ----
 * A unit: 8 bits of label and one that says "no label", one that says "a text ends here", and where its
 * children are, relative to its own place. */

static uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }
static uint32_t label_of(uint32_t unit) { return unit & 0x800000FFu; }
static bool ends_text(uint32_t unit) { return unit >> 8 & 1; }

/* Where the text that replaces a prefix of `text` begins, or -1: that of the shortest prefix or of the
 * longest. `prefix` is its size. */
static int64_t find_prefix(const fb_charsmap *map, const char *text, int64_t size, bool longest,
                           int64_t *prefix) {
    int64_t found = -1;
    if (map->unit_count == 0) return -1;
    uint64_t at = offset_of(map->units[0]);
    for (int64_t i = 0; i < size && text[i] != '\0'; i++) {
        unsigned char byte = (unsigned char)text[i];
        at ^= byte;
        if (at >= (uint64_t)map->unit_count) break;
        uint32_t unit = map->units[at];
        if (label_of(unit) != byte) break;
        at ^= offset_of(unit);
        if (!ends_text(unit)) continue;
        if (at >= (uint64_t)map->unit_count) break;
        int64_t value = map->units[at] & 0x7FFFFFFF;
        if (value > map->text_size) break;
        found = value;
        *prefix = i + 1;
        if (!longest) break;
    }
    return found;
}

/* ---- as `tokenizers` does ---- */

static fb_status replace_part(const fb_charsmap *map, const char *text, int64_t size, bool whole,
                              bool *replaced, fb_growth *growth, fb_bytes *out, fb_error *err) {
    int64_t prefix, found = find_prefix(map, text, size, false, &prefix);
    *replaced = found >= 0;
    if (found < 0 && whole) return FB_OK;
    const char *by = found >= 0 ? map->texts + found : text;
    int64_t length = found >= 0 ? (int64_t)strlen(by) : size;
    FB_TRY(fb_growth_add(growth, length, err));
    return fb_bytes_append(out, by, length, err);
}

static fb_status replace_grapheme(const fb_charsmap *map, const char *text, int64_t size, fb_growth *growth,
                                  fb_bytes *out, fb_error *err) {
    bool replaced = false;
    if (size < GRAPHEME) FB_TRY(replace_part(map, text, size, true, &replaced, growth, out, err));
    for (int64_t at = 0; at < size && !replaced;) {
        bool ignored;
        int length = fb_utf8_length(text[at]);
        FB_TRY(replace_part(map, text + at, length, false, &ignored, growth, out, err));
        at += length;
    }
    return FB_OK;
}

fb_status fb_charsmap_apply(const fb_charsmap *map, const char *text, int64_t size, fb_growth *growth,
                            fb_bytes *out, fb_error *err) {
    int64_t start = 0;
    utf8proc_int32_t state = 0, before = 0;
    for (int64_t at = 0; at < size;) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        if (at > 0 && utf8proc_grapheme_break_stateful(before, (utf8proc_int32_t)c.code, &state)) {
            FB_TRY(replace_grapheme(map, text + start, at - start, growth, out, err));
            start = at;
        }
        before = (utf8proc_int32_t)c.code;
        at += c.size;
    }
    return replace_grapheme(map, text + start, size - start, growth, out, err);
}

fb_charsmap_match fb_charsmap_longest(const fb_charsmap *map, const char *text, int64_t size) {
    int64_t prefix = 0, found = find_prefix(map, text, size, true, &prefix);
    if (found >= 0)
        return (fb_charsmap_match){map->texts + found, (int64_t)strlen(map->texts + found), prefix};
    int length = fb_utf8_length(text[0]);
    return (fb_charsmap_match){text, length, length};
}
