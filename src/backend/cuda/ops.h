/* Single ops on the caller's memory and stream (include/fusebox_ops.h): the part of them that runs on a GPU.
 * src/ops/ fills calls; this launches them. */
#ifndef FB_BACKEND_CUDA_OPS_H
#define FB_BACKEND_CUDA_OPS_H

#include "backend/cuda/kernel.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fb_cuda_ops fb_cuda_ops;
struct fb_device;

typedef struct fb_cuda_ops_table {
    fb_status (*open)(struct fb_device *device, fb_cuda_ops **out, fb_error *err);
    void (*close)(fb_cuda_ops *ops);
    /* Makes the workspace of a stream at least `bytes` long. */
    fb_status (*reserve)(fb_cuda_ops *ops, void *stream, int64_t bytes, fb_error *err);
    /* Begins an op on a stream. `*temp` is memory for what its launches hand to each other. If it succeeds,
     * other threads wait until `end`. */
    fb_status (*begin)(fb_cuda_ops *ops, void *stream, int64_t temp_bytes, uint8_t **temp, fb_error *err);
    void (*end)(fb_cuda_ops *ops);
    /* Launches a kernel of the op. All addresses of the call are the device's, attr.frequencies too; kv.k_at
     * and kv.v_at are addresses. Attention sees slots below `context`. */
    fb_status (*launch)(fb_cuda_ops *ops, fb_op_kind kind, const fb_call *call, int64_t context,
                        fb_error *err);
    /* Fills rows [count] with positions, at most `last` each. positions NULL: from `first` on. */
    fb_status (*rows)(fb_cuda_ops *ops, const void *positions, bool wide, int64_t first, int64_t last,
                      int64_t count, fb_row *to, fb_error *err);
    /* Stores up to FB_CUDA_NUMBERS numbers of the host. */
    fb_status (*numbers)(fb_cuda_ops *ops, const double *numbers, int64_t count, double *to, fb_error *err);
    /* The device's form of a weight that lies in host memory as a file has it. */
    fb_status (*pack)(fb_cuda_ops *ops, const fb_weight *from, fb_weight *to, fb_error *err);
    void (*unpack)(fb_cuda_ops *ops, const fb_weight *weight);
} fb_cuda_ops_table;

extern const fb_cuda_ops_table fb_cuda_ops_functions;

/* Launchers (positions.cu); the result is a cudaError_t. Numbers are passed as a kernel's parameter, of which
 * a captured graph keeps a copy. */
#define FB_CUDA_NUMBERS 256
int fb_cuda_positions(const void *positions, bool wide, int64_t first, int64_t last, int64_t count,
                      fb_row *to, const fb_cuda_context *cx);
int fb_cuda_numbers(const double *numbers, int64_t count, double *to, const fb_cuda_context *cx);

#ifdef __cplusplus
}
#endif
#endif
