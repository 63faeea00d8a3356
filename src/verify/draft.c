/* Texts with drafts, compared with the same decoded one by one. */
#include <stdio.h>
#include <stdlib.h>

#include "base/options.h"
#include "base/sized.h"
#include "draft/draft.h"
#include "verify/batch.h"
#include "verify/draft_text.h"
#include "verify/golden.h"

#define MOST_TOKENS 4096
#define MOST_PROMPT 4096
#define MOST_ROUNDS 100000
/* Batches need so much for their prompts. */
#define LEAST_CONTEXT 96
/* A ring that a short text goes round in, and how it is read. */
#define WINDOW 24
#define SINKS  4
#define CHUNK  16
/* More tokens than that ring has slots. */
#define LONG_TEXT (fb_ring_size(WINDOW, CHUNK) + 48)
/* Tokens that a session cannot go back there: nothing is left of what came before. */
#define BEYOND fb_ring_size(WINDOW, CHUNK)
/* Times that a session goes back in a text. */
#define TURNS 2

FB_SIZED_ENDS_WITH(fb_draft_report, first);

static const fb_text_mode modes[] = {
    {.name = "greedy", .greedy = true},
    {.name = "the best of all logits"},
    {.name = "sampled", .sampled = true, .temperature = 0.8f, .top_k = 40},
    {.name = "sampled with penalties", .sampled = true, .temperature = 1.3f, .presence = 0.7f},
    {.name = "sampled among two", .sampled = true, .few = true, .temperature = 20, .top_k = 2},
};
enum { MODES = sizeof modes / sizeof *modes, BEST = 1, FEW = MODES - 1 };

static const fb_cache_kind caches[] = {FB_CACHE_DENSE, FB_CACHE_WINDOW, FB_CACHE_SINKS};
enum { CACHES = sizeof caches / sizeof *caches };

typedef fb_draft_proof proof;

/* ---- drafts ---- */

/* As a smaller model guesses, but some guesses are lost: what the model wrote for them is not overwritten. */
static fb_status guess_and_lose(fb_drafter *d, fb_draft_ask *asks, int64_t count, fb_error *err) {
    fb_status status = fb_draft_smaller.guess(d, asks, count, err);
    for (int64_t i = 0; i < count && status == FB_OK; i++)
        if (asks[i].count % 2 == 0) asks[i].made /= 2;
    return status;
}

/* One draft, in several ways. */
typedef struct drafts {
    fb_draft *made; /* as many guesses as there can be */
    fb_draft free;  /* as many as pay */
    fb_draft losing;
    fb_draft_source loses;
} drafts;

static fb_status make_drafts(proof *p, const char *source, drafts *d, fb_error *err) {
    fb_draft_options o;
    fb_draft_options_default(&o);
    o.source = source;
    o.fixed = 1;
    if (strcmp(source, "scripted") == 0) {
        o.propose = fb_script_propose;
        o.user = &p->script;
    }
    FB_TRY(fb_draft_create(p->model, &o, &d->made, err));
    d->free = d->losing = *d->made;
    d->free.options.fixed = 0;
    d->loses = fb_draft_smaller;
    d->loses.guess = guess_and_lose;
    if (d->made->source == &fb_draft_smaller) d->losing.source = &d->loses;
    return FB_OK;
}

static void set_cache(proof *p, fb_cache_kind cache, int64_t gen) {
    p->session.cache = cache;
    p->session.capacity = cache == FB_CACHE_DENSE ? p->prompt_count + gen : 0;
    p->session.window = cache == FB_CACHE_DENSE ? 0 : WINDOW;
    p->session.chunk = cache == FB_CACHE_DENSE ? 0 : CHUNK;
    p->session.sinks = SINKS;
}

/* Models with windows of their own refuse some caches. */
static bool can_have(const proof *p) {
    fb_session *session;
    if (fb_session_create(p->model, &p->session, &session, NULL) != FB_OK)
        return p->session.cache == FB_CACHE_DENSE; /* whose error will be told */
    fb_session_free(session);
    return true;
}

/* With as many guesses as there can be, going back; with those that pay; and going back without a draft. */
static fb_status compare_mode(proof *p, const drafts *d, const fb_text_mode *mode,
                              const fb_draft_verify_options *o, fb_error *err) {
    const fb_text_course courses[] = {{d->made, TURNS, 0}, {&d->free, 0, 0}, {NULL, TURNS, 0}};
    FB_TRY(fb_plain_text_write(p, mode, o->gen, err));
    for (int i = 0; i < (o->rounds ? 3 : 2); i++) FB_TRY(fb_text_follow(p, mode, &courses[i], err));
    return FB_OK;
}

/* A text that goes round in a ring, from whose end a session goes back as far as it can. */
static fb_status compare_ring(proof *p, const drafts *d, const fb_text_mode *mode, fb_error *err) {
    const fb_text_course courses[] = {{NULL, 2, BEYOND}, {&d->losing, 2, BEYOND}};
    FB_TRY(fb_plain_text_write(p, mode, LONG_TEXT, err));
    for (size_t i = 0; i < sizeof courses / sizeof *courses; i++)
        FB_TRY(fb_text_follow(p, mode, &courses[i], err));
    return FB_OK;
}

static fb_status compare_texts(proof *p, const drafts *d, const fb_draft_verify_options *o, fb_error *err) {
    bool rotates = p->model->spec->program.frequencies != NULL;
    for (int c = 0; c < CACHES; c++) {
        bool ring = caches[c] != FB_CACHE_DENSE;
        if (ring && !rotates) continue;
        set_cache(p, caches[c], o->gen);
        if (!can_have(p)) continue;
        for (int m = 0; m < MODES; m++) FB_TRY(compare_mode(p, d, &modes[m], o, err));
        if (!ring || !o->rounds) continue;
        FB_TRY(compare_ring(p, d, &modes[caches[c] == FB_CACHE_WINDOW ? BEST : FEW], err));
    }
    set_cache(p, FB_CACHE_DENSE, o->gen);
    return FB_OK;
}

static fb_status compare_batches(proof *p, const fb_draft_verify_options *given, const fb_draft *draft,
                                 fb_error *err) {
    fb_batch_verify_options o;
    fb_batch_report r = {.size = sizeof r};
    int64_t drafted, kept;
    if (!given->rounds || p->model->spec->program.context < LEAST_CONTEXT) return FB_OK;
    fb_batch_verify_options_default(&o);
    o.threads = given->threads;
    o.act = given->act;
    o.kv = given->kv;
    o.isa = given->isa;
    o.backend = given->backend;
    o.fuse = given->fuse;
    o.machine = given->machine;
    o.exact = given->exact;
    o.float_dot = given->float_dot;
    o.rounds = given->rounds;
    o.seed = given->seed;
    FB_TRY(fb_verify_batch_with(p->model, &o, draft, &p->script, &r, &drafted, &kept, err));
    p->report.texts += r.answers;
    p->report.tokens += r.tokens;
    p->report.steps += r.steps;
    p->report.drafted += drafted;
    p->report.kept += kept;
    p->report.different += r.different;
    if (!r.ok && !p->report.first[0])
        snprintf(p->report.first, sizeof p->report.first, "in batches: %.200s", r.first);
    if (!kept && !p->report.first[0])
        snprintf(p->report.first, sizeof p->report.first,
                 "in batches no guess was right: nothing was checked");
    return FB_OK;
}

/* ---- all of it ---- */

/* Two tokens, in an order after which each pair of them has been there. */
static void end_prompt(proof *p) {
    static const int order[] = {0, 0, 1, 1, 0};
    enum { END = sizeof order / sizeof *order };
    p->few[0] = p->prompt[0];
    p->few[1] = p->vocab > 1 && p->few[0] == 0 ? 1 : 0;
    for (int64_t i = 1; i < p->prompt_count; i++)
        if (p->prompt[i] != p->few[0]) p->few[1] = p->prompt[i];
    for (int64_t i = 0; i < END && p->prompt_count >= 2 * END; i++)
        p->prompt[p->prompt_count - END + i] = p->few[order[i]];
}

static fb_status take_prompt(proof *p, const fb_draft_verify_options *o, fb_error *err) {
    const char *golden = o->golden;
    fb_golden g;
    p->prompt_count = o->prompt;
    if (golden) {
        FB_TRY(fb_golden_open(golden, &g, err));
        if (g.tokens < p->prompt_count) p->prompt_count = g.tokens;
    }
    int64_t most = p->model->spec->program.context - o->gen;
    if (p->prompt_count > most) p->prompt_count = most;
    for (int64_t i = 0; i < p->prompt_count; i++)
        p->prompt[i] = golden
                           ? (int32_t)fb_golden_int(g.ids, i)
                           : (int32_t)fb_script_draw(&p->random, (uint64_t)(p->vocab < 64 ? p->vocab : 64));
    if (golden) fb_golden_close(&g);
    if (p->prompt_count >= 1) {
        end_prompt(p);
        return FB_OK;
    }
    return fb_fail(err, FB_ERROR_USAGE, "gen: %lld (at most %lld: the model's context is %lld)",
                   (long long)o->gen, (long long)p->model->spec->program.context - 1,
                   (long long)p->model->spec->program.context);
}

static fb_status take_memory(proof *p, const fb_draft_verify_options *o, fb_error *err) {
    int64_t room = o->gen > LONG_TEXT ? o->gen : LONG_TEXT;
    p->prompt = malloc((size_t)o->prompt * sizeof *p->prompt);
    p->plain.tokens = malloc((size_t)room * sizeof *p->plain.tokens);
    p->plain.logits = malloc((size_t)room * sizeof *p->plain.logits);
    if (p->prompt && p->plain.tokens && p->plain.logits) return FB_OK;
    return fb_fail_memory(err, "texts", room * 12);
}

static fb_status prove(proof *p, const fb_draft_verify_options *o, fb_error *err) {
    drafts d = {.made = NULL};
    FB_TRY(take_memory(p, o, err));
    FB_TRY(take_prompt(p, o, err));
    fb_status status = make_drafts(p, o->source, &d, err);
    if (status == FB_OK) status = compare_texts(p, &d, o, err);
    if (status == FB_OK) status = compare_batches(p, o, d.made, err);
    fb_draft_free(d.made);
    return status;
}

fb_status fb_verify_draft(const fb_model *model, const fb_draft_verify_options *given,
                          fb_draft_report *report, fb_error *err) {
    fb_draft_verify_options o;
    FB_TRY(fb_draft_verify_options_take(given, &o, err));
    if (!o.source) return fb_fail(err, FB_ERROR_USAGE, "source: none (ngram, q4, a model, or scripted)");
    if (o.gen < 2 || o.gen > MOST_TOKENS)
        return fb_fail(err, FB_ERROR_USAGE, "gen: %lld (2 to %d)", (long long)o.gen, MOST_TOKENS);
    if (o.prompt < 1 || o.prompt > MOST_PROMPT)
        return fb_fail(err, FB_ERROR_USAGE, "prompt: %lld (1 to %d)", (long long)o.prompt, MOST_PROMPT);
    if (o.rounds < 0 || o.rounds > MOST_ROUNDS)
        return fb_fail(err, FB_ERROR_USAGE, "rounds: %lld (0 to %d)", (long long)o.rounds, MOST_ROUNDS);
    proof *p = calloc(1, sizeof *p);
    if (!p) return fb_fail_memory(err, "texts", sizeof *p);
    p->model = model;
    p->session = fb_draft_verify_session(&o);
    p->random = o.seed;
    p->vocab = model->spec->program.vocab;
    p->script = (fb_script){.random = o.seed, .vocab = p->vocab};
    fb_status status = prove(p, &o, err);
    if (status == FB_OK && !p->report.kept && !p->report.first[0])
        snprintf(p->report.first, sizeof p->report.first, "no guess was %s: nothing was checked",
                 p->report.drafted ? "right" : "made");
    p->report.ok = p->report.different == 0 && !p->report.first[0];
    if (status == FB_OK) fb_sized_give(&p->report, sizeof p->report, report);
    free(p->prompt);
    free(p->plain.tokens);
    free(p->plain.logits);
    free(p);
    return status;
}
