/* The launchers, by op kind. */
#include "backend/cuda/kernel.h"

const fb_cuda_launch fb_cuda_launches[FB_OP_COUNT] = {
#define X(KIND, name, in, out, w, parts, text) fb_cuda_##name,
    FB_OPS(X)
#undef X
};
