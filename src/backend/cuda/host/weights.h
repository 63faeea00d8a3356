/* Weights on the device, in the layout of kernel.h. Sessions of one model share them: what is there already
 * is not copied again. */
#ifndef FB_BACKEND_CUDA_WEIGHTS_H
#define FB_BACKEND_CUDA_WEIGHTS_H

#include "backend/backend.h"
#include "backend/cuda/gpu.h"

typedef struct fb_cuda_weights fb_cuda_weights;

fb_status fb_cuda_weights_take(fb_gpu *gpu, int32_t device, const fb_bound *bound, fb_cuda_weights **out,
                               fb_error *err);
void fb_cuda_weights_give(fb_gpu *gpu, fb_cuda_weights *weights);
/* [slots * layers], as fb_bound has them, with device pointers. */
const fb_weight *fb_cuda_weights_table(const fb_cuda_weights *weights);

#endif
