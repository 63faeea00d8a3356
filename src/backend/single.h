/* One program on a device with one sequence. For programs that do not come from a model: calibration and
 * tests. */
#ifndef FB_BACKEND_SINGLE_H
#define FB_BACKEND_SINGLE_H

#include "backend/sequence.h"

typedef struct fb_single {
    fb_device *device;
    fb_loaded *loaded;
    fb_executor *executor;
    fb_sequence sequence;
    fb_trace trace;
} fb_single;

/* `file`: the program with weights in a file's layout. Both must outlive this. */
fb_status fb_single_open(const fb_backend *backend, int32_t index, const fb_bound *file,
                         const fb_executor_options *options, fb_single *out, fb_error *err);
void fb_single_close(fb_single *single);

/* Runs a step of `count` rows. The last `wanted` rows write their logits to `logits` or their best tokens to
 * `best`. */
fb_status fb_single_run(fb_single *single, const fb_row *rows, int64_t count, int64_t wanted, float *logits,
                        int32_t *best, fb_error *err);

#endif
