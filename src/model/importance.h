/* What a text says about the inputs of each matrix: the means of columns, and the sums of products of two
 * columns, by which one column's error can make up for another's (model/compensate.h). Each expert of a
 * mixture has its own inputs: the rows that were routed to it. */
#ifndef FB_MODEL_IMPORTANCE_H
#define FB_MODEL_IMPORTANCE_H

#include "fusebox_quantize.h"
#include "model/compensate.h"
#include "model/model.h"

/* Whose inputs are kept, by slot. Matrices that read the same value have one owner. */
typedef struct fb_importance_plan {
    int32_t owner[FB_MAX_SLOTS];  /* the slot that has the slot's inputs; FB_NONE: nothing has */
    int32_t shared[FB_MAX_SLOTS]; /* of experts: the slot of a linear that reads what all of them read, such
                                     as the router's; FB_NONE: there is none */
    int64_t width[FB_MAX_SLOTS];  /* of a panel */
    int64_t linear_bytes, expert_bytes; /* of products */
} fb_importance_plan;

void fb_importance_plan_make(const fb_program *program, fb_importance_plan *out);

fb_status fb_importance_create(const fb_model *model, fb_importance **out, fb_error *err);

/* Adds rows that the matrix of `slot` is multiplied with in `layer`. All workers of a step call it, each for
 * its share of the columns, so that no bit depends on their number. A type other than float32 is not counted.
 */
void fb_importance_add(fb_importance *importance, int32_t slot, int64_t layer, const fb_linear_rows *in,
                       int32_t worker, int32_t workers);

/* The means of a matrix's inputs, [cols]; released with free. NULL: the matrix was never multiplied, or it is
 * of experts. */
fb_status fb_importance_mean(const fb_importance *importance, int32_t slot, int64_t layer, double **out,
                             fb_error *err);

/* Of a matrix, or of one expert's; expert 0 if there are none. An expert that the text hardly reached has
 * the sums of its layer, if it shares them: `*layers` then becomes true. */
fb_products fb_importance_products(const fb_importance *importance, int32_t slot, int64_t layer,
                                   int64_t expert, bool *layers);

/* Whether it is of a model of this shape. */
bool fb_importance_fits(const fb_importance *importance, const fb_model *model);

#endif
