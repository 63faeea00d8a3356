/* What rounding weights does to the mean of a linear's output, and its bias can undo: (W - W_q) E[x], with
 * E[x] from the checkpoint alone. */
#ifndef FB_MODEL_CORRECT_H
#define FB_MODEL_CORRECT_H

#include "model/model.h"

/* The bias of the one linear that reads the matrix of `slot`; FB_NONE: it has none, there are several such
 * linears, or the bias has other readers. */
int32_t fb_model_bias_slot(const fb_model *model, int32_t slot);

/* The mean of what that linear multiplies with in `layer`, [cols]; released with free. NULL where nothing is
 * known of it, or it is zero. */
fb_status fb_model_input_mean(const fb_model *model, int32_t slot, int64_t layer, double **mean,
                              fb_error *err);

#endif
