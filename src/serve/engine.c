#include "serve/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* Seconds that a stop waits for steps of requests that were cancelled. */
#define STOP_SECONDS 10.0
#define PROBE_TOKENS 24
#define PROBE_ANSWER 4

/* ---- the fingerprint --------------------------------------------------------------------------- */

/* Two servers with the same fingerprint gave the same bits for the logits of a short text: it stands for
 * weights, kernels, types and plan together. */
typedef struct probe {
    uint64_t hash;
    int64_t vocab;
    bool failed;
} probe;

static bool on_probe(void *user, const fb_answer *a) {
    probe *p = user;
    p->failed |= a->finish == FB_FINISH_FAILED;
    for (int64_t i = 0; a->logits && i < p->vocab; i++) {
        uint32_t bits;
        memcpy(&bits, &a->logits[i], sizeof bits);
        p->hash = (p->hash ^ bits) * 0x100000001b3u;
    }
    return true;
}

static fb_status find_fingerprint(serve_engine *e, fb_error *err) {
    int32_t prompt[PROBE_TOKENS];
    probe p = {.hash = 0xcbf29ce484222325u, .vocab = e->vocab};
    int64_t count = e->capacity > 2 * PROBE_TOKENS ? PROBE_TOKENS : 1;
    for (int64_t i = 0; i < count; i++) prompt[i] = (int32_t)((i * 7919 + 13) % e->vocab);
    fb_request_options o;
    fb_request_options_default(&o);
    o.prompt = prompt;
    o.prompt_count = count;
    o.max_tokens = count > 1 ? PROBE_ANSWER : 1;
    o.past_end = true;
    o.wants_logits = 1;
    o.draft = 0;
    o.on_answer = on_probe;
    o.user = &p;
    fb_status status = fb_scheduler_submit(e->scheduler, &o, NULL, err);
    for (bool busy = true; status == FB_OK && busy;) status = fb_scheduler_step(e->scheduler, &busy, err);
    snprintf(e->fingerprint, sizeof e->fingerprint, p.failed ? "fb_none" : "fb_%016llx",
             (unsigned long long)p.hash);
    return status;
}

void serve_engine_fingerprint(serve_engine *e, uint32_t plan, char text[SERVE_FINGERPRINT_BYTES]) {
    uint32_t bounded = plan & serve_fuses_bounded(e);
    if (bounded == e->bounded)
        snprintf(text, SERVE_FINGERPRINT_BYTES, "%s", e->fingerprint);
    else
        snprintf(text, SERVE_FINGERPRINT_BYTES, "%s-%x", e->fingerprint, bounded);
}

/* ---- opening ----------------------------------------------------------------------------------- */

/* The names of what runs, which a session of the same options has. */
static fb_status find_device(serve_engine *e, fb_error *err) {
    fb_session *session;
    fb_session_options o = e->session;
    o.capacity = 16;
    o.draft = NULL;
    fb_status status = fb_session_create(e->model, &o, &session, err);
    if (status != FB_OK) return status;
    snprintf(e->backend, sizeof e->backend, "%s", fb_session_backend(session));
    snprintf(e->isa, sizeof e->isa, "%s", fb_session_isa(session));
    e->threads = fb_session_threads(session);
    fb_session_free(session);
    return FB_OK;
}

/* A step has no more rows than a cache has places, and needs one for each answer. */
static void leave_rows(serve_engine *e, int64_t context) {
    if (e->options.sequences > context) e->options.sequences = context;
    if (e->session.capacity < e->options.sequences) e->session.capacity = e->options.sequences;
}

fb_status serve_engine_open(serve_engine *e, fb_error *err) {
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->switching, NULL);
    pthread_mutex_init(&e->steps.lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    fb_model_info info;
    const char *name, *text;
    fb_sampler_options sampler;
    fb_model_get_info(e->model, &info);
    e->vocab = info.vocab;
    e->chat = fb_model_chat_template(e->model, 0, &name, &text);
    fb_sampler_options_default(&sampler);
    e->capacity = e->session.capacity;
    leave_rows(e, info.context);
    fb_status status = fb_sampler_create(&sampler, info.vocab, &e->scorer, err);
    if (status == FB_OK) status = find_device(e, err);
    if (status == FB_OK) status = fb_scheduler_create(e->model, &e->session, &e->options, &e->scheduler, err);
    if (status != FB_OK) return status;
    status = find_fingerprint(e, err);
    e->plan = e->wanted = serve_fuses_on(e);
    e->bounded = e->wanted & serve_fuses_bounded(e);
    return status;
}

/* ---- the thread -------------------------------------------------------------------------------- */

static bool wait_for_work(serve_engine *e) {
    pthread_mutex_lock(&e->lock);
    while (!e->awake && !e->stop) pthread_cond_wait(&e->wake, &e->lock);
    e->awake = false;
    bool stop = e->stop;
    pthread_mutex_unlock(&e->lock);
    return !stop;
}

/* One step, and what is to be known of it. */
static bool step(serve_engine *e, int64_t *steps) {
    bool busy;
    fb_scheduler_stats stats;
    fb_status status = fb_scheduler_step(e->scheduler, &busy, NULL);
    fb_scheduler_get_stats(e->scheduler, &stats);
    if (stats.plan_changes != e->plan_changes) e->plan = serve_fuses_on(e);
    e->plan_changes = stats.plan_changes;
    if (status == FB_OK && stats.steps > *steps && !stats.last_timed)
        serve_steps_add(&e->steps, e->plan, (int32_t)stats.last_rows, stats.last_decode,
                        (int32_t)(stats.tokens - e->tokens), stats.last_seconds);
    e->tokens = stats.tokens;
    *steps = stats.steps;
    return busy;
}

static void *run(void *arg) {
    serve_engine *e = arg;
    int64_t steps = 0;
    do {
        while (step(e, &steps)) {
        }
    } while (wait_for_work(e));
    double began = fb_now();
    for (bool busy = true; busy && fb_now() - began < STOP_SECONDS;)
        fb_scheduler_step(e->scheduler, &busy, NULL);
    return NULL;
}

void serve_engine_wake(serve_engine *e) {
    pthread_mutex_lock(&e->lock);
    e->awake = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

fb_status serve_engine_start(serve_engine *e, fb_error *err) {
    e->started = pthread_create(&e->thread, NULL, run, e) == 0;
    if (e->started) return FB_OK;
    if (err) {
        err->status = FB_ERROR_SYSTEM;
        snprintf(err->message, sizeof err->message, "thread: the system has none for %s", e->name);
    }
    return FB_ERROR_SYSTEM;
}

void serve_engine_close(serve_engine *e) {
    if (e->started) {
        pthread_mutex_lock(&e->lock);
        e->stop = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    fb_scheduler_free(e->scheduler);
    fb_sampler_free(e->scorer);
    fb_draft_free(e->draft);
    fb_model_free(e->model);
    free(e->name);
    free(e->path);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->switching);
    pthread_mutex_destroy(&e->steps.lock);
}

/* ---- jobs -------------------------------------------------------------------------------------- */

static bool take_place(serve_engine *e, int64_t count) {
    pthread_mutex_lock(&e->lock);
    bool room = e->jobs + count <= e->max_jobs;
    if (room) e->jobs += count;
    pthread_mutex_unlock(&e->lock);
    return room;
}

static void give_places(serve_engine *e, int64_t count) {
    pthread_mutex_lock(&e->lock);
    e->jobs -= count;
    pthread_mutex_unlock(&e->lock);
}

void serve_engine_count(serve_engine *e, fb_finish finish) {
    if ((unsigned)finish < SERVE_FINISHES) atomic_fetch_add(&e->metrics.finished[finish], 1);
    give_places(e, 1);
}

bool serve_engine_submit(serve_engine *e, serve_job *j, const fb_request_options *options,
                         serve_fault *fault) {
    fb_error err = {.status = FB_OK};
    if (j->choice_count > e->max_jobs)
        return serve_fault_set(fault, 400, j->samples > 1 ? "n" : "prompt", "invalid_value",
                               "answers: %d (%d prompts with n = %d; at most %lld, --max-requests)",
                               j->choice_count, j->part_count, j->samples, (long long)e->max_jobs);
    if (!take_place(e, j->choice_count)) {
        atomic_fetch_add(&e->metrics.refused, 1);
        return serve_fault_set(fault, 429, NULL, "busy",
                               "server: %lld answers are running or waiting (--max-requests)",
                               (long long)e->max_jobs);
    }
    for (int32_t i = 0; i < j->part_count; i++) {
        serve_part *part = &j->parts[i];
        fb_request_options o = *options;
        fb_sampler_options sampler = *options->sampler;
        sampler.sequence += (uint64_t)part->first;
        o.sampler = &sampler;
        o.prompt = part->prompt;
        o.prompt_count = part->prompt_count;
        int64_t left = e->capacity - part->prompt_count;
        if (o.max_tokens > left) o.max_tokens = left;
        o.on_answer = serve_job_on_answer;
        o.user = part;
        serve_job_share(j);
        if (fb_scheduler_submit(e->scheduler, &o, &part->request, &err) == FB_OK) continue;
        serve_job_give(j);
        /* Answers to the prompts before it end by being cancelled, which counts them. */
        give_places(e, j->choice_count - part->first);
        serve_job_cancel(j);
        return serve_fault_set(fault, err.status == FB_ERROR_MEMORY ? 503 : 400, NULL, "invalid_value", "%s",
                               err.message);
    }
    atomic_fetch_add(&e->metrics.requests, 1);
    serve_engine_wake(e);
    return true;
}
