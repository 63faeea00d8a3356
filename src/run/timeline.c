/* The times of the ops of a scheduler's plan, taken in steps of answers. */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "run/scheduler.h"

#define MOST_STEPS 256

/* Ops of all sections. */
static int64_t ops_of(const fb_program *p) {
    int64_t count = 0;
    for (int s = 0; s < FB_SECTIONS; s++) count += p->op_count[s];
    return count;
}

static void free_timing(fb_timing *t) {
    if (!t) return;
    free(t->seconds);
    free(t);
}

static fb_status make_timing(const fb_program *p, int64_t steps, fb_timing **out, fb_error *err) {
    fb_timing *t = calloc(1, sizeof *t);
    if (!t) return fb_fail_memory(err, "timeline", sizeof *t);
    t->left = steps;
    t->op_count = ops_of(p);
    size_t bytes = (size_t)(steps * (1 + t->op_count)) * sizeof *t->seconds;
    t->seconds = malloc(bytes);
    if (!t->seconds) {
        free(t);
        return fb_fail_memory(err, "timeline", (int64_t)bytes);
    }
    *out = t;
    return FB_OK;
}

/* ---- asking for it, on any thread ---- */

/* A list that gives the same plan, whatever chose its fuses. */
static void list_fuses(uint32_t fuses, char *list, size_t size) {
    snprintf(list, size, "%s", fuses ? "" : "none");
    for (; fuses; fuses &= fuses - 1)
        snprintf(list + strlen(list), size - strlen(list), "%s%s", *list ? "," : "",
                 fb_fuse_name(__builtin_ctz(fuses)));
}

static fb_status take_timer(const fb_scheduler *s, const fb_execution *runs, fb_execution **out,
                            fb_error *err) {
    char list[512];
    list_fuses(runs->options.fuses, list, sizeof list);
    FB_TRY(fb_replan_take(s, list, true, out, err));
    if ((*out)->plan.applied == runs->plan.applied) return FB_OK;
    fb_execution_give(*out);
    *out = NULL;
    return fb_fail(err, FB_ERROR_MEMORY, "timeline: no memory for the plan that runs, with clocks");
}

/* Hands over what was made for `runs`. False: another plan has taken over meanwhile, or has come and gone and
 * has taken the timer along. What is not used is left to the caller. */
static bool hand_over(fb_scheduler *s, const fb_execution *runs, fb_execution **timer, fb_timing **timing) {
    pthread_mutex_lock(&s->lock);
    bool same = s->execution == runs;
    if (same && !s->timer) {
        s->timer = *timer;
        *timer = NULL;
    }
    same = same && s->timer;
    if (same && !s->timing) {
        s->timing = *timing;
        *timing = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return same;
}

fb_status fb_scheduler_profile(fb_scheduler *s, int64_t steps, fb_error *err) {
    if (steps < 1 || steps > MOST_STEPS)
        return fb_fail(err, FB_ERROR_USAGE, "steps: %lld (1 to %d)", (long long)steps, MOST_STEPS);
    for (bool handed = false; !handed;) {
        fb_execution *timer = NULL;
        fb_timing *timing = NULL;
        pthread_mutex_lock(&s->lock);
        fb_execution *runs = s->execution;
        bool has_timer = s->timer, has_timing = s->timing;
        fb_execution_share(runs);
        pthread_mutex_unlock(&s->lock);
        fb_status status = has_timer ? FB_OK : take_timer(s, runs, &timer, err);
        if (status == FB_OK && !has_timing) status = make_timing(&runs->plan.program, steps, &timing, err);
        /* With a timing there is a timer. */
        if (status == FB_OK) handed = has_timing || hand_over(s, runs, &timer, &timing);
        free_timing(timing);
        fb_execution_give(timer);
        fb_execution_give(runs);
        FB_TRY(status);
    }
    return FB_OK;
}

/* ---- taking it, in steps ---- */

fb_executor *fb_timing_executor(fb_scheduler *s, bool decode) {
    pthread_mutex_lock(&s->lock);
    fb_executor *executor = decode && s->timing ? s->timer->executor : s->execution->executor;
    pthread_mutex_unlock(&s->lock);
    return executor;
}

void fb_timing_add(fb_scheduler *s, const fb_trace *before, int64_t rows, double seconds) {
    const fb_program *p = &s->execution->plan.program;
    fb_timing *t = s->timing;
    if (rows != t->rows) t->steps = 0;
    t->rows = rows;
    double *at = t->seconds + t->steps++ * (1 + t->op_count);
    *at++ = seconds;
    for (int section = 0; section < FB_SECTIONS; section++)
        for (int32_t i = 0; i < p->op_count[section]; i++)
            *at++ = s->trace.seconds[section][i] - before->seconds[section][i];
    if (--t->left > 0) return;
    pthread_mutex_lock(&s->lock);
    fb_timing *dropped = s->timed;
    s->timed = t;
    s->timing = NULL;
    pthread_mutex_unlock(&s->lock);
    free_timing(dropped);
}

fb_execution *fb_timing_drop(fb_scheduler *s) {
    fb_execution *timer = s->timer;
    free_timing(s->timing);
    free_timing(s->timed);
    s->timer = NULL;
    s->timing = s->timed = NULL;
    return timer;
}

/* ---- the report ---- */

static int by_step(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Means over the faster half of the steps. Other processes may have slowed down the rest. */
static void average(fb_timeline *out, fb_timing *t) {
    int64_t width = 1 + t->op_count;
    qsort(t->seconds, (size_t)t->steps, (size_t)width * sizeof *t->seconds, by_step);
    out->rows = t->rows;
    out->steps = (t->steps + 1) / 2;
    for (int64_t step = 0; step < out->steps; step++) {
        const double *at = t->seconds + step * width;
        out->seconds += at[0] / (double)out->steps;
        for (int64_t i = 0; i < t->op_count; i++) out->ops[i]->seconds += at[1 + i] / (double)out->steps;
    }
    for (int64_t i = 0; i < t->op_count; i++) out->op_seconds += out->ops[i]->seconds;
}

/* The names of the fuses in each set of them that an op has are in `names`. */
static void describe(fb_timeline *out, const fb_program *p, const char **names) {
    fb_timeline_op **op = out->ops;
    out->layers = p->layers;
    for (int section = 0; section < FB_SECTIONS; section++)
        for (int32_t i = 0; i < p->op_count[section]; i++, op++) {
            const fb_op *from = &p->ops[section][i];
            (*op)->section = section;
            (*op)->op = fb_op_table[from->kind].name;
            (*op)->fuses = names;
            for (uint32_t bits = from->fuses; bits; bits &= bits - 1) {
                *names++ = fb_fuse_name(__builtin_ctz(bits));
                (*op)->fuse_count++;
            }
        }
}

/* A timeline, and behind it what its ops point to. */
typedef struct whole {
    fb_timeline timeline;
    const char *names[];
} whole;

static fb_status make_timeline(const fb_program *p, fb_timeline **out, fb_error *err) {
    int64_t names = 0, ops = ops_of(p);
    for (int section = 0; section < FB_SECTIONS; section++)
        for (int32_t i = 0; i < p->op_count[section]; i++)
            names += __builtin_popcount(p->ops[section][i].fuses);
    whole *w = calloc(1, sizeof *w + (size_t)names * sizeof *w->names);
    if (w) w->timeline.ops = fb_memory_structs(ops, sizeof **w->timeline.ops);
    if (!w || !w->timeline.ops) {
        free(w);
        return fb_fail_memory(err, "timeline", (int64_t)(sizeof *w + (size_t)names * sizeof *w->names));
    }
    w->timeline.op_count = ops;
    describe(&w->timeline, p, w->names);
    *out = &w->timeline;
    return FB_OK;
}

fb_status fb_scheduler_timeline(fb_scheduler *s, fb_timeline **out, fb_error *err) {
    *out = NULL;
    pthread_mutex_lock(&s->lock);
    fb_status status = s->timed ? make_timeline(&s->execution->plan.program, out, err) : FB_OK;
    if (*out) average(*out, s->timed);
    pthread_mutex_unlock(&s->lock);
    return status;
}

void fb_timeline_free(fb_timeline *timeline) {
    if (!timeline) return;
    free(timeline->ops);
    free(timeline);
}
