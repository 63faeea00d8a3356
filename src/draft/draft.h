/* Drafts: guesses of the next tokens, which one step of the model checks together.
 *
 *     draft.c     fb_draft: what a user opens, and where guesses come from
 *     drafter.c   a draft at work for one execution: streams, questions, what became of them
 *     choose.c    how many tokens are worth guessing
 *     ngram.c, smaller.c, callback.c   the sources
 *
 * A source may guess anything: a guess is kept only if it is the token that would have been chosen anyway. */
#ifndef FB_DRAFT_DRAFT_H
#define FB_DRAFT_DRAFT_H

#include "draft/choose.h"
#include "run/execution.h"

typedef struct fb_drafter fb_drafter;
typedef struct fb_draft_stream fb_draft_stream;
typedef struct fb_draft_source fb_draft_source;

struct fb_draft {
    const fb_draft_source *source;
    const fb_model *model;    /* whose answers are guessed */
    fb_draft_options options; /* after defaults, without `source` */
    fb_model *smaller;        /* the model that guesses; NULL: another source */
    bool shares;              /* it reads and writes the answer's own cache */
};

/* What is to follow the tokens of a stream. */
typedef struct fb_draft_ask {
    fb_draft_stream *stream;
    const int32_t *tokens; /* [count]: prompt and text */
    int64_t count;
    fb_sequence *sequence; /* its cache, which holds tokens [0, count - 1) */
    fb_sampler *sampler;   /* that will choose; NULL: the best token each time */
    int64_t most;          /* guesses that it can use, 0 to FB_MAX_DRAFT */
    /* The answer: */
    int64_t made;
    int32_t ids[FB_MAX_DRAFT];
    int32_t class; /* of guesses that are right equally often */
    /* What became of it, for fb_drafter_learn: guesses that were compared, and how many of these were right.
     */
    int64_t checked, right;
} fb_draft_ask;

/* ---- drafter.c ---- */

/* A drafter for `target`, whose steps have rows of up to `streams` streams. With `greedy`, what it needs for
 * the best tokens is made now; otherwise at first use. */
fb_status fb_drafter_open(const fb_draft *draft, fb_execution *target, int64_t streams, bool greedy,
                          fb_drafter **out, fb_error *err);
void fb_drafter_close(fb_drafter *drafter);

fb_status fb_draft_stream_open(fb_drafter *drafter, fb_draft_stream **out, fb_error *err);
void fb_draft_stream_close(fb_draft_stream *stream);
/* The stream has only its first `count` tokens left; others will follow. */
void fb_draft_stream_cut(fb_draft_stream *stream, int64_t count);

/* Guesses what follows each of `count` streams: as many tokens as pay, and no more than `room` in all. */
fb_status fb_drafter_ask(fb_drafter *drafter, fb_draft_ask *asks, int64_t count, int64_t room, fb_error *err);

/* The step that checked them took so long; 0: it had other rows as well. */
void fb_drafter_learn(fb_drafter *drafter, const fb_draft_ask *asks, int64_t count, double seconds);

void fb_drafter_stats(const fb_drafter *drafter, fb_draft_stats *out);

/* ---- for the sources ---- */

/* Predicts the times of steps of an execution. */
void fb_drafter_predict(const fb_execution *execution, fb_draft_times *times);

struct fb_draft_source {
    const char *name;
    bool free; /* guessing takes no time to speak of: all that are wanted are made, then some are taken */
    int32_t classes;
    double prior[FB_DRAFT_CLASSES]; /* how often a first guess is right, before anything is known */
    fb_status (*open)(fb_drafter *drafter, bool greedy, fb_error *err);
    void (*close)(fb_drafter *drafter);
    fb_status (*stream_open)(fb_drafter *drafter, fb_draft_stream *stream, fb_error *err);
    void (*stream_close)(fb_draft_stream *stream);
    void (*cut)(fb_draft_stream *stream, int64_t count);
    /* Fills `made`, `ids` and `class` of asks with up to `most` guesses each. */
    fb_status (*guess)(fb_drafter *drafter, fb_draft_ask *asks, int64_t count, fb_error *err);
};

extern const fb_draft_source fb_draft_ngram, fb_draft_smaller, fb_draft_callback;

struct fb_drafter {
    const fb_draft *draft;
    fb_execution *target;
    int64_t streams;
    fb_draft_choice choice;
    fb_draft_stats stats;
    double guess_seconds; /* of the last question */
    void *own;            /* the source's */
};

struct fb_draft_stream {
    fb_drafter *drafter;
    fb_draft_rates rates;
    void *own; /* the source's */
};

#endif
