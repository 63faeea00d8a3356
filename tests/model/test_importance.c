/* What a text says about the inputs of matrices, and what it does to a file. */
#include "model/importance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pack.h"
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

static fb_products products_of(const fb_importance *importance, int32_t slot, int64_t layer, int64_t expert) {
    bool layers;
    return fb_importance_products(importance, slot, layer, expert, &layers);
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
    int64_t wide = p->slots[slot].cols, head = wide / HEADS, row = wide + HEADS * GAP;
    float *x = malloc(ROWS * (size_t)row * sizeof *x);
    double *mean, sum = 0;
    for (int64_t i = 0; i < ROWS * row; i++) x[i] = (float)(i * 7919 % 23) - 9;
    fb_view view = {.data = x, .dtype = FB_F32, .heads = HEADS, .width = head, .row_stride = row};
    view.head_stride = head + GAP;
    fb_linear_rows rows = {.x = &view, .rows = ROWS};
    assert_ok(fb_importance_create(model, &importance, &err), &err);
    assert_null(products_of(importance, slot, 1, 0).sums);
    assert_null(products_of(importance, FB_MAX_SLOTS - 1, 0, 0).sums);
    for (int32_t worker = 0; worker < 3; worker++) fb_importance_add(importance, slot, 1, &rows, worker, 3);
    assert_null(products_of(importance, slot, 0, 0).sums);
    fb_products products = products_of(importance, slot, 1, 0);
    int64_t cols = products.cols, width = products.width;
    assert_non_null(products.sums);
    assert_true(cols == wide && width == wide && products.few == 0);
    assert_ok(fb_importance_mean(importance, slot, 1, &mean, &err), &err);
    for (int64_t i = 0; i < cols; i++, sum = 0) {
        for (int64_t r = 0; r < ROWS; r++) sum += (double)x[r * row + i + i / head * GAP];
        assert_true(fabs(mean[i] - sum / ROWS) < 1e-12);
        for (int64_t k = 0; k <= i; k++) { /* integers: exact */
            double product = 0;
            for (int64_t r = 0; r < ROWS; r++)
                product += (double)x[r * row + i + i / head * GAP] * (double)x[r * row + k + k / head * GAP];
            assert_true((double)products.sums[i * width + k] == product);
        }
    }
    free(mean);
    free(x);
    fb_importance_free(importance);
    fb_model_free(model);
}

/* Every matrix of a linear is watched, each expert that was reached too, and the number of threads changes
 * nothing. */
static int64_t same_products(const fb_importance *one, const fb_importance *two, const fb_program *p,
                             int32_t slot, int64_t layer, int64_t expert) {
    fb_products a = products_of(one, slot, layer, expert), b = products_of(two, slot, layer, expert);
    assert_true(!a.sums == !b.sums && a.few == b.few);
    if (!a.sums) return 0;
    assert_int_equal(a.cols, p->slots[slot].cols);
    for (int64_t k = 0; k < a.cols; k++)
        assert_memory_equal(a.sums + k * a.width, b.sums + k * a.width,
                            sizeof *a.sums * (size_t)(k % a.width + 1));
    return 1;
}

static void test_threads(void **state) {
    (void)state;
    static const char *const models[] = {"neox-parallel", "llama-gqa-tied", "gpt2", "mixtral", "qwen3-moe"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fb_model *model = fbt_golden_open(models[m]);
        const fb_program *p = &model->spec->program;
        fb_importance *one = collect(model, 1), *two = collect(model, 2);
        int64_t seen = 0, linears = 0;
        assert_true(fb_importance_fits(one, model));
        for (int s = 0; s < FB_SECTIONS; s++)
            for (int32_t i = 0; i < p->op_count[s]; i++)
                for (int64_t layer = 0; layer < (s == FB_BODY ? p->layers : 1); layer++) {
                    const fb_op *op = &p->ops[s][i];
                    if (op->kind != FB_OP_LINEAR && op->kind != FB_OP_EXPERT_LINEAR) continue;
                    int64_t matrices = op->kind == FB_OP_LINEAR ? 1 : p->slots[op->weights[0]].experts;
                    for (int64_t e = 0; e < matrices; e++, linears++)
                        seen += same_products(one, two, p, op->weights[0], layer, e);
                }
        assert_int_equal(seen, linears);
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
            fb_products given = {panels == 1 ? products : half, COLS, COLS / panels, 0};
            assert_ok(fb_compensation_of(&given, pool, &feedback, &err), &err);
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
        fb_products given = {products, 32, 32, 0};
        fb_feedback feedback;
        for (int i = 0; i < 32 * 32; i++) products[i] = values[v];
        assert_ok(fb_compensation_of(&given, pool, &feedback, &err), &err);
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
 * joint qkv, files with another order of rows. */
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

/* ---- experts ------------------------------------------------------------------------------------------- */

static int32_t expert_slot(const fb_program *p, bool each) {
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++)
        if (p->ops[FB_BODY][i].kind == FB_OP_EXPERT_LINEAR && p->ops[FB_BODY][i].attr.each == each)
            return p->ops[FB_BODY][i].weights[0];
    fail_msg("no experts");
    return FB_NONE;
}

/* Each expert has the products of the rows that were routed to it, and no others. Down has a row of x for
 * each route, gate reads the whole row. One expert is reached by few rows, the last by none: gate then has
 * what the router reads. */
static void test_experts(void **state) {
    (void)state;
    enum { ROWS = 700, USED = 2, EXPERTS = 4, LAYER = 1 };
    fb_model *model = fbt_golden_open("mixtral");
    const fb_program *p = &model->spec->program;
    static float routes[ROWS][USED][2];
    fb_importance *importance;
    fb_error err;
    for (int r = 0; r < ROWS; r++) /* all to 0, most to 1, some to 2, and none to 3 */
        routes[r][1][0] = r % 70 ? 1 : 2;
    fb_view chosen = {.data = routes, .dtype = FB_F32, .heads = 1, .width = 2 * USED, .row_stride = 2 * USED};
    assert_ok(fb_importance_create(model, &importance, &err), &err);
    for (int each = 0; each < 2; each++) {
        int32_t slot = expert_slot(p, each);
        int64_t cols = p->slots[slot].cols, heads = each ? USED : 1, row = heads * cols;
        float *x = malloc(ROWS * (size_t)row * sizeof *x);
        for (int64_t i = 0; i < ROWS * row; i++) x[i] = (float)(i * 7919 % 23) - 9;
        fb_view view = {.data = x, .dtype = FB_F32, .heads = heads, .width = cols, .row_stride = row};
        view.head_stride = cols;
        fb_linear_rows in = {&view, ROWS, &chosen, USED, each};
        for (int32_t worker = 0; worker < 3; worker++)
            fb_importance_add(importance, slot, LAYER, &in, worker, 3);
        for (int64_t e = 0; e < EXPERTS; e++) {
            fb_products products = products_of(importance, slot, LAYER, e);
            int64_t count = 0;
            for (int r = 0; r < ROWS; r++)
                for (int j = 0; j < USED; j++) count += (int64_t)routes[r][j][0] == e;
            assert_int_equal(products.few, count);
            assert_true(!products.sums == !count);
            for (int64_t i = 0; i < cols && count; i++)
                for (int64_t k = 0; k <= i; k += 5) { /* integers: exact */
                    double sum = 0;
                    for (int64_t r = 0; r < ROWS; r++)
                        for (int64_t j = 0; j < USED; j++)
                            if ((int64_t)routes[r][j][0] == e)
                                sum += (double)x[r * row + (each ? j : 0) * cols + i] *
                                       (double)x[r * row + (each ? j : 0) * cols + k];
                    assert_true((double)products.sums[i * products.width + k] == sum);
                }
        }
        free(x);
    }
    fb_importance_free(importance);
    fb_model_free(model);
}

/* The file's report says which experts went by what. */
static fb_quantize_report *report_of(const fb_model *model, const fb_importance *importance,
                                     const char *path) {
    fb_quantize_options options;
    fb_quantize_report *report;
    fb_error err;
    fb_quantize_options_default(&options);
    options.type = options.head = FB_Q4_0;
    options.importance = importance;
    options.replace = true;
    assert_ok(fb_model_quantize(model, path, &options, &report, &err), &err);
    return report;
}

/* The cost of a file's experts by the products of a text, against that of the weights themselves. */
static double expert_error(const fb_model *model, const fb_model *file, const fb_importance *text,
                           bool each) {
    const fb_program *p = &model->spec->program;
    int32_t slot = expert_slot(p, each);
    int64_t cols = p->slots[slot].cols, rows = p->slots[slot].rows / p->slots[slot].experts;
    float *w = malloc((size_t)cols * sizeof *w), *back = malloc((size_t)cols * sizeof *back);
    double error = 0, all = 0;
    for (int64_t layer = 0; layer < p->layers; layer++)
        for (int64_t row = 0; row < p->slots[slot].rows; row++) {
            fb_products products = products_of(text, slot, layer, row / rows);
            fb_weight_row(&model->weights[slot * p->layers + layer], row, 0, cols, w);
            fb_weight_row(&file->weights[slot * p->layers + layer], row, 0, cols, back);
            for (int64_t i = 0; i < cols; i++)
                for (int64_t k = 0; k <= i; k++) {
                    double times = (double)products.sums[i * cols + k] * (i == k ? 1 : 2);
                    error += times * (double)(w[i] - back[i]) * (double)(w[k] - back[k]);
                    all += times * (double)w[i] * (double)w[k];
                }
        }
    free(w);
    free(back);
    return error / all;
}

/* The errors of experts' outputs over the text are below those without it; and a text
 * of a few tokens, which reaches experts hardly or not, is seen in the report. */
static void test_expert_files(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double gate, down; /* of the error without a text, at most */
    } models[] = {{"mixtral", 0.7, 0.8}, {"qwen3-moe", 0.72, 0.87}};
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x.gguf", dir);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fb_model *model = fbt_golden_open(models[m].name), *file;
        fb_importance *importance = collect(model, 2), *few;
        fb_perplexity_options options;
        fb_error err;
        double error[2][2];
        for (int text = 0; text < 2; text++) {
            fb_quantize_report *report = report_of(model, text ? importance : NULL, path);
            int64_t matrices = 3 * model->spec->hyper.experts * model->info.layers;
            assert_int_equal(report->experts_own + report->experts_shared, text ? matrices : 0);
            assert_int_equal(report->experts_plain, 0);
            fb_quantize_free(report);
            assert_ok(fb_model_open(path, &file, &err), &err);
            for (int each = 0; each < 2; each++)
                error[text][each] = expert_error(model, file, importance, each);
            fb_model_free(file);
        }
        print_message("%s: gate %.2e, with a text %.2e; down %.2e, %.2e\n", models[m].name, error[0][0],
                      error[1][0], error[0][1], error[1][1]);
        assert_true(error[1][0] < models[m].gate * error[0][0]);
        assert_true(error[1][1] < models[m].down * error[0][1]);
        int32_t ids[] = {5, 5};
        fb_perplexity_options_default(&options);
        assert_ok(fb_importance_collect(model, &options, ids, 2, &few, NULL, &err), &err);
        fb_quantize_report *report = report_of(model, few, path);
        assert_true(report->experts_own > 0 && report->experts_shared > 0 && report->experts_plain > 0);
        fb_quantize_free(report);
        fb_importance_free(few);
        fb_importance_free(importance);
        fb_model_free(model);
    }
    free(path);
    fbt_dir_remove(dir);
}

/* Memory for real shapes: one H an expert where that fits, the layer's for gate and up where it does not. */
static void test_plan(void **state) {
    (void)state;
    static const char mixtral[] =
        "{\"model_type\":\"mixtral\",\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":"
        "14336,"
        "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"num_hidden_layers\":32,\"vocab_size\":32000,"
        "\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-5,\"rope_theta\":1e6,"
        "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"sliding_window\":null,"
        "\"tie_word_embeddings\":false}";
    static const char qwen[] =
        "{\"model_type\":\"qwen3_moe\",\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":"
        "6144,"
        "\"moe_intermediate_size\":768,\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,"
        "\"num_hidden_layers\":48,\"vocab_size\":151936,\"max_position_embeddings\":40960,"
        "\"rms_norm_eps\":1e-6,\"rope_theta\":1e6,\"num_experts\":128,\"num_experts_per_tok\":8,"
        "\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],"
        "\"attention_bias\":false,\"tie_word_embeddings\":false}";
    static const struct {
        const char *name, *config;
        bool own_gates;
        int64_t width, bytes;
    } models[] = {{"Mixtral 8x7B", mixtral, true, 256, (int64_t)32 * 8 * (4096 + 14336) * 256 * 4},
                  {"Qwen3-30B-A3B", qwen, false, 256, (int64_t)48 * 128 * 768 * 256 * 4}};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fb_importance_plan plan;
        fb_spec *spec;
        fb_error err;
        assert_ok(fb_arch_describe("config.json", models[m].config, strlen(models[m].config), &spec, &err),
                  &err);
        fb_importance_plan_make(&spec->program, &plan);
        int32_t gate = expert_slot(&spec->program, false), down = expert_slot(&spec->program, true);
        print_message("%s: linears %.2f GB, experts %.2f GB\n", models[m].name,
                      (double)plan.linear_bytes * 1e-9, (double)plan.expert_bytes * 1e-9);
        assert_true((plan.owner[gate] == gate) == models[m].own_gates && plan.owner[down] == down);
        assert_true(plan.shared[gate] != FB_NONE && plan.shared[down] == FB_NONE);
        assert_int_equal(plan.owner[plan.shared[gate]], plan.shared[gate]);
        assert_int_equal(plan.width[down], models[m].width);
        assert_int_equal(plan.expert_bytes, models[m].bytes);
        assert_true(plan.linear_bytes < (int64_t)2 << 30);
        fb_spec_free(spec);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add),          cmocka_unit_test(test_threads),
        cmocka_unit_test(test_outputs),      cmocka_unit_test(test_no_feedback),
        cmocka_unit_test(test_files),        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_expert_files), cmocka_unit_test(test_plan),
        cmocka_unit_test(test_other_model),  cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
