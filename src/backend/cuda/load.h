/* What happens to weights on their way to the device. */
#ifndef FB_BACKEND_CUDA_LOAD_H
#define FB_BACKEND_CUDA_LOAD_H

#include "backend/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Blocks as a file has them, each a float16 scale and `quants` bytes (a multiple of 2), become all quants,
 * then, elsewhere, all scales. The result is a cudaError_t. */
int fb_cuda_split_blocks(const uint8_t *blocks, int64_t count, int quants, uint8_t *to_quants,
                         uint8_t *to_scales, const fb_cuda_context *cx);

#ifdef __cplusplus
}
#endif
#endif
