/* What a text says about the inputs of matrices, and what it does to a file. */
#include "model/importance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/compensate.h"
#include "support/support.h"

enum { IDS = 700 };

static void make_ids(const fb_model *model, int32_t ids[IDS]) {
    for (int i = 0; i < IDS; i++) ids[i] = (i * 37 + i * i) % (int)model->info.vocab;
}

static fb_importance *collect(const fb_model *model, int32_t threads) {
    int32_t ids[IDS];
    fb_perplexity_options options;
    fb_importance *importance;
    fb_error err;
    make_ids(model, ids);
    fb_perplexity_options_default(&options);
    options.threads = threads;
    assert_ok(fb_importance_collect(model, &options, ids, IDS, &importance, NULL, &err), &err);
    return importance;
}

/* Means are means, and products are sums of products, whichever worker adds them. Heads lie apart. */
static void test_add(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-mha");
    const fb_program *p = &model->spec->program;
    fb_importance *importance;
    fb_error err;
    int32_t slot = 0;
    while (p->slots[slot].vector || !p->slots[slot].per_layer) slot++;
    enum { ROWS = 130, HEADS = 2, GAP = 5 };
    int64_t cols, width, wide = p->slots[slot].cols, head = wide / HEADS, row = wide + HEADS * GAP;
    float *x = malloc(ROWS * (size_t)row * sizeof *x);
    double *mean, sum = 0;
    for (int64_t i = 0; i < ROWS * row; i++) x[i] = (float)(i * 7919 % 23) - 9;
    fb_view view = {.data = x, .dtype = FB_F32, .heads = HEADS, .width = head, .row_stride = row};
    view.head_stride = head + GAP;
    assert_ok(fb_importance_create(model, &importance, &err), &err);
    assert_null(fb_importance_products(importance, slot, 1, &cols, &width));
    assert_null(fb_importance_products(importance, FB_MAX_SLOTS - 1, 0, &cols, &width));
    for (int32_t worker = 0; worker < 3; worker++)
        fb_importance_add(importance, slot, 1, &view, ROWS, worker, 3);
    assert_null(fb_importance_products(importance, slot, 0, &cols, &width));
    const float *products = fb_importance_products(importance, slot, 1, &cols, &width);
    assert_non_null(products);
    assert_true(cols == wide && width == wide);
    assert_ok(fb_importance_mean(importance, slot, 1, &mean, &err), &err);
    for (int64_t i = 0; i < cols; i++, sum = 0) {
        for (int64_t r = 0; r < ROWS; r++) sum += (double)x[r * row + i + i / head * GAP];
        assert_true(fabs(mean[i] - sum / ROWS) < 1e-12);
        for (int64_t k = 0; k <= i; k++) { /* integers: exact */
            double product = 0;
            for (int64_t r = 0; r < ROWS; r++)
                product += (double)x[r * row + i + i / head * GAP] * (double)x[r * row + k + k / head * GAP];
            assert_true((double)products[i * width + k] == product);
        }
    }
    free(mean);
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
                    int64_t cols, width;
                    const float *a = fb_importance_products(one, slot, layer, &cols, &width);
                    const float *b = fb_importance_products(two, slot, layer, &cols, &width);
                    assert_non_null(a);
                    assert_int_equal(cols, p->slots[slot].cols);
                    for (int64_t k = 0; k < cols * width; k += width)
                        assert_memory_equal(a + k, b + k, sizeof *a * (size_t)(k / width % width + 1));
                }
        fb_importance_free(one);
        fb_importance_free(two);
        fb_model_free(model);
    }
}

/* ---- outputs ------------------------------------------------------------------------------------------- */

enum { COLS = 512, OUTPUTS = 6, INPUTS = 900 };

/* The squared error of W x over the inputs, against that of W. */
static double output_error(const float *x, const float *w, fb_dtype type, const uint8_t *rows) {
    float back[COLS];
    double error = 0, all = 0;
    for (int i = 0; i < OUTPUTS; i++) {
        fb_quant_decode(type, rows + i * fb_dtype_bytes(type, COLS), COLS, back);
        for (int r = 0; r < INPUTS; r++) {
            double sum = 0, off = 0;
            for (int c = 0; c < COLS; c++) {
                sum += (double)w[i * COLS + c] * (double)x[r * COLS + c];
                off += (double)(w[i * COLS + c] - back[c]) * (double)x[r * COLS + c];
            }
            error += off * off;
            all += sum * sum;
        }
    }
    return error / all;
}

/* Inputs whose columns go together, as those of a model do: a few directions, and noise. */
static void make_inputs(fbt_random *random, float *x) {
    enum { DIRECTIONS = 24 };
    static float along[DIRECTIONS][COLS];
    for (int d = 0; d < DIRECTIONS; d++)
        for (int c = 0; c < COLS; c++) along[d][c] = (float)fbt_random_normal(random);
    for (int r = 0; r < INPUTS; r++) {
        for (int c = 0; c < COLS; c++) x[r * COLS + c] = 0.7f * (float)fbt_random_normal(random);
        for (int d = 0; d < DIRECTIONS; d++) {
            float by = (float)fbt_random_normal(random);
            for (int c = 0; c < COLS; c++) x[r * COLS + c] += by * along[d][c];
        }
    }
}

/* With compensation the outputs' error is well below that of the search, with every type, and in panels of
 * half of the columns too. */
static void test_outputs(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(51);
    float *x = malloc(sizeof(float) * INPUTS * COLS), *w = malloc(sizeof(float) * OUTPUTS * COLS),
          errors[COLS];
    float *products = calloc((size_t)COLS * COLS, sizeof *products),
          *half = calloc((size_t)COLS * COLS, sizeof *half);
    fb_pool *pool;
    fb_error err;
    make_inputs(&random, x);
    for (int i = 0; i < OUTPUTS * COLS; i++) w[i] = (float)fbt_random_normal(&random) * 0.02f;
    for (int r = 0; r < INPUTS; r++)
        for (int i = 0; i < COLS; i++)
            for (int k = 0; k <= i; k++) products[i * COLS + k] += x[r * COLS + i] * x[r * COLS + k];
    for (int i = 0; i < COLS; i++)
        for (int k = i / 256 * 256; k <= i; k++) half[i * 256 + k % 256] = products[i * COLS + k];
    assert_ok(fb_pool_create(2, &pool, &err), &err);
    for (int type = FB_FLOAT_COUNT; type < FB_DTYPE_COUNT; type++) {
        uint8_t searched[OUTPUTS * COLS * 2], compensated[sizeof searched];
        int64_t bytes = fb_dtype_bytes((fb_dtype)type, COLS);
        double error[2];
        for (int i = 0; i < OUTPUTS; i++)
            fb_quant_search((fb_dtype)type, w + i * COLS, COLS, NULL, searched + i * bytes);
        double plain = output_error(x, w, (fb_dtype)type, searched);
        for (int panels = 1; panels <= 2; panels++) {
            fb_feedback feedback;
            assert_ok(
                fb_compensation_of(panels == 1 ? products : half, COLS, COLS / panels, pool, &feedback, &err),
                &err);
            for (int i = 0; i < OUTPUTS; i++)
                fb_quant_compensate((fb_dtype)type, w + i * COLS, COLS, &feedback, errors,
                                    compensated + i * bytes);
            error[panels - 1] = output_error(x, w, (fb_dtype)type, compensated);
            fb_compensation_free(&feedback);
        }
        print_message("%s: %.2e, compensated %.2e, in two panels %.2e\n", fb_dtype_name((fb_dtype)type),
                      plain, error[0], error[1]);
        assert_true(error[0] < 0.12 * plain && error[1] < 0.2 * plain);
    }
    fb_pool_free(pool);
    free(half);
    free(products);
    free(w);
    free(x);
}

/* Inputs that were zero, or too large: rows are rounded one column by itself. */
static void test_no_feedback(void **state) {
    (void)state;
    static const float values[] = {0, INFINITY, NAN};
    fb_pool *pool;
    fb_error err;
    assert_ok(fb_pool_create(1, &pool, &err), &err);
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        float products[32 * 32];
        fb_feedback feedback;
        for (int i = 0; i < 32 * 32; i++) products[i] = values[v];
        assert_ok(fb_compensation_of(products, 32, 32, pool, &feedback, &err), &err);
        for (int i = 0; i < 32; i++) assert_true(feedback.weights[i] == 1);
        for (int i = 0; i < 32 * 32; i++) assert_true(feedback.lower[i] == 0);
        fb_compensation_free(&feedback);
    }
    fb_pool_free(pool);
}

/* ---- files --------------------------------------------------------------------------------------------- */

/* [LOGITS, vocab] of the first ids. */
enum { LOGITS = 32 };
static float *logits_of(const fb_model *model) {
    int32_t ids[IDS];
    fb_session_options options;
    fb_session *session;
    const float *logits;
    int64_t rows, vocab;
    fb_error err;
    make_ids(model, ids);
    fb_session_options_default(&options);
    options.backend = "cpu";
    options.float_dot = true;
    options.all_logits = true;
    options.chunk = LOGITS;
    assert_ok(fb_session_create(model, &options, &session, &err), &err);
    assert_ok(fb_session_prefill(session, ids, LOGITS, &err), &err);
    assert_ok(fb_session_logits(session, &logits, &rows, &vocab, &err), &err);
    assert_int_equal(rows, LOGITS);
    float *out = malloc((size_t)(rows * vocab) * sizeof *out);
    memcpy(out, logits, (size_t)(rows * vocab) * sizeof *out);
    fb_session_free(session);
    return out;
}

/* The squared error of the logits of a file in Q4_0. */
static double file_error(const fb_model *model, const fb_importance *importance, const float *want) {
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x.gguf", dir);
    fb_quantize_options options;
    fb_model *written;
    fb_error err;
    fb_quantize_options_default(&options);
    options.type = options.head = FB_Q4_0;
    options.importance = importance;
    assert_ok(fb_model_quantize(model, path, &options, NULL, &err), &err);
    assert_ok(fb_model_open(path, &written, &err), &err);
    float *got = logits_of(written);
    double error = 0;
    for (int64_t i = 0; i < LOGITS * model->info.vocab; i++)
        error += pow((double)got[i] - (double)want[i], 2);
    free(got);
    fb_model_free(written);
    free(path);
    fbt_dir_remove(dir);
    return error;
}

/* A file's logits are nearer with what the inputs were: shared inputs, tied heads, transposed matrices, a
 * joint qkv, files with another order of rows. Experts are not watched, all else of a mixture is. */
static void test_files(void **state) {
    (void)state;
    static const char *const models[] = {
        "neox-parallel", "neox-serial", "llama-mha", "llama-gqa-tied",
        "gpt2",          "qwen3",       "mixtral",   "../gguf/neox-parallel.gguf"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fb_model *model = fbt_golden_open(models[m]);
        fb_importance *importance = collect(model, 2);
        float *want = logits_of(model);
        double plain = file_error(model, NULL, want), compensated = file_error(model, importance, want);
        print_message("%s: %.3g, compensated %.3g\n", models[m], plain, compensated);
        assert_true(compensated < 0.9 * plain);
        free(want);
        fb_importance_free(importance);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_add),     cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_outputs), cmocka_unit_test(test_no_feedback),
                                       cmocka_unit_test(test_files),   cmocka_unit_test(test_other_model),
                                       cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
