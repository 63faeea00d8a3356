#include "serve/steps.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* Fewer steps than this are no measurement. */
#define LEAST 16

static serve_step_kind *find(serve_steps *s, uint32_t plan, int32_t rows) {
    for (int i = 0; i < SERVE_STEP_KINDS; i++)
        if (s->kinds[i].rows == rows && s->kinds[i].plan == plan) return &s->kinds[i];
    return NULL;
}

/* A new entry in place of the one that was used longest ago. */
static serve_step_kind *replace(serve_steps *s, uint32_t plan, int32_t rows) {
    serve_step_kind *oldest = &s->kinds[0];
    for (int i = 1; i < SERVE_STEP_KINDS; i++)
        if (s->kinds[i].used < oldest->used) oldest = &s->kinds[i];
    *oldest = (serve_step_kind){.plan = plan, .rows = rows};
    return oldest;
}

void serve_steps_add(serve_steps *s, uint32_t plan, int32_t rows, bool decode, int32_t tokens,
                     double seconds) {
    pthread_mutex_lock(&s->lock);
    s->ends[s->recent % SERVE_STEP_RECENT] = fb_now();
    s->tokens[s->recent++ % SERVE_STEP_RECENT] = tokens;
    if (decode && rows > 0) {
        serve_step_kind *k = find(s, plan, rows);
        if (!k) k = replace(s, plan, rows);
        k->used = ++s->clock;
        k->seconds[k->count++ % SERVE_STEP_TIMES] = (float)seconds;
        s->last_rows = rows;
    }
    pthread_mutex_unlock(&s->lock);
}

void serve_steps_switched(serve_steps *s, int fuse, uint32_t with, uint32_t without) {
    pthread_mutex_lock(&s->lock);
    s->switched[fuse].with = with;
    s->switched[fuse].without = without;
    pthread_mutex_unlock(&s->lock);
}

static int compare(const void *a, const void *b) {
    float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

static int64_t kept(const serve_step_kind *k) {
    return k->count < SERVE_STEP_TIMES ? k->count : SERVE_STEP_TIMES;
}

static double median(const serve_step_kind *k) {
    float sorted[SERVE_STEP_TIMES];
    size_t count = (size_t)kept(k);
    if (!count) return 0;
    memcpy(sorted, k->seconds, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare);
    return (double)sorted[count / 2];
}

/* Both plans must have had steps of the same number of rows. Of several numbers, the one with the most. */
serve_saving serve_steps_saving(serve_steps *s, int fuse) {
    serve_saving best = {0};
    pthread_mutex_lock(&s->lock);
    uint32_t with = s->switched[fuse].with, without = s->switched[fuse].without;
    for (int i = 0; i < SERVE_STEP_KINDS && with != without; i++) {
        const serve_step_kind *a = &s->kinds[i];
        const serve_step_kind *b = a->rows && a->plan == with ? find(s, without, a->rows) : NULL;
        if (!b || kept(a) < LEAST || kept(b) < LEAST) continue;
        int64_t least = kept(a) < kept(b) ? kept(a) : kept(b);
        int64_t before = best.with < best.without ? best.with : best.without;
        if (least < before || (least == before && a->rows != s->last_rows)) continue;
        best = (serve_saving){median(b) - median(a), a->rows, kept(a), kept(b)};
    }
    pthread_mutex_unlock(&s->lock);
    return best;
}

double serve_steps_median(serve_steps *s, uint32_t plan) {
    pthread_mutex_lock(&s->lock);
    const serve_step_kind *k = s->last_rows ? find(s, plan, s->last_rows) : NULL;
    double seconds = k ? median(k) : 0;
    pthread_mutex_unlock(&s->lock);
    return seconds;
}

double serve_steps_rate(serve_steps *s) {
    double now = fb_now(), first = now, tokens = 0;
    pthread_mutex_lock(&s->lock);
    int64_t from = s->recent > SERVE_STEP_RECENT ? s->recent - SERVE_STEP_RECENT : 0;
    for (int64_t i = s->recent - 1; i >= from && now - s->ends[i % SERVE_STEP_RECENT] < 1; i--) {
        tokens += s->tokens[i % SERVE_STEP_RECENT];
        first = s->ends[i % SERVE_STEP_RECENT];
    }
    bool whole = from == 0 || now - s->ends[from % SERVE_STEP_RECENT] >= 1;
    pthread_mutex_unlock(&s->lock);
    /* Steps shorter than 4 ms fill the list in less than a second. */
    return whole || now - first < 0.01 ? tokens : tokens / (now - first);
}
