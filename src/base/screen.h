/* A screen: a small copy of a float matrix that tells which rows can have the largest product with some x, so
 * that only those few need to be read in full.
 *
 * The copy is Q8_0, half of float16's bytes. For a row w with the copy c, and an x whose quantised form is y,
 * Cauchy and Schwarz give
 *
 *     |w . x - c . y| <= |w - c| |x| + |c| |x - y| <= (error |x| + |x - y|) norm
 *
 * with norm >= |c| and error * norm >= |w - c|. A row whose c . y plus this bound is below another's c . y
 * minus that one's bound cannot win. Sums that round add a little to the bound (backend/cpu/screen.h). */
#ifndef FB_BASE_SCREEN_H
#define FB_BASE_SCREEN_H

#include "base/tensor.h"

typedef struct fb_screen {
    fb_weight copy;    /* Q8_0, packed */
    const float *norm; /* [rows] */
    float error;
} fb_screen;

/* Whether a weight can have a screen: of floats, in whole blocks. */
bool fb_screen_fits(const fb_weight *weight);

/* Bytes that the screen of a matrix needs. */
int64_t fb_screen_bytes(int64_t rows, int64_t cols);

/* Fills `memory`, which is aligned to 64 bytes, and `screen`, which then points into it. `row` has room for
 * `cols` floats. False: a weight is not finite, or too large for Q8_0, and there is no bound. */
bool fb_screen_fill(const fb_weight *weight, void *memory, float *row, fb_screen *screen);

#endif
