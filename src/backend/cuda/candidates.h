/* The best logits of each row, selected on the device. A sampler needs no others (text/sampler.h), so that
 * not all logits must be copied to the host. */
#ifndef FB_BACKEND_CUDA_CANDIDATES_H
#define FB_BACKEND_CUDA_CANDIDATES_H

#include "backend/cuda/kernel.h"
#include "base/candidate.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FB_CUDA_CANDIDATES FB_CANDIDATES

/* All pointers are device addresses. */
typedef struct fb_cuda_selection {
    const void *logits; /* [rows, vocab] */
    fb_dtype dtype;     /* F32, F16 or BF16 */
    int64_t row_stride; /* elements; any number */
    int64_t rows;       /* 1 to 16384 */
    int64_t vocab;      /* 1 to 2^30 */
    int64_t count;      /* 1 to FB_CUDA_CANDIDATES */
    /* [rows, count]: the best first, the lower id first among equals. NaN and +inf come before all others, by
     * id. So a row has one if its first logit is one, and that is the one with the lowest id. Behind the end
     * of a small vocabulary: -inf, id -1. */
    fb_candidate *best;
    /* More ids, whose logits are copied as they are. NULL: none. */
    const int32_t *ids;      /* [rows, ids_stride], each 0 to vocab - 1 */
    const int32_t *id_count; /* [rows], 0 to ids_stride */
    int64_t ids_stride;
    fb_candidate *gathered; /* [rows, ids_stride]; the first id_count of a row are written */
} fb_cuda_selection;

#pragma GCC visibility push(default) /* the kernels' tests call these */

/* The result is a cudaError_t. The scratch that it needs, counters included. */
int fb_cuda_candidates(const fb_cuda_selection *selection, const fb_cuda_context *cx);
int64_t fb_cuda_candidates_scratch(int64_t rows, int64_t vocab);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
