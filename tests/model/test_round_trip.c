/* A checkpoint that goes into a GGUF file comes back as the same model: random configs of every architecture
 * give the same logits from the folder and from the file. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/random_model.h"

enum { MODELS = 60, TOKENS = 20 };

/* The logits [TOKENS, vocab] of some ids. */
static float *logits_of(const char *path, int64_t *count) {
    fb_model *model = fbt_model_open(path);
    fb_model_info info = {.size = sizeof info};
    fb_model_get_info(model, &info);
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (int32_t)((i * i * 7 + i * 13 + 5) % info.vocab);
    fb_session_options o = {.size = sizeof o, .threads = 1, .capacity = TOKENS, .all_logits = true};
    fb_session *session;
    const float *logits;
    fb_error err;
    *count = TOKENS * info.vocab;
    float *out = malloc((size_t)*count * sizeof *out);
    assert_non_null(out);
    assert_ok(fb_session_create(model, &o, &session, &err), &err);
    assert_ok(fb_session_prefill(session, ids, TOKENS, &err), &err);
    assert_ok(fb_session_logits(session, &logits, NULL, NULL, &err), &err);
    memcpy(out, logits, (size_t)*count * sizeof *out);
    fb_session_free(session);
    fb_model_free(model);
    return out;
}

static void write_gguf(const char *from, const char *to) {
    fb_model *model = fbt_model_open(from);
    fb_quantize_options options;
    fb_quantize_report *report;
    fb_error err;
    fb_quantize_options_default(&options);
    options.type = options.head = FB_F16;
    assert_ok(fb_model_quantize(model, to, &options, &report, &err), &err);
    fb_quantize_free(report);
    fb_model_free(model);
}

/* The file has the factors of llama3's frequencies in float32: the angles differ by 2^-24 of themselves. All
 * else is the same to the bit. */
static double allowed(const char *config, const float *logits, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)logits[i]));
    return strstr(config, "llama3") ? 1e-3 * largest : 0;
}

static void check_round_trip(fbt_random *random, const char *architecture) {
    char *config, *dir = fbt_random_model(random, architecture, &config);
    char *gguf = fbt_format("%s/out.gguf", dir);
    write_gguf(dir, gguf);
    int64_t count, again;
    float *want = logits_of(dir, &count), *have = logits_of(gguf, &again);
    assert_int_equal(again, count);
    assert_int_equal(fbt_count_nan(want, count), 0);
    double limit = allowed(config, want, count);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)have[i] - (double)want[i]) <= limit))
            fail_msg("logit %lld: %.9g in the folder, %.9g in the file (at most %g apart): %s", (long long)i,
                     (double)want[i], (double)have[i], limit, config);
    free(want);
    free(have);
    free(gguf);
    free(config);
    fbt_dir_remove(dir);
}

static void same_logits(void **state) {
    fbt_random random = fbt_random_start(17);
    for (int i = 0; i < MODELS / (FBT_SANITIZED ? 6 : 1); i++) check_round_trip(&random, *state);
}

int main(void) {
    struct CMUnitTest tests[8] = {{0}}; /* cmocka looks at all of them, and skips those without a function */
    size_t count = 0;
    for (; fbt_architectures[count]; count++)
        tests[count] = (struct CMUnitTest){.name = fbt_architectures[count],
                                           .test_func = same_logits,
                                           .initial_state = (void *)(uintptr_t)fbt_architectures[count]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
