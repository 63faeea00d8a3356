#include "text/normalize.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/utf8.h"

void fb_replacement_free(fb_replacement *replace) {
    fb_bytes_free(&replace->from);
    fb_bytes_free(&replace->to);
}

fb_status fb_replacement_apply(const fb_replacement *replace, const char *text, int64_t size,
                               fb_growth *growth, fb_bytes *out, fb_error *err) {
    int64_t at = 0;
    while (at < size) {
        const char *found =
            memmem(text + at, (size_t)(size - at), replace->from.data, (size_t)replace->from.size);
        if (!found) break;
        FB_TRY(fb_growth_add(growth, found - (text + at) + replace->to.size, err));
        FB_TRY(fb_bytes_append(out, text + at, found - (text + at), err));
        FB_TRY(fb_bytes_append(out, replace->to.data, replace->to.size, err));
        at = found - text + replace->from.size;
    }
    FB_TRY(fb_growth_add(growth, size - at, err));
    return fb_bytes_append(out, text + at, size - at, err);
}

/* ---- NFC ----
 * Decompose, put each run of combining marks in order of their class, compose. utf8proc decomposes and
 * composes; its own ordering is quadratic in the length of a run, which a text of nothing but marks would
 * exploit. */

typedef struct code_points {
    utf8proc_int32_t *data, *spare; /* spare: room for the longest run */
    int64_t size, capacity;
} code_points;

static fb_status decompose(const char *text, int64_t size, code_points *codes, fb_error *err) {
    for (int64_t at = 0; at < size;) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        at += c.size;
        utf8proc_int32_t parts[32]; /* canonical decompositions have at most four characters */
        utf8proc_ssize_t count = utf8proc_decompose_char((utf8proc_int32_t)c.code, parts, 32,
                                                         UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
        if (count < 0 || count > 32)
            return fb_fail(err, FB_ERROR_SYSTEM, "NFC of U+%04X: %s", (unsigned)c.code,
                           utf8proc_errmsg(count));
        utf8proc_int32_t *grown =
            fb_array_grow(codes->data, codes->size, &codes->capacity, count, sizeof *codes->data);
        if (!grown) return fb_fail_memory(err, "NFC", (codes->size + count) * (int64_t)sizeof *grown);
        codes->data = grown;
        memcpy(codes->data + codes->size, parts, (size_t)count * sizeof *parts);
        codes->size += count;
    }
    return FB_OK;
}

static int combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

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
            if (!codes->spare) return fb_fail_memory(err, "NFC", codes->size * (int64_t)sizeof *codes->spare);
            order_run(codes->data + at, end - at, codes->spare);
        }
        at = end + 1;
    }
    return FB_OK;
}

static fb_status compose(code_points *codes, fb_bytes *out, fb_error *err) {
    utf8proc_ssize_t count =
        utf8proc_normalize_utf32(codes->data, codes->size, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (count < 0) return fb_fail(err, FB_ERROR_SYSTEM, "NFC: %s", utf8proc_errmsg(count));
    FB_TRY(fb_bytes_reserve(out, 4 * count, err));
    for (utf8proc_ssize_t i = 0; i < count; i++)
        out->size += fb_utf8_write((uint32_t)codes->data[i], out->data + out->size);
    return FB_OK;
}

static fb_status append_nfc(const char *text, int64_t size, fb_bytes *out, fb_error *err) {
    if (fb_utf8_ascii(text, size)) return fb_bytes_append(out, text, size, err);
    code_points codes = {0};
    fb_status status = decompose(text, size, &codes, err);
    if (status == FB_OK) status = order_marks(&codes, err);
    if (status == FB_OK) status = compose(&codes, out, err);
    free(codes.data);
    free(codes.spare);
    return status;
}

fb_status fb_normalizer_apply(const fb_normalizer *step, const char *text, int64_t size, fb_growth *growth,
                              fb_bytes *out, fb_error *err) {
    switch (step->kind) {
    case FB_NORMALIZER_NFC: /* at most three times as many bytes */
        FB_TRY(append_nfc(text, size, out, err));
        return fb_growth_add(growth, out->size, err);
    case FB_NORMALIZER_PREPEND:
        FB_TRY(fb_growth_add(growth, size + (size > 0 ? step->replace.to.size : 0), err));
        if (size > 0) FB_TRY(fb_bytes_append(out, step->replace.to.data, step->replace.to.size, err));
        return fb_bytes_append(out, text, size, err);
    case FB_NORMALIZER_REPLACE:
        return fb_replacement_apply(&step->replace, text, size, growth, out, err);
    }
    return FB_OK;
}
