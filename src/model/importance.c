#include "model/importance.h"

#include <stdlib.h>

/* Of one matrix in one layer. */
typedef struct inputs {
    int64_t cols, rows;
    double *sums, *squares; /* [cols] each, one allocation */
} inputs;

struct fb_importance {
    int64_t slots, layers;
    inputs *of; /* [slots * layers] */
};

void fb_importance_free(fb_importance *m) {
    if (!m) return;
    for (int64_t i = 0; m->of && i < m->slots * m->layers; i++) free(m->of[i].sums);
    free(m->of);
    free(m);
}

static fb_status take_memory(fb_importance *m, const fb_program *p, fb_error *err) {
    int64_t count = m->slots * m->layers;
    m->of = calloc((size_t)count, sizeof *m->of);
    if (!m->of) return fb_fail_memory(err, "importance", count * (int64_t)sizeof *m->of);
    for (int64_t i = 0; i < count; i++) {
        const fb_slot *slot = &p->slots[i / m->layers];
        if (slot->vector || (!slot->per_layer && i % m->layers)) continue;
        m->of[i].cols = slot->cols;
        m->of[i].sums = calloc((size_t)slot->cols * 2, sizeof *m->of[i].sums);
        if (!m->of[i].sums)
            return fb_fail_memory(err, "importance", slot->cols * 2 * (int64_t)sizeof *m->of[i].sums);
        m->of[i].squares = m->of[i].sums + slot->cols;
    }
    return FB_OK;
}

fb_status fb_importance_create(const fb_model *model, fb_importance **out, fb_error *err) {
    const fb_program *p = &model->spec->program;
    fb_importance *m = *out = calloc(1, sizeof *m);
    if (!m) return fb_fail_memory(err, "importance", sizeof *m);
    m->slots = p->slot_count;
    m->layers = p->layers;
    fb_status status = take_memory(m, p, err);
    if (status == FB_OK) return FB_OK;
    fb_importance_free(m);
    *out = NULL;
    return status;
}

void fb_importance_add(fb_importance *m, int32_t slot, int64_t layer, const fb_view *x, int64_t rows) {
    inputs *of = &m->of[slot * m->layers + layer];
    if (!of->sums || x->dtype != FB_F32 || x->heads * x->width != of->cols) return;
    of->rows += rows;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < x->heads; head++) {
            const float *values = fb_view_at(x, row, head);
            double *sums = of->sums + head * x->width, *squares = of->squares + head * x->width;
            for (int64_t i = 0; i < x->width; i++) {
                sums[i] += (double)values[i];
                squares[i] += (double)values[i] * (double)values[i];
            }
        }
}

/* A column that the text never used still counts a thousandth of the average: another text may use it. */
#define LEAST 1e-3

fb_status fb_importance_weights(const fb_importance *m, int32_t slot, int64_t layer, float **out,
                                fb_error *err) {
    const inputs *of = &m->of[slot * m->layers + layer];
    double average = 0;
    *out = NULL;
    for (int64_t i = 0; i < of->cols && of->rows; i++) average += of->squares[i] / (double)of->cols;
    if (!(average > 0)) return FB_OK;
    *out = malloc((size_t)of->cols * sizeof **out);
    if (!*out) return fb_fail_memory(err, "importance", of->cols * (int64_t)sizeof **out);
    for (int64_t i = 0; i < of->cols; i++) (*out)[i] = (float)(of->squares[i] / average + LEAST);
    return FB_OK;
}

fb_status fb_importance_mean(const fb_importance *m, int32_t slot, int64_t layer, double **out,
                             fb_error *err) {
    const inputs *of = &m->of[slot * m->layers + layer];
    *out = NULL;
    if (!of->rows) return FB_OK;
    *out = malloc((size_t)of->cols * sizeof **out);
    if (!*out) return fb_fail_memory(err, "means of inputs", of->cols * (int64_t)sizeof **out);
    for (int64_t i = 0; i < of->cols; i++) (*out)[i] = of->sums[i] / (double)of->rows;
    return FB_OK;
}

bool fb_importance_fits(const fb_importance *m, const fb_model *model) {
    const fb_program *p = &model->spec->program;
    bool fits = m->slots == p->slot_count && m->layers == p->layers;
    for (int64_t i = 0; fits && i < m->slots * m->layers; i++)
        fits = !m->of[i].cols || m->of[i].cols == p->slots[i / m->layers].cols;
    return fits;
}
