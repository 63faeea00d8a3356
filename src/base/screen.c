#include "base/screen.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "base/pack.h"

/* Norms are sums of many squares in float. This factor makes up for their rounding, so that a bound is never
 * too small. */
#define ROUNDING (1 + 0x1p-12)
/* The relative error of the worst row, clamped to this range. A row that is worse than LARGEST_ERROR gets a
 * larger norm, so that the bound holds for it too. Rows of normally distributed weights have an error of
 * 0.0055. */
#define LEAST_ERROR   0x1p-12
#define LARGEST_ERROR 0x1p-6
/* A norm of TOO_LARGE or more could make a bound overflow. TINY is added to each norm, because squares of
 * smaller numbers underflow. */
#define TOO_LARGE 1e18f
#define TINY      1e-12

#define LARGE_PAGE ((int64_t)2 << 20)

bool fb_screen_fits(const fb_weight *w) {
    bool dtype = w->dtype == FB_F32 || w->dtype == FB_F16 || w->dtype == FB_BF16;
    return dtype && w->cols > 0 && w->cols % 32 == 0 && w->cols <= FB_SCREEN_COLS;
}

void fb_screen_start(fb_screen *s, const fb_weight *w) {
    *s = (fb_screen){0};
    s->copy = (fb_weight){.dtype = FB_Q8_0, .rows = w->rows, .cols = w->cols, .packed = true};
    pthread_mutex_init(&s->lock, NULL);
}

void fb_screen_end(fb_screen *s) {
    if (!s) return;
    free(s->memory);
    pthread_mutex_destroy(&s->lock);
}

/* Uses large pages if the system has them and the screen fills at least one: a head of 77 MB is then read in
 * 1.3 ms instead of 1.9 ms. */
static bool take_memory(fb_screen *s) {
    int64_t rows = s->copy.rows, copy = (fb_pack_bytes(FB_Q8_0, rows, s->copy.cols) + 63) / 64 * 64;
    int64_t bytes = copy + 2 * rows * (int64_t)sizeof(float), page = bytes < LARGE_PAGE ? 64 : LARGE_PAGE;
    if (fb_memory_take("screen", bytes + page, &s->memory, NULL) != FB_OK) return false;
    uint8_t *data = (uint8_t *)s->memory + (-(uintptr_t)s->memory & (uintptr_t)(page - 1));
    if (page == LARGE_PAGE) (void)madvise(data, (size_t)bytes, MADV_HUGEPAGE);
    s->copy.data = data;
    s->norm = (float *)(void *)(data + copy);
    s->difference = s->norm + rows;
    return true;
}

/* Finds one relative error for all rows. False: no bound exists. */
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
    if (!s->tried && take_memory(s)) {
        s->tried = true;
        fill(arg);
        s->ready = bound_rows(s);
    }
    pthread_mutex_unlock(&s->lock);
}
