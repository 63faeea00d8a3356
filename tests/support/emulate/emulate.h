/* Runs CUDA kernels on the host, one block after the other (or, where blocks wait for each other, all of them
 * at once), one thread after the other: a thread runs until
 * it meets others (at __syncthreads, or at an instruction of its warp), then the next one goes on. Slow, and
 * good for one thing: to see what a kernel computes where there is no GPU. Shared memory is NaN at the start
 * of a block. What only timing shows (races, missing barriers) it does not see; compute-sanitizer on a GPU
 * does. Threads of the host may launch at the same time: the device runs one launch after the other. */
#ifndef FB_TESTS_EMULATE_H
#define FB_TESTS_EMULATE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <tuple>
#include <vector>

#define __device__
#define __host__
#define __global__      static
#define __forceinline__ inline
#define __noinline__    inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__   static
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct __attribute__((aligned(8))) uint2 {
    uint32_t x, y;
};
struct __attribute__((aligned(16))) uint4 {
    uint32_t x, y, z, w;
};
struct __attribute__((aligned(8))) int2 {
    int32_t x, y;
};
struct __attribute__((aligned(16))) int4 {
    int32_t x, y, z, w;
};
struct __attribute__((aligned(8))) float2 {
    float x, y;
};
struct __attribute__((aligned(16))) float4 {
    float x, y, z, w;
};
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline int2 make_int2(int32_t x, int32_t y) { return {x, y}; }
static inline int4 make_int4(int32_t x, int32_t y, int32_t z, int32_t w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

/* Where the thread that runs now stands. */
struct fb_emulated_place {
    dim3 thread, block, block_dim, grid_dim;
};
extern const fb_emulated_place *fb_emulated_now;
#define threadIdx (fb_emulated_now->thread)
#define blockIdx  (fb_emulated_now->block)
#define blockDim  (fb_emulated_now->block_dim)
#define gridDim   (fb_emulated_now->grid_dim)
#define warpSize  32

void *fb_emulated_shared();
/* 0, or cudaErrorInvalidValue where the device would refuse: too many threads, no blocks, too much shared
 * memory. */
int fb_emulated_launch(bool together, dim3 grid, dim3 block, size_t shared_bytes, int shared_limit,
                       const std::function<void()> &thread);
/* Lets the other threads go on: for loops that wait for another thread, or for another block of a launch of
 * all together. `idle`: the thread has done nothing since it was here; when all wait like this, they wait for
 * ever. */
void fb_emulated_yield(bool idle);

/* While this thread records a graph, its steps; else NULL. */
extern __thread std::vector<std::function<int()>> *fb_emulated_recording;

template <class... P, class... A>
static inline int fb_emulated_call(bool together, int shared_limit, dim3 grid, dim3 block,
                                   size_t shared_bytes, void (*kernel)(P...), A... args) {
    std::tuple<P...> values(static_cast<P>(args)...);
    auto launch = [=] {
        return fb_emulated_launch(together, grid, block, shared_bytes, shared_limit,
                                  [&] { std::apply(kernel, values); });
    };
    if (!fb_emulated_recording) return launch();
    fb_emulated_recording->push_back(launch);
    return 0;
}

/* Waits for all threads of the block that still run (or for so many of them that say so), or of the warp that
 * are in `mask`. In a warp, each may leave a word there, and gets those of the others (zeros for threads that
 * do not take part). */
void fb_emulated_block_meet();
void fb_emulated_some_meet(int threads);
const uint64_t *fb_emulated_warp_meet(uint32_t mask, uint64_t word);

/* Of a warp's 32 lanes together: d += a b of 16-bit floats; d = a b + (c, c8) of signed bytes, with 16 or 32
 * columns; four matrices of 8 x 8. The fragments are those of mma.cuh and gemm.cuh. */
void fb_emulated_mma(bool bfloat, float *d, const uint32_t *a, const uint32_t *b);
void fb_emulated_mma_bytes(int halves, int *d, const uint32_t *a, const uint32_t *b, int c, int c8);
void fb_emulated_ldmatrix(uint32_t *r, const void *row, bool trans);

/* Others write to shared memory meanwhile, which to the compiler is a variable that nobody else can know: it
 * must not keep its values over a meeting (hence also -O1, mk/cuda.mk). */
#define FB_EMULATED_FENCE() __asm__ volatile("" ::: "memory")
static inline void __syncthreads() {
    FB_EMULATED_FENCE();
    fb_emulated_block_meet();
    FB_EMULATED_FENCE();
}
static inline void fb_emulated_sync(int threads) {
    FB_EMULATED_FENCE();
    fb_emulated_some_meet(threads);
    FB_EMULATED_FENCE();
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline void __syncwarp(uint32_t mask = 0xffffffffu) { fb_emulated_warp_meet(mask, 0); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline int fb_emulated_lane() {
    return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}

template <class T> static inline uint64_t fb_emulated_word(T x) {
    static_assert(sizeof x <= 8, "one word");
    uint64_t word = 0;
    memcpy(&word, &x, sizeof x);
    return word;
}
template <class T> static inline T fb_emulated_value(uint64_t word) {
    T x;
    memcpy(&x, &word, sizeof x);
    return x;
}
template <class T> static inline T __shfl_sync(uint32_t mask, T x, int lane, int width = 32) {
    int self = fb_emulated_lane();
    return fb_emulated_value<T>(
        fb_emulated_warp_meet(mask, fb_emulated_word(x))[self / width * width + (lane & (width - 1))]);
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T x, int with, int width = 32) {
    int self = fb_emulated_lane(), other = self ^ with;
    const uint64_t *words = fb_emulated_warp_meet(mask, fb_emulated_word(x));
    return other / width > self / width ? x : fb_emulated_value<T>(words[other]);
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T x, int by, int width = 32) {
    int self = fb_emulated_lane();
    const uint64_t *words = fb_emulated_warp_meet(mask, fb_emulated_word(x));
    return self % width + by >= width ? x : fb_emulated_value<T>(words[self + by]);
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T x, int by, int width = 32) {
    int self = fb_emulated_lane();
    const uint64_t *words = fb_emulated_warp_meet(mask, fb_emulated_word(x));
    return self % width < by ? x : fb_emulated_value<T>(words[self - by]);
}
static inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
    const uint64_t *words = fb_emulated_warp_meet(mask, predicate != 0);
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= (uint32_t)(words[i] != 0) << i;
    return bits;
}
static inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(uint32_t mask, int predicate) {
    return (__ballot_sync(mask, predicate) & mask) == mask;
}

template <class T> static inline T atomicAdd(T *p, T by) {
    T old = *p;
    *p = (T)(old + by);
    return old;
}
static inline unsigned atomicInc(unsigned *p, unsigned most) {
    unsigned old = *p;
    *p = old >= most ? 0 : old + 1;
    return old;
}
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }

static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return c;
}
static inline float __int_as_float(int x) { return fb_emulated_value<float>(fb_emulated_word(x)); }
static inline float __uint_as_float(uint32_t x) { return fb_emulated_value<float>(fb_emulated_word(x)); }
static inline int __float_as_int(float x) { return fb_emulated_value<int>(fb_emulated_word(x)); }
static inline uint32_t __float_as_uint(float x) { return fb_emulated_value<uint32_t>(fb_emulated_word(x)); }
static inline int __float2int_rn(float x) { return x == x ? (int)nearbyintf(x) : 0; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

#endif
