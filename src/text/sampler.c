/* Scores to a token: schema, bias, penalties, top-k, temperature, top-p, min-p, one draw. And
 * log-probabilities.
 *
 * Candidates are ordered by score, ties by id (the lower one first), and a draw walks them in that order.
 * Top-k, top-p and min-p each keep a prefix of it, so no more of it than the kept prefix is ever sorted: a
 * vocabulary of 128,000 costs one pass and a heap.
 *
 * The pass goes by blocks of 32 logits. Where no token of a block has a bias or is recent, one vector
 * comparison says whether any of its logits is above the worst candidate so far. Few blocks have one: of
 * 128,256 random logits, some 330 enter a heap of 40.
 *
 * A device may select the best logits instead (fb_sampler_next_among). Up to FB_CANDIDATES candidates are
 * therefore sorted before a draw: its sums are then the same, wherever the candidates come from. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/sized.h"
#include "schema/schema.h"
#include "text/sampler.h"

#define MAX_TEMPERATURE 100
#define MIN_PENALTY     0.01f
#define MAX_PENALTY     100
#define MAX_WINDOW      1000000
#define MAX_ADDITIVE    2 /* of presence and frequency penalty */
#define MAX_BIAS        100
#define BLOCK           32

typedef struct candidate {
    double score;
    int32_t id;
} candidate;

struct fb_sampler {
    fb_sampler_options options; /* without the pointer */
    int64_t vocab;
    int64_t limit;         /* candidates of a choice at most */
    uint64_t first;        /* state of the generator before draw 0 */
    uint64_t number;       /* of the next choice */
    candidate *candidates; /* [limit], scratch */
    double *bias;          /* [vocab], or NULL */
    int32_t *seen;         /* [vocab], how often an id is in the ring */
    int64_t *changed;      /* [blocks of vocab], biases of its ids, and how often they are in the ring */
    int32_t *ring;    /* [ring_size], the recent ids and those before them, which a retract brings back */
    int64_t accepted; /* ids ever accepted; the next one goes to ring[accepted % ring_size] */
    int32_t *biased;  /* [logit_bias_count], ids with a bias that is not 0, each once */
    int32_t *recent;  /* [repeat_window, or vocab], ids of the ring without such a bias, each once */
    int64_t biased_count, recent_count;
    fb_cursor *cursor; /* the document so far; NULL: no schema */
    fb_cursor *other;  /* another one: what becomes of it with guesses; during these, the document without */
    uint64_t *allowed; /* bits of the tokens that may continue it */
};

/* ---- random numbers -------------------------------------------------------------------------- */

/* SplitMix64 (Steele, Lea, Flood 2014): a counter and a mixer. A seed must give the same text in every
 * release, so the generator and the way to a double are fixed; the tests hold known values. */
#define GAMMA 0x9e3779b97f4a7c15u

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, 1), 53 bits. */
static double random_unit(const fb_sampler *sampler) {
    return (double)(mix(sampler->first + (sampler->number + 1) * GAMMA) >> 11) * 0x1p-53;
}

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

/* The best first, which is a heap with the best at its root, too. */
static void sort_candidates(candidate *heap, int64_t count) {
    make_heap(heap, count, true);
    for (int64_t left = count - 1; left > 0; left--) {
        candidate worst = heap[0];
        heap[0] = heap[left];
        sift_down(heap, left, 0, true);
        heap[left] = worst;
    }
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
FB_SIZED_ENDS_WITH(fb_sampler_options, schema);

fb_status fb_sampler_options_take(const fb_sampler_options *given, fb_sampler_options *out, fb_error *err) {
    return fb_sized_take(&sized, given, out, err);
}

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

static fb_status check_bias(const fb_sampler_options *options, int64_t vocab, fb_error *err) {
    int64_t count = options->logit_bias_count;
    FB_TRY(check_int("logit_bias_count", count, 0, vocab, err));
    if (count > 0 && !options->logit_bias)
        return fb_fail(err, FB_ERROR_USAGE, "logit_bias: NULL (%lld of them are promised)", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        int32_t id = options->logit_bias[i].id;
        double bias = options->logit_bias[i].bias;
        FB_TRY(check_int("logit_bias: token", id, 0, vocab - 1, err));
        if (bias != -INFINITY && !(fabs(bias) <= MAX_BIAS))
            return fb_fail(err, FB_ERROR_USAGE, "logit_bias: %g for token %d (%d to %d, or -inf)", bias, id,
                           -MAX_BIAS, MAX_BIAS);
    }
    return FB_OK;
}

static fb_status check_options(const fb_sampler_options *options, int64_t vocab, fb_error *err) {
    FB_TRY(check_int("vocab", vocab, 1, INT32_MAX, err));
    FB_TRY(check_real("temperature", options->temperature, 0, MAX_TEMPERATURE, err));
    FB_TRY(check_int("top_k", options->top_k, 0, INT64_MAX, err));
    FB_TRY(check_real("top_p", options->top_p, 0, 1, err));
    FB_TRY(check_real("min_p", options->min_p, 0, 1, err));
    FB_TRY(check_real("repeat_penalty", options->repeat_penalty, MIN_PENALTY, MAX_PENALTY, err));
    FB_TRY(check_int("repeat_window", options->repeat_window, 0, MAX_WINDOW, err));
    FB_TRY(check_real("presence_penalty", options->presence_penalty, -MAX_ADDITIVE, MAX_ADDITIVE, err));
    FB_TRY(check_real("frequency_penalty", options->frequency_penalty, -MAX_ADDITIVE, MAX_ADDITIVE, err));
    return check_bias(options, vocab, err);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int64_t ring_size(const fb_sampler *sampler) {
    return sampler->options.repeat_window + FB_MAX_RETRACT;
}

static fb_status allocate(fb_sampler *sampler, fb_error *err) {
    size_t vocab = (size_t)sampler->vocab, window = (size_t)sampler->options.repeat_window;
    size_t limit = (size_t)sampler->limit, blocks = (vocab + BLOCK - 1) / BLOCK;
    size_t biases = (size_t)sampler->options.logit_bias_count, recent = window < vocab ? window : vocab;
    bool biased = biases > 0;
    sampler->candidates = malloc(limit * sizeof *sampler->candidates);
    sampler->seen = calloc(vocab, sizeof *sampler->seen);
    sampler->changed = calloc(blocks, sizeof *sampler->changed);
    sampler->ring = malloc((size_t)ring_size(sampler) * sizeof *sampler->ring);
    sampler->recent = malloc((recent ? recent : 1) * sizeof *sampler->recent);
    if (biased) sampler->bias = calloc(vocab, sizeof *sampler->bias);
    if (biased) sampler->biased = malloc(biases * sizeof *sampler->biased);
    if (sampler->candidates && sampler->seen && sampler->changed && sampler->ring && sampler->recent &&
        ((sampler->bias && sampler->biased) || !biased))
        return FB_OK;
    size_t bytes = limit * sizeof(candidate) + (vocab + window + recent + biases) * sizeof(int32_t) +
                   blocks * sizeof(int64_t) + biased * vocab * sizeof(double);
    return fb_fail_memory(err, "sampler", (int64_t)bytes);
}

static fb_status take_schema(fb_sampler *sampler, const fb_schema *schema, fb_error *err) {
    if (!schema) return FB_OK;
    const int64_t vocab = schema->set->vocab, words = schema->set->words;
    FB_TRY(check_int("schema: tokens of its model", vocab, sampler->vocab, sampler->vocab, err));
    sampler->allowed = malloc((size_t)words * sizeof *sampler->allowed);
    if (!sampler->allowed) return fb_fail_memory(err, "sampler", words * (int64_t)sizeof *sampler->allowed);
    return fb_cursor_create(schema, &sampler->cursor, err);
}

static void take_bias(fb_sampler *sampler, const fb_logit_bias *bias) {
    const int64_t count = sampler->options.logit_bias_count;
    for (int64_t i = 0; i < count; i++) {
        sampler->bias[bias[i].id] += bias[i].bias;
        sampler->changed[bias[i].id / BLOCK]++;
    }
    /* `seen` marks what is already in the list. */
    for (int64_t i = 0; i < count; i++) {
        int32_t id = bias[i].id;
        if (sampler->bias[id] == 0 || sampler->seen[id]++) continue;
        sampler->biased[sampler->biased_count++] = id;
    }
    for (int64_t i = 0; i < sampler->biased_count; i++) sampler->seen[sampler->biased[i]] = 0;
}

fb_status fb_sampler_create(const fb_sampler_options *given, int64_t vocab, fb_sampler **out, fb_error *err) {
    *out = NULL;
    fb_sampler_options options;
    FB_TRY(fb_sized_take(&sized, given, &options, err));
    FB_TRY(check_options(&options, vocab, err));
    fb_sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler) return fb_fail_memory(err, "sampler", (int64_t)sizeof *sampler);
    sampler->options = options;
    sampler->options.logit_bias = NULL;
    sampler->options.schema = NULL;
    sampler->vocab = vocab;
    sampler->first = options.seed + mix(options.sequence);
    sampler->limit = options.top_k > 0 && options.top_k < vocab ? options.top_k : vocab;
    if (options.temperature == 0) sampler->limit = 1;
    fb_status status = allocate(sampler, err);
    if (status == FB_OK) status = take_schema(sampler, options.schema, err);
    if (status != FB_OK) {
        fb_sampler_free(sampler);
        return status;
    }
    take_bias(sampler, options.logit_bias);
    *out = sampler;
    return FB_OK;
}

void fb_sampler_free(fb_sampler *sampler) {
    if (!sampler) return;
    fb_cursor_free(sampler->cursor);
    fb_cursor_free(sampler->other);
    free(sampler->allowed);
    free(sampler->candidates);
    free(sampler->bias);
    free(sampler->seen);
    free(sampler->changed);
    free(sampler->ring);
    free(sampler->biased);
    free(sampler->recent);
    free(sampler);
}

/* ---- recent tokens --------------------------------------------------------------------------- */

static bool has_bias(const fb_sampler *sampler, int32_t id) {
    return sampler->bias && sampler->bias[id] != 0;
}

static void forget_recent(fb_sampler *sampler, int32_t id) {
    int64_t i = 0;
    while (sampler->recent[i] != id) i++;
    sampler->recent[i] = sampler->recent[--sampler->recent_count];
}

static void count_seen(fb_sampler *sampler, int32_t id, int32_t change) {
    const int32_t before = sampler->seen[id];
    sampler->seen[id] += change;
    sampler->changed[id / BLOCK] += change;
    if (has_bias(sampler, id)) return;
    if (before == 0) sampler->recent[sampler->recent_count++] = id;
    if (sampler->seen[id] == 0) forget_recent(sampler, id);
}

void fb_sampler_accept(fb_sampler *sampler, int32_t id) {
    int64_t window = sampler->options.repeat_window;
    if (window == 0 || id < 0 || id >= sampler->vocab) return;
    const int64_t size = ring_size(sampler), at = sampler->accepted++;
    if (at >= window) count_seen(sampler, sampler->ring[(at - window) % size], -1);
    sampler->ring[at % size] = id;
    count_seen(sampler, id, 1);
}

void fb_sampler_retract(fb_sampler *sampler, int64_t count) {
    const int64_t window = sampler->options.repeat_window, size = ring_size(sampler);
    for (; window > 0 && count > 0 && sampler->accepted > 0; count--) {
        const int64_t at = --sampler->accepted;
        count_seen(sampler, sampler->ring[at % size], -1);
        if (at >= window) count_seen(sampler, sampler->ring[(at - window) % size], 1);
    }
}

bool fb_sampler_is_best(const fb_sampler *sampler) {
    const fb_sampler_options *o = &sampler->options;
    return o->temperature == 0 && !sampler->bias && !sampler->cursor && o->presence_penalty == 0 &&
           o->frequency_penalty == 0;
}

uint64_t fb_sampler_number(const fb_sampler *sampler) { return sampler->number; }

static void swap_cursors(fb_sampler *sampler) {
    fb_cursor *cursor = sampler->cursor;
    sampler->cursor = sampler->other;
    sampler->other = cursor;
}

fb_status fb_sampler_try(fb_sampler *sampler, fb_error *err) {
    if (!sampler->cursor) return FB_OK;
    if (!sampler->other) FB_TRY(fb_cursor_create(sampler->cursor->schema, &sampler->other, err));
    FB_TRY(fb_cursor_copy(sampler->cursor, sampler->other, err));
    swap_cursors(sampler);
    return FB_OK;
}

void fb_sampler_take_back(fb_sampler *sampler, int64_t count) {
    fb_sampler_retract(sampler, count);
    sampler->number -= (uint64_t)count;
    if (sampler->cursor) swap_cursors(sampler);
}

/* ---- the best scores ------------------------------------------------------------------------- */

/* In double, so that no finite score times a penalty overflows. The order is llama.cpp's. */
static double changed_score(const fb_sampler *sampler, float logit, int64_t id) {
    const fb_sampler_options *o = &sampler->options;
    double score = logit;
    if (sampler->bias) score += sampler->bias[id];
    int32_t seen = sampler->seen[id];
    if (seen == 0) return score;
    double penalty = o->repeat_penalty;
    if (o->temperature > 0) score = score > 0 ? score / penalty : score * penalty;
    return score - o->presence_penalty - (double)o->frequency_penalty * seen;
}

/* Whether one of BLOCK logits is above the threshold, or NaN. A threshold of NaN is below everything. */
static bool any_above(const float *logits, float threshold) {
    int above = 0;
    for (int i = 0; i < BLOCK; i++) above |= !(logits[i] <= threshold);
    return above != 0;
}

/* The largest float that is not above a score: penalties and biases give scores between two floats. */
static float round_down(double score) {
    float rounded = (float)score;
    return (double)rounded > score ? nextafterf(rounded, -INFINITY) : rounded;
}

/* Adds a candidate to a heap of the `limit` best, which has the worst at its root once it is full. */
static void offer(candidate *heap, int64_t *count, int64_t limit, candidate next) {
    if (*count < limit) {
        heap[(*count)++] = next;
        if (*count == limit) make_heap(heap, limit, true);
    } else if (better(&next, &heap[0])) {
        heap[0] = next;
        sift_down(heap, limit, 0, true);
    }
}

/* Minus infinity rules a token out and is allowed; anything else must be a number. */
static fb_status fail_logit(float logit, int64_t id, fb_error *err) {
    return fb_fail(err, FB_ERROR_USAGE, "logits: %g for token %lld (finite or -inf)", (double)logit,
                   (long long)id);
}

/* No score is finite, but this many logits are. */
static fb_status fail_none(const fb_sampler *sampler, int64_t finite, fb_error *err) {
    if (finite > 0 && sampler->cursor)
        return fb_fail(err, FB_ERROR_USAGE,
                       "schema: no token that continues the document has a finite score (%lld others have)",
                       (long long)finite);
    if (finite > 0)
        return fb_fail(err, FB_ERROR_USAGE,
                       "logit_bias: bans all %lld tokens with a finite logit (at least one must be left)",
                       (long long)finite);
    return fb_fail(err, FB_ERROR_USAGE, "logits: all %lld are -inf (at least one finite)",
                   (long long)sampler->vocab);
}

/* Brings the best to the root. Few candidates are sorted (see above). */
static void order_candidates(candidate *heap, int64_t count) {
    if (count <= FB_CANDIDATES)
        sort_candidates(heap, count);
    else
        make_heap(heap, count, false);
}

/* Bits of the BLOCK tokens from `begin` on that a schema allows. */
static uint32_t allowed_of_block(const fb_sampler *sampler, int64_t begin) {
    return sampler->cursor ? (uint32_t)(sampler->allowed[begin / 64] >> (begin % 64)) : UINT32_MAX;
}

/* Fills `heap` with the `limit` best of the vocabulary, the best at the root: by their scores, or with `raw`
 * by their logits. Ids come in order, so a logit that equals the worst candidate's score does not replace it.
 */
static fb_status collect(const fb_sampler *sampler, const float *logits, bool raw, candidate *heap,
                         int64_t limit, fb_error *err) {
    float threshold = NAN;
    int64_t count = 0;
    for (int64_t begin = 0; begin < sampler->vocab; begin += BLOCK) {
        const int64_t end = begin + BLOCK < sampler->vocab ? begin + BLOCK : sampler->vocab;
        const uint32_t allowed = raw ? UINT32_MAX : allowed_of_block(sampler, begin);
        const bool changed = !raw && allowed && sampler->changed[begin / BLOCK] > 0;
        const float least = allowed || count < limit ? threshold : FLT_MAX; /* still, no NaN is passed over */
        if (!changed && end == begin + BLOCK && !any_above(logits + begin, least)) continue;
        for (int64_t id = begin; id < end; id++) {
            if (!(logits[id] < INFINITY)) return fail_logit(logits[id], id, err);
            double score = changed ? changed_score(sampler, logits[id], id) : logits[id];
            if (!(allowed >> (id - begin) & 1)) score = -INFINITY;
            offer(heap, &count, limit, (candidate){score, (int32_t)id});
        }
        if (count == limit) threshold = round_down(heap[0].score);
    }
    order_candidates(heap, count);
    if (heap[0].score > -INFINITY) return FB_OK;
    int64_t finite = 0;
    for (int64_t i = 0; i < sampler->vocab; i++) finite += logits[i] > -INFINITY;
    return fail_none(sampler, finite, err);
}

/* ---- the best of a selection ----------------------------------------------------------------- */

/* Whether the score of a recent token differs from its logit. */
static bool penalises(const fb_sampler_options *o) {
    return (o->temperature > 0 && o->repeat_penalty != 1) || o->presence_penalty != 0 ||
           o->frequency_penalty != 0;
}

static bool is_changed(const fb_sampler *sampler, int32_t id) {
    return has_bias(sampler, id) || (penalises(&sampler->options) && sampler->seen[id] > 0);
}

static int64_t count_changed(const fb_sampler *sampler) {
    return sampler->biased_count + (penalises(&sampler->options) ? sampler->recent_count : 0);
}

/* Of the best `limit` scores, those of changed tokens are known. The others are among the best `limit` logits
 * that are not changed; these are among the best `limit` and as many more as there are changed tokens. */
int64_t fb_sampler_wants(const fb_sampler *sampler) {
    if (sampler->cursor) return 0;
    int64_t wants = sampler->limit + count_changed(sampler);
    if (wants > sampler->vocab) wants = sampler->vocab;
    return wants <= FB_CANDIDATES ? wants : 0;
}

int64_t fb_sampler_changed(const fb_sampler *sampler, int32_t *ids, int64_t room) {
    const int64_t count = count_changed(sampler), biased = sampler->biased_count;
    for (int64_t i = 0; i < count && i < room; i++)
        ids[i] = i < biased ? sampler->biased[i] : sampler->recent[i - biased];
    return count;
}

/* The logit that fb_sampler_next would refuse: the one with the lowest id. */
static const fb_candidate *find_bad(const fb_candidate *given, int64_t count, const fb_candidate *bad) {
    for (int64_t i = 0; i < count; i++)
        if (!(given[i].logit < INFINITY) && (!bad || given[i].id < bad->id)) bad = &given[i];
    return bad;
}

static fb_status check_selection(const fb_sampler *sampler, const fb_candidate *best, int64_t count,
                                 const fb_candidate *changed, int64_t changed_count, fb_error *err) {
    const int64_t wants = fb_sampler_wants(sampler), changes = count_changed(sampler);
    if (wants == 0) return fb_fail(err, FB_ERROR_USAGE, "candidates: the sampler needs all logits");
    FB_TRY(check_int("candidates", count, wants, sampler->vocab, err));
    FB_TRY(check_int("changed tokens", changed_count, changes, changes, err));
    for (int64_t i = 0; i < count; i++)
        FB_TRY(check_int("candidates: token", best[i].id, 0, sampler->vocab - 1, err));
    for (int64_t i = 0; i < changed_count; i++)
        FB_TRY(check_int("changed tokens: token", changed[i].id, 0, sampler->vocab - 1, err));
    const fb_candidate *bad = find_bad(changed, changed_count, find_bad(best, count, NULL));
    return bad ? fail_logit(bad->logit, bad->id, err) : FB_OK;
}

/* As collect() by scores. */
static fb_status collect_among(const fb_sampler *sampler, const fb_candidate *best, int64_t count,
                               const fb_candidate *changed, int64_t changed_count, fb_error *err) {
    candidate *heap = sampler->candidates;
    int64_t filled = 0, finite = 0;
    FB_TRY(check_selection(sampler, best, count, changed, changed_count, err));
    for (int64_t i = 0; i < count; i++)
        if (!is_changed(sampler, best[i].id))
            offer(heap, &filled, sampler->limit, (candidate){best[i].logit, best[i].id});
    for (int64_t i = 0; i < changed_count; i++) {
        double score = changed_score(sampler, changed[i].logit, changed[i].id);
        offer(heap, &filled, sampler->limit, (candidate){score, changed[i].id});
        finite += changed[i].logit > -INFINITY;
    }
    FB_TRY(check_int("candidates: different tokens", filled, sampler->limit, sampler->limit, err));
    order_candidates(heap, filled);
    /* Otherwise the logits that are not changed are all -inf. */
    return heap[0].score > -INFINITY ? FB_OK : fail_none(sampler, finite, err);
}

/* ---- choosing -------------------------------------------------------------------------------- */

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

    const double unit = random_unit(sampler);
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

/* From the candidates that were collected. */
static fb_status choose(fb_sampler *sampler, int32_t *chosen, fb_error *err) {
    int32_t id = sampler->options.temperature > 0 ? draw(sampler, sampler->limit) : sampler->candidates[0].id;
    if (sampler->cursor) FB_TRY(fb_cursor_take(sampler->cursor, id, err));
    sampler->number++;
    fb_sampler_accept(sampler, id);
    *chosen = id;
    return FB_OK;
}

/* The tokens that continue the document. */
static fb_status take_mask(fb_sampler *sampler, fb_error *err) {
    uint64_t any = 0;
    if (!sampler->cursor) return FB_OK;
    FB_TRY(fb_cursor_mask(sampler->cursor, sampler->allowed, err));
    for (int64_t i = 0; i < (sampler->vocab + 63) / 64; i++) any |= sampler->allowed[i];
    if (any) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "schema: %s",
                   fb_sampler_ended(sampler)
                       ? "the document is complete, and the model has no token that ends it"
                       : "no token of the vocabulary continues the document");
}

fb_status fb_sampler_next(fb_sampler *sampler, const float *logits, int32_t *id, fb_error *err) {
    *id = 0;
    FB_TRY(take_mask(sampler, err));
    FB_TRY(collect(sampler, logits, false, sampler->candidates, sampler->limit, err));
    return choose(sampler, id, err);
}

bool fb_sampler_ended(const fb_sampler *sampler) {
    return sampler->cursor && fb_cursor_ended(sampler->cursor);
}

fb_status fb_sampler_next_among(fb_sampler *sampler, const fb_candidate *best, int64_t count,
                                const fb_candidate *changed, int64_t changed_count, int32_t *id,
                                fb_error *err) {
    *id = 0;
    FB_TRY(collect_among(sampler, best, count, changed, changed_count, err));
    return choose(sampler, id, err);
}

void fb_sampler_seek(fb_sampler *sampler, uint64_t number) { sampler->number = number; }

/* ---- log-probabilities ----------------------------------------------------------------------- */

fb_status fb_sampler_logprobs(const fb_sampler *sampler, const float *logits, int32_t chosen, double *logprob,
                              fb_logprob *top, int64_t count, fb_error *err) {
    int64_t vocab = sampler->vocab;
    candidate best[FB_MAX_LOGPROBS];
    *logprob = 0;
    FB_TRY(check_int("logprobs", count, 0, vocab < FB_MAX_LOGPROBS ? vocab : FB_MAX_LOGPROBS, err));
    for (int64_t i = 0; i < count; i++) top[i] = (fb_logprob){0};
    FB_TRY(check_int("token", chosen, 0, vocab - 1, err));
    FB_TRY(collect(sampler, logits, true, best, count > 0 ? count : 1, err));

    double sum = 0;
    const double highest = best[0].score;
    for (int64_t i = 0; i < vocab; i++) sum += exp(logits[i] - highest);
    /* The sum is at least 1, from the best token. */
    const double log_sum = log(sum); /* cppcheck-suppress invalidFunctionArg */
    *logprob = logits[chosen] - highest - log_sum;
    for (int64_t left = count; left > 0; left--) { /* the heap is taken apart, the best first */
        top[count - left] = (fb_logprob){.logprob = best[0].score - highest - log_sum, .id = best[0].id};
        best[0] = best[left - 1];
        sift_down(best, left - 1, 0, false);
    }
    return FB_OK;
}
