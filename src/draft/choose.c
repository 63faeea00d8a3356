#include "draft/choose.h"

/* Weight of the last step in an estimate. One that took longer counts less, and as at most twice the
 * estimate: another process may have had the CPU. */
#define LEARN_FASTER 0.5
#define LEARN_SLOWER 0.25
/* Guesses that a prior is worth; and by how much each new one makes the old ones count less. */
#define PRIOR_WEIGHT 2
#define FORGET       0.96
#define START_WEIGHT 4
/* Guessing must promise so much more tokens a second than not to. */
#define MARGIN 1.02
/* What guessing may have cost: this share of all time, and so many steps at the beginning. To find out that
 * it has become worth it: a smaller share. What it has saved counts up to so many steps. */
#define MOST_OWED    0.01
#define FIRST_OWED   1
#define EXPLORE_OWED 0.005
#define MOST_SAVED   20
/* Every so many steps with guesses, one without is timed. */
#define PLAIN_EVERY 64
/* And so many before the first guess: what a guess costs is a small difference to them. */
#define PLAIN_FIRST 2
/* And so many between guesses that only find out more: if times vary, what those cost is not known well. */
#define EXPLORE_EVERY 8
/* The first steps with guesses find nothing in caches, and their times say little. */
#define COLD 2
/* A step that took longer than expected counts as so many times that: another process may have had the CPU.
 */
#define MOST_LATE 1.25

/* ---- times ---- */

static double predicted(const fb_draft_times *t, int64_t rows) {
    const int64_t last = FB_DRAFT_ROWS;
    if (rows <= last) return t->guess[rows];
    return t->guess[last] + (t->guess[last] - t->guess[last - 1]) * (double)(rows - last);
}

/* By how much the measured time of so many rows differs from the prediction; 0: not measured. */
static double ratio_at(const fb_draft_times *t, int64_t rows) {
    return t->known[rows] > 0 ? t->known[rows] / t->guess[rows] : 0;
}

/* What is not measured is predicted, times what its measured neighbours differ by. */
double fb_draft_time(const fb_draft_times *t, int64_t rows) {
    int64_t below = rows < FB_DRAFT_ROWS ? rows : FB_DRAFT_ROWS, above = rows;
    while (below > 0 && ratio_at(t, below) == 0) below--;
    while (above <= FB_DRAFT_ROWS && ratio_at(t, above) == 0) above++;
    double low = below > 0 ? ratio_at(t, below) : 0, high = above <= FB_DRAFT_ROWS ? ratio_at(t, above) : 0;
    double ratio = low > 0 ? low : high > 0 ? high : 1;
    if (low > 0 && high > 0 && above > below)
        ratio = low + (high - low) * (double)(rows - below) / (double)(above - below);
    return predicted(t, rows) * ratio;
}

void fb_draft_time_learn(fb_draft_times *t, int64_t rows, double seconds) {
    if (rows < 1 || rows > FB_DRAFT_ROWS || !(seconds > 0)) return;
    double *estimate = &t->known[rows];
    if (*estimate == 0) *estimate = seconds;
    if (seconds > 2 * *estimate) seconds = 2 * *estimate;
    *estimate += (seconds > *estimate ? LEARN_SLOWER : LEARN_FASTER) * (seconds - *estimate);
}

/* ---- how often guesses are right ---- */

/* Where nothing was tried at a depth, it is as at the depth before. That is forgotten as old guesses are. */
double fb_draft_rate(const fb_draft_rates *r, const double *prior, int32_t class, int64_t depth) {
    double rate = prior[class];
    for (int64_t d = 0; d <= depth; d++) {
        double tried = r->tried[class][d], weight = PRIOR_WEIGHT * (1 - (1 - FORGET) * tried);
        if (weight < 0) weight = 0; /* by rounding */
        rate = (r->right[class][d] + weight * rate) / (tried + weight);
    }
    return rate;
}

void fb_draft_rate_learn(fb_draft_rates *r, int32_t class, int64_t checked, int64_t right) {
    for (int64_t d = 0; d < checked && d < FB_MAX_DRAFT; d++) {
        r->tried[class][d] = FORGET * r->tried[class][d] + 1;
        r->right[class][d] = FORGET * r->right[class][d] + (d < right);
    }
}

fb_draft_rates fb_draft_rates_start(const fb_draft_rates *all) {
    fb_draft_rates r = *all;
    for (int c = 0; c < FB_DRAFT_CLASSES; c++)
        for (int d = 0; d < FB_MAX_DRAFT; d++) {
            if (r.tried[c][d] <= START_WEIGHT) continue;
            r.right[c][d] *= START_WEIGHT / r.tried[c][d];
            r.tried[c][d] = START_WEIGHT;
        }
    return r;
}

/* ---- the choice ---- */

/* A choice while it grows by a guess at a time. */
typedef struct growing {
    const fb_draft_choice *c;
    fb_draft_wish *wishes;
    int64_t count;
    bool free;
    double tokens; /* expected of the step */
    double guessing;
    int64_t guesses, deepest;
    int64_t at_depth[FB_MAX_DRAFT + 1]; /* wishes that are longer */
} growing;

/* More rows take no less time, whatever was measured. */
static double seconds_of(const growing *g) {
    double plain = fb_draft_time(&g->c->step, g->count),
           step = fb_draft_time(&g->c->step, g->count + g->guesses);
    return (step > plain ? step : plain) + g->guessing;
}

/* The chance that all guesses of a wish up to its next one are right. */
static double chance(const growing *g, const fb_draft_wish *w) {
    double all = 1;
    for (int64_t d = 0; d <= w->length; d++) all *= fb_draft_rate(w->rates, g->c->prior, w->class, d);
    return all;
}

/* Lengthens the wish whose next guess is the likeliest; false: none can be. */
static bool grow(growing *g) {
    fb_draft_wish *best = NULL;
    double most = 0;
    for (int64_t i = 0; i < g->count; i++) {
        fb_draft_wish *w = &g->wishes[i];
        if (w->length >= w->most || w->length >= FB_MAX_DRAFT) continue;
        double all = chance(g, w);
        if (best && all <= most) continue;
        best = w;
        most = all;
    }
    if (!best) return false;
    int64_t *streams = &g->at_depth[best->length++];
    if (!g->free) {
        if (*streams) g->guessing -= fb_draft_time(&g->c->draft, *streams);
        g->guessing += fb_draft_time(&g->c->draft, *streams + 1);
    }
    (*streams)++;
    g->guesses++;
    g->tokens += most;
    return true;
}

static void set_lengths(fb_draft_wish *wishes, int64_t count, int64_t length) {
    for (int64_t i = 0; i < count; i++) wishes[i].length = length < wishes[i].most ? length : wishes[i].most;
}

/* Repeats the growth up to so many guesses. */
static void grow_to(const fb_draft_choice *c, fb_draft_wish *wishes, int64_t count, int64_t guesses,
                    bool free) {
    growing g = {.c = c, .wishes = wishes, .count = count, .free = free};
    set_lengths(wishes, count, 0);
    while (g.guesses < guesses && grow(&g)) continue;
}

void fb_draft_choose(const fb_draft_choice *c, fb_draft_wish *wishes, int64_t count, int64_t room,
                     bool free) {
    growing g = {.c = c, .wishes = wishes, .count = count, .free = free, .tokens = (double)count};
    const double plain = fb_draft_time(&c->step, count);
    double best = (double)count / plain * MARGIN, loss = 0;
    int64_t guesses = 0;
    set_lengths(wishes, count, 0);
    while (g.guesses < room && grow(&g)) {
        double seconds = seconds_of(&g), rate = g.tokens / seconds;
        if (g.guesses == 1) loss = seconds - g.tokens / (double)count * plain;
        if (!(rate > best)) continue;
        best = rate;
        guesses = g.guesses;
    }
    if (c->plain < PLAIN_FIRST)
        guesses = 0;
    else if (guesses && (c->owed > MOST_OWED * c->total + FIRST_OWED * plain || c->since >= PLAIN_EVERY))
        guesses = 0;
    else if (!guesses && g.guesses && c->rest >= EXPLORE_EVERY && c->owed + loss < EXPLORE_OWED * c->total)
        guesses = 1;
    grow_to(c, wishes, count, guesses, free);
}

bool fb_draft_choice_cold(const fb_draft_choice *c) { return c->cold < COLD; }

void fb_draft_choice_learn(fb_draft_choice *c, int64_t streams, int64_t guesses, int64_t tokens,
                           double seconds, double guessing) {
    const double plain = fb_draft_time(&c->step, streams),
                 expected = fb_draft_time(&c->step, streams + guesses) + guessing;
    c->since = guesses ? c->since + 1 : 0;
    c->rest = guesses ? 0 : c->rest + 1;
    seconds += guessing;
    c->total += seconds;
    if (!guesses) c->plain++;
    if (!guesses || c->cold++ < COLD) return;
    if (seconds > MOST_LATE * expected) seconds = MOST_LATE * expected;
    c->owed += seconds - (double)tokens / (double)streams * plain;
    if (c->owed < -MOST_SAVED * plain) c->owed = -MOST_SAVED * plain;
}
