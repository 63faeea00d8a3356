#include "verify/draft_text.h"

#include <stdio.h>
#include <string.h>

#include "model/model.h"
#include "run/cache.h"

/* A run of the text's end, so that guesses are not cut off by it. */
#define MARGIN 9
#define AFTER  12  /* tokens of a long text that are compared after the last time that it goes back */
#define BIAS   100 /* more than logits differ by */

static int64_t random_below(fb_draft_proof *p, int64_t limit) {
    return (int64_t)fb_script_draw(&p->random, (uint64_t)limit);
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

/* ---- a session on its way through a text ---- */

typedef struct walk {
    fb_draft_proof *p;
    const fb_text_mode *mode;
    fb_session *session;
    fb_sampler *sampler;
    int64_t count; /* tokens of the text; the session has all but the last one */
    bool differs;
} walk;

/* A sampler that has chosen the first tokens of the text. */
static fb_status make_sampler(walk *w, int64_t chosen, fb_error *err) {
    const fb_draft_proof *p = w->p;
    const fb_text_mode *m = w->mode;
    const fb_logit_bias bias[2] = {{p->few[0], BIAS}, {p->few[1], BIAS}};
    fb_sampler_options o;
    fb_sampler_options_default(&o);
    o.temperature = m->temperature;
    o.presence_penalty = m->presence;
    o.top_k = m->top_k;
    o.seed = 7;
    o.logit_bias = bias;
    o.logit_bias_count = m->few ? 2 : 0;
    fb_sampler_free(w->sampler);
    w->sampler = NULL;
    FB_TRY(fb_sampler_create(&o, p->vocab, &w->sampler, err));
    for (int64_t i = 0; i < p->prompt_count; i++) fb_sampler_accept(w->sampler, p->prompt[i]);
    for (int64_t i = 0; i < chosen; i++) fb_sampler_accept(w->sampler, p->plain.tokens[i]);
    fb_sampler_seek(w->sampler, (uint64_t)chosen);
    return FB_OK;
}

/* Logits of rows; NULL: the session or its device did not give any. */
static const float *logits_of(fb_session *session) {
    const float *logits;
    return fb_session_logits(session, &logits, NULL, NULL, NULL) == FB_OK ? logits : NULL;
}

/* Reads what the session lacks of the prompt, and chooses the first token. */
static fb_status first_token(walk *w, int32_t *token, uint64_t *hash, fb_error *err) {
    fb_draft_proof *p = w->p;
    int64_t read = fb_session_position(w->session);
    FB_TRY(fb_session_prefill(w->session, p->prompt + read, p->prompt_count - read, err));
    const float *logits = logits_of(w->session);
    *hash = logits ? hash_of(logits, p->vocab) : 0;
    w->count = 1;
    return w->mode->sampled ? fb_sampler_next(w->sampler, logits, token, err)
                            : fb_session_best(w->session, token, err);
}

static fb_status walk_open(fb_draft_proof *p, const fb_text_mode *m, const fb_draft *draft, walk *w,
                           fb_error *err) {
    fb_session_options o = p->session;
    *w = (walk){.p = p, .mode = m};
    o.greedy = m->greedy;
    o.draft = draft;
    FB_TRY(make_sampler(w, 0, err));
    return fb_session_create(p->model, &o, &w->session, err);
}

static void walk_close(walk *w) {
    fb_session_free(w->session);
    fb_sampler_free(w->sampler);
}

/* ---- one by one ---- */

static fb_status write_plain(walk *w, int64_t count, fb_error *err) {
    fb_plain_text *t = &w->p->plain;
    FB_TRY(first_token(w, &t->tokens[0], &t->logits[0], err));
    for (t->count = 1; t->count < count; t->count++) {
        int32_t *token = &t->tokens[t->count], last = token[-1];
        if (w->mode->sampled) {
            FB_TRY(fb_session_next(w->session, last, w->sampler, token, err));
        } else {
            FB_TRY(fb_session_decode(w->session, last, err));
            FB_TRY(fb_session_best(w->session, token, err));
        }
        const float *logits = logits_of(w->session);
        t->logits[t->count] = logits ? hash_of(logits, w->p->vocab) : 0;
    }
    return FB_OK;
}

fb_status fb_plain_text_write(fb_draft_proof *p, const fb_text_mode *mode, int64_t count, fb_error *err) {
    walk w;
    fb_status status = walk_open(p, mode, NULL, &w, err);
    if (status == FB_OK) status = write_plain(&w, count, err);
    walk_close(&w);
    p->known = (fb_script_text){p->prompt, p->plain.tokens, p->prompt_count, p->plain.count};
    p->script.texts = &p->known;
    p->script.count = 1;
    return status;
}

/* ---- in runs ---- */

static void compare(walk *w, int64_t at, int32_t token, uint64_t hash) {
    fb_draft_proof *p = w->p;
    const char *what = NULL;
    p->report.tokens++;
    if (token != p->plain.tokens[at]) what = "another token than one by one";
    if (p->plain.logits[at] && hash && hash != p->plain.logits[at]) what = "other logits than one by one";
    if (!what || w->differs) return;
    w->differs = true;
    p->report.different++;
    if (p->report.first[0]) return;
    snprintf(p->report.first, sizeof p->report.first, "%s, cache %s, token %lld: %s", w->mode->name,
             fb_cache_name(p->session.cache), (long long)at, what);
}

/* One run of at most so many tokens. */
static fb_status run(walk *w, int64_t most, fb_error *err) {
    fb_draft_proof *p = w->p;
    int32_t ids[FB_MAX_DRAFT + 1];
    int64_t count, before = fb_session_position(w->session);
    FB_TRY(fb_session_speculate(w->session, p->plain.tokens[w->count - 1],
                                w->mode->sampled ? w->sampler : NULL, most, ids, &count, err));
    if (count < 1 || count > most || fb_session_position(w->session) != before + count)
        return fb_fail(err, FB_ERROR_SYSTEM, "draft: a run of %lld tokens from position %lld to %lld",
                       (long long)count, (long long)before, (long long)fb_session_position(w->session));
    const float *logits = logits_of(w->session);
    for (int64_t i = 0; i < count; i++)
        compare(w, w->count + i, ids[i], logits ? hash_of(logits + i * p->vocab, p->vocab) : 0);
    w->count += count;
    p->report.steps++;
    return FB_OK;
}

static fb_status begin(walk *w, fb_error *err) {
    int32_t token;
    uint64_t hash;
    FB_TRY(first_token(w, &token, &hash, err));
    compare(w, 0, token, hash);
    return FB_OK;
}

/* Goes back to any place, also into the prompt, or as far as it can. If the session lets it, `beyond` tokens.
 */
static fb_status go_back(walk *w, bool far, int64_t beyond, fb_error *err) {
    fb_draft_proof *p = w->p;
    fb_cache_info info;
    int64_t position = fb_session_position(w->session), left = position - beyond;
    fb_session_get_cache(w->session, &info);
    if (!beyond || left < 0 || fb_session_trim(w->session, left, NULL) != FB_OK) {
        int64_t most = info.trimmable < position ? info.trimmable : position;
        left = position - (far ? most : random_below(p, most + 1));
        FB_TRY(fb_session_trim(w->session, left, err));
    }
    if (fb_session_position(w->session) != left)
        return fb_fail(err, FB_ERROR_SYSTEM, "trim: to %lld tokens (%lld were asked for)",
                       (long long)fb_session_position(w->session), (long long)left);
    w->count = left < p->prompt_count ? 0 : left - p->prompt_count + 1;
    FB_TRY(make_sampler(w, w->count, err));
    return w->count ? FB_OK : begin(w, err);
}

static fb_status follow(walk *w, const fb_text_course *c, fb_error *err) {
    fb_draft_proof *p = w->p;
    int64_t all = p->plain.count;
    FB_TRY(begin(w, err));
    for (int64_t turn = 0; turn < c->turns && !w->differs; turn++) {
        int64_t near = all > MARGIN ? all - MARGIN : 1, until = c->beyond ? near : 1 + random_below(p, near);
        while (w->count < until && !w->differs) {
            int64_t left = all - w->count, most = 1 + random_below(p, MARGIN);
            FB_TRY(run(w, most < left ? most : left, err));
        }
        if (!w->differs) FB_TRY(go_back(w, c->beyond || random_below(p, 3) == 0, turn ? 0 : c->beyond, err));
    }
    if (c->beyond && all > w->count + AFTER) all = w->count + AFTER;
    while (w->count < all && !w->differs) FB_TRY(run(w, all - w->count, err));
    return FB_OK;
}

fb_status fb_text_follow(fb_draft_proof *p, const fb_text_mode *mode, const fb_text_course *course,
                         fb_error *err) {
    walk w;
    fb_draft_stats stats;
    fb_status status = walk_open(p, mode, course->draft, &w, err);
    if (status == FB_OK) status = follow(&w, course, err);
    if (status == FB_OK) {
        fb_session_get_draft(w.session, &stats);
        p->report.texts++;
        p->report.drafted += stats.drafted;
        p->report.kept += stats.kept;
    }
    walk_close(&w);
    return status;
}
