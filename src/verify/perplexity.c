/* The perplexity of a text. The text is divided into windows that do not overlap, and each is read into an
 * empty cache. Every token that has a predecessor in its window is scored. */
#include "verify/perplexity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/options.h"
#include "model/model.h"

/* 512 is the window for which most figures are published. A longer window gives a lower perplexity for the
 * same text. */
#define DEFAULT_WINDOW 512
/* Tokens read at a time; their logits are [PIECE, vocab] floats. The result does not depend on it. */
#define PIECE 128

typedef struct tally {
    double sum, squares; /* of nll */
    int64_t tokens;
    double start; /* time of its first token */
} tally;

typedef struct scoring {
    const fb_perplexity_options *options;
    const int32_t *prefix; /* ids that the tokenizer puts before a text */
    int64_t prefix_count;
    int64_t window, piece;
    int64_t total; /* tokens to score */
    int32_t *ids;  /* [window] */
    fb_session *session;
    tally all, one; /* one: the current window */
    fb_perplexity_report *report;
} scoring;

double fb_nll(const float *logits, int64_t vocab, int32_t id) {
    double most = (double)logits[0];
    for (int64_t i = 1; i < vocab; i++)
        if ((double)logits[i] > most) most = (double)logits[i];
    double total = exp((double)logits[0] - most);
    for (int64_t i = 1; i < vocab; i++) total += exp((double)logits[i] - most);
    return log(total) + most - (double)logits[id];
}

/* ---- sums ---- */

static void add(tally *t, double nll) {
    t->sum += nll;
    t->squares += nll * nll;
    t->tokens++;
}

/* The standard error of a mean over n independent tokens, and of its exponential by the derivative. */
static fb_score score_of(const tally *t) {
    double n = (double)t->tokens, mean = t->sum / n;
    double variance = fmax(t->squares / n - mean * mean, 0); /* biased by n / (n - 1) */
    fb_score s = {.tokens = t->tokens, .nll = mean, .seconds = fb_now() - t->start};
    s.nll_error = t->tokens > 1 ? sqrt(variance / (n - 1)) : NAN;
    s.perplexity = exp(mean);
    s.perplexity_error = s.perplexity * s.nll_error;
    return s;
}

/* ---- one window ---- */

/* Row i of the last prefill predicts ids[first + i + 1]. Ids that the tokenizer added are not scored. */
static fb_status score_rows(scoring *s, int64_t first, fb_error *err) {
    const float *logits;
    int64_t rows, vocab;
    FB_TRY(fb_session_logits(s->session, &logits, &rows, &vocab, err));
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = first + i + 1;
        if (at < s->prefix_count) continue;
        double nll = fb_nll(logits + i * vocab, vocab, s->ids[at]);
        if (isnan(nll))
            return fb_fail(err, FB_ERROR_SYSTEM, "logits: NaN or inf at position %lld of window %lld",
                           (long long)(at - 1), (long long)s->report->window_count + 1);
        add(&s->all, nll);
        add(&s->one, nll);
    }
    return FB_OK;
}

static fb_status report_progress(const scoring *s, fb_error *err) {
    if (!s->options->on_progress || s->all.tokens == 0) return FB_OK;
    fb_score so_far = score_of(&s->all);
    if (s->options->on_progress(s->options->user, &so_far, s->total)) return FB_OK;
    return fb_fail(err, FB_ERROR_STOPPED, "perplexity: stopped after %lld of %lld tokens",
                   (long long)s->all.tokens, (long long)s->total);
}

/* Reads all of `count` tokens but the last, because nothing follows that one. */
static fb_status score_window(scoring *s, int64_t count, fb_error *err) {
    fb_session_reset(s->session);
    s->one = (tally){.start = fb_now()};
    for (int64_t done = 0; done < count - 1;) {
        int64_t rows = count - 1 - done < s->piece ? count - 1 - done : s->piece;
        FB_TRY(fb_session_prefill(s->session, s->ids + done, rows, err));
        FB_TRY(score_rows(s, done, err));
        FB_TRY(report_progress(s, err));
        done += rows;
    }
    s->report->windows[s->report->window_count++] = score_of(&s->one);
    return FB_OK;
}

static fb_status score_text(scoring *s, const int32_t *ids, int64_t count, fb_error *err) {
    int64_t each = s->window - s->prefix_count;
    if (s->prefix_count) memcpy(s->ids, s->prefix, (size_t)s->prefix_count * sizeof *ids);
    s->all.start = fb_now();
    for (int64_t done = 0; done < count; done += each) {
        int64_t part = count - done < each ? count - done : each;
        memcpy(s->ids + s->prefix_count, ids + done, (size_t)part * sizeof *ids);
        /* A single last token has no predecessor. */
        if (s->prefix_count + part > 1) FB_TRY(score_window(s, s->prefix_count + part, err));
    }
    s->report->all = score_of(&s->all);
    return FB_OK;
}

/* ---- all of it ---- */

static fb_status check(scoring *s, const fb_model *model, const int32_t *ids, int64_t count, fb_error *err) {
    int64_t context = model->info.context, least = s->prefix_count + (s->prefix_count ? 1 : 2);
    s->window = s->options->window;
    if (!s->window) s->window = context < DEFAULT_WINDOW ? context : DEFAULT_WINDOW;
    if (context < least)
        return fb_fail(err, FB_ERROR_USAGE,
                       "context: %lld tokens (perplexity needs windows of at least %lld)", (long long)context,
                       (long long)least);
    if (s->window < least || s->window > context)
        return fb_fail(err, FB_ERROR_USAGE, "window: %lld tokens (%lld to %lld, the model's context)",
                       (long long)s->window, (long long)least, (long long)context);
    int64_t each = s->window - s->prefix_count;
    s->total = count;
    if (!s->prefix_count)
        s->total -= (count + each - 1) / each; /* the first token of each window is not scored */
    if (s->total < 1)
        return fb_fail(err, FB_ERROR_USAGE, "text: %lld tokens (at least %d)", (long long)count,
                       s->prefix_count ? 1 : 2);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= model->info.vocab)
            return fb_fail(err, FB_ERROR_USAGE, "token %lld: id %d (0 to %lld)", (long long)i, ids[i],
                           (long long)model->info.vocab - 1);
    return FB_OK;
}

static fb_status prepare(scoring *s, const fb_model *model, const int32_t *ids, int64_t count,
                         fb_error *err) {
    if (model->tokenizer) s->prefix = fb_tokenizer_prefix(model->tokenizer, &s->prefix_count);
    FB_TRY(check(s, model, ids, count, err));
    int64_t windows = (count - 1) / (s->window - s->prefix_count) + 1;
    s->ids = malloc((size_t)s->window * sizeof *s->ids);
    s->report = calloc(1, sizeof *s->report);
    if (s->report) s->report->windows = malloc((size_t)windows * sizeof *s->report->windows);
    if (!s->ids || !s->report || !s->report->windows)
        return fb_fail_memory(err, "windows", windows * (int64_t)sizeof *s->report->windows);
    fb_session_options o = fb_perplexity_session(s->options);
    s->piece = o.chunk ? o.chunk : PIECE;
    o.chunk = s->piece;
    o.capacity = s->window;
    o.all_logits = true;
    FB_TRY(fb_session_create(model, &o, &s->session, err));
    s->report->window = s->window;
    s->report->threads = fb_session_threads(s->session);
    snprintf(s->report->isa, sizeof s->report->isa, "%s", fb_session_isa(s->session));
    return FB_OK;
}

fb_status fb_perplexity_run(const fb_model *model, const fb_perplexity_options *given, const int32_t *ids,
                            int64_t count, fb_perplexity_report **report, fb_error *err) {
    *report = NULL;
    fb_perplexity_options options;
    FB_TRY(fb_perplexity_options_take(given, &options, err));
    scoring s = {.options = &options};
    fb_status status = prepare(&s, model, ids, count, err);
    if (status == FB_OK) status = score_text(&s, ids, count, err);
    fb_session_free(s.session);
    free(s.ids);
    if (status == FB_OK)
        *report = s.report;
    else
        fb_perplexity_free(s.report);
    return status;
}

void fb_perplexity_free(fb_perplexity_report *report) {
    if (!report) return;
    free(report->windows);
    free(report);
}
