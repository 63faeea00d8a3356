/* Reading a config.json: what the architectures share. */
#ifndef FB_ARCH_CONFIG_H
#define FB_ARCH_CONFIG_H

#include "arch/arch.h"
#include "file/json.h"

typedef struct fb_config {
    const char *what;
    const fb_json *json;
} fb_config;

/* Sizes above these are refused: far beyond any model, and small enough that no product of three overflows.
 */
#define FB_LIMIT_LAYERS  FB_MAX_LAYERS
#define FB_LIMIT_WIDTH   (1 << 20) /* hidden size, MLP size, heads * head size */
#define FB_LIMIT_HEADS   4096
#define FB_LIMIT_VOCAB   (1 << 24)
#define FB_LIMIT_CONTEXT (1 << 24)

/* Adds a line of `fusebox info`. */
void fb_spec_fact(fb_spec *spec, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The first key of `keys` (NULL-terminated: the spellings over time) that is present, as an integer of 1 to
 * `max`. */
fb_status fb_config_size(const fb_config *config, const char *const *keys, int64_t max, int64_t *out,
                         fb_error *err);

/* The size of a head where the config gives only their number. A head_dim that says otherwise is refused. */
fb_status fb_config_heads(const fb_config *config, int64_t hidden, int64_t heads, int64_t *head_dim,
                          fb_error *err);

/* An activation's name to its op. */
fb_status fb_config_activation(const fb_config *config, const char *key, const char *fallback,
                               fb_op_kind *out, const char **name, fb_error *err);

/* Rotary position embedding, in the old and the new spelling: the number of rotating elements of a head, and
 * the frequencies into program->frequencies. Adds the facts. */
fb_status fb_config_rope(const fb_config *config, fb_spec *spec, int64_t head_dim, double default_fraction,
                         int32_t *rotary, fb_error *err);

/* One of these for each architecture. */
fb_status fb_gpt_neox_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_llama_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_gpt2_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_mistral_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_qwen2_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_qwen3_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_gemma2_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_gemma3_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_phi3_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_olmo2_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_granite_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_smollm3_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_mixtral_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_qwen3_moe_describe(const fb_config *config, fb_spec *spec, fb_error *err);
fb_status fb_stablelm_describe(const fb_config *config, fb_spec *spec, fb_error *err);

#endif
