#include "fuse/tolerance.h"

#include <math.h>

#define STEPS     4.0
#define SUM_STEPS 12.0

static double unit(fb_dtype act) { return act == FB_F16 ? 0x1p-11 : act == FB_BF16 ? 0x1p-8 : 0x1p-24; }

double fb_fuse_tolerance(fb_dtype act, int64_t layer) {
    double steps = act == FB_F16 || act == FB_BF16 ? STEPS : SUM_STEPS;
    return 2 * steps * unit(act) * sqrt(1.0 + (double)layer);
}
