/* The best row of a head by its screen (base/screen.h): products with the copy in 8 bits, and in full only
 * the rows whose bounds reach the best one's. Those are summed as without a screen, so that the answer has
 * the same bits. */
#ifndef FB_BACKEND_CPU_SCREEN_H
#define FB_BACKEND_CPU_SCREEN_H

#include "backend/cpu/packed.h"
#include "base/screen.h"

/* Scores from which on two float16 could both be infinite, and then the first of them wins: left to those who
 * read all rows. So are blocks of which more than one row in SCREEN_FEW can win. */
#define SCREEN_LARGEST 3e4f
#define SCREEN_FEW     16
#define SCREEN_LEAST   1e-10f /* of |x| */

/* An x as screens see it: quantised, and the number of which a row's norm, times it, bounds how far the
 * product of both copies can be from the sum that is stored. */
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

/* Sums of k products round k times at most, here and there, and so do the norms: 2^-24 each of what |x| and
 * the row's norm multiply to, of which this is several times as much. Squares that underflow are little
 * beside that, unless all of x is: then the bound is NaN. */
FB_INLINE screened screen_of(const fb_screen *s, const float *x, int64_t k, fb_q8 *room) {
    float norm, error, rounding = (float)(k + 64) * 0x1p-22f;
    quantize_row(x, k, room);
    screen_norms(x, k, room, &norm, &error);
    bool known = norm > SCREEN_LEAST;
    return (screened){room, known ? 1.01f * (s->error * norm + error) + rounding * norm : NAN};
}

/* What rows n + i … reach at most. */
FB_INLINE vf screen_high(const fb_screen *s, screened x, int64_t n, int64_t i, int64_t ns,
                         const float *sums) {
    return vf_get_n(FB_F32, sums, i, ns, -INFINITY) + x.bound * vf_get_n(FB_F32, s->norm + n, i, ns, 0);
}

/* What a row must reach, at least, to be the best of those from n on; NaN: nothing is known. `sums` are the
 * copies' products, none or all of them NaN; `best` is what earlier rows reached. */
FB_INLINE float screen_limit(const fb_screen *s, screened x, int64_t n, int64_t ns, const float *sums,
                             float best, fb_dtype act) {
    vf floor = vf_set1(best);
    for (int64_t i = 0; i < ns; i += VW)
        floor = vf_max(floor, vf_get_n(FB_F32, sums, i, ns, -INFINITY) -
                                  x.bound * vf_get_n(FB_F32, s->norm + n, i, ns, 0));
    float least = vf_max_of(floor), size = fabsf(least);
    if (!(size < (act == FB_F16 ? SCREEN_LARGEST : INFINITY))) return NAN;
    /* Sums that differ may be stored as equals, and then the first of them is the best: two that are further
     * apart than bfloat16 numbers cannot be. */
    return act == FB_F32 ? least : least - (0x1p-6f * size + 0x1p-20f);
}

#endif
