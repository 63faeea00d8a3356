/* A screen: a small copy of a float matrix that tells which rows can have the largest product with a vector
 * x. Only those few rows need to be read in full. The copy is Q8_0, half the bytes of float16.
 *
 * For a row w with copy c, and an x with quantised form y, the Cauchy-Schwarz inequality gives
 *
 *     |w . x - c . y| <= |w - c| |x| + |c| |x - y| <= (error |x| + |x - y|) norm
 *
 * with norm >= |c| and error * norm >= |w - c|. A row cannot win if its c . y plus its bound is below another
 * row's c . y minus that row's bound. The rounding of the sums adds a little to the bound
 * (backend/cpu/screen.h).
 *
 * The model says which weight can have a screen. The first backend that wants it fills it. */
#ifndef FB_BASE_SCREEN_H
#define FB_BASE_SCREEN_H

#include <pthread.h>

#include "base/tensor.h"

typedef struct fb_screen {
    fb_weight copy;    /* Q8_0, packed */
    float *norm;       /* [rows] */
    float *difference; /* [rows]: |w - c|, from which `error` is computed */
    float error;
    void *memory;
    pthread_mutex_t lock;
    bool tried, ready; /* ready: all fields above are valid */
} fb_screen;

/* The most columns. With more, sums of squares would round by more than the bound allows for. */
#define FB_SCREEN_COLS 32768

/* Whether a weight can have a screen: it has floats of 16 or 32 bits, and its rows are whole blocks. */
bool fb_screen_fits(const fb_weight *weight);

/* Makes an empty screen for the weight; and ends it. */
void fb_screen_start(fb_screen *screen, const fb_weight *weight);
void fb_screen_end(fb_screen *screen);

/* Allocates memory and calls `fill`, which writes copy, norm and difference for all rows. Does nothing if
 * that was tried before. Several threads may call it at once. Afterwards the screen is ready, unless memory
 * is short, or a weight is not finite or too large for Q8_0. */
void fb_screen_fill(fb_screen *screen, void (*fill)(void *arg), void *arg);

#endif
