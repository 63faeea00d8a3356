/* Few rows times quantised weights in records: integer products with quantised x. */
#include "backend/cuda/matvec.cuh"

int mv_launch_records(const mv_plan *plan, const fb_cuda_context *cx) {
    return mv_launch<mv_record, mv_blocks>(plan, cx);
}
