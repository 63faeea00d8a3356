/* OLMo 2: norms after the branches instead of before, and norms of whole rows of q and k. */
#include "arch/decoder.h"

static fb_status read_olmo2(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    (void)spec;
    d->before_attention = d->before_mlp = NULL;
    d->after_attention = "post_attention_layernorm";
    d->after_mlp = "post_feedforward_layernorm";
    d->qk_norm = FB_QK_ROW;
    return fb_json_real(config->what, config->json, "rms_norm_eps", 0, 1, 1e-5, &d->eps, err);
}

fb_status fb_olmo2_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    return fb_decoder_describe(config, spec, false, read_olmo2, err);
}
