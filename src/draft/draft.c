/* What a user opens: where guesses come from. */
#include "draft/draft.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/options.h"
#include "base/sized.h"
#include "model/shrink.h"
#include "text/tokenizer.h"

FB_SIZED_ENDS_WITH(fb_draft_stats, draft_seconds);

/* ---- a model with the same tokens ---- */

static fb_status compare_tokens(const char *path, const fb_model *model, const fb_model *smaller,
                                fb_error *err) {
    const fb_tokenizer *a = fb_model_tokenizer(model), *b = fb_model_tokenizer(smaller);
    if (!a && !b) {
        int64_t have = smaller->spec->program.vocab, want = model->spec->program.vocab;
        if (have == want) return FB_OK;
        return fb_fail(err, FB_ERROR_USAGE, "draft: %.200s: vocabulary %lld (%lld, as the model's)", path,
                       (long long)have, (long long)want);
    }
    if (!a || !b)
        return fb_fail(err, FB_ERROR_USAGE, "draft: %.200s: %s has no tokenizer (both need the same)", path,
                       a ? "it" : "the model");
    char what[256];
    snprintf(what, sizeof what, "draft: %.200s", path);
    return fb_tokenizer_compare(what, a, b, err);
}

static fb_status open_smaller(fb_draft *d, const char *path, fb_error *err) {
    FB_TRY(fb_model_open(path, &d->smaller, err));
    FB_TRY(compare_tokens(path, d->model, d->smaller, err));
    d->shares = fb_model_same_norms(d->model, d->smaller);
    return FB_OK;
}

static fb_status open_q4(fb_draft *d, const char *path, fb_error *err) {
    fb_session_options usual;
    const fb_backend *backend;
    int32_t device;
    (void)path;
    d->shares = true;
    fb_session_options_default(&usual);
    FB_TRY(fb_backend_find(&usual, &backend, &device, err));
    return fb_model_shrink(d->model, fb_shrink_q4(backend != &fb_backend_cpu), &d->smaller, err);
}

/* A type of weights by its name. */
static fb_status open_type(fb_draft *d, const char *path, fb_error *err) {
    fb_dtype type;
    FB_TRY(fb_dtype_parse(path, &type, err));
    d->shares = true;
    return fb_model_shrink(d->model, type, &d->smaller, err);
}

/* ---- which ---- */

/* Names of sources; any other text is the path of a model. */
static const struct {
    const char *name;
    const fb_draft_source *source;
    fb_status (*open)(fb_draft *d, const char *path, fb_error *err);
} sources[] = {
    {"ngram", &fb_draft_ngram, NULL},         {"q4", &fb_draft_smaller, open_q4},
    {"q4_0", &fb_draft_smaller, open_type},   {"q4_1", &fb_draft_smaller, open_type},
    {"iq4_nl", &fb_draft_smaller, open_type}, {"q5_0", &fb_draft_smaller, open_type},
    {"q8_0", &fb_draft_smaller, open_type},   {NULL, &fb_draft_smaller, open_smaller},
};

static fb_status open_source(fb_draft *d, const char *name, fb_error *err) {
    if (d->options.propose) {
        d->source = &fb_draft_callback;
        return FB_OK;
    }
    if (!name || !*name)
        return fb_fail(err, FB_ERROR_USAGE, "draft: no source (ngram, q4, or the path of a smaller model)");
    size_t i = 0;
    while (sources[i].name && strcmp(sources[i].name, name) != 0) i++;
    d->source = sources[i].source;
    return sources[i].open ? sources[i].open(d, name, err) : FB_OK;
}

fb_status fb_draft_create(const fb_model *model, const fb_draft_options *given, fb_draft **out,
                          fb_error *err) {
    *out = NULL;
    fb_draft_options options;
    FB_TRY(fb_draft_options_take(given, &options, err));
    if (options.most < 1 || options.most > FB_MAX_DRAFT)
        return fb_fail(err, FB_ERROR_USAGE, "draft: %lld tokens at once (1 to %d)", (long long)options.most,
                       FB_MAX_DRAFT);
    if (options.fixed != 0 && options.fixed != 1)
        return fb_fail(err, FB_ERROR_USAGE, "draft: fixed: %lld (0 or 1)", (long long)options.fixed);
    fb_draft *d = calloc(1, sizeof *d);
    if (!d) return fb_fail_memory(err, "draft", sizeof *d);
    d->model = model;
    d->options = options;
    d->options.source = NULL;
    fb_status status = open_source(d, options.source, err);
    if (status != FB_OK) {
        fb_draft_free(d);
        return status;
    }
    *out = d;
    return FB_OK;
}

void fb_draft_free(fb_draft *d) {
    if (!d) return;
    fb_model_free(d->smaller);
    free(d);
}
