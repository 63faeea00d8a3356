#include "model/shrink.h"

#include <stdlib.h>

#include "base/pack.h"
#include "base/pool.h"
#include "base/quant.h"
#include "model/copy.h"

#define BATCH 16 /* rows that a worker converts at once */

/* A matrix that is being converted. */
typedef struct shrinking {
    const fb_weight *from;
    fb_dtype type;
    uint8_t *to;
    uint8_t *rows; /* [workers][BATCH] rows as they are stored */
    float *values; /* [workers][cols] */
    int32_t workers;
} shrinking;

static void encode(fb_dtype type, const float *values, int64_t count, void *to) {
    if (type == FB_Q4_0)
        fb_quant_fit_q4_0(values, count, to);
    else if (type == FB_Q4_1)
        fb_quant_fit_q4_1(values, count, to);
    else
        fb_quant_encode(type, values, count, to);
}

static void convert_worker(void *arg, int32_t worker) {
    const shrinking *s = arg;
    const fb_weight *w = s->from;
    int64_t begin, end, stored = fb_dtype_bytes(w->dtype, w->cols), size = fb_dtype_bytes(s->type, w->cols);
    uint8_t *rows = s->rows + worker * BATCH * stored;
    float *values = s->values + worker * w->cols;
    fb_pool_share(w->rows, BATCH, worker, s->workers, &begin, &end);
    for (int64_t row = begin; row < end; row += BATCH) {
        int64_t count = end - row < BATCH ? end - row : BATCH;
        fb_weight_copy(w, row, count, rows);
        for (int64_t i = 0; i < count; i++) {
            fb_quant_decode(w->dtype, rows + i * stored, w->cols, values);
            encode(s->type, values, w->cols, s->to + (row + i) * size);
        }
    }
}

/* Gives the weight data of its own, which belongs to the model. Without a pool it gets the type only. */
static fb_status convert(fb_model *m, fb_weight *w, fb_dtype type, fb_pool *pool, fb_error *err) {
    if (!pool) {
        w->dtype = type;
        return FB_OK;
    }
    int32_t workers = fb_pool_workers(pool);
    int64_t bytes = w->rows * fb_dtype_bytes(type, w->cols),
            stored = workers * BATCH * fb_dtype_bytes(w->dtype, w->cols),
            values = workers * w->cols * (int64_t)sizeof(float);
    shrinking s = {.from = w,
                   .type = type,
                   .to = malloc((size_t)bytes),
                   .rows = malloc((size_t)stored),
                   .values = malloc((size_t)values),
                   .workers = workers};
    bool there = s.to && s.rows && s.values;
    fb_status status = there ? fb_model_attach(m, free, s.to, err)
                             : fb_fail_memory(err, "smaller weights", bytes + stored + values);
    if (status == FB_OK) {
        fb_pool_run(pool, workers, convert_worker, &s);
        *w = (fb_weight){.data = s.to,
                         .dtype = type,
                         .rows = w->rows,
                         .cols = w->cols,
                         .experts = w->experts,
                         .head_dim = w->head_dim};
    } else {
        free(s.to);
    }
    free(s.rows);
    free(s.values);
    return status;
}

/* ---- which ---- */

/* Of a table of embeddings a step reads a row. Learned positions are added as they are, and a router's
 * roundings would choose other experts. */
static bool stays(const fb_program *p, int32_t slot) {
    if (slot == fb_program_head(p)) return false;
    for (int section = 0; section < FB_SECTIONS; section++)
        for (int32_t i = 0; i < p->op_count[section]; i++) {
            const fb_op *op = &p->ops[section][i];
            if (op->weights[0] != slot) continue;
            if (op->kind == FB_OP_EMBED || op->kind == FB_OP_EMBED_POSITION) return true;
            for (int32_t k = 0; op->kind == FB_OP_LINEAR && k < p->op_count[section]; k++)
                if (p->ops[section][k].kind == FB_OP_TOP_K && p->ops[section][k].in[0] == op->out[0])
                    return true;
        }
    return p->slots[slot].vector;
}

static bool smaller(const fb_weight *w, fb_dtype type) {
    return w->data && fb_dtype_bytes(w->dtype, FB_MAX_BLOCK) > fb_dtype_bytes(type, FB_MAX_BLOCK) &&
           w->cols % 32 == 0;
}

static fb_status shrink_slot(fb_model *m, int32_t slot, fb_dtype type, fb_pool *pool, int64_t *changed,
                             fb_error *err) {
    const fb_program *p = &m->spec->program;
    fb_weight *w = m->weights + slot * p->layers;
    for (int64_t layer = 0; layer < (p->slots[slot].per_layer ? p->layers : 1); layer++) {
        if (!smaller(&w[layer], type)) continue;
        int64_t weights = w[layer].rows * w[layer].cols;
        m->parameters[w[layer].dtype] -= weights;
        m->bytes[w[layer].dtype] -= fb_dtype_bytes(w[layer].dtype, weights);
        m->parameters[type] += weights;
        m->bytes[type] += fb_dtype_bytes(type, weights);
        FB_TRY(convert(m, &w[layer], type, pool, err));
        (*changed)++;
    }
    for (int64_t layer = 1; layer < p->layers && !p->slots[slot].per_layer; layer++) w[layer] = w[0];
    return FB_OK;
}

/* Roundings of the head change what is likeliest more than others. */
#define HEAD FB_Q8_0

static fb_status shrink(fb_model *m, fb_dtype type, fb_pool *pool, fb_error *err) {
    int64_t changed = 0;
    int32_t head = fb_program_head(&m->spec->program);
    fb_status status = FB_OK;
    for (int32_t slot = 0; slot < m->spec->program.slot_count && status == FB_OK; slot++)
        if (!stays(&m->spec->program, slot))
            status = shrink_slot(m, slot, slot == head ? HEAD : type, pool, &changed, err);
    FB_TRY(status);
    if (!changed)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "draft: no matrix of this model becomes smaller as %s (another draft: ngram, or a "
                       "smaller model)",
                       fb_dtype_name(type));
    fb_model_note_dtypes(m);
    return FB_OK;
}

static fb_status copy_smaller(const fb_model *model, fb_dtype type, fb_pool *pool, fb_model **out,
                              fb_error *err) {
    fb_model *m;
    *out = NULL;
    FB_TRY(fb_model_copy(model, &m, err));
    fb_status status = shrink(m, type, pool, err);
    if (status != FB_OK) {
        fb_model_free(m);
        return status;
    }
    *out = m;
    return FB_OK;
}

fb_status fb_model_shrink(const fb_model *model, fb_dtype type, fb_model **out, fb_error *err) {
    fb_pool *pool;
    *out = NULL;
    FB_TRY(fb_tensors_check_files(model->tensors, err));
    FB_TRY(fb_pool_create(fb_pool_cores(), &pool, err));
    fb_status status = copy_smaller(model, type, pool, out, err);
    fb_pool_free(pool);
    return status;
}

fb_status fb_model_shrink_shapes(const fb_model *model, fb_dtype type, fb_model **out, fb_error *err) {
    return copy_smaller(model, type, NULL, out, err);
}

/* ---- the same checkpoint ---- */

static bool same_vector(const fb_weight *a, const fb_weight *b) {
    if (a->cols != b->cols || !a->data != !b->data) return false;
    for (int64_t i = 0; a->data && i < a->cols; i++)
        if (fb_weight_get(a, 0, i) != fb_weight_get(b, 0, i)) return false;
    return true;
}

static bool same_shape(const fb_program *a, const fb_program *b) {
    return a->layers == b->layers && a->hidden == b->hidden && a->vocab == b->vocab &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->slot_count == b->slot_count &&
           a->kind_count == b->kind_count && a->op_count[FB_BODY] == b->op_count[FB_BODY] &&
           memcmp(a->kind_of, b->kind_of, (size_t)a->layers * sizeof *a->kind_of) == 0;
}

bool fb_model_same_norms(const fb_model *a, const fb_model *b) {
    const fb_program *p = &a->spec->program;
    if (!same_shape(p, &b->spec->program)) return false;
    for (int section = 0; section < FB_SECTIONS; section++)
        for (int32_t i = 0; i < p->op_count[section]; i++) {
            const fb_op *op = &p->ops[section][i];
            if (op->kind != FB_OP_LAYERNORM && op->kind != FB_OP_RMSNORM) continue;
            for (int64_t layer = 0; layer < p->layers; layer++)
                if (!same_vector(&a->weights[op->weights[0] * p->layers + layer],
                                 &b->weights[op->weights[0] * p->layers + layer]))
                    return false;
        }
    return true;
}
