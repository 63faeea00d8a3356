/* Builds the work list of the persistent kernel, and launches it. */
#include "backend/cuda/persistent_list.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/persistent_kernel.cuh"

fb_cuda_work_list *fb_cuda_work_list_new(int64_t ops) {
    fb_cuda_work_list *list = (fb_cuda_work_list *)calloc(1, sizeof *list);
    if (!list) return NULL;
    list->ops = (pk_op *)calloc((size_t)ops, sizeof *list->ops);
    list->outputs = (pk_output *)calloc((size_t)ops, FB_MAX_SEGMENTS * sizeof *list->outputs);
    list->capacity = (int32_t)ops;
    list->weights = (fb_dtype)FB_DTYPE_COUNT;
    if (list->ops && list->outputs) return list;
    fb_cuda_work_list_free(list);
    return NULL;
}

void fb_cuda_work_list_free(fb_cuda_work_list *list) {
    if (list) {
        free(list->ops);
        free(list->outputs);
        free(list->image);
    }
    free(list);
}

/* ---- values that one op hands to the next ---- */

static uintptr_t end_of(const void *from, int64_t elements, const fb_cuda_work_list *list) {
    return (uintptr_t)from + (uintptr_t)(elements * fb_dtype_size(list->act));
}

/* Finds the tagged words of `elements` from address `from` on. They belong to the last op that writes there;
 * *word is -1 if no op does. False if an op writes only some of them, or if they do not begin at a multiple
 * of four words, which are loaded at once. */
static bool find_words(const fb_cuda_work_list *list, const void *from, int64_t elements, int32_t *word) {
    uintptr_t first = (uintptr_t)from, end = end_of(from, elements, list);
    *word = -1;
    for (int i = list->output_count - 1; i >= 0; i--) {
        const pk_output *output = &list->outputs[i];
        if (end <= output->from || output->end <= first) continue;
        if (first < output->from || output->end < end) return false;
        int64_t at = (int64_t)(first - output->from) / fb_dtype_size(list->act);
        *word = (int32_t)(output->word + at);
        return at % 4 == 0;
    }
    return true;
}

static bool add_output(fb_cuda_work_list *list, int s, const void *from, int64_t elements) {
    if (list->words > INT32_MAX - elements - 32) return false;
    pk_output *output = &list->outputs[list->output_count++];
    *output = {(uintptr_t)from, end_of(from, elements, list), list->words, list->count - 1, s};
    list->ops[list->count - 1].io.out[s] = list->words;
    list->words += (int32_t)mv_round_up(elements, 32);
    return true;
}

/* An output that a later op of the list overwrites is not read after the list, so it is not stored. */
static void mark_stored(fb_cuda_work_list *list) {
    for (int i = 0; i < list->output_count; i++) {
        const pk_output *output = &list->outputs[i];
        bool kept = true;
        for (int j = i + 1; j < list->output_count && kept; j++)
            kept = output->end <= list->outputs[j].from || list->outputs[j].end <= output->from;
        list->ops[output->op].io.stored[output->s] = kept;
    }
}

/* ---- ops ---- */

static pk_op *append(fb_cuda_work_list *list, pk_kind kind) {
    if (list->pending || list->count == list->capacity) return NULL;
    pk_op *op = &list->ops[list->count++];
    op->kind = kind;
    op->io.residual = -1;
    for (int s = 0; s < FB_MAX_SEGMENTS; s++) op->io.in[s] = op->io.out[s] = -1;
    return op;
}

/* The block's pieces are numbered through all segments; warp w multiplies those with number % MV_WARPS == w.
 */
static void count_pieces(pk_op *op) {
    const mv_plan *plan = &op->matvec;
    for (int extra = 0; extra < 1 << plan->segments; extra++) {
        int all = 0;
        for (int s = 0; s < plan->segments; s++)
            all += (plan->seg[s].units + (extra >> s & 1)) * plan->seg[s].pieces;
        for (int w = 0; w < MV_WARPS; w++)
            op->pieces[extra][w] = (uint16_t)((all - w + MV_WARPS - 1) / MV_WARPS);
    }
}

int pk_add_matvec(const mv_plan *plan, int at_once, fb_dtype weights, int64_t inputs,
                  fb_cuda_work_list *list) {
    if (list->weights == FB_DTYPE_COUNT) {
        list->weights = weights;
        list->act = plan->type;
    }
    if (list->weights != weights || list->act != plan->type || plan->x_type != plan->type ||
        fb_dtype_size(plan->type) != 2)
        return FB_CUDA_NOT_LISTED;
    pk_op *op = append(list, PK_MATVEC);
    if (!op) return FB_CUDA_NOT_LISTED;
    op->matvec = *plan;
    int64_t rows = plan->seg[0].rows, outputs = 0, pieces = 0;
    for (int s = 0; s < plan->segments; s++) {
        if (s == 0 || !plan->combined) outputs += (plan->seg[s].units + 1) * at_once;
        pieces += (plan->seg[s].units + 1) * (int64_t)plan->seg[s].pieces;
    }
    op->one_output = outputs <= MV_THREADS;
    if (pieces / MV_WARPS >= UINT16_MAX) return FB_CUDA_NOT_LISTED;
    count_pieces(op);
    for (int s = 0; s < plan->segments; s++)
        if (!find_words(list, plan->seg[s].x, plan->seg[s].cols, &op->io.in[s])) return FB_CUDA_NOT_LISTED;
    if (plan->combine == FB_COMBINE_ADD && !find_words(list, plan->residual, rows, &op->io.residual))
        return FB_CUDA_NOT_LISTED;
    for (int s = 0; s < (plan->combined ? 1 : plan->segments); s++)
        if (!add_output(list, s, plan->seg[s].out, plan->seg[s].rows)) return FB_CUDA_NOT_LISTED;
    if (inputs > list->inputs) list->inputs = inputs;
    if (plan->stage_bytes > list->stage_bytes) list->stage_bytes = plan->stage_bytes;
    return 0;
}

/* rope_kv (in: q, k, v, angles; out: the rotated q) or, with `rotates` false, kv_append (in: k, v). */
int pk_add_rotation(const fb_call *call, bool rotates, fb_cuda_work_list *list) {
    pk_attention next = {};
    const fb_view *q = &call->in[0], *k = q + rotates, *v = k + 1;
    if (list->pending || call->rows != 1 || call->kv.ring.window || call->kv.dtype != k->dtype)
        return FB_CUDA_NOT_LISTED;
    list->q = NULL;
    if (rotates) {
        list->q = q->data;
        next.q_head = q->head_stride;
        next.a.q = call->out[0].data; /* pk_add_attention finds it by this address */
        next.angles = (const float *)call->in[3].data;
        next.half = (int32_t)(call->attr.rotary / 2);
    }
    list->k = k->data;
    next.k_head = k->head_stride;
    list->v = v->data;
    next.v_head = v->head_stride;
    list->next = next;
    list->pending = true;
    return 0;
}

int pk_add_attention(const fb_attention *a, const partials *p, fb_cuda_work_list *list) {
    pk_attention next = list->next;
    if (!list->pending || (list->q && next.a.q != a->q) || a->rows != 1 || a->ring || !a->wide ||
        a->width > PK_MAX_WIDTH || a->out_head != a->width /* else some words are never written */ ||
        a->q_type != list->act || a->kv_type != list->act || a->out_type != list->act)
        return FB_CUDA_NOT_LISTED;
    list->pending = false;
    pk_op *op = append(list, PK_ATTENTION);
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
        if (!find_words(list, in[i], (of - 1) * stride[i] + a->width, &op->io.in[i]) || op->io.in[i] < 0)
            return FB_CUDA_NOT_LISTED;
    }
    return add_output(list, 0, a->out, heads * a->width) ? 0 : FB_CUDA_NOT_LISTED;
}

static int launch(const fb_cuda_work_list *list, const pk_params *params, const fb_cuda_context *cx) {
    switch (list->weights) {
    case FB_F16:
        return pk_launch_half(list, params, cx);
    case FB_BF16:
        return pk_launch_bfloat(list, params, cx);
    case FB_Q8_0:
        return pk_launch_q8(list, params, cx);
    case FB_Q4_0:
        return pk_launch_q4(list, params, cx);
    case FB_Q4_K: /* stands for all types in records (mv_dtype) */
        return pk_launch_records(list, params, cx);
    default:
        return FB_CUDA_NOT_LISTED;
    }
}

/* What is copied to the device: ops, two counters, tagged words. Offset of the words. */
static int64_t words_at(const fb_cuda_work_list *list) {
    return mv_round_up(list->count * (int64_t)sizeof *list->ops + 2 * (int64_t)sizeof(unsigned), 128);
}

int fb_cuda_work_list_end(fb_cuda_work_list *list, const fb_cuda_context *cx, const void **image,
                          int64_t *bytes) {
    if (list->pending || list->count == 0 || list->ops[0].kind != PK_MATVEC || cx->limits->major < 9)
        return FB_CUDA_NOT_LISTED;
    int64_t inputs = list->inputs, available = cx->limits->shared_limit;
    if (inputs < (int64_t)sizeof(pk_attention_smem)) inputs = sizeof(pk_attention_smem);
    int64_t ops_at = mv_round_up(inputs, 16);
    int64_t barriers_at = ops_at + PK_OP_STAGES * (int64_t)sizeof(pk_op);
    int64_t work_at = barriers_at + PK_BARRIER_BYTES;
    int64_t headers_at = mv_round_up(work_at + (int64_t)sizeof(pk_attention_work), 16);
    int64_t stages_at = mv_round_up(headers_at + MV_HEADER_BYTES, 128);
    int64_t one_of_each = MV_WARPS * list->stage_bytes; /* a stage of every warp's pipeline */
    int64_t stages = (available - stages_at) / one_of_each;
    if (stages < 2) return FB_CUDA_NOT_LISTED; /* ops that are launched one by one have more shared memory */
    if (stages > MV_STAGES) stages = MV_STAGES;
    list->params.ops_at = (int32_t)ops_at;
    list->params.barriers_at = (int32_t)barriers_at;
    list->params.work_at = (int32_t)work_at;
    list->params.headers_at = (int32_t)headers_at;
    list->params.stages_at = (int32_t)stages_at;
    list->params.stage_bytes = (int32_t)list->stage_bytes;
    list->params.stages = (int32_t)stages;
    int64_t in_flight = (PK_BYTES_IN_FLIGHT + one_of_each - 1) / one_of_each;
    list->params.in_flight = (int32_t)(in_flight < stages ? in_flight : stages);
    list->params.count = list->count;
    list->shared_bytes = stages_at + stages * one_of_each;
    if (launch(list, NULL, cx)) return FB_CUDA_NOT_LISTED;
    mark_stored(list);
    *bytes = words_at(list) + list->words * (int64_t)sizeof(uint32_t);
    list->image = (uint8_t *)calloc(1, (size_t)*bytes);
    if (!list->image) return FB_CUDA_NO_MEMORY;
    memcpy(list->image, list->ops, (size_t)list->count * sizeof *list->ops);
    *image = list->image;
    return 0;
}

int fb_cuda_work_list_launch(const fb_cuda_work_list *list, void *image, const fb_cuda_context *cx) {
    pk_params params = list->params;
    uint8_t *words = (uint8_t *)image + words_at(list);
    params.ops = (const pk_op *)image;
    params.words = (uint32_t *)(void *)words;
    params.blocks_done = (unsigned *)(void *)words - 1;
    params.steps_done = params.blocks_done - 1;
    return launch(list, &params, cx);
}
