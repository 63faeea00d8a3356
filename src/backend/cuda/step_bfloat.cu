/* A step's layers, of weights and activations of bfloat16. */
#include "backend/cuda/step_kernel.cuh"

int st_launch_bfloat(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx) {
    return st_launch<fb_bfloat, fb_bfloat, fb_bfloat>(list, rooms, cx);
}
