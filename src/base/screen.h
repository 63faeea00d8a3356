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
 * A model has the room for it; whoever reads it first fills it. */
#ifndef FB_BASE_SCREEN_H
#define FB_BASE_SCREEN_H

#include <pthread.h>

#include "base/tensor.h"

typedef struct fb_screen {
    fb_weight copy;    /* Q8_0, packed */
    float *norm;       /* [rows] */
    float *difference; /* [rows]: |w - c|, of which `error` is made */
    float error;
    pthread_mutex_t lock;
    bool tried, ready; /* ready: what is above is filled in */
} fb_screen;

/* Whether a weight can have a screen: of floats, in whole blocks. */
bool fb_screen_fits(const fb_weight *weight);

/* Bytes that the screen of a matrix needs. */
int64_t fb_screen_bytes(int64_t rows, int64_t cols);

/* A screen that is not filled yet, in `memory`, which is aligned to 64 bytes; and its end. */
void fb_screen_start(fb_screen *screen, int64_t rows, int64_t cols, void *memory);
void fb_screen_end(fb_screen *screen);

/* Calls `fill`, which puts all rows into copy, norm and difference, unless somebody did; several may ask at a
 * time. The screen is ready then, unless a weight is not finite or too large for Q8_0. */
void fb_screen_fill(fb_screen *screen, void (*fill)(void *arg), void *arg);

#endif
