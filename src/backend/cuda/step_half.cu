/* A step's layers, of weights and activations of float16. */
#include "backend/cuda/step_kernel.cuh"

int st_launch_half(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx) {
    return st_launch<fb_half, fb_half, fb_half>(list, rooms, cx);
}
