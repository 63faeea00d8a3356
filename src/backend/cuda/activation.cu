/* gelu, gelu_tanh, silu, scale, softcap: elementwise functions of one input. */
#include "backend/cuda/elementwise.cuh"

int fb_cuda_gelu(const fb_call *call, const fb_cuda_context *cx) {
    return fb_map_call<FB_OP_GELU, 1>(call, cx);
}
int fb_cuda_gelu_tanh(const fb_call *call, const fb_cuda_context *cx) {
    return fb_map_call<FB_OP_GELU_TANH, 1>(call, cx);
}
int fb_cuda_silu(const fb_call *call, const fb_cuda_context *cx) {
    return fb_map_call<FB_OP_SILU, 1>(call, cx);
}
int fb_cuda_scale(const fb_call *call, const fb_cuda_context *cx) {
    return fb_map_call<FB_OP_SCALE, 1>(call, cx);
}
int fb_cuda_softcap(const fb_call *call, const fb_cuda_context *cx) {
    return fb_map_call<FB_OP_SOFTCAP, 1>(call, cx);
}
