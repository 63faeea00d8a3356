/* Times decode steps of several sequences at once. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/pool.h"
#include "bench/bench.h"
#include "fusebox_batch.h"
#include "model/model.h"
#include "plan/cost.h"
#include "plan/machine.h"
#include "run/session.h"

#define MAX_BATCHES   16
#define MAX_SEQUENCES 1024
#define LEAST_ROWS    128 /* of a step that reads prompts */

typedef struct bench {
    const fb_model *model;
    const fb_bench_batch_options *options;
    fb_session_options session;
    fb_machine machine;
    int32_t *ids;    /* [prompt] */
    double *samples; /* [gen] */
} bench;

/* ---- what a step must read ---- */

/* Before any session is opened: a planner that chooses fuses then knows the machine, too. */
static fb_status measure_machine(bench *b, fb_error *err) {
    const fb_session_options *o = &b->session;
    const char *folder = b->options->machine;
    const fb_backend *backend;
    int32_t device;
    if (o->threads < 0 || o->threads > FB_POOL_MAX_WORKERS)
        return fb_fail(err, FB_ERROR_USAGE, "threads: %d (0 to %d)", o->threads, FB_POOL_MAX_WORKERS);
    FB_TRY(fb_backend_find(o, &backend, &device, err));
    if (backend == &fb_backend_cpu)
        return fb_machine_get(folder, false, o->threads, o->isa, o->act, &b->machine, err);
    return fb_machine_get_gpu(folder, false, backend, device, o->act, &b->machine, err);
}

/* What a step of one row reads halfway through the answers, of weights and of the cache. */
static void count_bytes(const bench *b, const fb_session *session, double *weights, double *cache) {
    const fb_execution *x = fb_session_execution(session);
    const fb_bound bound = {&x->plan.program, b->model->weights};
    const fb_shape shape = {.rows = 1,
                            .position = b->options->prompt + b->options->gen / 2,
                            .epilogue_rows = 1,
                            .workers = 1,
                            .act = x->request.executor.act,
                            .kv = x->request.executor.kv};
    *weights = *cache = 0;
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < bound.program->op_count[s]; i++) {
            fb_cost cost = fb_cost_of(&bound, (fb_section)s, i, &shape);
            double times = s == FB_BODY ? (double)bound.program->layers : 1;
            *weights += times * (double)cost.weight_bytes;
            *cache += times * (double)cost.kv_bytes;
        }
}

/* ---- steps ---- */

/* Prompts differ in their first token, so that none shares anything. */
static fb_status submit(const bench *b, fb_scheduler *s, int64_t sequences, fb_error *err) {
    fb_request_options o;
    fb_request_options_default(&o);
    o.prompt = b->ids;
    o.prompt_count = b->options->prompt;
    o.max_tokens = b->options->gen;
    o.past_end = true;
    for (int64_t i = 0; i < sequences; i++) {
        b->ids[0] = (int32_t)(i % b->model->spec->program.vocab);
        FB_TRY(fb_scheduler_submit(s, &o, NULL, err));
    }
    return FB_OK;
}

/* *prompts: seconds until every prompt is read. */
static fb_status time_steps(const bench *b, fb_scheduler *s, int64_t sequences, double *prompts,
                            fb_spread *step, fb_error *err) {
    fb_scheduler_stats stats;
    bool busy = true;
    int64_t count = 0;
    double began = fb_now();
    do {
        FB_TRY(fb_scheduler_step(s, &busy, err));
        fb_scheduler_get_stats(s, &stats);
    } while (busy && (stats.waiting || stats.tokens < sequences));
    *prompts = fb_now() - began;
    while (busy) {
        began = fb_now();
        FB_TRY(fb_scheduler_step(s, &busy, err));
        double seconds = fb_now() - began;
        if (busy && stats.running == sequences && count < b->options->gen) b->samples[count++] = seconds;
        fb_scheduler_get_stats(s, &stats);
    }
    if (!count)
        return fb_fail(err, FB_ERROR_USAGE,
                       "gen: %lld (too few: the first answers end before the last begin)",
                       (long long)b->options->gen);
    return fb_bench_spread(b->samples, count, step, err);
}

static fb_status time_batch(const bench *b, int64_t sequences, int64_t any_order, double *prompts,
                            fb_spread *step, fb_error *err) {
    fb_session_options session = b->session;
    fb_scheduler_options o;
    fb_scheduler *s;
    fb_scheduler_options_default(&o);
    o.sequences = sequences;
    o.rows = sequences > LEAST_ROWS ? sequences : LEAST_ROWS;
    o.cache_tokens = sequences * (session.capacity + o.block);
    o.stretch = 0;
    o.prefix_cache = 0;
    session.any_order = any_order;
    FB_TRY(fb_scheduler_create(b->model, &session, &o, &s, err));
    fb_status status = submit(b, s, sequences, err);
    if (status == FB_OK) status = time_steps(b, s, sequences, prompts, step, err);
    fb_scheduler_free(s);
    return status;
}

static fb_status run_line(const bench *b, bool any_order, fb_bench_batch_line *line, fb_error *err) {
    double prompts;
    FB_TRY(time_batch(b, line->sequences, b->options->any_order, &line->prompts, &line->step, err));
    return any_order ? time_batch(b, line->sequences, 1, &prompts, &line->any_order, err) : FB_OK;
}

static fb_status add_line(fb_bench_batch_report *r, int64_t sequences, double read_bytes,
                          const fb_machine *machine, fb_error *err) {
    fb_bench_batch_line *line = calloc(1, sizeof *line);
    if (!line) return fb_fail_memory(err, "batches", sizeof *line);
    line->sequences = sequences;
    line->read_bytes = read_bytes;
    line->floor = read_bytes / fb_machine_bandwidth(machine, read_bytes);
    r->lines[r->line_count++] = line;
    return FB_OK;
}

static void describe_model(const bench *b, fb_bench_batch_report *r) {
    fb_model_info info;
    fb_model_get_info(b->model, &info);
    snprintf(r->architecture, sizeof r->architecture, "%s", info.architecture);
    r->parameters = info.parameters;
    r->prompt = b->options->prompt;
    r->gen = b->options->gen;
}

static fb_status run(bench *b, fb_bench_batch_report *r, fb_error *err) {
    const fb_bench_batch_options *o = b->options;
    fb_session *session;
    double weights, cache;
    FB_TRY(measure_machine(b, err));
    FB_TRY(fb_session_create(b->model, &b->session, &session, err));
    count_bytes(b, session, &weights, &cache);
    r->threads = fb_session_threads(session);
    r->any_order = fb_session_execution(session)->request.backend->roles && !o->any_order;
    snprintf(r->isa, sizeof r->isa, "%s", fb_session_isa(session));
    snprintf(r->cpu, sizeof r->cpu, "%s", b->machine.cpu);
    describe_model(b, r);
    fb_session_free(session);
    for (int64_t i = 0; i < o->batch_count; i++) {
        FB_TRY(fb_bench_progress(o->on_progress, o->user, i, o->batch_count, err));
        FB_TRY(add_line(r, o->batches[i], weights + cache * (double)o->batches[i], &b->machine, err));
        FB_TRY(run_line(b, r->any_order, r->lines[i], err));
    }
    FB_TRY(fb_bench_batch_cached(b->model, &b->session, b->ids, r, err));
    if (o->arrival) FB_TRY(fb_bench_batch_arrival(b->model, &b->session, b->ids, o->arrival, r, err));
    return fb_bench_progress(o->on_progress, o->user, o->batch_count, o->batch_count, err);
}

static fb_status check(const fb_model *model, const fb_bench_batch_options *o, fb_error *err) {
    FB_TRY(fb_bench_check(model, o->prompt, o->gen, 1, err));
    if (!o->batches || o->batch_count < 1 || o->batch_count > MAX_BATCHES)
        return fb_fail(err, FB_ERROR_USAGE, "batches: %lld (1 to %d)", (long long)o->batch_count,
                       MAX_BATCHES);
    for (int64_t i = 0; i < o->batch_count; i++)
        if (o->batches[i] < 1 || o->batches[i] > MAX_SEQUENCES)
            return fb_fail(err, FB_ERROR_USAGE, "batch: %lld sequences (1 to %d)", (long long)o->batches[i],
                           MAX_SEQUENCES);
    /* The answer must go on until the prompt is read, if only by a token a step. */
    int64_t most = model->spec->program.context - o->prompt - o->gen;
    if (o->arrival < 0 || o->arrival > most)
        return fb_fail(err, FB_ERROR_USAGE,
                       "arrival: %lld tokens (0 to %lld: the model's context is %lld, less prompt and gen)",
                       (long long)o->arrival, (long long)most, (long long)model->spec->program.context);
    return FB_OK;
}

fb_status fb_bench_batch(const fb_model *model, const fb_bench_batch_options *given,
                         fb_bench_batch_report **report, fb_error *err) {
    *report = NULL;
    fb_bench_batch_options o;
    FB_TRY(fb_bench_batch_options_take(given, &o, err));
    FB_TRY(check(model, &o, err));
    bench b = {.model = model, .options = &o, .session = fb_bench_batch_session(&o)};
    fb_bench_batch_report *r = calloc(1, sizeof *r);
    b.ids = malloc((size_t)o.prompt * sizeof *b.ids);
    b.samples = malloc((size_t)o.gen * sizeof *b.samples);
    if (r) r->lines = calloc((size_t)o.batch_count, sizeof *r->lines);
    fb_status status = r && r->lines && b.ids && b.samples
                           ? FB_OK
                           : fb_fail_memory(err, "batches", (o.prompt + o.gen) * (int64_t)sizeof(double));
    if (status == FB_OK) {
        fb_bench_ids(model, b.ids, o.prompt);
        status = run(&b, r, err);
    }
    free(b.ids);
    free(b.samples);
    if (status == FB_OK)
        *report = r;
    else
        fb_bench_batch_free(r);
    return status;
}

void fb_bench_batch_free(fb_bench_batch_report *r) {
    if (!r) return;
    for (int64_t i = 0; r->lines && i < r->line_count; i++) free(r->lines[i]);
    free(r->lines);
    free(r);
}
