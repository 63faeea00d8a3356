/* From token ids back to text. */
#ifndef FB_TEXT_DECODE_H
#define FB_TEXT_DECODE_H

#include "text/normalize.h"

/* What a decoder does, in this order: each token's replacements, then one of four ways to join them, then the
 * strip. */
typedef enum fb_decoder_kind {
    FB_DECODER_NONE,          /* joined by spaces: tokenizer.json has no decoder */
    FB_DECODER_CONCATENATE,   /* the tokens are the text */
    FB_DECODER_BYTE_LEVEL,    /* each character of a token stands for a byte */
    FB_DECODER_BYTE_FALLBACK, /* a token such as "<0x0A>" is a byte, other tokens are text */
    FB_DECODER_METASPACE /* a character stands for the space; the first token's are dropped if `drop_first` */
} fb_decoder_kind;

typedef struct fb_decoder {
    fb_decoder_kind kind;
    fb_replacement replaces[FB_STEPS_LIMIT];
    int64_t replace_count;
    char space[4]; /* METASPACE */
    int space_size;
    bool drop_first;
    bool fused;    /* a strip sees the whole text, not each token */
    char strip[4]; /* up to `strip_count` of this character at the start of the text are dropped */
    int strip_size;
    int64_t strip_count;
} fb_decoder;

void fb_decoder_free(fb_decoder *decoder);

/* Appends the bytes that a token adds to a text, if it is not the first one; half a character, perhaps.
 * Nothing for a special token. Refuses a tokenizer that joins tokens by spaces, and one whose texts lose
 * something else than spaces at their start. */
fb_status fb_decoder_token_bytes(const fb_tokenizer *tokenizer, int32_t id, fb_bytes *out, fb_error *err);
/* Whether all spaces of a text's first token are dropped, not only those at its start. */
bool fb_decoder_drops_spaces(const fb_tokenizer *tokenizer);

#endif
