/* linear_group with many rows (a prompt): products of matrices. linear.cu serves up to FB_CUDA_FEW_ROWS rows
 * itself and hands the rest to these. */
#ifndef FB_BACKEND_CUDA_GEMM_H
#define FB_BACKEND_CUDA_GEMM_H

#include "backend/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Up to so many rows are a matter of reading the weights once. */
#define FB_CUDA_FEW_ROWS 8

/* A group (a linear alone is a group of one: attr.segments 1, no norm, no act, no combination), with any
 * number of rows. The result is a cudaError_t. */
int fb_cuda_gemm_group(const fb_call *group, const fb_cuda_context *cx);

/* Bytes of scratch that it asks for with up to `rows` rows, the counters' FB_CUDA_COUNTERS at its beginning
 * included. `call` is a group as above; its pointers are not followed, but weights[].data NULL says absent.
 */
int64_t fb_cuda_gemm_scratch(const fb_call *call, int64_t rows);

/* A cublasLtHandle_t for fb_cuda_context.blas; NULL where the library is not installed. */
void *fb_cuda_blas_create(void);
void fb_cuda_blas_destroy(void *blas);

#ifdef __cplusplus
}
#endif
#endif
