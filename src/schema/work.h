/* How long a schema may take to compile: everything that is done for it counts in one sum. A schema comes
 * from anyone, and small ones can ask for a lot: alternatives that each look at a long list, or patterns with
 * many states. */
#ifndef FB_SCHEMA_WORK_H
#define FB_SCHEMA_WORK_H

#include "base/status.h"

/* A step takes 1 to 3 ns: an element of a set, a byte of a key. So this is at most some 0.2 s. */
#define FB_SCHEMA_STEPS 80000000
#define FB_VALUE_STEPS  4 /* to go on to the next value of JSON */

typedef struct fb_work {
    int64_t steps; /* so far */
} fb_work;

static inline fb_status fb_work_add(fb_work *work, int64_t steps, fb_error *err) {
    work->steps += steps;
    if (work->steps <= FB_SCHEMA_STEPS) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "schema: too large: it takes more than %d steps to compile",
                   FB_SCHEMA_STEPS);
}

#endif
