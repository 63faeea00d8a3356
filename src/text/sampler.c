/* Scores to a token: repeat penalty, top-k, temperature, top-p, min-p, one draw.
 *
 * Candidates are ordered by score, ties by id (the lower one first), and a draw walks them in that order.
 * Top-k, top-p and min-p each keep a prefix of it, so no more of it than the kept prefix is ever sorted: a
 * vocabulary of 128,000 costs one pass and a heap. */
#include <math.h>
#include <stdlib.h>

#include "base/sized.h"

#define MAX_TEMPERATURE 100
#define MIN_PENALTY     0.01f
#define MAX_PENALTY     100
#define MAX_WINDOW      1000000

typedef struct candidate {
    double score;
    int32_t id;
} candidate;

struct fb_sampler {
    fb_sampler_options options;
    int64_t vocab;
    uint64_t random;       /* state of the generator */
    candidate *candidates; /* [vocab], scratch */
    int32_t *seen;         /* [vocab], how often an id is in the ring */
    int32_t *ring;         /* [repeat_window], the recent ids */
    int64_t accepted;      /* ids ever accepted; the next one goes to ring[accepted % repeat_window] */
};

/* ---- random numbers -------------------------------------------------------------------------- */

/* SplitMix64 (Steele, Lea, Flood 2014): a counter and a mixer. A seed must give the same text in every
 * release, so the generator and the way to a double are fixed; the tests hold known values. */
static uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, 1), 53 bits. */
static double random_unit(uint64_t *state) { return (double)(random_next(state) >> 11) * 0x1p-53; }

/* ---- heaps of candidates --------------------------------------------------------------------- */

static bool better(const candidate *a, const candidate *b) {
    return a->score > b->score || (a->score == b->score && a->id < b->id);
}

/* Restores the heap below `at`. The root is the best candidate, or the worst with `worst_first`. */
static void sift_down(candidate *heap, int64_t count, int64_t at, bool worst_first) {
    candidate moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && better(&heap[child + 1], &heap[child]) != worst_first) child++;
        if (better(&heap[child], &moved) == worst_first) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void make_heap(candidate *heap, int64_t count, bool worst_first) {
    for (int64_t i = count / 2 - 1; i >= 0; i--) sift_down(heap, count, i, worst_first);
}

/* ---- options --------------------------------------------------------------------------------- */

/* Chosen on stories of the built-in model, 12 seeds of 200 tokens each: 1.6% of the trigrams repeat and 7.6%
 * of the words are not in a book that it never saw. A penalty of 1.05 repeats three times as much;
 * temperature 0.8 with a min-p of 0.05 makes up a fifth more words. */
static const fb_sampler_options defaults = {.size = sizeof defaults,
                                            .temperature = 0.7f,
                                            .top_k = 40,
                                            .top_p = 0.95f,
                                            .min_p = 0.1f,
                                            .repeat_penalty = 1.1f,
                                            .repeat_window = 64,
                                            .seed = 0};
static const fb_sized sized = FB_SIZED(fb_sampler_options, temperature, &defaults);
FB_SIZED_ENDS_WITH(fb_sampler_options, seed);

void fb_sampler_options_init(fb_sampler_options *options, size_t size) {
    fb_sized_init(&sized, options, size);
}

/* Written so that NaN is out of range. */
static fb_status check_real(const char *what, double value, double min, double max, fb_error *err) {
    if (value >= min && value <= max) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "%s: %g (%g to %g)", what, value, min, max);
}

static fb_status check_int(const char *what, int64_t value, int64_t min, int64_t max, fb_error *err) {
    if (value >= min && value <= max) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "%s: %lld (%lld to %lld)", what, (long long)value, (long long)min,
                   (long long)max);
}

static fb_status check_options(const fb_sampler_options *options, int64_t vocab, fb_error *err) {
    FB_TRY(check_int("vocab", vocab, 1, INT32_MAX, err));
    FB_TRY(check_real("temperature", options->temperature, 0, MAX_TEMPERATURE, err));
    FB_TRY(check_int("top_k", options->top_k, 0, INT64_MAX, err));
    FB_TRY(check_real("top_p", options->top_p, 0, 1, err));
    FB_TRY(check_real("min_p", options->min_p, 0, 1, err));
    FB_TRY(check_real("repeat_penalty", options->repeat_penalty, MIN_PENALTY, MAX_PENALTY, err));
    return check_int("repeat_window", options->repeat_window, 0, MAX_WINDOW, err);
}

/* ---- life ------------------------------------------------------------------------------------ */

fb_status fb_sampler_create(const fb_sampler_options *given, int64_t vocab, fb_sampler **out, fb_error *err) {
    *out = NULL;
    fb_sampler_options options;
    FB_TRY(fb_sized_take(&sized, given, &options, err));
    FB_TRY(check_options(&options, vocab, err));
    fb_sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler) return fb_fail_memory(err, "sampler", (int64_t)sizeof *sampler);
    sampler->options = options;
    sampler->vocab = vocab;
    sampler->random = options.seed;
    size_t window = (size_t)options.repeat_window;
    sampler->candidates = malloc((size_t)vocab * sizeof *sampler->candidates);
    sampler->seen = calloc((size_t)vocab, sizeof *sampler->seen);
    sampler->ring = malloc((window ? window : 1) * sizeof *sampler->ring);
    if (!sampler->candidates || !sampler->seen || !sampler->ring) {
        fb_sampler_free(sampler);
        return fb_fail_memory(err, "sampler", vocab * (int64_t)(sizeof(candidate) + sizeof(int32_t)));
    }
    *out = sampler;
    return FB_OK;
}

void fb_sampler_free(fb_sampler *sampler) {
    if (!sampler) return;
    free(sampler->candidates);
    free(sampler->seen);
    free(sampler->ring);
    free(sampler);
}

void fb_sampler_accept(fb_sampler *sampler, int32_t id) {
    int64_t window = sampler->options.repeat_window;
    if (window == 0 || id < 0 || id >= sampler->vocab) return;
    int32_t *slot = &sampler->ring[sampler->accepted % window];
    if (sampler->accepted >= window) sampler->seen[*slot]--;
    *slot = id;
    sampler->seen[id]++;
    sampler->accepted++;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Minus infinity rules a token out and is allowed; anything else must be a number. */
static fb_status check_logits(const float *logits, int64_t vocab, fb_error *err) {
    bool any = false;
    for (int64_t i = 0; i < vocab; i++) {
        if (isfinite(logits[i]))
            any = true;
        else if (isnan(logits[i]) || logits[i] > 0)
            return fb_fail(err, FB_ERROR_USAGE, "logits: %g for token %lld (finite or -inf)",
                           (double)logits[i], (long long)i);
    }
    if (any) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "logits: all %lld are -inf (at least one finite)", (long long)vocab);
}

static int32_t highest(const float *logits, int64_t vocab) {
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* In double, so that no finite score times a penalty overflows. A token in the window is penalised once,
 * however often it is there. */
static double penalised(const fb_sampler *sampler, const float *logits, int64_t id) {
    double score = logits[id];
    if (sampler->seen[id] == 0) return score;
    double penalty = sampler->options.repeat_penalty;
    return score > 0 ? score / penalty : score * penalty;
}

/* Fills `candidates` with the top-k, as a heap with the best at the root. */
static int64_t collect(fb_sampler *sampler, const float *logits) {
    candidate *heap = sampler->candidates;
    int64_t vocab = sampler->vocab;
    int64_t limit = sampler->options.top_k;
    if (limit == 0 || limit > vocab) limit = vocab;

    int64_t count = 0;
    for (int64_t id = 0; id < vocab; id++) {
        candidate next = {penalised(sampler, logits, id), (int32_t)id};
        if (count < limit) {
            heap[count++] = next;
            if (count == limit) make_heap(heap, count, true);
        } else if (better(&next, &heap[0])) {
            heap[0] = next;
            sift_down(heap, count, 0, true);
        }
    }
    make_heap(heap, count, false);
    return count;
}

/* The weight of a candidate: its probability over that of the best one, whose weight is 1. */
static double weight(const fb_sampler *sampler, double score, double best) {
    return exp((score - best) / (double)sampler->options.temperature);
}

/* Draws from the heap of `count` candidates, which it takes apart: popped candidates go to the end, in order.
 */
static int32_t draw(fb_sampler *sampler, int64_t count) {
    candidate *heap = sampler->candidates;
    const double best = heap[0].score, top_p = sampler->options.top_p, min_p = sampler->options.min_p;
    double total = 0, possible = 0; /* the mass that top-p is a share of; the mass that min-p leaves */
    for (int64_t i = 0; i < count; i++) {
        double w = weight(sampler, heap[i].score, best);
        total += w;
        if (w >= min_p) possible += w;
    }

    const double unit = random_unit(&sampler->random);
    const bool nucleus = top_p < 1;
    /* Without top-p the kept mass is known, and candidates behind the drawn one need no order. */
    const double stop = nucleus ? top_p * total : unit * possible;
    double kept = 0;
    int64_t left = count;
    while (left > 0) {
        double w = weight(sampler, heap[0].score, best);
        if (w < min_p || w == 0) break; /* 0: ruled out, or as good as */
        candidate popped = heap[0];
        heap[0] = heap[--left];
        sift_down(heap, left, 0, false);
        heap[left] = popped;
        kept += w;
        if (nucleus ? kept >= stop : kept > stop) break;
    }
    if (!nucleus) return heap[left].id;

    double reached = 0;
    int64_t chosen = count;
    while (--chosen > left)
        if ((reached += weight(sampler, heap[chosen].score, best)) > unit * kept) break;
    return heap[chosen].id;
}

fb_status fb_sampler_next(fb_sampler *sampler, const float *logits, int32_t *id, fb_error *err) {
    *id = 0;
    FB_TRY(check_logits(logits, sampler->vocab, err));
    *id = sampler->options.temperature > 0 ? draw(sampler, collect(sampler, logits))
                                           : highest(logits, sampler->vocab);
    fb_sampler_accept(sampler, *id);
    return FB_OK;
}
