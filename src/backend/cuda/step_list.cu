#include "backend/cuda/step_list.h"

#include <stdlib.h>

#include "backend/cuda/step_kernel.cuh"

fb_cuda_list *fb_cuda_list_new(int64_t ops) {
    fb_cuda_list *list = (fb_cuda_list *)calloc(1, sizeof *list);
    if (!list) return NULL;
    list->ops = (st_op *)calloc((size_t)ops, sizeof *list->ops);
    list->most = (int32_t)ops;
    list->weights = FB_DTYPE_COUNT;
    if (list->ops) return list;
    free(list);
    return NULL;
}

void fb_cuda_list_free(fb_cuda_list *list) {
    if (list) free(list->ops);
    free(list);
}

static st_op *append(fb_cuda_list *list, st_kind kind) {
    if (list->rotates || list->count == list->most) return NULL;
    st_op *op = &list->ops[list->count++];
    op->kind = kind;
    return op;
}

int st_add_matvec(const mv_plan *plan, fb_dtype weights, int64_t inputs, fb_cuda_list *list) {
    if (list->weights == FB_DTYPE_COUNT) {
        list->weights = weights;
        list->act = plan->type;
    }
    if (list->weights != weights || list->act != plan->type || plan->x_type != plan->type ||
        fb_dtype_size(plan->type) != 2)
        return FB_CUDA_NOT_LISTED;
    st_op *op = append(list, ST_MATVEC);
    if (!op) return FB_CUDA_NOT_LISTED;
    op->matvec = *plan;
    if (inputs > list->inputs) list->inputs = inputs;
    if (plan->slot_bytes > list->slot) list->slot = plan->slot_bytes;
    return 0;
}

/* rope_kv (in: q, k, v, angles; out: the rotated q) or kv_append (in: k, v). */
int st_add_rotation(const fb_call *call, bool rotates, fb_cuda_list *list) {
    st_attention next = {};
    const fb_view *q = &call->in[0], *k = q + rotates, *v = k + 1;
    if (list->rotates || call->rows != 1 || call->kv.ring.window || call->kv.dtype != k->dtype)
        return FB_CUDA_NOT_LISTED;
    if (rotates) {
        next.q = q->data;
        next.q_head = q->head_stride;
        next.a.q = call->out[0].data; /* so that it is found again */
        next.angles = (const float *)call->in[3].data;
        next.half = (int32_t)(call->attr.rotary / 2);
    }
    next.k = k->data;
    next.k_head = k->head_stride;
    next.v = v->data;
    next.v_head = v->head_stride;
    list->next = next;
    list->rotates = true;
    return 0;
}

/* Whether the output of attention lies apart from something that is read until attention ends here: `heads`
 * of a new token, which the program may take to be dead after the op before. */
static bool apart(const fb_attention *a, const void *x, int64_t stride, int heads) {
    int64_t size = fb_dtype_size(a->out_type), outs = (int64_t)a->kv_heads * a->group;
    uintptr_t in = (uintptr_t)x, in_end = in + (uintptr_t)(((heads - 1) * stride + a->width) * size);
    uintptr_t out = (uintptr_t)a->out,
              out_end = out + (uintptr_t)(((outs - 1) * a->out_head + a->width) * size);
    return in_end <= out || out_end <= in;
}

int st_add_attention(const fb_attention *a, const partials *p, fb_cuda_list *list) {
    st_attention next = list->next;
    if (!list->rotates || (next.q && next.a.q != a->q) || a->rows != 1 || a->ring || !a->wide ||
        a->width > ST_WIDTH || a->q_type != list->act || a->kv_type != list->act || a->out_type != list->act)
        return FB_CUDA_NOT_LISTED;
    list->rotates = false;
    st_op *op = append(list, ST_ATTENTION);
    if (!op) return FB_CUDA_NOT_LISTED;
    if (!next.q) {
        next.q = a->q;
        next.q_head = a->q_head;
    }
    if (!apart(a, next.q, next.q_head, a->kv_heads * a->group) ||
        !apart(a, next.k, next.k_head, a->kv_heads) || !apart(a, next.v, next.v_head, a->kv_heads))
        return FB_CUDA_NOT_LISTED;
    next.a = *a;
    next.p = *p;
    op->attention = next;
    return 0;
}

static int launch(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx) {
    switch (list->weights) {
    case FB_F16:
        return st_launch_half(list, rooms, cx);
    case FB_BF16:
        return st_launch_bfloat(list, rooms, cx);
    case FB_Q8_0:
        return st_launch_q8(list, rooms, cx);
    case FB_Q4_0:
        return st_launch_q4(list, rooms, cx);
    default:
        return FB_CUDA_NOT_LISTED;
    }
}

int fb_cuda_list_end(fb_cuda_list *list, const fb_cuda_context *cx, const void **ops, int64_t *bytes) {
    if (list->rotates || list->count == 0 || list->ops[0].kind != ST_MATVEC || cx->limits->major < 9)
        return FB_CUDA_NOT_LISTED;
    int64_t inputs = list->inputs, room = cx->limits->shared_limit;
    if (inputs < (int64_t)sizeof(st_attention_room)) inputs = sizeof(st_attention_room);
    list->window_at = mv_round_up(inputs, 16);
    list->fillers_at = list->window_at + ST_WINDOW * (int64_t)sizeof(st_op);
    int64_t heads = list->fillers_at + MV_WARPS * (int64_t)sizeof(st_filler);
    int64_t ring = mv_round_up(heads + MV_RING_BYTES, 128), slots = MV_WARPS * list->slot;
    int64_t depth = (room - ring) / slots;
    if (depth < 2) return FB_CUDA_NOT_LISTED; /* launched, ops have more room each */
    if (depth > MV_DEPTH) depth = MV_DEPTH;
    for (int i = 0; i < list->count; i++) {
        if (list->ops[i].kind != ST_MATVEC) continue;
        mv_plan *plan = &list->ops[i].matvec;
        plan->heads_at = (int32_t)heads;
        plan->ring_at = (int32_t)ring;
        plan->slot_bytes = (int32_t)list->slot;
        plan->depth = (int32_t)depth;
    }
    list->depth = (int32_t)depth;
    list->shared = ring + depth * slots;
    *ops = list->ops;
    *bytes = list->count * (int64_t)sizeof *list->ops;
    return launch(list, NULL, cx);
}

int fb_cuda_list_launch(const fb_cuda_list *list, const void *ops, const fb_cuda_context *cx) {
    st_rooms rooms = {(int32_t)list->window_at,
                      (int32_t)list->fillers_at,
                      (int32_t)list->slot,
                      list->depth,
                      list->count,
                      (const st_op *)ops,
                      (unsigned *)(void *)(cx->scratch + FB_CUDA_MEETING)};
    return launch(list, &rooms, cx);
}
