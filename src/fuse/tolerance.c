#include "fuse/tolerance.h"

#include <math.h>

/* Of a 16-bit run against the truth, verify.c measures below 2.5. In float32 the sums of K terms in V partial
 * sums round by about sqrt(K / V) u / 2, which 12 covers for K up to 4608 with vectors of eight. The largest
 * differences seen on the goldens are a fifth of the tolerance in float32 and a third in 16 bits. */
#define STEPS     4.0
#define SUM_STEPS 12.0

static double unit(fb_dtype act) { return act == FB_F16 ? 0x1p-11 : act == FB_BF16 ? 0x1p-8 : 0x1p-24; }

double fb_fuse_tolerance(fb_dtype act, bool quantizes, int64_t layer) {
    if (quantizes) act = FB_BF16;
    double steps = act == FB_F16 || act == FB_BF16 ? STEPS : SUM_STEPS;
    return 2 * steps * unit(act) * sqrt(1.0 + (double)layer);
}
