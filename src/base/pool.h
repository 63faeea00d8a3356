/* A pool of threads (workers) that run one function together. A barrier separates the function's phases.
 *
 * Within a run, workers wait for each other by spinning, because a phase takes microseconds. A worker that
 * has waited long sleeps in the kernel instead; that happens with more workers than cores, or when another
 * worker is descheduled. Between runs the workers spin for about 100 us, long enough for the
 * next token, and then sleep. */
#ifndef FB_BASE_POOL_H
#define FB_BASE_POOL_H

#include <stdatomic.h>

#include "base/status.h"

typedef struct fb_pool fb_pool;

/* The function that each worker runs. `worker` counts from 0; the caller of fb_pool_run is worker 0. */
typedef void (*fb_pool_fn)(void *arg, int32_t worker);

#define FB_POOL_MAX_WORKERS 256

fb_status fb_pool_create(int32_t workers, fb_pool **out, fb_error *err);
void fb_pool_free(fb_pool *pool);

/* The number of threads, the caller of fb_pool_run included. */
int32_t fb_pool_workers(const fb_pool *pool);
/* Adds threads. In the child of fork(2) it starts them again. */
fb_status fb_pool_grow(fb_pool *pool, int32_t workers, fb_error *err);

/* Runs `function` on workers 0 to workers - 1 and returns when all have returned. Only one run at a time:
 * users that share a pool take turns (base/turn.h). */
void fb_pool_run(fb_pool *pool, int32_t workers, fb_pool_fn function, void *arg);

/* Makes worker 1 call `idle(arg)` every few microseconds while it spins between two runs. */
void fb_pool_on_idle(fb_pool *pool, void (*idle)(void *arg), void *arg);
/* True while worker 1 will call `idle` at least once more. */
const atomic_bool *fb_pool_watching(const fb_pool *pool);

/* Waits until every worker of the current run has called this. */
void fb_pool_barrier(fb_pool *pool);

/* Cores that this process may use. */
int32_t fb_pool_cores(void);

/* The items [begin, end) of `count` that belong to worker `worker` of `workers`. Parts begin at multiples of
 * `grain`. */
static inline void fb_pool_share(int64_t count, int64_t grain, int32_t worker, int32_t workers,
                                 int64_t *begin, int64_t *end) {
    int64_t grains = (count + grain - 1) / grain;
    int64_t first = grains * worker / workers * grain, last = grains * (worker + 1) / workers * grain;
    *begin = first < count ? first : count;
    *end = last < count ? last : count;
}

#endif
