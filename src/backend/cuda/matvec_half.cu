/* Few rows times weights of float16. x is staged as float16 if it is, which halves the reads of shared
 * memory. */
#include "backend/cuda/matvec.cuh"

int mv_launch_half(const mv_plan *plan, const fb_cuda_context *cx) {
    return plan->x_type == FB_F16 ? mv_launch<fb_half, fb_half>(plan, cx)
                                  : mv_launch<fb_half, float>(plan, cx);
}
