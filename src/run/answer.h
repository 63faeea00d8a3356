/* One answer of a request, while it is computed: its tokens, its cache, and how tokens become text. */
#ifndef FB_RUN_ANSWER_H
#define FB_RUN_ANSWER_H

#include "backend/sequence.h"
#include "fusebox_batch.h"
#include "model/model.h"
#include "run/prefix.h"

typedef struct fb_answer_state fb_answer_state;

/* What the answers of a request share. */
typedef struct fb_submitted {
    uint64_t id;
    fb_request_options options; /* after defaults; prompt, stops and sampler are NULL */
    int64_t prompt_count;
    int64_t cached;           /* tokens of the prompt that the prefix cache had at first */
    int64_t told;             /* tokens of the prompt that the callback has heard, with prompt_logits */
    atomic_bool cancelled;    /* set by any thread, or by a callback */
    atomic_bool paused;       /* likewise */
    int32_t left;             /* answers that have not ended */
    fb_answer_state *answers; /* [options.samples]; answers 1, 2, … wait for 0 to read the prompt */
    struct fb_submitted *next;
} fb_submitted;

struct fb_answer_state {
    fb_submitted *request;
    int32_t sample;
    int64_t order;   /* of two answers, the one with the lower number goes first */
    int32_t *tokens; /* prompt and answer */
    int64_t count, room;
    int64_t computed; /* tokens whose keys and values were computed */
    int64_t kept;     /* the cache has those that a token at this position sees */
    /* With a draft: guesses that lie behind the tokens, the number of the question, and the position up to
     * which the cache was written. */
    struct fb_draft_stream *stream;
    int64_t drafted, asked, furthest;
    int64_t all_drafted, all_kept; /* guesses so far, and those that were right */
    fb_sequence sequence;
    fb_prefix_entry *entry; /* the last block of its text in the prefix cache, which it holds; NULL: none */
    bool forked;            /* it no longer waits for answer 0 */
    bool begun;             /* it has run before, maybe with another plan than a later one's */
    bool ended;
    bool paused; /* in this step */
    fb_sampler *sampler;
    struct fb_answer_candidates *candidates; /* of its choices; NULL: none yet */
    struct fb_answer_candidates *more;       /* [FB_MAX_DRAFT]: of those after guesses; NULL: none yet */
    fb_text_stream *text;
    fb_stop *stop;
    fb_answer_state *next; /* in the scheduler's list of waiting or of running answers */
};

/* max_tokens of a request that only reads its prompt. */
#define FB_NO_ANSWER (-1)

/* Copies the options' prompt and opens sampler, text stream and stop texts of every answer. */
fb_status fb_submitted_create(const fb_model *model, const fb_request_options *options, fb_submitted **out,
                              fb_error *err);
void fb_submitted_free(fb_submitted *request);

/* Appends a token. */
fb_status fb_answer_append(fb_answer_state *answer, int32_t token, fb_error *err);

/* What is needed to choose the next token, where a backend selects candidates; zeros: all logits. `guess`:
 * how many guesses of the same step are before it; the sampler knows them. */
fb_choice fb_answer_choice(fb_answer_state *answer, int64_t guess);

/* Tells the callback, if it wants to hear the prompt, its next token: the one after position `at`, which has
 * these logits. */
void fb_answer_prompt(fb_answer_state *answer, int64_t at, const float *logits);

/* Chooses the next token from logits [vocab], or from candidates if `choice` has some. Tells the callback,
 * and ends the answer if it is complete. */
void fb_answer_next(const fb_model *model, fb_answer_state *answer, const float *logits,
                    const fb_choice *choice);
/* Ends it, and tells the callback. */
void fb_answer_end(fb_answer_state *answer, fb_finish finish, const char *message);

#endif
