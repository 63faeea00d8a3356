/* Q4_0 and Q4_1 by trying some scales: the search of quant_search.c finds a little less error and takes
 * ninety times as long. Of three times as many scales no more guesses of a draft were right. Written so that
 * compilers make vectors of the loops. */
#include <math.h>

#include "base/quant.h"

enum { BLOCK = 32, TRIED = 5 };

/* The integers, 0 to 15, that these values become; and what they make of the squared error: the larger, the
 * better. */
static float fit(const float *x, float inverse, int32_t q[BLOCK], float *scale) {
    float products = 0, squares = 0;
    for (int i = 0; i < BLOCK; i++) {
        int32_t n = (int32_t)(x[i] * inverse + 8.5f);
        q[i] = n > 15 ? 15 : n < 0 ? 0 : n;
    }
    for (int i = 0; i < BLOCK; i++) {
        float v = (float)(q[i] - 8);
        products += x[i] * v;
        squares += v * v;
    }
    *scale = squares > 0 ? products / squares : 0;
    return products * *scale;
}

static void fit_block(const float *x, uint8_t *to) {
    float most = 0, best = -1, scale = 0;
    int32_t q[BLOCK], kept[BLOCK] = {0};
    for (int i = 0; i < BLOCK; i++)
        if (fabsf(x[i]) > fabsf(most)) most = x[i];
    for (int t = 0; t < TRIED && most != 0; t++) {
        float s, good = fit(x, -(6.6f + 0.7f * (float)t) / most, q, &s);
        if (!(good > best)) continue;
        best = good;
        scale = s;
        memcpy(kept, q, sizeof kept);
    }
    if (best < 0)
        for (int i = 0; i < BLOCK; i++) kept[i] = 8;
    uint16_t half = fb_f32_to_f16(scale);
    memcpy(to, &half, sizeof half);
    for (int i = 0; i < BLOCK / 2; i++) to[2 + i] = (uint8_t)(kept[i] | kept[i + BLOCK / 2] << 4);
}

void fb_quant_fit_q4_0(const float *from, int64_t count, void *to) {
    for (int64_t i = 0; i < count; i += BLOCK) fit_block(from + i, (uint8_t *)to + i / BLOCK * 18);
}

/* ---- with a minimum ---- */

/* What is known of a block: values less their mean. */
typedef struct centred {
    float x[BLOCK], mean, low, high;
} centred;

static centred centre(const float *x) {
    centred c = {0};
    for (int i = 0; i < BLOCK; i++) c.mean += x[i] / BLOCK;
    for (int i = 0; i < BLOCK; i++) {
        c.x[i] = x[i] - c.mean;
        c.low = c.x[i] < c.low ? c.x[i] : c.low;
        c.high = c.x[i] > c.high ? c.x[i] : c.high;
    }
    return c;
}

/* As `fit`, with the best minimum as well. */
static float fit_minimum(const centred *c, float inverse, float low, int32_t q[BLOCK], float *scale,
                         float *minimum) {
    float products = 0;
    int32_t sum = 0, squares = 0;
    for (int i = 0; i < BLOCK; i++) {
        int32_t n = (int32_t)((c->x[i] - low) * inverse + 0.5f);
        q[i] = n > 15 ? 15 : n < 0 ? 0 : n;
    }
    for (int i = 0; i < BLOCK; i++) {
        products += c->x[i] * (float)q[i];
        sum += q[i];
        squares += q[i] * q[i];
    }
    float spread = (float)squares - (float)(sum * sum) / BLOCK;
    *scale = spread > 0 ? products / spread : 0;
    *minimum = c->mean - *scale * (float)sum / BLOCK;
    return products * *scale;
}

/* Both ends move towards the middle, which cuts off the largest values. */
static void fit_block_minimum(const float *x, uint8_t *to) {
    const centred c = centre(x);
    const float width = c.high - c.low;
    float best = -1, scale = 0, minimum = c.mean;
    int32_t q[BLOCK], kept[BLOCK] = {0};
    for (int t = 0; t < TRIED && width > 0; t++) {
        float cut = 0.07f * (float)t * width, s, m;
        float good = fit_minimum(&c, 15 / (width - cut), c.low + cut / 2, q, &s, &m);
        if (!(good > best)) continue;
        best = good;
        scale = s;
        minimum = m;
        memcpy(kept, q, sizeof kept);
    }
    uint16_t halves[2] = {fb_f32_to_f16(scale), fb_f32_to_f16(minimum)};
    memcpy(to, halves, sizeof halves);
    for (int i = 0; i < BLOCK / 2; i++) to[4 + i] = (uint8_t)(kept[i] | kept[i + BLOCK / 2] << 4);
}

void fb_quant_fit_q4_1(const float *from, int64_t count, void *to) {
    for (int64_t i = 0; i < count; i += BLOCK) fit_block_minimum(from + i, (uint8_t *)to + i / BLOCK * 20);
}
