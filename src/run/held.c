/* A prompt's rows that take several steps. While answers are written, a step has little time for prompts. At
 * a long context even one row may take longer than that: it reads the whole cache. Then a step takes a few
 * rows through some of the layers, and a later one goes on from there. */
#include <stdlib.h>

#include "run/scheduler.h"

static int64_t layers_of(const fb_scheduler *s) { return fb_schedule_frame(s)->bound.program->layers; }

/* Another plan may carry more from layer to layer than the one that ran at first. */
#define ROOM FB_MAX_CARRIES

fb_status fb_held_open(fb_scheduler *s, fb_error *err) {
    const fb_program *p = fb_schedule_frame(s)->bound.program;
    if (!s->execution->request.backend->holds || s->options.stretch == 0 || p->layers < 2) return FB_OK;
    int64_t bytes = ROOM * FB_PACE_HELD * p->hidden * (int64_t)sizeof(double);
    s->held.state = malloc((size_t)bytes);
    if (!s->held.state) return fb_fail_memory(err, "scheduler", bytes);
    s->held.bytes = bytes;
    return FB_OK;
}

void fb_held_close(fb_scheduler *s) {
    free(s->held.state);
    s->held = (fb_held){0};
}

int64_t fb_held_layers(const fb_scheduler *s) { return s->held.bytes ? layers_of(s) : 1; }

void fb_held_drop(fb_scheduler *s, const fb_answer_state *a) {
    if (a && s->held.answer != a) return;
    s->held.answer = NULL;
    s->held.rows = s->held.from = s->held.to = 0;
}

bool fb_held_waits(fb_scheduler *s, int64_t decodes) {
    fb_held *h = &s->held;
    h->from = h->to; /* nothing of them is in this step yet */
    if (!h->answer) return false;
    /* More answers decode than when they began: a request has forked. They may not fit any more. */
    if (h->rows + decodes > s->options.rows || fb_schedule_scored(h->answer, h->rows) > s->free_wanted)
        fb_held_drop(s, NULL);
    return h->answer;
}

/* The next layers for the rows that are held. */
static void choose_layers(fb_scheduler *s, int64_t decodes) {
    fb_held *h = &s->held;
    h->from = h->to;
    h->to += fb_pace_layers(&s->pace, decodes, h->rows);
    if (h->to > layers_of(s)) h->to = layers_of(s);
}

void fb_held_add(fb_scheduler *s, int64_t decodes) {
    choose_layers(s, decodes);
    fb_schedule_add(s, s->held.answer, s->held.rows);
}

bool fb_held_begin(fb_scheduler *s, fb_answer_state *a, int64_t rows, int64_t left, int64_t decodes) {
    if (!decodes || !s->held.bytes || left > FB_PACE_HELD) return false;
    if (fb_pace_layers(&s->pace, decodes, rows) == layers_of(s) ||
        fb_frame_state_bytes(fb_schedule_frame(s), rows) > s->held.bytes) {
        fb_schedule_add(s, a, rows);
        return true;
    }
    s->held.answer = a;
    s->held.rows = rows;
    s->held.to = 0;
    fb_held_add(s, decodes);
    return true;
}

/* The answer of rows that are held, if they are in this step; NULL: none are. */
static fb_answer_state *in_step(const fb_scheduler *s) {
    return s->held.to > s->held.from ? s->held.answer : NULL;
}

bool fb_held_ends(const fb_scheduler *s, const fb_answer_state *a) {
    return in_step(s) != a || s->held.to == layers_of(s);
}

void fb_held_put(const fb_scheduler *s, fb_batch *batch) {
    const fb_held *h = &s->held;
    if (!in_step(s)) return;
    batch->held = h->rows;
    batch->held_from = h->from;
    batch->held_to = h->to;
    batch->held_state = h->state;
}

double fb_held_step(fb_scheduler *s, int64_t prompts) {
    const fb_held *h = &s->held;
    if (!in_step(s)) return (double)prompts;
    double rows = (double)h->rows * (double)(h->to - h->from) / (double)layers_of(s);
    if (h->to == layers_of(s)) fb_held_drop(s, NULL);
    return rows;
}
