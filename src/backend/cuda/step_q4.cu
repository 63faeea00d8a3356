/* A step's layers, of weights of Q4_0, multiplied with quantised activations. */
#include "backend/cuda/step_kernel.cuh"

int st_launch_q4(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx) {
    return list->act == FB_F16 ? st_launch<mv_q4, mv_blocks, fb_half>(list, rooms, cx)
                               : st_launch<mv_q4, mv_blocks, fb_bfloat>(list, rooms, cx);
}
