/* Which rows a step has: who goes first, what guesses leave to prompts, and that a step never has more rows
 * than it may. */
#include <stdlib.h>
#include <string.h>

#include "support/answers.h"

static int64_t steps; /* so far */

/* Steps once; true: something is left. No step has too many rows. */
static bool step(fb_scheduler *s, int64_t most) {
    fb_scheduler_stats stats;
    fb_error err;
    bool busy;
    assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    fb_scheduler_get_stats(s, &stats);
    assert_in_range(stats.last_rows, 0, most);
    steps++;
    return busy;
}

/* Notes the step of an answer's first token. */
static bool note(void *user, const fb_answer *a) {
    int64_t *first = user;
    if (a->token >= 0 && *first < 0) *first = steps;
    return true;
}

static void submit(fb_scheduler *s, const int32_t *prompt, int64_t count, int64_t tokens, int32_t priority,
                   int64_t *first) {
    fb_request_options o;
    fb_error err;
    fb_request_options_default(&o);
    o.prompt = prompt;
    o.prompt_count = count;
    o.max_tokens = tokens;
    o.priority = priority;
    o.past_end = true;
    o.draft = true;
    o.on_answer = note;
    o.user = first;
    *first = -1;
    assert_ok(fb_scheduler_submit(s, &o, NULL, &err), &err);
}

static int64_t always_seven(void *user, const int32_t *tokens, int64_t count, int64_t most, int32_t *ids) {
    (void)user, (void)tokens, (void)count;
    for (int64_t i = 0; i < most; i++) ids[i] = 7;
    return most;
}

/* A scheduler that always guesses as much as it may. */
static fb_scheduler *guessing(const fb_model *model, int64_t sequences, int64_t rows, fb_draft **draft) {
    fb_session_options session;
    fb_scheduler_options options;
    fb_draft_options guesses;
    fb_scheduler *s;
    fb_error err;
    fb_draft_options_default(&guesses);
    guesses.propose = always_seven;
    guesses.fixed = 1;
    assert_ok(fb_draft_create(model, &guesses, draft, &err), &err);
    fb_session_options_default(&session);
    session.threads = 1;
    session.draft = *draft;
    fb_scheduler_options_default(&options);
    options.sequences = sequences;
    options.rows = rows;
    options.stretch = 0;
    assert_ok(fb_scheduler_create(model, &session, &options, &s, &err), &err);
    return s;
}

/* The last token of a prompt is a row like that of an answer that decodes, but nothing is guessed after it.
 */
static void rows_are_limited(void **state) {
    (void)state;
    static const struct {
        int64_t sequences, rows, prompt;
    } cases[] = {{2, 2, 2}, {4, 8, 15}, {4, 5, 9}, {3, 12, 31}};
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    int32_t prompt[32];
    for (int i = 0; i < 32; i++) prompt[i] = 3 + i;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t first[4];
        fb_draft *draft;
        fb_scheduler *s = guessing(model, cases[i].sequences, cases[i].rows, &draft);
        submit(s, prompt + 7, 1, 40, 0, &first[0]);
        for (int64_t k = 1; k < cases[i].sequences; k++)
            submit(s, prompt, cases[i].prompt - (k - 1), 5, 0, &first[k]);
        while (step(s, cases[i].rows)) continue;
        fb_scheduler_free(s);
        fb_draft_free(draft);
    }
    fb_model_free(model);
}

static void guesses_leave_rows_to_prompts(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    int32_t prompt[] = {3, 1, 4, 1, 5, 9};
    int64_t stream, late;
    fb_draft *draft;
    fb_scheduler *s = guessing(model, 4, 8, &draft);
    submit(s, prompt, 1, 100, 0, &stream);
    for (int i = 0; i < 3; i++) step(s, 8);
    int64_t at = steps;
    submit(s, prompt, 6, 3, 0, &late);
    while (step(s, 8)) continue;
    assert_in_range(late, at, at + 4);
    fb_scheduler_free(s);
    fb_draft_free(draft);
    fb_model_free(model);
}

/* Also while the prompt before it is being read, some rows a step or some layers a step. */
static void a_priority_overtakes_a_long_prompt(void **state) {
    (void)state;
    static const float stretches[] = {0, 1};
    enum { LONG = 900 };
    fb_model *model = fbt_golden_stretched("llama-gqa-tied", 1024);
    int32_t *prompt = malloc(LONG * sizeof *prompt);
    for (int i = 0; i < LONG; i++) prompt[i] = 10 + i % 200;
    for (int i = 0; i < 2; i++) {
        int64_t stream, slow, urgent, later;
        fb_session_options session;
        fb_scheduler_options options;
        fb_scheduler *s;
        fb_error err;
        fb_session_options_default(&session);
        session.threads = 1;
        fb_scheduler_options_default(&options);
        options.sequences = 4;
        options.rows = 16;
        options.stretch = stretches[i];
        assert_ok(fb_scheduler_create(model, &session, &options, &s, &err), &err);
        submit(s, prompt, 1, 950, 0, &stream);
        for (int k = 0; k < 3; k++) step(s, 16);
        submit(s, prompt, LONG, 2, 0, &slow);
        for (int k = 0; k < 5; k++) step(s, 16);
        int64_t at = steps;
        submit(s, prompt + 50, 4, 2, 1000, &urgent);
        submit(s, prompt + 60, 4, 2, 0, &later);
        while (step(s, 16)) continue;
        assert_in_range(urgent, at, at + 8); /* four layers, if each takes a step */
        assert_true(slow > urgent && later >= slow);
        fb_scheduler_free(s);
    }
    free(prompt);
    fb_model_free(model);
}

/* Samples that share a prompt began with it. Those that are put back when another plan is wanted end with the
 * plan that they began with. */
static void samples_that_are_put_back_keep_their_plan(void **state) {
    (void)state;
    enum { TOKENS = 50, SAMPLES = 4 };
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    fb_session_options session;
    fb_scheduler_options options;
    fb_sampler_options sampling;
    fb_request_options o;
    fb_scheduler_stats stats;
    fb_scheduler *s;
    fb_error err;
    int32_t prompt[30];
    fbt_heard *heard = calloc(SAMPLES, sizeof *heard);
    for (int i = 0; i < 30; i++) prompt[i] = 5 + 3 * i;
    fb_session_options_default(&session);
    session.threads = 1;
    session.fuse = "all";
    session.capacity = 96;
    fb_scheduler_options_default(&options);
    options.sequences = SAMPLES;
    options.block = 16;
    options.cache_tokens = 96;
    options.stretch = 0;
    assert_ok(fb_scheduler_create(model, &session, &options, &s, &err), &err);
    fb_sampler_options_default(&sampling);
    sampling.temperature = 1.5F;
    sampling.seed = 9;
    fb_request_options_default(&o);
    o.samples = SAMPLES;
    o.sampler = &sampling;
    fbt_submit(s, model, &o, prompt, 30, TOKENS, heard);
    for (int i = 0; i < 3; i++) step(s, INT32_MAX);
    assert_ok(fb_scheduler_fuse(s, "all,-attn_flash", &err), &err);
    fbt_run_all(s);
    fb_scheduler_get_stats(s, &stats);
    assert_true(stats.preempted > 0);
    fb_scheduler_free(s);

    fb_session *alone;
    assert_ok(fb_session_create(model, &session, &alone, &err), &err);
    for (int k = 0; k < SAMPLES; k++) {
        assert_int_equal(heard[k].count, TOKENS);
        fb_session_reset(alone);
        assert_ok(fb_session_prefill(alone, prompt, 30, &err), &err);
        for (int i = 0; i < TOKENS; i++) {
            const float *logits;
            int64_t vocab;
            if (i) assert_ok(fb_session_decode(alone, heard[k].tokens[i - 1], &err), &err);
            assert_ok(fb_session_logits(alone, &logits, NULL, &vocab, &err), &err);
            assert_int_equal(fbt_logits_hash(logits, vocab), heard[k].logits[i]);
        }
    }
    fb_session_free(alone);
    free(heard);
    fb_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_limited),
        cmocka_unit_test(guesses_leave_rows_to_prompts),
        cmocka_unit_test(a_priority_overtakes_a_long_prompt),
        cmocka_unit_test(samples_that_are_put_back_keep_their_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
