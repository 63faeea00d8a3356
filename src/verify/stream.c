/* Compares a stream with its golden. Each of the golden's caches is tested twice: the text in chunks, and
 * token by token as a run would decode it. */
#include <math.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/options.h"
#include "verify/perplexity.h"
#include "verify/stream_golden.h"

/* The limit in float32, as for other goldens. */
#define LOGITS_LIMIT 1e-4
#define NLL_LIMIT    1e-4

/* How far a token's nll may be off in 16 bits: this many units of the logits' bound, which is relative to the
 * largest logit. The goldens show a quarter of it. */
#define ROUNDING_STEPS 4
#define USUAL_LOGIT    16

typedef struct stream {
    const fb_stream_golden *golden;
    const fb_stream_case *wanted;
    const int32_t *ids;
    fb_session *session;
    int64_t chunk; /* tokens per step */
    double sum, worst, logits;
} stream;

/* Keeps the largest error so far. A NaN becomes the largest and stays it. */
static void keep_largest(double *most, double error) {
    if (!(error <= *most)) *most = *most != *most ? *most : error;
}

static fb_status compare_step(stream *s, int64_t first, fb_error *err) {
    const float *logits;
    int64_t rows, vocab;
    FB_TRY(fb_session_logits(s->session, &logits, &rows, &vocab, err));
    for (int64_t row = 0; row < rows; row++, logits += vocab) {
        int64_t at = first + row;
        double nll = fb_nll(logits, vocab, s->ids[at + 1]);
        s->sum += nll;
        keep_largest(&s->worst, fabs(nll - fb_golden_real(s->wanted->nll, at)));
        for (int64_t i = 0; s->wanted->logits && i < vocab; i++)
            keep_largest(&s->logits,
                         fabs((double)logits[i] - fb_golden_real(s->wanted->logits, at * vocab + i)));
    }
    return FB_OK;
}

static fb_status run_stream(stream *s, fb_error *err) {
    int64_t count = s->golden->tokens - 1;
    fb_session_reset(s->session);
    s->sum = 0;
    for (int64_t done = 0; done < count;) {
        int64_t rows = count - done < s->chunk ? count - done : s->chunk;
        FB_TRY(s->chunk == 1 ? fb_session_decode(s->session, s->ids[done], err)
                             : fb_session_prefill(s->session, s->ids + done, rows, err));
        FB_TRY(compare_step(s, done, err));
        done += rows;
    }
    return FB_OK;
}

static fb_status compare_case(stream *s, const fb_model *model, fb_session_options o, fb_stream_row *row,
                              fb_error *err) {
    const fb_stream_case *c = s->wanted;
    *row = (fb_stream_row){.cache = c->cache, .sinks = c->sinks, .window = c->window};
    o.cache = c->cache;
    o.sinks = c->sinks;
    o.window = c->window;
    o.capacity = c->cache == FB_CACHE_DENSE ? s->golden->tokens : 0;
    o.beyond_context = true;
    o.all_logits = true;
    fb_dtype kv;
    FB_TRY(fb_dtype_parse_kv(o.kv, o.act, &kv, err));
    FB_TRY(fb_session_create(model, &o, &s->session, err));
    s->chunk = 61; /* divides no common window, so that steps cross the ring's end at all offsets */
    fb_status status = run_stream(s, err);
    s->chunk = 1;
    if (status == FB_OK) status = run_stream(s, err);
    fb_session_free(s->session);
    FB_TRY(status);
    double wanted = 0;
    for (int64_t i = 0; i < c->nll->count; i++) wanted += fb_golden_real(c->nll, i);
    double rounding = ROUNDING_STEPS * fmax(fb_golden_half_ulp(o.act), fb_golden_half_ulp(kv)) * USUAL_LOGIT;
    row->nll_max_abs = s->worst;
    row->nll_limit = NLL_LIMIT + rounding;
    row->logits_max_abs = c->logits ? s->logits : NAN;
    row->logits_limit = LOGITS_LIMIT + rounding;
    row->perplexity = exp(s->sum / (double)c->nll->count);
    row->perplexity_wanted = exp(wanted / (double)c->nll->count);
    row->ok = row->nll_max_abs <= row->nll_limit && (!c->logits || row->logits_max_abs <= row->logits_limit);
    return FB_OK;
}

static fb_status compare_all(const fb_stream_golden *g, const fb_model *model,
                             const fb_session_options *options, fb_stream_report *r, fb_error *err) {
    int32_t *ids = malloc((size_t)g->tokens * sizeof *ids);
    r->rows = fb_memory_structs(g->count, sizeof **r->rows);
    if (!ids || !r->rows) {
        free(ids);
        return fb_fail_memory(err, "ids", g->tokens * (int64_t)sizeof *ids);
    }
    fb_model_info info;
    fb_model_get_info(model, &info);
    fb_status status = FB_OK;
    for (int64_t i = 0; i < g->tokens; i++) {
        ids[i] = (int32_t)fb_golden_int(g->ids, i);
        /* They were checked, but the file is mapped, and others may have changed it. */
        if (ids[i] < 0 || ids[i] >= info.vocab)
            status = fb_fail(err, FB_ERROR_FILE, "input_ids: id %lld: %d (0 to %lld; the file was changed)",
                             (long long)i, ids[i], (long long)info.vocab - 1);
    }
    r->ok = true;
    r->tokens = g->tokens - 1;
    for (; status == FB_OK && r->count < g->count; r->count++) {
        stream s = {.golden = g, .wanted = &g->cases[r->count], .ids = ids};
        status = compare_case(&s, model, *options, r->rows[r->count], err);
        r->ok = r->ok && r->rows[r->count]->ok;
    }
    free(ids);
    return status;
}

fb_status fb_golden_streams(const char *path, bool *streams, fb_error *err) {
    *streams = false;
    fb_tensor_table *table;
    FB_TRY(fb_tensors_open(path, &table, err));
    *streams = fb_stream_golden_is(table);
    fb_tensors_free(table);
    return FB_OK;
}

fb_status fb_verify_stream(const fb_model *model, const char *path, const fb_verify_options *given,
                           fb_stream_report **out, fb_error *err) {
    *out = NULL;
    fb_verify_options options;
    FB_TRY(fb_verify_options_take(given, &options, err));
    fb_session_options session = fb_verify_session(&options);
    session.kv = fb_golden_kv(options.kv);
    fb_model_info info;
    fb_model_get_info(model, &info);
    fb_stream_golden golden;
    FB_TRY(fb_stream_golden_open(path, info.vocab, &golden, err));
    fb_stream_report *report = calloc(1, sizeof *report);
    fb_status status = report ? compare_all(&golden, model, &session, report, err)
                              : fb_fail_memory(err, "report", sizeof *report);
    fb_stream_golden_close(&golden);
    if (status != FB_OK) {
        fb_stream_free(report);
        return status;
    }
    *out = report;
    return FB_OK;
}

void fb_stream_free(fb_stream_report *report) {
    if (!report) return;
    free(report->rows);
    free(report);
}
