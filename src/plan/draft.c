#include "plan/draft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/screen.h"
#include "base/stats.h"
#include "model/shrink.h"
#include "plan/report.h"

#define ROWS (FB_MAX_DRAFT + 1)

static const double chances[FB_PLAN_CHANCES] = {0.3, 0.5, 0.7, 0.8, 0.9};

double fb_draft_speedup(const double *step, double guess, double rate, int64_t length, int64_t *best) {
    double most = 1, tokens = 1, all = 1;
    *best = 0;
    for (int64_t k = 1; k <= FB_MAX_DRAFT; k++) {
        tokens += all *= rate;
        double speedup = tokens * step[0] / (step[k] + (double)k * guess);
        if (length >= 0 ? k != length : speedup <= most) continue;
        most = speedup;
        *best = k;
    }
    return most;
}

/* ---- prices ---- */

/* A draft that is this model with smaller weights: the time of a guess is that of its step. */
static fb_status price_smaller(const fb_model *model, fb_dtype type, const fb_machine *machine,
                               const fb_shape *shape, const fb_plan_options *options, fb_plan_draft *d,
                               fb_price *price, fb_error *err) {
    fb_model *smaller;
    fb_error why;
    fb_status status = fb_model_shrink_shapes(model, type, &smaller, &why);
    if (status == FB_ERROR_UNSUPPORTED) {
        snprintf(d->why_not, sizeof d->why_not, "no matrix of this model becomes smaller as %s",
                 fb_dtype_name(type));
        return FB_OK;
    }
    if (status != FB_OK) return fb_fail(err, status, "%s", why.message);
    fb_plan_options o = *options;
    fb_plan *plan = malloc(sizeof *plan);
    const fb_program *plain = &smaller->spec->program;
    int32_t head = fb_program_head(plain);
    o.fuses = FB_FUSE_ALL;
    o.exact = o.float_dot = false;
    o.screen = o.screen && head != FB_NONE && fb_screen_fits(&smaller->weights[head * plain->layers]);
    status = plan ? fb_plan_choose(plain, smaller->weights, machine, shape, &o, err)
                  : fb_fail_memory(err, "plan", sizeof *plan);
    if (status == FB_OK) status = fb_plan_make(plain, &o, plan, err);
    if (status == FB_OK) {
        fb_price_plan(plan, smaller->weights, machine, shape, price);
        d->guess = price->total;
    }
    free(plan);
    fb_model_free(smaller);
    return status;
}

/* The least chance at which some number of guesses is faster than none. */
static double break_even(const double *step, double guess) {
    double low = 0, high = 1;
    int64_t best;
    if (fb_draft_speedup(step, guess, 1, -1, &best) <= 1) return NAN;
    for (int i = 0; i < 40; i++) {
        double middle = (low + high) / 2;
        if (fb_draft_speedup(step, guess, middle, -1, &best) > 1)
            high = middle;
        else
            low = middle;
    }
    return high;
}

static void fill(fb_plan_draft *d, const double *step) {
    d->break_even = break_even(step, d->guess);
    for (int i = 0; i < FB_PLAN_CHANCES; i++) {
        d->chance[i] = chances[i];
        d->speedup[i] = fb_draft_speedup(step, d->guess, chances[i], -1, &d->guesses[i]);
    }
}

static fb_status price_all(fb_plan_report *report, const fb_model *model, const fb_machine *machine,
                           const fb_shape *shape, const fb_plan *plan, const fb_plan_options *options,
                           fb_price *price, fb_error *err) {
    fb_shape many = *shape;
    for (int64_t rows = 1; rows <= ROWS; rows++) {
        many.rows = many.epilogue_rows = rows;
        fb_price_plan(plan, model->weights, machine, &many, price);
        /* Where one row and several have kernels of their own, their measured rates may say otherwise. */
        double fewer = rows > 1 ? report->rows_predicted[rows - 2] : 0;
        report->rows_predicted[rows - 1] = price->total > fewer ? price->total : fewer;
    }
    fb_plan_draft *ngram = report->drafts[0], *q4 = report->drafts[1];
    ngram->source = "ngram";
    q4->source = "q4";
    FB_TRY(price_smaller(model, fb_shrink_q4(machine->gpu), machine, shape, options, q4, price, err));
    fill(ngram, report->rows_predicted);
    if (!*q4->why_not) fill(q4, report->rows_predicted);
    return FB_OK;
}

fb_status fb_plan_price_drafts(fb_plan_report *report, const fb_model *model, const fb_machine *machine,
                               const fb_shape *shape, const fb_plan *plan, const fb_plan_options *options,
                               fb_error *err) {
    fb_price *price = malloc(sizeof *price);
    report->draft_count = 2;
    report->drafts = fb_memory_structs(report->draft_count, sizeof **report->drafts);
    fb_status status = price && report->drafts
                           ? price_all(report, model, machine, shape, plan, options, price, err)
                           : fb_fail_memory(err, "prices", sizeof *price);
    free(price);
    return status;
}

/* ---- measured ---- */

#define MOST_STEPS    24 /* of each number of rows, */
#define LEAST_STEPS   3  /* but no more than fit into … */
#define STEPS_SECONDS 0.25

/* Any guesses will do: a step takes the same time for right ones and wrong ones. */
static int64_t guess_any(void *user, const int32_t *tokens, int64_t count, int64_t most, int32_t *ids) {
    (void)user;
    (void)count;
    for (int64_t i = 0; i < most; i++) ids[i] = tokens[0];
    return most;
}

static fb_status take_step(fb_session *session, int64_t rows, double *seconds, fb_error *err) {
    int32_t ids[FB_MAX_DRAFT + 1];
    int64_t count, position = fb_session_position(session);
    double began = fb_now();
    FB_TRY(fb_session_speculate(session, 0, NULL, rows, ids, &count, err));
    *seconds = fb_now() - began;
    return fb_session_trim(session, position, err);
}

static fb_status measure_rows(fb_session *session, int64_t rows, double *seconds, fb_error *err) {
    double times[MOST_STEPS], began = fb_now();
    int64_t taken = 0;
    FB_TRY(take_step(session, rows, seconds, err)); /* warms up */
    while (taken < LEAST_STEPS || (taken < MOST_STEPS && fb_now() - began < STEPS_SECONDS))
        FB_TRY(take_step(session, rows, &times[taken++], err));
    *seconds = fb_stats_median(times, taken);
    return FB_OK;
}

static fb_status measure_all(fb_plan_report *report, const fb_model *model, fb_session_options options,
                             const fb_draft *draft, const fb_planning *planning, int64_t prompt,
                             fb_error *err) {
    fb_runner runner;
    options.draft = draft;
    options.capacity = prompt + ROWS;
    fb_status status = fb_runner_open(&runner, model, &options, planning, err);
    if (status == FB_OK) status = fb_runner_prefill(&runner, prompt, err);
    for (int64_t rows = 1; status == FB_OK && rows <= ROWS; rows++)
        status = measure_rows(runner.session, rows, &report->rows_measured[rows - 1], err);
    fb_runner_close(&runner);
    return status;
}

fb_status fb_plan_measure_drafts(fb_plan_report *report, const fb_model *model,
                                 const fb_session_options *options, const fb_planning *planning,
                                 fb_error *err) {
    int64_t room = model->spec->program.context - ROWS,
            prompt = report->prompt < room ? report->prompt : room;
    fb_draft_options o;
    fb_draft *draft;
    if (prompt < 1) return FB_OK; /* no room for guesses, and no times */
    fb_draft_options_default(&o);
    o.propose = guess_any;
    o.fixed = 1;
    FB_TRY(fb_draft_create(model, &o, &draft, err));
    fb_status status = measure_all(report, model, *options, draft, planning, prompt, err);
    fb_draft_free(draft);
    return status;
}
