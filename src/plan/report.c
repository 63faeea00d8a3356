#include "plan/report.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/stats.h"
#include "plan/draft.h"

static fb_status check_request(const fb_model *model, const fb_profile_options *q, fb_error *err) {
    int64_t context = model->spec->program.context, gen = q->prefill ? 0 : q->gen;
    if (q->prompt < 1)
        return fb_fail(err, FB_ERROR_USAGE, "prompt: %lld tokens (1 or more)", (long long)q->prompt);
    if (!q->prefill && q->gen < 1)
        return fb_fail(err, FB_ERROR_USAGE, "gen: %lld tokens (1 or more)", (long long)q->gen);
    if (q->prompt > context || gen > context - q->prompt)
        return fb_fail(err, FB_ERROR_USAGE, "prompt and gen: %lld tokens (the model's context is %lld)",
                       (long long)(q->prompt + gen), (long long)context);
    return FB_OK;
}

/* State shared by both kinds of report. */
typedef struct making {
    const fb_model *model;
    fb_session_options session;
    const fb_profile_options *request;
    fb_plan_report *report;
    fb_machine machine;
    fb_shape shapes[FB_MAX_SHAPES];
    int shape_count;
    fb_planning planning;
    fb_runner plain, fused;
} making;

static fb_status prepare(making *m, fb_error *err) {
    fb_session_options *o = &m->session;
    const fb_profile_options *q = m->request;
    fb_dtype kv;
    const fb_backend *backend;
    int32_t device;
    FB_TRY(check_request(m->model, q, err));
    if (o->threads < 0 || o->threads > FB_POOL_MAX_WORKERS)
        return fb_fail(err, FB_ERROR_USAGE, "threads: %d (0 to %d)", o->threads, FB_POOL_MAX_WORKERS);
    FB_TRY(fb_dtype_parse_kv(o->kv, o->act, &kv, err));
    FB_TRY(fb_backend_find(o, &backend, &device, err));
    if (backend == &fb_backend_cpu)
        FB_TRY(fb_machine_get(q->machine, q->calibrate, o->threads, o->isa, o->act, &m->machine, err));
    else
        FB_TRY(fb_machine_get_gpu(q->machine, q->calibrate, backend, device, o->act, &m->machine, err));
    m->shape_count = fb_request_shapes(q, &m->machine, kv, m->shapes);
    m->planning = (fb_planning){&m->machine, m->shapes[0].position};
    m->report->prompt = q->prompt;
    m->report->gen = q->prefill ? 0 : q->gen;
    o->greedy = true;
    o->capacity = q->prompt + m->report->gen;
    return FB_OK;
}

static void fill_machine(making *m, const fb_bound *bound) {
    fb_machine_figures *f = m->report->machine;
    const fb_machine *from = &m->machine;
    fb_price *price = malloc(sizeof *price);
    snprintf(f->cpu, sizeof f->cpu, "%s", from->cpu);
    snprintf(f->isa, sizeof f->isa, "%s", from->isa);
    f->gpu = from->gpu;
    f->threads = from->gpu ? 0 : from->workers;
    f->points = FB_CURVE_POINTS;
    memcpy(f->bytes, from->bytes, sizeof from->bytes);
    memcpy(f->bandwidth, from->bandwidth, sizeof from->bandwidth);
    f->barrier = from->barrier;
    f->dispatch = from->dispatch;
    f->launch = from->launch;
    f->node = from->node;
    f->small = from->small;
    f->flops = from->flops;
    if (!price) return;
    fb_price_program(bound, from, &m->shapes[0], price);
    f->footprint = price->footprint;
    f->footprint_bandwidth = price->bandwidth;
    free(price);
}

/* Opens a session with the requested plan, or with the plain program. */
static fb_status open_runner(const making *m, bool plain, bool profile, fb_runner *runner, fb_error *err) {
    fb_session_options o = m->session;
    if (plain) o.fuse = "none";
    o.profile = profile;
    return fb_runner_open(runner, m->model, &o, &m->planning, err);
}

static fb_status make_side(making *m, bool plain, fb_runner *runner, fb_profile *profile, fb_error *err) {
    FB_TRY(open_runner(m, plain, true, runner, err));
    FB_TRY(fb_profile_price(profile, runner->plan, m->model->weights, &m->machine, m->shapes, m->shape_count,
                            err));
    FB_TRY(fb_profile_measure(profile, runner, m->request, err));
    fill_machine(m, &(fb_bound){&runner->plan->program, m->model->weights});
    return FB_OK;
}

/* ---- predicted against measured: both programs in turns, without clocks inside ---- */

#define TURNS_MIN     3
#define TURNS_MAX     15
#define TURNS_SECONDS 1.5

static fb_status take_turns(making *m, fb_runner *const *runners, double *times[2], int64_t *turns,
                            fb_error *err) {
    double began = fb_now();
    for (*turns = 0; *turns < TURNS_MAX; ++*turns) {
        if (*turns >= TURNS_MIN && fb_now() - began > TURNS_SECONDS) break;
        for (int side = 0; side < 2; side++) {
            FB_TRY(fb_runner_prefill(runners[side], m->request->prompt, err));
            for (int64_t i = 0; i < m->request->gen; i++)
                FB_TRY(fb_runner_decode(runners[side], &times[side][*turns * m->request->gen + i], err));
        }
    }
    return FB_OK;
}

static fb_status measure_tpot(making *m, fb_error *err) {
    fb_runner *runners[2] = {calloc(1, sizeof(fb_runner)), calloc(1, sizeof(fb_runner))};
    int64_t turns = 0, bytes = TURNS_MAX * m->request->gen * (int64_t)sizeof(double);
    double *times[2] = {malloc((size_t)bytes), malloc((size_t)bytes)};
    bool allocated = runners[0] && runners[1] && times[0] && times[1];
    fb_status status = allocated ? FB_OK : fb_fail_memory(err, "times", bytes);
    for (int side = 0; side < 2 && status == FB_OK; side++)
        status = open_runner(m, side == 0, false, runners[side], err);
    if (status == FB_OK) status = take_turns(m, runners, times, &turns, err);
    if (status == FB_OK) {
        m->report->plain->tpot = fb_stats_median(times[0], turns * m->request->gen);
        m->report->fused->tpot = fb_stats_median(times[1], turns * m->request->gen);
    }
    for (int side = 0; side < 2; side++) {
        if (runners[side]) fb_runner_close(runners[side]);
        free(runners[side]);
        free(times[side]);
    }
    return status;
}

/* ---- the public functions ---- */

static fb_status make_profile(making *m, fb_error *err) {
    FB_TRY(prepare(m, err));
    return make_side(m, false, &m->fused, m->report->fused, err);
}

static fb_status make_plan(making *m, fb_error *err) {
    FB_TRY(prepare(m, err));
    FB_TRY(make_side(m, true, &m->plain, m->report->plain, err));
    FB_TRY(make_side(m, false, &m->fused, m->report->fused, err));
    m->report->layer_bytes = m->report->plain->layer_bytes;
    FB_TRY(measure_tpot(m, err));
    const fb_plan_options *options = &fb_session_execution(m->fused.session)->options;
    FB_TRY(fb_plan_price_fuses(m->report, m->model, &m->machine, &m->shapes[0], m->fused.plan, options, err));
    FB_TRY(
        fb_plan_price_drafts(m->report, m->model, &m->machine, &m->shapes[0], m->fused.plan, options, err));
    return fb_plan_measure_drafts(m->report, m->model, &m->session, &m->planning, err);
}

static fb_plan_report *new_report(bool with_plain) {
    fb_plan_report *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->machine = calloc(1, sizeof *r->machine);
    if (r->machine) r->machine->bytes = calloc(2 * FB_CURVE_POINTS, sizeof *r->machine->bytes);
    r->fused = calloc(1, sizeof *r->fused);
    if (with_plain) r->plain = calloc(1, sizeof *r->plain);
    if (r->machine && r->machine->bytes && r->fused && (r->plain || !with_plain)) {
        r->machine->bandwidth = r->machine->bytes + FB_CURVE_POINTS;
        return r;
    }
    fb_plan_report_free(r);
    return NULL;
}

static fb_status make(const fb_model *model, const fb_profile_options *request, bool with_plain,
                      fb_plan_report **out, fb_error *err) {
    making *m = calloc(1, sizeof *m);
    if (m) m->report = new_report(with_plain);
    if (!m || !m->report) {
        free(m);
        return fb_fail_memory(err, "report", sizeof *m);
    }
    m->model = model;
    m->session = fb_profile_session(request);
    m->request = request;
    fb_status status = (with_plain ? make_plan : make_profile)(m, err);
    fb_runner_close(&m->plain);
    fb_runner_close(&m->fused);
    if (status == FB_OK)
        *out = m->report;
    else
        fb_plan_report_free(m->report);
    free(m);
    return status;
}

fb_status fb_profile_make(const fb_model *model, const fb_profile_options *given, fb_plan_report **report,
                          fb_error *err) {
    *report = NULL;
    fb_profile_options options;
    FB_TRY(fb_profile_options_take(given, &options, err));
    return make(model, &options, false, report, err);
}

fb_status fb_plan_report_make(const fb_model *model, const fb_plan_report_options *given,
                              fb_plan_report **report, fb_error *err) {
    *report = NULL;
    fb_plan_report_options options;
    FB_TRY(fb_plan_report_options_take(given, &options, err));
    fb_profile_options decode = fb_plan_report_profile(&options);
    return make(model, &decode, true, report, err);
}

static void free_profile(fb_profile *profile) {
    if (!profile) return;
    free(profile->text);
    free(profile->ops);
    free(profile);
}

void fb_plan_report_free(fb_plan_report *report) {
    if (!report) return;
    if (report->machine) free(report->machine->bytes);
    free(report->machine);
    free_profile(report->plain);
    free_profile(report->fused);
    free(report->fuses);
    free(report->drafts);
    free(report);
}
