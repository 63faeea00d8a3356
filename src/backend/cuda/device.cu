/* A GPU through the CUDA runtime. Every call's result is checked; an error message is one line that names
 * what was requested. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/gemm.h"
#include "backend/cuda/gpu.h"

struct fb_gpu {
    int32_t index;
    cudaStream_t stream;
    cudaStream_t side_stream; /* for fb_gpu_clear, which any thread may call at any time */
    void *blas;
    fb_cuda_limits limits;
    cudaEvent_t *marks;
    int32_t mark_count;
};

struct fb_gpu_graph {
    cudaGraphExec_t exec;
};

#define MIB(bytes) ((double)(bytes) / (1 << 20))

fb_status fb_gpu_check(int code, const char *what, fb_error *err) {
    if (code == cudaSuccess) return FB_OK;
    cudaGetLastError(); /* or the next call would report it again */
    fb_status status = code == cudaErrorMemoryAllocation ? FB_ERROR_MEMORY : FB_ERROR_SYSTEM;
    return fb_fail(err, status, "cuda: %s: %s (%s)", what, cudaGetErrorString((cudaError_t)code),
                   cudaGetErrorName((cudaError_t)code));
}

fb_status fb_gpu_count(int32_t *count, fb_error *err) {
    int devices = 0;
    *count = 0;
    cudaError_t code = cudaGetDeviceCount(&devices);
    if (code == cudaErrorNoDevice) {
        cudaGetLastError();
        return fb_fail(err, FB_ERROR_SYSTEM, "cuda: no NVIDIA GPU in this machine");
    }
    if (code == cudaErrorInsufficientDriver) {
        cudaGetLastError();
        int driver = 0;
        cudaDriverGetVersion(&driver);
        if (!driver)
            return fb_fail(err, FB_ERROR_SYSTEM, "cuda: no NVIDIA driver (libcuda.so.1) in this machine");
        return fb_fail(err, FB_ERROR_SYSTEM, "cuda: the driver is for CUDA %d.%d (at least %d.%d)",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    FB_TRY(fb_gpu_check(code, "counting devices", err));
    *count = devices;
    return FB_OK;
}

static fb_status limits_of(int32_t index, fb_cuda_limits *l, fb_error *err) {
    struct {
        cudaDeviceAttr which;
        int32_t *to;
    } const wanted[] = {{cudaDevAttrComputeCapabilityMajor, &l->major},
                        {cudaDevAttrComputeCapabilityMinor, &l->minor},
                        {cudaDevAttrMultiProcessorCount, &l->sms},
                        {cudaDevAttrMaxSharedMemoryPerBlockOptin, &l->shared_limit},
                        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &l->blocks_shared}};
    for (auto &w : wanted)
        FB_TRY(fb_gpu_check(cudaDeviceGetAttribute(w.to, w.which, index), "device limits", err));
    int l2 = 0;
    FB_TRY(fb_gpu_check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, index), "device limits", err));
    l->l2_bytes = l2;
    return FB_OK;
}

fb_status fb_gpu_describe(int32_t index, fb_gpu_info *info, fb_error *err) {
    *info = {};
    cudaDeviceProp properties;
    FB_TRY(fb_gpu_check(cudaGetDeviceProperties(&properties, index), "device properties", err));
    snprintf(info->name, sizeof info->name, "%s", properties.name);
    FB_TRY(limits_of(index, &info->limits, err));
    info->memory = (int64_t)properties.totalGlobalMem;
    cudaDriverGetVersion(&info->driver);
    cudaRuntimeGetVersion(&info->runtime);
    size_t unused = 0, all = 0;
    int before = 0;
    cudaGetDevice(&before);
    FB_TRY(fb_gpu_check(cudaSetDevice(index), "device", err));
    fb_status status = fb_gpu_check(cudaMemGetInfo(&unused, &all), "device memory", err);
    cudaSetDevice(before);
    info->memory_free = (int64_t)unused;
    return status;
}

/* Every call sets its device first: threads of one process may use several. */
static fb_status use(const fb_gpu *gpu, fb_error *err) {
    return fb_gpu_check(cudaSetDevice(gpu->index), "device", err);
}

fb_status fb_gpu_enter(const fb_gpu *gpu, int32_t *before, fb_error *err) {
    FB_TRY(fb_gpu_check(cudaGetDevice(before), "device", err));
    return *before == gpu->index ? FB_OK : use(gpu, err);
}

void fb_gpu_leave(int32_t before) {
    int now = before;
    if (cudaGetDevice(&now) != cudaSuccess || (now != before && cudaSetDevice(before) != cudaSuccess))
        cudaGetLastError();
}

fb_status fb_gpu_open(int32_t index, fb_gpu **out, fb_error *err) {
    *out = NULL;
    fb_gpu *gpu = (fb_gpu *)calloc(1, sizeof *gpu);
    if (!gpu) return fb_fail_memory(err, "cuda device", sizeof *gpu);
    gpu->index = index;
    fb_status status = use(gpu, err);
    if (status == FB_OK) status = limits_of(index, &gpu->limits, err);
    if (status == FB_OK && gpu->limits.major < FB_CUDA_LEAST_MAJOR)
        status =
            fb_fail(err, FB_ERROR_UNSUPPORTED, "cuda: device %d: compute capability %d.%d (at least %d.0)",
                    index, gpu->limits.major, gpu->limits.minor, FB_CUDA_LEAST_MAJOR);
    if (status == FB_OK)
        status = fb_gpu_check(cudaStreamCreateWithFlags(&gpu->stream, cudaStreamNonBlocking), "stream", err);
    if (status == FB_OK)
        status =
            fb_gpu_check(cudaStreamCreateWithFlags(&gpu->side_stream, cudaStreamNonBlocking), "stream", err);
    if (status != FB_OK) {
        fb_gpu_close(gpu);
        return status;
    }
    gpu->blas = fb_cuda_blas_create();
    *out = gpu;
    return FB_OK;
}

void fb_gpu_close(fb_gpu *gpu) {
    if (!gpu) return;
    cudaSetDevice(gpu->index);
    for (int32_t i = 0; i < gpu->mark_count; i++) cudaEventDestroy(gpu->marks[i]);
    free(gpu->marks);
    fb_cuda_blas_destroy(gpu->blas);
    if (gpu->stream) cudaStreamDestroy(gpu->stream);
    if (gpu->side_stream) cudaStreamDestroy(gpu->side_stream);
    cudaGetLastError();
    free(gpu);
}

const fb_cuda_limits *fb_gpu_limits(const fb_gpu *gpu) { return &gpu->limits; }

void fb_gpu_context(const fb_gpu *gpu, fb_cuda_context *cx) {
    *cx = {};
    cx->limits = &gpu->limits;
    cx->device = gpu->index;
    cx->stream = gpu->stream;
    cx->blas = gpu->blas;
}

static fb_status no_memory(const char *what, int64_t bytes, const char *where, fb_error *err) {
    size_t unused = 0, all = 0;
    cudaGetLastError();
    cudaMemGetInfo(&unused, &all);
    return fb_fail(err, FB_ERROR_MEMORY, "cuda: %s: %.1f MiB of %s memory (%.1f MiB of %.1f are free)", what,
                   MIB(bytes), where, MIB(unused), MIB(all));
}

/* While one lives, this thread may allocate, and wait for streams that are not captured, also where it
 * captures another stream. */
struct outside_capture {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    outside_capture() { cudaThreadExchangeStreamCaptureMode(&mode); }
    ~outside_capture() { cudaThreadExchangeStreamCaptureMode(&mode); }
};

fb_status fb_gpu_take(fb_gpu *gpu, const char *what, int64_t bytes, void **out, fb_error *err) {
    *out = NULL;
    outside_capture guard;
    FB_TRY(use(gpu, err));
    cudaError_t code = cudaMalloc(out, (size_t)(bytes ? bytes : 1));
    return code == cudaErrorMemoryAllocation ? no_memory(what, bytes, "device", err)
                                             : fb_gpu_check(code, what, err);
}

void fb_gpu_give(fb_gpu *gpu, void *memory) {
    if (!memory) return;
    outside_capture guard;
    cudaSetDevice(gpu->index);
    if (cudaFree(memory) != cudaSuccess)
        cudaGetLastError(); /* the device is lost: there is nothing to free */
}

fb_status fb_gpu_take_host(fb_gpu *gpu, const char *what, int64_t bytes, void **out, fb_error *err) {
    *out = NULL;
    FB_TRY(use(gpu, err));
    cudaError_t code = cudaMallocHost(out, (size_t)(bytes ? bytes : 1));
    return code == cudaErrorMemoryAllocation ? no_memory(what, bytes, "page-locked host", err)
                                             : fb_gpu_check(code, what, err);
}

void fb_gpu_give_host(fb_gpu *gpu, void *memory) {
    if (!memory) return;
    cudaSetDevice(gpu->index);
    if (cudaFreeHost(memory) != cudaSuccess) cudaGetLastError();
}

fb_status fb_gpu_upload(fb_gpu *gpu, void *device, const void *host, int64_t bytes, fb_error *err) {
    FB_TRY(use(gpu, err));
    return fb_gpu_check(cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice, gpu->stream),
                        "copy to the device", err);
}

fb_status fb_gpu_download(fb_gpu *gpu, void *host, const void *device, int64_t bytes, fb_error *err) {
    FB_TRY(use(gpu, err));
    return fb_gpu_check(cudaMemcpyAsync(host, device, (size_t)bytes, cudaMemcpyDeviceToHost, gpu->stream),
                        "copy from the device", err);
}

fb_status fb_gpu_copy_rows(fb_gpu *gpu, void *to, const void *from, int64_t stride, int64_t bytes,
                           int64_t rows, fb_error *err) {
    FB_TRY(use(gpu, err));
    return fb_gpu_check(cudaMemcpy2DAsync(to, (size_t)stride, from, (size_t)stride, (size_t)bytes,
                                          (size_t)rows, cudaMemcpyDeviceToDevice, gpu->stream),
                        "copy on the device", err);
}

fb_status fb_gpu_zero(fb_gpu *gpu, void *device, int64_t bytes, fb_error *err) {
    FB_TRY(use(gpu, err));
    return fb_gpu_check(cudaMemsetAsync(device, 0, (size_t)bytes, gpu->stream), "clearing memory", err);
}

fb_status fb_gpu_clear(fb_gpu *gpu, void *device, int64_t bytes, fb_error *err) {
    outside_capture guard;
    FB_TRY(use(gpu, err));
    FB_TRY(fb_gpu_check(cudaMemsetAsync(device, 0, (size_t)bytes, gpu->side_stream), "clearing memory", err));
    return fb_gpu_check(cudaStreamSynchronize(gpu->side_stream), "clearing memory", err);
}

fb_status fb_gpu_wait(fb_gpu *gpu, fb_error *err) {
    FB_TRY(use(gpu, err));
    return fb_gpu_check(cudaStreamSynchronize(gpu->stream), "waiting for the device", err);
}

fb_status fb_gpu_record_begin(fb_gpu *gpu, fb_error *err) {
    FB_TRY(use(gpu, err));
    return fb_gpu_check(cudaStreamBeginCapture(gpu->stream, cudaStreamCaptureModeThreadLocal),
                        "recording a graph", err);
}

fb_status fb_gpu_record_end(fb_gpu *gpu, fb_gpu_graph **out, fb_error *err) {
    *out = NULL;
    cudaGraph_t graph = NULL;
    fb_status status = fb_gpu_check(cudaStreamEndCapture(gpu->stream, &graph), "recording a graph", err);
    fb_gpu_graph *made = status == FB_OK ? (fb_gpu_graph *)calloc(1, sizeof *made) : NULL;
    if (status == FB_OK && !made) status = fb_fail_memory(err, "graph", sizeof *made);
    if (status == FB_OK) status = fb_gpu_check(cudaGraphInstantiate(&made->exec, graph, 0), "graph", err);
    if (status == FB_OK) status = fb_gpu_check(cudaGraphUpload(made->exec, gpu->stream), "graph", err);
    if (graph) cudaGraphDestroy(graph);
    if (status != FB_OK) {
        fb_gpu_graph_free(made);
        return status;
    }
    *out = made;
    return FB_OK;
}

fb_status fb_gpu_graph_launch(fb_gpu *gpu, fb_gpu_graph *graph, fb_error *err) {
    FB_TRY(use(gpu, err));
    return fb_gpu_check(cudaGraphLaunch(graph->exec, gpu->stream), "graph", err);
}

void fb_gpu_graph_free(fb_gpu_graph *graph) {
    if (!graph) return;
    if (graph->exec && cudaGraphExecDestroy(graph->exec) != cudaSuccess) cudaGetLastError();
    free(graph);
}

fb_status fb_gpu_mark(fb_gpu *gpu, int32_t mark, fb_error *err) {
    FB_TRY(use(gpu, err));
    if (mark >= gpu->mark_count) {
        int32_t count = mark < 512 ? 1024 : 2 * mark;
        cudaEvent_t *marks = (cudaEvent_t *)realloc(gpu->marks, (size_t)count * sizeof *marks);
        if (!marks) return fb_fail_memory(err, "marks in time", count * (int64_t)sizeof *marks);
        gpu->marks = marks;
        for (; gpu->mark_count < count; gpu->mark_count++)
            FB_TRY(fb_gpu_check(cudaEventCreate(&marks[gpu->mark_count]), "event", err));
    }
    return fb_gpu_check(cudaEventRecord(gpu->marks[mark], gpu->stream), "event", err);
}

fb_status fb_gpu_between(fb_gpu *gpu, int32_t first, int32_t second, double *seconds, fb_error *err) {
    float milliseconds = 0;
    FB_TRY(fb_gpu_check(cudaEventElapsedTime(&milliseconds, gpu->marks[first], gpu->marks[second]), "time",
                        err));
    *seconds = 1e-3 * milliseconds;
    return FB_OK;
}
