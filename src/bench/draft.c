/* Times decoding with drafts beside decoding one by one, in turns. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/stats.h"
#include "bench/bench.h"
#include "model/model.h"
#include "plan/draft.h"
#include "plan/machine.h"
#include "run/session.h"

#define MAX_SOURCES  16
#define STEP_SAMPLES 15 /* of steps of so many rows */

typedef struct bench {
    const fb_model *model;
    const fb_bench_draft_options *options;
    fb_session_options session;
    fb_bench_draft_report *report;
    int32_t *ids;            /* [prompt] */
    int32_t *plain, *tokens; /* [gen] */
    /* Of a scripted source: */
    double chance;
    uint64_t random;
} bench;

/* ---- scripts ---- */

static bool is_script(const char *source, double *chance) {
    const char *number = source + 9;
    char *end;
    if (strncmp(source, "scripted:", 9) != 0) return false;
    *chance = strtod(number, &end);
    return end != number && *end == '\0' && *chance >= 0 && *chance <= 1;
}

/* The text that is known, each token with this chance; then another one. */
static int64_t script(void *user, const int32_t *tokens, int64_t count, int64_t most, int32_t *ids) {
    bench *b = user;
    int64_t at = count - b->options->prompt, vocab = b->model->spec->program.vocab;
    (void)tokens;
    for (int64_t i = 0; i < most; i++) {
        int32_t right = at + i < b->options->gen ? b->plain[at + i] : 0;
        b->random = b->random * 6364136223846793005u + 1442695040888963407u;
        bool good = (double)(b->random >> 11) * 0x1p-53 < b->chance;
        ids[i] = good ? right : (int32_t)((right + 1) % vocab);
    }
    return most;
}

static fb_status make_draft(bench *b, const char *source, int64_t most, int64_t fixed, fb_draft **out,
                            fb_error *err) {
    fb_draft_options o;
    fb_draft_options_default(&o);
    o.source = source;
    o.most = most;
    o.fixed = fixed;
    if (is_script(source, &b->chance)) {
        o.propose = script;
        o.user = b;
    }
    return fb_draft_create(b->model, &o, out, err);
}

/* ---- texts ---- */

/* A session that has read the prompt, and its first token. */
static fb_status begin(const bench *b, const fb_draft *draft, fb_session **session, fb_sampler **sampler,
                       int32_t *first, fb_error *err) {
    fb_session_options o = b->session;
    fb_sampler_options so;
    const float *logits;
    fb_sampler_options_default(&so);
    so.temperature = b->options->temperature;
    so.seed = 1;
    o.greedy = b->options->temperature == 0;
    o.draft = draft;
    FB_TRY(fb_session_create(b->model, &o, session, err));
    FB_TRY(fb_session_prefill(*session, b->ids, b->options->prompt, err));
    if (o.greedy) return fb_session_best(*session, first, err);
    FB_TRY(fb_sampler_create(&so, b->model->spec->program.vocab, sampler, err));
    for (int64_t i = 0; i < b->options->prompt; i++) fb_sampler_accept(*sampler, b->ids[i]);
    FB_TRY(fb_session_logits(*session, &logits, NULL, NULL, err));
    return fb_sampler_next(*sampler, logits, first, err);
}

static fb_status go_on(const bench *b, fb_session *session, fb_sampler *sampler, int32_t *tokens,
                       fb_error *err) {
    for (int64_t done = 1, count; done < b->options->gen; done += count) {
        int32_t ids[FB_MAX_DRAFT + 1];
        FB_TRY(fb_session_speculate(session, tokens[done - 1], sampler, b->options->gen - done, ids, &count,
                                    err));
        memcpy(tokens + done, ids, (size_t)count * sizeof *ids);
    }
    return FB_OK;
}

static void add_stats(fb_draft_stats *to, const fb_draft_stats *s) {
    to->steps += s->steps;
    to->plain_steps += s->plain_steps;
    to->tokens += s->tokens;
    to->drafted += s->drafted;
    to->kept += s->kept;
    to->step_seconds += s->step_seconds;
    to->draft_seconds += s->draft_seconds;
    for (int i = 0; i < FB_MAX_DRAFT; i++) {
        to->tried[i] += s->tried[i];
        to->right[i] += s->right[i];
    }
}

/* A text; *seconds a token. */
static fb_status run_text(const bench *b, const fb_draft *draft, int32_t *tokens, double *seconds,
                          fb_draft_stats *stats, fb_error *err) {
    fb_session *session = NULL;
    fb_sampler *sampler = NULL;
    fb_draft_stats s;
    fb_status status = begin(b, draft, &session, &sampler, &tokens[0], err);
    double began = fb_now();
    if (status == FB_OK) status = go_on(b, session, sampler, tokens, err);
    *seconds = (fb_now() - began) / (double)(b->options->gen - 1);
    if (status == FB_OK && stats) {
        fb_session_get_draft(session, &s);
        add_stats(stats, &s);
    }
    if (status == FB_OK && !b->report->threads) {
        b->report->threads = fb_session_threads(session);
        snprintf(b->report->isa, sizeof b->report->isa, "%s", fb_session_isa(session));
    }
    fb_session_free(session);
    fb_sampler_free(sampler);
    return status;
}

/* ---- steps of 1, 2, … rows ---- */

static fb_status time_rows(bench *b, int64_t rows, double *seconds, fb_error *err) {
    fb_draft *draft = NULL;
    fb_session *session = NULL;
    fb_sampler *sampler = NULL;
    double samples[STEP_SAMPLES];
    int64_t done = 1, count, taken = 0;
    int32_t first, ids[FB_MAX_DRAFT + 1];
    b->chance = 1;
    fb_status status = rows > 1 ? make_draft(b, "scripted:1", rows - 1, 1, &draft, err) : FB_OK;
    if (status == FB_OK) status = begin(b, draft, &session, &sampler, &first, err);
    while (status == FB_OK && taken < STEP_SAMPLES && done + rows < b->options->gen) {
        double began = fb_now();
        status = fb_session_speculate(session, b->plain[done - 1], sampler, rows, ids, &count, err);
        samples[taken++] = fb_now() - began;
        done += count;
    }
    fb_spread spread = {0};
    if (status == FB_OK && taken) status = fb_bench_spread(samples, taken, &spread, err);
    *seconds = spread.median;
    fb_session_free(session);
    fb_sampler_free(sampler);
    fb_draft_free(draft);
    return status;
}

/* ---- one source ---- */

/* Guesses of n-grams are there for some steps only, so their average is what there was. */
static double predict(const bench *b, const fb_bench_draft_line *line) {
    const fb_draft_stats *s = &line->stats;
    const double *step = b->report->step_seconds;
    double rate = line->acceptance, chance;
    int64_t best;
    if (is_script(line->source, &chance)) rate = chance;
    double guess = s->drafted ? s->draft_seconds / (double)s->drafted : 0;
    if (strcmp(line->source, "ngram") != 0)
        return fb_draft_speedup(step, guess, rate, b->options->fixed ? b->options->most : -1, &best);
    double with = (double)(s->steps - s->plain_steps), rows = with > 0 ? (double)s->drafted / with : 0;
    int64_t below = (int64_t)rows, above = below < FB_MAX_DRAFT ? below + 1 : below;
    double seconds = step[below] + (step[above] - step[below]) * (rows - (double)below);
    return (double)s->tokens * step[0] /
           (with * seconds + (double)s->plain_steps * step[0] + s->draft_seconds);
}

/* Each begins every other time: whoever is second finds a machine that the first one has warmed up. */
static fb_status run_both(bench *b, fb_bench_draft_line *line, fb_draft *draft, int64_t i, fb_error *err) {
    if (i % 2) FB_TRY(run_text(b, draft, b->tokens, &line->drafted[i], &line->stats, err));
    FB_TRY(run_text(b, NULL, b->tokens, &line->plain[i], NULL, err));
    if (i % 2) return FB_OK;
    return run_text(b, draft, b->tokens, &line->drafted[i], &line->stats, err);
}

static fb_status time_source(bench *b, fb_bench_draft_line *line, fb_draft *draft, fb_error *err) {
    const fb_bench_draft_options *o = b->options;
    double seconds;
    int64_t tried = 0, right = 0;
    FB_TRY(run_text(b, draft, b->tokens, &seconds, NULL, err));
    line->same = memcmp(b->plain, b->tokens, (size_t)o->gen * sizeof *b->plain) == 0;
    for (int64_t i = 0; i < o->reps && line->same; i++) {
        FB_TRY(run_both(b, line, draft, i, err));
        FB_TRY(fb_bench_progress(o->on_progress, o->user, i + 1, o->reps, err));
    }
    if (!line->same) return FB_OK;
    FB_TRY(fb_bench_spread(line->plain, o->reps, &line->plain_spread, err));
    FB_TRY(fb_bench_spread(line->drafted, o->reps, &line->drafted_spread, err));
    FB_TRY(fb_bench_ratio(line->plain, line->drafted, o->reps, &line->ratio, err));
    for (int i = 0; i < FB_MAX_DRAFT; i++) {
        tried += line->stats.tried[i];
        right += line->stats.right[i];
    }
    line->acceptance = tried ? (double)right / (double)tried : 0;
    line->predicted = predict(b, line);
    return FB_OK;
}

static fb_status add_line(bench *b, const char *source, fb_error *err) {
    const fb_bench_draft_options *o = b->options;
    fb_bench_draft_line *line = b->report->lines[b->report->line_count];
    fb_draft *draft;
    line->source = source;
    line->plain = calloc((size_t)o->reps, sizeof *line->plain);
    line->drafted = calloc((size_t)o->reps, sizeof *line->drafted);
    b->report->line_count++;
    if (!line->plain || !line->drafted)
        return fb_fail_memory(err, "times", o->reps * (int64_t)sizeof *line->plain);
    double began = fb_now();
    FB_TRY(make_draft(b, source, o->most, o->fixed, &draft, err));
    line->create_seconds = fb_now() - began;
    fb_status status = time_source(b, line, draft, err);
    fb_draft_free(draft);
    return status;
}

/* ---- all of it ---- */

static fb_status check_options(const fb_model *model, const fb_bench_draft_options *o, fb_error *err) {
    FB_TRY(fb_bench_check(model, o->prompt, o->gen, o->reps, err));
    if (o->gen < 2) return fb_fail(err, FB_ERROR_USAGE, "gen: %lld (at least 2)", (long long)o->gen);
    if (o->source_count < 1 || o->source_count > MAX_SOURCES)
        return fb_fail(err, FB_ERROR_USAGE, "sources: %d (1 to %d)", o->source_count, MAX_SOURCES);
    for (int32_t i = 0; i < o->source_count; i++) {
        double chance;
        if (strncmp(o->sources[i], "scripted", 8) == 0 && !is_script(o->sources[i], &chance))
            return fb_fail(err, FB_ERROR_USAGE, "draft: %.64s (scripted:P, with P from 0 to 1)",
                           o->sources[i]);
    }
    return FB_OK;
}

static fb_status run(bench *b, fb_error *err) {
    const fb_bench_draft_options *o = b->options;
    double seconds;
    b->ids = malloc((size_t)o->prompt * sizeof *b->ids);
    b->plain = malloc((size_t)o->gen * sizeof *b->plain);
    b->tokens = malloc((size_t)o->gen * sizeof *b->tokens);
    b->report->lines = fb_memory_structs(o->source_count, sizeof **b->report->lines);
    if (!b->ids || !b->plain || !b->tokens || !b->report->lines)
        return fb_fail_memory(err, "tokens", (o->prompt + 2 * o->gen) * (int64_t)sizeof *b->ids);
    if (o->ids)
        memcpy(b->ids, o->ids, (size_t)o->prompt * sizeof *b->ids);
    else
        fb_bench_ids(b->model, b->ids, o->prompt);
    FB_TRY(run_text(b, NULL, b->plain, &seconds, NULL, err));
    for (int64_t rows = 1; rows <= FB_MAX_DRAFT + 1; rows++)
        FB_TRY(time_rows(b, rows, &b->report->step_seconds[rows - 1], err));
    for (int32_t i = 0; i < o->source_count; i++) FB_TRY(add_line(b, o->sources[i], err));
    return FB_OK;
}

fb_status fb_bench_draft(const fb_model *model, const fb_bench_draft_options *given,
                         fb_bench_draft_report **report, fb_error *err) {
    *report = NULL;
    fb_bench_draft_options o;
    FB_TRY(fb_bench_draft_options_take(given, &o, err));
    FB_TRY(check_options(model, &o, err));
    bench b = {.model = model, .options = &o, .session = fb_bench_draft_session(&o), .random = 1};
    b.report = calloc(1, sizeof *b.report);
    if (!b.report) return fb_fail_memory(err, "report", sizeof *b.report);
    b.report->prompt = o.prompt;
    b.report->gen = o.gen;
    b.report->reps = o.reps;
    fb_status status = run(&b, err);
    free(b.ids);
    free(b.plain);
    free(b.tokens);
    if (status != FB_OK) {
        fb_bench_draft_free(b.report);
        return status;
    }
    *report = b.report;
    return FB_OK;
}

void fb_bench_draft_free(fb_bench_draft_report *report) {
    if (!report) return;
    for (int64_t i = 0; i < report->line_count; i++) {
        free(report->lines[i]->plain);
        free(report->lines[i]->drafted);
    }
    free(report->lines);
    free(report);
}
