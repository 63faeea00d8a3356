/* A GPU that is none: gpu.h with malloc and a clock, for kernels that run on the host (emulate.h). What is
 * launched and copied while a graph is recorded is kept as closures. Failures can be asked for:
 * FUSEBOX_EMULATE_FAIL=N makes the Nth call of a function that can fail do so, FUSEBOX_EMULATE_MEMORY=BYTES
 * bounds the memory, FUSEBOX_EMULATE_MAJOR=7 is an old device. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "backend/cuda/gpu.h"
#include "support/emulate/emulate.h"

struct fb_gpu {
    fb_cuda_limits limits;
    std::vector<double> marks;
};
struct fb_gpu_graph {
    std::vector<std::function<int()>> steps;
};

static std::mutex memory_lock; /* of the two below */
static std::map<void *, int64_t> taken;
static int64_t taken_bytes;

/* For tests: the graphs that were recorded, and the calls that could fail. */
extern "C" {
extern __attribute__((visibility("default"))) int64_t fb_emulated_graphs, fb_emulated_calls;
int64_t fb_emulated_graphs, fb_emulated_calls;
}

static long setting(const char *name, long fallback) {
    const char *text = getenv(name);
    return text && *text ? atol(text) : fallback;
}

static fb_status may_fail(const char *what, fb_error *err) {
    static const long fails = setting("FUSEBOX_EMULATE_FAIL", 0);
    if (__atomic_add_fetch(&fb_emulated_calls, 1, __ATOMIC_RELAXED) == fails)
        return fb_fail(err, FB_ERROR_SYSTEM, "cuda: %s: the emulated device is lost", what);
    return FB_OK;
}

extern "C" {

fb_status fb_gpu_check(int code, const char *what, fb_error *err) {
    FB_TRY(may_fail(what, err));
    return code ? fb_fail(err, FB_ERROR_SYSTEM, "cuda: %s: invalid argument (%d)", what, code) : FB_OK;
}

fb_status fb_gpu_count(int32_t *count, fb_error *err) {
    *count = (int32_t)setting("FUSEBOX_EMULATE_DEVICES", 1);
    return *count ? FB_OK : fb_fail(err, FB_ERROR_SYSTEM, "cuda: no NVIDIA GPU in this machine");
}

static fb_cuda_limits limits() {
    /* Of a Hopper; the shared memory as asked for, so that fallbacks for smaller devices are reached. */
    fb_cuda_limits l = {};
    l.major = (int32_t)setting("FUSEBOX_EMULATE_MAJOR", 9);
    l.sms = (int32_t)setting("FUSEBOX_EMULATE_SMS", 4);
    l.shared_limit = (int32_t)setting("FUSEBOX_EMULATE_SHARED", 232448);
    l.blocks_shared = l.shared_limit + 1024;
    l.l2_bytes = 4 << 20;
    return l;
}

fb_status fb_gpu_describe(int32_t index, fb_gpu_info *info, fb_error *err) {
    (void)index, (void)err;
    *info = {};
    snprintf(info->name, sizeof info->name, "Emulated GPU");
    info->limits = limits();
    info->memory = setting("FUSEBOX_EMULATE_MEMORY", 1l << 34);
    std::lock_guard<std::mutex> mine(memory_lock);
    info->memory_free = info->memory - taken_bytes;
    info->driver = info->runtime = 13000;
    return FB_OK;
}

fb_status fb_gpu_open(int32_t index, fb_gpu **out, fb_error *err) {
    (void)index;
    *out = NULL;
    FB_TRY(may_fail("opening", err));
    *out = new fb_gpu{limits(), {}};
    if ((*out)->limits.major < FB_CUDA_LEAST_MAJOR) {
        delete *out;
        *out = NULL;
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "cuda: device %d: compute capability 7.0 (at least %d.0)",
                       index, FB_CUDA_LEAST_MAJOR);
    }
    return FB_OK;
}
void fb_gpu_close(fb_gpu *gpu) { delete gpu; }
const fb_cuda_limits *fb_gpu_limits(const fb_gpu *gpu) { return &gpu->limits; }
fb_status fb_gpu_enter(const fb_gpu *, int32_t *before, fb_error *err) {
    *before = 0;
    return may_fail("device", err);
}
void fb_gpu_leave(int32_t) {}
void fb_gpu_context(const fb_gpu *gpu, fb_cuda_context *cx) {
    *cx = {};
    cx->limits = &gpu->limits;
}

fb_status fb_gpu_take(fb_gpu *gpu, const char *what, int64_t bytes, void **out, fb_error *err) {
    (void)gpu;
    *out = NULL;
    FB_TRY(may_fail(what, err));
    std::lock_guard<std::mutex> mine(memory_lock);
    if (taken_bytes + bytes > setting("FUSEBOX_EMULATE_MEMORY", 1l << 34))
        return fb_fail(err, FB_ERROR_MEMORY, "cuda: %s: %.1f MiB of device memory", what,
                       (double)bytes / (1 << 20));
    int64_t room = (bytes + 255) / 256 * 256;
    *out = aligned_alloc(256, (size_t)(room ? room : 256));
    memset(*out, 0xff, (size_t)room);
    taken[*out] = bytes;
    taken_bytes += bytes;
    return FB_OK;
}
void fb_gpu_give(fb_gpu *gpu, void *memory) {
    (void)gpu;
    if (!memory) return;
    std::lock_guard<std::mutex> mine(memory_lock);
    taken_bytes -= taken[memory];
    taken.erase(memory);
    free(memory);
}
fb_status fb_gpu_take_host(fb_gpu *gpu, const char *what, int64_t bytes, void **out, fb_error *err) {
    return fb_gpu_take(gpu, what, bytes, out, err);
}
void fb_gpu_give_host(fb_gpu *gpu, void *memory) { fb_gpu_give(gpu, memory); }

static fb_status do_or_record(const char *what, const std::function<int()> &step, fb_error *err) {
    FB_TRY(may_fail(what, err));
    if (fb_emulated_recording)
        fb_emulated_recording->push_back(step);
    else
        step();
    return FB_OK;
}
static fb_status copy(void *to, const void *from, int64_t bytes, fb_error *err) {
    auto step = [=] {
        memcpy(to, from, (size_t)bytes);
        return 0;
    };
    return do_or_record("copy", step, err);
}
fb_status fb_gpu_upload(fb_gpu *, void *device, const void *host, int64_t bytes, fb_error *err) {
    return copy(device, host, bytes, err);
}
fb_status fb_gpu_download(fb_gpu *, void *host, const void *device, int64_t bytes, fb_error *err) {
    return copy(host, device, bytes, err);
}
fb_status fb_gpu_copy_rows(fb_gpu *, void *to, const void *from, int64_t stride, int64_t bytes, int64_t rows,
                           fb_error *err) {
    FB_TRY(may_fail("copy", err));
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)to + i * stride, (const char *)from + i * stride, (size_t)bytes);
    return FB_OK;
}
fb_status fb_gpu_zero(fb_gpu *, void *device, int64_t bytes, fb_error *err) {
    auto step = [=] {
        memset(device, 0, (size_t)bytes);
        return 0;
    };
    return do_or_record("clearing memory", step, err);
}
fb_status fb_gpu_clear(fb_gpu *, void *device, int64_t bytes, fb_error *err) {
    FB_TRY(may_fail("clearing memory", err));
    memset(device, 0, (size_t)bytes);
    return FB_OK;
}
fb_status fb_gpu_wait(fb_gpu *, fb_error *err) { return may_fail("waiting for the device", err); }

fb_status fb_gpu_record_begin(fb_gpu *, fb_error *err) {
    FB_TRY(may_fail("recording a graph", err));
    fb_emulated_recording = new std::vector<std::function<int()>>;
    return FB_OK;
}
fb_status fb_gpu_record_end(fb_gpu *, fb_gpu_graph **graph, fb_error *err) {
    *graph = NULL;
    auto *steps = fb_emulated_recording;
    fb_emulated_recording = NULL;
    fb_status status = may_fail("recording a graph", err);
    if (status == FB_OK) {
        *graph = new fb_gpu_graph{*steps};
        __atomic_add_fetch(&fb_emulated_graphs, 1, __ATOMIC_RELAXED);
    }
    delete steps;
    return status;
}
fb_status fb_gpu_graph_launch(fb_gpu *, fb_gpu_graph *graph, fb_error *err) {
    FB_TRY(may_fail("graph", err));
    for (auto &step : graph->steps) FB_TRY(fb_gpu_check(step(), "graph", err));
    return FB_OK;
}
void fb_gpu_graph_free(fb_gpu_graph *graph) { delete graph; }

fb_status fb_gpu_mark(fb_gpu *gpu, int32_t mark, fb_error *err) {
    FB_TRY(may_fail("event", err));
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((size_t)mark >= gpu->marks.size()) gpu->marks.resize((size_t)mark + 1);
    gpu->marks[(size_t)mark] = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    return FB_OK;
}
fb_status fb_gpu_between(fb_gpu *gpu, int32_t first, int32_t second, double *seconds, fb_error *err) {
    (void)err;
    *seconds = gpu->marks[(size_t)second] - gpu->marks[(size_t)first];
    return FB_OK;
}

} /* extern "C" */
