/* What a fuse of class tol may differ by from the plain ops. */
#ifndef FB_FUSE_TOLERANCE_H
#define FB_FUSE_TOLERANCE_H

#include "base/status.h"

/* Of a state after `layer` layers, or of the logits (layer: the number of layers), relative to its largest
 * element. Both sides round each stored result by up to half a unit in the last place u of the activation
 * dtype, and the errors since the embedding add up like a random walk, so each side stays within
 * steps * u * sqrt(1 + layer) of the truth, and the two differ by at most twice that. In float32 it is the
 * sums that round.
 *
 * A cache that is coarser than the activations widens what differs: of two keys that differ by d, some d /
 * 2u' of the elements are rounded to different neighbours, which are 2u' apart, so that in the mean square
 * sqrt(2u' d) is left. */
double fb_fuse_tolerance(fb_dtype act, fb_dtype kv, int64_t layer);

#define FB_FUSE_TOLERANCE_TEXT                                                                               \
    "differs by at most d = 8 u sqrt(1 + layers) (24 u in f32) of the largest element, with a coarser "      \
    "cache by d + sqrt(2 u' d); u and u', of activations and cache, are 2^-24 in f32, 2^-11 in f16, 2^-8 "   \
    "in bf16"

#endif
