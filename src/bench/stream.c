/* Times one stream: the cost of a token as the text grows, and the cost of reading the window again for each
 * token. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "bench/bench.h"

#define STEPS      128 /* steps timed at each position; fewer if the cache is small */
#define CHECKED    32  /* greedy tokens after the prompt of the check */
#define RECOMPUTED 5
#define GEN_FACTOR 16
#define MAX_GEN    (1ll << 30)
/* Tokens between two calls of on_progress, which may draw on a terminal. */
#define CALL_EVERY 16

typedef struct stream {
    const fb_model *model;
    const fb_bench_stream_options *options;
    fb_bench_stream_report *report;
    fb_session *session; /* the greedy session that is timed */
    int64_t first, last; /* positions of the first and last line; the first is the prompt's length */
    int64_t total;       /* tokens that the stream reads in all */
    int64_t done;
    int32_t *ids;    /* [total + RECOMPUTED + 2]: the prompt, then the stream's own tokens */
    double *samples; /* [STEPS] */
    double deadline; /* of a prefill */
    bool late;
} stream;

int64_t fb_bench_resident(void) {
    long long size, resident = 0;
    FILE *in = fopen("/proc/self/statm", "r");
    if (!in) return 0;
    if (fscanf(in, "%lld %lld", &size, &resident) != 2) resident = 0;
    fclose(in);
    return resident * sysconf(_SC_PAGESIZE);
}

/* ---- sessions ---- */

static bool ask_owner(const stream *s) {
    const fb_bench_stream_options *o = s->options;
    return !o->on_progress || o->on_progress(o->user, s->done, s->total);
}

static fb_status fail_stopped(const stream *s, fb_error *err) {
    return fb_fail(err, FB_ERROR_STOPPED, "bench: stopped after %lld of %lld tokens", (long long)s->done,
                   (long long)s->total);
}

static bool on_chunk(void *user, int64_t done, int64_t total) {
    stream *s = user;
    s->late = done < total && fb_now() > s->deadline;
    return !s->late && ask_owner(s);
}

static fb_status create_session(stream *s, fb_cache_kind cache, int64_t capacity, bool greedy,
                                fb_session **out, fb_error *err) {
    fb_session_options o = fb_bench_stream_session(s->options);
    o.cache = cache;
    o.capacity = capacity;
    o.greedy = greedy;
    o.on_progress = on_chunk;
    o.user = s;
    return fb_session_create(s->model, &o, out, err);
}

/* Reads `count` ids into an empty session and chooses the first token after them. */
static fb_status read_prompt(const stream *s, fb_session *session, const int32_t *ids, int64_t count,
                             int32_t *best, fb_error *err) {
    fb_session_reset(session);
    fb_status status = fb_session_prefill(session, ids, count, err);
    if (status == FB_ERROR_STOPPED) return fail_stopped(s, err);
    if (status != FB_OK) return status;
    return fb_session_best(session, best, err);
}

/* Decodes one more token of the stream. */
static fb_status step(stream *s, double *seconds, fb_error *err) {
    int64_t at = fb_session_position(s->session);
    double start = fb_now();
    FB_TRY(fb_session_decode(s->session, s->ids[at], err));
    FB_TRY(fb_session_best(s->session, &s->ids[at + 1], err));
    *seconds = fb_now() - start;
    s->done = at + 1;
    return s->done % CALL_EVERY || ask_owner(s) ? FB_OK : fail_stopped(s, err);
}

/* ---- the check ---- */

fb_status fb_bench_stream_check(fb_session *dense, const int32_t *ids, int64_t prompt, int64_t steps,
                                double tolerance, fb_error *err) {
    FB_TRY(fb_session_prefill(dense, ids, prompt, err));
    for (int64_t i = prompt; i <= prompt + steps; i++) {
        const float *logits;
        int64_t vocab;
        fb_bench_difference d = {0};
        FB_TRY(fb_session_logits(dense, &logits, NULL, &vocab, err));
        int32_t best = fb_bench_argmax(logits, vocab);
        fb_bench_compare(&d, logits, logits, vocab);
        fb_bench_compare_best(&d, logits, best, ids[i]);
        if (!fb_bench_agrees(&d, false, tolerance))
            return fb_fail(err, FB_ERROR_SYSTEM,
                           "bench: after %lld tokens the stream says %d, a dense cache %d (nothing is "
                           "forgotten yet: they must agree)",
                           (long long)i, ids[i], best);
        if (i < prompt + steps) FB_TRY(fb_session_decode(dense, ids[i], err));
    }
    return FB_OK;
}

/* The session to be timed fills its cache, the last tokens one by one, but forgets nothing yet. A dense
 * session must choose the same tokens. This is also the warm-up. */
static fb_status check_stream(stream *s, fb_error *err) {
    int64_t steps = s->first - 1 < CHECKED ? s->first - 1 : CHECKED, prompt = s->first - steps;
    double seconds;
    FB_TRY(read_prompt(s, s->session, s->ids, prompt, &s->ids[prompt], err));
    for (int64_t i = 0; i < steps; i++) FB_TRY(step(s, &seconds, err));
    if (s->report->cache == FB_CACHE_DENSE) return FB_OK;
    fb_session *dense;
    FB_TRY(create_session(s, FB_CACHE_DENSE, s->first, false, &dense, err));
    fb_session_options session = fb_bench_stream_session(s->options);
    fb_status status =
        fb_bench_stream_check(dense, s->ids, prompt, steps, fb_bench_tolerance(s->model, &session), err);
    if (status == FB_ERROR_STOPPED) status = fail_stopped(s, err);
    if (status == FB_OK) s->report->checked = steps + 1;
    fb_session_free(dense);
    return status;
}

/* ---- the times ---- */

static fb_status time_line(stream *s, fb_bench_stream_line *line, fb_error *err) {
    fb_cache_info cache;
    double seconds;
    while (fb_session_position(s->session) < line->position) FB_TRY(step(s, &seconds, err));
    for (int64_t i = 0; i < s->report->steps; i++) FB_TRY(step(s, &s->samples[i], err));
    fb_session_get_cache(s->session, &cache);
    line->cache_bytes = cache.bytes;
    line->resident_bytes = fb_bench_resident();
    return fb_bench_spread(s->samples, s->report->steps, &line->tpot, err);
}

static fb_status time_stream(stream *s, fb_error *err) {
    FB_TRY(read_prompt(s, s->session, s->ids, s->first, &s->ids[s->first], err));
    for (int32_t i = 0; i < s->report->line_count; i++) FB_TRY(time_line(s, s->report->lines[i], err));
    return FB_OK;
}

/* Times prompts made of the stream's own tokens. After the first that takes too long, longer ones are
 * skipped. */
static fb_status time_prompts(stream *s, fb_error *err) {
    for (int32_t i = 0; i < s->report->line_count; i++) {
        fb_bench_stream_line *line = s->report->lines[i];
        int32_t best;
        line->ttft = NAN;
        if (s->late) continue;
        double start = fb_now();
        s->deadline = start + s->options->ttft_limit;
        fb_status status = read_prompt(s, s->session, s->ids, line->position, &best, err);
        if (status == FB_OK) line->ttft = fb_now() - start;
        if (status != FB_OK && !s->late) return status;
    }
    s->deadline = INFINITY;
    return FB_OK;
}

static fb_status time_recompute(stream *s, fb_session *dense, fb_error *err) {
    fb_bench_stream_report *r = s->report;
    int64_t reach = r->sinks + r->window;
    for (int64_t i = -1; i < RECOMPUTED; i++) { /* -1 is a warm-up */
        int32_t *end = s->ids + s->total + 2 + i;
        double start = fb_now();
        FB_TRY(read_prompt(s, dense, end - reach, reach, end, err));
        if (i >= 0) s->samples[i] = fb_now() - start;
    }
    r->recompute_steps = RECOMPUTED;
    FB_TRY(fb_bench_spread(s->samples, RECOMPUTED, &r->recompute, err));
    r->ratio = r->recompute.median / r->lines[r->line_count - 1]->tpot.median;
    return FB_OK;
}

static fb_status recompute(stream *s, fb_error *err) {
    fb_session *dense;
    FB_TRY(create_session(s, FB_CACHE_DENSE, s->report->sinks + s->report->window, true, &dense, err));
    fb_status status = time_recompute(s, dense, err);
    fb_session_free(dense);
    return status;
}

/* ---- all of it ---- */

int32_t fb_bench_stream_positions(int64_t first, int64_t last, int64_t steps,
                                  int64_t positions[FB_BENCH_STREAM_LINES]) {
    for (int64_t factor = 2;; factor *= 2) {
        int64_t at = first, before = first;
        int32_t count = 0;
        for (; at <= last && count < FB_BENCH_STREAM_LINES; at *= factor) positions[count++] = before = at;
        if (at <= last) continue;
        if (before + steps > last) return count;
        if (count == FB_BENCH_STREAM_LINES) continue;
        positions[count++] = last;
        return count;
    }
}

/* Sets the first and last position, and the number of steps per line. */
static fb_status settle(stream *s, fb_error *err) {
    fb_bench_stream_report *r = s->report;
    int64_t reach = r->sinks + r->window, gen = s->options->gen;
    if (gen < 0 || gen > MAX_GEN)
        return fb_fail(err, FB_ERROR_USAGE, "gen: %lld tokens (0 to %lld)", (long long)gen, MAX_GEN);
    if (r->cache == FB_CACHE_DENSE) {
        r->gen = gen ? gen : r->context;
        r->steps = r->context / 16 < STEPS ? r->context / 16 + !(r->context / 16) : STEPS;
        s->last = r->gen < r->context - r->steps ? r->gen : r->context - r->steps;
        if (s->last < 1)
            return fb_fail(err, FB_ERROR_USAGE, "context: %lld tokens (at least 2)", (long long)r->context);
        s->first = s->last / 32 > r->steps ? s->last / 32 : r->steps < s->last ? r->steps : s->last;
        return FB_OK;
    }
    r->gen = gen ? gen : GEN_FACTOR * reach;
    r->steps = reach < STEPS ? reach : STEPS;
    if (r->gen < reach)
        return fb_fail(err, FB_ERROR_USAGE, "gen: %lld tokens (at least %lld, which fill the cache)",
                       (long long)gen, (long long)reach);
    s->first = reach;
    s->last = r->gen;
    return FB_OK;
}

static fb_status allocate(stream *s, fb_error *err) {
    fb_bench_stream_report *r = s->report;
    int64_t positions[FB_BENCH_STREAM_LINES];
    r->line_count = fb_bench_stream_positions(s->first, s->last, r->steps, positions);
    s->total = positions[r->line_count - 1] + r->steps;
    int64_t ids = s->total + RECOMPUTED + 2;
    r->lines = fb_memory_structs(r->line_count, sizeof **r->lines);
    s->ids = calloc((size_t)ids, sizeof *s->ids);
    s->samples = calloc(STEPS, sizeof *s->samples);
    if (!r->lines || !s->ids || !s->samples)
        return fb_fail_memory(err, "benchmark", ids * (int64_t)sizeof *s->ids);
    for (int32_t i = 0; i < r->line_count; i++) r->lines[i]->position = positions[i];
    return FB_OK;
}

static fb_status run(stream *s, fb_error *err) {
    fb_bench_stream_report *r = s->report;
    fb_model_info info;
    fb_cache_info cache;
    fb_model_get_info(s->model, &info);
    FB_TRY(create_session(s, s->options->cache, 0, true, &s->session, err));
    fb_session_get_cache(s->session, &cache);
    r->cache = cache.kind;
    r->sinks = cache.sinks;
    r->window = cache.window;
    r->context = info.context;
    r->threads = fb_session_threads(s->session);
    snprintf(r->isa, sizeof r->isa, "%s",
             fb_session_isa(s->session)); /* the session is freed before the report */
    FB_TRY(settle(s, err));
    FB_TRY(allocate(s, err));
    fb_bench_ids(s->model, s->ids, s->first);
    FB_TRY(check_stream(s, err));
    fb_bench_ids(s->model, s->ids, s->first);
    FB_TRY(time_stream(s, err));
    FB_TRY(time_prompts(s, err));
    r->ratio = NAN;
    return r->cache == FB_CACHE_DENSE ? FB_OK : recompute(s, err);
}

fb_status fb_bench_stream_run(const fb_model *model, const fb_bench_stream_options *given,
                              fb_bench_stream_report **report, fb_error *err) {
    *report = NULL;
    fb_bench_stream_options options;
    FB_TRY(fb_bench_stream_options_take(given, &options, err));
    stream s = {.model = model, .options = &options, .deadline = INFINITY};
    s.report = calloc(1, sizeof *s.report);
    if (!s.report) return fb_fail_memory(err, "benchmark", sizeof *s.report);
    fb_status status = run(&s, err);
    fb_session_free(s.session);
    free(s.ids);
    free(s.samples);
    if (status == FB_OK)
        *report = s.report;
    else
        fb_bench_stream_free(s.report);
    return status;
}

void fb_bench_stream_free(fb_bench_stream_report *report) {
    if (!report) return;
    free(report->lines);
    free(report);
}
