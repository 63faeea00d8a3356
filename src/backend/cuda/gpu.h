/* A GPU as the backend's host code sees it: memory, copies, recorded graphs, marks in time. device.cu
 * implements it with the CUDA runtime, tests/support/emulate with malloc and a clock; the host code knows
 * neither.
 *
 * Nothing here blocks but fb_gpu_wait, and copies from memory that is not fb_gpu_take_host's. */
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

/* How many devices there are; FB_ERROR_SYSTEM with the reason where the driver is missing or refuses. */
fb_status fb_gpu_count(int32_t *count, fb_error *err);
fb_status fb_gpu_describe(int32_t index, fb_gpu_info *info, fb_error *err);

/* Refuses a device that is too old. */
fb_status fb_gpu_open(int32_t index, fb_gpu **out, fb_error *err);
void fb_gpu_close(fb_gpu *gpu);
const fb_cuda_limits *fb_gpu_limits(const fb_gpu *gpu);

/* What kernels are launched with: stream and handles; scratch and the rest are the caller's to
 * fill. */
void fb_gpu_context(const fb_gpu *gpu, fb_cuda_context *cx);

/* Device memory, at a multiple of 256 bytes; and host memory that copies need not wait for. `what` names it
 * in the message when there is none. Giving NULL is nothing. */
fb_status fb_gpu_take(fb_gpu *gpu, const char *what, int64_t bytes, void **out, fb_error *err);
void fb_gpu_give(fb_gpu *gpu, void *memory);
fb_status fb_gpu_take_host(fb_gpu *gpu, const char *what, int64_t bytes, void **out, fb_error *err);
void fb_gpu_give_host(fb_gpu *gpu, void *memory);

fb_status fb_gpu_upload(fb_gpu *gpu, void *device, const void *host, int64_t bytes, fb_error *err);
fb_status fb_gpu_download(fb_gpu *gpu, void *host, const void *device, int64_t bytes, fb_error *err);
/* `rows` rows of `bytes`, which begin `stride` bytes apart on both sides; on it. */
fb_status fb_gpu_copy_rows(fb_gpu *gpu, void *to, const void *from, int64_t stride, int64_t bytes,
                           int64_t rows, fb_error *err);
fb_status fb_gpu_zero(fb_gpu *gpu, void *device, int64_t bytes, fb_error *err);
/* Zeros new memory, at once: besides the stream, which another thread may use or record. */
fb_status fb_gpu_clear(fb_gpu *gpu, void *device, int64_t bytes, fb_error *err);

/* Until all that was asked for is done. Errors of earlier launches show here. */
fb_status fb_gpu_wait(fb_gpu *gpu, fb_error *err);

/* What is launched and copied between begin and end becomes a graph instead of being done. */
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
