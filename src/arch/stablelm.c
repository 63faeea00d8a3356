/* StableLM 2: Llama with layernorms, of which a part of each head rotates, and perhaps biases of q, k and v.
 */
#include "arch/decoder.h"

static fb_status read_stablelm(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    const char *what = config->what;
    bool parallel, qk_norm;
    (void)spec;
    FB_TRY(fb_json_bool(what, config->json, "use_parallel_residual", false, &parallel, err));
    FB_TRY(fb_json_bool(what, config->json, "qk_layernorm", false, &qk_norm, err));
    if (parallel || qk_norm)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: true (only false)", what,
                       parallel ? "use_parallel_residual" : "qk_layernorm");
    FB_TRY(fb_json_bool(what, config->json, "use_qkv_bias", false, &d->qkv_bias, err));
    FB_TRY(fb_json_real(what, config->json, "layer_norm_eps", 0, 1, 1e-5, &d->eps, err));
    d->output_bias = false;
    d->layernorm = true;
    d->partial = true;
    d->rotary_fraction = 0.25;
    return FB_OK;
}

fb_status fb_stablelm_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, false, read_stablelm, err);
}
