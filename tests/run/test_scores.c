/* Logits of a prompt: every row's are those of a session that keeps all of them, however the prompt was cut
 * and whatever else runs. */
#include <stdlib.h>
#include <string.h>

#include "support/answers.h"

enum { PROMPT = 70, TOKENS = 30, ANSWERS = 5 };

static fb_model *golden;
static int32_t prompt[ANSWERS][PROMPT];
static fbt_heard alone[ANSWERS];

static fb_session_options session_of(void) {
    fb_session_options o;
    fb_session_options_default(&o);
    o.backend = "cpu";
    o.threads = 2;
    return o;
}

static int open_model(void **state) {
    (void)state;
    fb_session_options session = session_of();
    golden = fbt_golden_open("llama-gqa-tied");
    for (int i = 0; i < ANSWERS; i++) {
        for (int j = 0; j < PROMPT; j++) prompt[i][j] = (j * (11 + 2 * i) + 5 + i) % 90;
        fbt_alone(golden, &session, prompt[i], PROMPT, TOKENS, &alone[i]);
    }
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fb_model_free(golden);
    return 0;
}

static fb_scheduler *scheduler_of(int64_t sequences, int64_t cache_tokens) {
    fb_scheduler_options options;
    fb_session_options session = session_of();
    fb_scheduler *s;
    fb_error err;
    fb_scheduler_options_default(&options);
    options.sequences = sequences;
    options.cache_tokens = cache_tokens;
    options.block = 16;
    assert_ok(fb_scheduler_create(golden, &session, &options, &s, &err), &err);
    return s;
}

static fb_request_options scored(void) {
    fb_request_options o;
    fb_request_options_default(&o);
    o.prompt_logits = 1;
    return o;
}

static void check_prompt(const fbt_heard *heard, int which, int64_t count) {
    assert_int_equal(heard->prompt_count, count);
    assert_memory_equal(heard->prompt, alone[which].prompt, (size_t)count * sizeof *heard->prompt);
    assert_memory_equal(heard->scores, alone[which].scores, (size_t)count * sizeof *heard->scores);
}

/* One alone, in steps of as many rows as there may be sequences. */
static void alone_in_pieces(void **state) {
    (void)state;
    static const int64_t sequences[] = {1, 2, 3, 16, 64};
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++) {
        fbt_heard heard = {.count = 0};
        fb_request_options o = scored();
        fb_scheduler *s = scheduler_of(sequences[i], 0);
        fb_scheduler_stats stats;
        fbt_submit(s, golden, &o, prompt[0], PROMPT, TOKENS, &heard);
        fbt_run_all(s);
        check_prompt(&heard, 0, PROMPT);
        fbt_check_same(&heard, &alone[0]);
        fb_scheduler_get_stats(s, &stats);
        assert_int_equal(stats.steps, (PROMPT + sequences[i] - 1) / sequences[i] + TOKENS - 1);
        fb_scheduler_free(s);
    }
}

/* Among others that decode, and whose prompts end in the same steps. */
static void among_others(void **state) {
    (void)state;
    fbt_heard heard[ANSWERS];
    fb_request_options o = scored();
    fb_scheduler *s = scheduler_of(ANSWERS, 0);
    bool busy;
    fb_error err;
    memset(heard, 0, sizeof heard);
    for (int i = 0; i < ANSWERS; i++) {
        fbt_submit(s, golden, i % 2 ? &o : NULL, prompt[i], PROMPT, TOKENS, &heard[i]);
        assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    }
    fbt_run_all(s);
    for (int i = 0; i < ANSWERS; i++) {
        fbt_check_same(&heard[i], &alone[i]);
        check_prompt(&heard[i], i, i % 2 ? PROMPT : 0);
    }
    fb_scheduler_free(s);
}

/* Each token is told once, also if the answer is put back in the middle of its prompt. */
static void put_back(void **state) {
    (void)state;
    int64_t preempted = 0;
    for (int64_t tokens = 112; tokens <= 208; tokens += 16) { /* an answer grows from 5 to 7 blocks */
        fbt_heard heard[ANSWERS];
        fb_request_options o = scored();
        fb_scheduler *s = scheduler_of(4, tokens);
        fb_scheduler_stats stats;
        memset(heard, 0, sizeof heard);
        for (int i = 0; i < ANSWERS; i++)
            fbt_submit(s, golden, i ? &o : NULL, prompt[i], PROMPT, TOKENS, &heard[i]);
        fbt_run_all(s);
        for (int i = 0; i < ANSWERS; i++) {
            fbt_check_same(&heard[i], &alone[i]);
            check_prompt(&heard[i], i, i ? PROMPT : 0);
        }
        fb_scheduler_get_stats(s, &stats);
        preempted += stats.preempted;
        fb_scheduler_free(s);
    }
    assert_true(preempted > 0);
}

/* It takes nothing from the prefix cache, but leaves its blocks there. */
static void with_a_prefix_cache(void **state) {
    (void)state;
    fbt_heard heard[4];
    fb_request_options o = scored();
    fb_scheduler *s = scheduler_of(16, 0);
    memset(heard, 0, sizeof heard);
    for (int i = 0; i < 4; i++) {
        fbt_submit(s, golden, i % 2 ? &o : NULL, prompt[1], PROMPT, TOKENS, &heard[i]);
        fbt_run_all(s);
        fbt_check_same(&heard[i], &alone[1]);
        check_prompt(&heard[i], 1, i % 2 ? PROMPT : 0);
        assert_int_equal(heard[i].cached, i == 2 ? 64 : 0);
    }
    fb_scheduler_free(s);
    s = scheduler_of(16, 0);
    memset(heard, 0, sizeof heard);
    for (int i = 0; i < 2; i++) {
        fbt_submit(s, golden, i ? NULL : &o, prompt[1], PROMPT, TOKENS, &heard[i]);
        fbt_run_all(s);
    }
    assert_int_equal(heard[1].cached, 64);
    fb_scheduler_free(s);
}

/* No answer at all: the prompt is read, and told if that is asked for. It may fill the capacity. */
static void no_answer(void **state) {
    (void)state;
    int32_t full[128];
    fbt_heard heard[3], whole = {.count = 0};
    fb_request_options o = scored();
    fb_scheduler *s = scheduler_of(16, 0);
    fb_scheduler_stats stats;
    fb_error err;
    memset(heard, 0, sizeof heard);
    fbt_submit(s, golden, &o, prompt[0], PROMPT, -1, &heard[0]);
    fbt_submit(s, golden, NULL, prompt[1], PROMPT, -1, &heard[1]);
    fbt_submit(s, golden, &o, prompt[2], 1, -1, &heard[2]);
    fbt_run_all(s);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(heard[i].count, 0);
        assert_int_equal(heard[i].ends, 1);
        assert_int_equal(heard[i].finish, FB_FINISH_LENGTH);
        check_prompt(&heard[i], i, i == 0 ? PROMPT : i == 1 ? 0 : 1);
    }
    fb_scheduler_get_stats(s, &stats);
    assert_int_equal(stats.tokens, 0);
    for (int i = 0; i < 128; i++) full[i] = i % 90;
    fbt_submit(s, golden, &o, full, 128, -1, &whole);
    fbt_run_all(s);
    assert_int_equal(whole.prompt_count, 128);
    fb_request_options refused = scored();
    refused.prompt = full;
    refused.prompt_count = 128;
    assert_refused(fb_scheduler_submit(s, &refused, NULL, &err), FB_ERROR_USAGE, &err, "prompt|128|127");
    refused.prompt_count = 3;
    refused.max_tokens = -2;
    assert_refused(fb_scheduler_submit(s, &refused, NULL, &err), FB_ERROR_USAGE, &err, "max_tokens|-2|-1 to");
    refused.max_tokens = 2;
    refused.prompt_logits = 2;
    assert_refused(fb_scheduler_submit(s, &refused, NULL, &err), FB_ERROR_USAGE, &err, "prompt_logits|2");
    fb_scheduler_free(s);
}

/* The prompt is told to answer 0 only; a callback that says no hears nothing more of it. */
static void samples_and_cancels(void **state) {
    (void)state;
    fbt_heard heard[3], cancelled = {.cancel_at = 9};
    fb_request_options o = scored();
    fb_scheduler *s = scheduler_of(16, 0);
    memset(heard, 0, sizeof heard);
    o.samples = 3;
    fbt_submit(s, golden, &o, prompt[3], PROMPT, TOKENS, heard);
    o.samples = 1;
    fbt_submit(s, golden, &o, prompt[4], PROMPT, TOKENS, &cancelled);
    fbt_run_all(s);
    for (int i = 0; i < 3; i++) {
        fbt_check_same(&heard[i], &alone[3]);
        check_prompt(&heard[i], 3, i ? 0 : PROMPT);
    }
    check_prompt(&cancelled, 4, 9);
    assert_int_equal(cancelled.finish, FB_FINISH_CANCELLED);
    assert_int_equal(cancelled.count, 0);
    fb_scheduler_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_in_pieces), cmocka_unit_test(among_others),
        cmocka_unit_test(put_back),        cmocka_unit_test(with_a_prefix_cache),
        cmocka_unit_test(no_answer),       cmocka_unit_test(samples_and_cancels),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
