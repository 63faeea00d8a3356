/* A tape is a recorded run: all hidden states and logits of some ids with some fuses, and how often each fuse
 * ran. */
#ifndef FB_VERIFY_TAPE_H
#define FB_VERIFY_TAPE_H

#include "base/status.h"
#include "fuse/fuse.h"

/* The input of all runs that are compared: `prompt` ids in a prefill, the others one by one. */
typedef struct fb_script {
    int32_t *ids;
    int64_t prompt, tokens;
    int64_t greedy; /* tokens of the greedy continuation of the prompt */
    int64_t chunk;  /* tokens per chunk of the prefill */
} fb_script;

/* Makes a script from a fixed text, or from pseudo-random ids if the model has no tokenizer. */
fb_status fb_script_make(const fb_model *model, int64_t chunk, fb_script *out, fb_error *err);
void fb_script_free(fb_script *script);

typedef struct fb_tape {
    int64_t states, tokens, width, vocab; /* states: the embedding and each layer */
    float *hidden;                        /* [states][tokens][width] */
    float *logits;                        /* [tokens][vocab] */
    float *alone;         /* [tokens - prompt + 1][vocab]: the same from a session without on_hidden */
    float *greedy_logits; /* [greedy][vocab] if the plan computes logits; otherwise NULL */
    int32_t *greedy;      /* [greedy]: the best token of each step */
    /* Calls of each fuse in the greedy run, and the expected number. `miscounted`: they differ in some run.
     */
    int64_t calls[FB_FUSE_COUNT], expected[FB_FUSE_COUNT];
    bool miscounted;
} fb_tape;

/* Runs the script three times: with on_hidden; without it, as a user would; and greedily, where
 * `continuation` is fed (NULL: the chosen tokens). Uses these fields of the options: threads, act, kv, fuse,
 * exact, isa and those of the cache. */
fb_status fb_tape_record(const fb_model *model, const fb_session_options *options, const fb_script *script,
                         const int32_t *continuation, fb_tape *out, fb_error *err);
/* The hidden states and logits alone. */
fb_status fb_tape_record_states(const fb_model *model, const fb_session_options *options,
                                const fb_script *script, fb_tape *out, fb_error *err);
/* The same in float64, of the first `tokens` ids, in one prefill. Of the options, the cache's count. */
fb_status fb_tape_record_truth(const fb_model *model, const fb_session_options *options,
                               const fb_script *script, int64_t tokens, fb_tape *out, fb_error *err);
void fb_tape_free(fb_tape *tape);

#endif
