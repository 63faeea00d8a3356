#include "bench/bench.h"
#include "fuse/tolerance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

static fb_bench_options small(const char *const *specs, int32_t count) {
    fb_bench_options o;
    fb_bench_options_default(&o);
    o.specs = specs;
    o.spec_count = count;
    o.prompt = 12;
    o.gen = 6;
    o.reps = 3;
    o.threads = 2;
    return o;
}

/* ---- the parts ---- */

static void ids_are_the_same_every_time(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_GOLDENS "/neox-parallel");
    int32_t a[200], b[200];
    int64_t different = 0;
    fb_bench_ids(model, a, 200);
    fb_bench_ids(model, b, 200);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(a[i], b[i]);
        assert_in_range(a[i], 0, 319);
        different += i > 0 && a[i] != a[i - 1];
    }
    assert_true(different > 190);
    fb_model_free(model);
}

#define TIGHT fb_fuse_tolerance(FB_F32, FB_F32, false, 2)

static void differences(void **state) {
    (void)state;
    const float a[] = {1, -4, 0}, b[] = {1, -4, -0.0f}, c[] = {1, -3.5f, 0}, bad[] = {1, NAN, 0};
    fb_bench_difference d = {.bit_identical = true};
    fb_bench_compare(&d, a, a, 3);
    assert_true(d.bit_identical && d.max_abs == 0 && d.largest == 4);
    assert_true(fb_bench_agrees(&d, true, TIGHT));
    fb_bench_compare(&d, a, b, 3);
    assert_true(!d.bit_identical && d.max_abs == 0); /* -0 is not 0 */
    assert_false(fb_bench_agrees(&d, true, TIGHT));
    assert_true(fb_bench_agrees(&d, false, TIGHT));
    fb_bench_compare(&d, a, c, 3);
    assert_true(d.max_abs == 0.5);
    assert_false(fb_bench_agrees(&d, false, TIGHT));
    fb_bench_compare(&d, a, bad, 3);
    fb_bench_compare(&d, a, a, 3);
    assert_true(isnan(d.max_abs)); /* and stays so */
    assert_false(fb_bench_agrees(&d, false, fb_fuse_tolerance(FB_BF16, FB_BF16, false, 2)));
    d = (fb_bench_difference){.bit_identical = true};
    fb_bench_compare(&d, bad, bad, 3);
    assert_false(fb_bench_agrees(&d, true, TIGHT)); /* the same NaN is no agreement */
}

static void ratios_are_paired(void **state) {
    (void)state;
    const double first[] = {2, 40, 9}, other[] = {1, 10, 3};
    fb_spread ratio;
    assert_ok(fb_bench_ratio(first, other, 3, &ratio, NULL), NULL);
    assert_true(ratio.low == 2 && ratio.median == 3 && ratio.high == 4);
}

/* Two logits that a tolerance makes interchangeable, and two that it does not. */
static void tokens_may_differ_in_a_tie_only(void **state) {
    (void)state;
    const float logits[] = {4, 4 - 0x1p-21f, 3};
    fb_bench_difference d = {.bit_identical = true, .largest = 4};
    fb_bench_compare_best(&d, logits, 0, 0);
    assert_true(d.bit_identical);
    fb_bench_compare_best(&d, logits, 0, 1);
    assert_false(d.bit_identical);
    assert_false(fb_bench_agrees(&d, true, TIGHT));
    assert_true(fb_bench_agrees(&d, false, TIGHT));
    fb_bench_compare_best(&d, logits, 0, 2);
    assert_false(fb_bench_agrees(&d, false, TIGHT));
    /* A cache of 16 bits allows 2 * 2^-11 * sqrt(3) * 4 more. */
    d = (fb_bench_difference){.largest = 4, .max_abs = 6.7e-3};
    assert_false(fb_bench_agrees(&d, false, TIGHT));
    assert_true(fb_bench_agrees(&d, false, fb_fuse_tolerance(FB_F32, FB_F16, false, 2)));
    d.max_abs = 6.9e-3;
    assert_false(fb_bench_agrees(&d, false, fb_fuse_tolerance(FB_F32, FB_F16, false, 2)));
}

/* ---- variants ---- */

static void check_times(const double *samples, const fb_spread *spread, int64_t reps) {
    for (int64_t i = 0; i < reps; i++) assert_true(samples[i] > 0 && isfinite(samples[i]));
    assert_true(spread->p10 <= spread->median && spread->median <= spread->p90);
    assert_true(spread->low <= spread->median && spread->median <= spread->high);
}

static void variants_agree_and_are_timed(void **state) {
    (void)state;
    const char *specs[] = {"none", "all", "all,-qkv_up", "none"};
    for (const char *const *name = fbt_cases; *name; name++) {
        char *path = fbt_format("%s/%s", FBT_GOLDENS, *name);
        fb_model *model = fbt_model_open(path);
        fb_bench_options o = small(specs, 4);
        o.exact = true;
        fb_bench_report *r;
        fb_error err;
        assert_ok(fb_bench_run(model, &o, &r, &err), &err);
        assert_true(r->agree);
        assert_int_equal(r->variant_count, 4);
        assert_int_equal(r->threads, 2);
        for (int i = 0; i < 4; i++) {
            fb_bench_variant *v = r->variants[i];
            assert_true(v->agrees && v->bit_identical && v->max_abs == 0);
            assert_int_equal(v->tokens_equal, o.gen + 1);
            check_times(v->tpot, &v->tpot_spread, o.reps);
            check_times(v->ttft, &v->ttft_spread, o.reps);
            check_times(v->prefill, &v->prefill_spread, o.reps);
            for (int64_t rep = 0; rep < o.reps; rep++) assert_true(v->ttft[rep] >= v->prefill[rep]);
        }
        assert_true(r->variants[0]->tpot_ratio.median == 1);
        assert_true(r->variants[1]->barriers_a_step < r->variants[0]->barriers_a_step);
        assert_int_equal(r->variants[3]->barriers_a_step, r->variants[0]->barriers_a_step);
        fb_bench_free(r);
        fb_model_free(model);
        free(path);
    }
}

static bool count_until(void *user, int64_t done, int64_t total) {
    int64_t *calls = user;
    assert_int_equal(++*calls, done);
    assert_int_equal(total, 3);
    return done < 2;
}

static void owner_can_stop(void **state) {
    (void)state;
    const char *specs[] = {"none"};
    fb_model *model = fbt_model_open(FBT_GOLDENS "/neox-parallel");
    fb_bench_options o = small(specs, 1);
    int64_t calls = 0;
    o.on_progress = count_until;
    o.user = &calls;
    fb_bench_report *r;
    fb_error err;
    fb_status status = fb_bench_run(model, &o, &r, &err);
    assert_refused(status, FB_ERROR_STOPPED, &err, "2 of 3");
    assert_null(r);
    assert_int_equal(calls, 2);
    fb_model_free(model);
}

static void bad_options(void **state) {
    (void)state;
    const char *good[] = {"none"}, *bad[] = {"none", "nothing"};
    fb_model *model = fbt_model_open(FBT_GOLDENS "/neox-parallel");
    fb_bench_report *r;
    fb_error err;
    fb_bench_options o = small(bad, 2);
    assert_refused(fb_bench_run(model, &o, &r, &err), FB_ERROR_USAGE, &err, "nothing|add_norm|head_argmax");
    o = small(good, 0);
    assert_refused(fb_bench_run(model, &o, &r, &err), FB_ERROR_USAGE, &err, "variants: 0");
    o = small(good, 1);
    o.reps = 0;
    assert_refused(fb_bench_run(model, &o, &r, &err), FB_ERROR_USAGE, &err, "reps: 0");
    o = small(good, 1);
    o.gen = 0;
    assert_refused(fb_bench_run(model, &o, &r, &err), FB_ERROR_USAGE, &err, "gen: 0");
    o = small(good, 1);
    o.prompt = 100;
    o.gen = 29;
    assert_refused(fb_bench_run(model, &o, &r, &err), FB_ERROR_USAGE, &err, "100|29|context|128");
    o.gen = INT64_MAX;
    assert_refused(fb_bench_run(model, &o, &r, &err), FB_ERROR_USAGE, &err, "context|128");
    fb_model_free(model);
}

/* ---- single fuses ---- */

static fb_bench_ops_options small_ops(void) {
    fb_bench_ops_options o;
    fb_bench_ops_options_default(&o);
    assert_true(o.prompt == 64 && o.gen == 64 && o.reps == 9);
    o.prompt = 12;
    o.gen = 6;
    o.reps = 3;
    o.threads = 2;
    return o;
}

static const fb_bench_op *find_op(const fb_bench_ops_report *r, const char *fuse, int64_t rows) {
    for (int64_t i = 0; i < r->count; i++)
        if (strcmp(r->ops[i]->fuse, fuse) == 0 && r->ops[i]->rows == rows) return r->ops[i];
    return NULL;
}

static void ops_are_those_that_apply(void **state) {
    (void)state;
    static const char *const neox[] = {"head_screen", "head_argmax", "attn_flash", "rope_kv",
                                       "down_add",    "bias_act",    "qkv_up",     "norm_linear",
                                       "add3",        "add_norm",    NULL};
    fb_model *model = fbt_model_open(FBT_GOLDENS "/neox-parallel");
    fb_bench_ops_options o = small_ops();
    fb_bench_ops_report *r;
    fb_error err;
    assert_ok(fb_bench_ops(model, &o, &r, &err), &err);
    assert_true(r->agree);
    assert_int_equal(r->count, 20);
    for (int i = 0; neox[i]; i++) {
        assert_non_null(find_op(r, neox[i], 1));
        assert_non_null(find_op(r, neox[i], o.prompt));
    }
    for (int64_t i = 0; i < r->count; i++) {
        const fb_bench_op *op = r->ops[i];
        assert_true(op->agrees);
        if (strcmp(op->fuse, "attn_flash") != 0) assert_true(op->bit_identical);
        check_times(op->plain, &op->plain_spread, o.reps);
        check_times(op->fused, &op->fused_spread, o.reps);
    }
    assert_true(isnan(find_op(r, "head_argmax", 1)->max_abs));
    fb_bench_ops_free(r);
    fb_model_free(model);
}

static double least(const double *samples, int64_t count) {
    double value = samples[0];
    for (int64_t i = 1; i < count; i++) value = fmin(value, samples[i]);
    return value;
}

/* Two additions are not the whole layer: only the ops that a fuse replaces count. Quietest samples, and a
 * factor of three where ten or more are expected. */
static void ops_count_what_is_replaced(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_bench_ops_options o = small_ops();
    o.prompt = 32;
    o.gen = 1;
    fb_bench_ops_report *r;
    fb_error err;
    assert_ok(fb_bench_ops(model, &o, &r, &err), &err);
    const fb_bench_op *adds = find_op(r, "add3", 32), *matrices = find_op(r, "norm_linear", 32);
    assert_true(least(adds->plain, o.reps) * 3 < least(matrices->plain, o.reps));
    assert_true(least(adds->fused, o.reps) * 3 < least(matrices->fused, o.reps));
    fb_bench_ops_free(r);
    fb_model_free(model);
}

/* ---- the picture of batches ---- */

static int count_of(const char *svg, const char *words) {
    int count = 0;
    for (const char *c = svg; (c = strstr(c, words)); c++) count++;
    return count;
}

/* The numbers of sequences come in any order, the curves from left to right. */
static char *draw_batches(const char *dir, const int64_t *sequences, int64_t count, int64_t any_order,
                          double milliseconds) {
    fb_bench_batch_line lines[16], *pointers[16];
    fb_bench_batch_report r = {
        .isa = "a<b", .threads = 1, .line_count = count, .lines = pointers, .any_order = any_order};
    for (int64_t i = 0; i < count; i++) {
        double t = milliseconds * 1e-3 * (double)(sequences[i] + 1);
        lines[i] = (fb_bench_batch_line){.sequences = sequences[i],
                                         .step = {.median = t, .p10 = t * 0.9, .p90 = t * 30},
                                         .floor = t * 0.3,
                                         .any_order = {.median = t * 0.8}};
        pointers[i] = &lines[i];
    }
    char *path = fbt_format("%s/x.svg", dir);
    fb_error err;
    assert_ok(fb_bench_batch_svg(&r, path, &err), &err);
    size_t size;
    char *svg = fbt_file_read(path, &size);
    svg = realloc(svg, size + 1);
    assert_non_null(svg);
    svg[size] = '\0';
    free(path);
    return svg;
}

static void batch_pictures(void **state) {
    (void)state;
    static const int64_t up[] = {1, 2, 4, 8}, down[] = {8, 4, 2, 1}, one[] = {3},
                         many[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 1024};
    static const struct {
        const int64_t *sequences;
        int64_t count, any_order;
        double milliseconds;
        int paths;
    } cases[] = {{up, 4, 0, 0.1, 3}, {up, 4, 1, 1234, 4}, {one, 1, 1, 1, 4}, {many, 16, 0, 1e-3, 3}};
    char *dir = fbt_dir_create();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *svg =
            draw_batches(dir, cases[i].sequences, cases[i].count, cases[i].any_order, cases[i].milliseconds);
        assert_int_equal(count_of(svg, "nan") + count_of(svg, "inf"), 0);
        assert_int_equal(count_of(svg, "<path "), cases[i].paths);
        /* Points, and lines between them. */
        assert_int_equal(count_of(svg, "<circle "), (cases[i].paths - 1) * cases[i].count);
        assert_int_equal(count_of(svg, "L"), cases[i].paths * (cases[i].count - 1));
        assert_int_equal(count_of(svg, ">with --invariant off<"), cases[i].any_order);
        assert_int_equal(count_of(svg, ", 1 thread, a&lt;b; "), 1);
        assert_int_equal(count_of(svg, "=\"-"), 0); /* all inside the page */
        assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
        free(svg);
    }
    char *rising = draw_batches(dir, up, 4, 0, 1), *falling = draw_batches(dir, down, 4, 0, 1);
    assert_string_equal(rising, falling);
    free(rising);
    free(falling);
    fb_bench_batch_report none = {.lines = NULL};
    fb_error err;
    assert_refused(fb_bench_batch_svg(&none, dir, &err), FB_ERROR_USAGE, &err, "batches: 0 lines|1 to");
    fbt_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_the_same_every_time),
        cmocka_unit_test(differences),
        cmocka_unit_test(ratios_are_paired),
        cmocka_unit_test(tokens_may_differ_in_a_tie_only),
        cmocka_unit_test(variants_agree_and_are_timed),
        cmocka_unit_test(owner_can_stop),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(ops_are_those_that_apply),
        cmocka_unit_test(ops_count_what_is_replaced),
        cmocka_unit_test(batch_pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
