/* Few rows times weights of Q8_0: integer products with quantised x, or floats. */
#include "backend/cuda/matvec.cuh"

int mv_launch_q8(const mv_plan *plan, const fb_cuda_context *cx) {
    return plan->dot == FB_DOT_FLOAT ? mv_launch<mv_q8, float>(plan, cx)
                                     : mv_launch<mv_q8, mv_blocks>(plan, cx);
}
