/* Another plan while answers are being written: bit-identical fuses change nothing but the plan, others wait
 * until no answer is in the middle. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/answers.h"

enum { ANSWERS = 4, PROMPT = 37, TOKENS = 14 };

static fb_model *story;

static int open_model(void **state) {
    (void)state;
    story = fbt_model_open(FBT_STORYTELLER);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fb_model_free(story);
    return 0;
}

static fb_session_options session_of(const char *fuse) {
    fb_session_options o;
    fb_session_options_default(&o);
    o.backend = "cpu";
    o.threads = 2;
    o.fuse = fuse;
    return o;
}

static fb_scheduler *scheduler_of(const fb_model *model, const char *fuse, fb_scheduler_options *options) {
    fb_session_options session = session_of(fuse);
    fb_scheduler *s;
    fb_error err;
    assert_ok(fb_scheduler_create(model, &session, options, &s, &err), &err);
    return s;
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

static void fill(int32_t *prompt, int64_t count, int which, int64_t vocab) {
    for (int64_t i = 0; i < count; i++) prompt[i] = (int32_t)((i * (7 + which) + 3 + 11 * which) % vocab);
}

static int64_t vocab_of(const fb_model *model) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    return info.vocab;
}

/* ---- fuses that are bit-identical ---- */

/* Off, and on again, while four answers are in all parts of their prompt and answer. */
static void flip_one(const fb_model *model, const char *name, const char *with, const char *without,
                     const fbt_heard *wanted, int32_t prompt[ANSWERS][PROMPT]) {
    fbt_heard heard[ANSWERS];
    fb_scheduler_options options;
    fb_scheduler_options_default(&options);
    options.rows = 32; /* a prompt takes two steps */
    options.stretch = 0;
    fb_scheduler *s = scheduler_of(model, with, &options);
    memset(heard, 0, sizeof heard);
    for (int i = 0; i < ANSWERS; i++) {
        fbt_submit(s, model, NULL, prompt[i], PROMPT, TOKENS, &heard[i]);
        step(s);
        fuse(s, i % 2 ? with : without);
        assert_int_equal(stats_of(s).plan_pending, 0);
        assert_int_equal(state_of(s, name).next, i % 2);
        step(s);
        assert_int_equal(state_of(s, name).on, i % 2);
    }
    assert_int_equal(stats_of(s).running, ANSWERS);
    assert_int_equal(stats_of(s).plan_changes, ANSWERS);
    fbt_run_all(s);
    for (int i = 0; i < ANSWERS; i++) fbt_check_same(&heard[i], &wanted[i]);
    fb_scheduler_free(s);
}

/* Every fuse that the model can have: without it, or if others take its ops, with no other one but
 * attn_flash. */
static void flip_all(const fb_model *model, uint64_t *flipped) {
    int32_t prompt[ANSWERS][PROMPT];
    fbt_heard wanted[ANSWERS];
    fb_session_options session = session_of("all");
    fb_scheduler *s = scheduler_of(model, "all", NULL);
    fb_fuse_info info;
    for (int i = 0; i < ANSWERS; i++) {
        fill(prompt[i], PROMPT, i, vocab_of(model));
        fbt_alone(model, &session, prompt[i], PROMPT, TOKENS, &wanted[i]);
    }
    for (int i = 0; fb_model_fuse(model, i, &info); i++) {
        bool on = state_of(s, info.name).on;
        if (!info.bit || info.greedy || !strstr(info.backends, "cpu") || (!on && info.why_not)) continue;
        *flipped |= 1u << i;
        if (fbt_passes_over(5)) continue;
        char *with = on ? fbt_format("all") : fbt_format("attn_flash,%s", info.name),
             *without = on ? fbt_format("all,-%s", info.name) : fbt_format("attn_flash");
        flip_one(model, info.name, with, without, wanted, prompt);
        free(with);
        free(without);
    }
    fb_scheduler_free(s);
}

static void flip_quantised(const char *path, uint64_t *flipped) {
    char *dir = fbt_dir_create(), *file = fbt_format("%s/quantised.gguf", dir);
    fb_model *model = fbt_model_open(path), *quantised;
    fb_quantize_options quantize;
    fb_error err;
    fb_quantize_options_default(&quantize);
    assert_ok(fb_model_quantize(model, file, &quantize, NULL, &err), &err);
    quantised = fbt_model_open(file);
    flip_all(quantised, flipped);
    fb_model_free(quantised);
    fb_model_free(model);
    free(file);
    fbt_dir_remove(dir);
}

/* Every fuse of the CPU that is bit-identical and not for greedy sessions is flipped with one of these. */
static void bit_fuses(void **state) {
    (void)state;
    static const char *const goldens[] = {"gpt2", "neox-serial", "gemma2", "mixtral", "llama-llama3-bias"};
    uint64_t flipped = 0;
    flip_all(story, &flipped);
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        fb_model *model = fbt_golden_open(goldens[i]);
        flip_all(model, &flipped);
        fb_model_free(model);
    }
    flip_quantised(FBT_STORYTELLER, &flipped);
    flip_quantised(FBT_GOLDENS "/llama-gqa-tied", &flipped);
    fb_fuse_info info;
    for (int i = 0; fb_model_fuse(story, i, &info); i++) {
        bool here = info.bit && !info.greedy && strstr(info.backends, "cpu");
        if (here != ((flipped >> i) & 1)) print_message("%s is not flipped\n", info.name);
        assert_int_equal(here, (flipped >> i) & 1);
    }
}

/* What ran before stays counted; what a step makes is that of the plan that runs. */
static void calls_are_counted_across_plans(void **state) {
    (void)state;
    int32_t prompt[PROMPT];
    fbt_heard heard = {.count = 0};
    fb_scheduler *s = scheduler_of(story, "all", NULL);
    fill(prompt, PROMPT, 1, vocab_of(story));
    fbt_submit(s, story, NULL, prompt, PROMPT, TOKENS, &heard);
    for (int i = 0; i < 4; i++) step(s);
    fb_fuse_state qkv = state_of(s, "qkv_up"), before = state_of(s, "norm_linear");
    assert_true(qkv.on && qkv.bit && qkv.calls_per_step > 0);
    assert_int_equal(qkv.calls, 4 * qkv.calls_per_step);
    fb_scheduler_stats full = stats_of(s);
    assert_true(full.barriers > 0 && full.layer_barriers > 0);
    assert_int_equal(full.last_rows, 1);
    assert_int_equal(full.last_decode, 1);
    assert_true(full.last_seconds > 0 && full.last_seconds < full.step_seconds);
    fuse(s, "all,-qkv_up");
    for (int i = 0; i < 3; i++) step(s);
    fb_fuse_state off = state_of(s, "qkv_up"), other = state_of(s, "norm_linear");
    assert_false(off.on);
    assert_int_equal(off.calls, qkv.calls);
    assert_int_equal(off.calls_per_step, 0);
    assert_true(other.calls > before.calls);
    assert_true(stats_of(s).barriers > full.barriers);
    fuse(s, "none");
    step(s);
    assert_true(stats_of(s).layer_barriers > full.layer_barriers);
    fuse(s, "all");
    fbt_run_all(s);
    assert_int_equal(state_of(s, "qkv_up").calls, qkv.calls + (TOKENS - 8) * qkv.calls_per_step);
    fb_fuse_state none;
    assert_false(fb_scheduler_fuse_state(s, -1, &none));
    fb_scheduler_free(s);
}

/* Nothing runs: the next step takes the plan, and says that there is nothing to do. */
static void between_answers(void **state) {
    (void)state;
    fb_scheduler *s = scheduler_of(story, "all", NULL);
    char *before, *after, *list;
    bool busy;
    fb_error err;
    assert_ok(fb_scheduler_plan_text(s, &before, &err), &err);
    fuse(s, "none");
    assert_true(state_of(s, "qkv_up").on && !state_of(s, "qkv_up").next);
    assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    assert_false(busy);
    assert_false(state_of(s, "qkv_up").on);
    assert_ok(fb_scheduler_plan_text(s, &after, &err), &err);
    assert_string_not_equal(before, after);
    assert_null(strstr(after, "qkv_up"));
    assert_ok(fb_scheduler_fuse_text(s, &list, &err), &err);
    assert_string_equal(list, "none");
    fb_free(list);
    fb_free(after);
    fuse(s, NULL); /* auto */
    assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    assert_ok(fb_scheduler_fuse_text(s, &list, &err), &err);
    assert_string_equal(list, "auto");
    fb_free(list);
    fb_free(before);
    fb_scheduler_free(s);
}

/* They are refused, and neither the plan nor the one that is pending changes. */
static void bad_lists(void **state) {
    (void)state;
    static const struct {
        const char *list, *words;
    } bad[] = {{"", "fuse: \"\"|none, all, auto"},
               {"qkvv", "fuse: \"qkvv\"|none, all, auto"},
               {"-qkv", "fuse: \"-qkv\"|all,-qkv"},
               {"all,-qkvv", "fuse: \"-qkvv\""},
               {"none,", "fuse: \"\""},
               {"all,auto", "fuse: \"auto\""}};
    int32_t prompt[PROMPT];
    fbt_heard heard = {.count = 0}, wanted;
    fb_session_options session = session_of("all");
    fb_scheduler *s = scheduler_of(story, "all", NULL);
    char *before, *after;
    fb_error err;
    fill(prompt, PROMPT, 2, vocab_of(story));
    fbt_alone(story, &session, prompt, PROMPT, TOKENS, &wanted);
    fbt_submit(s, story, NULL, prompt, PROMPT, TOKENS, &heard);
    step(s);
    assert_ok(fb_scheduler_plan_text(s, &before, &err), &err);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (i == 3) fuse(s, "all,-attn_flash");
        assert_refused(fb_scheduler_fuse(s, bad[i].list, &err), FB_ERROR_USAGE, &err, bad[i].words);
        step(s);
        assert_int_equal(stats_of(s).plan_pending, i >= 3);
        assert_int_equal(state_of(s, "attn_flash").next, i < 3);
    }
    assert_ok(fb_scheduler_plan_text(s, &after, &err), &err);
    assert_string_equal(before, after);
    assert_int_equal(stats_of(s).plan_changes, 0);
    fbt_run_all(s);
    fbt_check_same(&heard, &wanted);
    fb_free(before);
    fb_free(after);
    fb_scheduler_free(s);
}

/* ---- fuses within a bound ---- */

#define WITHOUT_FLASH "all,-attn_flash"

/* Two answers alone with each of the two plans, whose bits differ. */
typedef struct both {
    int32_t prompt[ANSWERS][100];
    fbt_heard flash[ANSWERS], plain[ANSWERS];
} both;

/* Made once for each length. */
static const both *make_both(int64_t count) {
    static both made[2];
    both *b = &made[count != PROMPT];
    if (b->flash[0].count) return b;
    fb_session_options flash = session_of("all"), plain = session_of(WITHOUT_FLASH);
    for (int i = 0; i < (count == PROMPT ? ANSWERS : 1); i++) {
        fill(b->prompt[i], count, i, vocab_of(story));
        fbt_alone(story, &flash, b->prompt[i], count, TOKENS, &b->flash[i]);
        fbt_alone(story, &plain, b->prompt[i], count, TOKENS, &b->plain[i]);
        assert_memory_not_equal(b->flash[i].logits, b->plain[i].logits, sizeof(uint64_t) * TOKENS);
    }
    return b;
}

/* Answers that have begun end with the old plan, those that wait start with the new one. */
static void a_bound_waits(void **state) {
    (void)state;
    const both *b = make_both(PROMPT);
    fbt_heard heard[ANSWERS];
    fb_scheduler *s = scheduler_of(story, "all", NULL);
    memset(heard, 0, sizeof heard);
    assert_false(state_of(s, "attn_flash").bit);
    for (int i = 0; i < 2; i++) fbt_submit(s, story, NULL, b->prompt[i], PROMPT, TOKENS, &heard[i]);
    step(s);
    fuse(s, WITHOUT_FLASH);
    for (int i = 2; i < 4; i++) fbt_submit(s, story, NULL, b->prompt[i], PROMPT, TOKENS, &heard[i]);
    for (int i = 0; i < 4; i++) {
        step(s);
        fb_scheduler_stats stats = stats_of(s);
        assert_int_equal(stats.plan_pending, 1);
        assert_int_equal(stats.running, 2);
        assert_int_equal(stats.waiting, 2);
        assert_true(state_of(s, "attn_flash").on && !state_of(s, "attn_flash").next);
    }
    fbt_run_all(s);
    assert_int_equal(stats_of(s).plan_changes, 1);
    assert_false(state_of(s, "attn_flash").on);
    for (int i = 0; i < ANSWERS; i++) fbt_check_same(&heard[i], i < 2 ? &b->flash[i] : &b->plain[i]);
    fb_scheduler_free(s);
}

/* A later list replaces the pending one: one that takes it back, and one that changes other fuses only. */
static void a_pending_plan_is_replaced(void **state) {
    (void)state;
    const both *b = make_both(PROMPT);
    static const char *const back[] = {"all", "all,-qkv_up"};
    for (int which = 0; which < 2; which++) {
        fbt_heard heard[2];
        fb_scheduler *s = scheduler_of(story, "all", NULL);
        memset(heard, 0, sizeof heard);
        fbt_submit(s, story, NULL, b->prompt[0], PROMPT, TOKENS, &heard[0]);
        step(s);
        fuse(s, WITHOUT_FLASH);
        fbt_submit(s, story, NULL, b->prompt[1], PROMPT, TOKENS, &heard[1]);
        for (int i = 0; i < 3; i++) step(s);
        assert_int_equal(stats_of(s).running, 1);
        fuse(s, "none"); /* pending, too */
        step(s);
        assert_int_equal(stats_of(s).plan_pending, 1);
        fuse(s, back[which]);
        assert_int_equal(stats_of(s).plan_pending, 0);
        step(s);
        assert_int_equal(stats_of(s).running, 2);
        assert_int_equal(stats_of(s).plan_changes, which);
        assert_int_equal(state_of(s, "qkv_up").on, which == 0);
        fbt_run_all(s);
        for (int i = 0; i < 2; i++) fbt_check_same(&heard[i], &b->flash[i]);
        fb_scheduler_free(s);
    }
}

/* With `exact`, every fuse is bit-identical. */
static void exact_never_waits(void **state) {
    (void)state;
    int32_t prompt[PROMPT];
    fbt_heard heard = {.count = 0}, wanted;
    fb_session_options session = session_of("all");
    session.exact = true;
    fb_scheduler *s;
    fb_error err;
    fill(prompt, PROMPT, 1, vocab_of(story));
    fbt_alone(story, &session, prompt, PROMPT, TOKENS, &wanted);
    assert_ok(fb_scheduler_create(story, &session, NULL, &s, &err), &err);
    assert_true(state_of(s, "attn_flash").bit);
    fbt_submit(s, story, NULL, prompt, PROMPT, TOKENS, &heard);
    for (int i = 0; i < 8; i++) {
        step(s);
        fuse(s, i % 2 ? "all" : WITHOUT_FLASH);
        assert_int_equal(stats_of(s).plan_pending, 0);
    }
    assert_int_equal(stats_of(s).plan_changes, 7);
    fbt_run_all(s);
    fbt_check_same(&heard, &wanted);
    fb_scheduler_free(s);
}

/* Blocks of the old plan are not found again; those of the same bits are. */
static void prefixes_are_of_the_plan(void **state) {
    (void)state;
    const both *b = make_both(100);
    fb_scheduler_options options;
    fb_scheduler_options_default(&options);
    options.block = 16;
    static const struct {
        const char *list;
        int64_t cached;
        bool flash;
    } change[] = {{"all", 0, true},    {"all,-qkv_up", 96, true}, {WITHOUT_FLASH, 0, false},
                  {"none", 96, false}, {"all", 0, true},          {"auto,-norm_linear", 96, true}};
    fb_scheduler *s = scheduler_of(story, "none", &options);
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        fbt_heard heard = {.count = 0};
        const char *list = strcmp(change[i].list, "auto,-norm_linear") ? change[i].list : "all,-norm_linear";
        fuse(s, list);
        fbt_submit(s, story, NULL, b->prompt[0], 100, TOKENS, &heard);
        fbt_run_all(s);
        assert_int_equal(heard.cached, change[i].cached);
        fbt_check_same(&heard, change[i].flash ? &b->flash[0] : &b->plain[0]);
    }
    fb_scheduler_free(s);
}

/* Answers that were put back have begun: they end with the old plan, although there is a new one. */
static void put_back_answers_are_not_starved(void **state) {
    (void)state;
    const both *b = make_both(PROMPT);
    fb_scheduler_options options;
    fb_scheduler_options_default(&options);
    options.block = 16;
    options.cache_tokens = 112;
    options.stretch = 0;
    fbt_heard heard[3];
    fb_scheduler *s = scheduler_of(story, "all", &options);
    fb_request_options first;
    memset(heard, 0, sizeof heard);
    for (int i = 0; i < 2; i++) fbt_submit(s, story, NULL, b->prompt[i], PROMPT, TOKENS, &heard[i]);
    for (int i = 0; i < 100 && stats_of(s).preempted == 0; i++) step(s);
    assert_true(stats_of(s).preempted > 0);
    assert_true(stats_of(s).waiting > 0);
    fuse(s, WITHOUT_FLASH);
    fb_request_options_default(&first);
    first.priority = 10; /* it would go first */
    fbt_submit(s, story, &first, b->prompt[2], PROMPT, TOKENS, &heard[2]);
    fbt_run_all(s);
    for (int i = 0; i < 3; i++) fbt_check_same(&heard[i], i < 2 ? &b->flash[i] : &b->plain[i]);
    assert_int_equal(stats_of(s).plan_changes, 1);
    fb_scheduler_free(s);
}

/* The last answer of the old plan is cancelled: the scheduler is still busy, for those that wait. */
static void cancelled_while_pending(void **state) {
    (void)state;
    const both *b = make_both(PROMPT);
    fbt_heard heard[2];
    fb_scheduler *s = scheduler_of(story, "all", NULL);
    memset(heard, 0, sizeof heard);
    uint64_t id = fbt_submit(s, story, NULL, b->prompt[0], PROMPT, TOKENS, &heard[0]);
    step(s);
    fuse(s, WITHOUT_FLASH);
    fbt_submit(s, story, NULL, b->prompt[1], PROMPT, TOKENS, &heard[1]);
    step(s);
    fb_scheduler_cancel(s, id);
    fbt_run_all(s);
    assert_int_equal(heard[0].finish, FB_FINISH_CANCELLED);
    fbt_check_same(&heard[1], &b->plain[1]);
    /* A plan that is pending when the scheduler ends. */
    fbt_submit(s, story, NULL, b->prompt[0], PROMPT, TOKENS, &(fbt_heard){.count = 0});
    step(s);
    fuse(s, "all");
    fb_scheduler_free(s);
}

/* A plan does not wait for somebody who lets an answer go on some day: it goes on by itself, and ends with
 * the old plan. One that has not begun stays paused. */
static void paused_while_pending(void **state) {
    (void)state;
    const both *b = make_both(PROMPT);
    fbt_heard heard[2];
    fb_scheduler *s = scheduler_of(story, "all", NULL);
    bool busy = true;
    fb_error err;
    memset(heard, 0, sizeof heard);
    uint64_t begun = fbt_submit(s, story, NULL, b->prompt[0], PROMPT, TOKENS, &heard[0]);
    for (int i = 0; i < 3; i++) step(s);
    fb_scheduler_pause(s, begun, true);
    const int64_t said = heard[0].count;
    uint64_t waits = fbt_submit(s, story, NULL, b->prompt[1], PROMPT, TOKENS, &heard[1]);
    fb_scheduler_pause(s, waits, true);
    step(s);
    assert_int_equal(heard[0].count, said);
    fuse(s, WITHOUT_FLASH);
    while (busy) assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    assert_int_equal(stats_of(s).plan_changes, 1);
    fbt_check_same(&heard[0], &b->flash[0]);
    assert_int_equal(heard[1].count, 0);
    fb_scheduler_pause(s, waits, false);
    fbt_run_all(s);
    fbt_check_same(&heard[1], &b->plain[1]);
    fb_scheduler_free(s);
}

/* ---- from another thread ---- */

typedef struct flipper {
    fb_scheduler *scheduler;
    atomic_bool done;
    int flips;
} flipper;

static void *flip(void *arg) {
    static const char *const lists[] = {"all", "all,-qkv_up", "all,-norm_linear,-add_norm", "attn_flash",
                                        "attn_flash,rope_kv,swiglu_dual"};
    flipper *f = arg;
    for (; !atomic_load(&f->done); f->flips++) {
        fb_fuse_state state;
        char *text;
        fb_error err;
        assert_ok(fb_scheduler_fuse(f->scheduler, lists[f->flips % 5], &err), &err);
        if (f->flips % 4 == 0) assert_ok(fb_scheduler_profile(f->scheduler, 2, &err), &err);
        for (int i = 0; fb_scheduler_fuse_state(f->scheduler, i, &state); i++) assert_non_null(state.name);
        assert_ok(fb_scheduler_plan_text(f->scheduler, &text, &err), &err);
        fb_free(text);
        fb_timeline *timeline;
        assert_ok(fb_scheduler_timeline(f->scheduler, &timeline, &err), &err);
        fb_timeline_free(timeline);
        stats_of(f->scheduler);
    }
    return NULL;
}

static void from_other_threads(void **state) {
    (void)state;
    int32_t prompt[ANSWERS][PROMPT];
    fbt_heard wanted[ANSWERS], heard[ANSWERS];
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    fb_session_options session = session_of("all");
    fb_scheduler *s = scheduler_of(model, "all", NULL);
    flipper by[2] = {{.scheduler = s}, {.scheduler = s}};
    pthread_t thread[2];
    for (int i = 0; i < ANSWERS; i++) {
        fill(prompt[i], PROMPT, i, vocab_of(model));
        fbt_alone(model, &session, prompt[i], PROMPT, TOKENS, &wanted[i]);
    }
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&thread[i], NULL, flip, &by[i]), 0);
    for (int round = 0; round < 20 || stats_of(s).plan_changes < 20; round++) {
        memset(heard, 0, sizeof heard);
        for (int i = 0; i < ANSWERS; i++) fbt_submit(s, model, NULL, prompt[i], PROMPT, TOKENS, &heard[i]);
        for (bool busy = true; busy && heard[ANSWERS - 1].ends + heard[0].ends < 2;) step(s);
        for (int i = 0; i < ANSWERS; i++) fbt_check_same(&heard[i], &wanted[i]);
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&by[i].done, true);
        pthread_join(thread[i], NULL);
    }
    print_message("%d flips, %lld of them taken\n", by[0].flips + by[1].flips,
                  (long long)stats_of(s).plan_changes);
    fb_scheduler_free(s);
    fb_model_free(model);
}

/* ---- where the time goes ---- */

static fb_timeline *timeline_of(fb_scheduler *s) {
    fb_timeline *timeline;
    fb_error err;
    assert_ok(fb_scheduler_timeline(s, &timeline, &err), &err);
    return timeline;
}

static void timelines(void **state) {
    (void)state;
    const both *b = make_both(PROMPT);
    fbt_heard heard[2];
    fb_scheduler *s = scheduler_of(story, "all", NULL);
    fb_error err;
    assert_refused(fb_scheduler_profile(s, 0, &err), FB_ERROR_USAGE, &err, "steps: 0 |1 to 256");
    assert_refused(fb_scheduler_profile(s, 257, &err), FB_ERROR_USAGE, &err, "steps: 257 |1 to 256");
    memset(heard, 0, sizeof heard);
    assert_ok(fb_scheduler_profile(s, 6, &err), &err);
    for (int i = 0; i < 2; i++) fbt_submit(s, story, NULL, b->prompt[i], PROMPT, TOKENS, &heard[i]);
    step(s);
    assert_int_equal(stats_of(s).last_timed, 0); /* it read the prompts */
    for (int i = 0; i < 6; i++) {
        assert_null(timeline_of(s));
        step(s);
        assert_int_equal(stats_of(s).last_timed, 1);
    }
    step(s);
    assert_int_equal(stats_of(s).last_timed, 0);
    fb_timeline *t = timeline_of(s);
    assert_non_null(t);
    assert_int_equal(t->rows, 2);
    assert_int_equal(t->steps, 3);
    assert_true(t->op_seconds > 0 && t->op_seconds <= t->seconds);
    double sum = 0;
    int64_t fuses = 0;
    for (int64_t i = 0; i < t->op_count; i++) {
        const fb_timeline_op *op = t->ops[i];
        assert_true(op->seconds > 0 && op->op);
        assert_in_range(op->section, i ? t->ops[i - 1]->section : 0, 2);
        for (int32_t j = 0; j < op->fuse_count; j++) assert_true(state_of(s, op->fuses[j]).on);
        fuses += op->fuse_count;
        sum += op->seconds;
    }
    assert_true(fuses > 0);
    assert_true(sum > 0.999 * t->op_seconds && sum < 1.001 * t->op_seconds);
    fb_timeline_free(t);
    /* A second one keeps the first until it is complete; a change drops both. */
    assert_ok(fb_scheduler_profile(s, 2, &err), &err);
    step(s);
    t = timeline_of(s);
    assert_int_equal(t->steps, 3);
    fb_timeline_free(t);
    step(s);
    t = timeline_of(s);
    assert_int_equal(t->steps, 1);
    fb_timeline_free(t);
    fuse(s, "all,-qkv_up");
    step(s);
    assert_null(timeline_of(s));
    fbt_run_all(s);
    for (int i = 0; i < 2; i++) fbt_check_same(&heard[i], &b->flash[i]);
    fb_timeline_free(NULL);
    fb_scheduler_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bit_fuses),
        cmocka_unit_test(calls_are_counted_across_plans),
        cmocka_unit_test(between_answers),
        cmocka_unit_test(bad_lists),
        cmocka_unit_test(a_bound_waits),
        cmocka_unit_test(a_pending_plan_is_replaced),
        cmocka_unit_test(exact_never_waits),
        cmocka_unit_test(prefixes_are_of_the_plan),
        cmocka_unit_test(put_back_answers_are_not_starved),
        cmocka_unit_test(cancelled_while_pending),
        cmocka_unit_test(paused_while_pending),
        cmocka_unit_test(from_other_threads),
        cmocka_unit_test(timelines),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
