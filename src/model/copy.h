/* A model of which only some weights will be its own. */
#ifndef FB_MODEL_COPY_H
#define FB_MODEL_COPY_H

#include "model/model.h"

/* A program and a table of weights of its own, with the same contents; all else is shared with `model`, which
 * must live longer. Who changes weights tells the program (fb_model_note_dtypes). */
fb_status fb_model_copy(const fb_model *model, fb_model **out, fb_error *err);

#endif
