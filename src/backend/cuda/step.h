/* What a step reads and leaves on the device besides the program's values. */
#ifndef FB_BACKEND_CUDA_STEP_H
#define FB_BACKEND_CUDA_STEP_H

#include "backend/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fb_cuda_state {
    int64_t position; /* of the step's first token */
    int32_t best;     /* the last step's best token; -1: a score is NaN */
    int32_t unused;
    int32_t ids[]; /* [chunk] */
} fb_cuda_state;

/* After a decode step: the next position; and, where head_argmax has left a row (score, column) at `best`,
 * its token in state->best and as the next step's only id. */
int fb_cuda_advance(fb_cuda_state *state, const float *best, const fb_cuda_context *cx);

#ifdef __cplusplus
}
#endif
#endif
