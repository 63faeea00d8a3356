/* What happens to a text before it is split: Unicode normalisation, prefixes, replacements. */
#ifndef FB_TEXT_NORMALIZE_H
#define FB_TEXT_NORMALIZE_H

#include "text/bytes.h"

#define FB_STEPS_LIMIT 16 /* of a Sequence; published tokenizers have at most 5 */

typedef enum fb_normalizer_kind {
    FB_NORMALIZER_NFC,
    FB_NORMALIZER_PREPEND,
    FB_NORMALIZER_REPLACE
} fb_normalizer_kind;

typedef struct fb_replacement {
    fb_bytes from, to;
} fb_replacement;

typedef struct fb_normalizer {
    fb_normalizer_kind kind;
    fb_replacement replace; /* PREPEND has no `from` */
} fb_normalizer;

void fb_replacement_free(fb_replacement *replace);

/* Appends `text` with every `from` replaced by `to`, from left to right. */
fb_status fb_replacement_apply(const fb_replacement *replace, const char *text, int64_t size,
                               fb_growth *growth, fb_bytes *out, fb_error *err);

/* Appends `text`, valid UTF-8, after one step. */
fb_status fb_normalizer_apply(const fb_normalizer *step, const char *text, int64_t size, fb_growth *growth,
                              fb_bytes *out, fb_error *err);

#endif
