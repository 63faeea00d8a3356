/* A GPU as a device: its stream, workspace and weights; executors on it. */
#ifndef FB_BACKEND_CUDA_HOST_HOST_H
#define FB_BACKEND_CUDA_HOST_HOST_H

#include "backend/cuda/gpu.h"
#include "backend/cuda/persistent.h"
#include "backend/cuda/state.h"
#include "backend/frame.h"

/* Memory for what ops need besides their values (fb_cuda_context.scratch). All executors share it, because
 * one op runs at a time. A larger workspace replaces it. Recorded graphs hold its address, so the old one
 * stays until its last executor is closed. */
typedef struct fb_cuda_workspace {
    int64_t users, bytes;
    uint8_t *memory;
} fb_cuda_workspace;

typedef struct fb_cuda_device {
    fb_device base;
    fb_gpu *gpu;
    const char *isa;
    fb_cuda_workspace *workspace; /* the largest so far, or NULL; the device counts as a user */
} fb_cuda_device;

typedef struct fb_cuda_executor {
    fb_executor base;
    fb_gpu *gpu; /* the device's */
    fb_cuda_context cx;
    fb_cuda_workspace *workspace;
    uint8_t *memory;      /* on the device: values, state, frequencies */
    fb_cuda_state *state; /* on the device */
    /* Page-locked host memory: the step's rows before they are uploaded, and results. */
    fb_cuda_state *sent;
    uint8_t *results;        /* hidden states, logits or the best token, as the device has them */
    float *hidden;           /* [chunk, hidden] */
    fb_cuda_work_list *list; /* of the persistent kernel, or NULL */
    void *listed;            /* the image of the list on the device */
    fb_gpu_graph *graph;
    fb_trace recorded; /* the ops that one launch of the graph runs */
    fb_trace *trace;   /* of the running step */
    /* The state on the device is ready for a step with this cache, position and token; NULL: for none. */
    const uint8_t *next_cache;
    int64_t next_position;
    int32_t next_token;
    int32_t marks; /* of the profiled step */
} fb_cuda_executor;

/* Weights (weights.c). */
fb_status fb_cuda_load(fb_device *device, const fb_bound *file, int32_t threads, fb_loaded **out,
                       fb_error *err);
void fb_cuda_unload(fb_device *device, fb_loaded *loaded);

/* Executors (executor.c). */
fb_status fb_cuda_open(fb_device *device, const fb_bound *bound, const fb_executor_options *options,
                       fb_executor **out, fb_error *err);
void fb_cuda_close(fb_executor *executor);
const char *fb_cuda_persistent_why_not(fb_device *device, const fb_bound *bound,
                                       const fb_executor_options *options);
void fb_cuda_workspace_leave(fb_gpu *gpu, fb_cuda_workspace *workspace);
fb_status fb_cuda_cache_take(fb_executor *executor, int64_t count, uint8_t **out, fb_error *err);
void fb_cuda_cache_give(fb_device *device, uint8_t *memory);
fb_status fb_cuda_cache_copy(fb_executor *executor, uint8_t *to, const uint8_t *from, int64_t position,
                             fb_error *err);

/* Steps (run.c). */
fb_status fb_cuda_run(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err);

#endif
