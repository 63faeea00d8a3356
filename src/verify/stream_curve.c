/* Perplexity along a stream: the same text through several caches. Each cache reads one row of tokens in
 * turn, so that a row is complete before the next one is read. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/options.h"
#include "model/model.h"
#include "run/cache.h"
#include "verify/perplexity.h"

/* Tokens read at a time; their logits are [PIECE, vocab] floats per cache. The result does not depend on it.
 */
#define PIECE 128

typedef struct stream {
    const fb_curve_options *options;
    int32_t *ids;                /* ids that the tokenizer puts before the text, then the text */
    int64_t count, front, piece; /* count: all ids; front: those of the tokenizer */
    fb_session *sessions[FB_CACHE_KINDS];
    double sums[FB_CACHE_KINDS]; /* sums of nll over all rows */
    fb_curve_report *report;
} stream;

/* ---- one row ---- */

/* Row i of the last prefill predicts ids[first + i + 1]. Ids that the tokenizer added are not scored. */
static fb_status score_piece(stream *s, int32_t curve, int64_t first, double *sum, fb_error *err) {
    const float *logits;
    int64_t rows, vocab;
    FB_TRY(fb_session_logits(s->sessions[curve], &logits, &rows, &vocab, err));
    for (int64_t at = first + 1; at <= first + rows; at++, logits += vocab) {
        if (at < s->front) continue;
        double nll = fb_nll(logits, vocab, s->ids[at]);
        if (isnan(nll))
            return fb_fail(err, FB_ERROR_SYSTEM, "logits: NaN or inf at position %lld with cache %s",
                           (long long)(at - 1), fb_cache_name(s->report->curves[curve]->cache));
        *sum += nll;
    }
    return FB_OK;
}

static fb_status ask(const stream *s, fb_curve_fn callback, int64_t part, fb_error *err) {
    if (!callback || callback(s->options->user, s->report, part)) return FB_OK;
    return fb_fail(err, FB_ERROR_STOPPED, "stream: stopped after %lld of %lld tokens",
                   (long long)s->report->tokens, (long long)s->report->total);
}

/* Reads ids[first … end - 1] with one cache, and scores the id after each of them. */
static fb_status read_row(stream *s, int32_t curve, int64_t first, int64_t end, fb_curve_row *row,
                          fb_error *err) {
    fb_curve *c = s->report->curves[curve];
    double sum = 0;
    for (int64_t done = first; done < end;) {
        int64_t rows = end - done < s->piece ? end - done : s->piece;
        double start = fb_now();
        FB_TRY(fb_session_prefill(s->sessions[curve], s->ids + done, rows, err));
        FB_TRY(score_piece(s, curve, done, &sum, err));
        c->seconds += fb_now() - start;
        done += rows;
        int64_t scored = done - (end - row->tokens);
        FB_TRY(ask(s, s->options->on_progress, curve * row->tokens + (scored > 0 ? scored : 0), err));
    }
    row->nll[curve] = sum / (double)row->tokens;
    s->sums[curve] += sum;
    return FB_OK;
}

/* Reads all ids but the last, because nothing follows that one. */
static fb_status read_text(stream *s, fb_error *err) {
    fb_curve_report *r = s->report;
    FB_TRY(ask(s, s->options->on_progress, 0, err));
    for (int64_t first = 0; r->tokens < r->total;) {
        int64_t left = r->total - r->tokens;
        fb_curve_row *row = &r->rows[r->row_count];
        row->tokens = left < r->every ? left : r->every;
        row->position = s->count - 1 - left + row->tokens;
        for (int32_t i = 0; i < r->curve_count; i++) FB_TRY(read_row(s, i, first, row->position, row, err));
        first = row->position;
        r->row_count++;
        r->tokens += row->tokens;
        for (int32_t i = 0; i < r->curve_count; i++) r->curves[i]->nll = s->sums[i] / (double)r->tokens;
        FB_TRY(ask(s, s->options->on_chunk, 0, err));
    }
    return FB_OK;
}

/* ---- all of it ---- */

/* Tokens to add to a window, so that it sees as many tokens as the cache with sinks that it is compared with.
 */
static int64_t sinks_beside(const fb_curve_options *o) {
    for (int32_t i = 0; i < o->kind_count; i++)
        if (o->kinds[i] == FB_CACHE_SINKS) return o->sinks;
    return 0;
}

static fb_status check(const stream *s, const fb_model *model, const int32_t *ids, int64_t count,
                       fb_error *err) {
    const fb_curve_options *o = s->options;
    if (o->kind_count < 1 || o->kind_count > FB_CACHE_KINDS)
        return fb_fail(err, FB_ERROR_USAGE, "caches: %d (1 to %d)", o->kind_count, FB_CACHE_KINDS);
    for (int32_t i = 0; i < o->kind_count; i++)
        for (int32_t j = 0; j < i; j++)
            if (o->kinds[i] == o->kinds[j])
                return fb_fail(err, FB_ERROR_USAGE, "cache: %s (twice)", fb_cache_name(o->kinds[i]));
    int64_t context = model->info.context, sinks = sinks_beside(o);
    if (sinks < 0 || sinks >= context)
        return fb_fail(err, FB_ERROR_USAGE,
                       "sinks: %lld (0 to %lld: with a window at most the model's context, %lld)",
                       (long long)sinks, (long long)context - 1, (long long)context);
    if (o->window < 0 || o->window > context - sinks)
        return fb_fail(err, FB_ERROR_USAGE,
                       "window: %lld (1 to %lld: with %lld sinks at most the model's context, %lld)",
                       (long long)o->window, (long long)(context - sinks), (long long)sinks,
                       (long long)context);
    if (o->every < 1)
        return fb_fail(err, FB_ERROR_USAGE, "every: %lld tokens (at least 1)", (long long)o->every);
    if (count < (s->front ? 1 : 2))
        return fb_fail(err, FB_ERROR_USAGE, "text: %lld tokens (at least %d)", (long long)count,
                       s->front ? 1 : 2);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= model->info.vocab)
            return fb_fail(err, FB_ERROR_USAGE, "token %lld: id %d (0 to %lld)", (long long)i, ids[i],
                           (long long)model->info.vocab - 1);
    return FB_OK;
}

static fb_status open_cache(stream *s, const fb_model *model, fb_cache_kind cache, fb_error *err) {
    fb_session_options o = fb_curve_session(s->options);
    o.cache = cache;
    o.capacity = cache == FB_CACHE_DENSE ? s->count - 1 : 0;
    o.beyond_context = true;
    if (cache == FB_CACHE_WINDOW && o.window) o.window += sinks_beside(s->options);
    o.chunk = s->piece;
    o.all_logits = true;
    int64_t at = s->report->curve_count++;
    FB_TRY(fb_session_create(model, &o, &s->sessions[at], err));
    fb_cache_info info;
    fb_session_get_cache(s->sessions[at], &info);
    *s->report->curves[at] = (fb_curve){
        .cache = cache, .sinks = info.sinks, .window = info.window, .bytes = info.bytes, .nll = NAN};
    return FB_OK;
}

/* The numbers of the rows follow all rows in one allocation: free(rows) releases both. */
static fb_curve_report *make_report(int64_t rows, int32_t curves) {
    fb_curve_report *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->curves = fb_memory_structs(curves, sizeof **r->curves);
    r->rows = calloc((size_t)rows, sizeof *r->rows + (size_t)curves * sizeof(double));
    if (!r->curves || !r->rows) {
        fb_curve_free(r);
        return NULL;
    }
    double *nll = (double *)(r->rows + rows);
    for (int64_t i = 0; i < rows; i++) r->rows[i].nll = nll + i * curves;
    return r;
}

static fb_status prepare(stream *s, const fb_model *model, const int32_t *ids, int64_t count, fb_error *err) {
    const fb_curve_options *o = s->options;
    const int32_t *front = NULL;
    if (model->tokenizer) front = fb_tokenizer_prefix(model->tokenizer, &s->front);
    FB_TRY(check(s, model, ids, count, err));
    s->count = s->front + count;
    s->piece = o->chunk ? o->chunk : PIECE;
    int64_t total = s->front ? count : count - 1, rows = (total - 1) / o->every + 1;
    s->ids = malloc((size_t)s->count * sizeof *s->ids);
    s->report = make_report(rows, o->kind_count);
    if (!s->ids || !s->report) return fb_fail_memory(err, "rows", rows * (int64_t)sizeof *s->report->rows);
    if (s->front) memcpy(s->ids, front, (size_t)s->front * sizeof *ids);
    memcpy(s->ids + s->front, ids, (size_t)count * sizeof *ids);
    for (int32_t i = 0; i < o->kind_count; i++) FB_TRY(open_cache(s, model, o->kinds[i], err));
    s->report->context = model->info.context;
    s->report->every = o->every;
    s->report->total = total;
    s->report->backend = fb_session_backend(s->sessions[0]);
    snprintf(s->report->isa, sizeof s->report->isa, "%s", fb_session_isa(s->sessions[0]));
    s->report->threads = fb_session_threads(s->sessions[0]);
    return FB_OK;
}

fb_status fb_curve_run(const fb_model *model, const fb_curve_options *given, const int32_t *ids,
                       int64_t count, fb_curve_report **report, fb_error *err) {
    *report = NULL;
    fb_curve_options options;
    FB_TRY(fb_curve_options_take(given, &options, err));
    stream s = {.options = &options};
    fb_status status = prepare(&s, model, ids, count, err);
    if (status == FB_OK) status = read_text(&s, err);
    for (int i = 0; i < FB_CACHE_KINDS; i++) fb_session_free(s.sessions[i]);
    free(s.ids);
    if (status == FB_OK)
        *report = s.report;
    else
        fb_curve_free(s.report);
    return status;
}

void fb_curve_free(fb_curve_report *report) {
    if (!report) return;
    free(report->curves);
    free(report->rows);
    free(report);
}
