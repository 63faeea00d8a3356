/* Requests of a scheduler, and the same by a session alone: tokens, and a hash of the logits that each was
 * chosen from. */
#ifndef FB_TESTS_ANSWERS_H
#define FB_TESTS_ANSWERS_H

#include "fusebox_batch.h"
#include "support/support.h"

#define FBT_MOST_TOKENS 256

/* What one answer's callback saw. A request with several samples needs as many of them. */
typedef struct fbt_heard {
    int64_t vocab; /* set by who submits */
    int32_t tokens[FBT_MOST_TOKENS];
    uint64_t logits[FBT_MOST_TOKENS];
    int64_t count, cached;
    /* With prompt_logits: the same of the prompt. */
    int32_t prompt[FBT_MOST_TOKENS];
    uint64_t scores[FBT_MOST_TOKENS];
    int64_t prompt_count;
    fb_finish finish;
    int ends;          /* how often it was told that it ended */
    int64_t cancel_at; /* tokens of the prompt after which it is cancelled; 0: never */
} fbt_heard;

uint64_t fbt_logits_hash(const float *logits, int64_t vocab);

/* Submits a request without a sampler whose callback fills `to`; it wants logits. `options` NULL: defaults;
 * otherwise its prompt, max_tokens, and callback are set. */
uint64_t fbt_submit(fb_scheduler *scheduler, const fb_model *model, const fb_request_options *options,
                    const int32_t *prompt, int64_t count, int64_t tokens, fbt_heard *to);

/* Steps until nothing is left, then no block is in use. */
void fbt_run_all(fb_scheduler *scheduler);

/* The same by a session, with all logits: tokens, logits and the prompt's scores. */
void fbt_alone(const fb_model *model, const fb_session_options *options, const int32_t *prompt, int64_t count,
               int64_t tokens, fbt_heard *out);

/* A prompt: the first `same` tokens of one text, then those of another, `count` in all. */
typedef struct fbt_beginning {
    int64_t same, count;
} fbt_beginning;

/* Such prompts, one after another, in a scheduler with a prefix cache and in one without: the answers are the
 * same. heard[i]: with it. */
void fbt_ask_beginnings(const fb_model *model, const fb_session_options *session,
                        const fb_scheduler_options *options, const fbt_beginning *of, int64_t count,
                        fbt_heard *heard);

/* Both heard the same tokens of the same logits. */
void fbt_check_same(const fbt_heard *heard, const fbt_heard *alone);

#endif
