/* A GPU as the backend's host code sees it: memory, copies, recorded graphs, marks in time (CUDA events).
 * device.cu implements it with the CUDA runtime, tests/support/emulate with malloc and a clock. The host code
 * knows neither.
 *
 * Only fb_gpu_wait, fb_gpu_clear and copies from host memory that is not page-locked block. */
#ifndef FB_BACKEND_CUDA_GPU_H
#define FB_BACKEND_CUDA_GPU_H

#include "backend/cuda/kernel.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default) /* the kernels' tests call these */

typedef struct fb_gpu fb_gpu;             /* a device with one stream */
typedef struct fb_gpu_graph fb_gpu_graph; /* launches, recorded once */

/* The oldest devices that the kernels are built for: Ampere. */
#define FB_CUDA_LEAST_MAJOR 8

typedef struct fb_gpu_info {
    char name[128];
    fb_cuda_limits limits;
    int64_t memory, memory_free;
    int32_t driver, runtime; /* 13000: CUDA 13.0 */
} fb_gpu_info;

/* The number of devices; FB_ERROR_SYSTEM with the reason if the driver is missing or refuses. */
fb_status fb_gpu_count(int32_t *count, fb_error *err);
fb_status fb_gpu_describe(int32_t index, fb_gpu_info *info, fb_error *err);

/* Refuses a device that is too old. */
fb_status fb_gpu_open(int32_t index, fb_gpu **out, fb_error *err);
void fb_gpu_close(fb_gpu *gpu);
const fb_cuda_limits *fb_gpu_limits(const fb_gpu *gpu);

/* Makes the device current in the calling thread, and what was current before it. For functions that a caller
 * with devices of its own calls; all others may leave another device current. */
fb_status fb_gpu_enter(const fb_gpu *gpu, int32_t *before, fb_error *err);
void fb_gpu_leave(int32_t before);

/* Fills in limits, device, stream and BLAS handle of a context; the caller fills in the rest. */
void fb_gpu_context(const fb_gpu *gpu, fb_cuda_context *cx);

/* Allocate and free device memory, at a multiple of 256 bytes, and page-locked host memory. `what` names it
 * in the message when there is no memory. Freeing NULL does nothing. */
fb_status fb_gpu_take(fb_gpu *gpu, const char *what, int64_t bytes, void **out, fb_error *err);
void fb_gpu_give(fb_gpu *gpu, void *memory);
fb_status fb_gpu_take_host(fb_gpu *gpu, const char *what, int64_t bytes, void **out, fb_error *err);
void fb_gpu_give_host(fb_gpu *gpu, void *memory);

fb_status fb_gpu_upload(fb_gpu *gpu, void *device, const void *host, int64_t bytes, fb_error *err);
fb_status fb_gpu_download(fb_gpu *gpu, void *host, const void *device, int64_t bytes, fb_error *err);
/* Copies `rows` rows of `bytes` on the device; they begin `stride` bytes apart on both sides. */
fb_status fb_gpu_copy_rows(fb_gpu *gpu, void *to, const void *from, int64_t stride, int64_t bytes,
                           int64_t rows, fb_error *err);
fb_status fb_gpu_zero(fb_gpu *gpu, void *device, int64_t bytes, fb_error *err);
/* Zeros new memory and waits for it. It uses another stream, because another thread may use or record the
 * first. */
fb_status fb_gpu_clear(fb_gpu *gpu, void *device, int64_t bytes, fb_error *err);

/* Waits until everything on the stream is done. Errors of earlier launches are reported here. */
fb_status fb_gpu_wait(fb_gpu *gpu, fb_error *err);

/* Launches and copies between begin and end become a graph instead of running. */
fb_status fb_gpu_record_begin(fb_gpu *gpu, fb_error *err);
fb_status fb_gpu_record_end(fb_gpu *gpu, fb_gpu_graph **graph, fb_error *err);
fb_status fb_gpu_graph_launch(fb_gpu *gpu, fb_gpu_graph *graph, fb_error *err);
void fb_gpu_graph_free(fb_gpu_graph *graph);

/* Marks a moment of the stream; marks are numbered from 0. Seconds between two marks, after fb_gpu_wait. */
fb_status fb_gpu_mark(fb_gpu *gpu, int32_t mark, fb_error *err);
fb_status fb_gpu_between(fb_gpu *gpu, int32_t first, int32_t second, double *seconds, fb_error *err);

/* A launcher's result as a status: "layernorm: an illegal memory access was encountered". */
fb_status fb_gpu_check(int code, const char *what, fb_error *err);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
