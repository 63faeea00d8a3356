/* What the files of the scheduler share:
 *
 *     scheduler.c        creating, requests from any thread, counters
 *     schedule.c         which rows a step has, and who gets memory
 *     held.c             a prompt's rows that take several steps
 *     scheduler_step.c   a step: its batch, and what answers get of it
 *     schedule_draft.c   guesses of the next tokens
 *     replan.c           another plan while answers are being written; what runs
 *     saving.c           what each fuse should save
 *     timeline.c         the times of the plan's ops
 */
#ifndef FB_RUN_SCHEDULER_H
#define FB_RUN_SCHEDULER_H

#include <pthread.h>

#include "backend/frame.h"
#include "draft/draft.h"
#include "run/answer.h"
#include "run/execution.h"
#include "run/pace.h"

#define FB_MAX_SEQUENCES 1024

/* An answer's part of a step. */
typedef struct fb_part {
    fb_answer_state *answer; /* NULL: it was put back */
    int64_t rows;            /* from answer->computed on */
    int64_t scored;          /* of these, the last ones: their logits are wanted */
    int64_t blocks;          /* that it needs */
    int64_t drafted;         /* of these, the last ones: guesses */
    int64_t wanted_at;       /* its first wanted row, among those of the step */
} fb_part;

/* Rows of a prompt that several steps take through the layers. Meanwhile no other prompt is read. */
typedef struct fb_held {
    fb_answer_state *answer; /* NULL: there are none */
    int64_t rows;            /* from answer->computed on */
    int64_t from, to;        /* layers of this step; after it, it goes on at `to` */
    uint8_t *state;          /* of FB_PACE_HELD rows (fb_batch.held_state) */
    int64_t bytes;           /* of state; 0: there is none, no rows are held */
} fb_held;

/* Times of the ops of steps. */
typedef struct fb_timing {
    int64_t left;        /* steps that are still to be timed */
    int64_t rows, steps; /* rows of a step, and the steps that had so many */
    int64_t op_count;
    double *seconds; /* [steps][1 + op_count]: the step, and its ops */
} fb_timing;

struct fb_scheduler {
    const fb_model *model;
    fb_scheduler_options options;
    fb_session_options session; /* of the first plan; owns its strings; `fuse` is NULL */
    fb_blocks *pool;
    fb_prefix *prefix; /* NULL: none */
    int64_t vocab, capacity;
    /* The layout of caches, which all plans share. */
    int32_t groups;
    int32_t shift;
    int64_t sinks;
    int64_t *group_entries; /* [groups] */
    /* Used by fb_scheduler_step only: */
    fb_answer_state *waiting, *running; /* in their order */
    fb_part *parts;                     /* [sequences] */
    int64_t part_count, part_blocks;    /* blocks that the parts need, together */
    bool short_of_blocks;               /* an answer was put back for this step: none starts in it */
    int64_t free_wanted;                /* rows of the step whose logits may still be wanted */
    fb_row *rows;                       /* [options.rows] */
    fb_sequence **sequences;            /* [sequences] */
    float *logits;                      /* [sequences and guesses, vocab] */
    fb_choice *choices;                 /* [sequences and guesses]; NULL: the backend has none */
    fb_drafter *drafter;                /* NULL: no draft */
    fb_draft_ask *asks;                 /* [sequences]: of the answers that decode in the step … */
    fb_answer_state **asked;            /* … which are these */
    int64_t ask_count;
    fb_held held;
    fb_pace pace; /* how fast prompts are read while answers are written */
    fb_trace trace;
    bool draining; /* a plan is pending: only answers that have begun go on */
    /* Guarded by the lock. Only the step changes `execution`, so it reads it without. */
    pthread_mutex_t lock;
    fb_execution *execution; /* the plan that runs */
    fb_execution *next;      /* the one that takes over; NULL: none */
    fb_execution *timer;     /* the plan that runs, with clocks; NULL: not made yet */
    fb_timing *timing;       /* being taken; NULL: none */
    fb_timing *timed;        /* the last one; NULL: none */
    fb_submitted *requests;  /* all that have not ended */
    fb_submitted **incoming; /* the first of them that the step has not seen */
    uint64_t last_id;
    fb_scheduler_stats stats;
    int64_t fuse_calls[FB_FUSE_COUNT];
    uint64_t plan_number;          /* of `execution`: it counts up */
    uint64_t savings_of;           /* the plan that `savings` are of; 0: none yet */
    double savings[FB_FUSE_COUNT]; /* predicted seconds */
};

static inline const fb_frame *fb_schedule_frame(const fb_scheduler *s) {
    return &s->execution->executor->frame;
}

/* ---- saving.c ---- */

/* Predicted seconds that a decode step takes less with each fuse, the others as they are; 0: it does not
 * apply. */
void fb_savings_find(const fb_execution *execution, double seconds[FB_FUSE_COUNT]);

/* ---- scheduler.c ---- */

/* The most blocks that a sequence of so many tokens has at once. */
int64_t fb_schedule_blocks(const fb_scheduler *s, int64_t tokens);

/* ---- schedule.c ---- */

/* Inserts an answer into a list by its order. */
void fb_schedule_insert(fb_answer_state **list, fb_answer_state *answer);
/* Leaves the cache. What the prefix cache has of it stays there. */
void fb_schedule_leave(fb_scheduler *s, fb_answer_state *answer);
/* An answer that has ended leaves its list, its place and its cache. */
void fb_schedule_retire(fb_scheduler *s, fb_answer_state *answer);
/* After a step: puts the blocks that are full by now into the prefix cache, and gives back those that no
 * later token sees. */
void fb_schedule_remember(fb_scheduler *s, fb_answer_state *answer);
/* Places that running answers take, with those that wait for answer 0 of their request. */
int64_t fb_schedule_places(const fb_scheduler *s);
/* Before a step: which answers compute nothing in it. A plan that waits until answers have ended does not
 * wait for those: they go on. */
void fb_schedule_pause(fb_scheduler *s);
/* Chooses the parts of the next step. Returns how many rows of it are generated tokens and guesses. */
int64_t fb_schedule_parts(fb_scheduler *s);

/* Whether a running answer has one row in every step: its last token is all that is not computed. */
bool fb_schedule_decodes(const fb_scheduler *s, const fb_answer_state *answer);
/* How many of an answer's next rows have wanted logits: they are the last of them. A row's logits are about
 * the token after it. */
int64_t fb_schedule_scored(const fb_answer_state *answer, int64_t rows);
/* Adds rows of a running answer to the step. */
void fb_schedule_add(fb_scheduler *s, fb_answer_state *answer, int64_t rows);

/* ---- held.c ---- */

/* Memory for the rows that are held, if the backend holds any and `stretch` may ask for it. */
fb_status fb_held_open(fb_scheduler *s, fb_error *err);
void fb_held_close(fb_scheduler *s);
/* The number of layers among which a step may choose; 1: there is no choice. */
int64_t fb_held_layers(const fb_scheduler *s);
/* Whether rows are held that a step goes on with. */
bool fb_held_waits(fb_scheduler *s, int64_t decodes);
/* Adds them to the step. */
void fb_held_add(fb_scheduler *s, int64_t decodes);
/* Where only `left` rows fit, adds `rows` of a prompt to the step, which has no other prompt then: through
 * all layers if that is fast enough; otherwise they are held from this step on. Returns whether it did. */
bool fb_held_begin(fb_scheduler *s, fb_answer_state *answer, int64_t rows, int64_t left, int64_t decodes);
/* Whether the answer's rows of this step come through the last layer. */
bool fb_held_ends(const fb_scheduler *s, const fb_answer_state *answer);
/* Puts the held rows' layers into the batch. Its first rows are theirs. */
void fb_held_put(const fb_scheduler *s, fb_batch *batch);
/* After a step with so many rows of prompts. Returns them; those that are held in proportion to their layers.
 */
double fb_held_step(fb_scheduler *s, int64_t prompts);
/* Its rows begin again: it left its cache, or another plan took over. NULL: whoever's. */
void fb_held_drop(fb_scheduler *s, const fb_answer_state *answer);

/* Whether the pool has blocks for `count` more tokens of an answer than it has; evicts for them. */
bool fb_schedule_evict(fb_scheduler *s, const fb_answer_state *answer, int64_t count);

/* ---- schedule_draft.c ---- */

/* The most rows of a step that are guesses. */
int64_t fb_schedule_guesses(const fb_scheduler *s);
fb_status fb_schedule_drafts_open(fb_scheduler *s, fb_error *err);
void fb_schedule_drafts_close(fb_scheduler *s);
/* Before the parts of a step are chosen: guesses for the answers that decode. */
void fb_schedule_ask(fb_scheduler *s);
/* Whether an answer's guess was the token that was chosen in its place. */
bool fb_schedule_judge(fb_scheduler *s, fb_answer_state *answer, int64_t guess, int32_t token);
/* After a step of so many rows, all of them generated; seconds 0: it was another. */
void fb_schedule_learn(fb_scheduler *s, int64_t rows, double seconds);

/* ---- scheduler_step.c ---- */

/* Ends all answers of a request. */
void fb_scheduler_end(fb_scheduler *s, fb_submitted *request, fb_finish finish, const char *message);
void fb_scheduler_count(fb_scheduler *s, int64_t *stat, int64_t count);

/* ---- replan.c ---- */

/* Makes the execution for a list of fuses; NULL: as the session's options say. */
fb_status fb_replan_take(const fb_scheduler *s, const char *fuse, bool profile, fb_execution **out,
                         fb_error *err);
/* At the beginning of a step: the next plan takes over if it can. */
void fb_replan_begin(fb_scheduler *s);
/* Whether a plan is there that has not taken over. The caller does not hold the lock. */
bool fb_replan_waits(fb_scheduler *s);
/* Whether answers must end before it does. The caller holds the lock. */
bool fb_replan_pending(const fb_scheduler *s);

/* ---- timeline.c ---- */

/* The executor for a step: one with clocks, if it is to be timed. */
fb_executor *fb_timing_executor(fb_scheduler *s, bool decode);
/* A step that ran on it, and took so long; `before`: the trace's times before it. */
void fb_timing_add(fb_scheduler *s, const fb_trace *before, int64_t rows, double seconds);
/* Drops what belongs to the plan that ran. The caller holds the lock; what it gets, it gives back later. */
fb_execution *fb_timing_drop(fb_scheduler *s);

#endif
