/* A scheduler over 100,000 random operations: requests come, fork, are cancelled and put back in a pool that
 * is too small for them. Every answer is right, and in the end no block is in use. The same with layers that
 * forget, among others and all of them. */
#include <stdlib.h>
#include <string.h>

#include "fusebox_batch.h"
#include "support/support.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLOW
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SLOW
#endif
#ifdef SLOW
#define OPERATIONS 10000 /* a sanitizer takes ten times as long */
#else
#define OPERATIONS 100000
#endif
#define PROMPTS 24
#define LONGEST 48
#define TOKENS  10
#define SAMPLES 3
#define SLOTS   24

/* Prompts with common beginnings, and what follows each: greedy, and drawn as sequence 0, 1, 2. */
static struct {
    int32_t ids[LONGEST];
    int64_t count;
    int32_t answer[1 + SAMPLES][TOKENS];
} prompts[PROMPTS];

typedef struct slot {
    uint64_t id; /* 0: free */
    int prompt;
    bool drawn;
    int32_t left;
    int64_t count[SAMPLES], tokens;
    bool cancelled;
} slot;

static slot slots[SLOTS];
static int64_t finished, wrong, cancelled;

static bool listen(void *user, const fb_answer *a) {
    slot *t = user;
    int64_t *count = &t->count[a->sample];
    if (a->finish != FB_FINISH_NONE) {
        if (a->finish == FB_FINISH_CANCELLED ? !t->cancelled : *count != t->tokens) wrong++;
        if (--t->left == 0) t->id = 0;
        finished++;
        return true;
    }
    if (a->token < 0) return true;
    if (*count >= TOKENS || a->token != prompts[t->prompt].answer[t->drawn ? 1 + a->sample : 0][*count])
        wrong++;
    ++*count;
    return true;
}

static fb_sampler_options sampling_of(int which) {
    fb_sampler_options o;
    fb_sampler_options_default(&o);
    o.temperature = which ? 50 : 0;
    o.min_p = 0;
    o.sequence = which ? (uint64_t)which - 1 : 0;
    return o;
}

static void expect(fb_session *session, int prompt, int which) {
    fb_sampler_options o = sampling_of(which);
    fb_sampler *sampler;
    fb_error err;
    const float *logits;
    int64_t vocab;
    int32_t *out = prompts[prompt].answer[which];
    fb_session_reset(session);
    assert_ok(fb_session_prefill(session, prompts[prompt].ids, prompts[prompt].count, &err), &err);
    assert_ok(fb_session_logits(session, &logits, NULL, &vocab, &err), &err);
    assert_ok(fb_sampler_create(&o, vocab, &sampler, &err), &err);
    for (int64_t i = 0; i < prompts[prompt].count; i++) fb_sampler_accept(sampler, prompts[prompt].ids[i]);
    for (int i = 0; i < TOKENS; i++) {
        if (i) assert_ok(fb_session_decode(session, out[i - 1], &err), &err);
        assert_ok(fb_session_logits(session, &logits, NULL, NULL, &err), &err);
        assert_ok(fb_sampler_next(sampler, logits, &out[i], &err), &err);
    }
    fb_sampler_free(sampler);
}

static void make_prompts(const fb_model *model, const fb_session_options *options, fbt_random *random) {
    fb_session *session;
    fb_error err;
    assert_ok(fb_session_create(model, options, &session, &err), &err);
    for (int i = 0; i < PROMPTS; i++) {
        prompts[i].count = 1 + fbt_random_below(random, LONGEST);
        for (int j = 0; j < LONGEST; j++) prompts[i].ids[j] = (int32_t)fbt_random_below(random, 90);
        if (i % 3)
            memcpy(prompts[i].ids, prompts[i - 1].ids,
                   sizeof(int32_t) * (size_t)fbt_random_below(random, LONGEST));
        for (int which = 0; which <= SAMPLES; which++) expect(session, i, which);
    }
    fb_session_free(session);
}

static void submit(fb_scheduler *s, fbt_random *random) {
    fb_sampler_options sampling = sampling_of(1);
    fb_request_options o;
    fb_error err;
    slot *t = &slots[fbt_random_below(random, SLOTS)];
    if (t->id) return;
    memset(t, 0, sizeof *t);
    t->prompt = (int)fbt_random_below(random, PROMPTS);
    t->drawn = fbt_random_below(random, 2);
    t->tokens = 1 + fbt_random_below(random, TOKENS);
    t->left = 1 + (int32_t)(fbt_random_below(random, 3) ? 0 : fbt_random_below(random, SAMPLES));
    if (!t->drawn) t->left = 1;
    fb_request_options_default(&o);
    o.prompt = prompts[t->prompt].ids;
    o.prompt_count = prompts[t->prompt].count;
    o.max_tokens = t->tokens;
    o.samples = t->left;
    o.sampler = t->drawn ? &sampling : NULL;
    o.priority = (int32_t)fbt_random_below(random, 3);
    o.past_end = true;
    o.wants_logits = 1;
    o.on_answer = listen;
    o.user = t;
    assert_ok(fb_scheduler_submit(s, &o, &t->id, &err), &err);
}

static void cancel(fb_scheduler *s, fbt_random *random) {
    slot *t = &slots[fbt_random_below(random, SLOTS)];
    if (!t->id || t->cancelled) return;
    t->cancelled = true;
    cancelled++;
    fb_scheduler_cancel(s, t->id);
}

/* Memory for `cache_tokens`, which is as many as a few of the requests have. */
static void many_operations(const char *name, const fb_session_options *session, int64_t cache_tokens) {
    fbt_random random = fbt_random_start(20);
    fb_model *model = fbt_golden_open(name);
    fb_scheduler_options options;
    fb_scheduler *s;
    fb_scheduler_stats stats;
    fb_error err;
    finished = wrong = cancelled = 0;
    make_prompts(model, session, &random);
    fb_scheduler_options_default(&options);
    options.block = 16;
    options.cache_tokens = cache_tokens;
    options.sequences = 12;
    options.stretch = 0;
    assert_ok(fb_scheduler_create(model, session, &options, &s, &err), &err);
    bool busy = true;
    for (int i = 0; i < OPERATIONS || busy; i++) {
        int64_t what = i < OPERATIONS ? fbt_random_below(&random, 100) : 99;
        if (what < 36)
            submit(s, &random);
        else if (what < 44)
            cancel(s, &random);
        else
            assert_ok(fb_scheduler_step(s, &busy, &err), &err);
        if (i % 1000) continue;
        fb_scheduler_get_stats(s, &stats);
        assert_in_range(stats.blocks_free, 0, stats.blocks);
        assert_true(stats.running <= options.sequences);
    }
    fb_scheduler_get_stats(s, &stats);
    print_message("%s: %lld answers, %lld cancels, %lld put back, %lld of %lld tokens of prompts cached\n",
                  name, (long long)finished, (long long)cancelled, (long long)stats.preempted,
                  (long long)stats.cached_tokens, (long long)stats.prompt_tokens);
    assert_int_equal(wrong, 0);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.blocks_free, stats.blocks);
    assert_true(finished > OPERATIONS / 10 && cancelled > OPERATIONS / 200 &&
                stats.preempted > OPERATIONS / 1000 && stats.cached_tokens > OPERATIONS / 10);
    for (int i = 0; i < SLOTS; i++) assert_int_equal(slots[i].id, 0);
    fb_scheduler_free(s);
    fb_model_free(model);
}

static void a_hundred_thousand_operations(void **state) {
    (void)state;
    fb_session_options session;
    fb_session_options_default(&session);
    session.threads = 1;
    many_operations("llama-gqa-tied", &session, 208);
    many_operations("gemma2", &session, 208);
    session.cache = FB_CACHE_SINKS;
    session.sinks = 4;
    session.window = 20;
    many_operations("neox-parallel", &session, 208);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_hundred_thousand_operations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
