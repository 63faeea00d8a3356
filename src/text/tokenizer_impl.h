/* The inside of a tokenizer: the parts of tokenizer.json, in the order in which a text meets them. */
#ifndef FB_TEXT_TOKENIZER_IMPL_H
#define FB_TEXT_TOKENIZER_IMPL_H

#include "file/json.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/decode.h"
#include "text/normalize.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

struct fb_tokenizer {
    fb_added raw; /* added tokens that are looked for in the text as it is … */
    fb_normalizer normalizers[FB_STEPS_LIMIT];
    int64_t normalizer_count;
    fb_added normalized; /* … and those that are looked for once it is normalised */
    fb_splitter splitters[FB_STEPS_LIMIT];
    int64_t splitter_count;
    fb_bpe bpe;          /* its vocabulary is that of every model */
    fb_unigram *unigram; /* or NULL: words become ids by the merges of `bpe` */
    bool has_template;
    fb_ids prefix, suffix; /* the template: ids around a text */
    fb_decoder decoder;
    int64_t limit; /* ids from the vocabulary's end up to here decode to nothing */
};

/* Normalises `text` into out[0] or out[1] and returns which; the other is room. */
fb_status fb_tokenizer_normalize(const fb_tokenizer *tokenizer, fb_pattern_work *work, const char *text,
                                 int64_t size, fb_growth growth[FB_STEPS_LIMIT], fb_bytes out[2], int *which,
                                 fb_error *err);
void fb_growth_start(fb_growth growth[FB_STEPS_LIMIT], const char *what, int64_t limit);

/* The sections of tokenizer.json; `section` is NULL where it is null or missing. */
fb_status fb_tokenizer_load_normalizer(fb_tokenizer *tokenizer, const char *what, const fb_json *section,
                                       fb_error *err);
fb_status fb_tokenizer_load_splitter(fb_tokenizer *tokenizer, const char *what, const fb_json *section,
                                     fb_error *err);
fb_status fb_tokenizer_load_template(fb_tokenizer *tokenizer, const char *what, const fb_json *section,
                                     fb_error *err);
fb_status fb_tokenizer_load_decoder(fb_tokenizer *tokenizer, const char *what, const fb_json *section,
                                    fb_error *err);
/* The vocabulary has room for ids below `ids`, for the added tokens' sake. */
fb_status fb_tokenizer_load_model(fb_tokenizer *tokenizer, const char *what, const fb_json *model,
                                  int64_t ids, fb_error *err);

/* Makes the vocabulary a Unigram model's. Takes `scores` as fb_unigram_create does; `lowest` is the lowest of
 * those that count. */
fb_status fb_tokenizer_use_unigram(fb_tokenizer *tokenizer, double *scores, const bool *used, double lowest,
                                   int32_t unknown, bool byte_fallback, fb_error *err);

#endif
