/* What happens to a text before it is split: Unicode normalisation, prefixes, replacements. */
#ifndef FB_TEXT_NORMALIZE_H
#define FB_TEXT_NORMALIZE_H

#include "text/charsmap.h"
#include "text/pattern.h"

#define FB_STEPS_LIMIT 16 /* of a Sequence; published tokenizers have at most 5 */

typedef enum fb_normalizer_kind {
    FB_NORMALIZER_NFC,
    FB_NORMALIZER_NFD,
    FB_NORMALIZER_NFKC,
    FB_NORMALIZER_NFKD,
    FB_NORMALIZER_LOWERCASE,
    FB_NORMALIZER_STRIP_ACCENTS,
    FB_NORMALIZER_STRIP, /* white space at both ends, or at one */
    FB_NORMALIZER_PREPEND,
    FB_NORMALIZER_REPLACE,
    FB_NORMALIZER_CHARSMAP,     /* as `tokenizers` applies it */
    FB_NORMALIZER_SENTENCEPIECE /* all that SentencePiece does to a text: the map, spaces, the prefix */
} fb_normalizer_kind;

typedef struct fb_replacement {
    fb_bytes from, to;
    fb_pattern *pattern; /* instead of `from`, or NULL */
} fb_replacement;

typedef struct fb_normalizer {
    fb_normalizer_kind kind;
    fb_replacement replace; /* PREPEND has no `from` */
    bool left, right;       /* STRIP: at which ends */
    fb_charsmap map;        /* CHARSMAP, SENTENCEPIECE */
    bool prefix;            /* SENTENCEPIECE: a text starts with a space … */
    bool merge_spaces;      /* … and several spaces are one, those at the ends none */
    bool exact;             /* as SentencePiece, where llama.cpp is not: texts of nothing but spaces get the
                               prefix, and U+2581 at the end counts as a space */
} fb_normalizer;

void fb_replacement_free(fb_replacement *replace);
void fb_normalizer_free(fb_normalizer *step);

/* Appends `text` with every `from`, or match of the pattern, replaced by `to`, from left to right. `work` may
 * be NULL without a pattern. */
fb_status fb_replacement_apply(const fb_replacement *replace, fb_pattern_work *work, const char *text,
                               int64_t size, fb_growth *growth, fb_bytes *out, fb_error *err);

/* Appends `text`, valid UTF-8, after one step. */
fb_status fb_normalizer_apply(const fb_normalizer *step, fb_pattern_work *work, const char *text,
                              int64_t size, fb_growth *growth, fb_bytes *out, fb_error *err);

/* Appends one of the four normal forms. */
fb_status fb_append_normal_form(fb_normalizer_kind form, const char *text, int64_t size, fb_bytes *out,
                                fb_error *err);

#endif
