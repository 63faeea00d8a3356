/* Which type each matrix of a file gets: one type for all, or a mix of several. */
#ifndef FB_MODEL_MIX_H
#define FB_MODEL_MIX_H

#include "fusebox_quantize.h"
#include "model/model.h"

/* Whether files can be written with this type for all matrices. */
bool fb_mix_has_type(fb_dtype type);
bool fb_mix_is_known(int64_t mix);

/* Whether biases are corrected by the mean error of a matrix of this type, from the weights alone. Measured
 * with the storyteller, on texts that it wrote and on "Oz": types with minimums gain 0.1 to 0.7% of
 * perplexity. Q3_K, MXFP4 and others without minimums lose 1 to 7% on its own texts. Q4_0 loses 3% there and
 * 0.3% on "Oz"; files of it have been corrected from the beginning. At 8 bits there is little to correct. */
bool fb_mix_corrects(fb_dtype type);

/* "q4_0, q8_0, …", for messages. */
const char *fb_mix_types(char *text, size_t size);

/* A matrix in a layer, `name` being that of its GGUF tensor ("blk.{}.attn_v.weight"), by options->type and
 * options->mix. The head is not asked for. */
fb_dtype fb_mix_type(const fb_quantize_options *options, const fb_spec *spec, const char *name,
                     int64_t layer);

/* The type for rows of `cols` elements: `type`, or what stands for it where rows are no whole blocks. */
fb_dtype fb_mix_fitting(fb_dtype type, int64_t cols);

/* general.file_type. */
uint32_t fb_mix_file_type(const fb_quantize_options *options);

#endif
