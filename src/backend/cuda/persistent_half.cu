/* The persistent kernel for float16 weights and activations. */
#include "backend/cuda/persistent_kernel.cuh"

int pk_launch_half(const fb_cuda_work_list *list, const pk_params *params, const fb_cuda_context *cx) {
    return pk_launch<fb_half, fb_half, fb_half>(list, params, cx);
}
