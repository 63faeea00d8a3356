/* Measuring a machine, in parts. Every figure is the best of several short runs: what the machine can do, not
 * what another process left of it. */
#ifndef FB_PLAN_CALIBRATE_H
#define FB_PLAN_CALIBRATE_H

#include "base/pool.h"
#include "plan/machine.h"

#define FB_CALIBRATE_RUNS     15
#define FB_CALIBRATE_STREAMED (16 << 20) /* bytes that are beyond a core's own cache */

/* bandwidth, latency */
fb_status fb_calibrate_bandwidth(fb_machine *machine, fb_pool *pool, fb_error *err);
/* barrier, foreign: the lowest of what is there and what is measured now */
fb_status fb_calibrate_barriers(fb_machine *machine, fb_pool *pool, fb_error *err);

#endif
