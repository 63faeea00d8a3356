/* A GPU as a device: its stream, workspace and weights; executors on it. */
#ifndef FB_BACKEND_CUDA_HOST_HOST_H
#define FB_BACKEND_CUDA_HOST_HOST_H

#include "backend/cuda/gpu.h"
#include "backend/cuda/step.h"
#include "backend/frame.h"

/* What ops need besides their values: the same memory for all executors, one op after the other. A larger one
 * replaces it; recorded graphs hold its address, so that the old one stays until its last executor is closed.
 */
typedef struct fb_cuda_workspace {
    int64_t users, bytes;
    uint8_t *memory;
} fb_cuda_workspace;

typedef struct fb_cuda_device {
    fb_device base;
    fb_gpu *gpu;
    const char *isa;
    fb_cuda_workspace *workspace; /* the largest so far, of which the device is a user; or NULL */
} fb_cuda_device;

typedef struct fb_cuda_executor {
    fb_executor base;
    fb_gpu *gpu; /* the device's */
    fb_cuda_context cx;
    fb_cuda_workspace *workspace;
    uint8_t *memory;      /* on the device: values, state, frequencies */
    fb_cuda_state *state; /* on the device */
    /* On the host, where copies do not wait: the step's rows on their way, and results. */
    fb_cuda_state *sent;
    uint8_t *results;   /* hidden states, logits or the best token, as the device has them */
    float *hidden;      /* [chunk, hidden] */
    fb_cuda_list *list; /* the layers of a decode step, if one kernel does them all … */
    void *listed;       /* … on the device */
    fb_gpu_graph *graph;
    fb_trace recorded; /* what one launch of the graph runs */
    fb_trace *trace;   /* of the step that runs */
    /* The state on the device is that of a decode step of this cache, position and token; NULL: of none. */
    const uint8_t *next_cache;
    int64_t next_position;
    int32_t next_token;
    int32_t marks; /* of the step that is profiled */
} fb_cuda_executor;

/* Weights (weights.c). */
fb_status fb_cuda_load(fb_device *device, const fb_bound *file, int32_t threads, fb_loaded **out,
                       fb_error *err);
void fb_cuda_unload(fb_device *device, fb_loaded *loaded);

/* Executors (executor.c). */
fb_status fb_cuda_open(fb_device *device, const fb_bound *bound, const fb_executor_options *options,
                       fb_executor **out, fb_error *err);
void fb_cuda_close(fb_executor *executor);
const char *fb_cuda_step_why_not(fb_device *device, const fb_bound *bound,
                                 const fb_executor_options *options);
void fb_cuda_workspace_leave(fb_gpu *gpu, fb_cuda_workspace *workspace);
fb_status fb_cuda_cache_take(fb_executor *executor, uint8_t **out, fb_error *err);
void fb_cuda_cache_give(fb_executor *executor, uint8_t *memory);
fb_status fb_cuda_cache_copy(fb_executor *executor, uint8_t *to, const uint8_t *from, int64_t position,
                             fb_error *err);

/* Steps (run.c). */
fb_status fb_cuda_run(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err);

#endif
