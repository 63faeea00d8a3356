/* Importance from a text: the plain program on the CPU scores it, and each linear shows its input. */
#include "model/importance.h"

#include "base/options.h"
#include "verify/perplexity.h"

static void on_linear(void *user, int32_t slot, int64_t layer, const fb_linear_rows *in, int32_t worker,
                      int32_t workers) {
    fb_importance_add(user, slot, layer, in, worker, workers);
}

fb_status fb_importance_collect(const fb_model *model, const fb_perplexity_options *given, const int32_t *ids,
                                int64_t count, fb_importance **out, fb_perplexity_report **report,
                                fb_error *err) {
    fb_perplexity_options options;
    fb_perplexity_report *scored;
    *out = NULL;
    if (report) *report = NULL;
    FB_TRY(fb_perplexity_options_take(given, &options, err));
    options.backend = "cpu";
    options.fuse = "none";
    options.act = FB_F32;
    options.float_dot = true;
    FB_TRY(fb_importance_create(model, out, err));
    fb_status status = fb_perplexity_watch(model, &options, ids, count, on_linear, *out, &scored, err);
    if (status != FB_OK) {
        fb_importance_free(*out);
        *out = NULL;
        return status;
    }
    if (report)
        *report = scored;
    else
        fb_perplexity_free(scored);
    return FB_OK;
}
