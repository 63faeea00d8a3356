/* Growable arrays of the text code. All start as zeroes and may be reused by setting their size to 0. */
#ifndef FB_TEXT_BYTES_H
#define FB_TEXT_BYTES_H

#include "base/status.h"

/* Bytes of a text, also after it was normalised: a hostile tokenizer.json may blow up what it is given.
 * Positions in it fit an int32_t. */
#define FB_TEXT_LIMIT (INT64_C(1) << 28)

typedef struct fb_bytes {
    char *data;
    int64_t size, capacity;
} fb_bytes;

typedef struct fb_ids {
    int32_t *data;
    int64_t size, capacity;
} fb_ids;

/* A part of some text: the bytes [start, end). */
typedef struct fb_span {
    int64_t start, end;
} fb_span;

typedef struct fb_spans {
    fb_span *data;
    int64_t size, capacity;
} fb_spans;

/* Makes room for `more` elements of `element` bytes behind the first `size` ones. Returns the array, perhaps
 * moved, or NULL with the old one untouched. */
void *fb_array_grow(void *data, int64_t size, int64_t *capacity, int64_t more, int64_t element);

/* Refuse more than FB_TEXT_LIMIT. */
fb_status fb_bytes_reserve(fb_bytes *bytes, int64_t more, fb_error *err);
fb_status fb_bytes_append(fb_bytes *bytes, const char *data, int64_t size, fb_error *err);
fb_status fb_ids_append(fb_ids *ids, const int32_t *data, int64_t size, fb_error *err);
fb_status fb_spans_add(fb_spans *spans, int64_t start, int64_t end,
                       fb_error *err); /* nothing if it is empty */

/* What a step may write for one text, all its parts together: a hostile tokenizer may replace a letter by a
 * megabyte, or put one in front of every part. */
typedef struct fb_growth {
    const char *what; /* the step, for errors */
    int64_t used, limit;
} fb_growth;

fb_status fb_growth_add(fb_growth *growth, int64_t bytes, fb_error *err);

void fb_bytes_free(fb_bytes *bytes);
void fb_ids_free(fb_ids *ids);
void fb_spans_free(fb_spans *spans);

#endif
