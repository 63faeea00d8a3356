/* Plain rounding of a block. Types with one scale have the bytes of the reference quantiser that all writers
 * of GGUF files use. For NaN and infinite values, and for values so small that the reciprocal of their scale
 * is infinite, the bytes have no meaning, but they are always the same. */
#include <math.h>

#include "base/quant_encode.h"

/* Rounds to the nearest integer within the range; halves go away from zero. NaN becomes `least`. */
static int to_nearest(float value, int least, int most) {
    float x = value > (float)least ? value : (float)least;
    x = x < (float)most ? x : (float)most;
    int whole = (int)x; /* truncated; the remainder is exact */
    float rest = x - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

/* Truncates, and clamps to 0 to `most`. */
static int to_integer(float value, int most) {
    return value > 0 ? value < (float)most ? (int)value : most : 0;
}

/* The first of the nearest codes. */
static int to_code(const int8_t *codes, float value) {
    float least = INFINITY;
    int nearest = 0;
    for (int i = 0; i < 16; i++) {
        float off = fabsf((float)codes[i] - value);
        if (off < least) least = off, nearest = i;
    }
    return nearest;
}

static float inverse_of(float d) { return d != 0 ? 1 / d : 0; }

/* A scale whose integers reach from the least to the largest value, and the least value, 0 at most if parts
 * have minimums. */
static float range_scale(const quant_type *t, const float *x, float *minimum) {
    float low = x[0], high = x[0];
    for (int i = 1; i < t->part; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    if (t->scales && low > 0) low = 0;
    *minimum = low;
    return (high - low) / (float)((1 << (t->low + t->high)) - 1);
}

/* The value of largest magnitude becomes the integer of largest magnitude, which is negative: so the whole
 * range of -8 to 7 is used. */
static float largest_scale(const quant_type *t, const float *x) {
    float most = 0, value = 0;
    for (int i = 0; i < t->part; i++)
        if (fabsf(x[i]) > most) most = fabsf(value = x[i]);
    return t->low == 8 ? most / 127 : value / (float)(t->codes ? t->codes[0] : -t->offset);
}

/* The power of two with which the largest value becomes 8 to 16, halved as the codes are doubled: bfloat16
 * bits. */
static uint16_t power_scale(const quant_type *t, const float *x) {
    float most = 0;
    for (int i = 0; i < t->part; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    int exponent = most == 0 ? 0 : (int)(fb_f32_bits(most) >> 23) - 2;
    exponent = exponent > 0 ? exponent : 0;
    return (uint16_t)(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
}

/* Integers of a part whose values are scale * integer + minimum. */
static void round_part(const quant_type *t, const float *x, float inverse, float minimum, uint8_t *q) {
    int most = (1 << (t->low + t->high)) - 1;
    for (int i = 0; i < t->part; i++) {
        float number = (x[i] - minimum) * inverse;
        if (t->codes)
            q[i] = (uint8_t)to_code(t->codes, number);
        else if (t->low == 8)
            q[i] = (uint8_t)to_nearest(number, -127, 127);
        else
            q[i] = (uint8_t)to_integer(number + ((float)t->offset + 0.5f), most);
    }
}

static void round_single(const quant_type *t, const float *x, quant_parts *p) {
    float minimum = 0, scale;
    if (t->power) {
        p->scale = power_scale(t, x);
        scale = quant_scale(t, p->scale);
    } else {
        scale = t->minimums ? range_scale(t, x, &minimum) : largest_scale(t, x);
        p->scale = quant_half(scale);
    }
    p->minimum = quant_half(minimum);
    round_part(t, x, inverse_of(scale), minimum, p->q);
}

/* The scale of the parts' scales, `count` numbers: the largest becomes the integer of largest magnitude. */
static float scale_of_scales(const quant_type *t, const float *scales, int count) {
    float most = 0, value = 0;
    for (int i = 0; i < count; i++)
        if (fabsf(scales[i]) > most) most = fabsf(value = scales[i]);
    return value / (float)(t->minimums ? quant_most_scale(t) : quant_least_scale(t));
}

static void round_parts(const quant_type *t, const float *x, quant_parts *p) {
    float scales[QUANT_PARTS], minimums[QUANT_PARTS] = {0};
    int parts = t->columns / t->part, least = quant_least_scale(t), most = quant_most_scale(t);
    for (int j = 0; j < parts; j++) {
        const float *first = x + j * t->part;
        scales[j] = t->minimums ? range_scale(t, first, &minimums[j]) : largest_scale(t, first);
        minimums[j] = -minimums[j];
    }
    p->scale = quant_half(scale_of_scales(t, scales, parts));
    p->minimum = t->minimums ? quant_half(scale_of_scales(t, minimums, parts)) : 0;
    float d = fb_f16_to_f32(p->scale), m = fb_f16_to_f32(p->minimum);
    for (int j = 0; j < parts; j++) {
        p->scales[j] = (int8_t)to_nearest(scales[j] * inverse_of(d), least, most);
        p->minimums[j] = (int8_t)(t->minimums ? to_nearest(minimums[j] * inverse_of(m), 0, most) : 0);
        round_part(t, x + j * t->part, inverse_of(d * (float)p->scales[j]), -(m * (float)p->minimums[j]),
                   p->q + j * t->part);
    }
}

void fb_quant_round_block(const quant_type *t, const float *x, quant_parts *p) {
    (t->scales ? round_parts : round_single)(t, x, p);
}
