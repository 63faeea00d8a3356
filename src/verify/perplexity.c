/* The perplexity of a text. The text is divided into windows that do not overlap, and each is read into an
 * empty cache. Every token that has a predecessor in its window is scored, or those of its second half. */
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
    int64_t first; /* the first position of a window that is scored */
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

static bool halves(const scoring *s) { return s->options->scoring == FB_SCORE_SECOND_HALF; }

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

/* Row i of the last prefill predicts ids[begin + i + 1]. */
static fb_status score_rows(scoring *s, int64_t begin, fb_error *err) {
    const float *logits;
    int64_t rows, vocab;
    FB_TRY(fb_session_logits(s->session, &logits, &rows, &vocab, err));
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = begin + i + 1;
        if (at < s->first) continue;
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

static bool is_enough(const scoring *s) {
    return s->options->max_windows && s->report->window_count >= s->options->max_windows;
}

static fb_status score_text(scoring *s, const int32_t *ids, int64_t count, fb_error *err) {
    int64_t each = s->window - s->prefix_count;
    if (s->prefix_count) memcpy(s->ids, s->prefix, (size_t)s->prefix_count * sizeof *ids);
    for (int64_t done = 0; done < count && !is_enough(s); done += each) {
        int64_t part = count - done < each ? count - done : each;
        memcpy(s->ids + s->prefix_count, ids + done, (size_t)part * sizeof *ids);
        /* A single last token has no predecessor. */
        if (s->prefix_count + part > 1) FB_TRY(score_window(s, s->prefix_count + part, err));
    }
    return FB_OK;
}

/* Whole windows of the text with its begin token, which also takes the place of each other window's first id.
 */
static fb_status score_halves(scoring *s, const int32_t *ids, int64_t count, fb_error *err) {
    int64_t whole = (count + s->prefix_count) / s->window;
    for (int64_t i = 0; i < whole && !is_enough(s); i++) {
        for (int64_t j = 0; j < s->window; j++) {
            int64_t at = i * s->window + j - s->prefix_count;
            s->ids[j] = j < s->prefix_count ? s->prefix[j] : ids[at];
        }
        FB_TRY(score_window(s, s->window, err));
    }
    return FB_OK;
}

/* ---- all of it ---- */

/* How many tokens will be scored. */
static fb_status count_total(scoring *s, int64_t count, fb_error *err) {
    int64_t most = s->options->max_windows, each = s->window - s->prefix_count;
    if (most < 0) return fb_fail(err, FB_ERROR_USAGE, "max_windows: %lld (at least 0)", (long long)most);
    if (halves(s)) {
        int64_t whole = (count + s->prefix_count) / s->window;
        s->first = s->window / 2 + 1;
        s->total = (most && most < whole ? most : whole) * (s->window - s->first);
        if (whole >= 2) return FB_OK;
        return fb_fail(err, FB_ERROR_USAGE,
                       "text: %lld tokens (two windows of %lld at least, of which the second "
                       "halves are scored)",
                       (long long)(count + s->prefix_count), (long long)s->window);
    }
    int64_t part = most && most < count / each ? most * each : count;
    s->first = s->prefix_count ? s->prefix_count : 1; /* what the tokenizer added is not scored */
    s->total = part - (s->prefix_count ? 0 : (part + each - 1) / each); /* nor what has no predecessor */
    if (s->total >= 1) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "text: %lld tokens (at least %d)", (long long)count,
                   s->prefix_count ? 1 : 2);
}

static fb_status check(scoring *s, const fb_model *model, const int32_t *ids, int64_t count, fb_error *err) {
    int64_t context = model->info.context, least = s->prefix_count + (s->prefix_count ? 1 : 2);
    if ((unsigned)s->options->scoring > FB_SCORE_SECOND_HALF)
        return fb_fail(err, FB_ERROR_USAGE, "scoring: %d (0 or 1)", (int)s->options->scoring);
    if (halves(s) && least < 3) least = 3; /* a half has at least one token */
    if (halves(s) && s->prefix_count > 1)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "tokenizer: %lld ids before a text (second halves: at most 1)",
                       (long long)s->prefix_count);
    s->window = s->options->window;
    if (!s->window) s->window = context < DEFAULT_WINDOW ? context : DEFAULT_WINDOW;
    if (context < least)
        return fb_fail(err, FB_ERROR_USAGE,
                       "context: %lld tokens (perplexity needs windows of at least %lld)", (long long)context,
                       (long long)least);
    if (s->window < least || s->window > context)
        return fb_fail(err, FB_ERROR_USAGE, "window: %lld tokens (%lld to %lld, the model's context)",
                       (long long)s->window, (long long)least, (long long)context);
    FB_TRY(count_total(s, count, err));
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

fb_status fb_perplexity_watch(const fb_model *model, const fb_perplexity_options *given, const int32_t *ids,
                              int64_t count, fb_linear_fn on_linear, void *user,
                              fb_perplexity_report **report, fb_error *err) {
    *report = NULL;
    fb_perplexity_options options;
    FB_TRY(fb_perplexity_options_take(given, &options, err));
    scoring s = {.options = &options};
    fb_status status = prepare(&s, model, ids, count, err);
    s.all.start = fb_now();
    if (status == FB_OK) fb_session_watch(s.session, on_linear, user);
    if (status == FB_OK) status = (halves(&s) ? score_halves : score_text)(&s, ids, count, err);
    if (status == FB_OK) s.report->all = score_of(&s.all);
    fb_session_free(s.session);
    free(s.ids);
    if (status == FB_OK)
        *report = s.report;
    else
        fb_perplexity_free(s.report);
    return status;
}

fb_status fb_perplexity_run(const fb_model *model, const fb_perplexity_options *options, const int32_t *ids,
                            int64_t count, fb_perplexity_report **report, fb_error *err) {
    return fb_perplexity_watch(model, options, ids, count, NULL, NULL, report, err);
}

void fb_perplexity_free(fb_perplexity_report *report) {
    if (!report) return;
    free(report->windows);
    free(report);
}
