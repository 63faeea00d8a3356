#include "run/pace.h"

#include <stdlib.h>

/* Weight of the last step in an estimate. One that took longer counts less, and as at most twice the
 * estimate: another process may have had the CPU. */
#define LEARN_FASTER 0.5
#define LEARN_SLOWER 0.25
/* Steps with prompts until one without them is timed again: 1 at first, then twice as many each time. */
#define MOST_UNTIMED 64
/* Attention on the CPU loads a key once for four queries. GPT-NeoX 160M at position 7000: 1 to 4 rows add 12
 * to 14 ms to a step, 8 rows 23. */
#define FIRST_LEAST 4
/* Twice the rows are better if they add at most this much more; half of them, if they add at most so much.
 * The gap between the two keeps noise from moving it to and fro. */
#define TWICE_BETTER 1.2
#define HALF_BETTER  0.7
#define FIRST_WAIT   8
#define MOST_WAIT    64

fb_status fb_pace_open(int64_t sequences, int64_t rows, double stretch, int64_t layers, fb_pace *out,
                       fb_error *err) {
    *out = (fb_pace){.stretch = stretch, .rows = rows, .layers = layers, .least = FIRST_LEAST, .wait = 1};
    out->alone = calloc((size_t)sequences + 1, sizeof *out->alone);
    return out->alone ? FB_OK : fb_fail_memory(err, "times", (sequences + 1) * (int64_t)sizeof *out->alone);
}

void fb_pace_close(fb_pace *pace) {
    free(pace->alone);
    pace->alone = NULL;
}

/* How many rows the next step has that has as few as are worth it. */
static int64_t least_rows(const fb_pace *p) {
    if (p->waited < p->wait) return p->least;
    return p->half ? p->least / 2 : 2 * p->least;
}

/* How many rows fit, through all layers. */
static double fitting(const fb_pace *p, int64_t decodes) {
    double fit = p->row_seconds > 0 ? (p->stretch - 1) * p->alone[decodes].seconds / p->row_seconds : 0;
    return fit > p->next ? p->next : fit;
}

int64_t fb_pace_rows(const fb_pace *p, int64_t decodes) {
    int64_t most = p->rows - decodes;
    if (!decodes || p->stretch == 0) return most;
    const fb_pace_alone *alone = &p->alone[decodes];
    if (alone->seconds == 0 || alone->untimed >= alone->refresh) return 0;
    double fit = fitting(p, decodes);
    int64_t least = p->layers > 1 ? FB_PACE_HELD : p->least, rows = fit < (double)most ? (int64_t)fit : most;
    if (fit < (double)least) rows = p->layers > 1 ? least : least_rows(p);
    return rows < most ? rows : most;
}

int64_t fb_pace_layers(const fb_pace *p, int64_t decodes, int64_t rows) {
    if (!decodes || p->stretch == 0) return p->layers;
    double layers = (double)p->layers * fitting(p, decodes) / (double)rows;
    return layers < 1 ? 1 : layers < (double)p->layers ? (int64_t)layers : p->layers;
}

static void learn(double *estimate, double seen) {
    if (*estimate == 0) *estimate = seen;
    if (seen > 2 * *estimate) seen = 2 * *estimate;
    *estimate += (seen > *estimate ? LEARN_SLOWER : LEARN_FASTER) * (seen - *estimate);
}

static void learn_alone(fb_pace_alone *alone, double seconds) {
    learn(&alone->seconds, seconds);
    if (alone->untimed >= alone->refresh) {
        alone->refresh = alone->refresh ? 2 * alone->refresh : 1;
        if (alone->refresh > MOST_UNTIMED) alone->refresh = MOST_UNTIMED;
    }
    alone->untimed = 0;
}

/* Whether it is worth to have twice or half as many rows from now on. */
static void learn_least(fb_pace *p, int64_t prompts, double extra) {
    if (p->layers > 1) return;
    if (prompts == p->least) {
        learn(&p->least_seconds, extra);
        p->waited++;
        return;
    }
    if (p->waited < p->wait || prompts != least_rows(p)) return;
    bool better = extra < p->least_seconds * (p->half ? HALF_BETTER : TWICE_BETTER);
    p->waited = 0;
    if (better) {
        p->least = prompts;
        p->least_seconds = extra;
        p->wait = 1;
    } else {
        p->half = !p->half;
        p->wait = p->wait < FIRST_WAIT ? FIRST_WAIT : p->wait < MOST_WAIT ? 2 * p->wait : MOST_WAIT;
    }
    if (p->least <= FIRST_LEAST) p->half = false;
}

/* What a row takes depends on their number, and the estimate follows slowly. So a step has twice as many rows
 * as the last one at most. After one that took longer than the limit they are fewer, and from then on grow by
 * a quarter. They halve at most: it may have been another process. */
static void limit_next(fb_pace *p, double prompts, double extra, double limit) {
    if (extra > limit) {
        p->next = prompts * (limit < extra / 2 ? 0.5 : limit / extra);
        p->careful = true;
        return;
    }
    if (prompts < p->next - 1) p->careful = false; /* the estimate is the lower one again */
    p->next = (p->careful ? 1.25 : 2) * prompts;
    if (p->layers > 1) p->next += (double)FB_PACE_HELD / (double)p->layers; /* whole layers: one more */
}

void fb_pace_learn(fb_pace *p, int64_t decodes, double prompts, double seconds) {
    if (!decodes) return;
    fb_pace_alone *alone = &p->alone[decodes];
    if (prompts == 0) {
        learn_alone(alone, seconds);
        return;
    }
    double extra = seconds - alone->seconds, few = 0.01 * alone->seconds;
    if (extra < few) extra = few;
    alone->untimed++;
    limit_next(p, prompts, extra, (p->stretch - 1) * alone->seconds);
    learn(&p->row_seconds, extra / prompts);
    learn_least(p, (int64_t)prompts, extra);
}
