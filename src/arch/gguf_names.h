/* What GGUF files call the architectures and tensors that Hugging Face checkpoints have, and in which order
 * they keep their rows. Names are translated whole: "{}", as in fb_slot, or a layer's number is carried over,
 * and so is ".weight" or ".bias". */
#ifndef FB_ARCH_GGUF_NAMES_H
#define FB_ARCH_GGUF_NAMES_H

#include <stddef.h>

#include "base/order.h"
#include "base/status.h"

#define FB_GGUF_NAME_SIZE 96

/* Factors that divide the rotary frequencies of a llama; it is computed, no checkpoint has it. */
#define FB_GGUF_ROPE_FREQS "rope_freqs.weight"
/* The same for longrope: for contexts beyond the original one, and for those within it. */
#define FB_GGUF_ROPE_LONG  "rope_factors_long.weight"
#define FB_GGUF_ROPE_SHORT "rope_factors_short.weight"

/* "gpt_neox" to "gptneox" and back; NULL: no such architecture. */
const char *fb_gguf_architecture(const char *model_type);
const char *fb_gguf_model_type(const char *architecture);

/* A tensor's name in a GGUF file by that in a checkpoint of `model_type`, and the reverse. False: the
 * architecture has no tensor of that name. A transposed matrix of the checkpoint (GPT-2's) is stored as
 * [outputs, inputs] in GGUF, as everything else is. */
bool fb_gguf_name(const char *model_type, const char *checkpoint_name, char name[FB_GGUF_NAME_SIZE],
                  fb_row_order *order);
bool fb_gguf_checkpoint_name(const char *model_type, const char *gguf_name, char name[FB_GGUF_NAME_SIZE],
                             fb_row_order *order);

#endif
