/* Stop texts in a stream of text. Held back is the longest end of the text so far with which a stop text
 * begins: at most as much as the longest stop text. */
#include <stdlib.h>
#include <string.h>

#include "text/bytes.h"

#define MAX_TEXTS 64
#define MAX_BYTES 4096

struct fb_stop {
    char *texts[MAX_TEXTS];
    int64_t sizes[MAX_TEXTS];
    int32_t count;
    fb_bytes text;    /* what is held back, and what was pushed */
    int64_t returned; /* bytes of it that the last call returned */
    bool stopped;
};

void fb_stop_free(fb_stop *stop) {
    if (!stop) return;
    for (int32_t i = 0; i < stop->count; i++) free(stop->texts[i]);
    fb_bytes_free(&stop->text);
    free(stop);
}

fb_status fb_stop_create(const char *const *texts, int32_t count, fb_stop **out, fb_error *err) {
    *out = NULL;
    if (count < 0 || count > MAX_TEXTS)
        return fb_fail(err, FB_ERROR_USAGE, "stop: %d texts (at most %d)", count, MAX_TEXTS);
    for (int32_t i = 0; i < count; i++)
        if (!texts[i][0] || strlen(texts[i]) > MAX_BYTES)
            return fb_fail(err, FB_ERROR_USAGE, "stop: a text of %zu bytes (1 to %d)", strlen(texts[i]),
                           MAX_BYTES);
    fb_stop *stop = calloc(1, sizeof *stop);
    if (!stop) return fb_fail_memory(err, "stop", sizeof *stop);
    for (int32_t i = 0; i < count; i++) {
        stop->texts[i] = strdup(texts[i]);
        if (!stop->texts[i]) {
            fb_stop_free(stop);
            return fb_fail_memory(err, "stop", (int64_t)strlen(texts[i]));
        }
        stop->sizes[i] = (int64_t)strlen(texts[i]);
        stop->count++;
    }
    *out = stop;
    return FB_OK;
}

/* The first byte at which a stop text begins, whole (*whole) or as far as the text goes. */
static int64_t find_first(const fb_stop *stop, bool *whole) {
    for (int64_t at = 0; at < stop->text.size; at++)
        for (int32_t i = 0; i < stop->count; i++) {
            int64_t rest = stop->text.size - at, size = stop->sizes[i];
            *whole = size <= rest;
            if (memcmp(stop->text.data + at, stop->texts[i], (size_t)(*whole ? size : rest)) == 0) return at;
        }
    *whole = false;
    return stop->text.size;
}

/* Whether a whole stop text is in the text from `from` on; *at is the first one's. */
static bool find_whole(const fb_stop *stop, int64_t from, int64_t *at) {
    bool found = false;
    for (int32_t i = 0; i < stop->count; i++) {
        const char *hit = memmem(stop->text.data + from, (size_t)(stop->text.size - from), stop->texts[i],
                                 (size_t)stop->sizes[i]);
        if (!hit || (found && hit - stop->text.data >= *at)) continue;
        *at = hit - stop->text.data;
        found = true;
    }
    return found;
}

fb_status fb_stop_push(fb_stop *stop, const char *text, size_t bytes, const char **out, size_t *out_bytes,
                       bool *stopped, fb_error *err) {
    *out = "";
    *out_bytes = 0;
    *stopped = stop->stopped;
    if (stop->stopped) return FB_OK;
    if (stop->returned > 0) {
        memmove(stop->text.data, stop->text.data + stop->returned,
                (size_t)(stop->text.size - stop->returned));
        stop->text.size -= stop->returned;
        stop->returned = 0;
    }
    FB_TRY(fb_bytes_append(&stop->text, text, (int64_t)bytes, err));
    if (stop->text.size == 0) return FB_OK;
    /* A stop text that is there whole counts, also if another one might begin before it. */
    bool whole;
    int64_t end = find_first(stop, &whole), at = 0;
    if (!whole && find_whole(stop, end, &at)) {
        whole = true;
        end = at;
    }
    *stopped = stop->stopped = whole;
    stop->returned = end;
    *out = stop->text.data;
    *out_bytes = (size_t)end;
    return FB_OK;
}

void fb_stop_flush(fb_stop *stop, const char **out, size_t *out_bytes) {
    *out = "";
    *out_bytes = 0;
    if (stop->stopped || stop->text.size <= stop->returned) return;
    *out = stop->text.data + stop->returned;
    *out_bytes = (size_t)(stop->text.size - stop->returned);
    stop->returned = stop->text.size;
}
