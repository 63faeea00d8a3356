/* The persistent kernel for bfloat16 weights and activations. */
#include "backend/cuda/persistent_kernel.cuh"

int pk_launch_bfloat(const fb_cuda_work_list *list, const pk_params *params, const fb_cuda_context *cx) {
    return pk_launch<fb_bfloat, fb_bfloat, fb_bfloat>(list, params, cx);
}
