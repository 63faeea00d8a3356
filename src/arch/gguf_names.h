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

/* A bit for each architecture, and sets of them, for tables. */
enum {
    FB_ARCH_NEOX = 1 << 0,
    FB_ARCH_LLAMA = 1 << 1,
    FB_ARCH_GPT2 = 1 << 2,
    FB_ARCH_MISTRAL = 1 << 3,
    FB_ARCH_QWEN2 = 1 << 4,
    FB_ARCH_QWEN3 = 1 << 5,
    FB_ARCH_GEMMA2 = 1 << 6,
    FB_ARCH_GEMMA3 = 1 << 7,
    FB_ARCH_PHI3 = 1 << 8,
    FB_ARCH_OLMO2 = 1 << 9,
    FB_ARCH_GRANITE = 1 << 10,
    FB_ARCH_SMOLLM3 = 1 << 11,
    FB_ARCH_STABLELM = 1 << 12,
    FB_ARCH_MIXTRAL = 1 << 13,
    FB_ARCH_QWEN3_MOE = 1 << 14,
    FB_ARCH_GEMMA = FB_ARCH_GEMMA2 | FB_ARCH_GEMMA3,
    /* Rotating rows of q and k are adjacent in the file; all of them rotate. */
    FB_ARCH_PAIRED = FB_ARCH_LLAMA | FB_ARCH_MISTRAL | FB_ARCH_MIXTRAL | FB_ARCH_GRANITE | FB_ARCH_SMOLLM3,
    FB_ARCH_DECODERS = FB_ARCH_PAIRED | FB_ARCH_QWEN2 | FB_ARCH_QWEN3 | FB_ARCH_GEMMA | FB_ARCH_PHI3 |
                       FB_ARCH_OLMO2 | FB_ARCH_STABLELM | FB_ARCH_QWEN3_MOE
};

/* The bit of a model_type; 0: there is none. */
uint32_t fb_gguf_bit(const char *model_type);

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
