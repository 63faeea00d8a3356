#include "backend/cpu/host/isa.h"
#include "backend/cpu/kernel.h"

const fb_cpu_kernel FB_KERNEL(kernels)[FB_OP_COUNT] = {
#define X(KIND, name, in, out, w, parts, text) [FB_OP_##KIND] = FB_KERNEL(name),
    FB_OPS(X)
#undef X
};
