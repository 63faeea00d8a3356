/* SentencePiece's precompiled normalisation: a double array of the texts that are replaced, and by what. */
#ifndef FB_TEXT_CHARSMAP_H
#define FB_TEXT_CHARSMAP_H

#include "text/bytes.h"

typedef struct fb_charsmap {
    uint32_t *units; /* the double array */
    int64_t unit_count;
    char *texts; /* replacements, each ended by a NUL; there is one behind the last */
    int64_t text_size;
} fb_charsmap;

/* From its bytes: the size of the array, the array, the replacements. An empty map replaces nothing. */
fb_status fb_charsmap_create(const char *what, const void *bytes, int64_t size, fb_charsmap *out,
                             fb_error *err);
/* The same from base64, as tokenizer.json has it. */
fb_status fb_charsmap_parse(const char *what, const char *text, int64_t size, fb_charsmap *out,
                            fb_error *err);
void fb_charsmap_free(fb_charsmap *map);

/* Appends `text`, valid UTF-8, as `tokenizers` replaces: a grapheme of at most five bytes by what its
 * shortest prefix stands for, otherwise each character by itself. */
fb_status fb_charsmap_apply(const fb_charsmap *map, const char *text, int64_t size, fb_growth *growth,
                            fb_bytes *out, fb_error *err);

/* What SentencePiece itself does, and llama.cpp: at each place the longest text that is replaced. */
typedef struct fb_charsmap_match {
    const char *text; /* what stands for it: not terminated */
    int64_t size;
    int64_t consumed; /* bytes of the input */
} fb_charsmap_match;

fb_charsmap_match fb_charsmap_longest(const fb_charsmap *map, const char *text, int64_t size);

#endif
