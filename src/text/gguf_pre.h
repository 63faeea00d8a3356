/* The ways of splitting a text into words that a GGUF file names in tokenizer.ggml.pre. */
#ifndef FB_TEXT_GGUF_PRE_H
#define FB_TEXT_GGUF_PRE_H

#include "base/status.h"

/* Whether texts are normalised before they are split: "none", "nfc". Others do not write it, nor read it. */
#define FB_GGUF_NORMALIZER "fusebox.tokenizer.normalizer"

typedef struct fb_gguf_pre {
    const char *name;
    const char *const *patterns; /* regular expressions, one after the other, up to NULL */
    bool ignore_merges;          /* a word that is a token is that token */
    bool add_bos;                /* unless the file says otherwise */
} fb_gguf_pre;

const fb_gguf_pre *fb_gguf_pre_find(const char *name); /* or NULL */

/* The one that splits as these patterns [count] of a tokenizer.json do, or NULL. */
const fb_gguf_pre *fb_gguf_pre_match(const char *const *patterns, int count, bool ignore_merges);

/* Whether one of these patterns, or of those that a tokenizer.json's steps stand for, is spelled so and takes
 * a time that is linear in the size of every text. */
bool fb_gguf_pre_has(const char *pattern);

#endif
