/* Times single fuses against the plain ops that they replace, by the backend's own clock. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "bench/bench.h"
#include "run/session.h"

/* One side of the comparison: a session, and the ops of its plan that the other side does not have. */
typedef struct side {
    fb_session *session;
    const fb_plan *plan; /* the session's plan */
    bool differs[FB_SECTIONS][FB_MAX_OPS];
    const float *logits; /* [vocab] of the last step; NULL in a plan without logits */
    int32_t best;
    double tail; /* seconds from the last ops to the best tokens */
} side;

typedef struct ops_bench {
    const fb_model *model;
    const fb_bench_ops_options *options;
    fb_session_options session; /* session options for both sides */
    fb_bench_ops_report *report;
    int32_t *ids; /* [prompt + gen] */
    side plain, fused;
} ops_bench;

/* ---- what was replaced ---- */

/* Ops are the same if they compute the same values in the same way. Their inputs may come from other buffers.
 */
static bool has_op(const fb_program *p, fb_section section, const fb_op *op) {
    for (int32_t i = 0; i < p->op_count[section]; i++) {
        const fb_op *other = &p->ops[section][i];
        bool same = other->kind == op->kind && other->fuses == op->fuses;
        for (int k = 0; k < FB_MAX_OUT; k++) same = same && other->out[k] == op->out[k];
        if (same) return true;
    }
    return false;
}

static void mark_differences(side *s, const fb_program *other) {
    const fb_program *p = &s->plan->program;
    for (int section = 0; section < FB_SECTIONS; section++)
        for (int32_t i = 0; i < p->op_count[section]; i++)
            s->differs[section][i] = !has_op(other, (fb_section)section, &p->ops[section][i]);
}

/* Seconds so far in the ops that differ. If only one side computes logits, finding the best token counts too.
 */
static double seconds_of(const side *s, bool with_tail) {
    const fb_trace *trace = fb_session_trace(s->session);
    double sum = with_tail ? s->tail : 0;
    for (int section = 0; section < FB_SECTIONS; section++)
        for (int32_t i = 0; i < s->plan->program.op_count[section]; i++)
            if (s->differs[section][i]) sum += trace->seconds[section][i];
    return sum;
}

/* ---- steps ---- */

static fb_status open_side(const ops_bench *b, const char *fuse, side *s, fb_error *err) {
    fb_session_options o = b->session;
    o.fuse = fuse;
    o.greedy = o.profile = true;
    o.capacity = b->options->prompt + b->options->gen;
    o.chunk = b->options->prompt;
    FB_TRY(fb_session_create(b->model, &o, &s->session, err));
    s->plan = &fb_session_execution(s->session)->plan;
    return FB_OK;
}

static void close_side(side *s) {
    fb_session_free(s->session);
    *s = (side){0};
}

static fb_status run_step(const ops_bench *b, side *s, int64_t position, int64_t rows, fb_error *err) {
    const fb_trace *trace = fb_session_trace(s->session);
    FB_TRY(fb_session_trim(s->session, position, err));
    double counted = trace->op_seconds, began = fb_now();
    FB_TRY(fb_session_prefill(s->session, b->ids + position, rows, err));
    s->logits = NULL;
    if (s->plan->program.logits != FB_NONE) {
        FB_TRY(fb_session_logits(s->session, &s->logits, NULL, NULL, err));
        s->best = fb_bench_argmax(s->logits, s->plan->program.vocab);
    } else {
        FB_TRY(fb_session_best(s->session, &s->best, err));
    }
    s->tail += fb_now() - began - (trace->op_seconds - counted);
    return FB_OK;
}

/* A prefill, or the decode steps after it. */
static fb_status run_rep(const ops_bench *b, side *s, bool prefill, fb_error *err) {
    if (prefill) return run_step(b, s, 0, b->options->prompt, err);
    for (int64_t i = 0; i < b->options->gen; i++) FB_TRY(run_step(b, s, b->options->prompt + i, 1, err));
    return FB_OK;
}

/* ---- one fuse ---- */

/* Compares both sides after every step. */
static fb_status check(ops_bench *b, fb_fuse_id fuse, fb_bench_op *op, fb_error *err) {
    fb_bench_difference d = {.bit_identical = true};
    const fb_program *p = &b->plain.plan->program;
    bool logits = b->fused.plan->program.logits != FB_NONE;
    for (int64_t i = 0; i <= b->options->gen; i++) {
        int64_t position = i ? b->options->prompt + i - 1 : 0, rows = i ? 1 : b->options->prompt;
        FB_TRY(run_step(b, &b->plain, position, rows, err));
        FB_TRY(run_step(b, &b->fused, position, rows, err));
        if (logits) fb_bench_compare(&d, b->plain.logits, b->fused.logits, p->vocab);
        fb_bench_compare_best(&d, b->plain.logits, b->plain.best, b->fused.best);
    }
    bool bits = fb_fuse_table[fuse].exactness == FB_EXACT_BIT || b->options->exact;
    op->bit_identical = d.bit_identical;
    op->max_abs = logits ? d.max_abs : NAN;
    op->agrees = fb_bench_agrees(&d, bits, fb_bench_tolerance(b->model, &b->session));
    return FB_OK;
}

static fb_status time_op(ops_bench *b, fb_bench_op *op, bool prefill, fb_error *err) {
    bool with_tail = (b->plain.plan->program.logits == FB_NONE) != (b->fused.plan->program.logits == FB_NONE);
    double steps = prefill ? 1 : (double)b->options->gen;
    for (int64_t rep = 0; rep < b->options->reps; rep++)
        for (int turn = 0; turn < 2; turn++) {
            bool fused = (rep + turn) % 2 == 1;
            side *s = fused ? &b->fused : &b->plain;
            double before = seconds_of(s, with_tail);
            FB_TRY(run_rep(b, s, prefill, err));
            (fused ? op->fused : op->plain)[rep] = (seconds_of(s, with_tail) - before) / steps;
        }
    FB_TRY(fb_bench_spread(op->plain, b->options->reps, &op->plain_spread, err));
    FB_TRY(fb_bench_spread(op->fused, b->options->reps, &op->fused_spread, err));
    return fb_bench_ratio(op->plain, op->fused, b->options->reps, &op->ratio, err);
}

static fb_status add_op(ops_bench *b, fb_fuse_id fuse, int64_t rows, fb_bench_op **out, fb_error *err) {
    fb_bench_op *op = *out = b->report->ops[b->report->count++];
    size_t reps = (size_t)b->options->reps;
    op->fuse = fb_fuse_name(fuse);
    op->rows = rows;
    op->plain = calloc(reps, sizeof *op->plain);
    op->fused = calloc(reps, sizeof *op->fused);
    if (op->plain && op->fused) return FB_OK;
    return fb_fail_memory(err, "benchmark", (int64_t)(reps * 2 * sizeof(double)));
}

static fb_status bench_fuse(ops_bench *b, fb_fuse_id fuse, fb_error *err) {
    fb_bench_op *decode, *prefill;
    FB_TRY(add_op(b, fuse, 1, &decode, err));
    FB_TRY(add_op(b, fuse, b->options->prompt, &prefill, err));
    FB_TRY(open_side(b, "none", &b->plain, err));
    FB_TRY(open_side(b, fb_fuse_name(fuse), &b->fused, err));
    b->report->threads = fb_session_threads(b->plain.session);
    snprintf(b->report->isa, sizeof b->report->isa, "%s", fb_session_isa(b->plain.session));
    mark_differences(&b->plain, &b->fused.plan->program);
    mark_differences(&b->fused, &b->plain.plan->program);
    FB_TRY(check(b, fuse, decode, err));
    prefill->agrees = decode->agrees;
    prefill->bit_identical = decode->bit_identical;
    prefill->max_abs = decode->max_abs;
    b->report->agree = b->report->agree && decode->agrees;
    if (!decode->agrees) return FB_OK;
    FB_TRY(time_op(b, prefill, true, err));
    return time_op(b, decode, false, err);
}

/* ---- all of them ---- */

static fb_status run(ops_bench *b, fb_error *err) {
    const fb_bench_ops_options *o = b->options;
    FB_TRY(fb_bench_check(b->model, o->prompt, o->gen, o->reps, err));
    b->report = calloc(1, sizeof *b->report);
    if (!b->report) return fb_fail_memory(err, "benchmark", sizeof *b->report);
    *b->report = (fb_bench_ops_report){.agree = true, .prompt = o->prompt, .gen = o->gen, .reps = o->reps};
    b->report->ops = fb_memory_structs(2 * FB_FUSE_COUNT, sizeof **b->report->ops);
    b->ids = malloc((size_t)(o->prompt + o->gen) * sizeof *b->ids);
    if (!b->report->ops || !b->ids) return fb_fail_memory(err, "benchmark", (o->prompt + o->gen) * 4);
    fb_bench_ids(b->model, b->ids, o->prompt + o->gen);
    side all = {0}; /* tells what the device can do */
    FB_TRY(open_side(b, "all", &all, err));
    fb_plan_options alone = fb_session_execution(all.session)->options;
    close_side(&all);
    alone.graph = false; /* a way of launching, not an op */
    alone.step_why_not = NULL;
    for (int fuse = 0; fuse < FB_FUSE_COUNT; fuse++) {
        if (!fb_fuse_why_not(&b->model->spec->program, (fb_fuse_id)fuse, &alone)) {
            fb_status status = bench_fuse(b, (fb_fuse_id)fuse, err);
            close_side(&b->plain);
            close_side(&b->fused);
            FB_TRY(status);
        }
        FB_TRY(fb_bench_progress(o->on_progress, o->user, fuse + 1, FB_FUSE_COUNT, err));
    }
    return FB_OK;
}

fb_status fb_bench_ops(const fb_model *model, const fb_bench_ops_options *given, fb_bench_ops_report **report,
                       fb_error *err) {
    *report = NULL;
    fb_bench_ops_options options;
    FB_TRY(fb_bench_ops_options_take(given, &options, err));
    ops_bench *b = calloc(1, sizeof *b);
    if (!b) return fb_fail_memory(err, "benchmark", sizeof *b);
    b->model = model;
    b->options = &options;
    b->session = fb_bench_ops_session(&options);
    fb_status status = run(b, err);
    if (status == FB_OK)
        *report = b->report;
    else
        fb_bench_ops_free(b->report);
    free(b->ids);
    free(b);
    return status;
}

void fb_bench_ops_free(fb_bench_ops_report *report) {
    if (!report) return;
    for (int64_t i = 0; report->ops && i < report->count; i++) {
        free(report->ops[i]->plain);
        free(report->ops[i]->fused);
    }
    free(report->ops);
    free(report);
}
