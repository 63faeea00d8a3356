/* The CPU's cases of this family, on the CUDA kernels. */
#include "backend/cuda/cuda_harness.h"

#define MULTIPLIED_AS(act)                      (act)
#define fb_isa_table                            cuda_isas
#define kernel_run_family(family, tests, count) cuda_run_family(family, tests, count, 3)
#include "backend/cpu/test_linear.c"
