/* A model with smaller weights, made in memory: the draft of its own answers. */
#ifndef FB_MODEL_SHRINK_H
#define FB_MODEL_SHRINK_H

#include "model/model.h"

/* The same model with its matrices as `type` and its head as Q8_0, on all cores. Matrices that have no more
 * bits already, or no whole blocks, stay as they are; so do vectors, embeddings and routers. Refuses a
 * model in which nothing becomes smaller. All else is shared with `model`, which must live longer. */
fb_status fb_model_shrink(const fb_model *model, fb_dtype type, fb_model **out, fb_error *err);

/* The type that "q4" stands for. With a minimum more guesses are right, for a ninth more bytes. A GPU
 * multiplies Q4_0 the fastest. */
static inline fb_dtype fb_shrink_q4(bool gpu) { return gpu ? FB_Q4_0 : FB_Q4_1; }

/* The same for prices only: matrices have their new types and no data of these types. */
fb_status fb_model_shrink_shapes(const fb_model *model, fb_dtype type, fb_model **out, fb_error *err);

/* Whether two models are the same but for the dtypes of their matrices: programs of one shape, and the same
 * weights of all norms. */
bool fb_model_same_norms(const fb_model *a, const fb_model *b);

#endif
