#include "base/screen.h"

#include <math.h>

#include "base/pack.h"

/* Bounds are sums of many squares in float: this much more than they are, so that they are never less. */
#define ROUNDING (1 + 0x1p-12)
/* The relative error is that of the worst row, within these: the norm of a row that is worse is set so high
 * that the bound holds for it, too. Rows of normally distributed weights have 0.0055. */
#define LEAST_ERROR   0x1p-12
#define LARGEST_ERROR 0x1p-6
/* Norms from which on a bound could overflow; and what is added to each, because squares of less underflow.
 */
#define TOO_LARGE 1e18f
#define TINY      1e-12

bool fb_screen_fits(const fb_weight *w) {
    return fb_dtype_is_float(w->dtype) && w->cols > 0 && w->cols % 32 == 0;
}

static int64_t copy_bytes(int64_t rows, int64_t cols) {
    return (fb_pack_bytes(FB_Q8_0, rows, cols) + 63) / 64 * 64;
}

int64_t fb_screen_bytes(int64_t rows, int64_t cols) {
    return copy_bytes(rows, cols) + 2 * rows * (int64_t)sizeof(float);
}

void fb_screen_start(fb_screen *s, int64_t rows, int64_t cols, void *memory) {
    uint8_t *data = memory;
    *s = (fb_screen){0};
    s->copy = (fb_weight){.data = data, .dtype = FB_Q8_0, .rows = rows, .cols = cols, .packed = true};
    s->norm = (float *)(void *)(data + copy_bytes(rows, cols));
    s->difference = s->norm + rows;
    pthread_mutex_init(&s->lock, NULL);
}

void fb_screen_end(fb_screen *s) {
    if (s) pthread_mutex_destroy(&s->lock);
}

/* One relative error for all rows. False: there is no bound. */
static bool bound_rows(fb_screen *s) {
    double worst = LEAST_ERROR;
    for (int64_t i = 0; i < s->copy.rows; i++) {
        float norm = s->norm[i], difference = s->difference[i];
        if (!(norm < TOO_LARGE) || !(difference < TOO_LARGE)) return false;
        if ((double)difference <= LARGEST_ERROR * (double)norm)
            worst = fmax(worst, (double)difference / (double)norm);
    }
    for (int64_t i = 0; i < s->copy.rows; i++)
        s->norm[i] = (float)(ROUNDING * fmax((double)s->norm[i], (double)s->difference[i] / worst) + TINY);
    s->error = (float)(ROUNDING * worst);
    return true;
}

void fb_screen_fill(fb_screen *s, void (*fill)(void *arg), void *arg) {
    pthread_mutex_lock(&s->lock);
    if (!s->tried) {
        fill(arg);
        s->ready = bound_rows(s);
        s->tried = true;
    }
    pthread_mutex_unlock(&s->lock);
}
