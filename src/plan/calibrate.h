/* Measures a machine. Every figure is the best of several short runs: it shows what the machine can do, not
 * what another process left of it. */
#ifndef FB_PLAN_CALIBRATE_H
#define FB_PLAN_CALIBRATE_H

#include "base/pool.h"
#include "plan/machine.h"

#define FB_CALIBRATE_RUNS     15
#define FB_CALIBRATE_STREAMED (16 << 20) /* more bytes than a core's own cache holds */

/* Measures bandwidth and latency. */
fb_status fb_calibrate_bandwidth(fb_machine *machine, fb_pool *pool, fb_error *err);
/* Measures barrier and foreign. Keeps the lower of the present and the new value. */
fb_status fb_calibrate_barriers(fb_machine *machine, fb_pool *pool, fb_error *err);

#endif
