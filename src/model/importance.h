/* What a text says about the inputs of each matrix: the means of columns, and the sums of products of two
 * columns, by which one column's error can make up for another's (model/compensate.h). */
#ifndef FB_MODEL_IMPORTANCE_H
#define FB_MODEL_IMPORTANCE_H

#include "fusebox_tools.h"
#include "model/model.h"

fb_status fb_importance_create(const fb_model *model, fb_importance **out, fb_error *err);

/* Adds rows that the matrix of `slot` is multiplied with in `layer`. All workers of a step call it, each for
 * its share of the columns, so that no bit depends on their number. A type other than float32 is not counted.
 */
void fb_importance_add(fb_importance *importance, int32_t slot, int64_t layer, const fb_view *x, int64_t rows,
                       int32_t worker, int32_t workers);

/* The means of a matrix's inputs, [cols]; released with free. NULL: the matrix was never multiplied. */
fb_status fb_importance_mean(const fb_importance *importance, int32_t slot, int64_t layer, double **out,
                             fb_error *err);

/* Sums of products, [cols, width]: in row i those of column i with the columns of its panel up to itself. A
 * panel is `width` columns, a multiple of FB_MAX_BLOCK or all of them. NULL: the matrix was never multiplied.
 */
const float *fb_importance_products(const fb_importance *importance, int32_t slot, int64_t layer,
                                    int64_t *cols, int64_t *width);

/* Whether it is of a model of this shape. */
bool fb_importance_fits(const fb_importance *importance, const fb_model *model);

#endif
