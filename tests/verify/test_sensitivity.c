/* Models that amplify roundings: the proof of fusion raises no false alarm on them, and a wrong result is
 * still out of bounds. */
#include <stdlib.h>
#include <string.h>

#include "fuse/tolerance.h"
#include "model/model.h"
#include "support/random_model.h"
#include "verify/distance.h"
#include "verify/sensitivity.h"

/* Random models of every architecture. Of such models, the usual tolerance alone fails one in sixty. */
enum { MODELS = 60 };

static bool prove(const char *dir, const char *config, fb_dtype act, const char *kv) {
    fb_model *model = fbt_model_open(dir);
    fb_fusion_options o = {.size = sizeof o, .threads = 2, .act = act, .kv = kv, .fuse = "attn_flash"};
    fb_fusion_report *report;
    fb_error err;
    assert_ok(fb_verify_fusion(model, &o, &report, &err), &err);
    const fb_fusion_row *row = report->rows[0];
    if (!report->ok)
        fail_msg("%s, kv %s: %s: max abs %g, bound %g: %s", fb_dtype_name(act), kv, row->why, row->max_abs,
                 row->bound, config);
    bool sensitive = report->sensitive;
    fb_fusion_free(report);
    fb_model_free(model);
    return sensitive;
}

static void no_false_alarm(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(2);
    int sensitive = 0;
    for (int i = 0; i < MODELS / (FBT_SANITIZED ? 10 : 1); i++) {
        char *config, *dir = fbt_random_model(&random, fbt_architectures[i % 3], &config);
        for (int act = FB_F32; act <= FB_BF16; act++) sensitive += prove(dir, config, (fb_dtype)act, "act");
        sensitive += prove(dir, config, FB_F32, "f16");
        free(config);
        fbt_dir_remove(dir);
    }
    print_message("# bounds were measured %d times\n", sensitive);
}

/* ---- a wrong result ------------------------------------------------------------------------------------ */

/* Attention's scores are off by a hundredth. */
static void falsify(fb_model *model) {
    fb_program *p = &model->spec->program;
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++)
        if (p->ops[FB_BODY][i].kind == FB_OP_ATTN_SCORES) p->ops[FB_BODY][i].attr.scale *= 1.01f;
}

static bool out_of_bounds(const fb_tape *wrong, const fb_tape *plain, const fb_sensitivity *measured) {
    for (int64_t s = 0; s <= plain->states; s++) {
        fb_verify_row row = {0};
        fb_compare_state(wrong, plain, s, fb_fuse_tolerance(FB_F32, FB_F32, false, s), &row);
        fb_sensitivity_widen(measured, &row);
        if (!row.ok) return true;
    }
    return false;
}

/* Zeros are no answer, however sensitive the model is. */
static void zeros_are_wrong(const fb_tape *plain, const fb_sensitivity *measured) {
    fb_tape zeros = *plain;
    fb_verify_row row = {0};
    zeros.logits = calloc((size_t)(plain->tokens * plain->vocab), sizeof *zeros.logits);
    assert_non_null(zeros.logits);
    fb_compare_state(&zeros, plain, plain->states, fb_fuse_tolerance(FB_F32, FB_F32, false, plain->states),
                     &row);
    fb_sensitivity_widen(measured, &row);
    assert_false(row.ok);
    free(zeros.logits);
}

static bool catches(const char *dir) {
    fb_model *model = fbt_model_open(dir), *falsified = fbt_model_open(dir);
    fb_session_options o = {.size = sizeof o, .threads = 1, .fuse = "none", .kv = "act"};
    fb_script script;
    fb_tape plain, wrong;
    fb_sensitivity measured;
    fb_error err;
    falsify(falsified);
    assert_ok(fb_script_make(model, 0, &script, &err), &err);
    assert_ok(fb_tape_record_states(model, &o, &script, &plain, &err), &err);
    assert_ok(fb_tape_record_states(falsified, &o, &script, &wrong, &err), &err);
    double amount = fb_fuse_tolerance(FB_F32, FB_F32, false, 0) / 2;
    assert_ok(fb_sensitivity_measure(model, &o, &script, &plain, &plain, amount, &measured, &err), &err);
    bool caught = out_of_bounds(&wrong, &plain, &measured);
    zeros_are_wrong(&plain, &measured);
    fb_sensitivity_free(&measured);
    fb_tape_free(&wrong);
    fb_tape_free(&plain);
    fb_script_free(&script);
    fb_model_free(falsified);
    fb_model_free(model);
    return caught;
}

static void wrong_is_caught(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(2);
    int caught = 0, models = MODELS / (FBT_SANITIZED ? 10 : 1);
    for (int i = 0; i < models; i++) {
        char *config, *dir = fbt_random_model(&random, fbt_architectures[i % 3], &config);
        bool is = catches(dir);
        if (!is) print_message("not caught: %s\n", config);
        caught += is;
        free(config);
        fbt_dir_remove(dir);
    }
    /* The norm of a model two elements wide gives signs: hardly anything moves them. */
    assert_true(caught >= models - models / 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_false_alarm), cmocka_unit_test(wrong_is_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
