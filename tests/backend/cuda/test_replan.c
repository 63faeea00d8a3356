/* A scheduler's plan on a device while answers are being written: recorded steps and the persistent kernel
 * come and go, steps are timed launch by launch, and bits stay those of a session. Emulated kernels are slow:
 * few tokens. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_harness.h"
#include "support/answers.h"

enum { PROMPT = 9, TOKENS = 8 };

static fb_model *model;
static int32_t prompt[3][PROMPT];

static fb_session_options session_of(const char *fuse) {
    fb_session_options o;
    fb_session_options_default(&o);
    o.backend = "cuda";
    o.act = FB_F16;
    o.fuse = fuse;
    return o;
}

static fb_scheduler *scheduler_of(const char *fuse) {
    fb_session_options session = session_of(fuse);
    fb_scheduler_options options;
    fb_scheduler *s;
    fb_error err;
    fb_scheduler_options_default(&options);
    options.sequences = 4;
    assert_ok(fb_scheduler_create(model, &session, &options, &s, &err), &err);
    return s;
}

static void alone(const char *fuse, int which, fbt_heard *out) {
    fb_session_options session = session_of(fuse);
    fbt_alone(model, &session, prompt[which], PROMPT, TOKENS, out);
}

static void step(fb_scheduler *s) {
    bool busy;
    fb_error err;
    assert_ok(fb_scheduler_step(s, &busy, &err), &err);
}

static void fuse(fb_scheduler *s, const char *list) {
    fb_error err;
    assert_ok(fb_scheduler_fuse(s, list, &err), &err);
}

static fb_scheduler_stats stats_of(fb_scheduler *s) {
    fb_scheduler_stats stats;
    fb_scheduler_get_stats(s, &stats);
    return stats;
}

static fb_fuse_state state_of(fb_scheduler *s, const char *name) {
    fb_fuse_state state;
    for (int i = 0; fb_scheduler_fuse_state(s, i, &state); i++)
        if (strcmp(state.name, name) == 0) return state;
    fail_msg("no fuse %s", name);
    return state;
}

/* `step` needs `graph`, and is within a bound: without graph, answers that have begun end first. */
static void step_waits(void **state) {
    (void)state;
    fbt_heard heard[2], with, without;
    fb_scheduler *s = scheduler_of("all");
    memset(heard, 0, sizeof heard);
    alone("all", 0, &with);
    alone("all,-graph", 1, &without);
    assert_true(state_of(s, "graph").on && state_of(s, "graph").bit);
    assert_true(state_of(s, "step").on && !state_of(s, "step").bit);
    fbt_submit(s, model, NULL, prompt[0], PROMPT, TOKENS, &heard[0]);
    step(s);
    step(s);
    assert_int_equal(state_of(s, "step").calls, 1);
    assert_int_equal(stats_of(s).layer_barriers, 1);
    fuse(s, "all,-graph");
    fbt_submit(s, model, NULL, prompt[1], PROMPT, TOKENS, &heard[1]);
    step(s);
    assert_int_equal(stats_of(s).plan_pending, 1);
    assert_int_equal(stats_of(s).running, 1);
    fbt_run_all(s);
    assert_int_equal(state_of(s, "step").calls, TOKENS - 1);
    assert_int_equal(state_of(s, "graph").calls, TOKENS - 1);
    assert_true(stats_of(s).layer_barriers > 1);
    fbt_check_same(&heard[0], &with);
    fbt_check_same(&heard[1], &without);
    fb_scheduler_free(s);
}

/* Without step, every other fuse comes and goes in the middle of answers. */
static void bit_fuses(void **state) {
    (void)state;
    static const char *const lists[] = {"all,-step,-graph",    "all,-step",       "attn_flash,graph",
                                        "attn_flash,rope_kv",  "all,-step,-qkv",  "attn_flash",
                                        "all,-step,-down_add", "attn_flash,graph"};
    fbt_heard heard[3], wanted[3];
    fb_scheduler *s = scheduler_of("all,-step");
    memset(heard, 0, sizeof heard);
    for (int i = 0; i < 3; i++) alone("all,-step", i, &wanted[i]);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (i < 3) fbt_submit(s, model, NULL, prompt[i], PROMPT, TOKENS, &heard[i]);
        step(s);
        fuse(s, lists[i]);
        assert_int_equal(stats_of(s).plan_pending, 0);
    }
    fbt_run_all(s);
    assert_int_equal(stats_of(s).plan_changes, sizeof lists / sizeof *lists);
    for (int i = 0; i < 3; i++) fbt_check_same(&heard[i], &wanted[i]);
    fb_scheduler_free(s);
}

/* Timed steps are launched op by op; the others are recorded still. */
static void timed_steps(void **state) {
    (void)state;
    fbt_heard heard = {.count = 0}, wanted;
    fb_timeline *t;
    fb_scheduler *s = scheduler_of("all");
    fb_error err;
    alone("all", 2, &wanted);
    fbt_submit(s, model, NULL, prompt[2], PROMPT, TOKENS, &heard);
    for (int i = 0; i < 3; i++) step(s);
    assert_ok(fb_scheduler_profile(s, 3, &err), &err);
    for (int i = 0; i < 3; i++) step(s);
    assert_int_equal(state_of(s, "graph").calls, 2);
    assert_int_equal(stats_of(s).layer_barriers, 1); /* of the last step that was not timed */
    fbt_run_all(s);
    assert_int_equal(state_of(s, "graph").calls, TOKENS - 1 - 3);
    fbt_check_same(&heard, &wanted);
    assert_ok(fb_scheduler_timeline(s, &t, &err), &err);
    assert_non_null(t);
    assert_int_equal(t->rows, 1);
    assert_int_equal(t->steps, 2);
    assert_true(t->op_count > 3 && t->op_seconds > 0);
    fb_timeline_free(t);
    fb_scheduler_free(s);
}

/* Logits of a prompt, while another answer decodes. */
static void scores(void **state) {
    (void)state;
    fbt_heard heard[2], wanted[2];
    fb_request_options o;
    fb_scheduler *s = scheduler_of("all");
    fb_request_options_default(&o);
    o.prompt_logits = 1;
    memset(heard, 0, sizeof heard);
    for (int i = 0; i < 2; i++) {
        alone("all", i, &wanted[i]);
        fbt_submit(s, model, i ? &o : NULL, prompt[i], PROMPT, TOKENS, &heard[i]);
        step(s);
    }
    fbt_run_all(s);
    for (int i = 0; i < 2; i++) fbt_check_same(&heard[i], &wanted[i]);
    assert_int_equal(heard[1].prompt_count, PROMPT);
    assert_memory_equal(heard[1].prompt, wanted[1].prompt, PROMPT * sizeof *heard[1].prompt);
    assert_memory_equal(heard[1].scores, wanted[1].scores, PROMPT * sizeof *heard[1].scores);
    fb_scheduler_free(s);
}

static int open_model(void **state) {
    (void)state;
    model = fbt_golden_open("llama-gqa-tied");
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < PROMPT; j++) prompt[i][j] = (j * (7 + i) + 3 * i + 1) % 90;
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fb_model_free(model);
    return 0;
}

int main(void) {
    const char *given = getenv("FUSEBOX_CUDA_LIBRARY");
    if (!given || !*given || strcmp(given, "none") == 0) fb_cuda_library(cuda_emulated_path(), NULL);
    setenv("FUSEBOX_EMULATE_SMS", "4", 0); /* few, because a cooperative launch runs all its blocks at once */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(step_waits, open_model, close_model),
        cmocka_unit_test_setup_teardown(bit_fuses, open_model, close_model),
        cmocka_unit_test_setup_teardown(timed_steps, open_model, close_model),
        cmocka_unit_test_setup_teardown(scores, open_model, close_model),
    };
    return cuda_run_group("replan", tests, 4, NULL);
}
