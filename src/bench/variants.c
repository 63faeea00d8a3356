/* Times whole generations with different fuses. They are first checked against each other, then timed in
 * turn. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/stats.h"
#include "bench/bench.h"
#include "fuse/fuse.h"
#include "model/model.h"

typedef struct bench {
    const fb_model *model;
    const fb_bench_options *options;
    fb_bench_report *report;
    fb_session **sessions; /* [variants]: the greedy sessions that are timed */
    int32_t *prompt;       /* [prompt] */
    int32_t *first;        /* [gen + 1]: the first variant's tokens */
    int32_t *tokens;       /* [gen + 1] */
    double *steps;         /* [gen] */
} bench;

/* In a mixture of experts a rounding can choose another expert, and then no bound holds. So the sessions that
 * are compared have the bit-identical variants of all fuses; `verify` measures what the others do. */
static bool is_mixture(const bench *b) { return b->model->spec->hyper.experts > 0; }

/* Greedy: to be timed. Otherwise: to be compared. */
static fb_status create_session(const bench *b, int32_t variant, bool greedy, fb_session **out,
                                fb_error *err) {
    fb_session_options o = fb_bench_session(b->options);
    o.fuse = b->options->specs[variant];
    o.greedy = greedy;
    if (!greedy) o.exact = o.exact || is_mixture(b);
    o.capacity = b->options->prompt + b->options->gen;
    return fb_session_create(b->model, &o, out, err);
}

/* ---- the check ---- */

/* Whether every fuse in the session's plan promises the plain ops' bits. The reference's fused kernels do not
 * round in between. */
static bool promises_bits(const bench *b, const fb_session *session) {
    const char *name;
    int64_t calls, a_step, a_head;
    bool exact = b->options->exact || is_mixture(b), reference = strcmp(fb_session_isa(session), "ref") == 0;
    for (int i = 0; fb_session_fuse_calls(session, i, &name, &calls, &a_step, &a_head); i++)
        if (a_step > 0 && (reference || (fb_fuse_table[i].exactness != FB_EXACT_BIT && !exact))) return false;
    return true;
}

static fb_status compare_step(fb_session *a, fb_session *b, fb_bench_difference *difference,
                              const float **logits, fb_error *err) {
    const float *other;
    int64_t rows, vocab;
    FB_TRY(fb_session_logits(a, logits, &rows, &vocab, err));
    FB_TRY(fb_session_logits(b, &other, &rows, &vocab, err));
    fb_bench_compare(difference, *logits, other, vocab);
    return FB_OK;
}

/* Both sessions read the prompt and the first variant's tokens, and all logits are compared. Greedy tokens
 * are compared up to the first difference: after that the texts are different. */
static fb_status compare_logits(const bench *b, fb_session *first, fb_session *other, const int32_t *tokens,
                                fb_bench_difference *difference, fb_error *err) {
    const float *logits;
    bool same_text = !is_mixture(b) || b->options->exact; /* otherwise those that are timed may differ */
    *difference = (fb_bench_difference){.bit_identical = true};
    FB_TRY(fb_session_prefill(first, b->prompt, b->options->prompt, err));
    FB_TRY(fb_session_prefill(other, b->prompt, b->options->prompt, err));
    for (int64_t i = 0; i <= b->options->gen; i++) {
        FB_TRY(compare_step(first, other, difference, &logits, err));
        if (same_text) fb_bench_compare_best(difference, logits, b->first[i], tokens[i]);
        same_text = same_text && b->first[i] == tokens[i];
        if (i == b->options->gen) break;
        FB_TRY(fb_session_decode(first, b->first[i], err));
        FB_TRY(fb_session_decode(other, b->first[i], err));
    }
    return FB_OK;
}

/* One greedy generation with gen steps after the first token. Sets `prefill` and `ttft`; the times of the
 * steps go to b->steps. */
static fb_status generate(const bench *b, fb_session *session, int32_t *tokens, double *prefill, double *ttft,
                          fb_error *err) {
    fb_session_reset(session);
    double start = fb_now(), last;
    FB_TRY(fb_session_prefill(session, b->prompt, b->options->prompt, err));
    *prefill = fb_now() - start;
    FB_TRY(fb_session_best(session, &tokens[0], err));
    last = fb_now();
    *ttft = last - start;
    for (int64_t i = 0; i < b->options->gen; i++) {
        FB_TRY(fb_session_decode(session, tokens[i], err));
        FB_TRY(fb_session_best(session, &tokens[i + 1], err));
        double now = fb_now();
        b->steps[i] = now - last;
        last = now;
    }
    return FB_OK;
}

/* Compares the greedy tokens of the session that will be timed. This is also its warm-up. */
static fb_status compare_tokens(const bench *b, int32_t variant, fb_error *err) {
    fb_bench_variant *v = b->report->variants[variant];
    double prefill, ttft;
    FB_TRY(generate(b, b->sessions[variant], variant ? b->tokens : b->first, &prefill, &ttft, err));
    fb_session_reset(b->sessions[variant]);
    FB_TRY(fb_session_prefill(b->sessions[variant], b->prompt, b->options->prompt, err));
    int64_t before = fb_session_barriers(b->sessions[variant]);
    FB_TRY(fb_session_decode(b->sessions[variant], b->prompt[0], err));
    v->barriers_a_step = fb_session_barriers(b->sessions[variant]) - before;
    const int32_t *tokens = variant ? b->tokens : b->first;
    for (int64_t i = 0; i <= b->options->gen; i++) v->tokens_equal += tokens[i] == b->first[i];
    return FB_OK;
}

static fb_status check_variant(const bench *b, int32_t variant, fb_error *err) {
    fb_bench_variant *v = b->report->variants[variant];
    fb_session *first = NULL, *other = NULL;
    fb_bench_difference d = {0};
    FB_TRY(compare_tokens(b, variant, err));
    fb_status status = create_session(b, 0, false, &first, err);
    if (status == FB_OK) status = create_session(b, variant, false, &other, err);
    if (status == FB_OK) status = compare_logits(b, first, other, variant ? b->tokens : b->first, &d, err);
    if (status == FB_OK) {
        bool bits = promises_bits(b, first) && promises_bits(b, other);
        v->bit_identical = d.bit_identical;
        v->max_abs = d.max_abs;
        fb_session_options session = fb_bench_session(b->options);
        v->agrees = fb_bench_agrees(&d, bits, fb_bench_tolerance(b->model, &session));
        b->report->agree = b->report->agree && v->agrees;
    }
    fb_session_free(first);
    fb_session_free(other);
    return status;
}

/* ---- the times ---- */

static fb_status time_variants(const bench *b, fb_error *err) {
    int64_t count = b->report->variant_count;
    for (int64_t rep = 0; rep < b->options->reps; rep++) {
        /* Each round begins with another variant, so that a temporary slowdown of the machine affects all
         * alike. */
        for (int32_t turn = 0; turn < count; turn++) {
            int32_t variant = (int32_t)((rep + turn) % count);
            fb_bench_variant *v = b->report->variants[variant];
            FB_TRY(generate(b, b->sessions[variant], b->tokens, &v->prefill[rep], &v->ttft[rep], err));
            v->tpot[rep] = fb_stats_median(b->steps, b->options->gen);
        }
        FB_TRY(fb_bench_progress(b->options->on_progress, b->options->user, rep + 1, b->options->reps, err));
    }
    return FB_OK;
}

static fb_status summarize(const fb_bench_report *report, fb_error *err) {
    const fb_bench_variant *first = report->variants[0];
    for (int32_t i = 0; i < report->variant_count; i++) {
        fb_bench_variant *v = report->variants[i];
        FB_TRY(fb_bench_spread(v->prefill, report->reps, &v->prefill_spread, err));
        FB_TRY(fb_bench_spread(v->ttft, report->reps, &v->ttft_spread, err));
        FB_TRY(fb_bench_spread(v->tpot, report->reps, &v->tpot_spread, err));
        FB_TRY(fb_bench_ratio(first->prefill, v->prefill, report->reps, &v->prefill_ratio, err));
        FB_TRY(fb_bench_ratio(first->ttft, v->ttft, report->reps, &v->ttft_ratio, err));
        FB_TRY(fb_bench_ratio(first->tpot, v->tpot, report->reps, &v->tpot_ratio, err));
    }
    return FB_OK;
}

/* ---- all of it ---- */

static void *zeros(int64_t count, size_t size, bool *ok) {
    void *memory = calloc((size_t)count, size);
    *ok = *ok && memory;
    return memory;
}

static fb_status allocate(bench *b, fb_error *err) {
    const fb_bench_options *o = b->options;
    bool ok = true;
    b->sessions = zeros(o->spec_count, sizeof *b->sessions, &ok);
    b->prompt = zeros(o->prompt, sizeof *b->prompt, &ok);
    b->first = zeros(o->gen + 1, sizeof *b->first, &ok);
    b->tokens = zeros(o->gen + 1, sizeof *b->tokens, &ok);
    b->steps = zeros(o->gen, sizeof *b->steps, &ok);
    b->report = zeros(1, sizeof *b->report, &ok);
    if (ok) b->report->variants = fb_memory_structs(o->spec_count, sizeof **b->report->variants);
    ok = ok && b->report->variants;
    for (int32_t i = 0; ok && i < o->spec_count; i++) {
        fb_bench_variant *v = b->report->variants[b->report->variant_count++];
        v->spec = o->specs[i];
        v->prefill = zeros(o->reps, sizeof *v->prefill, &ok);
        v->ttft = zeros(o->reps, sizeof *v->ttft, &ok);
        v->tpot = zeros(o->reps, sizeof *v->tpot, &ok);
    }
    return ok ? FB_OK : fb_fail_memory(err, "benchmark", (o->gen + o->reps * o->spec_count) * 24);
}

static fb_status run(bench *b, fb_error *err) {
    const fb_bench_options *o = b->options;
    FB_TRY(fb_bench_check(b->model, o->prompt, o->gen, o->reps, err));
    if (o->spec_count < 1) return fb_fail(err, FB_ERROR_USAGE, "variants: %d (at least 1)", o->spec_count);
    FB_TRY(allocate(b, err));
    fb_bench_report *r = b->report;
    r->prompt = o->prompt;
    r->gen = o->gen;
    r->reps = o->reps;
    r->agree = true;
    fb_bench_ids(b->model, b->prompt, o->prompt);
    for (int32_t i = 0; i < o->spec_count; i++) FB_TRY(create_session(b, i, true, &b->sessions[i], err));
    r->threads = fb_session_threads(b->sessions[0]);
    snprintf(r->isa, sizeof r->isa, "%s", fb_session_isa(b->sessions[0]));
    for (int32_t i = 0; i < o->spec_count; i++) FB_TRY(check_variant(b, i, err));
    if (!r->agree) return FB_OK;
    FB_TRY(time_variants(b, err));
    return summarize(r, err);
}

fb_status fb_bench_run(const fb_model *model, const fb_bench_options *given, fb_bench_report **report,
                       fb_error *err) {
    *report = NULL;
    fb_bench_options options;
    FB_TRY(fb_bench_options_take(given, &options, err));
    bench b = {.model = model, .options = &options};
    fb_status status = run(&b, err);
    for (int32_t i = 0; b.sessions && i < options.spec_count; i++) fb_session_free(b.sessions[i]);
    free(b.sessions);
    free(b.prompt);
    free(b.first);
    free(b.tokens);
    free(b.steps);
    if (status == FB_OK)
        *report = b.report;
    else
        fb_bench_free(b.report);
    return status;
}

void fb_bench_free(fb_bench_report *report) {
    if (!report) return;
    for (int32_t i = 0; report->variants && i < report->variant_count; i++) {
        free(report->variants[i]->prefill);
        free(report->variants[i]->ttft);
        free(report->variants[i]->tpot);
    }
    free(report->variants);
    free(report);
}
