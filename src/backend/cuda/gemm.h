/* linear_group as matrix products: the rows of prompts, and several generated ones (linear.cu). */
#ifndef FB_BACKEND_CUDA_GEMM_H
#define FB_BACKEND_CUDA_GEMM_H

#include "backend/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows that matvec.cuh multiplies at once, at most. */
#define FB_CUDA_FEW_ROWS 8

/* Launches a group with any number of rows of a prompt. A linear alone is a group of one: attr.segments 1, no
 * norm, no act, no combination. The result is a cudaError_t. */
int fb_cuda_gemm_group(const fb_call *group, const fb_cuda_context *cx);

/* The same for generated rows, in the order of sums.h: up to the number of rows that fb_cuda_gemm_few_rows
 * gives; 0: the group has weights for which there is no such kernel. */
int fb_cuda_gemm_few(const fb_call *group, const fb_cuda_context *cx);
int64_t fb_cuda_gemm_few_rows(const fb_call *group, const fb_cuda_context *cx);

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
