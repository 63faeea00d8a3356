/* The layers of a decode step as a list, for one kernel that goes through it (step_kernel.cuh).
 *
 * The ops' own launchers make it: where a context has a list, they append what they would have launched. A
 * launcher that knows nothing of lists launches as always, which the backend prevents: it offers a list only
 * for bodies of the ops that fb_cuda_step_has names (step_ops.h). */
#ifndef FB_BACKEND_CUDA_STEP_LIST_H
#define FB_BACKEND_CUDA_STEP_LIST_H

#include "backend/cuda/flash_decode.cuh"
#include "backend/cuda/matvec.h"
#include "backend/cuda/step.h"

/* Attention of one token, with the rotation of its q and k and the append to the cache before it. */
typedef struct st_attention {
    fb_attention a; /* q is not read: it is still to be rotated */
    partials p;
    int64_t q_head, k_head, v_head; /* of the new token */
    const float *angles;            /* cosines, then sines */
    int32_t half;                   /* pairs that rotate */
} st_attention;

typedef enum st_kind { ST_MATVEC, ST_ATTENTION } st_kind;

/* Where an op's values are among the words that blocks hand to each other (step_mail.cuh); -1: nowhere, they
 * were there before, or are not. */
typedef struct st_mail {
    int32_t in[FB_MAX_SEGMENTS]; /* each segment's x; or q, k, v */
    int32_t out[FB_MAX_SEGMENTS], residual;
    bool plain[FB_MAX_SEGMENTS]; /* the output is also stored as it is, for what comes after the list */
} st_mail;

typedef struct __align__(16) st_op {
    st_kind kind;
    st_mail mail;
    /* Of a matvec: pieces of a warp, where bit s of the first index says whether the block has one unit more
     * of segment s; and whether no block has more outputs than threads. */
    uint16_t pieces[1 << FB_MAX_SEGMENTS][MV_WARPS];
    bool once;
    union {
        mv_plan matvec;
        st_attention attention;
    };
}
st_op;

/* How shared memory is divided, and what is on the device. */
typedef struct st_rooms {
    int32_t window_at, barriers_at, course_at, heads_at, ring_at;
    int32_t slot_bytes, depth; /* of the rings */
    int32_t flying;            /* pieces of a ring that are asked for at a time */
    int32_t count;             /* ops */
    const st_op *ops;
    uint32_t *mails;
    unsigned *steps; /* done before this one */
    unsigned *ended; /* blocks, of this one; 0 before and after */
} st_rooms;

/* What an op of the list leaves: at [from, end) if it were stored, in the mails from `mail` on. */
typedef struct st_left {
    uintptr_t from, end;
    int32_t mail, op, s;
} st_left;

struct fb_cuda_list {
    st_op *ops; /* on the host */
    int32_t count, most;
    st_left *left;
    int32_t left_count, words; /* words: of the mails */
    uint8_t *image;            /* what is copied to the device */
    bool rotates;              /* `next` has q, k and v, and waits for its attention */
    st_attention next;
    const void *q, *k, *v; /* of the new token */
    fb_dtype weights, act; /* of all ops; weights FB_DTYPE_COUNT: none yet */
    int64_t inputs;        /* bytes of shared memory that staged inputs and partial sums take, at most */
    int64_t slot;          /* of a ring, at most */
    st_rooms rooms;        /* when the list has ended, but for what a launch adds */
    int64_t shared;        /* in all */
};

/* By the weights' type. Without rooms: 0 if there is a kernel, and the device can run it. */
int st_launch_half(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx);
int st_launch_bfloat(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx);
int st_launch_q8(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx);
int st_launch_q4(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx);

/* Appends; FB_CUDA_NOT_LISTED where the kernel cannot. */
int st_add_matvec(const mv_plan *plan, int at_once, fb_dtype weights, int64_t inputs, fb_cuda_list *list);
int st_add_rotation(const fb_call *call, bool rotates, fb_cuda_list *list);
int st_add_attention(const fb_attention *a, const partials *p, fb_cuda_list *list);

#endif
