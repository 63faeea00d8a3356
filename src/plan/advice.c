/* Whether a model's weights would be read faster in another type. */
#include "base/dtype.h"
#include "fusebox_tools.h"

/* Types that are worth a line read at least so much less. */
#define WORTH 1.5

/* Bytes of a weight of this type in a step's traffic. */
static double traffic(fb_dtype dtype, double weights) {
    return weights / (double)fb_dtype_block(dtype) * (double)fb_dtype_bytes(dtype, fb_dtype_block(dtype));
}

/* The type to take instead; the same: there is none. What a file gave up for size is not asked for again. */
static fb_dtype instead(fb_dtype dtype) { return fb_dtype_is_float(dtype) ? FB_Q8_0 : dtype; }

bool fb_faster_type(const fb_model *model, const char *isa, fb_dtype *from, fb_dtype *to, double *bytes) {
    (void)isa; /* no kernel reads more than the file has */
    double now = 0, then = 0, most = 0;
    fb_dtype dtype;
    int64_t weights, stored;
    for (int i = 0; fb_model_weights(model, i, &dtype, &weights, &stored); i++) {
        double before = traffic(dtype, (double)weights);
        double after = traffic(instead(dtype), (double)weights);
        now += before;
        then += after;
        if (before - after <= most) continue;
        most = before - after;
        *from = dtype;
        *to = instead(dtype);
    }
    *bytes = now > 0 ? then / now : 1;
    return most > 0 && now > WORTH * then;
}
