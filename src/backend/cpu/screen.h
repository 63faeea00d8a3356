/* Finds the best row of a head with its screen (base/screen.h). The copy in 8 bits is multiplied first. Only
 * rows whose bound reaches the best one are computed in full. Their sums are those computed without a screen,
 * so the answer has the same bits. */
#ifndef FB_BACKEND_CPU_SCREEN_H
#define FB_BACKEND_CPU_SCREEN_H

#include "backend/cpu/packed.h"
#include "base/screen.h"

/* The screen gives up in two cases, and all rows are read. With scores above SCREEN_LARGEST two float16 could
 * both be infinite, and then the first wins. And it does not pay if more than one row in SCREEN_FEW of a
 * block can win. */
#define SCREEN_LARGEST 3e4f
#define SCREEN_FEW     16
#define SCREEN_LEAST   1e-10f /* smallest |x| for which the bound holds */

/* An x as the screen uses it: quantised, and a bound. A row's norm times `bound` limits how far the product
 * of the two quantised copies can be from the stored sum. */
typedef struct screened {
    const fb_q8 *q;
    float bound;
} screened;

/* |x| and |x - q|. */
FB_INLINE void screen_norms(const float *x, int64_t k, const fb_q8 *q, float *norm, float *error) {
    typedef int8_t bytes __attribute__((vector_size(VW)));
    vf squares = vf_set1(0), differences = vf_set1(0);
    for (int64_t b = 0; b < k / 32; b++)
        for (int i = 0; i < 32; i += VW) {
            bytes raw;
            memcpy(&raw, q[b].q + i, sizeof raw);
            vf v = vf_load_f32(x + 32 * b + i), d = v - __builtin_convertvector(raw, vf) * q[b].scale;
            squares += v * v;
            differences += d * d;
        }
    *norm = sqrtf(vf_sum(squares));
    *error = sqrtf(vf_sum(differences));
}

/* Computes the bound. A sum of k products rounds at most k times, by at most 2^-24 of |x| times the row's
 * norm each time. This happens in both sums and in the norms; the rounding term is several times as large.
 * Squares that underflow are negligible, unless all of x is tiny: then the bound is NaN. */
FB_INLINE screened screen_of(const fb_screen *s, const float *x, int64_t k, fb_q8 *blocks) {
    float norm, error, rounding = (float)(k + 64) * 0x1p-22f;
    quantize_row(x, k, blocks);
    screen_norms(x, k, blocks, &norm, &error);
    bool known = norm > SCREEN_LEAST;
    return (screened){blocks, known ? 1.01f * (s->error * norm + error) + rounding * norm : NAN};
}

/* Upper bounds of the scores of rows n + i … */
FB_INLINE vf screen_high(const fb_screen *s, screened x, int64_t n, int64_t i, int64_t ns,
                         const float *sums) {
    return vf_get_n(FB_F32, sums, i, ns, -INFINITY) + x.bound * vf_get_n(FB_F32, s->norm + n, i, ns, 0);
}

/* The score that a row must be able to reach to be the best of those from n on; NaN: unknown. `sums` holds
 * the products of the quantised copies, all or none of them NaN. `best` is the best score of earlier rows. */
FB_INLINE float screen_limit(const fb_screen *s, screened x, int64_t n, int64_t ns, const float *sums,
                             float best, fb_dtype act) {
    vf floor = vf_set1(best);
    for (int64_t i = 0; i < ns; i += VW)
        floor = vf_max(floor, vf_get_n(FB_F32, sums, i, ns, -INFINITY) -
                                  x.bound * vf_get_n(FB_F32, s->norm + n, i, ns, 0));
    float least = vf_max_of(floor), size = fabsf(least);
    if (!(size < (act == FB_F16 ? SCREEN_LARGEST : INFINITY))) return NAN;
    /* Different sums may be equal once stored, and then the first of them is the best. Sums further apart
     * than neighbouring bfloat16 numbers cannot become equal. */
    return act == FB_F32 ? least : least - (0x1p-6f * size + 0x1p-20f);
}

#endif
