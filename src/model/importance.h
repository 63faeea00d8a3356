/* What a text says about the inputs of each matrix: the mean and the mean square of every column. A weight's
 * error counts as much as the square of what it is multiplied with. */
#ifndef FB_MODEL_IMPORTANCE_H
#define FB_MODEL_IMPORTANCE_H

#include "fusebox_tools.h"
#include "model/model.h"

fb_status fb_importance_create(const fb_model *model, fb_importance **out, fb_error *err);

/* Adds rows that the matrix of `slot` is multiplied with in `layer`. Sums are in double, in the order of
 * rows. A type other than float32 is not counted. */
void fb_importance_add(fb_importance *importance, int32_t slot, int64_t layer, const fb_view *x,
                       int64_t rows);

/* The weights of a matrix's columns in a search, [cols], and the means of its inputs, [cols]; released with
 * free. NULL: the matrix was never multiplied. */
fb_status fb_importance_weights(const fb_importance *importance, int32_t slot, int64_t layer, float **out,
                                fb_error *err);
fb_status fb_importance_mean(const fb_importance *importance, int32_t slot, int64_t layer, double **out,
                             fb_error *err);

/* Whether it is of a model of this shape. */
bool fb_importance_fits(const fb_importance *importance, const fb_model *model);

#endif
