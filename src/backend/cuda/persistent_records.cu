/* The persistent kernel for weights in records, whose types may differ, multiplied with quantised
 * activations. */
#include "backend/cuda/persistent_kernel.cuh"

int pk_launch_records(const fb_cuda_work_list *list, const pk_params *params, const fb_cuda_context *cx) {
    return list->act == FB_F16 ? pk_launch<mv_record, mv_blocks, fb_half>(list, params, cx)
                               : pk_launch<mv_record, mv_blocks, fb_bfloat>(list, params, cx);
}
