/* What guesses should save: the arithmetic by hand, and the rows of a report. */
#include "plan/draft.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/support.h"

/* A step takes 1, and 0.1 more for each row after the first. */
static const double step[FB_MAX_DRAFT + 1] = {1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7};

static void the_speedup_by_hand(void **state) {
    (void)state;
    int64_t best;
    assert_true(fabs(fb_draft_speedup(step, 0, 1, -1, &best) - 8 / 1.7) < 1e-12);
    assert_int_equal(best, 7);
    assert_true(fabs(fb_draft_speedup(step, 0.2, 0.5, 2, &best) - 1.75 / 1.6) < 1e-12);
    assert_int_equal(best, 2);
    /* 1.5 / 1.3, 1.75 / 1.6, 1.875 / 1.9: one guess is best. */
    assert_true(fabs(fb_draft_speedup(step, 0.2, 0.5, -1, &best) - 1.5 / 1.3) < 1e-12);
    assert_int_equal(best, 1);
    assert_true(fb_draft_speedup(step, 0.2, 0.2, -1, &best) == 1);
    assert_int_equal(best, 0);
}

static fb_plan_report *report_of(const fb_model *model) {
    fb_plan_report_options o;
    fb_plan_report *r;
    fb_error err;
    fb_plan_report_options_default(&o);
    o.prompt = o.gen = 4;
    o.threads = 1;
    assert_ok(fb_plan_report_make(model, &o, &r, &err), &err);
    assert_int_equal(r->draft_count, 2);
    return r;
}

static void check_steps(const fb_plan_report *r) {
    assert_true(r->rows_predicted[0] == r->fused->predicted);
    for (int i = 0; i <= FB_MAX_DRAFT; i++) {
        assert_true(r->rows_measured[i] > 0);
        assert_true(i == 0 || r->rows_predicted[i] >= r->rows_predicted[i - 1]);
    }
    assert_true(r->rows_predicted[FB_MAX_DRAFT] > r->rows_predicted[0]);
}

static void check_draft(const fb_plan_report *r, const fb_plan_draft *d) {
    int64_t best;
    assert_string_equal(d->why_not, "");
    for (int i = 0; i < FB_PLAN_CHANCES; i++) {
        assert_true(d->chance[i] > (i ? d->chance[i - 1] : 0) && d->chance[i] < 1);
        assert_true((d->speedup[i] > 1) == (d->guesses[i] > 0));
        assert_true((d->speedup[i] > 1) == (d->chance[i] > d->break_even));
        assert_true(i == 0 || d->speedup[i] >= d->speedup[i - 1]);
    }
    if (isnan(d->break_even)) return;
    assert_true(fb_draft_speedup(r->rows_predicted, d->guess, d->break_even + 1e-6, -1, &best) > 1);
    assert_true(fb_draft_speedup(r->rows_predicted, d->guess, d->break_even - 1e-6, -1, &best) == 1);
}

static void a_report_has_rows(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_plan_report *r = report_of(model);
    const fb_plan_draft *ngram = r->drafts[0], *q4 = r->drafts[1];
    check_steps(r);
    assert_string_equal(ngram->source, "ngram");
    assert_true(ngram->guess == 0);
    check_draft(r, ngram);
    assert_string_equal(q4->source, "q4");
    assert_true(q4->guess > 0);
    /* Sanitizers slow down some kernels more than others. */
    if (!FBT_SANITIZED) assert_true(q4->guess < r->rows_predicted[0]);
    check_draft(r, q4);
    fb_plan_report_free(r);
    fb_model_free(model);
}

/* Nothing becomes smaller. */
static void weights_that_are_small_already(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *file = fbt_format("%s/q4.gguf", dir);
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_quantize_options o;
    fb_error err;
    fb_quantize_options_default(&o);
    o.type = o.head = FB_Q4_0;
    assert_ok(fb_model_quantize(model, file, &o, NULL, &err), &err);
    fb_model_free(model);
    model = fbt_model_open(file);
    fb_plan_report *r = report_of(model);
    check_draft(r, r->drafts[0]);
    assert_non_null(strstr(r->drafts[1]->why_not, "as q4_1"));
    fb_plan_report_free(r);
    fb_model_free(model);
    unlink(file);
    free(file);
    fbt_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_speedup_by_hand),
        cmocka_unit_test(a_report_has_rows),
        cmocka_unit_test(weights_that_are_small_already),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
