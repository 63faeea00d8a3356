#include "arch/arch.h"

#include <stdio.h>
#include <stdlib.h>

#include "arch/config.h"

/* Keys that change the maths when they have another value than this one. Absent and null are always fine. */
static const struct {
    const char *key, *neutral; /* as JSON */
} neutral_table[] = {
    {"sliding_window", "null"},
    {"use_sliding_window", "false"},
    {"layer_types", "null"},
    {"attn_logit_softcapping", "null"},
    {"final_logit_softcapping", "null"},
    {"no_rope_layers", "null"},
    {"quantization_config", "null"},
    {"is_encoder_decoder", "false"},
    {"add_cross_attention", "false"},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"use_qk_norm", "false"},
    {"clip_qkv", "null"},
    {"logit_scale", "null"},
    {"num_experts", "null"},
    {"num_local_experts", "null"},
};

#define WINDOWS "sliding_window", "use_sliding_window", "layer_types"

typedef struct arch_row {
    const char *model_type;
    const char *class_name; /* in `architectures` */
    fb_status (*describe)(const fb_config *config, fb_spec *spec, fb_error *err);
    const char *reads[8]; /* keys of the table above that it reads itself */
} arch_row;

static const arch_row arch_table[] = {
    {"gpt_neox", "GPTNeoXForCausalLM", fb_gpt_neox_describe, {NULL}},
    {"llama", "LlamaForCausalLM", fb_llama_describe, {NULL}},
    {"gpt2", "GPT2LMHeadModel", fb_gpt2_describe, {NULL}},
    {"mistral", "MistralForCausalLM", fb_mistral_describe, {"sliding_window", "layer_types"}},
    {"qwen2", "Qwen2ForCausalLM", fb_qwen2_describe, {WINDOWS}},
    {"qwen3", "Qwen3ForCausalLM", fb_qwen3_describe, {WINDOWS}},
    {"gemma2",
     "Gemma2ForCausalLM",
     fb_gemma2_describe,
     {"sliding_window", "layer_types", "attn_logit_softcapping", "final_logit_softcapping"}},
    {"gemma3_text",
     "Gemma3ForCausalLM",
     fb_gemma3_describe,
     {"sliding_window", "layer_types", "attn_logit_softcapping", "final_logit_softcapping"}},
    {"phi3", "Phi3ForCausalLM", fb_phi3_describe, {"sliding_window", "layer_types"}},
    {"olmo2", "Olmo2ForCausalLM", fb_olmo2_describe, {NULL}},
    {"granite", "GraniteForCausalLM", fb_granite_describe, {NULL}},
    {"smollm3", "SmolLM3ForCausalLM", fb_smollm3_describe, {WINDOWS, "no_rope_layers"}},
    {"stablelm", "StableLmForCausalLM", fb_stablelm_describe, {NULL}},
    {"mixtral",
     "MixtralForCausalLM",
     fb_mixtral_describe,
     {"sliding_window", "layer_types", "num_local_experts"}},
    {"qwen3_moe",
     "Qwen3MoeForCausalLM",
     fb_qwen3_moe_describe,
     {WINDOWS, "num_experts", "num_local_experts"}},
};

static bool reads(const arch_row *row, const char *key) {
    for (size_t i = 0; i < sizeof row->reads / sizeof *row->reads && row->reads[i]; i++)
        if (strcmp(row->reads[i], key) == 0) return true;
    return false;
}

/* A list that says "full_attention" for every layer changes nothing. */
static bool all_full(const fb_json *types) {
    if (!fb_json_is(types, FB_JSON_ARRAY)) return false;
    for (const fb_json *type = fb_json_first(types); type; type = fb_json_next(type)) {
        const char *name = fb_json_text_of(type);
        if (!name || strcmp(name, "full_attention") != 0) return false;
    }
    return true;
}

static fb_status check_neutral(const fb_config *config, const arch_row *row, fb_error *err) {
    for (size_t i = 0; i < sizeof neutral_table / sizeof *neutral_table; i++) {
        const char *key = neutral_table[i].key;
        const fb_json *value = fb_json_member(config->json, key);
        char text[64];
        if (!value || reads(row, key) || (strcmp(key, "layer_types") == 0 && all_full(value))) continue;
        if (strcmp(fb_json_show(value, text, sizeof text), neutral_table[i].neutral) != 0)
            return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: %s (only %s)", config->what, key, text,
                           neutral_table[i].neutral);
    }
    return FB_OK;
}

static fb_status check_class(const fb_config *config, const arch_row *row, fb_error *err) {
    const fb_json *names = fb_json_member(config->json, "architectures");
    if (!names) return FB_OK;
    const fb_json *name = fb_json_at(names, 0);
    char text[64];
    if (!fb_json_is(name, FB_JSON_STRING) || strcmp(fb_json_text_of(name), row->class_name) != 0)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: architectures: %s (for %s only [\"%s\"])",
                       config->what, fb_json_show(names, text, sizeof text), row->model_type,
                       row->class_name);
    return FB_OK;
}

static fb_status find_arch(const fb_config *config, const arch_row **out, fb_error *err) {
    const char *type;
    FB_TRY(fb_json_need_string(config->what, config->json, "model_type", &type, err));
    char known[256] = "";
    for (size_t i = 0; i < sizeof arch_table / sizeof *arch_table; i++) {
        *out = &arch_table[i];
        if (strcmp(type, arch_table[i].model_type) == 0) return FB_OK;
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 arch_table[i].model_type);
    }
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: model_type: \"%s\" (known: %s)", config->what, type,
                   known);
}

static fb_status describe(const char *what, const fb_json *json, fb_spec *spec, fb_error *err) {
    fb_config config = {what, json};
    if (!fb_json_is(json, FB_JSON_OBJECT)) return fb_fail(err, FB_ERROR_FILE, "%s: not a JSON object", what);
    const arch_row *row;
    FB_TRY(find_arch(&config, &row, err));
    FB_TRY(check_class(&config, row, err));
    FB_TRY(check_neutral(&config, row, err));
    spec->architecture = row->model_type;
    spec->begin = FB_NONE;
    fb_spec_fact(spec, "architecture", "%s", row->model_type);
    return row->describe(&config, spec, err);
}

fb_status fb_arch_describe_json(const char *what, const fb_json *json, fb_spec **out, fb_error *err) {
    *out = NULL;
    fb_spec *spec = calloc(1, sizeof *spec);
    fb_status status = spec ? describe(what, json, spec, err) : fb_fail_memory(err, what, sizeof *spec);
    if (status != FB_OK) {
        fb_spec_free(spec);
        return status;
    }
    *out = spec;
    return FB_OK;
}

fb_status fb_arch_describe(const char *what, const char *bytes, size_t size, fb_spec **out, fb_error *err) {
    *out = NULL;
    fb_json *json;
    FB_TRY(fb_json_parse(what, bytes, size, FB_CONFIG_LIMIT, &json, err));
    fb_status status = fb_arch_describe_json(what, json, out, err);
    fb_json_free(json);
    return status;
}

void fb_spec_free(fb_spec *spec) {
    if (!spec) return;
    fb_program_clear(&spec->program);
    free(spec);
}
