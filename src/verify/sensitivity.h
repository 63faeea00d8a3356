/* How far roundings move a model's states. A fuse's tolerance (fuse/tolerance.h) assumes that the errors of
 * the layers add up like a random walk. Some models amplify them: a LayerNorm of nearly equal elements
 * divides by a tiny deviation. For such a model the bound is measured. */
#ifndef FB_VERIFY_SENSITIVITY_H
#define FB_VERIFY_SENSITIVITY_H

#include "fusebox_tools.h"
#include "verify/tape.h"

typedef struct fb_sensitivity {
    double *max_abs, *rel; /* [states + 1]: the largest distances to the plain run; the last: of the logits */
    double vs_truth;       /* the largest distance of these runs' logits to float64 */
} fb_sensitivity;

/* Runs the plain ops four times. Each time the norms' weights are changed at random, so that every input of a
 * layer changes by up to `amount` of itself (model/perturb.h). `plain` is the run without changes. */
fb_status fb_sensitivity_measure(const fb_model *model, const fb_session_options *options,
                                 const fb_script *script, const fb_tape *plain, const fb_tape *truth,
                                 double amount, fb_sensitivity *out, fb_error *err);
/* Widens the limits of a comparison with the plain run to twice what was measured. The norm of all
 * differences may reach at most half of the norm: what differs more is another answer, however sensitive the
 * model is. Single elements may differ more, as where a norm of two elements changes its sign. */
void fb_sensitivity_widen(const fb_sensitivity *sensitivity, fb_verify_row *row);
void fb_sensitivity_free(fb_sensitivity *sensitivity);

#endif
