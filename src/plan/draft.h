/* What guesses of the next tokens should save (docs/speculation.md). Nothing here knows a clock or a model.
 */
#ifndef FB_PLAN_DRAFT_H
#define FB_PLAN_DRAFT_H

#include <stdint.h>

/* The tokens a second, over one by one, of steps that always have so many guesses, or (`length` -1) the best
 * number, which *best gets. step [FB_MAX_DRAFT + 1]: seconds of a step of 1, 2, … rows; `guess`: of a guess;
 * `rate`: the chance that a guess is right. */
double fb_draft_speedup(const double *step, double guess, double rate, int64_t length, int64_t *best);

#endif
