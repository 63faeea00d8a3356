/* A golden of a stream: the nll of each token of a text, with one cache or several. */
#ifndef FB_VERIFY_STREAM_GOLDEN_H
#define FB_VERIFY_STREAM_GOLDEN_H

#include "verify/golden.h"

#define FB_MAX_STREAM_CASES 16

typedef struct fb_stream_case {
    fb_cache_kind cache;
    int64_t sinks, window;
    const fb_tensor_entry *nll;    /* F32 or F64 [tokens - 1]: of each token except the first */
    const fb_tensor_entry *logits; /* F32 [tokens - 1, vocab], or NULL */
} fb_stream_case;

typedef struct fb_stream_golden {
    fb_tensor_table *table;
    const fb_tensor_entry *ids; /* `input_ids`, I32 or I64 [tokens] */
    int64_t tokens;
    /* Either `nll` with `sinks` and `window` in the file's metadata, and `logits`; or `nll.dense`,
     * `nll.sinks4_window252`, … */
    fb_stream_case cases[FB_MAX_STREAM_CASES];
    int32_t count;
} fb_stream_golden;

/* Whether the table is a golden of a stream: it has a tensor `nll` or `nll.…`. */
bool fb_stream_golden_is(const fb_tensor_table *table);

fb_status fb_stream_golden_open(const char *path, int64_t vocab, fb_stream_golden *out, fb_error *err);
/* Takes ownership of the table, also on failure. Entry point of the fuzz target. */
fb_status fb_stream_golden_from_table(const char *what, fb_tensor_table *table, int64_t vocab,
                                      fb_stream_golden *out, fb_error *err);
void fb_stream_golden_close(fb_stream_golden *golden);

#endif
