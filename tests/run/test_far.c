/* Far along a stream only distances count: a token after two billion others is predicted as after a few,
 * except for the rounding of a distant position's rotation. */
#include <math.h>
#include <stdlib.h>

#include "backend/single.h"
#include "fuse/fuse.h"
#include "model/model.h"
#include "support/support.h"

enum { SINKS = 3, WINDOW = 8, FIRST = 20, TOKENS = 70, COMPARED = 20, VOCAB = 320 };

typedef struct far_run {
    fb_model *model;
    fb_plan plan;
    fb_single single;
} far_run;

static void start(far_run *r, const char *name, const char *fuse) {
    fb_error err;
    bool automatic;
    r->model = fbt_golden_open(name);
    fb_plan_options plan = {.sinks = SINKS, .window = WINDOW};
    assert_ok(fb_fuse_parse(fuse, &plan.fuses, &automatic, &err), &err);
    assert_ok(fb_plan_make(&r->model->spec->program, &plan, &r->plan, &err), &err);
    fb_ring ring = {.sinks = SINKS, .window = WINDOW, .begin = FB_KV_GROUP, .size = WINDOW + 1};
    fb_executor_options options = {
        .threads = 2, .capacity = ring.begin + ring.size, .ring = ring, .chunk = 1, .epilogue_rows = 1};
    fb_bound bound = {&r->plan.program, r->model->weights};
    assert_ok(fb_single_open(&fb_backend_cpu, 0, &bound, &options, &r->single, &err), &err);
}

/* FIRST tokens from position 0, so that sinks and ring hold something; then TOKENS from position `far`, the
 * last logits of which are kept. After as many tokens as the layers' windows reach back together, nothing of
 * the first ones is left but the sinks. */
static void stream(far_run *r, int64_t far, float *logits) {
    fb_error err;
    for (int i = 0; i < FIRST + TOKENS; i++) {
        int kept = i - (FIRST + TOKENS - COMPARED);
        fb_row row = {
            .position = i < FIRST ? i : far + i - FIRST, .token = (i * 37 + 11) % VOCAB, .wanted = 1};
        float *to = logits + (kept > 0 ? kept : 0) * VOCAB;
        assert_ok(fb_single_run(&r->single, &row, 1, 1, to, NULL, &err), &err);
    }
}

static void only_distances_count(void **state) {
    (void)state;
    static const char *const names[] = {"neox-parallel", "llama-gqa-tied"};
    static const struct {
        int64_t far;
        double limit;
    } rows[] = {{1000, 1e-4}, {(1 << 24) + 1, 1e-4}, {(1ll << 31) + 12345, 1e-4}, {1ll << 36, 1e-4}};
    float *near = malloc(COMPARED * VOCAB * sizeof *near), *away = malloc(COMPARED * VOCAB * sizeof *away);
    assert_true(near && away);
    for (int n = 0; n < 4; n++) {
        far_run r;
        start(&r, names[n / 2], n % 2 ? "all,-head_argmax" : "none");
        assert_int_equal(r.plan.program.vocab, VOCAB);
        assert_true((FIRST + TOKENS - COMPARED) - FIRST > r.plan.program.layers * (WINDOW + 1));
        stream(&r, FIRST, near);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            double most = 0;
            stream(&r, rows[i].far, away);
            for (int k = 0; k < COMPARED * VOCAB; k++)
                most = fmax(most, fabs((double)near[k] - (double)away[k]));
            print_message("# %s, from position %lld: logits within %.1e\n", names[n / 2],
                          (long long)rows[i].far, most);
            assert_true(most <= rows[i].limit && most > 0); /* the same bits would be suspicious */
        }
        fb_single_close(&r.single);
        fb_model_free(r.model);
    }
    free(near);
    free(away);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_distances_count)};
    return cmocka_run_group_tests_name("far", tests, NULL, NULL);
}
