/* The search for a block's scales and minimums. Everything is one problem: values x with weights w become
 *     scale * level + minimum
 * where a level is one of a type's integers or codes. For given levels the best scale and minimum are a fit
 * by least squares; for a given scale and minimum the best levels are the nearest. So a few candidates are
 * rounded and fitted, and the fit with the least error wins. A block with parts fits each part, then the
 * parts' scales are values that a common scale and small integers must meet, and the same search finds them.
 * At last scales and integers are improved in turn, with the numbers that the file will hold.
 *
 * Loops over columns have no sums, and sums have 8 accumulators that are added in a written order. So the
 * compiler can use vectors of any width and the bits stay the same. */
#include <math.h>

#include "base/quant_encode.h"

/* What a value can be rounded to: the integers from `least` to `most`, or ascending codes. */
typedef struct levels {
    float least, most;
    int count; /* of codes; 0: integers */
    float codes[16];
} levels;

/* Values that share a scale and a minimum. */
typedef struct part {
    int count; /* 16 or 32 */
    const float *x, *w;
    float wx[32];
    float sum_w, sum_x, sum_xx; /* of w, w x, w x x */
} part;

typedef struct fit {
    float scale, minimum;
    float gain; /* of sum(w x x), what the fit explains: the error is the rest */
} fit;

enum fit_kind { FIT_SCALE, FIT_BOTH, FIT_BELOW /* the minimum is not positive */ };

/* ---- sums ---------------------------------------------------------------------------------------------- */

static float dot(const float *a, const float *b, int count) {
    float sums[8] = {0};
    for (int k = 0; k < count; k += 16)
        for (int i = 0; i < 8; i++) sums[i] += a[k + i] * b[k + i] + a[k + i + 8] * b[k + i + 8];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

static part make_part(const float *x, const float *w, int count) {
    static const float ones[32] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    part p = {.count = count, .x = x, .w = w};
    for (int i = 0; i < count; i++) p.wx[i] = w[i] * x[i];
    p.sum_w = dot(w, ones, count);
    p.sum_x = dot(p.wx, ones, count);
    p.sum_xx = dot(p.wx, x, count);
    return p;
}

/* ---- levels -------------------------------------------------------------------------------------------- */

static levels levels_of(const quant_type *t) {
    levels r = {.least = (float)-t->offset, .most = (float)((1 << (t->low + t->high)) - 1 - t->offset)};
    for (int i = 0; t->codes && i < 16; i++) { /* sorted; a code that is there twice counts once */
        float code = (float)t->codes[i];
        int at = r.count;
        while (at > 0 && r.codes[at - 1] >= code) at--;
        if (at < r.count && r.codes[at] == code) continue;
        for (int k = r.count++; k > at; k--) r.codes[k] = r.codes[k - 1];
        r.codes[at] = code;
    }
    if (r.count) r.least = r.codes[0], r.most = r.codes[r.count - 1];
    return r;
}

static uint8_t index_of(const quant_type *t, float level) {
    if (!t->codes) return (uint8_t)((int)level + t->offset);
    int i = 0;
    while (i < 15 && (float)t->codes[i] != level) i++;
    return (uint8_t)i;
}

/* The levels nearest to (x - minimum) * inverse. */
static void round_to(const levels *r, const part *p, float inverse, float minimum, float *level) {
    if (!r->count) {
        float shift = 0.5f - r->least, most = r->most - r->least;
        for (int i = 0; i < p->count; i++) {
            float number = (p->x[i] - minimum) * inverse + shift;
            number = number > 0 ? number : 0;
            number = number < most ? number : most;
            level[i] = (float)(int)number + r->least;
        }
        return;
    }
    for (int i = 0; i < p->count; i++) level[i] = r->codes[0];
    for (int k = 1; k < r->count; k++) {
        float middle = (r->codes[k - 1] + r->codes[k]) * 0.5f, step = r->codes[k] - r->codes[k - 1];
        for (int i = 0; i < p->count; i++) level[i] += (p->x[i] - minimum) * inverse > middle ? step : 0;
    }
}

/* ---- a part -------------------------------------------------------------------------------------------- */

/* The best scale and minimum for levels. No fit: a gain of -1. */
static fit fit_levels(enum fit_kind kind, const part *p, const float *level) {
    float weighted[32];
    for (int i = 0; i < p->count; i++) weighted[i] = p->w[i] * level[i];
    float squares = dot(weighted, level, p->count), products = dot(p->wx, level, p->count);
    if (!(squares > 0)) return (fit){.gain = -1};
    fit alone = {products / squares, 0, products * products / squares};
    if (kind == FIT_SCALE) return alone;
    float sum = dot(p->w, level, p->count), determinant = p->sum_w * squares - sum * sum;
    if (!(determinant > 0)) return kind == FIT_BELOW ? alone : (fit){.gain = -1};
    fit both = {(p->sum_w * products - p->sum_x * sum) / determinant,
                (squares * p->sum_x - sum * products) / determinant, 0};
    both.gain = both.scale * products + both.minimum * p->sum_x;
    return kind == FIT_BELOW && both.minimum > 0 ? alone : both;
}

/* Without levels. */
static fit fit_minimum(enum fit_kind kind, const part *p) {
    if (!(p->sum_w > 0) || (kind == FIT_BELOW && p->sum_x > 0)) return (fit){0};
    return (fit){0, p->sum_x / p->sum_w, p->sum_x * p->sum_x / p->sum_w};
}

static void keep_better(fit *best, fit other) {
    if (other.gain > best->gain) *best = other;
}

/* From the best candidate on, the levels for the fit and the fit for the levels, in turn. */
static fit improve(enum fit_kind kind, const levels *r, const part *p, fit best) {
    float level[32];
    for (int round = 0; round < 2; round++) {
        round_to(r, p, 1 / best.scale, best.minimum, level);
        keep_better(&best, fit_levels(kind, p, level));
    }
    return best;
}

/* Candidates make the value of largest magnitude `top` - 2 to `top` + 1.5 in magnitude. Beyond the range it
 * is clipped, which can pay off: all other values then have a finer scale. */
static fit search_scale(const levels *r, const part *p) {
    float most = 0, level[32], top = fabsf(r->least) > r->most ? fabsf(r->least) : r->most;
    float unit = r->count ? top / 8 : 1;
    fit best = {0};
    for (int i = 0; i < p->count; i++) most = fabsf(p->x[i]) > most ? fabsf(p->x[i]) : most;
    for (int k = 0; k < 30; k++) {
        float inverse = (top + unit * (0.25f * (float)(k / 2) - 2)) / most;
        round_to(r, p, k % 2 ? -inverse : inverse, 0, level);
        keep_better(&best, fit_levels(FIT_SCALE, p, level));
    }
    return best;
}

/* Candidates clip both ends of the range of values, or extend it, each by up to STEPS / 2 units. */
static fit search_range(enum fit_kind kind, const levels *r, const part *p) {
    float low = p->x[0], high = p->x[0], level[32];
    fit best = fit_minimum(kind, p);
    for (int i = 1; i < p->count; i++) {
        low = p->x[i] < low ? p->x[i] : low;
        high = p->x[i] > high ? p->x[i] : high;
    }
    if (kind == FIT_BELOW && low > 0) low = 0;
    float unit = (high - low) / r->most;
    for (int k = 0; k < 49; k++) {
        float least = low + unit * (0.25f * (float)(k / 7) - 0.5f),
              most = high - unit * (0.25f * (float)(k % 7) - 0.5f);
        if (kind == FIT_BELOW && least > 0) least = 0;
        round_to(r, p, r->most / (most - least), least, level);
        keep_better(&best, fit_levels(kind, p, level));
    }
    return best;
}

/* ---- a block ------------------------------------------------------------------------------------------- */

/* A block's numbers, as the file will hold them. */
typedef struct numbers {
    float scale, minimum;
    int scales[QUANT_PARTS], minimums[QUANT_PARTS]; /* 1 where parts have none */
    float level[FB_MAX_BLOCK];
    float error;
} numbers;

typedef struct search {
    const quant_type *t;
    levels levels;
    int parts;
    part part[QUANT_PARTS];
    fit fits[QUANT_PARTS];
} search;

/* With the arithmetic of decoding. */
static float error_of(const part *p, float scale, float minimum, const float *level) {
    float off[32], weighted[32];
    for (int i = 0; i < p->count; i++) {
        float product = scale * level[i];
        off[i] = p->x[i] - (product - minimum);
        weighted[i] = p->w[i] * off[i];
    }
    return dot(weighted, off, p->count);
}

/* The scale and minimum that a file holds for `value`. */
static float as_stored(const search *s, float value) {
    if (!s->t->power) return fb_f16_to_f32(quant_half(value));
    uint32_t bits = fb_f32_bits(fabsf(value)) + 0x4afb0d; /* from 2^n sqrt(2) on, up */
    return fb_f32_from_bits(bits & 0x7f800000);
}

/* Integers that meet the parts' scales (or minimums) best, and what they are multiples of. `weights`: of the
 * squared error of each. */
static float meet(const search *s, const float *values, const float *weights, int *integers) {
    float level[32];
    levels r = {.least = (float)quant_least_scale(s->t), .most = (float)quant_most_scale(s->t)};
    part p = make_part(values, weights, QUANT_PARTS);
    fit best = improve(FIT_SCALE, &r, &p, search_scale(&r, &p));
    float scale = as_stored(s, best.scale);
    round_to(&r, &p, scale != 0 ? 1 / scale : 0, 0, level);
    for (int j = 0; j < s->parts; j++) integers[j] = (int)level[j];
    return scale;
}

static void begin(search *s, numbers *n) {
    float values[2][QUANT_PARTS] = {0}, weights[2][QUANT_PARTS] = {0}, level[32], ones[32];
    for (int j = 0; j < s->parts; j++) n->scales[j] = n->minimums[j] = 1;
    n->scale = as_stored(s, s->fits[0].scale);
    n->minimum = as_stored(s, -s->fits[0].minimum);
    if (!s->t->scales) return;
    for (int j = 0; j < s->parts; j++) {
        const part *p = &s->part[j];
        values[0][j] = s->fits[j].scale;
        values[1][j] = -s->fits[j].minimum;
        round_to(&s->levels, p, values[0][j] != 0 ? 1 / values[0][j] : 0, s->fits[j].minimum, level);
        for (int i = 0; i < p->count; i++) ones[i] = p->w[i] * level[i];
        weights[0][j] = dot(ones, level, p->count);
        weights[1][j] = p->sum_w;
    }
    n->scale = meet(s, values[0], weights[0], n->scales);
    n->minimum = s->t->minimums ? meet(s, values[1], weights[1], n->minimums) : 0;
}

static int clamp(int value, int least, int most) {
    return value < least ? least : value > most ? most : value;
}

/* The best of a part's integers and their neighbours. */
static float choose_part(const search *s, numbers *n, int j) {
    const part *p = &s->part[j];
    float level[32], least = INFINITY, *best = n->level + j * s->t->part;
    int low = quant_least_scale(s->t), high = quant_most_scale(s->t), reach = s->t->scales ? 1 : 0;
    int scale = n->scales[j], minimum = n->minimums[j];
    for (int a = -reach; a <= reach; a++)
        for (int b = -reach; b <= reach; b++) {
            int sc = scale + a, mn = minimum + b;
            if (reach && (sc != clamp(sc, low, high) || mn != clamp(mn, low, high))) continue;
            if (!s->t->minimums && b) continue;
            float d = n->scale * (float)sc, m = s->t->minimums ? n->minimum * (float)mn : 0;
            round_to(&s->levels, p, d != 0 ? 1 / d : 0, -m, level);
            float error = error_of(p, d, m, level);
            if (!(error < least)) continue;
            least = error;
            n->scales[j] = sc;
            n->minimums[j] = mn;
            memcpy(best, level, (size_t)p->count * sizeof *best);
        }
    return least;
}

/* The best scale and minimum of the block for its integers. */
static void refit(const search *s, numbers *n, int round) {
    if (s->t->power) { /* the neighbours */
        n->scale *= round == 0 ? 2 : 0.25f;
        return;
    }
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (int j = 0; j < s->parts; j++) {
        const part *p = &s->part[j];
        const float *level = n->level + j * s->t->part;
        float weighted[32];
        for (int i = 0; i < p->count; i++) weighted[i] = p->w[i] * level[i];
        double scale = n->scales[j], minimum = -n->minimums[j];
        aa += scale * scale * (double)dot(weighted, level, p->count);
        ab += scale * minimum * (double)dot(p->w, level, p->count);
        bb += minimum * minimum * (double)p->sum_w;
        xa += scale * (double)dot(p->wx, level, p->count);
        xb += minimum * (double)p->sum_x;
    }
    double determinant = aa * bb - ab * ab;
    if (s->t->minimums && determinant > 0) {
        n->scale = as_stored(s, (float)((bb * xa - ab * xb) / determinant));
        n->minimum = as_stored(s, (float)((aa * xb - ab * xa) / determinant));
    } else if (aa > 0) {
        n->scale = as_stored(s, (float)((xa - ab * (double)n->minimum) / aa));
    }
}

static void store(const search *s, const numbers *n, quant_parts *p) {
    p->scale = s->t->power ? fb_f32_to_bf16(n->scale) : quant_half(n->scale);
    p->minimum = quant_half(s->t->scales ? n->minimum : -n->minimum);
    for (int j = 0; j < s->parts; j++) {
        p->scales[j] = (int8_t)n->scales[j];
        p->minimums[j] = (int8_t)n->minimums[j];
    }
    for (int i = 0; i < s->t->columns; i++) p->q[i] = index_of(s->t, n->level[i]);
}

static float error_of_block(const search *s, const quant_parts *p) {
    float values[FB_MAX_BLOCK], sum = 0;
    quant_values(s->t, p, values);
    for (int j = 0; j < s->parts; j++) sum += error_of(&s->part[j], 1, 0, values + j * s->t->part);
    return sum;
}

void fb_quant_search_block(const quant_type *t, const float *x, const float *weights, quant_parts *p) {
    static const float ones[32] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    search s = {.t = t, .levels = levels_of(t), .parts = t->columns / t->part};
    numbers n = {0};
    for (int j = 0; j < s.parts; j++) {
        s.part[j] = make_part(x + j * t->part, weights ? weights + j * t->part : ones, t->part);
        enum fit_kind kind = !t->minimums ? FIT_SCALE : t->scales ? FIT_BELOW : FIT_BOTH;
        s.fits[j] =
            t->minimums ? search_range(kind, &s.levels, &s.part[j]) : search_scale(&s.levels, &s.part[j]);
        s.fits[j] = improve(kind, &s.levels, &s.part[j], s.fits[j]);
    }
    begin(&s, &n);
    float least = error_of_block(&s, p);
    for (int round = 0; round < 3; round++) {
        if (!(fabsf(n.scale) > 0 && fabsf(n.scale) < INFINITY && fabsf(n.minimum) < INFINITY)) return;
        n.error = 0;
        for (int j = 0; j < s.parts; j++) n.error += choose_part(&s, &n, j);
        if (n.error < least) {
            least = n.error;
            store(&s, &n, p);
        }
        refit(&s, &n, round);
    }
}
