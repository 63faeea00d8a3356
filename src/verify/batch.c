/* Random mixtures of requests in a scheduler, each compared with the same request alone in a session. */
#include <stdio.h>
#include <stdlib.h>

#include "base/options.h"
#include "base/sized.h"
#include "fusebox_batch.h"
#include "fusebox_tools.h"
#include "model/model.h"

#define MAX_ROUNDS    100000
#define MOST_REQUESTS 24 /* of a round */
#define MOST_ANSWERS  64
#define MOST_SAMPLES  4
#define MOST_PROMPT   300
#define MOST_TOKENS   12

FB_SIZED_ENDS_WITH(fb_batch_report, first);

/* An answer as the scheduler gave it: its tokens, and a hash of the logits that each was chosen from. */
typedef struct given {
    int32_t tokens[MOST_TOKENS];
    uint64_t logits[MOST_TOKENS];
    int64_t count;
    fb_finish finish;
} given;

typedef struct asked {
    int32_t prompt[MOST_PROMPT];
    int64_t prompt_count, max_tokens;
    int32_t samples;
    bool greedy;
    bool logits; /* they are compared, too; otherwise a GPU selects candidates */
    uint64_t seed;
    int64_t cancel_after; /* tokens of answer 0; 0: never */
    given answers[MOST_SAMPLES];
} asked;

typedef struct proof {
    const fb_model *model;
    fb_session_options session;
    fb_batch_report report;
    uint64_t random;
    int64_t vocab, most_prompt;
    asked *requests; /* [MOST_REQUESTS] */
    int64_t count;
} proof;

static uint64_t random_below(proof *p, uint64_t limit) {
    uint64_t z = p->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % limit;
}

/* A small number more often than a large one, from 1 on. */
static int64_t random_size(proof *p, int64_t most) {
    return 1 + (int64_t)random_below(p, 1 + random_below(p, (uint64_t)most));
}

static uint64_t hash_of(const float *logits, int64_t count) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3u;
        hash ^= hash >> 31;
    }
    return hash;
}

/* ---- a round in the scheduler ---- */

static bool on_answer(void *user, const fb_answer *answer) {
    void **at = user;
    proof *p = at[0];
    asked *q = at[1];
    given *g = &q->answers[answer->sample];
    if (answer->finish != FB_FINISH_NONE) {
        g->finish = answer->finish;
        return true;
    }
    if (answer->token < 0 || g->count == MOST_TOKENS) return true;
    g->tokens[g->count] = answer->token;
    g->logits[g->count++] = q->logits && answer->logits ? hash_of(answer->logits, p->vocab) : 0;
    return !(q->cancel_after && answer->sample == 0 && g->count >= q->cancel_after);
}

/* A prompt of its own, or one that begins as an earlier one of the round. */
static void ask(proof *p, asked *q) {
    memset(q, 0, sizeof *q);
    q->prompt_count = random_below(p, 2) ? random_size(p, p->most_prompt)
                                         : 1 + (int64_t)random_below(p, (uint64_t)p->most_prompt);
    for (int64_t i = 0; i < q->prompt_count; i++) q->prompt[i] = (int32_t)random_below(p, (uint64_t)p->vocab);
    if (p->count > 0 && random_below(p, 2)) {
        const asked *other = &p->requests[random_below(p, (uint64_t)p->count)];
        int64_t same = other->prompt_count + 1 - random_size(p, other->prompt_count);
        if (same > q->prompt_count) same = q->prompt_count;
        memcpy(q->prompt, other->prompt, (size_t)same * sizeof *q->prompt);
    }
    q->max_tokens = random_size(p, MOST_TOKENS);
    q->samples = random_below(p, 4) ? 1 : 1 + (int32_t)random_below(p, MOST_SAMPLES);
    q->greedy = random_below(p, 2);
    q->logits = random_below(p, 4) != 0;
    q->seed = random_below(p, 1u << 30);
    q->cancel_after = random_below(p, 8) ? 0 : random_size(p, q->max_tokens);
}

static fb_status submit(proof *p, fb_scheduler *s, asked *q, void **user, fb_error *err) {
    fb_sampler_options sampler;
    fb_request_options o;
    fb_sampler_options_default(&sampler);
    sampler.temperature = 1.5f;
    sampler.seed = q->seed;
    fb_request_options_default(&o);
    o.prompt = q->prompt;
    o.prompt_count = q->prompt_count;
    o.max_tokens = q->max_tokens;
    o.samples = q->samples;
    o.sampler = q->greedy ? NULL : &sampler;
    o.priority = (int32_t)random_below(p, 3);
    o.past_end = true;
    o.wants_logits = q->logits;
    o.on_answer = on_answer;
    user[0] = p;
    user[1] = q;
    o.user = user;
    return fb_scheduler_submit(s, &o, NULL, err);
}

/* Submits the requests some steps apart and runs until all have ended. */
static fb_status run_round(proof *p, fb_scheduler *s, int64_t requests, fb_error *err) {
    void *users[MOST_REQUESTS][2];
    bool busy = true;
    int64_t left = requests, before = 0;
    fb_scheduler_stats stats;
    while (left > 0 || busy) {
        while (left > 0 && (!busy || random_below(p, 4) < 3)) {
            ask(p, &p->requests[p->count]);
            FB_TRY(submit(p, s, &p->requests[p->count], users[p->count], err));
            p->count++;
            left--;
            busy = true;
        }
        FB_TRY(fb_scheduler_step(s, &busy, err));
        fb_scheduler_get_stats(s, &stats);
        if (stats.rows - before > p->report.most_rows) p->report.most_rows = stats.rows - before;
        before = stats.rows;
    }
    p->report.steps += stats.steps;
    p->report.rows += stats.rows;
    p->report.preempted += stats.preempted;
    p->report.cached_tokens += stats.cached_tokens;
    if (stats.blocks_free != stats.blocks)
        snprintf(p->report.first, sizeof p->report.first, "%lld of %lld blocks are still in use",
                 (long long)(stats.blocks - stats.blocks_free), (long long)stats.blocks);
    return FB_OK;
}

/* Blocks, memory and rows of a step that differ from round to round. */
static fb_status open_round(proof *p, fb_scheduler **out, fb_error *err) {
    static const int64_t blocks[] = {16, 32, 64, 128};
    fb_scheduler_options o;
    fb_scheduler_options_default(&o);
    fb_session_options session = p->session;
    session.capacity = 0;
    o.block = blocks[random_below(p, 4)];
    o.sequences = MOST_SAMPLES + (int64_t)random_below(p, MOST_ANSWERS - MOST_SAMPLES + 1);
    /* Sometimes hardly more than one request needs, so that others are put back. */
    int64_t least = p->most_prompt + MOST_TOKENS + o.block;
    o.cache_tokens = least + (int64_t)random_below(p, 3) * (int64_t)random_below(p, (uint64_t)(4 * least));
    o.rows = o.sequences + (int64_t)random_below(p, 200);
    o.stretch = random_below(p, 2) ? 0 : 4;
    o.prefix_cache = random_below(p, 4) != 0;
    return fb_scheduler_create(p->model, &session, &o, out, err);
}

/* ---- the same alone ---- */

static void differs(proof *p, const asked *q, int32_t sample, int64_t token, const char *what) {
    p->report.different++;
    if (p->report.first[0]) return;
    snprintf(p->report.first, sizeof p->report.first, "request of %lld tokens, answer %d, token %lld: %s",
             (long long)q->prompt_count, sample, (long long)token, what);
}

static fb_status compare(proof *p, const asked *q, int32_t sample, fb_session *session, fb_sampler *sampler,
                         fb_error *err) {
    const given *g = &q->answers[sample];
    const float *logits;
    for (int64_t i = 0; i < g->count; i++) {
        int32_t token;
        FB_TRY(i == 0 ? fb_session_prefill(session, q->prompt, q->prompt_count, err)
                      : fb_session_decode(session, g->tokens[i - 1], err));
        FB_TRY(fb_session_logits(session, &logits, NULL, NULL, err));
        p->report.tokens++;
        if (q->logits && hash_of(logits, p->vocab) != g->logits[i]) {
            differs(p, q, sample, i, "other logits than alone");
            return FB_OK;
        }
        FB_TRY(fb_sampler_next(sampler, logits, &token, err));
        if (token != g->tokens[i]) {
            differs(p, q, sample, i, "another token than alone");
            return FB_OK;
        }
    }
    return FB_OK;
}

static fb_status compare_answer(proof *p, const asked *q, int32_t sample, fb_session *session,
                                fb_error *err) {
    const given *g = &q->answers[sample];
    bool cancelled = g->finish == FB_FINISH_CANCELLED;
    p->report.answers++;
    p->report.cancelled += cancelled;
    if (!(cancelled ? q->cancel_after != 0 : g->finish == FB_FINISH_LENGTH && g->count == q->max_tokens))
        differs(p, q, sample, g->count, "it ended too early");
    fb_sampler_options o;
    fb_sampler *sampler;
    fb_sampler_options_default(&o);
    o.temperature = q->greedy ? 0 : 1.5f;
    o.seed = q->seed;
    o.sequence = (uint64_t)sample;
    FB_TRY(fb_sampler_create(&o, p->vocab, &sampler, err));
    for (int64_t i = 0; i < q->prompt_count; i++) fb_sampler_accept(sampler, q->prompt[i]);
    fb_session_reset(session);
    fb_status status = compare(p, q, sample, session, sampler, err);
    fb_sampler_free(sampler);
    return status;
}

static fb_status run_rounds(proof *p, int64_t rounds, fb_session *session, fb_error *err) {
    for (int64_t round = 0; round < rounds; round++) {
        fb_scheduler *s;
        FB_TRY(open_round(p, &s, err));
        p->count = 0;
        fb_status status = run_round(p, s, 1 + (int64_t)random_below(p, MOST_REQUESTS), err);
        fb_scheduler_free(s);
        FB_TRY(status);
        p->report.requests += p->count;
        for (int64_t i = 0; i < p->count; i++)
            for (int32_t sample = 0; sample < p->requests[i].samples; sample++)
                FB_TRY(compare_answer(p, &p->requests[i], sample, session, err));
        p->report.rounds++;
    }
    return FB_OK;
}

fb_status fb_verify_batch(const fb_model *model, const fb_batch_verify_options *given_options,
                          fb_batch_report *report, fb_error *err) {
    fb_batch_verify_options o;
    FB_TRY(fb_batch_verify_options_take(given_options, &o, err));
    if (o.rounds < 1 || o.rounds > MAX_ROUNDS)
        return fb_fail(err, FB_ERROR_USAGE, "rounds: %lld (1 to %d)", (long long)o.rounds, MAX_ROUNDS);
    proof *p = calloc(1, sizeof *p);
    asked *requests = malloc(MOST_REQUESTS * sizeof *requests);
    fb_session *session = NULL;
    fb_status status =
        p && requests ? FB_OK : fb_fail_memory(err, "requests", MOST_REQUESTS * (int64_t)sizeof *requests);
    if (status == FB_OK) {
        p->model = model;
        p->session = fb_batch_verify_session(&o);
        p->random = o.seed;
        p->vocab = model->spec->program.vocab;
        p->requests = requests;
        p->most_prompt = model->spec->program.context - MOST_TOKENS - 1;
        if (p->most_prompt > MOST_PROMPT) p->most_prompt = MOST_PROMPT;
        if (p->most_prompt < 1)
            status = fb_fail(err, FB_ERROR_UNSUPPORTED, "context: %lld (at least %d, to compare batches)",
                             (long long)model->spec->program.context, MOST_TOKENS + 2);
    }
    if (status == FB_OK) status = fb_session_create(model, &p->session, &session, err);
    if (status == FB_OK) status = run_rounds(p, o.rounds, session, err);
    if (status == FB_OK) {
        p->report.ok = p->report.different == 0 && !p->report.first[0];
        fb_sized_give(&p->report, sizeof p->report, report);
    }
    fb_session_free(session);
    free(requests);
    free(p);
    return status;
}
