/* What a fuse of class tol may differ by from the plain ops. */
#ifndef FB_FUSE_TOLERANCE_H
#define FB_FUSE_TOLERANCE_H

#include "base/status.h"

/* Of a state after `layer` layers, or of the logits (layer: the number of layers), relative to its largest
 * element. Both sides round each stored result by up to half a unit in the last place u of the activation
 * dtype, and the errors since the embedding add up like a random walk, so each side stays within
 * steps * u * sqrt(1 + layer) of the truth, and the two differ by at most twice that. In float32 it is the
 * sums that round. Where activations are quantised, a difference in the last place may move an element by one
 * step, a 127th of its block's largest: then u is at least half of that. */
double fb_fuse_tolerance(fb_dtype act, bool quantizes, int64_t layer);

#define FB_FUSE_TOLERANCE_TEXT                                                                               \
    "differs by at most 8 u sqrt(1 + layers) (24 u in f32) of the largest element; u is 2^-24 in f32, "      \
    "2^-11 in f16, 2^-8 in bf16 and where activations are quantised"

#endif
