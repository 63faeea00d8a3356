/* Converts quantised weights from the file's layout to the kernels'. */
#ifndef FB_BACKEND_CUDA_LOAD_H
#define FB_BACKEND_CUDA_LOAD_H

#include "backend/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Splits blocks as a file has them, each a float16 scale and `quants` bytes (a multiple of 2), into an array
 * of all quants and one of all scales. The result is a cudaError_t. */
int fb_cuda_split_blocks(const uint8_t *blocks, int64_t count, int quants, uint8_t *to_quants,
                         uint8_t *to_scales, const fb_cuda_context *cx);

#ifdef __cplusplus
}
#endif
#endif
