/* The same model as a directory and as a GGUF file, which tests/data/gguf/make_gguf.py wrote without any code
 * of ours: the same bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pack.h"
#include "model/model.h"
#include "support/support.h"

enum { TOKENS = 12, VOCAB = 320 };

static fb_model *open_gguf(const char *name) {
    char *path = fbt_format("tests/data/gguf/%s.gguf", name);
    fb_model *model = fbt_model_open(path);
    free(path);
    return model;
}

/* The checkpoint; one with another activation than a GGUF file of its architecture stands for gets that. */
static fb_model *open_directory(const char *name, const char *key, const char *activation) {
    if (!key) return fbt_golden_open(name);
    char *dir = fbt_dir_from_golden(name), *config = fbt_format("%s/config.json", dir);
    fbt_json_set(config, key, activation);
    fb_model *model = fbt_model_open(dir);
    free(config);
    fbt_dir_remove(dir);
    return model;
}

/* [TOKENS, VOCAB] */
static float *logits_of(const fb_model *model, const char *isa, fb_dtype act) {
    fb_session_options options;
    fb_session *session;
    fb_error err;
    const float *have;
    int64_t rows, vocab;
    int32_t ids[TOKENS];
    fbt_random random = {7};
    for (int i = 0; i < TOKENS; i++) ids[i] = (int32_t)fbt_random_below(&random, VOCAB);
    fb_session_options_default(&options);
    options.isa = isa;
    options.act = act;
    options.kv = "act"; /* a cache of 16 bits would round apart what differs in the last bits */
    options.all_logits = true;
    options.threads = 1;
    assert_ok(fb_session_create(model, &options, &session, &err), &err);
    assert_ok(fb_session_prefill(session, ids, TOKENS, &err), &err);
    assert_ok(fb_session_logits(session, &have, &rows, &vocab, &err), &err);
    assert_int_equal(rows * vocab, TOKENS * VOCAB);
    float *logits = malloc(TOKENS * VOCAB * sizeof *logits);
    assert_non_null(logits);
    memcpy(logits, have, TOKENS * VOCAB * sizeof *logits);
    fb_session_free(session);
    return logits;
}

/* ---- the same weights ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    const char *key, *activation;
    /* 0: bit for bit. Llama 3's factors are float32 in the file, and their products are not. */
    double tolerance;
} rows[] = {
    {"neox-parallel", NULL, NULL, 0},
    {"neox-old-nobias", "hidden_act", "\"gelu\"", 0},
    {"llama-gqa-tied", NULL, NULL, 0},
    {"llama-linear-sharded", NULL, NULL, 0},
    {"llama-llama3-bias", NULL, NULL, 2e-5},
    {"gpt2", NULL, NULL, 0},
    {"gpt2-inner", "activation_function", "\"gelu_new\"", 0},
};

static void compare(const char *name, const float *a, const float *b, double tolerance) {
    for (int i = 0; i < TOKENS * VOCAB; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= tolerance))
            fail_msg("%s: logit %d: %.9g as a directory, %.9g as GGUF", name, i, (double)a[i], (double)b[i]);
}

static void same_bits(void **state) {
    (void)state;
    static const struct {
        const char *isa;
        fb_dtype act;
    } ways[] = {{NULL, FB_F32}, {"portable", FB_BF16}, {"ref", FB_F64}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fb_model *directory = open_directory(rows[i].name, rows[i].key, rows[i].activation),
                 *file = open_gguf(rows[i].name);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            if (rows[i].tolerance > 0 && ways[w].act == FB_BF16)
                continue; /* it would only round differently */
            float *expected = logits_of(directory, ways[w].isa, ways[w].act),
                  *logits = logits_of(file, ways[w].isa, ways[w].act);
            compare(rows[i].name, expected, logits, rows[i].tolerance);
            free(expected);
            free(logits);
        }
        fb_model_info a, b;
        fb_model_get_info(directory, &a);
        fb_model_get_info(file, &b);
        assert_int_equal(a.parameters, b.parameters);
        assert_string_equal(a.architecture, b.architecture);
        fb_model_free(directory);
        fb_model_free(file);
    }
}

/* ---- quantised weights --------------------------------------------------------------------------------- */

/* Each element is within half a step of the one that it was made from: also where rows were moved. */
static void quantised_rows_are_in_place(void **state) {
    (void)state;
    fb_model *plain = open_gguf("neox-parallel"), *file = open_gguf("neox-parallel-q8_0");
    const fb_program *p = &file->spec->program;
    int64_t matrices = 0;
    for (int64_t i = 0; i < p->slot_count * p->layers; i++) {
        const fb_weight *w = &file->weights[i], *from = &plain->weights[i];
        assert_int_equal(w->dtype == FB_Q8_0, from->dtype == FB_F16);
        matrices += w->dtype == FB_Q8_0;
        for (int64_t r = 0; r < w->rows; r++) {
            double largest = 0;
            for (int64_t c = 0; c < w->cols; c++) largest = fmax(largest, fabs(fb_weight_get(from, r, c)));
            double step = w->dtype == FB_Q8_0 ? largest / 127 * 1.001 : 0; /* its float16 scale is rounded */
            for (int64_t c = 0; c < w->cols; c++)
                if (!(fabs(fb_weight_get(w, r, c) - fb_weight_get(from, r, c)) <= 0.55 * step))
                    fail_msg("weight %lld, element (%lld, %lld): %g, was %g", (long long)i, (long long)r,
                             (long long)c, fb_weight_get(w, r, c), fb_weight_get(from, r, c));
        }
    }
    assert_true(matrices > 0);
    fb_dtype dtype;
    int64_t weights, bytes;
    int index = 0;
    do assert_true(fb_model_weights(file, index++, &dtype, &weights, &bytes));
    while (dtype != FB_Q8_0);
    assert_int_equal(bytes, weights / 32 * 34);
    fb_model_free(plain);
    fb_model_free(file);
}

static void quantised_logits_are_near(void **state) {
    (void)state;
    fb_model *plain = open_gguf("neox-parallel"), *file = open_gguf("neox-parallel-q8_0");
    float *expected = logits_of(plain, "ref", FB_F64), *logits = logits_of(file, "ref", FB_F64);
    double error = 0, size = 0;
    for (int i = 0; i < TOKENS * VOCAB; i++) {
        double e = (double)expected[i], d = (double)logits[i] - e;
        error += d * d;
        size += e * e;
    }
    print_message("# relative error of Q8_0: %.2g\n", sqrt(error / size));
    assert_true(error > 0 && sqrt(error / size) < 0.02);
    free(expected);
    free(logits);
    fb_model_free(plain);
    fb_model_free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(quantised_rows_are_in_place),
        cmocka_unit_test(quantised_logits_are_near),
    };
    return cmocka_run_group_tests_name("models in GGUF files", tests, NULL, NULL);
}
