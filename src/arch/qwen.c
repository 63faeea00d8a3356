/* Qwen 2 and 2.5: Llama with biases of q, k and v. Qwen 3: with norms of the heads of q and k instead. */
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
