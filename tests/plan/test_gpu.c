/* A GPU's prices, on made-up machines whose totals can be worked out by hand. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "plan/price.h"
#include "support/support.h"

#define GRAPH FB_FUSE_BIT(FB_FUSE_GRAPH)

/* neox-parallel: 2 ops before the layers, 15 in each of 3, 2 after; fused 4 in each. */
enum { PLAIN_OPS = 2 + 3 * 15 + 2, FUSED_OPS = 2 + 3 * 4 + 2, VOCAB_SIZE = 320 };

static const fb_shape step = {1, 9, 1, 1, FB_F32, FB_F32};

/* Everything is free. */
static fb_machine free_gpu(void) {
    fb_machine m = {.gpu = true, .workers = 1, .act = FB_F32, .flops = INFINITY};
    for (int i = 0; i < FB_CURVE_POINTS; i++) m.bytes[i] = i + 1, m.bandwidth[i] = INFINITY;
    return m;
}

static double total(const fb_model *model, uint32_t fuses, const fb_machine *m, const fb_shape *shape,
                    fb_price *price) {
    fb_plan *plan = malloc(sizeof *plan);
    fb_error err;
    assert_non_null(plan);
    fb_plan_options options = {.fuses = fuses, .greedy = true, .graph = true};
    assert_ok(fb_plan_make(&model->spec->program, &options, plan, &err), &err);
    fb_price_plan(plan, model->weights, m, shape, price);
    free(plan);
    return price->total;
}

static uint32_t chosen(const fb_model *model, const fb_machine *m) {
    fb_plan_options options = {.fuses = FB_FUSE_ALL, .greedy = true, .graph = true};
    fb_error err;
    assert_ok(fb_plan_choose(&model->spec->program, model->weights, m, &step, &options, &err), &err);
    return options.fuses;
}

static void launches(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    fb_price *price = malloc(sizeof *price);
    assert_non_null(price);
    fb_machine m = free_gpu();
    m.small = 2, m.node = 1, m.launch = 5, m.step = 100, m.graph = 50;
    /* An op takes 3 on the device, its launch 5: the device waits 2 for each. */
    assert_true(total(model, 0, &m, &step, price) == PLAIN_OPS * 5 + 100);
    assert_true(price->wait == 2 && price->op[FB_BODY][0].seconds == 5 && price->op[FB_BODY][0].kernel == 2);
    assert_int_equal(price->layer_barriers, 15);
    assert_int_equal(price->step_barriers, PLAIN_OPS);
    /* Recorded, it waits for none. */
    assert_true(total(model, GRAPH, &m, &step, price) == PLAIN_OPS * 3 + 50);
    assert_true(price->wait == 0 && price->between == 50);
    assert_true(total(model, FB_FUSE_ALL & ~GRAPH, &m, &step, price) == FUSED_OPS * 5 + 100);
    assert_true(total(model, FB_FUSE_ALL, &m, &step, price) == FUSED_OPS * 3 + 50);
    assert_int_equal(price->layer_barriers, 4);
    /* So is a step that checks guesses: all its rows have logits. */
    const fb_shape checks = {5, 9, 5, 1, FB_F32, FB_F32};
    assert_true(total(model, GRAPH, &m, &checks, price) == PLAIN_OPS * 3 + 50);
    /* The host keeps ahead: launches cost nothing. */
    m.launch = 1;
    assert_true(total(model, 0, &m, &step, price) == PLAIN_OPS * 3 + 100);
    /* A prefill is never recorded; a chunk that is not the last has no epilogue. */
    const fb_shape chunk = {5, 0, 0, 1, FB_F32, FB_F32};
    assert_true(total(model, GRAPH, &m, &chunk, price) == (PLAIN_OPS - 2) * 3 + 100);
    free(price);
    fb_model_free(model);
}

static void bytes_flops_and_logits(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    fb_price *price = malloc(sizeof *price);
    assert_non_null(price);
    fb_machine m = free_gpu();
    m.term[FB_TERM_LOGITS].units = 1;
    assert_true(total(model, 0, &m, &step, price) == VOCAB_SIZE);
    assert_true(total(model, FB_FUSE_BIT(FB_FUSE_HEAD_ARGMAX), &m, &step, price) == 0);
    /* All bytes, activations too, at the bandwidth of each launch. */
    m = free_gpu();
    for (int i = 0; i < FB_CURVE_POINTS; i++) m.bandwidth[i] = 2;
    assert_true(fabs(total(model, 0, &m, &step, price) - (double)price->step_bytes / 2) < 1e-6);
    assert_true(price->bandwidth == 2);
    /* kv_append reads k and v of 64 floats each and writes as many: 1024 bytes, by the curve's second point.
     */
    for (int i = 0; i < FB_CURVE_POINTS; i++) m.bytes[i] = 512 << i, m.bandwidth[i] = i == 1 ? 4 : 1;
    total(model, 0, &m, &step, price);
    assert_true(price->op[FB_BODY][4].memory == 1024 / 4.0);
    /* add: 64 operations. A kernel takes whatever is longest. */
    m = free_gpu();
    m.flops = 2;
    total(model, 0, &m, &step, price);
    assert_true(price->op[FB_BODY][14].kernel == 32);
    m.small = 33;
    total(model, 0, &m, &step, price);
    assert_true(price->op[FB_BODY][14].kernel == 33);
    free(price);
    fb_model_free(model);
}

/* Norms in front of both projections of the layer: one op more to do in each, and its products. */
static void folded_norms(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    fb_price *price = malloc(sizeof *price);
    assert_non_null(price);
    fb_machine m = free_gpu();
    m.norm = (fb_work){1000, 1};
    const double qkv = 192 * 64, up = 256 * 64;
    assert_true(total(model, FB_FUSE_BIT(FB_FUSE_NORM_LINEAR), &m, &step, price) == 3 * (2000 + qkv + up));
    assert_true(total(model, FB_FUSE_ALL, &m, &step, price) == 3 * (1000 + qkv + up));
    const fb_shape many = {5, 0, 1, 1, FB_F32, FB_F32};
    assert_true(total(model, FB_FUSE_ALL, &m, &many, price) == 0);
    /* A machine where that costs more than it saves. */
    m.small = 1;
    assert_false(chosen(model, &m) & FB_FUSE_BIT(FB_FUSE_NORM_LINEAR));
    m.norm = (fb_work){0.5, 0};
    assert_true(chosen(model, &m) & FB_FUSE_BIT(FB_FUSE_NORM_LINEAR));
    free(price);
    fb_model_free(model);
}

static void folded_quantising(void **state) {
    (void)state;
    fb_model *model;
    fb_error err;
    assert_ok(fb_model_open("tests/data/gguf/neox-parallel-q8_0.gguf", &model, &err), &err);
    fb_price *price = malloc(sizeof *price);
    assert_non_null(price);
    fb_machine m = free_gpu();
    m.quantise.calls = 1;
    /* qkv, dense, up and down of three layers, and the head. */
    assert_true(total(model, 0, &m, &step, price) == 0);
    double sum = total(model, FB_FUSE_BIT(FB_FUSE_QUANT_GEMM), &m, &step, price);
    assert_true(sum == 3 * 4 || sum == 3 * 4 + 1);
    free(price);
    fb_model_free(model);
}

/* Quantised weights of every type are read as they lie in the file. */
static void quantised_weights(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    const fb_program *p = &model->spec->program;
    fb_price *price = malloc(sizeof *price);
    size_t count = (size_t)(p->slot_count * p->layers);
    fb_weight *weights = malloc(count * sizeof *weights);
    assert_true(price && weights);
    memcpy(weights, model->weights, count * sizeof *weights);
    const fb_op *qkv = &p->ops[FB_BODY][1];
    assert_int_equal(qkv->kind, FB_OP_LINEAR);
    weights[qkv->weights[0] * p->layers].dtype = FB_Q4_K;
    fb_machine m = free_gpu();
    fb_price_program(&(fb_bound){p, weights}, &m, &step, price);
    assert_int_equal(price->op[FB_BODY][1].cost.weight_bytes, (192 * 64 / 256 * 144 + 192 * 2));
    free(weights);
    free(price);
    fb_model_free(model);
}

static void an_assumed_gpu_keeps_all(void **state) {
    (void)state;
    fb_machine m;
    fb_machine_assume_gpu(&m, 0, FB_F32);
    for (int c = 0; fbt_cases[c]; c++) {
        fb_model *model = fbt_golden_open(fbt_cases[c]);
        assert_int_equal(chosen(model, &m), FB_FUSE_ALL);
        fb_model_free(model);
    }
}

/* Bits never depend on a measurement; the rest does. */
static void chooses_by_price(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    fb_machine m = free_gpu();
    m.small = 1, m.graph = 1e6;
    assert_int_equal(chosen(model, &m), FB_FUSE_ALL & ~GRAPH);
    m.graph = 0;
    assert_int_equal(chosen(model, &m), FB_FUSE_ALL);
    /* Few bytes are read fast and many slowly: attn_flash, which reads k and v, would better be left. */
    for (int i = 0; i < FB_CURVE_POINTS; i++) m.bytes[i] = 4000 + i, m.bandwidth[i] = i ? 1e-3 : INFINITY;
    assert_true(chosen(model, &m) & FB_FUSE_BIT(FB_FUSE_ATTN_FLASH));
    fb_model_free(model);
}

static void keeps_and_finds(void **state) {
    (void)state;
    static const struct {
        const char *key, *json;
    } damage[] = {{"version", "4"},  {"gpu", "\"another\""}, {"node_s", "-1"},
                  {"logit_s", NULL}, {"bandwidth", "[]"},    {"flops_per_s", "0"}};
    char *folder = fbt_dir_create();
    fb_machine saved, found;
    fb_error err;
    fb_machine_assume_gpu(&saved, 0, FB_F16);
    saved.node = 1.25e-6;
    saved.term[FB_TERM_LOGITS].units = 3e-9;
    saved.bandwidth[3] = 12345e6;
    assert_ok(fb_machine_save(folder, &saved, &err), &err);
    assert_true(fb_machine_load_gpu(folder, 0, FB_F16, &found));
    assert_true(found.gpu && fabs(found.node - saved.node) < 1e-12);
    assert_true(fabs(found.term[FB_TERM_LOGITS].units - 3e-9) < 1e-15);
    assert_true(fabs(found.bandwidth[3] - 12345e6) < 1);
    assert_false(fb_machine_load_gpu(folder, 0, FB_F32, &found));
    assert_false(fb_machine_load(folder, 1, "portable", FB_F16, &found));
    char *path = fbt_format("%s/gpu-%s-%s-f16.json", folder, saved.cpu, saved.isa);
    for (char *c = path + strlen(folder) + 1; *c; c++)
        if (*c == ' ') *c = '-';
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        assert_int_equal(fb_machine_save(folder, &saved, NULL), FB_OK);
        assert_true(fb_machine_load_gpu(folder, 0, FB_F16, &found));
        fbt_json_set(path, damage[i].key, damage[i].json);
        assert_false(fb_machine_load_gpu(folder, 0, FB_F16, &found));
    }
    free(path);
    fbt_dir_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches),          cmocka_unit_test(bytes_flops_and_logits),
        cmocka_unit_test(folded_norms),      cmocka_unit_test(folded_quantising),
        cmocka_unit_test(quantised_weights), cmocka_unit_test(an_assumed_gpu_keeps_all),
        cmocka_unit_test(chooses_by_price),  cmocka_unit_test(keeps_and_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
