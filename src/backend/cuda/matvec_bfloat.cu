/* Few rows times weights of bfloat16. x is staged as bfloat16 if it is, which halves the reads of shared
 * memory. */
#include "backend/cuda/matvec.cuh"

int mv_launch_bfloat(const mv_plan *plan, const fb_cuda_context *cx) {
    return plan->x_type == FB_BF16 ? mv_launch<fb_bfloat, fb_bfloat>(plan, cx)
                                   : mv_launch<fb_bfloat, float>(plan, cx);
}
