/* What writing a GGUF file is made of. */
#ifndef FB_MODEL_QUANTIZE_H
#define FB_MODEL_QUANTIZE_H

#include "file/gguf_write.h"
#include "fusebox_tools.h"
#include "model/model.h"

/* Everything but the tensors: what the model is, and its tokenizer. Refuses what the format has no words for.
 */
fb_status fb_model_put_metadata(const fb_model *model, const fb_quantize_options *options,
                                fb_gguf_writer *writer, fb_error *err);

/* The factors [rotary / 2] by which a llama's rotary frequencies are divided besides linear scaling; NULL if
 * all are 1. Released with free. */
fb_status fb_model_rope_factors(const fb_model *model, float **out, fb_error *err);

#endif
