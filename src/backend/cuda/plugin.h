/* What libfusebox_cuda.so exports: one function that returns this table. The main library opens it at run
 * time, so that the same binary runs on machines without a GPU. */
#ifndef FB_BACKEND_CUDA_PLUGIN_H
#define FB_BACKEND_CUDA_PLUGIN_H

#include "backend/cuda/gpu.h"
#include "backend/cuda/ops.h"
#include "backend/frame.h"

typedef struct fb_cuda_plugin {
    const char *version; /* FB_VERSION */
    int64_t layout;      /* FB_CUDA_LAYOUT: whether both sides were built from the same headers */
    const fb_backend *backend;
    fb_status (*count)(int32_t *count, fb_error *err);
    fb_status (*describe)(int32_t index, fb_gpu_info *info, fb_error *err);
    const fb_cuda_ops_table *ops;
} fb_cuda_plugin;

#define FB_CUDA_LAYOUT                                                                                       \
    ((int64_t)(sizeof(fb_program) * 1000003 + sizeof(fb_executor_options) * 1009 + sizeof(fb_trace) +        \
               sizeof(fb_weight) * 10007 + sizeof(fb_backend) * 100003 + sizeof(fb_device) * 101 +           \
               sizeof(fb_executor) * 103 + sizeof(fb_batch) * 107 + sizeof(fb_cuda_plugin) * 109 +           \
               sizeof(fb_cuda_ops_table) * 113 + sizeof(fb_call) * 127 + FB_OP_COUNT * 131))

/* The library that is opened at run time, if it has this device and can use it (find.c). */
fb_status fb_cuda_find(int32_t device, const fb_cuda_plugin **plugin, fb_error *err);

#define FB_CUDA_PLUGIN_SYMBOL "fb_cuda_plugin_get"
#ifdef __cplusplus
extern "C"
#endif
    __attribute__((visibility("default"))) const fb_cuda_plugin *
    fb_cuda_plugin_get(void);

#endif
