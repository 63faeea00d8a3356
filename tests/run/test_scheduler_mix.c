/* Schedulers with random options, and random requests: every cache, pools that are too small, few rows, held
 * rows, guesses, samples, priorities, scores of prompts, cancels and requests in callbacks, plans that
 * change. All logits of every answer have the bits that a session has for the same tokens. */
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "support/answers.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLOW
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW
#endif
#ifdef SLOW
#define ROUNDS 2
#else
#define ROUNDS 40
#endif
#define CONTEXT  1024
#define LONGEST  360
#define TOKENS   40
#define SAMPLES  4
#define REQUESTS 24
#define ALPHABET                                                                                             \
    24 /* different tokens of a prompt: few, so that prompts begin alike and n-grams come again */

typedef struct heard {
    int32_t tokens[TOKENS];
    uint64_t logits[TOKENS];
    int64_t count;
    fb_finish finish;
} heard;

typedef struct request {
    int32_t prompt[LONGEST];
    int64_t count, tokens;
    int32_t samples;
    bool drawn, scored, submits;
    int64_t cancel_after; /* tokens of its first answer; 0: never */
    bool cancelled, paused;
    uint64_t id;
    heard answers[SAMPLES];
    uint64_t scores[LONGEST];
    int64_t score_count;
} request;

/* One round. */
static struct {
    fbt_random random;
    const fb_model *model;
    int64_t vocab;
    fb_scheduler *scheduler;
    fb_session_options session;
    fb_scheduler_options options;
    bool plans; /* the fuses change */
    request requests[REQUESTS];
    int count;
    uint64_t late; /* callbacks after the end of a request, or of what was cancelled */
} mix;

static int64_t below(int64_t n) { return (int64_t)fbt_random_below(&mix.random, (uint64_t)n); }
static bool one_in(int64_t n) { return below(n) == 0; }

/* ---- requests ---- */

static void submit_one(bool submits);

static bool listen(void *user, const fb_answer *a) {
    request *r = user;
    heard *h = &r->answers[a->sample];
    if (h->finish != FB_FINISH_NONE || (r->cancelled && a->finish == FB_FINISH_NONE)) mix.late++;
    h->finish = a->finish;
    if (a->finish != FB_FINISH_NONE || a->token < 0) return true;
    if (a->position < a->prompt) {
        r->scores[r->score_count++] = a->logits ? fbt_logits_hash(a->logits, mix.vocab) : 0;
        return true;
    }
    assert_true(h->count < TOKENS);
    h->tokens[h->count] = a->token;
    h->logits[h->count++] = fbt_logits_hash(a->logits, mix.vocab);
    if (r->submits && a->sample == 0 && h->count == 1) submit_one(false);
    r->cancelled = r->cancelled || (a->sample == 0 && r->cancel_after && h->count == r->cancel_after);
    return !r->cancelled;
}

/* Prompts begin alike, and most are short. */
static void make_prompt(request *r, int64_t most) {
    const request *other = mix.count ? &mix.requests[below(mix.count)] : NULL;
    int64_t same = other && one_in(2) ? below(other->count + 1) : 0;
    r->count = 1 + below(1 + below(most));
    for (int64_t i = 0; i < r->count; i++)
        r->prompt[i] = i < same ? other->prompt[i] : (int32_t)(7 + below(ALPHABET));
}

static void submit_one(bool submits) {
    if (mix.count == REQUESTS) return;
    request *r = &mix.requests[mix.count];
    fb_sampler_options sampling;
    fb_request_options o;
    fb_error err;
    fb_sampler_options_default(&sampling);
    fb_request_options_default(&o);
    *r = (request){.tokens = 1 + below(TOKENS), .drawn = one_in(2), .scored = one_in(5), .submits = submits};
    make_prompt(r, LONGEST);
    r->samples = (int32_t)(r->drawn && one_in(2) ? 1 + below(SAMPLES) : 1);
    if (r->samples > mix.options.sequences) r->samples = (int32_t)mix.options.sequences;
    r->cancel_after = one_in(6) ? 1 + below(r->tokens) : 0;
    sampling.temperature = 1.5F;
    sampling.seed = (uint64_t)below(1000);
    o.prompt = r->prompt;
    o.prompt_count = r->count;
    o.max_tokens = r->tokens;
    o.samples = r->samples;
    o.sampler = r->drawn ? &sampling : NULL;
    o.priority = (int32_t)(one_in(4) ? below(8) : 0);
    o.past_end = true;
    o.wants_logits = 1;
    o.prompt_logits = r->scored;
    o.draft = true;
    o.on_answer = listen;
    o.user = r;
    mix.count++;
    /* A pool may be too small for the prompt and its samples: that is said at once. */
    if (fb_scheduler_submit(mix.scheduler, &o, &r->id, &err) == FB_OK) return;
    assert_non_null(strstr(err.message, "blocks"));
    r->id = 0;
}

/* ---- a scheduler ---- */

static int64_t propose(void *user, const int32_t *tokens, int64_t count, int64_t most, int32_t *ids) {
    (void)user;
    int64_t made = most ? (tokens[count - 1] * 31 + count) % (most + 1) : 0;
    for (int64_t i = 0; i < made; i++) ids[i] = tokens[count - 1];
    return made;
}

static fb_draft *make_draft(void) {
    fb_draft_options o;
    fb_draft *draft;
    fb_error err;
    fb_draft_options_default(&o);
    o.fixed = (int32_t)below(2);
    if (one_in(2))
        o.propose = propose;
    else
        o.source = "ngram";
    assert_ok(fb_draft_create(mix.model, &o, &draft, &err), &err);
    return draft;
}

static void make_options(fb_dtype act) {
    static const float stretches[] = {0, 1, 1.8F, 4};
    static const int64_t blocks[] = {16, 32, 64, 128};
    fb_session_options *s = &mix.session;
    fb_scheduler_options *o = &mix.options;
    fb_session_options_default(s);
    fb_scheduler_options_default(o);
    s->threads = 1 + (int32_t)below(2);
    s->act = act;
    s->fuse = "all";
    s->cache = (fb_cache_kind)below(3);
    if (s->cache != FB_CACHE_DENSE) s->window = 4 + below(60);
    if (s->cache == FB_CACHE_SINKS) s->sinks = 1 + below(8);
    o->sequences = 1 + below(10);
    o->rows = o->sequences + (one_in(2) ? below(8) : below(300));
    o->block = blocks[below(4)];
    o->stretch = stretches[below(4)];
    o->prefix_cache = !one_in(4);
    o->cache_tokens = LONGEST + TOKENS + (one_in(2) ? below(200) : 8 * CONTEXT);
    mix.plans = one_in(2);
}

static void pause(request *r, bool paused) {
    r->paused = paused;
    if (r->id) fb_scheduler_pause(mix.scheduler, r->id, paused);
}

/* Whether some were paused. */
static bool unpause_all(void) {
    bool any = false;
    for (int i = 0; i < mix.count; i++) {
        any |= mix.requests[i].paused;
        pause(&mix.requests[i], false);
    }
    return any;
}

static void step_on(void) {
    static const char *const plans[] = {"all", "all,-attn_flash", "none", "all,-add_norm", "all"};
    fb_error err;
    bool busy = true;
    for (int64_t left = 3 * REQUESTS / 4; busy || left > 0 || unpause_all();) {
        if (left > 0 && one_in(2)) {
            submit_one(one_in(4));
            left--;
        }
        if (one_in(20) && mix.count) {
            request *r = &mix.requests[below(mix.count)];
            r->cancelled = r->cancelled || r->id;
            if (r->id) fb_scheduler_cancel(mix.scheduler, r->id);
        }
        if (one_in(20) && mix.count) pause(&mix.requests[below(mix.count)], one_in(2));
        if (mix.plans && one_in(12)) assert_ok(fb_scheduler_fuse(mix.scheduler, plans[below(5)], &err), &err);
        assert_ok(fb_scheduler_step(mix.scheduler, &busy, &err), &err);
    }
}

/* ---- the same alone ---- */

static bool scores_as(fb_session *session, const request *r) {
    const float *logits;
    int64_t rows, vocab;
    fb_error err;
    if (r->score_count != r->count) return r->cancelled;
    for (int64_t i = 0; i < r->count;
         i++) { /* one by one: a session's cache may be shorter than the prompt */
        uint64_t hash = 0;
        if (i) {
            assert_ok(fb_session_logits(session, &logits, &rows, &vocab, &err), &err);
            hash = fbt_logits_hash(logits, vocab);
        }
        if (hash != r->scores[i]) return false;
        assert_ok(fb_session_decode(session, r->prompt[i], &err), &err);
    }
    return true;
}

static bool same_as(fb_session *session, const request *r, const heard *h, bool first) {
    const float *logits;
    int64_t vocab;
    fb_error err;
    fb_session_reset(session);
    if (first && r->scored) {
        if (!scores_as(session, r)) return false;
    } else {
        assert_ok(fb_session_prefill(session, r->prompt, r->count, &err), &err);
    }
    for (int64_t i = 0; i < h->count; i++) {
        if (i) assert_ok(fb_session_decode(session, h->tokens[i - 1], &err), &err);
        assert_ok(fb_session_logits(session, &logits, NULL, &vocab, &err), &err);
        if (fbt_logits_hash(logits, vocab) != h->logits[i]) return false;
    }
    return true;
}

/* An answer is all of one plan, whatever changed while it was written. */
static int64_t compare(const char *name, uint64_t seed) {
    fb_session_options o = mix.session;
    fb_session *sessions[2];
    fb_error err;
    int64_t tokens = 0;
    o.draft = NULL;
    o.chunk = 1 + below(200);
    if (o.cache == FB_CACHE_DENSE) o.capacity = CONTEXT;
    for (int i = 0; i < 2; i++) {
        o.fuse = i ? "all,-attn_flash" : "all";
        assert_ok(fb_session_create(mix.model, &o, &sessions[i], &err), &err);
    }
    for (int i = 0; i < mix.count; i++) {
        const request *r = &mix.requests[i];
        for (int32_t k = 0; r->id && k < r->samples; k++) {
            const heard *h = &r->answers[k];
            bool whole = h->finish == FB_FINISH_LENGTH ? h->count == r->tokens : r->cancelled;
            bool same =
                same_as(sessions[0], r, h, k == 0) || (mix.plans && same_as(sessions[1], r, h, k == 0));
            if (!whole || !same)
                fail_msg("%s, seed %llu: request %d, sample %d: %lld of %lld tokens, %s logits", name,
                         (unsigned long long)seed, i, k, (long long)h->count, (long long)r->tokens,
                         same ? "the same" : "other");
            tokens += h->count;
        }
    }
    for (int i = 0; i < 2; i++) fb_session_free(sessions[i]);
    return tokens;
}

static void round_of(const char *name, fb_dtype act, uint64_t seed, fb_scheduler_stats *sum) {
    fb_scheduler_stats stats;
    fb_draft *draft;
    fb_error err;
    mix.random = fbt_random_start(seed);
    mix.count = 0;
    make_options(act);
    mix.session.draft = draft = one_in(2) ? make_draft() : NULL;
    assert_ok(fb_scheduler_create(mix.model, &mix.session, &mix.options, &mix.scheduler, &err), &err);
    step_on();
    fb_scheduler_get_stats(mix.scheduler, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.blocks_free, stats.blocks);
    fb_scheduler_free(mix.scheduler);
    fb_draft_free(draft);
    sum->tokens += compare(name, seed);
    sum->held_steps += stats.held_steps;
    sum->preempted += stats.preempted;
    sum->cached_tokens += stats.cached_tokens;
    sum->kept += stats.kept;
    sum->plan_changes += stats.plan_changes;
}

static void every_answer_is_that_of_a_session(void **state) {
    (void)state;
    static const struct {
        const char *name;
        fb_dtype act;
    } models[] = {{"llama-gqa-tied", FB_F16}, {"neox-parallel", FB_F32}, {"mixtral", FB_BF16}};
    fb_scheduler_stats sum = {0};
    uint64_t seed = 1;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fb_model *model = fbt_golden_stretched(models[m].name, CONTEXT);
        mix.model = model;
        mix.vocab = model->spec->program.vocab;
        for (int round = 0; round < ROUNDS; round++) round_of(models[m].name, models[m].act, seed++, &sum);
        fb_model_free(model);
    }
    assert_int_equal(mix.late, 0);
    print_message("%lld tokens; %lld steps with held rows, %lld put back, %lld cached, %lld guesses kept, "
                  "%lld changes of plans\n",
                  (long long)sum.tokens, (long long)sum.held_steps, (long long)sum.preempted,
                  (long long)sum.cached_tokens, (long long)sum.kept, (long long)sum.plan_changes);
    assert_true(sum.tokens && sum.held_steps && sum.preempted && sum.cached_tokens && sum.kept &&
                sum.plan_changes);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_answer_is_that_of_a_session)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
