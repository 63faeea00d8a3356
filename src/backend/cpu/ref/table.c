#include "backend/cpu/host/isa.h"
#include "backend/cpu/ref/ref.h"

const fb_cpu_kernel fb_cpu_kernels_ref[FB_OP_COUNT] = {
#define X(KIND, name, in, out, w, parts, text) [FB_OP_##KIND] = fb_cpu_##name##_ref,
    FB_OPS(X)
#undef X
};
