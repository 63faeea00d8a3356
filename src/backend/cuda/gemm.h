/* linear_group with many rows (a prompt): matrix products. linear.cu computes up to FB_CUDA_FEW_ROWS rows
 * itself and calls these for more. */
#ifndef FB_BACKEND_CUDA_GEMM_H
#define FB_BACKEND_CUDA_GEMM_H

#include "backend/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* With up to so many rows, one launch also prepares the inputs. */
#define FB_CUDA_FEW_ROWS 8

/* Launches a group with any number of rows. A linear alone is a group of one: attr.segments 1, no norm, no
 * act, no combination. The result is a cudaError_t. */
int fb_cuda_gemm_group(const fb_call *group, const fb_cuda_context *cx);

/* The most rows with which a group is not for fb_cuda_gemm_group: FB_CUDA_FEW_ROWS, or 1 if all its segments
 * are for tensor cores. */
int64_t fb_cuda_gemm_from(const fb_call *group);

/* Whether it adds in the order of sums.h, with cx->invariant and for up to 64 rows always. */
bool fb_cuda_gemm_has_order(const fb_call *group, const fb_cuda_context *cx);

/* Bytes of scratch that it needs for up to `rows` rows, including the FB_CUDA_COUNTERS at its beginning.
 * `call` is a group as above. Its pointers are not followed; weights[].data NULL means that there is none. */
int64_t fb_cuda_gemm_scratch(const fb_call *call, int64_t rows);

/* A handle for fb_cuda_context.blas; NULL if cuBLASLt is not installed. */
void *fb_cuda_blas_create(void);
void fb_cuda_blas_destroy(void *blas);

#ifdef __cplusplus
}
#endif
#endif
