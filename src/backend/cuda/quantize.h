/* A norm and the quantize op after it, as one kernel. */
#ifndef FB_BACKEND_CUDA_QUANTIZE_H
#define FB_BACKEND_CUDA_QUANTIZE_H

#include "backend/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `call`: of a norm whose kind is attr.norm, but out[0] has fb_q8 blocks. The bits are those of the two ops.
 */
int fb_cuda_norm_quantize(const fb_call *call, const fb_cuda_context *cx);
/* Whether there is a kernel for its width and alignment. */
bool fb_cuda_norm_quantize_fits(const fb_call *call);

#ifdef __cplusplus
}
#endif
#endif
