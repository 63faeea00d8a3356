/* Compares a run with a golden: every hidden state, the logits, and the greedy continuation. */
#include <math.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/options.h"
#include "verify/golden.h"

/* In float32, engine and golden differ only by the order of sums. The largest differences on the goldens are
 * a third of these limits. */
#define HIDDEN_LIMIT 5e-5
#define LOGITS_LIMIT 1e-4
#define REL_LIMIT    5e-6

/* With 16-bit activations each op rounds its result by up to half a unit in the last place u (2^-11 or 2^-8).
 * The errors since the embedding add up like a random walk, relative to the norm of the state. A single
 * element's error may be as large relative to the largest element. On the goldens the norm of the error stays
 * below 2 u sqrt(1 + layers), and the largest error below 2.5 u sqrt(1 + layers) of the largest element. */
#define ROUNDING_STEPS 4

typedef struct comparison {
    const fb_golden *golden;
    double half_ulp; /* rounding of activations or cache, whichever is coarser; 0 for float32 */
    fb_verify_report *report;
    double *error2, *norm2; /* by layer: sums of squares */
} comparison;

static void compare(fb_verify_row *row, double *error2, double *norm2, double have, double want) {
    double error = fabs(have - want);
    /* A NaN becomes the maximum and stays it. */
    if (!(error <= row->max_abs)) row->max_abs = row->max_abs != row->max_abs ? row->max_abs : error;
    *error2 += error * error;
    *norm2 += want * want;
}

static double largest(const fb_tensor_entry *entry) {
    double most = 0;
    for (int64_t i = 0; i < entry->count; i++) most = fmax(most, fabs(fb_golden_real(entry, i)));
    return most;
}

static void conclude(const comparison *c, fb_verify_row *row, const fb_tensor_entry *want, int64_t layer,
                     double error2, double norm2, double f32_limit) {
    double rounding = ROUNDING_STEPS * c->half_ulp * sqrt(1.0 + (double)layer);
    row->layer = layer;
    row->limit = f32_limit + rounding * largest(want);
    row->rel = norm2 > 0 ? sqrt(error2 / norm2) : sqrt(error2);
    row->rel_limit = REL_LIMIT + rounding;
    row->ok = row->max_abs <= row->limit && row->rel <= row->rel_limit;
}

static bool on_hidden(void *user, int64_t layer, int64_t position, const float *hidden, int64_t rows,
                      int64_t cols) {
    comparison *c = user;
    fb_verify_row *row = &c->report->rows[layer];
    const fb_tensor_entry *want = c->golden->hidden[layer];
    for (int64_t i = 0; i < rows * cols; i++)
        compare(row, &c->error2[layer], &c->norm2[layer], hidden[i],
                fb_golden_real(want, position * cols + i));
    return true;
}

static void compare_logits(comparison *c, const float *logits) {
    const fb_golden *g = c->golden;
    fb_verify_report *r = c->report;
    double error2 = 0, norm2 = 0;
    fb_verify_row truth = {0};
    for (int64_t i = 0; i < g->tokens * g->vocab; i++) {
        compare(&r->logits, &error2, &norm2, logits[i], fb_golden_real(g->logits, i));
        if (g->logits_f64) {
            double unused = 0;
            compare(&truth, &unused, &unused, logits[i], fb_golden_real(g->logits_f64, i));
        }
    }
    conclude(c, &r->logits, g->logits, g->layers, error2, norm2, LOGITS_LIMIT);
    r->logits_f64_max_abs = g->logits_f64 ? truth.max_abs : NAN;
}

static int64_t argmax(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Feeds the golden's continuation and checks that each of its tokens is the one that would be chosen. */
static fb_status compare_greedy(comparison *c, fb_session *session, fb_error *err) {
    const fb_golden *g = c->golden;
    fb_verify_report *r = c->report;
    r->greedy_tokens = g->greedy ? g->greedy->count : 0;
    for (int64_t i = 0; i < r->greedy_tokens; i++) {
        const float *logits;
        int64_t rows, vocab;
        FB_TRY(fb_session_logits(session, &logits, &rows, &vocab, err));
        logits += (rows - 1) * vocab;
        int64_t want = fb_golden_int(g->greedy, i), have = argmax(logits, vocab);
        /* The ids were checked, but the file is mapped, and others may have changed it. */
        if (want < 0 || want >= vocab)
            return fb_fail(err, FB_ERROR_FILE, "greedy: id %lld: %lld (0 to %lld; the file was changed)",
                           (long long)i, (long long)want, (long long)vocab - 1);
        if (have == want)
            r->greedy_equal++;
        else if (c->half_ulp > 0 && (double)logits[have] - (double)logits[want] <= 2 * r->logits.limit)
            r->greedy_near++;
        if (i + 1 < r->greedy_tokens) FB_TRY(fb_session_decode(session, (int32_t)want, err));
    }
    r->greedy_match = r->greedy_equal + r->greedy_near == r->greedy_tokens;
    return FB_OK;
}

static fb_status check_shapes(const fb_model *model, const char *path, const fb_golden *g, fb_error *err) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    if (g->layers != info.layers + 1)
        return fb_fail(err, FB_ERROR_FILE, "%s: hidden states: %lld (the model has %lld)", path,
                       (long long)g->layers, (long long)info.layers + 1);
    if (g->width != info.hidden || g->vocab != info.vocab)
        return fb_fail(
            err, FB_ERROR_FILE, "%s: hidden size %lld, vocabulary %lld (the model has %lld and %lld)", path,
            (long long)g->width, (long long)g->vocab, (long long)info.hidden, (long long)info.vocab);
    int64_t total = g->tokens + (g->greedy ? g->greedy->count : 0);
    if (total > info.context)
        return fb_fail(err, FB_ERROR_FILE, "%s: %lld tokens (the model's context is %lld)", path,
                       (long long)total, (long long)info.context);
    return FB_OK;
}

static fb_status run(comparison *c, fb_session *session, const int32_t *ids, fb_error *err) {
    const fb_golden *g = c->golden;
    fb_verify_report *r = c->report;
    const float *logits;
    FB_TRY(fb_session_prefill(session, ids, g->tokens, err));
    FB_TRY(fb_session_logits(session, &logits, NULL, NULL, err));
    for (int64_t layer = 0; layer < g->layers; layer++)
        conclude(c, &r->rows[layer], g->hidden[layer], layer, c->error2[layer], c->norm2[layer],
                 HIDDEN_LIMIT);
    compare_logits(c, logits);
    return FB_OK;
}

static fb_status compare_all(comparison *c, const fb_model *model, const fb_session_options *options,
                             fb_error *err) {
    const fb_golden *g = c->golden;
    int32_t *ids = malloc((size_t)g->tokens * sizeof *ids);
    if (!ids) return fb_fail_memory(err, "ids", g->tokens * (int64_t)sizeof *ids);
    for (int64_t i = 0; i < g->tokens; i++) ids[i] = (int32_t)fb_golden_int(g->ids, i);
    fb_session_options o = *options;
    o.capacity = g->tokens + (g->greedy ? g->greedy->count : 0);
    o.all_logits = true;
    o.on_hidden = on_hidden;
    o.user = c;
    fb_session *session = NULL;
    fb_status status = fb_session_create(model, &o, &session, err);
    if (status == FB_OK) status = run(c, session, ids, err);
    fb_session_free(session);
    session = NULL;
    /* The continuation runs in a session without on_hidden, as a user's run would. */
    o.on_hidden = NULL;
    o.all_logits = false;
    if (status == FB_OK) status = fb_session_create(model, &o, &session, err);
    if (status == FB_OK) status = fb_session_prefill(session, ids, g->tokens, err);
    if (status == FB_OK) status = compare_greedy(c, session, err);
    fb_session_free(session);
    free(ids);
    return status;
}

static fb_status make_report(const fb_golden *g, const fb_model *model, const fb_session_options *options,
                             fb_verify_report *r, fb_error *err) {
    fb_dtype kv;
    FB_TRY(fb_dtype_parse_kv(options->kv, options->act, &kv, err));
    comparison c = {
        .golden = g, .half_ulp = fmax(fb_golden_half_ulp(options->act), fb_golden_half_ulp(kv)), .report = r};
    r->tokens = g->tokens;
    r->layers = g->layers;
    r->rows = calloc((size_t)g->layers, sizeof *r->rows);
    c.error2 = calloc((size_t)g->layers * 2, sizeof *c.error2);
    fb_status status = fb_fail_memory(err, "report", g->layers * 128);
    if (r->rows && c.error2) {
        c.norm2 = c.error2 + g->layers;
        status = compare_all(&c, model, options, err);
    }
    free(c.error2);
    r->ok = r->logits.ok && r->greedy_match;
    for (int64_t i = 0; r->rows && i < r->layers; i++) r->ok = r->ok && r->rows[i].ok;
    return status;
}

fb_status fb_verify_golden(const fb_model *model, const char *path, const fb_verify_options *given,
                           fb_verify_report **out, fb_error *err) {
    *out = NULL;
    fb_verify_options options;
    FB_TRY(fb_verify_options_take(given, &options, err));
    fb_session_options session = fb_verify_session(&options);
    session.kv = fb_golden_kv(options.kv);
    fb_golden golden;
    FB_TRY(fb_golden_open(path, &golden, err));
    fb_status status = check_shapes(model, path, &golden, err);
    fb_verify_report *report = NULL;
    if (status == FB_OK) {
        report = calloc(1, sizeof *report);
        status = report ? make_report(&golden, model, &session, report, err)
                        : fb_fail_memory(err, "report", sizeof *report);
    }
    fb_golden_close(&golden);
    if (status != FB_OK) {
        fb_verify_free(report);
        return status;
    }
    *out = report;
    return FB_OK;
}

void fb_verify_free(fb_verify_report *report) {
    if (!report) return;
    free(report->rows);
    free(report);
}
