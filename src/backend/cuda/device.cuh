/* What all CUDA kernels share: element types, loads, reductions, launches.
 *
 * Kernels are compiled by nvcc, and for the tests by a host compiler, too (FB_EMULATED:
 * tests/support/emulate), so that machines without a GPU check what they compute. Therefore:
 *  - 16-bit floats are uint16_t, converted here;
 *  - instructions that C does not have are functions here, in both forms;
 *  - a launch is FB_LAUNCH, and dynamic shared memory is FB_SHARED.
 * nvcc is told not to contract a * b + c; code that needs one rounding says fmaf. So a fused kernel and the
 * plain ones agree to the bit. */
#ifndef FB_BACKEND_CUDA_DEVICE_CUH
#define FB_BACKEND_CUDA_DEVICE_CUH

#ifndef FB_EMULATED /* else emulate.h was included first (mk/cuda.mk) */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif
#include <math.h>
#include <stdint.h>

#include "backend/cuda/kernel.h"
#include "base/quant.h"

#define FB_WARP     32
#define FB_ALL      0xffffffffu
#define FB_DEVICE   __device__ __forceinline__
#define FB_HOST_DEV __host__ __device__ __forceinline__
#define FB_NOINLINE static __device__ __noinline__

/* ---- element types ---- */

struct fb_half {
    uint16_t bits;
};
struct fb_bfloat {
    uint16_t bits;
};

#ifdef FB_EMULATED
FB_DEVICE float fb_widen(float x) { return x; }
FB_DEVICE float fb_widen(fb_half x) { return fb_f16_to_f32(x.bits); }
FB_DEVICE float fb_widen(fb_bfloat x) { return fb_bf16_to_f32(x.bits); }
template <class T> FB_DEVICE T fb_narrow(float x);
template <> FB_DEVICE float fb_narrow<float>(float x) { return x; }
template <> FB_DEVICE fb_half fb_narrow<fb_half>(float x) { return {fb_f32_to_f16(x)}; }
template <> FB_DEVICE fb_bfloat fb_narrow<fb_bfloat>(float x) { return {fb_f32_to_bf16(x)}; }
#else
FB_DEVICE float fb_widen(float x) { return x; }
FB_DEVICE float fb_widen(fb_half x) { return __half2float(__ushort_as_half(x.bits)); }
FB_DEVICE float fb_widen(fb_bfloat x) { return __uint_as_float((uint32_t)x.bits << 16); }
template <class T> FB_DEVICE T fb_narrow(float x);
template <> FB_DEVICE float fb_narrow<float>(float x) { return x; }
template <> FB_DEVICE fb_half fb_narrow<fb_half>(float x) { return {__half_as_ushort(__float2half_rn(x))}; }
template <> FB_DEVICE fb_bfloat fb_narrow<fb_bfloat>(float x) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
#endif

/* x after it is stored as a T and loaded again. */
template <class T> FB_DEVICE float fb_rounded(float x) { return fb_widen(fb_narrow<T>(x)); }

/* Runs the statement with T the element type of `dtype`: FB_FOR_TYPE(dtype, T, launch<T>(…)). Other dtypes:
 * nothing. */
#define FB_FOR_TYPE(dtype, T, ...)                                                                           \
    do {                                                                                                     \
        switch (dtype) {                                                                                     \
        case FB_F32: {                                                                                       \
            using T = float;                                                                                 \
            __VA_ARGS__;                                                                                     \
        } break;                                                                                             \
        case FB_F16: {                                                                                       \
            using T = fb_half;                                                                               \
            __VA_ARGS__;                                                                                     \
        } break;                                                                                             \
        case FB_BF16: {                                                                                      \
            using T = fb_bfloat;                                                                             \
            __VA_ARGS__;                                                                                     \
        } break;                                                                                             \
        default:                                                                                             \
            break;                                                                                           \
        }                                                                                                    \
    } while (0)

/* ---- memory ---- */

/* cp.async: copies 16 bytes from global to shared memory without a register. fb_copy_commit ends a group of
 * copies; after fb_copy_wait<n> all groups but the last n have arrived. */
FB_DEVICE void fb_copy_16(void *shared, const void *global) {
#ifdef FB_EMULATED
    memcpy(shared, global, 16);
#else
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
        "l"(global));
#endif
}
FB_DEVICE void fb_copy_commit() {
#ifndef FB_EMULATED
    asm volatile("cp.async.commit_group;");
#endif
}
template <int n> FB_DEVICE void fb_copy_wait() {
#ifndef FB_EMULATED
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#endif
}

FB_HOST_DEV bool fb_aligned(const void *p, int bytes) { return ((uintptr_t)p & (uintptr_t)(bytes - 1)) == 0; }

/* A barrier of the block's first THREADS threads; 0: of all. */
template <int THREADS> FB_DEVICE void fb_sync() {
    if (THREADS == 0)
        __syncthreads();
    else
#ifdef FB_EMULATED
        fb_emulated_sync(THREADS);
#else
        asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
#endif
}

/* ---- reductions: the order of a sum never depends on timing ---- */

FB_DEVICE float fb_warp_sum(float x) {
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(FB_ALL, x, offset);
    return x;
}
FB_DEVICE float fb_warp_max(float x) {
    for (int offset = 16; offset; offset >>= 1) x = fmaxf(x, __shfl_xor_sync(FB_ALL, x, offset));
    return x;
}

/* The sum over a block of up to 32 warps, in every thread. `smem`: 33 floats of shared memory, which may be
 * used again after the next __syncthreads. All threads of the block must call it. */
FB_DEVICE float fb_block_sum(float x, float *smem) {
    int warp = threadIdx.x / FB_WARP, lane = threadIdx.x % FB_WARP,
        warps = (blockDim.x + FB_WARP - 1) / FB_WARP;
    x = fb_warp_sum(x);
    if (lane == 0) smem[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = fb_warp_sum(lane < warps ? smem[lane] : 0);
        if (lane == 0) smem[32] = x;
    }
    __syncthreads();
    return smem[32];
}

/* ---- launches ---- */

/* Programmatic dependent launch: with cx->overlap a kernel starts while the one before it still runs. Before
 * fb_wait_for_previous it may touch only weights, its own shared memory, and what earlier steps have left.
 * Every thread of every kernel must call it, even one that has nothing to do. Otherwise the kernel after the
 * next could start too early. */
FB_DEVICE void fb_wait_for_previous() {
#if !defined FB_EMULATED && defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* From here on the next kernel may start, where its blocks fit beside this one's. */
FB_DEVICE void fb_let_next_start() {
#if !defined FB_EMULATED && defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#ifdef FB_EMULATED
#define FB_SHARED(type, name) type *name = (type *)fb_emulated_shared()
#define FB_LAUNCH(cx, grid, block, shared_bytes, kernel, ...)                                                \
    fb_emulated_call(false, (cx)->limits->shared_limit, grid, block, shared_bytes, kernel, __VA_ARGS__)
#define FB_LAUNCH_CACHED(cx, grid, block, kernel, ...) FB_LAUNCH(cx, grid, block, 0, kernel, __VA_ARGS__)
#define FB_LAUNCH_COOPERATIVE(cx, grid, block, shared_bytes, kernel, ...)                                    \
    fb_emulated_call(true, (cx)->limits->shared_limit, grid, block, shared_bytes, kernel, __VA_ARGS__)
#define FB_FITS_COOPERATIVE(cx, threads, shared_bytes, kernel) true
#else
extern __shared__ __align__(16) unsigned char fb_shared_memory[];
#define FB_SHARED(type, name) type *name = (type *)fb_shared_memory

/* On devices with a lower number, a kernel is prepared once; on others, before each launch. */
#define FB_PREPARED_DEVICES   16

/* Prepares a kernel before its first launch on a device. It may then use all the dynamic shared memory that a
 * block can have: more than 48 KiB, static included, must be allowed explicitly, and a launch with less must
 * not change the limit for another. `shared`: percent of a multiprocessor's memory that is shared memory; the
 * rest is its first-level cache. Kernels that run side by side must have the same. Threads that call this at
 * the same time set the same values. */
template <auto kernel, int shared = cudaSharedmemCarveoutMaxShared>
static cudaError_t fb_prepare(const fb_cuda_context *cx) {
    static bool prepared[FB_PREPARED_DEVICES];
    bool known = cx->device < FB_PREPARED_DEVICES;
    if (known && __atomic_load_n(&prepared[cx->device], __ATOMIC_ACQUIRE)) return cudaSuccess;
    const void *function = (const void *)kernel;
    cudaFuncAttributes of;
    cudaError_t code = cudaFuncGetAttributes(&of, function);
    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    cx->limits->shared_limit - (int)of.sharedSizeBytes);
    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout, shared);
    if (known && code == cudaSuccess) __atomic_store_n(&prepared[cx->device], true, __ATOMIC_RELEASE);
    return code;
}

template <class... P, class... A>
static int fb_launch(const fb_cuda_context *cx, bool cooperative, dim3 grid, dim3 block, size_t shared_bytes,
                     cudaError_t prepared, void (*kernel)(P...), A... args) {
    if (prepared != cudaSuccess) return prepared;
    cudaLaunchAttribute how;
    if (cooperative) {
        how.id = cudaLaunchAttributeCooperative;
        how.val.cooperative = 1;
    } else {
        how.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        how.val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = (cudaStream_t)cx->stream;
    config.attrs = &how;
    config.numAttrs = cooperative || cx->overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}
/* Launches kernel(…); the value is a cudaError_t. A template with commas must be in parentheses. */
#define FB_LAUNCH(cx, grid, block, shared_bytes, kernel, ...)                                                \
    fb_launch(cx, false, grid, block, shared_bytes, fb_prepare<kernel>(cx), kernel, __VA_ARGS__)
/* The same, for a kernel that reads the same bytes in every block and fills the device for long: it gets most
 * of a multiprocessor's memory as cache. */
#define FB_LAUNCH_CACHED(cx, grid, block, kernel, ...)                                                       \
    fb_launch(cx, false, grid, block, 0, fb_prepare<kernel, 14>(cx), kernel, __VA_ARGS__)
/* Whether a block of the kernel fits on each multiprocessor, and the kernel was compiled for sm_90 or later.
 * A device without machine code of its own runs the oldest PTX, where a kernel for newer devices is empty. */
template <auto kernel>
static bool fb_fits_cooperative(const fb_cuda_context *cx, int threads, size_t shared_bytes) {
    cudaFuncAttributes of;
    int blocks = 0;
    bool fits = cudaFuncGetAttributes(&of, (const void *)kernel) == cudaSuccess && of.ptxVersion >= 90 &&
                fb_prepare<kernel>(cx) == cudaSuccess &&
                cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)kernel, threads,
                                                              shared_bytes) == cudaSuccess;
    if (!fits) cudaGetLastError(); /* or a later launch would report it */
    return fits && blocks > 0;
}
#define FB_FITS_COOPERATIVE(cx, threads, shared_bytes, kernel)                                               \
    fb_fits_cooperative<kernel>(cx, threads, shared_bytes)
/* A launch whose blocks may wait for each other: all of them run at once, or none. */
#define FB_LAUNCH_COOPERATIVE(cx, grid, block, shared_bytes, kernel, ...)                                    \
    fb_launch(cx, true, grid, block, shared_bytes, fb_prepare<kernel>(cx), kernel, __VA_ARGS__)
#endif

#endif
