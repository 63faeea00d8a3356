/* A screen: a small copy of a float matrix that tells which rows can have the largest product with some x, so
 * that only those few need to be read in full.
 *
 * The copy is Q8_0, half of float16's bytes. For a row w with the copy c, and an x whose quantised form is y,
 * Cauchy and Schwarz give
 *
 *     |w . x - c . y| <= |w - c| |x| + |c| |x - y| <= (error |x| + |x - y|) norm
 *
 * with norm >= |c| and error * norm >= |w - c|. A row whose c . y plus this bound is below another's c . y
 * minus that one's bound cannot win. Sums that round add a little to the bound (backend/cpu/screen.h).
 *
 * A model says that there can be one; the first backend that wants to read it fills it. */
#ifndef FB_BASE_SCREEN_H
#define FB_BASE_SCREEN_H

#include <pthread.h>

#include "base/tensor.h"

typedef struct fb_screen {
    fb_weight copy;    /* Q8_0, packed */
    float *norm;       /* [rows] */
    float *difference; /* [rows]: |w - c|, of which `error` is made */
    float error;
    void *memory;
    pthread_mutex_t lock;
    bool tried, ready; /* ready: what is above is filled in */
} fb_screen;

/* Columns at most: for more, sums of squares would round more than is allowed for. */
#define FB_SCREEN_COLS 32768

/* Whether a weight can have a screen: of floats of 16 or 32 bits, in whole blocks. */
bool fb_screen_fits(const fb_weight *weight);

/* A screen of the weight that is not filled yet, and its end. */
void fb_screen_start(fb_screen *screen, const fb_weight *weight);
void fb_screen_end(fb_screen *screen);

/* Takes memory and calls `fill`, which puts all rows into copy, norm and difference, unless somebody did;
 * several may ask at a time. The screen is ready then, unless there is no memory, or a weight is not finite
 * or too large for Q8_0. */
void fb_screen_fill(fb_screen *screen, void (*fill)(void *arg), void *arg);

#endif
