/* A model that differs from another one by about a rounding. */
#ifndef FB_MODEL_PERTURB_H
#define FB_MODEL_PERTURB_H

#include "model/model.h"

/* The same model, but each element of the norms' weights is multiplied by 1 + amount * r, with r random in
 * [-1, 1). Every layer then reads inputs that are off by up to `amount` of themselves, as if they had been
 * rounded. All else is shared with `model`, which must live longer. */
fb_status fb_model_perturb(const fb_model *model, double amount, uint64_t seed, fb_model **out,
                           fb_error *err);

#endif
