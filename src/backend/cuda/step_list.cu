#include "backend/cuda/step_list.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/step_kernel.cuh"

fb_cuda_list *fb_cuda_list_new(int64_t ops) {
    fb_cuda_list *list = (fb_cuda_list *)calloc(1, sizeof *list);
    if (!list) return NULL;
    list->ops = (st_op *)calloc((size_t)ops, sizeof *list->ops);
    list->left = (st_left *)calloc((size_t)ops, FB_MAX_SEGMENTS * sizeof *list->left);
    list->most = (int32_t)ops;
    list->weights = (fb_dtype)FB_DTYPE_COUNT;
    if (list->ops && list->left) return list;
    fb_cuda_list_free(list);
    return NULL;
}

void fb_cuda_list_free(fb_cuda_list *list) {
    if (list) {
        free(list->ops);
        free(list->left);
        free(list->image);
    }
    free(list);
}

/* ---- what goes from op to op -----------------------------------------------------------------------------
 */

static uintptr_t end_of(const void *from, int64_t elements, const fb_cuda_list *list) {
    return (uintptr_t)from + (uintptr_t)(elements * fb_dtype_size(list->act));
}

/* Where `elements` from `from` on are: what the last op left there, or -1. Not if they are only in part. */
static bool find(const fb_cuda_list *list, const void *from, int64_t elements, int32_t *mail) {
    uintptr_t first = (uintptr_t)from, end = end_of(from, elements, list);
    *mail = -1;
    for (int i = list->left_count - 1; i >= 0; i--) {
        const st_left *left = &list->left[i];
        if (end <= left->from || left->end <= first) continue;
        if (first < left->from || left->end < end) return false;
        int64_t at = (int64_t)(first - left->from) / fb_dtype_size(list->act);
        *mail = (int32_t)(left->mail + at);
        return at % 4 == 0; /* words are read by four */
    }
    return true;
}

static bool leave(fb_cuda_list *list, int s, const void *from, int64_t elements) {
    if (list->words > INT32_MAX - elements - 32) return false;
    st_left *left = &list->left[list->left_count++];
    *left = {(uintptr_t)from, end_of(from, elements, list), list->words, list->count - 1, s};
    list->ops[list->count - 1].mail.out[s] = list->words;
    list->words += (int32_t)mv_round_up(elements, 32);
    return true;
}

/* What a later op of the list would have written over, nobody needs after the list. */
static void find_plain(fb_cuda_list *list) {
    for (int i = 0; i < list->left_count; i++) {
        const st_left *left = &list->left[i];
        bool stays = true;
        for (int j = i + 1; j < list->left_count && stays; j++)
            stays = left->end <= list->left[j].from || list->left[j].end <= left->from;
        list->ops[left->op].mail.plain[left->s] = stays;
    }
}

/* ---- ops -------------------------------------------------------------------------------------------------
 */

static st_op *append(fb_cuda_list *list, st_kind kind) {
    if (list->rotates || list->count == list->most) return NULL;
    st_op *op = &list->ops[list->count++];
    op->kind = kind;
    op->mail.residual = -1;
    for (int s = 0; s < FB_MAX_SEGMENTS; s++) op->mail.in[s] = op->mail.out[s] = -1;
    return op;
}

/* Of the block's pieces, those of all segments one after the other, a warp has the ones whose number is its
 * own modulo MV_WARPS. In a segment, it is the same piece of all its rows. */
static void count_pieces(st_op *op) {
    const mv_plan *plan = &op->matvec;
    for (int more = 0; more < 1 << plan->segments; more++) {
        int all = 0;
        for (int s = 0; s < plan->segments; s++)
            all += (plan->seg[s].each + (more >> s & 1)) * plan->seg[s].pieces;
        for (int w = 0; w < MV_WARPS; w++)
            op->pieces[more][w] = (uint16_t)((all - w + MV_WARPS - 1) / MV_WARPS);
    }
}

int st_add_matvec(const mv_plan *plan, int at_once, fb_dtype weights, int64_t inputs, fb_cuda_list *list) {
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
    int64_t rows = plan->seg[0].rows, outputs = 0, pieces = 0;
    for (int s = 0; s < plan->segments; s++) {
        if (s == 0 || !plan->combined) outputs += (plan->seg[s].each + 1) * at_once;
        pieces += (plan->seg[s].each + 1) * (int64_t)plan->seg[s].pieces;
    }
    op->once = outputs <= MV_THREADS;
    if (pieces / MV_WARPS >= UINT16_MAX) return FB_CUDA_NOT_LISTED;
    count_pieces(op);
    for (int s = 0; s < plan->segments; s++)
        if (!find(list, plan->seg[s].x, plan->seg[s].cols, &op->mail.in[s])) return FB_CUDA_NOT_LISTED;
    if (plan->combine == FB_COMBINE_ADD && !find(list, plan->residual, rows, &op->mail.residual))
        return FB_CUDA_NOT_LISTED;
    for (int s = 0; s < (plan->combined ? 1 : plan->segments); s++)
        if (!leave(list, s, plan->seg[s].out, plan->seg[s].rows)) return FB_CUDA_NOT_LISTED;
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
    list->q = NULL;
    if (rotates) {
        list->q = q->data;
        next.q_head = q->head_stride;
        next.a.q = call->out[0].data; /* so that it is found again */
        next.angles = (const float *)call->in[3].data;
        next.half = (int32_t)(call->attr.rotary / 2);
    }
    list->k = k->data;
    next.k_head = k->head_stride;
    list->v = v->data;
    next.v_head = v->head_stride;
    list->next = next;
    list->rotates = true;
    return 0;
}

int st_add_attention(const fb_attention *a, const partials *p, fb_cuda_list *list) {
    st_attention next = list->next;
    if (!list->rotates || (list->q && next.a.q != a->q) || a->rows != 1 || a->ring || !a->wide ||
        a->width > ST_WIDTH || a->out_head != a->width /* every word is written */ ||
        a->q_type != list->act || a->kv_type != list->act || a->out_type != list->act)
        return FB_CUDA_NOT_LISTED;
    list->rotates = false;
    st_op *op = append(list, ST_ATTENTION);
    if (!op) return FB_CUDA_NOT_LISTED;
    if (!list->q) {
        list->q = a->q;
        next.q_head = a->q_head;
    }
    next.a = *a;
    next.p = *p;
    op->attention = next;
    const void *in[] = {list->q, list->k, list->v};
    const int64_t stride[] = {next.q_head, next.k_head, next.v_head};
    const int64_t heads = (int64_t)a->kv_heads * a->group;
    for (int i = 0; i < 3; i++) {
        int64_t of = i == 0 ? heads : a->kv_heads;
        if (!find(list, in[i], (of - 1) * stride[i] + a->width, &op->mail.in[i]) || op->mail.in[i] < 0)
            return FB_CUDA_NOT_LISTED;
    }
    return leave(list, 0, a->out, heads * a->width) ? 0 : FB_CUDA_NOT_LISTED;
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

/* The image: ops, two counters, mails. */
static int64_t mails_at(const fb_cuda_list *list) {
    return mv_round_up(list->count * (int64_t)sizeof *list->ops + 2 * (int64_t)sizeof(unsigned), 128);
}

int fb_cuda_list_end(fb_cuda_list *list, const fb_cuda_context *cx, const void **image, int64_t *bytes) {
    if (list->rotates || list->count == 0 || list->ops[0].kind != ST_MATVEC || cx->limits->major < 9)
        return FB_CUDA_NOT_LISTED;
    int64_t inputs = list->inputs, room = cx->limits->shared_limit;
    if (inputs < (int64_t)sizeof(st_attention_room)) inputs = sizeof(st_attention_room);
    int64_t window = mv_round_up(inputs, 16), barriers = window + ST_WINDOW * (int64_t)sizeof(st_op);
    int64_t course = barriers + ST_BARRIER_BYTES;
    int64_t heads = mv_round_up(course + (int64_t)sizeof(st_course), 16);
    int64_t ring = mv_round_up(heads + MV_RING_BYTES, 128), slots = MV_WARPS * list->slot;
    int64_t depth = (room - ring) / slots;
    if (depth < 2) return FB_CUDA_NOT_LISTED; /* launched, ops have more room each */
    if (depth > MV_DEPTH) depth = MV_DEPTH;
    list->rooms.window_at = (int32_t)window;
    list->rooms.barriers_at = (int32_t)barriers;
    list->rooms.course_at = (int32_t)course;
    list->rooms.heads_at = (int32_t)heads;
    list->rooms.ring_at = (int32_t)ring;
    list->rooms.slot_bytes = (int32_t)list->slot;
    list->rooms.depth = (int32_t)depth;
    int64_t flying = (ST_FLYING + slots - 1) / slots;
    list->rooms.flying = (int32_t)(flying < depth ? flying : depth);
    list->rooms.count = list->count;
    list->shared = ring + depth * slots;
    if (launch(list, NULL, cx)) return FB_CUDA_NOT_LISTED;
    find_plain(list);
    *bytes = mails_at(list) + list->words * (int64_t)sizeof(uint32_t);
    list->image = (uint8_t *)calloc(1, (size_t)*bytes);
    if (!list->image) return FB_CUDA_NOT_LISTED;
    memcpy(list->image, list->ops, (size_t)list->count * sizeof *list->ops);
    *image = list->image;
    return 0;
}

int fb_cuda_list_launch(const fb_cuda_list *list, void *image, const fb_cuda_context *cx) {
    st_rooms rooms = list->rooms;
    uint8_t *mails = (uint8_t *)image + mails_at(list);
    rooms.ops = (const st_op *)image;
    rooms.mails = (uint32_t *)(void *)mails;
    rooms.ended = (unsigned *)(void *)mails - 1;
    rooms.steps = rooms.ended - 1;
    return launch(list, &rooms, cx);
}
