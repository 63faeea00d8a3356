/* The means of linears' inputs. A norm's output is taken as independent elements of mean beta and variance
 * gamma^2 (its bias and weight); a linear of it has then, for row w and bias b, the mean w . beta + b and the
 * variance sum((w gamma)^2), and GELU and attention are functions of such a linear. Everything else is
 * unknown. */
#include "model/correct.h"

#include <math.h>
#include <stdlib.h>

#include "base/pack.h"

/* The program at one layer. */
typedef struct estimate {
    const fb_model *model;
    int64_t layer;
    fb_section section;
    double *beta, *gamma; /* [hidden]: the norm that was read last; an RMSNorm's beta is 0 */
    float *row;           /* [hidden]: room */
} estimate;

static const fb_program *program_of(const estimate *e) { return &e->model->spec->program; }

static const fb_weight *weight_of(const estimate *e, int32_t slot) {
    return &e->model->weights[slot * program_of(e)->layers + e->layer];
}

/* ---- the program --------------------------------------------------------------------------------------- */

/* The op of the section that computes `value`, which may be a view; NULL: another section's. */
static const fb_op *writer(const estimate *e, int32_t value) {
    const fb_program *p = program_of(e);
    for (int32_t i = p->op_count[e->section] - 1; value != FB_NONE && i >= 0; i--) {
        const fb_op *op = &p->ops[e->section][i];
        if (op->out[0] != FB_NONE && op->out[0] == p->values[value].storage) return op;
    }
    return NULL;
}

/* The same, if it is a linear of a norm. */
static const fb_op *linear_of_norm(const estimate *e, int32_t value, const fb_op **norm) {
    const fb_op *linear = writer(e, value);
    if (!linear || linear->kind != FB_OP_LINEAR) return NULL;
    *norm = writer(e, linear->in[0]);
    if (!*norm || ((*norm)->kind != FB_OP_LAYERNORM && (*norm)->kind != FB_OP_RMSNORM)) return NULL;
    return program_of(e)->slots[(*norm)->weights[0]].cols == program_of(e)->hidden ? linear : NULL;
}

/* The linear that reads the matrix of `slot`; NULL: none, or several. */
static const fb_op *linear_by_slot(const fb_program *p, int32_t slot, fb_section *section) {
    const fb_op *found = NULL;
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            if (p->ops[s][i].kind != FB_OP_LINEAR || p->ops[s][i].weights[0] != slot) continue;
            if (found) return NULL;
            found = &p->ops[s][i];
            *section = (fb_section)s;
        }
    return found;
}

int32_t fb_model_bias_slot(const fb_model *m, int32_t slot) {
    const fb_program *p = &m->spec->program;
    fb_section section;
    const fb_op *linear = linear_by_slot(p, slot, &section);
    if (!linear || linear->weights[1] == FB_NONE) return FB_NONE;
    int readers = 0;
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            for (int k = 0; k < FB_MAX_WEIGHTS; k++) readers += p->ops[s][i].weights[k] == linear->weights[1];
    return readers == 1 ? linear->weights[1] : FB_NONE;
}

/* ---- moments ------------------------------------------------------------------------------------------- */

static void read_vector(const estimate *e, int32_t slot, int64_t count, double *out) {
    for (int64_t i = 0; i < count; i++)
        out[i] = slot == FB_NONE ? 0 : fb_weight_get(weight_of(e, slot), 0, i);
}

static void read_norm(estimate *e, const fb_op *norm) {
    read_vector(e, norm->weights[0], program_of(e)->hidden, e->gamma);
    read_vector(e, norm->weights[1], program_of(e)->hidden, e->beta);
}

/* Of output number `row` of a linear, whose input is the norm that was read last. */
static void linear_moments(estimate *e, const fb_op *linear, int64_t row, double *mean, double *variance) {
    const fb_weight *w = weight_of(e, linear->weights[0]);
    *mean = linear->weights[1] == FB_NONE ? 0 : fb_weight_get(weight_of(e, linear->weights[1]), 0, row);
    *variance = 0;
    fb_weight_row(w, row, 0, w->cols, e->row);
    for (int64_t i = 0; i < w->cols; i++) {
        double value = (double)e->row[i], spread = value * e->gamma[i];
        *mean += value * e->beta[i];
        *variance += spread * spread;
    }
}

/* E[z Phi(z)] of a normal z. */
static double gelu_mean(double mean, double variance) {
    double s = sqrt(1 + variance), at = mean / s;
    double below = erfc(-at * M_SQRT1_2) / 2, density = exp(-at * at / 2) * M_2_SQRTPI * M_SQRT1_2 / 2;
    return mean * below + variance / s * density;
}

/* ---- by what computes the input: false where it is unknown ----------------------------------------------
 */

typedef bool (*mean_fn)(estimate *e, const fb_op *op, int64_t count, double *out);

static bool norm_mean(estimate *e, const fb_op *norm, int64_t count, double *out) {
    read_vector(e, norm->weights[1], count, out);
    return true;
}

static bool gelu_means(estimate *e, const fb_op *gelu, int64_t count, double *out) {
    const fb_op *norm, *linear = linear_of_norm(e, gelu->in[0], &norm);
    if (!linear) return false;
    read_norm(e, norm);
    for (int64_t i = 0; i < count; i++) {
        double mean, variance;
        linear_moments(e, linear, i, &mean, &variance);
        out[i] = gelu_mean(mean, variance);
    }
    return true;
}

/* Attention's weights add up to 1: whatever they are, the mean is that of v. Query heads share the heads of
 * the cache in equal groups. */
static bool attention_mean(estimate *e, const fb_op *attention, int64_t count, double *out) {
    const fb_program *p = program_of(e);
    const fb_op *append = NULL, *norm;
    for (int32_t i = 0; i < p->op_count[e->section]; i++)
        if (p->ops[e->section][i].kind == FB_OP_KV_APPEND) append = &p->ops[e->section][i];
    const fb_op *linear = append ? linear_of_norm(e, append->in[1], &norm) : NULL;
    if (!linear) return false;
    const fb_value *v = &p->values[append->in[1]];
    int64_t group = p->values[attention->out[0]].heads / v->heads;
    read_norm(e, norm);
    for (int64_t i = 0; i < count; i++) {
        double variance;
        int64_t head = i / v->width / group;
        linear_moments(e, linear, v->offset + head * v->stride + i % v->width, &out[i], &variance);
    }
    return true;
}

static const mean_fn means[FB_OP_COUNT] = {
    [FB_OP_LAYERNORM] = norm_mean,
    [FB_OP_GELU] = gelu_means,
    [FB_OP_GELU_TANH] = gelu_means,
    [FB_OP_ATTN_VALUES] = attention_mean,
};

static bool all_zero(const double *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (values[i] != 0) return false;
    return true;
}

fb_status fb_model_input_mean(const fb_model *m, int32_t slot, int64_t layer, double **mean, fb_error *err) {
    const fb_program *p = &m->spec->program;
    *mean = NULL;
    estimate e = {.model = m, .layer = layer};
    const fb_op *linear = linear_by_slot(p, slot, &e.section), *from;
    from = linear ? writer(&e, linear->in[0]) : NULL;
    if (!from || !means[from->kind]) return FB_OK;
    int64_t count = p->slots[slot].cols, hidden = p->hidden;
    double *out = malloc((size_t)count * sizeof *out);
    e.row = malloc((size_t)hidden * sizeof *e.row);
    e.beta = malloc((size_t)hidden * sizeof *e.beta);
    e.gamma = malloc((size_t)hidden * sizeof *e.gamma);
    bool room = out && e.row && e.beta && e.gamma;
    if (room && means[from->kind](&e, from, count, out) && !all_zero(out, count)) {
        *mean = out;
        out = NULL;
    }
    free(out);
    free(e.row);
    free(e.beta);
    free(e.gamma);
    return room ? FB_OK
                : fb_fail_memory(err, "mean of an input", (count + 3 * hidden) * (int64_t)sizeof *out);
}
