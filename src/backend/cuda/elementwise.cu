/* add, mul, and the fused add3 and swiglu. */
#include "backend/cuda/elementwise.cuh"

int fb_cuda_add(const fb_call *call, const fb_cuda_context *cx) {
    return fb_map_call<FB_OP_ADD, 2>(call, cx);
}
int fb_cuda_mul(const fb_call *call, const fb_cuda_context *cx) {
    return fb_map_call<FB_OP_MUL, 2>(call, cx);
}
int fb_cuda_add3(const fb_call *call, const fb_cuda_context *cx) {
    return fb_map_call<FB_OP_ADD3, 3>(call, cx);
}
int fb_cuda_swiglu(const fb_call *call, const fb_cuda_context *cx) {
    return fb_map_call<FB_OP_SWIGLU, 2>(call, cx);
}
