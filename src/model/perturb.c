#include "model/perturb.h"

#include <stdlib.h>

#include "base/pack.h"
#include "model/copy.h"

/* ---- what is changed ----------------------------------------------------------------------------------- */

/* In [-1, 1). */
static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)*state * 0x1p-63;
}

static fb_status perturb_vector(fb_model *m, fb_weight *w, double amount, uint64_t *state, fb_error *err) {
    float *changed = malloc((size_t)w->cols * sizeof *changed);
    if (!changed) return fb_fail_memory(err, "weights", w->cols * (int64_t)sizeof *changed);
    for (int64_t i = 0; i < w->cols; i++)
        changed[i] = (float)(fb_weight_get(w, 0, i) * (1 + amount * draw(state)));
    w->data = (const uint8_t *)(const void *)changed;
    w->dtype = FB_F32;
    w->order = FB_ROWS_SAME;
    w->mapped = false;
    fb_status status = fb_model_attach(m, free, changed, err);
    if (status != FB_OK) free(changed);
    return status;
}

static fb_status perturb_slot(fb_model *m, int32_t s, double amount, uint64_t *state, fb_error *err) {
    const fb_program *p = &m->spec->program;
    fb_weight *w = m->weights + s * p->layers;
    for (int64_t layer = 0; layer < (p->slots[s].per_layer ? p->layers : 1); layer++)
        FB_TRY(perturb_vector(m, &w[layer], amount, state, err));
    for (int64_t layer = 1; layer < p->layers && !p->slots[s].per_layer; layer++) w[layer] = w[0];
    return FB_OK;
}

static fb_status perturb_norms(fb_model *m, double amount, uint64_t state, fb_error *err) {
    const fb_program *p = &m->spec->program;
    for (int section = 0; section < FB_SECTIONS; section++)
        for (int32_t i = 0; i < p->op_count[section]; i++) {
            const fb_op *op = &p->ops[section][i];
            if (op->kind == FB_OP_LAYERNORM || op->kind == FB_OP_RMSNORM)
                FB_TRY(perturb_slot(m, op->weights[0], amount, &state, err));
        }
    fb_model_note_dtypes(m);
    return FB_OK;
}

fb_status fb_model_perturb(const fb_model *model, double amount, uint64_t seed, fb_model **out,
                           fb_error *err) {
    fb_model *m;
    *out = NULL;
    FB_TRY(fb_model_copy(model, &m, err));
    fb_status status = perturb_norms(m, amount, seed, err);
    if (status != FB_OK) {
        fb_model_free(m);
        return status;
    }
    *out = m;
    return FB_OK;
}
