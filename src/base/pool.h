/* A pool of threads that run one function together ("lanes"), with a barrier between its phases.
 *
 * Within a run, lanes wait for each other by spinning, because a phase takes microseconds; a lane that has
 * waited long (more lanes than cores, or a descheduled peer) sleeps in the kernel instead. Between runs the
 * workers spin for some tens of microseconds, long enough for the next token, and then sleep. */
#ifndef FB_BASE_POOL_H
#define FB_BASE_POOL_H

#include <stdatomic.h>

#include "base/status.h"

typedef struct fb_pool fb_pool;

/* Function of one lane: `lane` is 0 … lanes - 1 of the run; the caller of fb_pool_run is lane 0. */
typedef void (*fb_pool_fn)(void *arg, int32_t lane);

#define FB_POOL_MAX_LANES 256

fb_status fb_pool_create(int32_t lanes, fb_pool **out, fb_error *err);
void fb_pool_free(fb_pool *pool);

/* Threads that there are, the caller of fb_pool_run included; and more of them: also in a process that was
 * forked, and has none of its parent's. */
int32_t fb_pool_lanes(const fb_pool *pool);
fb_status fb_pool_grow(fb_pool *pool, int32_t lanes, fb_error *err);

/* Runs `function` on the first `lanes` lanes and returns when all have returned. One run at a time: whoever
 * shares a pool takes turns (base/turn.h). */
void fb_pool_run(fb_pool *pool, int32_t lanes, fb_pool_fn function, void *arg);

/* Has a worker call `idle(arg)` every few microseconds while it spins between two runs. The flag is set while
 * a worker will call it at least once more. */
void fb_pool_on_idle(fb_pool *pool, void (*idle)(void *arg), void *arg);
const atomic_bool *fb_pool_watching(const fb_pool *pool);

/* Waits until every lane of the current run is here. */
void fb_pool_barrier(fb_pool *pool);

/* Cores that this process may use. */
int32_t fb_pool_cores(void);

/* The part [begin, end) of `count` items, in whole multiples of `grain`, that lane `lane` of `lanes` does. */
static inline void fb_pool_share(int64_t count, int64_t grain, int32_t lane, int32_t lanes, int64_t *begin,
                                 int64_t *end) {
    int64_t grains = (count + grain - 1) / grain;
    int64_t first = grains * lane / lanes * grain, last = grains * (lane + 1) / lanes * grain;
    *begin = first < count ? first : count;
    *end = last < count ? last : count;
}

#endif
