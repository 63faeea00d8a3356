/* Guesses of a smaller model: another one with a cache of its own, or the same one with smaller weights. That
 * one reads and writes the answer's own cache: what came before is there, more exact than it could compute it
 * itself, and what it writes is overwritten by the step that checks its guesses.
 *
 * A guess is drawn by the answer's sampler, with the random number of its position: where both models give
 * similar probabilities, they mostly draw the same token. Afterwards the sampler takes its draws back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/sequence.h"
#include "base/clock.h"
#include "draft/draft.h"
#include "text/sampler.h"

/* All streams of an execution. */
typedef struct guesser {
    fb_execution *best, *full; /* which computes only the best tokens, or all logits; NULL: not needed yet */
    fb_row *rows;              /* [chunk or streams] */
    fb_sequence **sequences;   /* [streams] */
    fb_draft_ask **active;     /* [streams] */
    float *logits;             /* [streams, vocab] of the smaller model */
    float *padded;             /* [vocab] of the model, where it has more tokens; or NULL */
    int32_t *chosen;           /* [streams] */
    fb_trace trace;
} guesser;

/* One stream with a cache of its own. */
typedef struct follower {
    fb_sequence sequence;      /* of no executor: it was not opened yet */
    int64_t computed;          /* of the stream's tokens, those that it holds */
    int32_t fed[FB_MAX_DRAFT]; /* guesses that it holds after the tokens of the last question … */
    int64_t fed_count, asked;  /* … of which there were so many */
} follower;

/* ---- executions ---- */

/* The session's options that both models have in common. */
static fb_status take_execution(const fb_drafter *d, bool greedy, fb_execution **out, fb_error *err) {
    const fb_request *r = &d->target->request;
    const fb_program *p = &d->draft->smaller->spec->program;
    fb_session_options o = r->session;
    char backend[32];
    snprintf(backend, sizeof backend, r->device ? "%s:%d" : "%s", r->backend->name, r->device);
    o.backend = backend;
    o.kv = fb_dtype_name(r->executor.kv);
    o.fuse = "auto";
    o.exact = o.float_dot = o.all_logits = o.profile = false;
    o.greedy = greedy;
    o.on_hidden = NULL;
    o.on_progress = NULL;
    o.draft = NULL;
    /* A smaller model may have a shorter context. It then sees less, or guesses nothing beyond it. */
    if (o.cache != FB_CACHE_DENSE) {
        o.capacity = 0; /* sinks and window decide it */
        if (o.sinks < p->context && o.window > p->context - o.sinks) o.window = p->context - o.sinks;
    } else if (o.capacity > p->context && !(o.beyond_context && p->frequencies)) {
        o.capacity = p->context;
    }
    fb_execution_options more = {.wanted = d->streams, .like = d->draft->shares ? d->target : NULL};
    fb_error cause;
    fb_status status = fb_execution_take(d->draft->smaller, &o, &more, out, &cause);
    return status == FB_OK ? FB_OK : fb_fail(err, status, "draft: %s", cause.message);
}

/* The positions that an execution has. */
static int64_t capacity_of(const fb_execution *x) {
    return x->request.executor.ring.window ? INT64_MAX : x->request.session.capacity;
}

static fb_status need_execution(fb_drafter *d, bool greedy, fb_execution **out, fb_error *err) {
    guesser *g = d->own;
    fb_execution **x = greedy ? &g->best : &g->full;
    if (!*x) {
        FB_TRY(take_execution(d, greedy, x, err));
        if (d->choice.draft.guess[1] == 0) fb_drafter_predict(*x, &d->choice.draft);
    }
    *out = *x;
    return FB_OK;
}

static void close_all(fb_drafter *d) {
    guesser *g = d->own;
    if (!g) return;
    fb_execution_give(g->best);
    fb_execution_give(g->full);
    free(g->rows);
    free(g->sequences);
    free(g->active);
    free(g->logits);
    free(g->padded);
    free(g->chosen);
    free(g);
}

static fb_status take_memory(fb_drafter *d, const fb_execution *x, guesser *g, fb_error *err) {
    int64_t vocab = d->draft->model->spec->program.vocab, own = d->draft->smaller->spec->program.vocab;
    int64_t chunk = x->request.executor.chunk, rows = chunk > d->streams ? chunk : d->streams;
    size_t n = (size_t)d->streams;
    g->rows = malloc((size_t)rows * sizeof *g->rows);
    g->sequences = malloc(n * sizeof *g->sequences);
    g->active = malloc(n * sizeof *g->active);
    g->logits = malloc(n * (size_t)own * sizeof *g->logits);
    g->chosen = malloc(n * sizeof *g->chosen);
    if (own < vocab) g->padded = malloc((size_t)vocab * sizeof *g->padded);
    if (g->rows && g->sequences && g->active && g->logits && g->chosen && (own >= vocab || g->padded))
        return FB_OK;
    return fb_fail_memory(err, "draft", d->streams * own * (int64_t)sizeof *g->logits);
}

static fb_status open_all(fb_drafter *d, bool greedy, fb_error *err) {
    guesser *g = d->own = calloc(1, sizeof *g);
    fb_execution *x;
    if (!g) return fb_fail_memory(err, "draft", sizeof *g);
    FB_TRY(need_execution(d, greedy, &x, err));
    return take_memory(d, x, g, err);
}

/* ---- streams ---- */

static fb_status stream_open(fb_drafter *d, fb_draft_stream *stream, fb_error *err) {
    if (d->draft->shares) return FB_OK;
    stream->own = calloc(1, sizeof(follower));
    return stream->own ? FB_OK : fb_fail_memory(err, "draft of a stream", sizeof(follower));
}

static void stream_close(fb_draft_stream *stream) {
    follower *f = stream->own;
    if (f && f->sequence.executor) fb_sequence_close(&f->sequence);
    free(f);
}

static void cut(fb_draft_stream *stream, int64_t count) {
    follower *f = stream->own;
    if (!f) return;
    if (count < f->computed) f->computed = count;
    f->fed_count = 0;
}

/* Of the guesses that it has computed, those hold that the text then went on with. */
static void settle(follower *f, const fb_draft_ask *a) {
    int64_t right = 0;
    while (right < f->fed_count && f->asked + right < a->count &&
           f->fed[right] == a->tokens[f->asked + right])
        right++;
    if (f->fed_count) f->computed = f->asked + right;
    if (f->computed > a->count - 1) f->computed = a->count - 1;
    f->asked = a->count;
    f->fed_count = 0;
}

/* Padding may be larger in the model: an id that the smaller one does not have is read as another one. */
static int32_t known_token(const fb_execution *x, int32_t id) {
    return id < x->model->spec->program.vocab ? id : 0;
}

/* Reads the tokens that it has not seen, but for the last one. */
static fb_status catch_up(guesser *g, fb_execution *x, follower *f, const fb_draft_ask *a, fb_error *err) {
    fb_sequence *sequence = &f->sequence;
    if (!sequence->executor) FB_TRY(fb_sequence_open(x->executor, NULL, sequence, err));
    settle(f, a);
    while (f->computed < a->count - 1) {
        int64_t left = a->count - 1 - f->computed, chunk = x->request.executor.chunk;
        int64_t rows = left < chunk ? left : chunk;
        for (int64_t i = 0; i < rows; i++)
            g->rows[i] = (fb_row){.position = f->computed + i,
                                  .token = known_token(x, a->tokens[f->computed + i]),
                                  .prompt = true};
        fb_batch batch = {.rows = g->rows, .count = rows, .sequences = &sequence, .sequence_count = 1};
        FB_TRY(fb_executor_run(x->executor, &batch, &g->trace, err));
        f->computed += rows;
    }
    return FB_OK;
}

/* ---- guesses ---- */

/* Logits of all tokens that the model has. */
static const float *all_logits(const fb_drafter *d, const guesser *g, int64_t row) {
    int64_t vocab = d->draft->model->spec->program.vocab, own = d->draft->smaller->spec->program.vocab;
    const float *logits = g->logits + row * own;
    if (!g->padded) return logits;
    memcpy(g->padded, logits, (size_t)own * sizeof *logits);
    for (int64_t i = own; i < vocab; i++) g->padded[i] = -INFINITY;
    return g->padded;
}

static int32_t best_of(const float *logits, int64_t count) {
    int32_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

/* The next guess of a stream; -1: none. */
static int32_t next_guess(const fb_drafter *d, const guesser *g, const fb_draft_ask *a, int64_t row,
                          bool greedy) {
    if (greedy) return g->chosen[row];
    const float *logits = all_logits(d, g, row);
    if (!a->sampler) return best_of(logits, d->draft->model->spec->program.vocab);
    int32_t id;
    if (fb_sampler_ended(a->sampler)) return -1;
    return fb_sampler_next(a->sampler, logits, &id, NULL) == FB_OK ? id : -1;
}

/* One more guess for each stream that wants one: a step. The first one reads the stream's last token, the
 * others their guess before. Returns how many there were. */
static fb_status guess_more(fb_drafter *d, fb_execution *x, fb_draft_ask *asks, int64_t count, bool greedy,
                            int64_t depth, int64_t *streams, fb_error *err) {
    guesser *g = d->own;
    int64_t active = 0, capacity = capacity_of(x);
    for (int64_t i = 0; i < count; i++) {
        fb_draft_ask *a = &asks[i];
        int64_t position = a->count - 1 + depth;
        if (a->made < depth || a->most <= depth || position >= capacity) continue;
        follower *f = a->stream->own;
        g->rows[active] =
            (fb_row){.position = position,
                     .token = known_token(x, depth ? a->ids[depth - 1] : a->tokens[a->count - 1]),
                     .sequence = (int32_t)active,
                     .wanted = true};
        if (f && depth) f->fed[f->fed_count++] = a->ids[depth - 1];
        g->sequences[active] = f ? &f->sequence : a->sequence;
        g->active[active++] = a;
    }
    *streams = active;
    if (!active) return FB_OK;
    fb_batch batch = {.rows = g->rows,
                      .count = active,
                      .wanted = active,
                      .sequences = g->sequences,
                      .sequence_count = (int32_t)active,
                      .logits = g->logits,
                      .best = g->chosen};
    double began = fb_now();
    FB_TRY(fb_executor_run(x->executor, &batch, &g->trace, err));
    for (int64_t i = 0; i < active; i++) {
        int32_t id = next_guess(d, g, g->active[i], i, greedy);
        if (id >= 0 && id < d->draft->model->spec->program.vocab)
            g->active[i]->ids[g->active[i]->made++] = id;
    }
    if (!fb_draft_choice_cold(&d->choice)) fb_draft_time_learn(&d->choice.draft, active, fb_now() - began);
    return FB_OK;
}

static fb_status guess_all(fb_drafter *d, fb_execution *x, fb_draft_ask *asks, int64_t count, bool greedy,
                           fb_error *err) {
    guesser *g = d->own;
    int64_t streams = 1;
    for (int64_t i = 0; i < count; i++)
        if (asks[i].stream->own && asks[i].most > 0 && asks[i].count <= capacity_of(x))
            FB_TRY(catch_up(g, x, asks[i].stream->own, &asks[i], err));
    for (int64_t depth = 0; depth < FB_MAX_DRAFT && streams; depth++)
        FB_TRY(guess_more(d, x, asks, count, greedy, depth, &streams, err));
    return FB_OK;
}

/* Guesses with the samplers, which then take their draws back. */
static fb_status guess_with_samplers(fb_drafter *d, fb_execution *x, fb_draft_ask *asks, int64_t count,
                                     fb_error *err) {
    fb_status status = FB_OK;
    int64_t tried = 0;
    for (; tried < count && status == FB_OK; tried++)
        if (asks[tried].sampler) status = fb_sampler_try(asks[tried].sampler, err);
    if (status == FB_OK)
        status = guess_all(d, x, asks, count, false, err);
    else
        tried--; /* the last one failed */
    for (int64_t i = 0; i < tried; i++)
        if (asks[i].sampler) fb_sampler_take_back(asks[i].sampler, asks[i].made);
    return status;
}

static fb_status guess(fb_drafter *d, fb_draft_ask *asks, int64_t count, fb_error *err) {
    bool greedy = true;
    fb_execution *x;
    for (int64_t i = 0; i < count; i++)
        greedy = greedy && (!asks[i].sampler || fb_sampler_is_best(asks[i].sampler));
    FB_TRY(need_execution(d, greedy, &x, err));
    fb_status status =
        greedy ? guess_all(d, x, asks, count, true, err) : guess_with_samplers(d, x, asks, count, err);
    for (int64_t i = 0; i < count && status != FB_OK; i++) {
        follower *f = asks[i].stream->own;
        if (f) f->fed_count = 0;
    }
    return status;
}

const fb_draft_source fb_draft_smaller = {.name = "model",
                                          .classes = 1,
                                          .prior = {0.75},
                                          .open = open_all,
                                          .close = close_all,
                                          .stream_open = stream_open,
                                          .stream_close = stream_close,
                                          .cut = cut,
                                          .guess = guess};
