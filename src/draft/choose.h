/* How many tokens are worth guessing: the number with the best expected tokens a second, from how long steps
 * take and how often guesses are right. Nothing here knows a clock, a model or a backend. */
#ifndef FB_DRAFT_CHOOSE_H
#define FB_DRAFT_CHOOSE_H

#include "base/status.h"
#include "fusebox.h"

#define FB_DRAFT_CLASSES 5
#define FB_DRAFT_ROWS    64 /* of a step, whose times are kept; more are extrapolated */

/* How often guesses were right, by class and depth; depth d counts only where all before it were right. Old
 * ones count less. */
typedef struct fb_draft_rates {
    double tried[FB_DRAFT_CLASSES][FB_MAX_DRAFT], right[FB_DRAFT_CLASSES][FB_MAX_DRAFT];
} fb_draft_rates;

/* Seconds of a step by its rows. */
typedef struct fb_draft_times {
    double guess[FB_DRAFT_ROWS + 1]; /* [rows]: predicted; only their ratios matter once one is known */
    double known[FB_DRAFT_ROWS + 1]; /* [rows]: measured; 0: not yet */
} fb_draft_times;

typedef struct fb_draft_choice {
    fb_draft_times step, draft; /* of the model; of the source, for a token more of so many streams */
    fb_draft_rates rates;       /* of all streams together */
    const double *prior;        /* by class */
    double owed;                /* seconds that guessing has cost so far, less what it has saved */
    double total;               /* seconds of all steps */
    int64_t cold;               /* steps with guesses, up to those whose times count */
    int64_t plain, rest;        /* steps without guesses; of these, those since the last guess … */
    int64_t since;              /* … and those with guesses since the last one without */
} fb_draft_choice;

/* One stream's part of the choice. */
typedef struct fb_draft_wish {
    const fb_draft_rates *rates;
    int32_t class;
    int64_t most;
    int64_t length; /* the choice */
} fb_draft_wish;

/* The time of a step of so many rows. */
double fb_draft_time(const fb_draft_times *times, int64_t rows);
void fb_draft_time_learn(fb_draft_times *times, int64_t rows, double seconds);

/* The chance that the guess at this depth is right, those before it being so. */
double fb_draft_rate(const fb_draft_rates *rates, const double *prior, int32_t class, int64_t depth);
void fb_draft_rate_learn(fb_draft_rates *rates, int32_t class, int64_t checked, int64_t right);
/* What a new stream begins with: it knows all, but is not sure of it. */
fb_draft_rates fb_draft_rates_start(const fb_draft_rates *all);

/* Chooses the lengths of `count` wishes, `room` in all at most. `free`: guesses are there already. */
void fb_draft_choose(const fb_draft_choice *choice, fb_draft_wish *wishes, int64_t count, int64_t room,
                     bool free);

/* Whether times of guessing are not worth knowing yet. */
bool fb_draft_choice_cold(const fb_draft_choice *choice);

/* A step of `streams` streams and `guesses` more rows took `seconds`, and guessing before it `guessing`; it
 * gave `tokens`. */
void fb_draft_choice_learn(fb_draft_choice *choice, int64_t streams, int64_t guesses, int64_t tokens,
                           double seconds, double guessing);

#endif
