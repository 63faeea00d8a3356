#include "serve/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "serve/engine.h"
#include "serve/record.h"

/* Bytes of a stream that nobody has read yet: above the first number it is paused, below the second it goes
 * on. A paused answer is computed again from its text when it goes on, so it should have some tokens' worth
 * to say then. */
#define PAUSED_BYTES (256 << 10)
#define RESUME_BYTES (64 << 10)
/* A stream of so many bytes ends: one that was not paused, because a plan waits for its end. */
#define MOST_BYTES (16 << 20)
/* All jobs together. Beyond, new ones are refused, streams are paused earlier, and whole answers above
 * LARGE_BYTES fail. */
#define ALL_BYTES   (512 << 20)
#define EARLY_BYTES (16 << 10)
#define LARGE_BYTES (1 << 20)

/* ---- life -------------------------------------------------------------------------------------- */

serve_job *serve_job_create(serve_engine *engine, int32_t prompts, int32_t samples, int64_t tops) {
    serve_job *j = calloc(1, sizeof *j);
    if (!j) return NULL;
    atomic_init(&j->users, 1);
    pthread_mutex_init(&j->lock, NULL);
    j->engine = engine;
    j->created = (int64_t)time(NULL);
    j->began = fb_now();
    j->samples = samples;
    j->part_count = prompts;
    j->choice_count = prompts * samples;
    j->tops = tops;
    j->parts = calloc((size_t)prompts, sizeof *j->parts);
    j->choices = calloc((size_t)j->choice_count, sizeof *j->choices);
    j->order = malloc((size_t)j->choice_count * sizeof *j->order);
    if (!j->parts || !j->choices || !j->order) {
        serve_job_give(j);
        return NULL;
    }
    for (int32_t i = 0; i < prompts; i++) {
        j->parts[i].job = j;
        j->parts[i].first = i * samples;
        j->parts[i].left = samples;
    }
    return j;
}

void serve_job_share(serve_job *j) { atomic_fetch_add(&j->users, 1); }

static void count_unread(serve_job *j, int64_t bytes) {
    j->unread += bytes;
    if (j->engine && j->engine->unread) atomic_fetch_add(j->engine->unread, bytes);
}

void serve_job_give(serve_job *j) {
    if (!j || atomic_fetch_sub(&j->users, 1) > 1) return;
    for (int32_t i = 0; j->parts && i < j->part_count; i++) {
        fb_free(j->parts[i].prompt);
        fb_free(j->parts[i].prompt_text);
    }
    for (int32_t i = 0; j->choices && i < j->choice_count; i++) {
        serve_pieces_free(&j->choices[i].pieces);
        serve_pieces_free(&j->choices[i].trail);
    }
    for (int32_t i = 0; i < j->stop_count; i++) free(j->stops[i]);
    free(j->stops);
    free(j->biases);
    free(j->schema);
    fb_schema_free(j->compiled);
    free(j->parts);
    free(j->choices);
    free(j->order);
    serve_pieces_free(&j->queue);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

void serve_job_cancel(serve_job *j) {
    pthread_mutex_lock(&j->lock);
    j->cancelled = true;
    pthread_mutex_unlock(&j->lock);
    for (int32_t i = 0; i < j->part_count; i++)
        if (j->parts[i].request) fb_scheduler_cancel(j->engine->scheduler, j->parts[i].request);
    serve_engine_wake(j->engine);
}

void serve_job_attend(serve_job *j, serve_exchange *x) {
    pthread_mutex_lock(&j->lock);
    j->waiter = x;
    pthread_mutex_unlock(&j->lock);
}

void serve_job_leave(serve_job *j) {
    pthread_mutex_lock(&j->lock);
    j->waiter = NULL;
    bool done = j->ended == j->choice_count;
    count_unread(j, -j->unread); /* what still comes of it is not kept */
    j->cancelled = j->cancelled || !done;
    pthread_mutex_unlock(&j->lock);
    if (!done) serve_job_cancel(j);
}

bool serve_job_done(serve_job *j) {
    pthread_mutex_lock(&j->lock);
    bool done = j->ended == j->choice_count;
    pthread_mutex_unlock(&j->lock);
    return done;
}

/* ---- what the reply takes ------------------------------------------------------------------------ */

int32_t serve_job_take(serve_job *j, serve_pieces *pieces, bool *begun) {
    serve_pieces_clear(pieces);
    pthread_mutex_lock(&j->lock);
    serve_pieces queue = j->queue;
    j->queue = *pieces;
    *pieces = queue;
    int32_t ended = j->ended;
    *begun = j->begun;
    pthread_mutex_unlock(&j->lock);
    return ended;
}

void serve_job_seen(serve_job *j, int64_t bytes) {
    bool wakes = false;
    pthread_mutex_lock(&j->lock);
    count_unread(j, -bytes);
    for (int32_t i = 0; j->paused && j->unread <= RESUME_BYTES && i < j->part_count; i++) {
        serve_part *part = &j->parts[i];
        if (!part->paused) continue;
        for (int32_t k = 0; k < j->samples; k++) j->choices[part->first + k].last = 0;
        fb_scheduler_pause(j->engine->scheduler, part->paused, false);
        part->paused = 0;
        j->paused--;
        wakes = true;
    }
    pthread_mutex_unlock(&j->lock);
    if (wakes) serve_engine_wake(j->engine);
}

bool serve_jobs_full(const serve_engine *e) { return e->unread && atomic_load(e->unread) > ALL_BYTES; }

/* ---- what the scheduler brings ------------------------------------------------------------------- */

static bool is_prompt(const fb_answer *a) { return a->token >= 0 && a->position < a->prompt; }

static bool no_memory(serve_choice *c) {
    snprintf(c->message, sizeof c->message, "answer: no memory");
    return false;
}

static bool add_piece(serve_job *j, serve_choice *c, int32_t index, const fb_answer *a) {
    fb_error err;
    fb_logprob none = {NAN, a->token}, *scores = &none;
    serve_pieces *to = j->streams ? &j->queue : &c->pieces;
    if (!serve_pieces_grow(to, j->tops, a->bytes)) return no_memory(c);
    if (j->tops >= 0) scores = to->scores + to->count * (1 + j->tops);
    *scores = none;
    if (j->tops >= 0 && a->token >= 0 && a->logits &&
        fb_sampler_logprobs(j->engine->scorer, a->logits, a->token, &scores->logprob, scores + 1, j->tops,
                            &err) != FB_OK) {
        snprintf(c->message, sizeof c->message, "%s", err.message);
        return false;
    }
    serve_piece *piece = serve_pieces_add(to, index, a->token, a->text, a->bytes);
    piece->prompt = is_prompt(a);
    c->prompts += piece->prompt;
    count_unread(j, serve_piece_bytes(piece, j->tops));
    if (!j->engine->record || piece->prompt) return true;
    if (!serve_pieces_grow(&c->trail, 0, a->bytes)) return no_memory(c);
    c->trail.scores[c->trail.count] = *scores;
    serve_pieces_add(&c->trail, index, a->token, a->text, a->bytes);
    return true;
}

/* Stops for a while what nobody reads. False: the answer has to end. The job's lock is held, so that what is
 * paused here and what goes on in serve_job_seen come in one order. */
static bool keep_bounds(serve_job *j, serve_part *part, serve_choice *c, const fb_answer *a) {
    bool full = serve_jobs_full(j->engine);
    if (!j->streams) {
        if (!full || j->unread <= LARGE_BYTES) return true;
        snprintf(c->message, sizeof c->message,
                 "answer: of %lld MB, while answers that were not sent yet take all memory there is for them",
                 (long long)(j->unread >> 20));
        return false;
    }
    if (j->unread > (full ? EARLY_BYTES : PAUSED_BYTES)) {
        j->paused += !part->paused;
        part->paused = a->request;
        fb_scheduler_pause(j->engine->scheduler, a->request, true);
    }
    return j->unread <= MOST_BYTES;
}

static void count_token(serve_job *j, serve_choice *c, const fb_answer *a) {
    if (a->token < 0 || is_prompt(a)) return;
    double now = fb_now();
    serve_metrics *m = &j->engine->metrics;
    if (c->first == 0) {
        c->first = now;
        serve_histogram_add(&m->first_token, now - j->began);
    } else if (c->last > 0) { /* it was not paused meanwhile */
        serve_histogram_add(&m->between_tokens, now - c->last);
    }
    c->last = now;
    c->count = a->count;
}

static void end_choice(serve_job *j, serve_choice *c, const fb_answer *a) {
    if (!c->message[0]) {
        c->finish = a->finish;
        snprintf(c->message, sizeof c->message, "%s", a->message ? a->message : "");
    }
    j->order[j->ended++] = (int32_t)(c - j->choices);
    serve_histogram_add(&j->engine->metrics.answer, fb_now() - j->began);
    serve_engine_count(j->engine, c->finish);
}

/* False: the request is to end. */
static bool take_answer(serve_job *j, serve_part *part, int32_t index, const fb_answer *a) {
    serve_choice *c = &j->choices[index];
    if (!j->begun) j->plan = serve_fuses_on(j->engine);
    j->begun = true;
    c->cached = a->cached;
    c->drafted = a->drafted;
    c->kept = a->kept;
    if (a->finish != FB_FINISH_NONE) {
        end_choice(j, c, a);
        return !j->cancelled;
    }
    count_token(j, c, a);
    if (j->cancelled) return false;
    if (add_piece(j, c, index, a) && keep_bounds(j, part, c, a)) return true;
    if (c->message[0]) c->finish = FB_FINISH_FAILED;
    return false;
}

bool serve_job_on_answer(void *user, const fb_answer *a) {
    serve_part *part = user;
    serve_job *j = part->job;
    pthread_mutex_lock(&j->lock);
    bool goes_on = take_answer(j, part, part->first + a->sample, a);
    bool done = j->ended == j->choice_count;
    if (j->waiter && (j->streams || done)) serve_wake(j->waiter);
    pthread_mutex_unlock(&j->lock);
    if (done && j->engine->record) serve_record_write(j->engine->record, j);
    if (a->finish != FB_FINISH_NONE && --part->left == 0) serve_job_give(j);
    return goes_on;
}
