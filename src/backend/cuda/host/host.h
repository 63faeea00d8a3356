/* A GPU as a device: its stream, workspace and weights; executors on it. */
#ifndef FB_BACKEND_CUDA_HOST_HOST_H
#define FB_BACKEND_CUDA_HOST_HOST_H

#include "backend/cuda/candidates.h"
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

/* A recorded step of so many rows, all of them generated and wanted. */
typedef struct fb_cuda_recording {
    fb_gpu_graph *graph; /* NULL: not recorded yet */
    fb_trace ops;        /* that one launch runs */
} fb_cuda_recording;

/* Steps of up to 2^(FB_CUDA_ROW_SIZES - 1) rows are recorded, for a number of rows that is a power of two,
 * and for contexts of up to FB_CUDA_CONTEXT * 2^i slots. */
#define FB_CUDA_ROW_SIZES     7
#define FB_CUDA_CONTEXT_SIZES 12
#define FB_CUDA_CONTEXT       256

/* What a selection of candidates needs, in device memory, and the same in page-locked host memory. */
typedef struct fb_cuda_choices {
    int32_t *ids, *id_count;       /* [epilogue_rows, FB_CANDIDATES], [epilogue_rows] */
    fb_candidate *best, *gathered; /* [epilogue_rows, FB_CANDIDATES] each */
} fb_cuda_choices;

typedef struct fb_cuda_executor {
    fb_executor base;
    fb_gpu *gpu; /* the device's */
    fb_cuda_context cx;
    fb_cuda_workspace *workspace;
    uint8_t *memory;             /* on the device: values, state, frequencies, block tables, choices */
    fb_cuda_state *state;        /* on the device */
    uint8_t **tables;            /* on the device: fb_cuda_context.tables */
    uint8_t *spare;              /* a block for rows that fill up a recorded step; NULL: none is needed */
    fb_cuda_choices there, here; /* on the device, on the host */
    /* Page-locked host memory: the step's rows and tables before they are uploaded, and results. */
    uint8_t *host;
    fb_cuda_state *sent;
    uint8_t **sent_tables;   /* what the device has */
    uint8_t *results;        /* hidden states, logits or the best token, as the device has them */
    float *hidden;           /* [chunk, hidden] */
    fb_cuda_rows *runs;      /* [chunk]: of the step */
    fb_cuda_work_list *list; /* of the persistent kernel, or NULL */
    void *listed;            /* the image of the list on the device */
    fb_cuda_recording recordings[FB_CUDA_ROW_SIZES][FB_CUDA_CONTEXT_SIZES];
    fb_trace *trace; /* of the running step */
    /* The state on the device is ready for a step of one row with this position and token; -1: for none. */
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

/* What a step reads and gives besides the values of its program (io.c): rows and tables before it, logits or
 * candidates after it. */
fb_status fb_cuda_send_rows(fb_cuda_executor *e, const fb_batch *batch, int64_t rows, fb_error *err);
/* Uploads what has changed in the tables; *changed tells whether something had. */
fb_status fb_cuda_send_tables(fb_cuda_executor *e, const fb_batch *batch, bool *changed, fb_error *err);
fb_status fb_cuda_fetch(fb_cuda_executor *e, int32_t value, const fb_batch *batch, int64_t rows, float *out,
                        fb_error *err);
/* The results of all wanted rows. The caller has launched the step. */
fb_status fb_cuda_fetch_results(fb_cuda_executor *e, const fb_batch *batch, fb_error *err);

/* Steps (run.c). */
fb_status fb_cuda_run(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err);

#endif
