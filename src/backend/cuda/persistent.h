/* The persistent kernel: all layers of a decode step in one launch (the fuse `step`).
 *
 * It runs a work list. A context that has a list makes the ops' launchers append to it instead of launching.
 * A launcher returns FB_CUDA_NOT_LISTED where the persistent kernel cannot do what it would have launched. */
#ifndef FB_BACKEND_CUDA_PERSISTENT_H
#define FB_BACKEND_CUDA_PERSISTENT_H

#include "backend/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fb_cuda_work_list fb_cuda_work_list;
fb_cuda_work_list *fb_cuda_work_list_new(int64_t ops); /* NULL: no memory */
void fb_cuda_work_list_free(fb_cuda_work_list *list);

/* Ends a complete list. The caller copies `*bytes` from `*image` to the device, where each launch changes
 * them. FB_CUDA_NOT_LISTED: the kernel cannot run this list. FB_CUDA_NO_MEMORY: no memory on the host. */
int fb_cuda_work_list_end(fb_cuda_work_list *list, const fb_cuda_context *cx, const void **image,
                          int64_t *bytes);
int fb_cuda_work_list_launch(const fb_cuda_work_list *list, void *image, const fb_cuda_context *cx);

#ifdef __cplusplus
}
#endif
#endif
