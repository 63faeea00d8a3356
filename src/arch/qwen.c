/* Qwen 2 and 2.5: Llama with biases of q, k and v. Qwen 3: with norms of the heads of q and k instead; also
 * as a mixture of experts. */
#include "arch/decoder.h"

/* Layers from max_window_layers on, if windows are used at all. */
static bool slides(const fb_decoder *d, int64_t layer, int64_t pattern) { return (void)d, layer >= pattern; }

static fb_status read_windows(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    bool windows;
    int64_t full;
    FB_TRY(fb_json_bool(config->what, config->json, "use_sliding_window", false, &windows, err));
    FB_TRY(fb_json_int(config->what, config->json, "max_window_layers", 0, FB_LIMIT_LAYERS, 28, &full, err));
    return windows ? fb_decoder_windows(config, spec, d, 4096, true, slides, full, err) : FB_OK;
}

static fb_status read_qwen2(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    d->qkv_bias = true;
    d->output_bias = false;
    return read_windows(config, spec, d, err);
}

fb_status fb_qwen2_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, false, read_qwen2, err);
}

static fb_status read_qwen3(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    d->qk_norm = FB_QK_HEAD;
    return read_windows(config, spec, d, err);
}

fb_status fb_qwen3_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, false, read_qwen3, err);
}

static fb_status read_qwen3_moe(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    const char *what = config->what;
    const fb_json *dense = fb_json_member(config->json, "mlp_only_layers");
    int64_t step;
    char text[64];
    /* Newer configs have the second name. */
    FB_TRY(fb_json_int(what, config->json, "num_experts", 1, FB_LIMIT_EXPERTS, 128, &d->experts, err));
    FB_TRY(fb_json_int(what, config->json, "num_local_experts", 1, FB_LIMIT_EXPERTS, d->experts, &d->experts,
                       err));
    FB_TRY(fb_decoder_experts_used(config, d, 8, err));
    FB_TRY(fb_json_int(what, config->json, "moe_intermediate_size", 1, FB_LIMIT_WIDTH, 768, &d->mlp, err));
    FB_TRY(fb_json_int(what, config->json, "decoder_sparse_step", 1, FB_LIMIT_LAYERS, 1, &step, err));
    FB_TRY(fb_json_bool(what, config->json, "norm_topk_prob", false, &d->shares_sum_to_one, err));
    if (step != 1 || (dense && fb_json_size(dense) > 0))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: %s (only layers with experts)", what,
                       step != 1 ? "decoder_sparse_step" : "mlp_only_layers",
                       fb_json_show(step != 1 ? fb_json_member(config->json, "decoder_sparse_step") : dense,
                                    text, sizeof text));
    d->router = "mlp.gate";
    d->expert_gate = "mlp.experts.[].gate_proj";
    d->expert_up = "mlp.experts.[].up_proj";
    d->expert_down = "mlp.experts.[].down_proj";
    return read_qwen3(config, spec, d, err);
}

fb_status fb_qwen3_moe_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, false, read_qwen3_moe, err);
}
