/* Few rows times weights of float32. */
#include "backend/cuda/matvec.cuh"

int mv_launch_float(const mv_plan *plan, const fb_cuda_context *cx) {
    return mv_launch<float, float>(plan, cx);
}
