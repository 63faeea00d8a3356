#include "backend/cuda/state.h"

#include "backend/cuda/device.cuh"

__global__ void advance_kernel(fb_cuda_state *state, const float *best) {
    fb_let_next_start();
    fb_wait_for_previous();
    if (best) {
        state->best = (int32_t)best[1];
        state->rows[0].token = state->best < 0 ? 0 : state->best;
    }
    state->rows[0].position++;
}

int fb_cuda_advance(fb_cuda_state *state, const float *best, const fb_cuda_context *cx) {
    return FB_LAUNCH(cx, dim3(1), dim3(1), 0, advance_kernel, state, best);
}
