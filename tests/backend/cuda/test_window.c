/* Windows on a device: neither the size of a ring nor what lies in blocks that were given back changes a bit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_harness.h"
#include "support/answers.h"

/* ---- rings of several sizes ---- */

enum { PROMPT = 270, DECODED = 2 };

typedef struct answer {
    uint64_t logits[1 + DECODED]; /* after the prompt, and after each token */
} answer;

static answer answer_of(const fb_model *model, const fb_session_options *options) {
    fb_session *session;
    fb_error err;
    const float *logits;
    int32_t ids[PROMPT + DECODED];
    int64_t vocab;
    answer a;
    for (int i = 0; i < PROMPT + DECODED; i++) ids[i] = 10 + i * 7919 % 200;
    assert_int_equal(fb_session_create(model, options, &session, &err), FB_OK);
    for (int i = 0; i <= DECODED; i++) {
        assert_int_equal(i ? fb_session_decode(session, ids[PROMPT + i - 1], &err)
                           : fb_session_prefill(session, ids, PROMPT, &err),
                         FB_OK);
        assert_int_equal(fb_session_logits(session, &logits, NULL, &vocab, &err), FB_OK);
        a.logits[i] = fbt_logits_hash(logits, vocab);
    }
    fb_session_free(session);
    return a;
}

/* A window of 40 and chunks of 16 and 100 tokens have rings of 256 and 384 slots. The first goes round. */
static void chunks(const char *name, fb_cache_kind cache, int64_t sinks, fb_dtype act, const char *fuse) {
    fb_model *model = fbt_golden_stretched(name, 1024);
    static const int64_t chunk[] = {16, 100};
    fb_session_options o;
    fb_session_options_default(&o);
    o.backend = "cuda";
    o.act = act;
    o.fuse = fuse;
    o.cache = cache;
    o.sinks = sinks;
    o.window = 40;
    answer first = {{0}};
    for (int i = 0; i < 2; i++) {
        o.chunk = chunk[i];
        answer a = answer_of(model, &o);
        if (i == 0) first = a;
        for (int k = 0; k <= DECODED; k++)
            if (a.logits[k] != first.logits[k])
                fail_msg("%s: chunks of %lld give other logits after %d tokens than chunks of %lld", name,
                         (long long)chunk[i], PROMPT + k, (long long)chunk[0]);
    }
    fb_model_free(model);
}

static void chunks_with_a_window(void **state) {
    (void)state;
    chunks("llama-gqa-tied", FB_CACHE_WINDOW, 0, FB_F16, "all");
}

static void chunks_with_sinks(void **state) {
    (void)state;
    chunks("neox-parallel", FB_CACHE_SINKS, 4, FB_F32, "none");
}

/* ---- blocks that were given back ---- */

enum { NAN_TOKEN = 7, CLEAN = 40, OTHER = 36, ANSWERED = 5 };

/* A model whose layers have windows. One token's embedding is NaN. */
static fb_model *with_nan_token(void) {
    char *dir = fbt_dir_from_golden("gemma3"), *path = fbt_format("%s/model.safetensors", dir);
    char *config = fbt_format("%s/config.json", dir);
    size_t size;
    uint8_t *file = fbt_file_read(path, &size);
    uint64_t header;
    memcpy(&header, file, sizeof header);
    const char *at = strstr((const char *)file + 8, "\"model.embed_tokens.weight\"");
    assert_non_null(at);
    const char *shape = strstr(at, "\"shape\":["), *offsets = strstr(at, "\"data_offsets\":[");
    assert_non_null(shape);
    assert_non_null(offsets);
    assert_int_equal(strncmp(strstr(at, "\"dtype\":"), "\"dtype\":\"BF16\"", 14), 0);
    char *end;
    strtoll(shape + strlen("\"shape\":["), &end, 10);
    int64_t width = strtoll(end + 1, NULL, 10),
            begin = strtoll(offsets + strlen("\"data_offsets\":["), NULL, 10);
    memset(file + 8 + header + begin + NAN_TOKEN * width * 2, 0xff, (size_t)width * 2);
    fbt_file_write(path, file, size);
    fbt_json_set(config, "max_position_embeddings", "256");
    fb_model *model = fbt_model_open(dir);
    free(file);
    free(config);
    free(path);
    fbt_dir_remove(dir);
    return model;
}

/* The answer to a clean prompt. With `nan`, another request comes after three steps, and takes the blocks
 * that the first one's windows have left. */
static void answer_beside(const fb_model *model, const char *fuse, fbt_heard *clean, fbt_heard *nan) {
    fb_session_options session;
    fb_scheduler_options options;
    fb_scheduler *s;
    fb_error err;
    bool busy = true;
    int32_t ids[CLEAN], others[OTHER];
    for (int i = 0; i < CLEAN; i++) ids[i] = 10 + i;
    for (int i = 0; i < OTHER; i++) others[i] = i ? 10 + i : NAN_TOKEN;
    fb_session_options_default(&session);
    session.backend = "cuda";
    session.act = FB_F16;
    session.fuse = fuse;
    session.capacity = 256;
    fb_scheduler_options_default(&options);
    options.sequences = 2;
    options.block = 16;
    options.cache_tokens = 1024;
    options.stretch = 0;
    options.prefix_cache = false;
    assert_int_equal(fb_scheduler_create(model, &session, &options, &s, &err), FB_OK);
    fbt_submit(s, model, NULL, ids, CLEAN, ANSWERED, clean);
    for (int i = 0; i < 3; i++) assert_int_equal(fb_scheduler_step(s, &busy, &err), FB_OK);
    assert_true(busy);
    if (nan) fbt_submit(s, model, NULL, others, OTHER, 2, nan);
    fbt_run_all(s);
    fb_scheduler_free(s);
}

static void nan_of_another(void **state) {
    (void)state;
    static const char *const fuses[] = {"none", "all"};
    fb_model *model = with_nan_token();
    for (int i = 0; i < 2; i++) {
        fbt_heard want = {0}, have = {0}, nan = {0};
        answer_beside(model, fuses[i], &want, NULL);
        answer_beside(model, fuses[i], &have, &nan);
        assert_int_equal(nan.finish, FB_FINISH_FAILED);
        assert_int_equal(have.finish, FB_FINISH_LENGTH);
        fbt_check_same(&have, &want);
    }
    fb_model_free(model);
}

int main(void) {
    const char *given = getenv("FUSEBOX_CUDA_LIBRARY");
    if (!given || !*given || strcmp(given, "none") == 0) fb_cuda_library(cuda_emulated_path(), NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_with_a_window),
        cmocka_unit_test(chunks_with_sinks),
        cmocka_unit_test(nan_of_another),
    };
    return cuda_run_group("window", tests, sizeof tests / sizeof *tests, NULL);
}
