/* Gemma 2 and Gemma 3 (text): norms before and after each branch, whose weights are stored less 1; a gated
 * MLP with gelu; embeddings times the root of their width; windows in some layers. Gemma 2 caps scores and
 * logits, Gemma 3 normalises q and k and has other rotary positions in layers with a window. */
#include "arch/decoder.h"
#include <math.h>
#include <stdio.h>

/* All but every pattern-th layer. */
static bool slides(const fb_decoder *d, int64_t layer, int64_t pattern) {
    return (void)d, (layer + 1) % pattern != 0;
}

static fb_status read_common(const fb_config *config, fb_spec *spec, fb_decoder *d, int64_t pattern,
                             fb_error *err) {
    const char *what = config->what;
    double query;
    bool both_ways;
    FB_TRY(fb_config_activation(config, "hidden_act", "gelu_pytorch_tanh", &d->activation,
                                &d->activation_name, err));
    FB_TRY(fb_config_activation(config, "hidden_activation", "gelu_pytorch_tanh", &d->activation,
                                &d->activation_name, err));
    FB_TRY(fb_json_bool(what, config->json, "use_bidirectional_attention", false, &both_ways, err));
    if (both_ways)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: use_bidirectional_attention: true (only false)", what);
    FB_TRY(fb_json_real(what, config->json, "query_pre_attn_scalar", 1, 1e6, 256, &query, err));
    if (pattern != 2) /* Gemma 2 has one pattern */
        FB_TRY(fb_json_int(what, config->json, "sliding_window_pattern", 1, FB_LIMIT_LAYERS, pattern,
                           &pattern, err));
    d->attention_scale = 1 / sqrt(query);
    d->embedding_scale = sqrt((double)spec->program.hidden);
    d->plus_one = true;
    d->after_attention = "post_attention_layernorm";
    d->before_mlp = "pre_feedforward_layernorm";
    d->after_mlp = "post_feedforward_layernorm";
    return fb_decoder_windows(config, spec, d, 4096, true, slides, pattern, err);
}

static fb_status read_caps(const fb_config *config, fb_decoder *d, double scores, double logits,
                           fb_error *err) {
    /* null is no cap, which a missing key is not. */
    const fb_json *json = config->json;
    if (fb_json_get(json, "attn_logit_softcapping")) scores = 0;
    if (fb_json_get(json, "final_logit_softcapping")) logits = 0;
    FB_TRY(fb_json_real(config->what, json, "attn_logit_softcapping", 1e-3, 1e6, scores, &d->attention_cap,
                        err));
    return fb_json_real(config->what, json, "final_logit_softcapping", 1e-3, 1e6, logits, &d->logit_cap, err);
}

static fb_status read_gemma2(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    FB_TRY(read_common(config, spec, d, 2, err));
    return read_caps(config, d, 50, 30, err);
}

fb_status fb_gemma2_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, true, read_gemma2, err);
}

/* Newer configs have a dictionary for each type of layer; older ones have rope_theta, rope_scaling and
 * rope_local_base_freq. */
static fb_status read_ropes(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    const fb_json *given;
    char what[512];
    double global, local;
    FB_TRY(fb_rope_dictionary(config, &given, what, sizeof what, err));
    bool each = fb_json_member(given, "full_attention") || fb_json_member(given, "sliding_attention");
    const fb_json *full = each ? fb_json_member(given, "full_attention") : given;
    const fb_json *window = each ? fb_json_member(given, "sliding_attention") : NULL;
    FB_TRY(fb_json_real(config->what, config->json, "rope_theta", 1, 1e12, 1e6, &global, err));
    FB_TRY(fb_json_real(config->what, config->json, "rope_local_base_freq", 1, 1e12, 1e4, &local, err));
    FB_TRY(fb_json_real(what, full, "rope_theta", 1, 1e12, global, &global, err));
    FB_TRY(fb_json_real(what, window, "rope_theta", 1, 1e12, local, &local, err));
    int64_t context = spec->program.context;
    FB_TRY(fb_rope_read(config, what, full, d->head_dim, context, 1e6, 1, &d->ropes[0], err));
    FB_TRY(fb_rope_read(config, what, window, d->head_dim, context, 1e4, 1, &d->ropes[1], err));
    d->ropes[0].base = global;
    d->ropes[1].base = local;
    d->rope_count = 2;
    for (int i = 0; i < 2; i++)
        if (d->ropes[i].rotary != d->head_dim)
            return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: rotating elements of a head: %d (all %lld for %s)",
                           config->what, d->ropes[i].rotary, (long long)d->head_dim, spec->architecture);
    fb_rope_facts(&d->ropes[0], spec, d->head_dim);
    fb_spec_fact(spec, "rotary base, window", "%g", local);
    return FB_OK;
}

static fb_status read_gemma3(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    FB_TRY(read_common(config, spec, d, 6, err));
    FB_TRY(read_caps(config, d, 0, 0, err));
    d->qk_norm = FB_QK_HEAD;
    return read_ropes(config, spec, d, err);
}

fb_status fb_gemma3_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, true, read_gemma3, err);
}
