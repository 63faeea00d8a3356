/* What a step reads and leaves on the device besides the program's values. */
#ifndef FB_BACKEND_CUDA_STEP_H
#define FB_BACKEND_CUDA_STEP_H

#include "backend/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fb_cuda_state {
    /* The first row's position, its sequence and that sequence's cache lie in the same 32 bytes, which come
     * in one read. */
    uint8_t *cache; /* the caches table of one sequence */
    int32_t best;   /* the last step's best token; -1: a score is NaN */
    int32_t unused;
    fb_row rows[]; /* [chunk] */
} fb_cuda_state;

/* After a decode step: the next position; and, where head_argmax has left a row (score, column) at `best`,
 * its token in state->best and as the next step's only row's. */
int fb_cuda_advance(fb_cuda_state *state, const float *best, const fb_cuda_context *cx);

/* The layers of a decode step, for one kernel that does them all. A context that has a list makes launchers
 * append to it; they return FB_CUDA_NOT_LISTED where that kernel cannot do what they would have launched. */
typedef struct fb_cuda_list fb_cuda_list;
fb_cuda_list *fb_cuda_list_new(int64_t ops); /* NULL: no memory */
void fb_cuda_list_free(fb_cuda_list *list);
/* The list is whole: `*bytes` of it are to be copied to the device, where each launch changes them; or
 * FB_CUDA_NOT_LISTED. */
int fb_cuda_list_end(fb_cuda_list *list, const fb_cuda_context *cx, const void **image, int64_t *bytes);
int fb_cuda_list_launch(const fb_cuda_list *list, void *image, const fb_cuda_context *cx);

#ifdef __cplusplus
}
#endif
#endif
