/* Many answers at once: a scheduler that runs the requests of one model together.
 *
 *     fb_scheduler_create   a model, and how much memory its caches may take
 *     fb_scheduler_submit   a prompt, how to continue it, and who gets the text
 *     fb_scheduler_step     computes one step for all requests; callbacks get what came out
 *
 * A step reads the weights once for all its tokens, so several answers cost little more than one. Requests
 * that decode go first; prompts are read in the rest of the step, piece by piece, so that a long prompt does
 * not stall the others.
 *
 * What a request answers does not depend on the others: the bits of its logits are those that it
 * would have alone, whatever else is in the step, however its prompt was cut, whether its beginning came from
 * the prefix cache, and whether it was put back and computed again because the memory was full. Its random
 * numbers depend on its seed only.
 *
 * Memory: caches lie in blocks of some tokens each, from one pool of fixed size. Requests with the same
 * beginning share its blocks. When the pool is full, the request that came last is put back and continues
 * later, to the same text.
 *
 * Fuses: fb_scheduler_fuse changes the plan while answers are being written. Their bits stay the same.
 *
 * Threads: one thread at a time calls fb_scheduler_step, and none during fb_scheduler_free. All other
 * functions may be called from any thread at any time, also from a callback. A scheduler has no threads of
 * its own: nothing happens between steps. */
#ifndef FUSEBOX_BATCH_H
#define FUSEBOX_BATCH_H

#include "fusebox.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fb_scheduler fb_scheduler;

typedef struct fb_scheduler_options {
    size_t size;
    int64_t sequences; /* answers that are computed at the same time, at most; 1 to 1024 */
    /* Tokens that the pool holds, all requests together; 0: as many as `sequences` sessions and a block more
     * each, but no more than 65536. */
    int64_t cache_tokens;
    int64_t block; /* tokens of a block: 16, 32, 64 or 128 */
    int64_t rows;  /* tokens that a step computes, at most; 0: as a session's chunk */
    /* While answers are being written, prompts may make a step this many times as long; 0: any. Longer only
     * if the fewest rows that are worth a step take longer; on the CPU, if one layer of them does. */
    float stretch;
    int32_t prefix_cache; /* 0: do not look for beginnings that are still in the pool; 1: do */
} fb_scheduler_options;

FB_API void fb_scheduler_options_init(fb_scheduler_options *options, size_t size);
static inline void fb_scheduler_options_default(fb_scheduler_options *options) {
    fb_scheduler_options_init(options, sizeof *options);
}

/* `session`: as for fb_session_create; capacity is the most tokens of one request, prompt and answer. Not
 * used: greedy, all_logits, on_hidden, on_progress. The model must outlive the scheduler. */
FB_API fb_status fb_scheduler_create(const fb_model *model, const fb_session_options *session,
                                     const fb_scheduler_options *options, fb_scheduler **out, fb_error *err);
/* Requests that are not finished end without a callback. */
FB_API void fb_scheduler_free(fb_scheduler *scheduler);

/* Why an answer ended. */
typedef enum fb_finish {
    FB_FINISH_NONE = 0,      /* it goes on */
    FB_FINISH_END = 1,       /* the model ended it */
    FB_FINISH_STOP = 2,      /* a stop text came */
    FB_FINISH_LENGTH = 3,    /* max_tokens */
    FB_FINISH_CANCELLED = 4, /* fb_scheduler_cancel, or a callback returned false */
    FB_FINISH_FAILED = 5     /* `message` says why */
} fb_finish;

/* What a request's callback gets: one token, or the end. A token that ends the answer is not part of it. */
typedef struct fb_answer {
    size_t size;
    uint64_t request;
    int32_t sample; /* which of the request's answers, from 0 */
    fb_finish finish;
    int32_t token;       /* -1: none, the answer ended without one */
    const char *text;    /* whole characters that are certain by now, not terminated; valid during the call */
    size_t bytes;        /* of text; often 0 */
    const float *logits; /* [vocab]: what the token was chosen from; NULL unless the request wants them */
    int64_t count;       /* tokens of the answer so far, this one included */
    int64_t prompt;      /* tokens of the prompt … */
    int64_t cached;      /* … and how many of them came from the prefix cache */
    const char *message; /* of a failure; otherwise NULL */
    int64_t position;    /* of the token in prompt and answer, from 0; below `prompt`: it is one of the
                            prompt (prompt_logits) */
    int64_t drafted, kept; /* guesses of the session's draft that were checked for the answer so far, and
                              those that became tokens of it */
} fb_answer;

typedef struct fb_request_options {
    size_t size;
    const int32_t *prompt; /* token ids; copied */
    int64_t prompt_count;
    int64_t max_tokens; /* of the answer; 0: as many as the capacity leaves; -1: none, only the prompt is read
                         */
    int32_t samples;    /* answers to this prompt, 1 to `sequences`; they share the prompt's cache */
    /* NULL: the best token each time. Answer i draws with sequence `sampler->sequence` + i. */
    const fb_sampler_options *sampler;
    const char *const *stops; /* stop texts, as for fb_stop_create; copied */
    int32_t stop_count;
    int32_t priority; /* requests with a higher one start first; one that waits long overtakes them */
    bool past_end;    /* go on when the model ends the text */
    /* Called in fb_scheduler_step for each token and for the end. Return false to cancel the request. */
    bool (*on_answer)(void *user, const fb_answer *answer);
    void *user;
    int64_t wants_logits; /* 1: on_answer gets logits; a GPU then copies all of them to the host */
    /* 1: on_answer is also called for each token of the prompt, in their order, before the first token of the
     * answer: for answer 0, without text, and with the logits of the tokens before it (NULL for the first
     * token). The whole prompt is then computed, and nothing of it is taken from the prefix cache. A step
     * computes logits of at most `sequences` rows, so such a prompt is read in small pieces. */
    int64_t prompt_logits;
    int64_t draft; /* 1: the scheduler's draft (fb_session_options.draft), if it has one; 0: no guesses */
} fb_request_options;

FB_API void fb_request_options_init(fb_request_options *options, size_t size);
static inline void fb_request_options_default(fb_request_options *options) {
    fb_request_options_init(options, sizeof *options);
}

/* Fails, without a trace, if the prompt is empty or too long, an id is not in the vocabulary, or an option is
 * out of range. `request`: its number, from 1; may be NULL. */
FB_API fb_status fb_scheduler_submit(fb_scheduler *scheduler, const fb_request_options *options,
                                     uint64_t *request, fb_error *err);

/* Ends a request, all its answers, in the next step. Nothing happens if it has ended. 0: all requests. */
FB_API void fb_scheduler_cancel(fb_scheduler *scheduler, uint64_t request);

/* Stops a request for a while, or lets it go on. Its answers compute nothing meanwhile. They keep their
 * blocks and places until others need them; then they are put back, and computed again later, to the same
 * bits. A pending plan (fb_scheduler_fuse) does not wait for them: they go on until it has taken over.
 * Nothing happens if the request has ended. */
FB_API void fb_scheduler_pause(fb_scheduler *scheduler, uint64_t request, bool paused);

/* Computes one step. *busy is false if there was nothing to do and nothing was submitted meanwhile. After a
 * failure of a step every request of it has ended with FB_FINISH_FAILED; the scheduler goes on with the
 * others. */
FB_API fb_status fb_scheduler_step(fb_scheduler *scheduler, bool *busy, fb_error *err);

/* What happened since the scheduler was created, and how it stands. */
typedef struct fb_scheduler_stats {
    size_t size;
    int64_t waiting, running;          /* answers now */
    int64_t blocks, blocks_free;       /* of the pool; free includes those that only the prefix cache holds */
    int64_t block_tokens, block_bytes; /* of one block */
    int64_t steps, rows;               /* computed */
    int64_t prompt_tokens, cached_tokens; /* read, and of these found in the prefix cache */
    int64_t tokens;                       /* of answers */
    int64_t preempted;                    /* answers that were put back */
    double step_seconds;                  /* all steps */
    int64_t barriers;     /* of all steps: how often all threads waited for each other; on a GPU, launches */
    int64_t plan_changes; /* how often another plan took over */
    int64_t plan_pending; /* 1: one waits until answers have ended (fb_scheduler_fuse) */
    /* The last step: its rows, whether each of them was a token of an answer (1) or some were of prompts (0),
     * and its time. */
    int64_t last_rows, last_decode;
    int64_t last_timed; /* 1: with the clocks of fb_scheduler_profile */
    double last_seconds;
    /* The last step in which all rows were tokens of answers, without clocks: its barriers (launches) in
     * layers. */
    int64_t layer_barriers;
    int64_t held_steps; /* that took rows of a prompt through some layers only */
    /* Guesses of the session's draft that were checked, and those that became tokens of answers. */
    int64_t drafted, kept;
} fb_scheduler_stats;

FB_API void fb_scheduler_fill_stats(fb_scheduler *scheduler, fb_scheduler_stats *stats);
static inline void fb_scheduler_get_stats(fb_scheduler *scheduler, fb_scheduler_stats *stats) {
    stats->size = sizeof *stats;
    fb_scheduler_fill_stats(scheduler, stats);
}

/* ---- the plan, while it runs ---- */

/* Asks for the plan of another list of fuses, as in fb_session_options.fuse. This call makes it, on the
 * caller's thread, while steps go on; the next step runs it. A bad list is refused, and any failure changes
 * nothing.
 *
 * Fuses that are bit-identical change nothing but speed, so answers in the middle go on with the new plan. If
 * other fuses than before apply that are within a bound only (fb_fuse_info.bit is false, and the session is
 * not `exact`), the change is pending: answers that have begun end with the old plan, no other one starts
 * meanwhile, then the prefix cache is emptied and the new plan takes over. A later call replaces a plan that
 * has not taken over; one for the plan that runs takes it back. */
FB_API fb_status fb_scheduler_fuse(fb_scheduler *scheduler, const char *fuse, fb_error *err);

/* A fuse in the scheduler's plan. */
typedef struct fb_fuse_state {
    size_t size;
    const char *name;
    bool bit;  /* a change of it takes effect in the next step; false: it is pending first */
    bool on;   /* it is in the plan that runs */
    bool next; /* it is in the plan that will run: the one that is pending, or the one that runs */
    /* Since the scheduler was created, with all plans; and what a step must make with the plan that runs, as
     * by fb_session_fuse_calls. */
    int64_t calls;
    int64_t calls_per_step, calls_per_head;
    double saving; /* predicted seconds that a step with this fuse takes less; 0 where it does not apply */
} fb_fuse_state;

/* Index 0, 1, … until false. */
FB_API bool fb_scheduler_fill_fuse(fb_scheduler *scheduler, int index, fb_fuse_state *state);
static inline bool fb_scheduler_fuse_state(fb_scheduler *scheduler, int index, fb_fuse_state *state) {
    state->size = sizeof *state;
    return fb_scheduler_fill_fuse(scheduler, index, state);
}

/* The plan that runs, printed as by fb_model_program_text; and the list of fuses that it was made from. */
FB_API fb_status fb_scheduler_plan_text(fb_scheduler *scheduler, char **text, fb_error *err);
FB_API fb_status fb_scheduler_fuse_text(fb_scheduler *scheduler, char **text, fb_error *err);

/* ---- where the time of a step goes ---- */

/* Times every op of the next `steps` steps (1 to 256) in which all rows are tokens of answers. They run the
 * same plan; on a GPU launch by launch, without graph and step, so they take longer. This call makes the
 * executor for it, on the caller's thread; it is kept until the plan changes. A change ends the timing
 * without a timeline. While a timing runs, another call changes nothing. */
FB_API fb_status fb_scheduler_profile(fb_scheduler *scheduler, int64_t steps, fb_error *err);

typedef struct fb_timeline_op {
    int32_t section; /* 0: prologue, 1: layer, 2: epilogue */
    int32_t fuse_count;
    const char *op;           /* as in the program's text */
    const char *const *fuses; /* [fuse_count]: what made it; none: it is a plain op */
    double seconds;           /* of a step, all layers added up */
} fb_timeline_op;

typedef struct fb_timeline {
    int64_t rows; /* of a step */
    int64_t layers;
    int64_t steps;     /* averaged: the faster half of those that had so many rows */
    double seconds;    /* of a step, with the clocks around its ops … */
    double op_seconds; /* … and of its ops */
    int64_t op_count;  /* in program order; a layer's ops appear once for all layers */
    fb_timeline_op **ops;
} fb_timeline;

/* The last timing of the plan that runs; *out is NULL if none has been completed. */
FB_API fb_status fb_scheduler_timeline(fb_scheduler *scheduler, fb_timeline **out, fb_error *err);
FB_API void fb_timeline_free(fb_timeline *timeline);

#ifdef __cplusplus
}
#endif
#endif
