/* Llama, and what differs from it by a few numbers: Mistral, Mixtral, Granite, SmolLM3. */
#include "arch/decoder.h"

static bool every_layer(const fb_decoder *d, int64_t layer, int64_t pattern) {
    return (void)d, (void)layer, (void)pattern, true;
}

static bool still_layer(const fb_decoder *d, int64_t layer, int64_t pattern) {
    return (void)pattern, d->still[layer];
}

fb_status fb_llama_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, false, NULL, err);
}

/* A window in all layers, or in none. */
static fb_status read_mistral(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    return fb_decoder_windows(config, spec, d, 4096, false, every_layer, 0, err);
}

fb_status fb_mistral_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, false, read_mistral, err);
}

/* Experts of a Mistral. */
static fb_status read_mixtral(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    FB_TRY(fb_json_int(config->what, config->json, "num_local_experts", 1, FB_LIMIT_EXPERTS, 8, &d->experts,
                       err));
    FB_TRY(fb_decoder_experts_used(config, d, 2, err));
    d->shares_sum_to_one = true;
    d->router = "block_sparse_moe.gate";
    d->expert_gate = "block_sparse_moe.experts.[].w1";
    d->expert_up = "block_sparse_moe.experts.[].w3";
    d->expert_down = "block_sparse_moe.experts.[].w2";
    d->rope_base = 1e6;
    return fb_decoder_windows(config, spec, d, 0, false, every_layer, 0, err);
}

fb_status fb_mixtral_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, false, read_mixtral, err);
}

static fb_status read_granite(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    const char *what = config->what;
    double logits;
    (void)spec;
    FB_TRY(fb_json_real(what, config->json, "embedding_multiplier", 1e-6, 1e6, 1, &d->embedding_scale, err));
    FB_TRY(fb_json_real(what, config->json, "attention_multiplier", 1e-6, 1e6, 1, &d->attention_scale, err));
    FB_TRY(fb_json_real(what, config->json, "residual_multiplier", 1e-6, 1e6, 1, &d->residual_scale, err));
    FB_TRY(fb_json_real(what, config->json, "logits_scaling", 1e-6, 1e6, 1, &logits, err));
    d->logit_scale = 1 / logits;
    return FB_OK;
}

fb_status fb_granite_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, false, read_granite, err);
}

/* no_rope_layers has a 1 for each layer that rotates. Without it, every fourth layer does not. */
static fb_status read_smollm3(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    const fb_json *list = fb_json_member(config->json, "no_rope_layers"), *item = fb_json_first(list);
    int64_t layers = spec->program.layers, interval;
    char text[64];
    FB_TRY(fb_json_int(config->what, config->json, "no_rope_layer_interval", 1, FB_LIMIT_LAYERS, 4, &interval,
                       err));
    if (list && (!fb_json_is(list, FB_JSON_ARRAY) || fb_json_size(list) != (size_t)layers))
        return fb_fail(err, FB_ERROR_FILE, "%s: no_rope_layers: %s (a list of %lld)", config->what,
                       fb_json_show(list, text, sizeof text), (long long)layers);
    for (int64_t layer = 0; layer < layers; layer++, item = item ? fb_json_next(item) : NULL) {
        int64_t rotates = list ? fb_json_int_of(item) : (layer + 1) % interval != 0;
        if (list && (!fb_json_is(item, FB_JSON_INT) || rotates < 0 || rotates > 1))
            return fb_fail(err, FB_ERROR_FILE, "%s: no_rope_layers: %s (0 or 1)", config->what,
                           fb_json_show(item, text, sizeof text));
        d->still[layer] = !rotates;
    }
    d->rope_base = 2e6;
    bool windows;
    FB_TRY(fb_json_bool(config->what, config->json, "use_sliding_window", false, &windows, err));
    return windows ? fb_decoder_windows(config, spec, d, 0, true, still_layer, 0, err) : FB_OK;
}

fb_status fb_smollm3_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, true, read_smollm3, err);
}
