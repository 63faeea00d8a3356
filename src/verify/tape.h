/* A recorded run: every hidden state and all logits of some ids under some fuses, and how often each fuse
 * ran. */
#ifndef FB_VERIFY_TAPE_H
#define FB_VERIFY_TAPE_H

#include "base/status.h"
#include "fuse/fuse.h"

/* What all runs of a comparison are given: `prompt` ids in a prefill, the others one by one. */
typedef struct fb_script {
    int32_t *ids;
    int64_t prompt, tokens;
    int64_t greedy; /* tokens of the greedy continuation of the prompt */
    int64_t chunk;  /* tokens of the prefill at once */
} fb_script;

/* A text that every tokenizer knows, or pseudo-random ids for a model without one. */
fb_status fb_script_make(const fb_model *model, int64_t chunk, fb_script *out, fb_error *err);
void fb_script_free(fb_script *script);

typedef struct fb_tape {
    int64_t states, tokens, width, vocab; /* states: the embedding and each layer */
    float *hidden;                        /* [states][tokens][width] */
    float *logits;                        /* [tokens][vocab] */
    float *alone;         /* [tokens - prompt + 1][vocab]: again, from a session that shows nothing */
    float *greedy_logits; /* [greedy][vocab], where the plan has logits; else NULL */
    int32_t *greedy;      /* [greedy]: the best token of each step */
    /* Calls of each fuse in the greedy run, and what they must be; `miscounted` if they differ in any run. */
    int64_t calls[FB_FUSE_COUNT], expected[FB_FUSE_COUNT];
    bool miscounted;
} fb_tape;

/* Runs the script three times: with on_hidden; without, as a user would; and greedily, feeding `continuation`
 * (NULL: what is chosen). Of the options, threads, act, kv, fuse, exact, isa and the cache's count. */
fb_status fb_tape_record(const fb_model *model, const fb_session_options *options, const fb_script *script,
                         const int32_t *continuation, fb_tape *out, fb_error *err);
/* The hidden states and logits of the first `tokens` ids alone, in one prefill. Of the options, the cache's
 * count. */
fb_status fb_tape_record_truth(const fb_model *model, const fb_session_options *options,
                               const fb_script *script, int64_t tokens, fb_tape *out, fb_error *err);
void fb_tape_free(fb_tape *tape);

#endif
