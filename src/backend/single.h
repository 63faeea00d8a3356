/* One program on a device, with one sequence: for programs that are no model's, as calibration and tests have
 * them. */
#ifndef FB_BACKEND_SINGLE_H
#define FB_BACKEND_SINGLE_H

#include "backend/backend.h"

typedef struct fb_single {
    fb_device *device;
    fb_loaded *loaded;
    fb_executor *executor;
    fb_sequence sequence;
    fb_trace trace;
} fb_single;

/* `file`: the program with weights as a file has them; both must outlive it. */
fb_status fb_single_open(const fb_backend *backend, int32_t index, const fb_bound *file,
                         const fb_executor_options *options, fb_single *out, fb_error *err);
void fb_single_close(fb_single *single);

/* A step of `count` rows of the sequence, the logits of whose last `wanted` go to `logits`, or the best
 * tokens to `best`. */
fb_status fb_single_run(fb_single *single, const fb_row *rows, int64_t count, int64_t wanted, float *logits,
                        int32_t *best, fb_error *err);

#endif
