/* What a fuse of class tol may differ by from the plain ops. */
#ifndef FB_FUSE_TOLERANCE_H
#define FB_FUSE_TOLERANCE_H

#include "base/status.h"

/* The bound for a state after `layer` layers (the logits: the number of layers), relative to its largest
 * element: 2 * factor * u * sqrt(1 + layer). u is the unit roundoff of the activation dtype, 2^-11 for f16.
 * factor is 4, or 12 in float32, where long sums round most.
 *
 * Each run rounds every stored result by up to u, and the errors of the layers add up like a random walk:
 * that is where the root comes from. It is a model of errors, not a proof. Where activations are quantised, a
 * difference in the last place may move an element by one quantisation level, a 127th of its block's largest;
 * then u is half of that. A cache that is coarser than the activations adds its own roundings in every layer.
 *
 * A model that amplifies errors can exceed the bound with right kernels. For such a model the bound is
 * measured (verify/sensitivity.h). */
double fb_fuse_tolerance(fb_dtype act, fb_dtype kv, bool quantizes, int64_t layer);

#define FB_FUSE_TOLERANCE_TEXT                                                                               \
    "differs by at most 8 u sqrt(1 + layers) (24 u in f32) of the largest element, and 2 u' sqrt(1 + "       \
    "layers) more if the cache is coarser; u and u', of activations and cache, are 2^-24 in f32, 2^-11 in "  \
    "f16, 2^-8 in bf16 and where activations are quantised; of a model that amplifies roundings, by twice "  \
    "what the plain ops move by when each layer's input changes by up to 4 u (12 u in f32)"

#endif
