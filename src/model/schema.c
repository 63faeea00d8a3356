/* Schemas for a model: its vocabulary as bytes, made once. */
#include "schema/schema.h"

#include <pthread.h>

#include "model/model.h"
#include "text/decode.h"

static fb_status bytes_of(const void *from, int32_t id, fb_bytes *out, fb_error *err) {
    const fb_model *model = from;
    return fb_decoder_token_bytes(model->tokenizer, id, out, err);
}

static bool is_end(const void *from, int32_t id) { return fb_model_is_end(from, id); }

static void release(void *set) { fb_token_set_free(set); }

static fb_status make_set(const fb_model *model, fb_token_set **out, fb_error *err) {
    const fb_token_source source = {.vocab = model->spec->program.vocab,
                                    .bytes_of = bytes_of,
                                    .is_end = is_end,
                                    .from = model,
                                    .first_loses_spaces = fb_decoder_drops_spaces(model->tokenizer)};
    FB_TRY(fb_token_set_create(&source, out, err));
    fb_status status = fb_model_attach(model, release, *out, err);
    if (status != FB_OK) fb_token_set_free(*out);
    return status;
}

fb_status fb_schema_create(const fb_model *model, const char *schema, size_t bytes, fb_schema **out,
                           fb_error *err) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* one thread makes a set; it is rare */
    *out = NULL;
    if (!model->tokenizer) return fb_fail(err, FB_ERROR_FILE, "schema: the model has no tokenizer");
    pthread_mutex_lock(&lock);
    fb_token_set *set = fb_model_attached(model, release);
    fb_status status = set ? FB_OK : make_set(model, &set, err);
    pthread_mutex_unlock(&lock);
    return status == FB_OK ? fb_schema_compile(set, schema, bytes, out, err) : status;
}
