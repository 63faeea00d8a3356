/* Random mixtures of requests in a scheduler, each compared with the same request alone in a session. */
#include <stdio.h>
#include <stdlib.h>

#include "base/options.h"
#include "base/sized.h"
#include "fusebox_batch.h"
#include "fusebox_tools.h"
#include "model/model.h"
#include "verify/batch.h"

#define MAX_ROUNDS    100000
#define MOST_REQUESTS 24 /* of a round */
#define MOST_ANSWERS  64
#define MOST_SAMPLES  4
#define MOST_PROMPT   300
#define LONG_PROMPT   1000 /* where layers forget: their rings come round */
#define MOST_TOKENS   24
#define FEW_TOKENS    12  /* without a draft */
#define MOST_SCORES   48  /* tokens of a prompt whose logits are compared */
#define MOST_MORE     20  /* more rounds until a guess was right */
#define BIAS          100 /* more than logits differ by */

FB_SIZED_ENDS_WITH(fb_batch_report, held_steps);

/* An answer: its tokens, and a hash of the logits that each was chosen from. */
typedef struct given {
    int32_t tokens[MOST_TOKENS];
    uint64_t logits[MOST_TOKENS];
    int64_t count;
    fb_finish finish;
} given;

typedef struct asked {
    int32_t prompt[LONG_PROMPT];
    int64_t prompt_count, max_tokens;
    int32_t samples;
    bool greedy;
    bool few;    /* its tokens are two: a guess is often right, whoever made it */
    bool logits; /* they are compared, too; otherwise a GPU selects candidates */
    bool scores; /* those of the prompt are compared, too */
    uint64_t score[MOST_SCORES], alone_score[MOST_SCORES];
    int64_t score_count;
    uint64_t seed;
    int64_t cancel_after; /* tokens of answer 0; 0: never */
    given answers[MOST_SAMPLES], alone[MOST_SAMPLES];
} asked;

typedef struct proof {
    const fb_model *model;
    fb_session_options options;
    const fb_draft *draft; /* of the scheduler; or NULL */
    int64_t drafted, kept;
    fb_batch_report report;
    uint64_t random;
    uint64_t changes; /* random numbers for changes of plan and prompts' logits */
    uint64_t cuts;    /* and for how prompts are cut, on the CPU */
    uint64_t texts;   /* and for texts that go on or repeat themselves */
    int64_t vocab, most_prompt, most_tokens;
    fb_session *session;
    fb_script *script; /* or NULL */
    fb_script_text known[MOST_REQUESTS * MOST_SAMPLES];
    bool cpu;
    bool by_layer;   /* this round */
    asked *requests; /* [MOST_REQUESTS] */
    int64_t count;
} proof;

static uint64_t draw(uint64_t *state, uint64_t limit) { return fb_script_draw(state, limit); }

static uint64_t random_below(proof *p, uint64_t limit) { return draw(&p->random, limit); }

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

/* ---- requests ---- */

static bool on_answer(void *user, const fb_answer *answer) {
    void **at = user;
    proof *p = at[0];
    asked *q = at[1];
    given *g = &q->answers[answer->sample];
    if (answer->finish != FB_FINISH_NONE) {
        g->finish = answer->finish;
        return true;
    }
    if (answer->token >= 0 && answer->position < answer->prompt) {
        if (answer->logits) q->score[q->score_count++] = hash_of(answer->logits, p->vocab);
        return true;
    }
    if (answer->token < 0 || g->count == MOST_TOKENS) return true;
    g->tokens[g->count] = answer->token;
    g->logits[g->count++] = q->logits && answer->logits ? hash_of(answer->logits, p->vocab) : 0;
    return !(q->cancel_after && answer->sample == 0 && g->count >= q->cancel_after);
}

/* Some tokens of the vocabulary, the same ones in all requests, and what makes them likely. */
static const fb_logit_bias few_tokens[2] = {{0, BIAS}, {1, BIAS}};

/* The prompt is an earlier one and a part of its answer, and perhaps more; false: that would be too long. */
static bool go_on(proof *p, asked *q) {
    const asked *other = &p->requests[draw(&p->texts, (uint64_t)p->count)];
    const given *answer = &other->alone[draw(&p->texts, (uint64_t)other->samples)];
    int64_t more = (int64_t)draw(&p->texts, (uint64_t)answer->count + 1), same = other->prompt_count + more;
    if (same > p->most_prompt) return false;
    memcpy(q->prompt, other->prompt, (size_t)other->prompt_count * sizeof *q->prompt);
    memcpy(q->prompt + other->prompt_count, answer->tokens, (size_t)more * sizeof *q->prompt);
    if (q->prompt_count < same || draw(&p->texts, 2)) q->prompt_count = same;
    return true;
}

/* The prompt ends with pairs of the few tokens. */
static void repeat(asked *q) {
    static const int order[] = {0, 0, 1, 1, 0};
    enum { END = sizeof order / sizeof *order };
    for (int64_t i = 0; i < END && q->prompt_count >= 2 * END; i++)
        q->prompt[q->prompt_count - END + i] = few_tokens[order[i]].id;
}

/* A prompt of its own, or one that begins as an earlier one of the round, or goes on with its answer. */
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
    bool goes_on = p->count > 0 && draw(&p->texts, 2) && go_on(p, q);
    q->max_tokens = p->draft ? 1 + (int64_t)draw(&p->texts, MOST_TOKENS) : random_size(p, FEW_TOKENS);
    q->samples = random_below(p, 4) ? 1 : 1 + (int32_t)random_below(p, MOST_SAMPLES);
    q->greedy = random_below(p, 2);
    q->few = p->draft && p->vocab > 1 && draw(&p->texts, 2);
    if (q->few) q->greedy = false;
    if (q->few && !goes_on) repeat(q);
    q->logits = random_below(p, 4) != 0;
    q->seed = random_below(p, 1u << 30);
    q->cancel_after = random_below(p, 8) ? 0 : random_size(p, q->max_tokens);
    q->scores = q->prompt_count <= MOST_SCORES && draw(&p->changes, 4) == 0;
}

/* The options of an answer's sampler. */
static fb_sampler_options sampler_of(const asked *q, int32_t sample) {
    fb_sampler_options o;
    fb_sampler_options_default(&o);
    o.temperature = q->greedy ? 0 : q->few ? 20 : 1.5f; /* of the few each has its chance */
    o.top_k = q->few ? 2 : o.top_k;
    o.seed = q->seed;
    o.sequence = (uint64_t)sample;
    o.logit_bias = few_tokens;
    o.logit_bias_count = q->few ? 2 : 0;
    return o;
}

static fb_status submit(proof *p, fb_scheduler *s, asked *q, void **user, fb_error *err) {
    fb_sampler_options sampler = sampler_of(q, 0);
    fb_request_options o;
    fb_request_options_default(&o);
    o.prompt = q->prompt;
    o.prompt_count = q->prompt_count;
    o.max_tokens = q->max_tokens;
    o.samples = q->samples;
    o.sampler = q->greedy ? NULL : &sampler;
    o.priority = (int32_t)random_below(p, 3);
    o.past_end = true;
    o.wants_logits = q->logits;
    o.prompt_logits = q->scores;
    o.on_answer = on_answer;
    user[0] = p;
    user[1] = q;
    o.user = user;
    return fb_scheduler_submit(s, &o, NULL, err);
}

/* ---- the same alone ---- */

/* The prompt, and if its logits are told, token by token. */
static fb_status read_prompt(proof *p, asked *q, int32_t sample, fb_error *err) {
    if (!q->scores || sample) return fb_session_prefill(p->session, q->prompt, q->prompt_count, err);
    const float *logits;
    for (int64_t i = 0; i < q->prompt_count; i++) {
        FB_TRY(fb_session_prefill(p->session, q->prompt + i, 1, err));
        FB_TRY(fb_session_logits(p->session, &logits, NULL, NULL, err));
        q->alone_score[i] = hash_of(logits, p->vocab);
    }
    return FB_OK;
}

static fb_status write_alone(proof *p, asked *q, int32_t sample, fb_sampler *sampler, fb_error *err) {
    given *g = &q->alone[sample];
    const float *logits;
    for (int64_t i = 0; i < q->prompt_count; i++) fb_sampler_accept(sampler, q->prompt[i]);
    fb_session_reset(p->session);
    for (g->count = 0; g->count < q->max_tokens; g->count++) {
        int32_t *token = &g->tokens[g->count];
        FB_TRY(g->count == 0 ? read_prompt(p, q, sample, err)
                             : fb_session_decode(p->session, token[-1], err));
        FB_TRY(fb_session_logits(p->session, &logits, NULL, NULL, err));
        g->logits[g->count] = hash_of(logits, p->vocab);
        FB_TRY(fb_sampler_next(sampler, logits, token, err));
    }
    return FB_OK;
}

/* What the answers of a request are to be. The script may know it. */
static fb_status answer_alone(proof *p, asked *q, fb_error *err) {
    for (int32_t i = 0; i < q->samples; i++) {
        fb_sampler_options o = sampler_of(q, i);
        fb_sampler *sampler;
        FB_TRY(fb_sampler_create(&o, p->vocab, &sampler, err));
        fb_status status = write_alone(p, q, i, sampler, err);
        fb_sampler_free(sampler);
        FB_TRY(status);
        if (p->script)
            p->known[p->script->count++] =
                (fb_script_text){q->prompt, q->alone[i].tokens, q->prompt_count, q->alone[i].count};
    }
    return FB_OK;
}

/* ---- a round ---- */

/* Other fuses that are bit-identical, with those within a bound that are on; sometimes clocks. A fuse may
 * depend on others (`step`): a plan that would have to wait is taken back. */
static fb_status change_plan(proof *p, fb_scheduler *s, fb_error *err) {
    char list[512] = "", *before;
    fb_fuse_state state;
    fb_scheduler_stats stats;
    uint64_t off = draw(&p->changes, 32);
    bool few = draw(&p->changes, 4) == 0;
    for (int i = 0; fb_scheduler_fuse_state(s, i, &state); i++)
        if (state.bit ? (few ? draw(&p->changes, 2) != 0 : (uint64_t)i != off) : state.on)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? "," : "", state.name);
    FB_TRY(fb_scheduler_fuse_text(s, &before, err));
    fb_status status = fb_scheduler_fuse(s, *list ? list : "none", err);
    fb_scheduler_get_stats(s, &stats);
    if (status == FB_OK && stats.plan_pending) status = fb_scheduler_fuse(s, before, err);
    fb_free(before);
    if (status == FB_OK && draw(&p->changes, 4) == 0) status = fb_scheduler_profile(s, 2, err);
    return status;
}

/* Submits the requests some steps apart and runs until all have ended. */
static fb_status run_round(proof *p, fb_scheduler *s, int64_t requests, fb_error *err) {
    void *users[MOST_REQUESTS][2];
    bool busy = true;
    int64_t left = requests, before = 0;
    fb_scheduler_stats stats;
    while (left > 0 || busy) {
        /* With a draft later than without: a prompt that goes on with an answer finds it in the cache. */
        while (left > 0 && (!busy || random_below(p, 4) < (p->draft ? 1u : 3u))) {
            ask(p, &p->requests[p->count]);
            FB_TRY(answer_alone(p, &p->requests[p->count], err));
            FB_TRY(submit(p, s, &p->requests[p->count], users[p->count], err));
            p->count++;
            left--;
            busy = true;
        }
        /* A change makes rows that are between two layers begin again. */
        if (draw(&p->changes, p->by_layer ? 16 : 2) == 0) FB_TRY(change_plan(p, s, err));
        FB_TRY(fb_scheduler_step(s, &busy, err));
        fb_scheduler_get_stats(s, &stats);
        if (stats.rows - before > p->report.most_rows) p->report.most_rows = stats.rows - before;
        before = stats.rows;
    }
    p->report.steps += stats.steps;
    p->report.rows += stats.rows;
    p->report.preempted += stats.preempted;
    p->report.cached_tokens += stats.cached_tokens;
    p->report.plan_changes += stats.plan_changes;
    p->report.held_steps += stats.held_steps;
    p->drafted += stats.drafted;
    p->kept += stats.kept;
    if (stats.blocks_free != stats.blocks && !p->report.first[0])
        snprintf(p->report.first, sizeof p->report.first, "%lld of %lld blocks are still in use",
                 (long long)(stats.blocks - stats.blocks_free), (long long)stats.blocks);
    return FB_OK;
}

/* Blocks, memory and rows of a step that differ from round to round. */
static fb_status open_round(proof *p, fb_scheduler **out, fb_error *err) {
    static const int64_t blocks[] = {16, 32, 64, 128};
    fb_scheduler_options o;
    fb_scheduler_options_default(&o);
    fb_session_options session = p->options;
    session.capacity = 0;
    session.draft = p->draft;
    o.block = blocks[random_below(p, 4)];
    if (p->draft && draw(&p->texts, 2)) o.block = blocks[0]; /* most answers then end in another block */
    o.sequences = MOST_SAMPLES + (int64_t)random_below(p, MOST_ANSWERS - MOST_SAMPLES + 1);
    /* Sometimes hardly more than one request needs, so that others are put back. */
    int64_t least = p->most_prompt + p->most_tokens + o.block;
    o.cache_tokens = least + (int64_t)random_below(p, 3) * (int64_t)random_below(p, (uint64_t)(4 * least));
    o.rows = o.sequences + (int64_t)random_below(p, 200);
    p->by_layer = p->cpu && draw(&p->cuts, 3) == 0; /* as little of a prompt as possible in a step */
    o.stretch = random_below(p, 2) ? 0 : 4;
    if (p->by_layer) o.stretch = 1;
    o.prefix_cache = random_below(p, 4) != 0;
    return fb_scheduler_create(p->model, &session, &o, out, err);
}

/* ---- both compared ---- */

static void differs(proof *p, const asked *q, int32_t sample, int64_t token, const char *what) {
    p->report.different++;
    if (p->report.first[0]) return;
    snprintf(p->report.first, sizeof p->report.first, "request of %lld tokens, answer %d, token %lld: %s",
             (long long)q->prompt_count, sample, (long long)token, what);
}

static void compare_prompt(proof *p, const asked *q) {
    for (int64_t i = 0; i < q->score_count; i++) {
        p->report.scores++;
        if (q->score[i] == q->alone_score[i]) continue;
        differs(p, q, 0, i, "other logits of the prompt than alone");
        break;
    }
    if (q->score_count != q->prompt_count - 1 && q->answers[0].count)
        differs(p, q, 0, q->score_count, "not all of the prompt was told");
}

static void compare_tokens(proof *p, const asked *q, int32_t sample) {
    const given *g = &q->answers[sample], *alone = &q->alone[sample];
    for (int64_t i = 0; i < g->count; i++) {
        const char *what = NULL;
        p->report.tokens++;
        if (g->tokens[i] != alone->tokens[i]) what = "another token than alone";
        if (q->logits && g->logits[i] != alone->logits[i]) what = "other logits than alone";
        if (!what) continue;
        differs(p, q, sample, i, what);
        return;
    }
}

static void compare_answer(proof *p, const asked *q, int32_t sample) {
    const given *g = &q->answers[sample];
    bool cancelled = g->finish == FB_FINISH_CANCELLED;
    p->report.answers++;
    p->report.cancelled += cancelled;
    if (!(cancelled ? q->cancel_after != 0 : g->finish == FB_FINISH_LENGTH && g->count == q->max_tokens))
        differs(p, q, sample, g->count, "it ended too early");
    if (q->scores && !sample) compare_prompt(p, q);
    compare_tokens(p, q, sample);
}

static fb_status run_one(proof *p, fb_error *err) {
    fb_scheduler *s;
    FB_TRY(open_round(p, &s, err));
    p->count = 0;
    if (p->script) p->script->count = 0;
    int64_t requests = 1 + (int64_t)random_below(p, MOST_REQUESTS);
    fb_status status = run_round(p, s, requests, err);
    fb_scheduler_free(s);
    FB_TRY(status);
    p->report.requests += p->count;
    for (int64_t i = 0; i < p->count; i++)
        for (int32_t sample = 0; sample < p->requests[i].samples; sample++)
            compare_answer(p, &p->requests[i], sample);
    p->report.rounds++;
    return FB_OK;
}

/* With a draft until some guess was right. */
static fb_status run_rounds(proof *p, int64_t rounds, fb_error *err) {
    for (int64_t round = 0; round < rounds || (p->draft && !p->kept && round < rounds + MOST_MORE); round++)
        FB_TRY(run_one(p, err));
    return FB_OK;
}

static int64_t longest_prompt(const fb_model *model) {
    const fb_program *p = &model->spec->program;
    bool forgets = false;
    for (int32_t k = 0; k < p->kind_count; k++) forgets = forgets || p->kinds[k].window;
    return forgets ? LONG_PROMPT : MOST_PROMPT;
}

/* Its chunk is random, and with it the ring of layers that have a window. */
static fb_status open_alone(proof *p, fb_session **out, fb_error *err) {
    fb_session_options o = p->options;
    o.chunk = 1 + (int64_t)draw(&p->cuts, 300);
    FB_TRY(fb_session_create(p->model, &o, out, err));
    p->cpu = strcmp(fb_session_backend(*out), "cpu") == 0;
    return FB_OK;
}

fb_status fb_verify_batch_with(const fb_model *model, const fb_batch_verify_options *given_options,
                               const fb_draft *draft, fb_script *script, fb_batch_report *report,
                               int64_t *drafted, int64_t *kept, fb_error *err) {
    fb_batch_verify_options o;
    FB_TRY(fb_batch_verify_options_take(given_options, &o, err));
    if (o.rounds < 1 || o.rounds > MAX_ROUNDS)
        return fb_fail(err, FB_ERROR_USAGE, "rounds: %lld (1 to %d)", (long long)o.rounds, MAX_ROUNDS);
    proof *p = calloc(1, sizeof *p);
    asked *requests = malloc(MOST_REQUESTS * sizeof *requests);
    fb_status status =
        p && requests ? FB_OK : fb_fail_memory(err, "requests", MOST_REQUESTS * (int64_t)sizeof *requests);
    if (status == FB_OK) {
        p->model = model;
        p->options = fb_batch_verify_session(&o);
        p->draft = draft;
        p->random = p->changes = p->cuts = p->texts = o.seed;
        p->script = script;
        if (script) script->texts = p->known;
        p->vocab = model->spec->program.vocab;
        p->requests = requests;
        p->most_tokens = draft ? MOST_TOKENS : FEW_TOKENS;
        p->most_prompt = model->spec->program.context - p->most_tokens - 1;
        if (p->most_prompt > longest_prompt(model)) p->most_prompt = longest_prompt(model);
        if (p->most_prompt < 1)
            status = fb_fail(err, FB_ERROR_UNSUPPORTED, "context: %lld (at least %d, to compare batches)",
                             (long long)model->spec->program.context, (int)p->most_tokens + 2);
    }
    if (status == FB_OK) status = open_alone(p, &p->session, err);
    if (status == FB_OK) status = run_rounds(p, o.rounds, err);
    if (status == FB_OK) {
        p->report.ok = p->report.different == 0 && !p->report.first[0];
        fb_sized_give(&p->report, sizeof p->report, report);
        *drafted = p->drafted;
        *kept = p->kept;
    }
    if (script) script->count = 0; /* its texts go */
    if (p) fb_session_free(p->session);
    free(requests);
    free(p);
    return status;
}

fb_status fb_verify_batch(const fb_model *model, const fb_batch_verify_options *options,
                          fb_batch_report *report, fb_error *err) {
    int64_t drafted, kept;
    return fb_verify_batch_with(model, options, NULL, NULL, report, &drafted, &kept, err);
}
