#include <math.h>

#include "base/quant_blocks.h"

static void decode_floats(fb_dtype dtype, const uint8_t *from, int64_t count, float *to) {
    uint16_t half;
    switch (dtype) {
    case FB_F32:
        memcpy(to, from, (size_t)count * sizeof *to);
        break;
    case FB_F16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = fb_f16_to_f32(half);
        }
        break;
    case FB_BF16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = fb_bf16_to_f32(half);
        }
        break;
    default:
        for (int64_t i = 0; i < count; i++) to[i] = (float)fb_dtype_get(dtype, from, i);
    }
}

void fb_quant_decode(fb_dtype dtype, const void *from, int64_t count, float *to) {
    if (fb_dtype_is_float(dtype))
        decode_floats(dtype, from, count, to);
    else
        quant_decode_blocks(dtype, from, count, to);
}

static void put_half(uint8_t *p, float value) {
    uint16_t half = fb_f32_to_f16(value);
    p[0] = (uint8_t)half;
    p[1] = (uint8_t)(half >> 8);
}

/* ---- encoding ----
 * For NaN and infinite values, and for values so small that the reciprocal of their scale is infinite, the
 * bytes have no meaning, but they are always the same. */

/* Rounds to the nearest integer within -127 to 127; halves go away from zero. */
static int to_nearest(float value) {
    float x = value > -127 ? value : -127;
    x = x < 127 ? x : 127;
    int whole = (int)x; /* truncated; the remainder is exact */
    float rest = x - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

static void encode_q8_0(const float *x, uint8_t *b) {
    float most = 0;
    for (int i = 0; i < 32; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float d = most / 127, inverse = d != 0 ? 1 / d : 0;
    put_half(b, d);
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)to_nearest(x[i] * inverse);
}

/* Truncates, and clamps to 0 to 15. */
static int to_nibble(float value) { return value > 0 ? value < 15 ? (int)value : 15 : 0; }

/* The element of largest magnitude becomes -8, so that the whole range of -8 to 7 is used. */
static void encode_q4_0(const float *x, uint8_t *b) {
    float most = 0, value = 0;
    for (int i = 0; i < 32; i++)
        if (fabsf(x[i]) > most) most = fabsf(value = x[i]);
    float d = value / -8, inverse = d != 0 ? 1 / d : 0;
    put_half(b, d);
    for (int i = 0; i < 16; i++) {
        int low = to_nibble(x[i] * inverse + 8.5f), high = to_nibble(x[i + 16] * inverse + 8.5f);
        b[2 + i] = (uint8_t)(low | high << 4);
    }
}

/* ---- searching ----
 * Loops over 32 elements have no sums, and sums have 8 accumulators that are added in a written order. So the
 * compiler can use vectors of any width and the bits stay the same. */

/* The sum of a[i] b[i]. */
static float dot_32(const float *a, const float *b) {
    float sums[8];
    for (int i = 0; i < 8; i++)
        sums[i] = (a[i] * b[i] + a[i + 8] * b[i + 8]) + (a[i + 16] * b[i + 16] + a[i + 24] * b[i + 24]);
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/* q = x / d, rounded and clamped to -8 to 7. */
static void round_q4_0(const float *x, float d, float *q) {
    float inverse = 1 / d;
    for (int i = 0; i < 32; i++) {
        float number = x[i] * inverse + 8.5f;
        number = number > 0 ? number : 0;
        number = number < 15 ? number : 15;
        q[i] = (float)(int)number - 8;
    }
}

static void put_q4_0(float d, const float *q, uint8_t *b) {
    put_half(b, d);
    for (int i = 0; i < 16; i++) b[2 + i] = (uint8_t)(((int)q[i] + 8) | ((int)q[i + 16] + 8) << 4);
}

/* The scale to start from. Candidates make the element of largest magnitude 6 to 9.5 in magnitude. Beyond the
 * range it is clipped, which can pay off: all other elements then have a finer scale. For given integers q
 * the best scale is sum(x q) / sum(q q), and its squared error is sum(x x) - sum(x q)^2 / sum(q q). So the
 * candidate with the largest sum(x q)^2 / sum(q q) wins. */
static float first_scale_q4_0(const float *x) {
    float most = 0, best = 0, scale = 0, q[32];
    for (int i = 0; i < 32; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    for (int k = 0; k < 30; k++) {
        round_q4_0(x, most / (6 + 0.25f * (float)(k / 2)) * (k % 2 ? -1 : 1), q);
        float products = dot_32(x, q), squares = dot_32(q, q);
        if (products * products > best * squares) {
            best = products * products / squares;
            scale = products / squares;
        }
    }
    return scale;
}

/* Writes the block with the best scale found. It starts from first_scale_q4_0 rounded to float16, then
 * alternates: the best scale for the integers, the best integers for the scale. If no candidate is better,
 * the block of encode_q4_0 stays. It also stays for NaN and infinite values, because comparisons with their
 * errors are false. */
static void search_q4_0(const float *x, uint8_t *b) {
    float errors[32], q[32], scale = first_scale_q4_0(x);
    encode_q4_0(x, b);
    decode_q4_0(b, errors);
    for (int i = 0; i < 32; i++) errors[i] -= x[i];
    float least = dot_32(errors, errors);
    for (int round = 0; round < 3; round++) {
        float d = fb_f16_to_f32(fb_f32_to_f16(scale));
        if (!(fabsf(d) > 0 && fabsf(d) < INFINITY)) return;
        round_q4_0(x, d, q);
        for (int i = 0; i < 32; i++) errors[i] = x[i] - d * q[i];
        float error = dot_32(errors, errors);
        if (error < least) {
            least = error;
            put_q4_0(d, q, b);
        }
        scale = dot_32(x, q) / dot_32(q, q);
    }
}

/* ---- by type ---- */

typedef void (*encode_fn)(const float *values, uint8_t *block);

static const encode_fn encoders[FB_DTYPE_COUNT] = {[FB_Q8_0] = encode_q8_0, [FB_Q4_0] = encode_q4_0};
static const encode_fn searchers[FB_DTYPE_COUNT] = {[FB_Q8_0] = encode_q8_0, [FB_Q4_0] = search_q4_0};

static void encode_floats(fb_dtype dtype, const float *from, int64_t count, uint8_t *to) {
    uint16_t half;
    switch (dtype) {
    case FB_F32:
        memcpy(to, from, (size_t)count * sizeof *from);
        break;
    case FB_F16:
        for (int64_t i = 0; i < count; i++) {
            half = fb_f32_to_f16(from[i]);
            memcpy(to + 2 * i, &half, sizeof half);
        }
        break;
    case FB_BF16:
        for (int64_t i = 0; i < count; i++) {
            half = fb_f32_to_bf16(from[i]);
            memcpy(to + 2 * i, &half, sizeof half);
        }
        break;
    default:
        for (int64_t i = 0; i < count; i++) fb_dtype_set(dtype, to, i, (double)from[i]);
    }
}

static void encode_blocks(const encode_fn *functions, fb_dtype dtype, const float *from, int64_t count,
                          uint8_t *to) {
    if (fb_dtype_is_float(dtype)) {
        encode_floats(dtype, from, count, to);
        return;
    }
    int64_t block = fb_dtype_block(dtype), bytes = fb_dtype_bytes(dtype, block);
    for (int64_t i = 0; i < count; i += block, to += bytes) functions[dtype](from + i, to);
}

void fb_quant_encode(fb_dtype dtype, const float *from, int64_t count, void *to) {
    encode_blocks(encoders, dtype, from, count, to);
}

void fb_quant_search(fb_dtype dtype, const float *from, int64_t count, void *to) {
    encode_blocks(searchers, dtype, from, count, to);
}
