/* A draft at work: streams, questions, and what became of the guesses. */
#include <stdlib.h>

#include "base/clock.h"
#include "draft/draft.h"
#include "plan/price.h"

/* ---- predicted times ---- */

#define PRICED 8 /* rows; more are a line through the last two */

/* The prices of steps of 1, 2, … rows of an execution. Their ratios are used until steps have been timed. */
void fb_drafter_predict(const fb_execution *x, fb_draft_times *times) {
    fb_machine machine;
    fb_price *price = malloc(sizeof *price);
    fb_execution_machine(x, &machine);
    fb_shape shape = fb_execution_shape(x, &machine, NULL);
    for (int64_t rows = 1; rows <= FB_DRAFT_ROWS; rows++) {
        double *to = &times->guess[rows];
        shape.rows = shape.epilogue_rows = rows;
        if (price && rows <= PRICED) {
            fb_price_plan(&x->plan, x->weights, &machine, &shape, price);
            *to = price->total;
        } else {
            *to = rows > 2 ? 2 * to[-1] - to[-2] : 1 + 0.1 * (double)rows;
        }
    }
    free(price);
}

/* ---- life ---- */

fb_status fb_drafter_open(const fb_draft *draft, fb_execution *target, int64_t streams, bool greedy,
                          fb_drafter **out, fb_error *err) {
    *out = NULL;
    fb_drafter *d = calloc(1, sizeof *d);
    if (!d) return fb_fail_memory(err, "draft", sizeof *d);
    d->draft = draft;
    d->target = target;
    fb_execution_share(d->target);
    d->streams = streams;
    d->choice.prior = draft->source->prior;
    d->stats.size = sizeof d->stats;
    fb_drafter_predict(target, &d->choice.step);
    fb_status status = draft->source->open ? draft->source->open(d, greedy, err) : FB_OK;
    if (status != FB_OK) {
        fb_drafter_close(d);
        return status;
    }
    *out = d;
    return FB_OK;
}

void fb_drafter_close(fb_drafter *d) {
    if (!d) return;
    if (d->draft->source->close) d->draft->source->close(d);
    fb_execution_give(d->target);
    free(d);
}

fb_status fb_draft_stream_open(fb_drafter *d, fb_draft_stream **out, fb_error *err) {
    *out = NULL;
    fb_draft_stream *stream = calloc(1, sizeof *stream);
    if (!stream) return fb_fail_memory(err, "draft of a stream", sizeof *stream);
    stream->drafter = d;
    stream->rates = fb_draft_rates_start(&d->choice.rates);
    fb_status status = d->draft->source->stream_open ? d->draft->source->stream_open(d, stream, err) : FB_OK;
    if (status != FB_OK) {
        fb_draft_stream_close(stream);
        return status;
    }
    *out = stream;
    return FB_OK;
}

void fb_draft_stream_close(fb_draft_stream *stream) {
    if (!stream) return;
    const fb_draft_source *source = stream->drafter->draft->source;
    if (source->stream_close) source->stream_close(stream);
    free(stream);
}

void fb_draft_stream_cut(fb_draft_stream *stream, int64_t count) {
    const fb_draft_source *source = stream ? stream->drafter->draft->source : NULL;
    if (source && source->cut) source->cut(stream, count);
}

/* ---- questions ---- */

/* Guesses end before an id that the model does not have. */
static void check_ids(const fb_drafter *d, fb_draft_ask *a) {
    int64_t vocab = d->draft->model->spec->program.vocab, good = 0;
    while (good < a->made && a->ids[good] >= 0 && a->ids[good] < vocab) good++;
    a->made = good;
}

static fb_status guess(fb_drafter *d, fb_draft_ask *asks, int64_t count, fb_error *err) {
    double began = fb_now();
    fb_status status = d->draft->source->guess(d, asks, count, err);
    for (int64_t i = 0; i < count; i++)
        if (status == FB_OK)
            check_ids(d, &asks[i]);
        else
            asks[i].made = 0;
    d->guess_seconds = fb_now() - began;
    /* Guesses are not worth a failure, and there may be memory for them later. */
    return status == FB_ERROR_MEMORY ? FB_OK : status;
}

static void limit(fb_drafter *d, fb_draft_ask *asks, int64_t count, int64_t room, fb_draft_wish *wishes) {
    bool free = d->draft->source->free;
    for (int64_t i = 0; i < count; i++)
        wishes[i] = (fb_draft_wish){.rates = &asks[i].stream->rates,
                                    .class = asks[i].class,
                                    .most = free ? asks[i].made : asks[i].most};
    if (d->draft->options.fixed) {
        for (int64_t i = 0; i < count; i++) {
            wishes[i].length = wishes[i].most < room ? wishes[i].most : room;
            room -= wishes[i].length;
        }
        return;
    }
    fb_draft_choose(&d->choice, wishes, count, room, free);
}

/* Chooses lengths before the guesses are made, or after it if they are free. */
static fb_status ask_all(fb_drafter *d, fb_draft_ask *asks, int64_t count, int64_t room,
                         fb_draft_wish *wishes, fb_error *err) {
    bool free = d->draft->source->free;
    if (free) FB_TRY(guess(d, asks, count, err));
    limit(d, asks, count, room, wishes);
    int64_t wanted = 0;
    for (int64_t i = 0; i < count; i++) {
        if (free) asks[i].made = wishes[i].length;
        asks[i].most = wishes[i].length;
        wanted += wishes[i].length;
    }
    return free || !wanted ? FB_OK : guess(d, asks, count, err);
}

fb_status fb_drafter_ask(fb_drafter *d, fb_draft_ask *asks, int64_t count, int64_t room, fb_error *err) {
    fb_draft_wish few[4], *wishes = count > 4 ? malloc((size_t)count * sizeof *wishes) : few;
    d->guess_seconds = 0;
    for (int64_t i = 0; i < count; i++) {
        asks[i].made = asks[i].checked = asks[i].right = 0;
        asks[i].class = 0;
        if (asks[i].most > d->draft->options.most) asks[i].most = d->draft->options.most;
        if (asks[i].most < 0) asks[i].most = 0;
    }
    if (!wishes) return FB_OK; /* no memory: no guesses */
    fb_status status = ask_all(d, asks, count, room, wishes, err);
    if (wishes != few) free(wishes);
    return status;
}

void fb_drafter_learn(fb_drafter *d, const fb_draft_ask *asks, int64_t count, double seconds) {
    int64_t guesses = 0, right = 0;
    for (int64_t i = 0; i < count; i++) {
        const fb_draft_ask *a = &asks[i];
        fb_draft_rate_learn(&a->stream->rates, a->class, a->checked, a->right);
        fb_draft_rate_learn(&d->choice.rates, a->class, a->checked, a->right);
        for (int64_t k = 0; k < a->checked; k++) {
            d->stats.tried[k]++;
            d->stats.right[k] += k < a->right;
        }
        guesses += a->made;
        right += a->right;
    }
    d->stats.steps++;
    d->stats.drafted += guesses;
    d->stats.kept += right;
    d->stats.tokens += count + right;
    d->stats.plain_steps += guesses == 0;
    d->stats.draft_seconds += d->guess_seconds;
    if (seconds <= 0) return;
    d->stats.step_seconds += seconds;
    if (!guesses || !fb_draft_choice_cold(&d->choice))
        fb_draft_time_learn(&d->choice.step, count + guesses, seconds);
    fb_draft_choice_learn(&d->choice, count, guesses, count + right, seconds, d->guess_seconds);
}

void fb_drafter_stats(const fb_drafter *d, fb_draft_stats *out) { *out = d->stats; }
