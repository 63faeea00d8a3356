/* What the tests of single ops share. A case makes tensors with random gaps and offsets, runs an op on the
 * CPU or on a GPU, and compares with the reference kernels in float64. Outputs are NaN before, and so are the
 * gaps between their rows afterwards.
 *
 * A GPU is the library that FUSEBOX_CUDA_LIBRARY names, otherwise the emulated one of this build. There,
 * device memory is the host's, so that guard bands find what a kernel must not touch. */
#ifndef FB_TESTS_OPS_HARNESS_H
#define FB_TESTS_OPS_HARNESS_H

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/host/isa.h"
#include "backend/cuda/gpu.h"
#include "base/pack.h"
#include "base/quant.h"
#include "fusebox_ops.h"
#include "support/support.h"

/* ---- the device ---- */

#define GPU_FUNCTIONS(X)                                                                                     \
    X(fb_gpu_open)                                                                                           \
    X(fb_gpu_describe)                                                                                       \
    X(fb_gpu_context)                                                                                        \
    X(fb_gpu_take)                                                                                           \
    X(fb_gpu_give)                                                                                           \
    X(fb_gpu_upload)                                                                                         \
    X(fb_gpu_download)                                                                                       \
    X(fb_gpu_wait)                                                                                           \
    X(fb_gpu_record_begin)                                                                                   \
    X(fb_gpu_record_end)                                                                                     \
    X(fb_gpu_graph_launch)                                                                                   \
    X(fb_gpu_graph_free)

/* The device under test. */
static struct {
    fb_ops *ops;
    void *stream;
    bool cuda, real; /* real: its memory is not the host's */
    fb_gpu *gpu;     /* its stream is `stream` */
#define X(name) __typeof__(&name) name;
    GPU_FUNCTIONS(X)
#undef X
} dev;

static fbt_random random_numbers;

static inline const char *cuda_path(void) {
    static char path[4096];
    const char *given = getenv("FUSEBOX_CUDA_LIBRARY");
    if (given && *given && strcmp(given, "none") != 0) return given;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    path[length > 0 ? length : 0] = 0;
    char *folder = strstr(path, "/ops/");
    if (!folder) return "";
    strcpy(folder, "/libfusebox_cuda_emulated.so");
    return access(path, R_OK) == 0 ? path : "";
}

/* One thread; two; a GPU. */
static inline void open_cpu(int32_t threads) {
    fb_error err;
    memset(&dev, 0, sizeof dev);
    assert_ok(fb_ops_create(FB_OPS_CPU, threads, &dev.ops, &err), &err);
}

static inline bool open_gpu(void) {
    fb_error err;
    fb_gpu_info info;
    fb_cuda_context cx;
    memset(&dev, 0, sizeof dev);
    if (!*cuda_path()) return false;
    assert_ok(fb_cuda_library(cuda_path(), &err), &err);
    void *library = dlopen(cuda_path(), RTLD_NOW | RTLD_LOCAL), *symbol;
    if (!library) fail_msg("%s", dlerror());
#define X(name)                                                                                              \
    symbol = dlsym(library, #name);                                                                          \
    assert_non_null(symbol);                                                                                 \
    memcpy(&dev.name, &symbol, sizeof symbol);
    GPU_FUNCTIONS(X)
#undef X
    assert_ok(dev.fb_gpu_describe(0, &info, &err), &err);
    assert_ok(dev.fb_gpu_open(0, &dev.gpu, &err), &err);
    dev.fb_gpu_context(dev.gpu, &cx);
    dev.cuda = true;
    dev.real = strcmp(info.name, "Emulated GPU") != 0;
    dev.stream = cx.stream;
    assert_ok(fb_ops_create(0, 0, &dev.ops, &err), &err);
    return true;
}

static inline void close_device(void) { fb_ops_free(dev.ops); }

/* ---- memory of a case ---- */

typedef struct region {
    fbt_guard guard;
    uint8_t *device; /* the same address, or a copy on a real GPU */
    void *taken;
} region;

#define REGIONS 128
static region regions[REGIONS];
static int region_count;

/* Memory for `size` bytes, `offset` bytes behind a 64-byte boundary. */
static inline void *take(int64_t size, int64_t offset) {
    assert_true(region_count < REGIONS);
    region *r = &regions[region_count++];
    r->guard = fbt_guard_create((size_t)size, (size_t)offset);
    r->device = r->guard.data;
    r->taken = NULL;
    return r->guard.data;
}

/* Where the device finds host memory of `take`. A copy on a real GPU is made by copy_regions. */
static inline void *there(const void *host) {
    for (int i = 0; i < region_count; i++) {
        region *r = &regions[i];
        const uint8_t *begin = r->guard.data, *at = host;
        if (at < begin || at >= begin + r->guard.size + (r->guard.size == 0)) continue;
        if (dev.real && !r->taken) {
            fb_error err;
            assert_ok(dev.fb_gpu_take(dev.gpu, "a test", (int64_t)r->guard.size + 64, &r->taken, &err), &err);
            r->device = (uint8_t *)r->taken + (uintptr_t)begin % 64;
        }
        return r->device + (at - begin);
    }
    return (void *)(uintptr_t)host;
}

static inline void copy_regions(bool to_device) {
    fb_error err;
    for (int i = 0; i < region_count && dev.real; i++) {
        const region *r = &regions[i];
        there(r->guard.data);
        if (to_device)
            assert_ok(dev.fb_gpu_upload(dev.gpu, r->device, r->guard.data, (int64_t)r->guard.size, &err),
                      &err);
        else
            assert_ok(dev.fb_gpu_download(dev.gpu, r->guard.data, r->device, (int64_t)r->guard.size, &err),
                      &err);
    }
    if (dev.real) assert_ok(dev.fb_gpu_wait(dev.gpu, &err), &err);
}

static inline void give_back(void) {
    while (region_count) {
        region *r = &regions[--region_count];
        if (r->taken) dev.fb_gpu_give(dev.gpu, r->taken);
        fbt_guard_free(&r->guard);
    }
}

/* ---- tensors: descriptions with host addresses ---- */

static inline int64_t below(int64_t n) { return fbt_random_below(&random_numbers, n); }

/* NaN, with a gap of up to 3 elements (or, one time in two, none), at an address that is aligned for one
 * element only (one time in two: for all). */
static inline fb_ops_tensor tensor(fb_dtype dtype, int64_t rows, int64_t cols) {
    int64_t size = fb_dtype_size(dtype), stride = cols + (below(2) ? below(4) : 0);
    int64_t bytes = rows ? ((rows - 1) * stride + cols) * size : 0;
    void *data = take(bytes, below(2) ? below(16) * size : 0);
    return (fb_ops_tensor){data, dtype, rows, cols, stride};
}

static inline void fill(fb_dtype dtype, void *to, int64_t count, double mean, double deviation) {
    for (int64_t i = 0; i < count; i++)
        fb_dtype_set(dtype, to, i, mean + deviation * fbt_random_normal(&random_numbers));
}

static inline fb_ops_tensor filled(fb_dtype dtype, int64_t rows, int64_t cols) {
    fb_ops_tensor t = tensor(dtype, rows, cols);
    for (int64_t r = 0; r < rows; r++) fill(dtype, fb_at(t.data, dtype, r * t.stride), cols, 0.2, 1.2);
    return t;
}

/* A weight: no gaps, at any address. */
static inline fb_ops_tensor weight(fb_dtype dtype, int64_t rows, int64_t cols, double mean,
                                   double deviation) {
    int64_t size = fb_dtype_size(dtype);
    void *data = take(rows * cols * size, below(2) ? below(16) * size : 0);
    fill(dtype, data, rows * cols, mean, deviation);
    return (fb_ops_tensor){data, dtype, rows, cols, cols};
}

static inline fb_ops_tensor on_device(fb_ops_tensor t) {
    t.data = there(t.data);
    return t;
}
/* As a pointer, for a call. */
#define DEV(t) (&(fb_ops_tensor){there((t).data), (t).dtype, (t).rows, (t).cols, (t).stride})

static inline fb_view view_of(fb_ops_tensor t) {
    return (fb_view){t.data, t.dtype, 1, t.cols, t.stride, t.cols};
}
static inline fb_weight weight_of(fb_ops_tensor t) {
    return (fb_weight){.data = t.data, .dtype = t.dtype, .rows = t.rows, .cols = t.cols};
}

static inline fb_ops_heads heads_of(fb_dtype dtype, int64_t rows, int64_t heads, int64_t width,
                                    bool filled_in) {
    int64_t size = fb_dtype_size(dtype), head = width + (below(2) ? below(3) : 0),
            row = heads * head + (below(2) ? below(3) : 0);
    int64_t bytes = rows ? ((rows - 1) * row + (heads - 1) * head + width) * size : 0;
    fb_ops_heads t = {take(bytes, below(2) ? below(16) * size : 0), dtype, rows, heads, width, row, head};
    for (int64_t r = 0; filled_in && r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
            fill(dtype, fb_at(t.data, dtype, r * row + h * head), width, 0.1, 1);
    return t;
}
static inline fb_view heads_view(fb_ops_heads t) {
    return (fb_view){t.data, t.dtype, t.heads, t.width, t.row_stride, t.head_stride};
}
#define DEVH(t)                                                                                              \
    (&(fb_ops_heads){there((t).data), (t).dtype, (t).rows, (t).heads, (t).width, (t).row_stride,             \
                     (t).head_stride})

/* ---- the truth ---- */

/* A float64 result [rows, heads, width]. */
static inline fb_view truth_view(int64_t rows, int64_t heads, int64_t width) {
    void *data = take((rows ? rows : 1) * heads * width * (int64_t)sizeof(double), 0);
    return (fb_view){data, FB_F64, heads, width, heads * width, width};
}

static inline void run_truth(fb_op_kind kind, const fb_call *call) {
    float *scratch = malloc(1 << 20);
    assert_non_null(scratch);
    if (call->rows) fb_cpu_kernels_ref[kind](call, &(fb_worker){.count = 1, .scratch = scratch});
    free(scratch);
}

static inline double ulp_of(fb_dtype dtype) {
    return ldexp(1, dtype == FB_F32 ? -23 : dtype == FB_F16 ? -10 : -7);
}

/* Every element is within `ulps` of the row's largest value (in the output's dtype), plus float32 sums of
 * `terms` terms; everything between rows and heads is untouched. */
static inline void check_view(const char *what, fb_view have, const fb_view *truth, int64_t rows, double ulps,
                              double terms) {
    int64_t size = fb_dtype_size(have.dtype);
    for (int64_t r = 0; r < rows; r++) {
        double largest = 4; /* of what a fused op rounds on the way */
        for (int64_t i = 0; i < truth->row_stride; i++)
            largest = fmax(largest, fabs(((const double *)truth->data)[r * truth->row_stride + i]));
        double limit = largest * (ulps * ulp_of(have.dtype) + terms * ulp_of(FB_F32));
        for (int64_t h = 0; h < have.heads; h++)
            for (int64_t i = 0; i < have.width; i++) {
                double x = fb_dtype_get(have.dtype, fb_view_at(&have, r, h), i);
                double y = ((const double *)fb_view_at(truth, r, h))[i];
                if (!(fabs(x - y) <= limit))
                    fail_msg("%s, %s: row %lld of %lld, head %lld, element %lld of %lld: %.9g, should be "
                             "%.9g (within %.3g)",
                             what, fb_dtype_name(have.dtype), (long long)r, (long long)rows, (long long)h,
                             (long long)i, (long long)have.width, x, y, limit);
            }
        for (int64_t h = 0; h < have.heads; h++) {
            const uint8_t *gap = (const uint8_t *)fb_view_at(&have, r, h) + have.width * size;
            int64_t next = h + 1 < have.heads ? have.head_stride - have.width
                           : r + 1 < rows ? have.row_stride - (have.heads - 1) * have.head_stride - have.width
                                          : 0;
            for (int64_t b = 0; b < next * size; b++)
                if (gap[b] != 0xff)
                    fail_msg("%s: wrote behind row %lld, head %lld", what, (long long)r, (long long)h);
        }
    }
}

static inline void check(const char *what, fb_ops_tensor have, const fb_view *truth, double ulps,
                         double terms) {
    check_view(what, view_of(have), truth, have.rows, ulps, terms);
}

/* The same bits in all rows. */
static inline void same(const char *what, fb_ops_tensor a, fb_ops_tensor b) {
    int64_t size = fb_dtype_size(a.dtype);
    for (int64_t r = 0; r < a.rows; r++)
        if (memcmp(fb_at(a.data, a.dtype, r * a.stride), fb_at(b.data, b.dtype, r * b.stride),
                   (size_t)(a.cols * size)) != 0)
            fail_msg("%s, %s: row %lld of %lld, %lld columns: other bits", what, fb_dtype_name(a.dtype),
                     (long long)r, (long long)a.rows, (long long)a.cols);
}

/* The engine's kernel on the same call, on one worker: what the op must equal, on the CPU. */
static inline void run_engine(fb_op_kind kind, const fb_call *call) {
    const fb_isa *isa;
    fb_error err;
    float *scratch = aligned_alloc(64, (size_t)8 << 20);
    assert_non_null(scratch);
    assert_ok(fb_isa_find(NULL, &isa, &err), &err);
    if (call->rows) isa->kernels[kind](call, &(fb_worker){.count = 1, .scratch = scratch});
    free(scratch);
}

/* Uploads, runs the call, downloads. */
#define RUN(call)                                                                                            \
    do {                                                                                                     \
        fb_error run_err = {0};                                                                              \
        copy_regions(true);                                                                                  \
        assert_ok(call, &run_err);                                                                           \
        copy_regions(false);                                                                                 \
    } while (0)

static const fb_dtype acts[] = {FB_F32, FB_F16, FB_BF16};
#define FOR_ACTS(t) for (int t##_i = 0, t = FB_F32; t##_i < 3; t##_i++, t = t##_i < 3 ? acts[t##_i] : 0)

/* ---- running ---- */

static inline int setup_one(void **state) {
    (void)state;
    random_numbers = fbt_random_start(18);
    open_cpu(1);
    return 0;
}
static inline int setup_two(void **state) {
    (void)state;
    random_numbers = fbt_random_start(19);
    open_cpu(2);
    return 0;
}
static inline int setup_gpu(void **state) {
    (void)state;
    random_numbers = fbt_random_start(20);
    open_gpu(); /* without one, the tests are skipped */
    return 0;
}
static inline int teardown(void **state) {
    (void)state;
    give_back();
    close_device();
    return 0;
}
#define NEEDS_DEVICE()                                                                                       \
    do {                                                                                                     \
        if (!dev.ops) skip();                                                                                \
    } while (0)

/* Each test on one thread, on two, and on a GPU. */
#define EVERYWHERE(test)                                                                                     \
    {#test ", one thread", test, setup_one, teardown, NULL},                                                 \
        {#test ", two threads", test, setup_two, teardown, NULL}, {                                          \
#test ", cuda", test, setup_gpu, teardown, NULL                                                      \
    }

#endif
