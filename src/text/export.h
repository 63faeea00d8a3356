/* A byte-level BPE tokenizer as GGUF files have it: lists of tokens and merges, and a name for how it splits
 * a text into words. */
#ifndef FB_TEXT_EXPORT_H
#define FB_TEXT_EXPORT_H

#include "text/tokenizer.h"

typedef enum fb_token_kind {
    FB_TOKEN_NORMAL,
    FB_TOKEN_SPECIAL, /* cut out of a text whole, and not shown */
    FB_TOKEN_ADDED,   /* cut out of a text whole */
    FB_TOKEN_UNUSED   /* no token has this id */
} fb_token_kind;

typedef struct fb_exported_token {
    const char *text; /* not terminated; of an added token as it stands in texts, else bytes as characters */
    int64_t size;
    fb_token_kind kind;
} fb_exported_token;

typedef struct fb_exported {
    fb_exported_token *tokens; /* [count] by id; the texts belong to the tokenizer */
    int64_t count;
    int32_t (*merges)[2]; /* [merge_count], in order: the ids of left and right */
    int64_t merge_count;
    const char *pre;    /* how a text becomes words, by its name (gguf_pre.h) */
    bool nfc;           /* texts are normalised first */
    int32_t begin, end; /* ids that are put around a text; -1: none */
    int32_t unknown;    /* -1: none */
} fb_exported;

/* Refuses what those lists cannot say. The result is released with fb_exported_free, also after a failure. */
fb_status fb_tokenizer_export(const fb_tokenizer *tokenizer, fb_exported *out, fb_error *err);
void fb_exported_free(fb_exported *exported);

#endif
