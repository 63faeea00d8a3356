/* What a text says about the inputs of matrices, and what it does to a file. */
#include "model/importance.h"

#include <math.h>
#include <stdlib.h>

#include "support/support.h"

enum { IDS = 700 };

static fb_importance *collect(const fb_model *model, int32_t threads) {
    int32_t ids[IDS];
    fb_perplexity_options options;
    fb_importance *importance;
    fb_error err;
    for (int i = 0; i < IDS; i++) ids[i] = (i * 37 + i * i) % (int)model->info.vocab;
    fb_perplexity_options_default(&options);
    options.threads = threads;
    assert_ok(fb_importance_collect(model, &options, ids, IDS, &importance, NULL, &err), &err);
    return importance;
}

/* Weights are the squares over their average, and a thousandth; means are means. */
static void test_add(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-mha");
    const fb_program *p = &model->spec->program;
    fb_importance *importance;
    fb_error err;
    int32_t slot = 0;
    while (p->slots[slot].vector || !p->slots[slot].per_layer) slot++;
    int64_t cols = p->slots[slot].cols;
    float *x = malloc(2 * (size_t)cols * sizeof *x), *weights;
    double *mean;
    for (int64_t i = 0; i < 2 * cols; i++) x[i] = (float)(i % cols + 1) * (i < cols ? 1.0f : -0.5f);
    fb_view view = {.data = x, .dtype = FB_F32, .heads = 1, .width = cols, .row_stride = cols};
    assert_ok(fb_importance_create(model, &importance, &err), &err);
    assert_ok(fb_importance_weights(importance, slot, 1, &weights, &err), &err);
    assert_null(weights);
    fb_importance_add(importance, slot, 1, &view, 2);
    assert_ok(fb_importance_weights(importance, slot, 1, &weights, &err), &err);
    assert_ok(fb_importance_mean(importance, slot, 1, &mean, &err), &err);
    for (int64_t i = 0; i < cols; i++) {
        assert_true(mean[i] == 0.25 * (double)(i + 1));
        double ratio = ((double)weights[i] - 1e-3) / ((double)weights[0] - 1e-3);
        assert_true(fabs(ratio / pow((double)(i + 1), 2) - 1) < 0.02);
    }
    free(mean);
    free(weights);
    free(x);
    fb_importance_free(importance);
    fb_model_free(model);
}

/* Every matrix of a linear is watched, and the number of threads changes nothing. */
static void test_threads(void **state) {
    (void)state;
    static const char *const models[] = {"neox-parallel", "llama-gqa-tied", "gpt2"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fb_model *model = fbt_golden_open(models[m]);
        const fb_program *p = &model->spec->program;
        fb_importance *one = collect(model, 1), *two = collect(model, 2);
        assert_true(fb_importance_fits(one, model));
        for (int s = 0; s < FB_SECTIONS; s++)
            for (int32_t i = 0; i < p->op_count[s]; i++)
                for (int64_t layer = 0; layer < (s == FB_BODY ? p->layers : 1); layer++) {
                    if (p->ops[s][i].kind != FB_OP_LINEAR) continue;
                    int32_t slot = p->ops[s][i].weights[0];
                    float *a, *b;
                    fb_error err;
                    assert_ok(fb_importance_weights(one, slot, layer, &a, &err), &err);
                    assert_ok(fb_importance_weights(two, slot, layer, &b, &err), &err);
                    assert_non_null(a);
                    assert_memory_equal(a, b, (size_t)p->slots[slot].cols * sizeof *a);
                    free(a);
                    free(b);
                }
        fb_importance_free(one);
        fb_importance_free(two);
        fb_model_free(model);
    }
}

/* Another model's is refused. */
static void test_other_model(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-mha"), *other = fbt_golden_open("gpt2");
    fb_quantize_options options;
    fb_error err;
    fb_quantize_options_default(&options);
    fb_importance *importance = collect(other, 1);
    options.importance = importance;
    assert_refused(fb_model_quantize(model, "/nowhere/x.gguf", &options, NULL, &err), FB_ERROR_USAGE, &err,
                   "importance");
    fb_importance_free(importance);
    fb_model_free(other);
    fb_model_free(model);
}

/* Names in any case; what is none is refused with a list. */
static void test_names(void **state) {
    (void)state;
    fb_quantize_options options;
    fb_error err;
    for (int64_t i = 0; fb_quantize_name(i); i++) {
        fb_quantize_options_default(&options);
        assert_ok(fb_quantize_options_parse(fb_quantize_name(i), &options, &err), &err);
        assert_true(options.mix == FB_MIX_NONE ? options.head == options.type : options.head == FB_Q6_K);
    }
    assert_ok(fb_quantize_options_parse("Q4_k_m", &options, &err), &err);
    assert_true(options.mix == FB_MIX_Q4_K_M && options.type == FB_Q4_K);
    assert_refused(fb_quantize_options_parse("q4_k_x", &options, &err), FB_ERROR_USAGE, &err,
                   "q4_k_x|q4_K_M");
    assert_refused(fb_quantize_options_parse(NULL, &options, &err), FB_ERROR_USAGE, &err, "NULL|q4_K_M");
    assert_null(fb_quantize_name(-1));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_add), cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_other_model), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
