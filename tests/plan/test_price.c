#include "plan/price.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "model/model.h"
#include "support/support.h"

static double total(const fb_model *model, uint32_t fuses, const fb_machine *m, const fb_shape *shape,
                    fb_price *price) {
    fb_plan *plan = malloc(sizeof *plan);
    fb_error err;
    assert_non_null(plan);
    fb_plan_options options = {.fuses = fuses, .greedy = true};
    assert_ok(fb_plan_make(&model->spec->program, &options, plan, &err), &err);
    fb_price_program(&(fb_bound){&plan->program, model->weights}, m, shape, price);
    free(plan);
    return price->total;
}

/* With only one figure that is not zero, a total is a count times it. */
static void totals_add_up(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_shape shape = {1, 99, 1, 2, FB_F32, FB_F32};
    fb_price *price = malloc(sizeof *price);
    fb_machine m;
    assert_non_null(price);
    fb_machine_assume(&m, 2, FB_F32);
    m = (fb_machine){.workers = 2, .overlap = 1, .barrier = 1};
    for (int i = 0; i < FB_CURVE_POINTS; i++) m.bytes[i] = i + 1, m.bandwidth[i] = INFINITY;
    /* 2 before the layers, 15 in each of 8, 2 after; fused 2 in each. */
    assert_true(total(model, 0, &m, &shape, price) == 2 + 8 * 15 + 2);
    assert_int_equal(price->layer_barriers, 15);
    assert_true(total(model, FB_FUSE_ALL, &m, &shape, price) == 2 + 8 * 2 + 2);
    assert_int_equal(price->layer_barriers, 2);
    /* Bytes alone: the footprint over the bandwidth, and twice that for norms, whose one worker has half of
     * it.
     */
    m.barrier = 0;
    for (int i = 0; i < FB_CURVE_POINTS; i++) m.bandwidth[i] = 1;
    double norms = (8 * 2 + 1) * 2 * 256 * 2;
    assert_true(fabs(total(model, 0, &m, &shape, price) - (price->footprint + norms)) < 1);
    free(price);
    fb_model_free(model);
}

/* The price of qkv where the layers of `floats` have it as float16, the others as Q8_0. */
static double qkv_price(uint32_t floats, const fb_machine *m) {
    const fb_shape shape = {1, 9, 1, 2, FB_F32, FB_F32};
    fb_model *model = fbt_model_open("tests/data/gguf/neox-parallel-q8_0.gguf");
    const fb_program *p = &model->spec->program;
    fb_price *price = malloc(sizeof *price);
    int32_t qkv = 0;
    assert_non_null(price);
    while (p->ops[FB_BODY][qkv].kind != FB_OP_LINEAR) qkv++;
    for (int64_t layer = 0; layer < p->layers; layer++)
        if (floats >> layer & 1)
            model->weights[p->ops[FB_BODY][qkv].weights[0] * p->layers + layer].dtype = FB_F16;
    fb_model_note_dtypes(model);
    total(model, FB_FUSE_BIT(FB_FUSE_QUANT_GEMM), m, &shape, price);
    double seconds = price->op[FB_BODY][qkv].kernel;
    free(price);
    fb_model_free(model);
    return seconds;
}

/* Layers are priced by themselves: one may wait for memory, and another one compute. */
static void layers_have_their_own_price(void **state) {
    (void)state;
    fb_machine m = {.workers = 2, .overlap = 1};
    for (int i = 0; i < FB_CURVE_POINTS; i++) m.bytes[i] = i + 1, m.bandwidth[i] = 1;
    m.term[FB_TERM_ONE_Q8_0].units = 100;
    double integers = qkv_price(0, &m), floats = qkv_price(7, &m), one = qkv_price(2, &m);
    assert_true(integers > 2 * floats && floats > 0);
    assert_true(fabs(one - (2 * integers + floats) / 3) < 1e-6 * one);
}

static uint32_t chosen(const fb_model *model, const fb_machine *m) {
    fb_plan_options options = {.fuses = FB_FUSE_ALL, .greedy = true};
    fb_shape shape = {1, 60, 1, m->workers, FB_F32, FB_F32};
    fb_error err;
    assert_ok(fb_plan_choose(&model->spec->program, model->weights, m, &shape, &options, &err), &err);
    fb_price *price = malloc(sizeof *price);
    assert_non_null(price);
    double best = total(model, options.fuses, m, &shape, price);
    assert_true(best <= total(model, FB_FUSE_ALL, m, &shape, price));
    assert_true(best <= total(model, 0, m, &shape, price));
    free(price);
    return options.fuses;
}

static void keeps_what_is_free(void **state) {
    (void)state;
    fb_machine m;
    fb_machine_assume(&m, 2, FB_F32);
    for (int c = 0; fbt_cases[c]; c++) {
        fb_model *model = fbt_golden_open(fbt_cases[c]);
        assert_true(chosen(model, &m) & FB_FUSE_BIT(FB_FUSE_DOWN_ADD));
        fb_model_free(model);
    }
}

/* A fuse whose kernel is slow on a machine is not chosen there. */
/* What changes the bits of an answer is not chosen by measurement. */
static void keeps_the_bits(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_machine m;
    fb_machine_assume(&m, 2, FB_F32);
    m.term[FB_TERM_FLASH].units = 1e-6;
    fb_shape shape = {.rows = 1, .position = 64, .epilogue_rows = 1, .workers = 2, .act = FB_F32};
    fb_plan_options options = {.fuses = FB_FUSE_ALL, .greedy = true};
    fb_error err;
    assert_ok(fb_plan_choose(&model->spec->program, model->weights, &m, &shape, &options, &err), &err);
    assert_true(options.fuses & FB_FUSE_BIT(FB_FUSE_ATTN_FLASH));
    fb_model_free(model);
}

static void leaves_what_costs(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_machine m;
    fb_machine_assume(&m, 2, FB_F32);
    m.term[FB_TERM_BEST].calls = 1e-3;
    assert_false(chosen(model, &m) & FB_FUSE_BIT(FB_FUSE_HEAD_ARGMAX));
    fb_model_free(model);
}

static void choosing_is_cheap(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_machine m;
    fb_machine_assume(&m, 2, FB_F32);
    double best = INFINITY;
    for (int i = 0; i < 20; i++) {
        double began = fb_now();
        fb_plan_options options = {.fuses = FB_FUSE_ALL, .greedy = true};
        fb_shape shape = {1, 60, 1, 2, FB_F32, FB_F32};
        assert_int_equal(fb_plan_choose(&model->spec->program, model->weights, &m, &shape, &options, NULL),
                         FB_OK);
        best = fmin(best, fb_now() - began);
    }
    print_message("chosen in %.0f us\n", 1e6 * best);
    assert_true(best < 20e-3); /* under a millisecond without sanitizers */
    fb_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_add_up),     cmocka_unit_test(keeps_what_is_free),
        cmocka_unit_test(leaves_what_costs), cmocka_unit_test(keeps_the_bits),
        cmocka_unit_test(choosing_is_cheap), cmocka_unit_test(layers_have_their_own_price),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
