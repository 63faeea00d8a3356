/* The activation functions, for the ops of the same names and for the kernels they are fused into. */
#ifndef FB_BACKEND_CUDA_ACTIVATION_CUH
#define FB_BACKEND_CUDA_ACTIVATION_CUH

#include "backend/cuda/device.cuh"

/* x * Phi(x), by erfc: this keeps the digits of the left tail, which 1 + erf(…) loses to cancellation. */
FB_DEVICE float fb_gelu(float x) { return 0.5f * x * erfcf(-0.70710678118654752f * x); }

/* x / (1 + exp(-y)): silu for y = x, the tanh form of gelu for y = 2 sqrt(2/pi) (x + 0.044715 x^3). */
FB_DEVICE float fb_gate(float x, float y) { return x / (1.0f + expf(-y)); }
FB_DEVICE float fb_silu(float x) { return fb_gate(x, x); }
FB_DEVICE float fb_gelu_tanh(float x) {
    return fb_gate(x, 1.5957691216057308f * (x + 0.044715f * x * x * x));
}

FB_DEVICE float fb_softcap(float x, float cap) { return tanhf(x / cap) * cap; }

/* By kind; x itself for FB_OP_COUNT. */
FB_DEVICE float fb_activate(fb_op_kind kind, float x) {
    switch (kind) {
    case FB_OP_GELU:
        return fb_gelu(x);
    case FB_OP_GELU_TANH:
        return fb_gelu_tanh(x);
    case FB_OP_SILU:
        return fb_silu(x);
    default:
        return x;
    }
}

#endif
