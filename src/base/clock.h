/* Monotonic time. */
#ifndef FB_BASE_CLOCK_H
#define FB_BASE_CLOCK_H

#include <time.h>

static inline double fb_now(void) { /* seconds */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
