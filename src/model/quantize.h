/* What writing a GGUF file is made of. */
#ifndef FB_MODEL_QUANTIZE_H
#define FB_MODEL_QUANTIZE_H

#include "file/gguf_write.h"
#include "fusebox_quantize.h"
#include "model/model.h"

/* Everything but the tensors: what the model is, and its tokenizer. Refuses what the format has no words for.
 */
fb_status fb_model_put_metadata(const fb_model *model, const fb_quantize_options *options,
                                fb_gguf_writer *writer, fb_error *err);

/* Tensors of factors [rotary / 2] by which rotary frequencies are divided besides linear scaling: one for a
 * llama, if not all are 1; two for longrope; none for others. */
typedef struct fb_rope_factors {
    const char *name[2];
    float *factors[2]; /* released with free */
    int32_t count;
} fb_rope_factors;
fb_status fb_model_rope_factors(const fb_model *model, fb_rope_factors *out, fb_error *err);

#endif
