/* Which type each matrix of a file gets: one type for all, or a mix of several. */
#ifndef FB_MODEL_MIX_H
#define FB_MODEL_MIX_H

#include "fusebox_tools.h"
#include "model/model.h"

/* Whether files can be written with this type for all matrices. */
bool fb_mix_has_type(fb_dtype type);
bool fb_mix_is_known(int64_t mix);

/* Whether biases are corrected by the mean error of a matrix of this type, from the weights alone. At 8 bits
 * there is little to correct. Of the others, the storyteller gains with Q4_0 on texts unlike those that it
 * was trained on, and with types that have minimums on all; Q3_K, MXFP4 and others without minimums lose up
 * to 7% of perplexity on texts that it wrote. */
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
