/* The layers of a decode step as a list, for one kernel that goes through it (step_kernel.cuh).
 *
 * The ops' own launchers make it: where a context has a list, they append what they would have launched. A
 * launcher that knows nothing of lists launches as always, which the backend prevents: it offers a list only
 * for bodies of the ops that has_step_kernel names (src/fuse/plan.c). */
#ifndef FB_BACKEND_CUDA_STEP_LIST_H
#define FB_BACKEND_CUDA_STEP_LIST_H

#include "backend/cuda/flash_decode.cuh"
#include "backend/cuda/matvec.h"
#include "backend/cuda/step.h"

/* Attention of one token, with the rotation of its q and k and the append to the cache before it. */
typedef struct st_attention {
    fb_attention a; /* q is not read: it is still to be rotated */
    partials p;
    const void *q, *k, *v; /* of the new token */
    int64_t q_head, k_head, v_head;
    const float *angles; /* cosines, then sines */
    int32_t half;        /* pairs that rotate */
} st_attention;

typedef enum st_kind { ST_MATVEC, ST_ATTENTION } st_kind;

typedef struct __align__(16) st_op {
    st_kind kind;
    union {
        mv_plan matvec;
        st_attention attention;
    };
}
st_op;

/* How shared memory is divided, and what all blocks meet at. */
typedef struct st_rooms {
    int32_t window_at, fillers_at;
    int32_t slot_bytes, depth; /* of the rings */
    int32_t count;             /* ops */
    const st_op *ops;
    unsigned *arrived; /* 0 before and after */
} st_rooms;

struct fb_cuda_list {
    st_op *ops; /* on the host */
    int32_t count, most;
    bool rotates; /* `next` has q, k and v, and waits for its attention */
    st_attention next;
    fb_dtype weights, act; /* of all ops; weights FB_DTYPE_COUNT: none yet */
    int64_t inputs;        /* bytes of shared memory that staged inputs and partial sums take, at most */
    int64_t slot;          /* of a ring, at most */
    int64_t window_at, fillers_at; /* the rest when the list has ended */
    int32_t depth;
    int64_t shared; /* in all */
};

/* By the weights' type. Without rooms: 0 if there is a kernel, and the device can run it. */
int st_launch_half(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx);
int st_launch_bfloat(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx);
int st_launch_q8(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx);
int st_launch_q4(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx);

/* Appends; FB_CUDA_NOT_LISTED where the kernel cannot. */
int st_add_matvec(const mv_plan *plan, fb_dtype weights, int64_t inputs, fb_cuda_list *list);
int st_add_rotation(const fb_call *call, bool rotates, fb_cuda_list *list);
int st_add_attention(const fb_attention *a, const partials *p, fb_cuda_list *list);

#endif
