/* Measures where the time of a step goes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/stats.h"
#include "plan/report.h"

/* ---- running ---- */

fb_status fb_runner_open(fb_runner *r, const fb_model *model, const fb_session_options *options,
                         const fb_planning *planning, fb_error *err) {
    *r = (fb_runner){0};
    FB_TRY(fb_session_create_planned(model, options, planning, &r->session, err));
    r->plan = &fb_session_execution(r->session)->plan;
    return FB_OK;
}

void fb_runner_close(fb_runner *r) {
    fb_session_free(r->session);
    *r = (fb_runner){0};
}

/* Any tokens will do: they do not affect times. */
static int32_t some_id(const fb_runner *r, int64_t position) {
    return (int32_t)((position * 7919 + 13) % r->plan->program.vocab);
}

fb_status fb_runner_prefill(fb_runner *r, int64_t tokens, fb_error *err) {
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    if (!ids) return fb_fail_memory(err, "tokens", tokens * (int64_t)sizeof *ids);
    for (int64_t i = 0; i < tokens; i++) ids[i] = some_id(r, i);
    fb_session_reset(r->session);
    fb_status status = fb_session_prefill(r->session, ids, tokens, err);
    free(ids);
    return status;
}

fb_status fb_runner_decode(fb_runner *r, double *seconds, fb_error *err) {
    int32_t id = some_id(r, fb_session_position(r->session));
    double began = fb_now();
    FB_TRY(fb_session_decode(r->session, id, err));
    if (r->plan->program.logits != FB_NONE) {
        const float *logits;
        FB_TRY(fb_session_logits(r->session, &logits, NULL, NULL, err));
        volatile int32_t best = 0;
        for (int32_t i = 1; i < r->plan->program.vocab; i++)
            if (logits[i] > logits[best]) best = i;
    }
    *seconds = fb_now() - began;
    return FB_OK;
}

/* ---- counting ---- */

int fb_request_shapes(const fb_profile_options *q, const fb_machine *m, fb_dtype kv, fb_shape *shapes) {
    int64_t chunk = m->gpu ? FB_RUNNER_CHUNK_GPU : FB_RUNNER_CHUNK;
    if (!q->prefill) {
        shapes[0] = (fb_shape){1, q->prompt + q->gen / 2, 1, m->workers, m->act, kv};
        return 1;
    }
    int count = 0;
    for (int64_t at = 0; at < q->prompt && count < FB_MAX_SHAPES; at += chunk) {
        int64_t left = q->prompt - at, rows = left < chunk ? left : chunk;
        shapes[count++] = (fb_shape){rows, at, rows == left, m->workers, m->act, kv};
    }
    return count;
}

static void op_name(const fb_op *op, char *name, size_t size) {
    snprintf(name, size, "%s", op->fuses ? "" : fb_op_table[op->kind].name);
    for (uint32_t bits = op->fuses; bits; bits &= bits - 1)
        snprintf(name + strlen(name), size - strlen(name), "%s%s", *name ? "+" : "",
                 fb_fuse_name(__builtin_ctz(bits)));
}

static void add_price(fb_profile *profile, const fb_program *p, const fb_price *price, const fb_machine *m,
                      const fb_shape *shape) {
    fb_profile_op **at = profile->ops;
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            fb_profile_op *row = *at++;
            const fb_price_op *op = &price->op[s][i];
            double times = s == FB_BODY                                    ? (double)p->layers
                           : s == FB_EPILOGUE && shape->epilogue_rows == 0 ? 0
                                                                           : 1;
            op_name(&p->ops[s][i], row->name, sizeof row->name);
            row->section = s;
            row->barrier = op->barrier;
            row->calls += (int64_t)times;
            row->bytes += times * (double)fb_cost_bytes(&op->cost);
            row->weight_bytes += times * (double)op->cost.weight_bytes;
            row->kv_bytes += times * (double)op->cost.kv_bytes;
            row->flops += times * (double)op->cost.flops;
            row->predicted += times * op->seconds;
            row->bandwidth =
                m->gpu ? fb_machine_bandwidth(m, (double)fb_cost_bytes(&op->cost)) : price->bandwidth;
        }
    profile->predicted += price->total;
    profile->barriers = price->layer_barriers;
    profile->layer_bytes = (double)price->layer_bytes;
}

fb_status fb_profile_price(fb_profile *profile, const fb_plan *plan, const fb_weight *weights,
                           const fb_machine *machine, const fb_shape *shapes, int count, fb_error *err) {
    const fb_program *p = &plan->program;
    fb_price *price = malloc(sizeof *price);
    for (int s = 0; s < FB_SECTIONS; s++) profile->op_count += p->op_count[s];
    profile->ops = fb_memory_structs(profile->op_count, sizeof **profile->ops);
    profile->layers = p->layers;
    if (!price || !profile->ops) {
        free(price);
        return fb_fail_memory(err, "profile", sizeof *price);
    }
    for (int i = 0; i < count; i++) {
        fb_price_plan(plan, weights, machine, &shapes[i], price);
        add_price(profile, p, price, machine, &shapes[i]);
    }
    free(price);
    return fb_program_print(p, fb_fuse_name, &profile->text, err);
}

/* ---- measuring ---- */

/* The times of one step. */
typedef struct sample {
    double wall, op_seconds;
    double seconds[FB_SECTIONS][FB_MAX_OPS];
} sample;

static fb_status take_sample(fb_runner *r, const fb_profile_options *q, sample *out, fb_error *err) {
    const fb_trace *trace = fb_session_trace(r->session);
    fb_trace before = *trace;
    if (q->prefill) {
        double began = fb_now();
        FB_TRY(fb_runner_prefill(r, q->prompt, err));
        out->wall = fb_now() - began;
    } else {
        FB_TRY(fb_runner_decode(r, &out->wall, err));
    }
    out->op_seconds = trace->op_seconds - before.op_seconds;
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int i = 0; i < FB_MAX_OPS; i++) out->seconds[s][i] = trace->seconds[s][i] - before.seconds[s][i];
    return FB_OK;
}

static int by_wall(const void *a, const void *b) {
    double x = ((const sample *)a)->wall, y = ((const sample *)b)->wall;
    return (x > y) - (x < y);
}

/* The mean of the faster half. Other processes may have slowed down the rest. */
static void average(fb_profile *profile, const fb_program *p, sample *samples, int64_t count) {
    qsort(samples, (size_t)count, sizeof *samples, by_wall);
    int64_t half = (count + 1) / 2;
    profile->steps = half;
    for (int64_t n = 0; n < half; n++) {
        profile->wall += samples[n].wall / (double)half;
        profile->between += (samples[n].wall - samples[n].op_seconds) / (double)half;
        fb_profile_op **row = profile->ops;
        for (int s = 0; s < FB_SECTIONS; s++)
            for (int32_t i = 0; i < p->op_count[s]; i++)
                (*row++)->seconds += samples[n].seconds[s][i] / (double)half;
    }
}

#define PREFILLS 9

fb_status fb_profile_measure(fb_profile *profile, fb_runner *r, const fb_profile_options *q, fb_error *err) {
    int64_t count = q->prefill ? PREFILLS : q->gen;
    sample *samples = calloc((size_t)count, sizeof *samples);
    if (!samples) return fb_fail_memory(err, "profile", count * (int64_t)sizeof *samples);
    fb_status status = fb_runner_prefill(r, q->prompt, err); /* for a prefill profile this is the warm-up */
    for (int64_t i = 0; i < count && status == FB_OK; i++) status = take_sample(r, q, &samples[i], err);
    if (status == FB_OK) average(profile, &r->plan->program, samples, count);
    free(samples);
    return status;
}
