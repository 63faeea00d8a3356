/* The CPU as a device: its threads, their workspace, and weights in the layout of the kernels. */
#ifndef FB_BACKEND_CPU_HOST_HOST_H
#define FB_BACKEND_CPU_HOST_HOST_H

#include "backend/cpu/host/isa.h"
#include "backend/frame.h"

typedef struct fb_cpu_device {
    fb_device base;
    fb_pool *pool; /* has as many threads as the largest number that an executor asked for */
    void *workspace;
    float *scratch;         /* [scratch_threads, and one more that they share][scratch_floats] */
    int64_t scratch_floats; /* floats of one thread */
    int32_t scratch_threads;
} fb_cpu_device;

/* The number of threads that `threads` of the options stands for (0: all cores). The pool has at least that
 * many afterwards. */
fb_status fb_cpu_threads(fb_cpu_device *device, int32_t threads, int32_t *out, fb_error *err);

/* Weights (weights.c). */
fb_status fb_cpu_load(fb_device *device, const fb_bound *file, int32_t threads, fb_loaded **out,
                      fb_error *err);
void fb_cpu_unload(fb_device *device, fb_loaded *loaded);
fb_status fb_cpu_screen(fb_device *device, const fb_bound *bound, int32_t threads, const char *isa,
                        bool *ready);

/* Executors (executor.c). */
fb_status fb_cpu_open(fb_device *device, const fb_bound *bound, const fb_executor_options *options,
                      fb_executor **out, fb_error *err);
void fb_cpu_close(fb_executor *executor);
fb_status fb_cpu_run(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err);
const char *fb_cpu_variant(const fb_executor *executor);
int32_t fb_cpu_thread_count(const fb_executor *executor);

/* Caches (cache.c). */
fb_status fb_cpu_cache_take(fb_executor *executor, int64_t count, uint8_t **out, fb_error *err);
void fb_cpu_cache_give(fb_device *device, uint8_t *memory);
fb_status fb_cpu_cache_copy(fb_executor *executor, uint8_t *to, const uint8_t *from, int64_t position,
                            fb_error *err);

#endif
