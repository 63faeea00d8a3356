/* Few rows times quantised weights in records, as floats. */
#include "backend/cuda/matvec.cuh"

int mv_launch_records_float(const mv_plan *plan, const fb_cuda_context *cx) {
    return mv_launch<mv_record, float>(plan, cx);
}
