/* A step's layers, of weights of Q8_0, multiplied with quantised activations. */
#include "backend/cuda/step_kernel.cuh"

int st_launch_q8(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx) {
    return list->act == FB_F16 ? st_launch<mv_q8, mv_blocks, fb_half>(list, rooms, cx)
                               : st_launch<mv_q8, mv_blocks, fb_bfloat>(list, rooms, cx);
}
