/* What the library itself needs of samplers, besides fusebox.h. */
#ifndef FB_TEXT_SAMPLER_H
#define FB_TEXT_SAMPLER_H

#include "base/candidate.h"
#include "base/status.h"
#include "fusebox.h"

/* The caller's options (NULL: the defaults) as a complete struct. */
fb_status fb_sampler_options_take(const fb_sampler_options *given, fb_sampler_options *out, fb_error *err);

/* ---- drafts: choices that may be taken back ---- */

#define FB_MAX_RETRACT 8

/* Takes back the last `count` tokens that were accepted, at most FB_MAX_RETRACT since a token that stays. The
 * number of the next choice and the document of a schema stay: see fb_sampler_seek. */
void fb_sampler_retract(fb_sampler *sampler, int64_t count);
/* The number of the next choice. */
uint64_t fb_sampler_number(const fb_sampler *sampler);
/* Choices from now on are guesses, FB_MAX_RETRACT at most, until fb_sampler_take_back takes all `count` of
 * them back, with their numbers and what they are in a schema's document. */
fb_status fb_sampler_try(fb_sampler *sampler, fb_error *err);
void fb_sampler_take_back(fb_sampler *sampler, int64_t count);
/* Whether each choice is the token with the highest logit. */
bool fb_sampler_is_best(const fb_sampler *sampler);

/* ---- choosing without all logits: for a device that selects the best ones ---- */

/* How many of the best logits the next choice needs, 1 to FB_CANDIDATES; 0: it needs all logits. It changes
 * with every token that is accepted, if there are penalties. */
int64_t fb_sampler_wants(const fb_sampler *sampler);

/* The number of tokens whose score is not their logit: those with a bias, and the recent ones if there are
 * penalties. ids [room] gets the first of them, each once, in any order. At most FB_CANDIDATES if
 * fb_sampler_wants is not 0. */
int64_t fb_sampler_changed(const fb_sampler *sampler, int32_t *ids, int64_t room);

/* fb_sampler_next without all logits: the same token, draw, errors and state afterwards. `best` has the
 * `count` best logits, at least as many as wanted, in any order: by value, the lower id first among equals;
 * NaN and +inf are the best. `changed` has the logits of all ids of fb_sampler_changed, in any order. */
fb_status fb_sampler_next_among(fb_sampler *sampler, const fb_candidate *best, int64_t count,
                                const fb_candidate *changed, int64_t changed_count, int32_t *id,
                                fb_error *err);

#endif
