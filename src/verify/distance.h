/* How far two recorded runs are apart. */
#ifndef FB_VERIFY_DISTANCE_H
#define FB_VERIFY_DISTANCE_H

#include "fusebox_tools.h"
#include "verify/tape.h"

/* Compares `count` floats, and fills the row: the largest difference, the norm of all differences over the
 * norm of `want`, and whether both are within `limit` of the largest element and of the norm. Returns whether
 * they are identical. Bits decide: -0 is not 0, and NaN is never identical. */
bool fb_compare(const float *have, const float *want, int64_t count, double limit, fb_verify_row *row);

/* State `s` of both; s == tape->states: the logits. */
bool fb_compare_state(const fb_tape *have, const fb_tape *want, int64_t s, double limit, fb_verify_row *row);

/* The norm of the logits' differences over the norm of truth's, over the tokens that truth has. */
double fb_tape_distance(const fb_tape *tape, const fb_tape *truth);

#endif
