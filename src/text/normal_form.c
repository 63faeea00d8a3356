#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/normalize.h"
#include "text/unicode.h"
#include "text/utf8.h"

/* The four normal forms: decompose, put each run of combining marks in order of their class, compose.
 * utf8proc decomposes and composes; its own ordering is quadratic in the length of a run, which a text of
 * nothing but marks would exploit. `tokenizers` does it by Unicode 9: characters that are newer have no
 * decomposition and no class there, and nothing composes with them. */

typedef struct code_points {
    utf8proc_int32_t *data, *spare; /* spare: room for the longest run */
    int64_t size, capacity;
} code_points;

static utf8proc_ssize_t decompose_character(uint32_t code, bool compatible, utf8proc_int32_t parts[32]) {
    parts[0] = (utf8proc_int32_t)code;
    if (code < 0x80 || fb_unicode_is_after_9(code)) return 1;
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    return utf8proc_decompose_char((utf8proc_int32_t)code, parts, 32, (utf8proc_option_t)options, NULL);
}

static fb_status decompose(const char *text, int64_t size, bool compatible, code_points *codes,
                           fb_error *err) {
    for (int64_t at = 0; at < size;) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        at += c.size;
        utf8proc_int32_t parts[32]; /* decompositions have at most 18 characters */
        utf8proc_ssize_t count = decompose_character(c.code, compatible, parts);
        if (count < 0 || count > 32)
            return fb_fail(err, FB_ERROR_SYSTEM, "normal form of U+%04X: %s", (unsigned)c.code,
                           utf8proc_errmsg(count));
        utf8proc_int32_t *grown =
            fb_array_grow(codes->data, codes->size, &codes->capacity, count, sizeof *codes->data);
        if (!grown) return fb_fail_memory(err, "normal form", (codes->size + count) * (int64_t)sizeof *grown);
        codes->data = grown;
        memcpy(codes->data + codes->size, parts, (size_t)count * sizeof *parts);
        codes->size += count;
    }
    return FB_OK;
}

static int combining_class(utf8proc_int32_t code) {
    int found = utf8proc_get_property(code)->combining_class;
    return found && !fb_unicode_is_after_9((uint32_t)code) ? found : 0;
}

/* A stable counting sort by combining class, 1 to 255. */
static void order_run(utf8proc_int32_t *run, int64_t size, utf8proc_int32_t *spare) {
    int64_t start[257] = {0};
    for (int64_t i = 0; i < size; i++) start[combining_class(run[i]) + 1]++;
    for (int i = 1; i < 257; i++) start[i] += start[i - 1];
    for (int64_t i = 0; i < size; i++) spare[start[combining_class(run[i])]++] = run[i];
    memcpy(run, spare, (size_t)size * sizeof *run);
}

static fb_status order_marks(code_points *codes, fb_error *err) {
    for (int64_t at = 0; at < codes->size;) {
        int64_t end = at;
        bool ordered = true;
        for (int before = 0; end < codes->size; end++) {
            int now = combining_class(codes->data[end]);
            if (now == 0) break;
            ordered = ordered && before <= now;
            before = now;
        }
        if (!ordered) {
            if (!codes->spare) codes->spare = malloc((size_t)codes->size * sizeof *codes->spare);
            if (!codes->spare)
                return fb_fail_memory(err, "normal form", codes->size * (int64_t)sizeof *codes->spare);
            order_run(codes->data + at, end - at, codes->spare);
        }
        at = end + 1;
    }
    return FB_OK;
}

/* Composes what is between two characters that are newer than Unicode 9. */
static fb_status compose(code_points *codes, fb_error *err) {
    int64_t done = 0;
    for (int64_t at = 0; at < codes->size;) {
        int64_t end = at;
        while (end < codes->size && !fb_unicode_is_after_9((uint32_t)codes->data[end])) end++;
        utf8proc_ssize_t count =
            utf8proc_normalize_utf32(codes->data + at, end - at, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (count < 0) return fb_fail(err, FB_ERROR_SYSTEM, "NFC: %s", utf8proc_errmsg(count));
        memmove(codes->data + done, codes->data + at, (size_t)count * sizeof *codes->data);
        done += count;
        while (end < codes->size && fb_unicode_is_after_9((uint32_t)codes->data[end]))
            codes->data[done++] = codes->data[end++];
        at = end;
    }
    codes->size = done;
    return FB_OK;
}

static fb_status append_codes(const code_points *codes, fb_bytes *out, fb_error *err) {
    FB_TRY(fb_bytes_reserve(out, 4 * codes->size, err));
    for (int64_t i = 0; i < codes->size; i++)
        out->size += fb_utf8_write((uint32_t)codes->data[i], out->data + out->size);
    return FB_OK;
}

fb_status fb_append_normal_form(fb_normalizer_kind form, const char *text, int64_t size, fb_bytes *out,
                                fb_error *err) {
    if (fb_utf8_ascii(text, size)) return fb_bytes_append(out, text, size, err);
    code_points codes = {0};
    bool compatible = form == FB_NORMALIZER_NFKC || form == FB_NORMALIZER_NFKD;
    fb_status status = decompose(text, size, compatible, &codes, err);
    if (status == FB_OK) status = order_marks(&codes, err);
    if (status == FB_OK && (form == FB_NORMALIZER_NFC || form == FB_NORMALIZER_NFKC))
        status = compose(&codes, err);
    if (status == FB_OK) status = append_codes(&codes, out, err);
    free(codes.data);
    free(codes.spare);
    return status;
}
