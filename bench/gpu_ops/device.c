/* The library under test, its device, and random numbers on it. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_ops.h"

#define MOST_ARENA (12ll << 30)

cuda_library cuda;
bench_state bench;

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("gpu_ops: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void must(fb_status status, const fb_error *err) {
    if (status != FB_OK) die("%s", err->message);
}

static void library_path(char path[4200]) {
    const char *given = getenv("FUSEBOX_CUDA_LIBRARY"), *places[] = {"", "../"};
    char folder[4096];
    if (given && *given) {
        snprintf(path, 4200, "%s", given);
        return;
    }
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[length > 0 ? length : 0] = 0;
    char *slash = strrchr(folder, '/');
    if (slash) slash[1] = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(path, 4200, "%s%slibfusebox_cuda.so", folder, places[i]);
        if (access(path, R_OK) == 0) return;
    }
}

static void open_library(void) {
    char path[4200];
    library_path(path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;
    if (!library) die("%s", dlerror());
#define X(name)                                                                                              \
    symbol = dlsym(library, #name);                                                                          \
    if (!symbol) die("%s: no " #name, path);                                                                 \
    memcpy(&cuda.name, &symbol, sizeof symbol);
    FUNCTIONS(X)
#undef X
    cuda.launches = dlsym(library, "fb_cuda_launches");
    if (!cuda.launches) die("%s: no fb_cuda_launches", path);
}

/* ---- numbers ----------------------------------------------------------------------------------------------
 */

/* Random numbers that all tensors are cut from, round and round: the host need not keep what it uploads.
 * Halves are in -1 to 1; so are quantised weights. In memory that copies need not wait for. */
static struct {
    int64_t count, scale_count; /* powers of two */
    uint16_t *halves;           /* [count] */
    float *values;              /* the same */
    uint8_t *bytes;             /* [2 * count] */
    uint16_t *scales[2];        /* of Q8_0 and Q4_0: [scale_count] */
    uint8_t *memory;
} block;

static uint64_t next_random(void) {
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void make_block(void) {
    fb_error err;
    void *memory;
    block.count = bench.tiny ? 1 << 18 : 1 << 25;
    block.scale_count = block.count / 32;
    int64_t bytes = 4 * block.count + 4 * block.scale_count;
    must(cuda.fb_gpu_take_host(bench.gpu, "random numbers", bytes, &memory, &err), &err);
    block.memory = memory;
    block.halves = memory;
    block.bytes = block.memory + 2 * block.count;
    block.scales[0] = (uint16_t *)(void *)(block.bytes + 2 * block.count);
    block.scales[1] = block.scales[0] + block.scale_count;
    block.values = malloc((size_t)block.count * sizeof *block.values);
    if (!block.values) die("no memory for random numbers");
    for (int64_t i = 0; i < block.count; i++) {
        uint64_t r = next_random();
        float value = (float)(int32_t)(uint32_t)r * 0x1p-31f;
        block.halves[i] = fb_f32_to_f16(value);
        block.values[i] = fb_f16_to_f32(block.halves[i]);
        for (int k = 0; k < 2; k++) {
            uint8_t byte = (uint8_t)(r >> (32 + 8 * k));
            block.bytes[2 * i + k] = byte == 0x80 ? 0x81 : byte; /* no encoder writes -128 */
        }
    }
    for (int64_t i = 0; i < block.scale_count; i++)
        for (int k = 0; k < 2; k++) {
            float value = 0.5f + (float)(next_random() >> 40) * 0x1p-25f;
            block.scales[k][i] = fb_f32_to_f16(value / (k ? 8.0f : 127.0f));
        }
}

int64_t tensor_bytes(const tensor *t) { return t->at ? fb_dtype_bytes(t->dtype, t->rows * t->cols) : 0; }

uint8_t *take(int64_t bytes) {
    uint8_t *at = bench.arena + bench.used;
    bench.used += (bytes + 255) / 256 * 256;
    if (bench.used > bench.arena_bytes)
        die("a case needs more than %.1f GB of device memory", 1e-9 * (double)bench.arena_bytes);
    return at;
}

void upload(uint8_t *to, const void *from, int64_t bytes) {
    fb_error err;
    must(cuda.fb_gpu_upload(bench.gpu, to, from, bytes, &err), &err);
}

/* `bytes` of a ring of `size` bytes, from byte `first` on. */
static void upload_ring(uint8_t *to, const void *ring, int64_t size, int64_t first, int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
        int64_t at = (first + done) % size, count = min_of(size - at, bytes - done);
        upload(to + done, (const uint8_t *)ring + at, count);
        done += count;
    }
}

tensor take_tensor(fb_dtype dtype, int64_t rows, int64_t cols) {
    return (tensor){
        .at = take(fb_dtype_bytes(dtype, rows * cols)), .dtype = dtype, .rows = rows, .cols = cols};
}

static int which_scales(fb_dtype dtype) { return dtype == FB_Q4_0; }

tensor take_random(fb_dtype dtype, int64_t rows, int64_t cols) {
    tensor t = take_tensor(dtype, rows, cols);
    t.start = bench.start;
    bench.start = (bench.start + 1000003) % block.count;
    if (dtype == FB_F16) {
        upload_ring(t.at, block.halves, 2 * block.count, 2 * t.start, tensor_bytes(&t));
        return t;
    }
    int64_t blocks = rows * cols / 32, integers = blocks * (dtype == FB_Q4_0 ? 16 : 32);
    upload_ring(t.at, block.bytes, 2 * block.count, t.start, integers);
    upload_ring(t.at + integers, block.scales[which_scales(dtype)], 2 * block.scale_count, 2 * t.start,
                2 * blocks);
    return t;
}

double half_at(const tensor *t, int64_t index) {
    return (double)block.values[(t->start + index) & (block.count - 1)];
}

void read_row(const tensor *t, int64_t row, double *to) {
    if (t->dtype == FB_F16) {
        for (int64_t i = 0; i < t->cols; i++) to[i] = half_at(t, row * t->cols + i);
        return;
    }
    const uint16_t *scales = block.scales[which_scales(t->dtype)];
    for (int64_t i = 0; i < t->cols; i++) {
        int64_t number = row * t->cols / 32 + i / 32, at = i % 32;
        double scale = (double)fb_f16_to_f32(scales[(t->start + number) & (block.scale_count - 1)]);
        bool four = t->dtype == FB_Q4_0;
        int64_t byte = t->start + (four ? 16 * number + at % 16 : 32 * number + at);
        uint8_t bits = block.bytes[byte & (2 * block.count - 1)];
        to[i] = scale * (four ? (at < 16 ? bits & 15 : bits >> 4) - 8 : (int8_t)bits);
    }
}

void fetch_row(const tensor *t, int64_t row, double *to) {
    fb_error err;
    int64_t bytes = fb_dtype_bytes(t->dtype, t->cols);
    uint8_t *raw = malloc((size_t)bytes);
    if (!raw) die("no memory for a row");
    must(cuda.fb_gpu_download(bench.gpu, raw, t->at + row * bytes, bytes, &err), &err);
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    for (int64_t i = 0; i < t->cols; i++) to[i] = fb_dtype_get(t->dtype, raw, i);
    free(raw);
}

double *doubles(int64_t count) {
    double *memory = malloc((size_t)count * sizeof *memory);
    if (!memory) die("no memory for %lld numbers", (long long)count);
    return memory;
}

/* ---- opening and closing ----------------------------------------------------------------------------------
 */

void open_device(void) {
    fb_error err;
    void *memory;
    open_library();
    must(cuda.fb_gpu_describe(0, &bench.info, &err), &err);
    must(cuda.fb_gpu_open(0, &bench.gpu, &err), &err);
    cuda.fb_gpu_context(bench.gpu, &bench.cx);
    bench.arena_bytes = bench.tiny ? 256 << 20 : min_of(MOST_ARENA, bench.info.memory_free / 10 * 8);
    must(cuda.fb_gpu_take(bench.gpu, "all cases", bench.arena_bytes, &memory, &err), &err);
    bench.arena = memory;
    make_block();
}

void close_device(void) {
    cuda.fb_gpu_give(bench.gpu, bench.arena);
    cuda.fb_gpu_give_host(bench.gpu, block.memory);
    free(block.values);
    cuda.fb_gpu_close(bench.gpu);
}
