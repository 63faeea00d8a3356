/* The device memory that changes from step to step: the batch's rows and the best token. A recorded graph
 * reads them there, so that one recording serves every step. */
#ifndef FB_BACKEND_CUDA_STATE_H
#define FB_BACKEND_CUDA_STATE_H

#include "backend/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fb_cuda_state {
    int32_t best; /* the last step's best token; -1: a score is NaN */
    int32_t unused[3];
    fb_row rows[]; /* [chunk] */
} fb_cuda_state;

/* Runs after a decode step. Advances the position of the first row by one. Where head_argmax has left (score,
 * column) at `best`, the column becomes state->best and the token of the next step's only row. */
int fb_cuda_advance(fb_cuda_state *state, const float *best, const fb_cuda_context *cx);

#ifdef __cplusplus
}
#endif
#endif
