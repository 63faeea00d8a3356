/* Phi-3 and Phi-4: Llama with merged projections, of which parts of a head may rotate, and longrope. */
#include "arch/decoder.h"

static bool every_layer(const fb_decoder *d, int64_t layer, int64_t pattern) {
    return (void)d, (void)layer, (void)pattern, true;
}

static fb_status read_phi3(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    d->merged = true;
    d->partial = true;
    FB_TRY(fb_json_real(config->what, config->json, "rms_norm_eps", 0, 1, 1e-5, &d->eps, err));
    return fb_decoder_windows(config, spec, d, 0, false, every_layer, 0, err);
}

fb_status fb_phi3_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, false, read_phi3, err);
}
