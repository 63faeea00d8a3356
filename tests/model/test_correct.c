/* Biases after their matrices were rounded to 4 bits: against the definition, worked out from the tensors by
 * name, one element at a time, with integrals as sums. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pack.h"
#include "model/model.h"
#include "support/support.h"

typedef enum input { NONE, NORM, GELU, ATTENTION } input;

/* A linear, what its input is, and from which tensors: the norm, and the linear between. */
typedef struct linear_case {
    const char *name;
    input input;
    const char *norm, *between;
} linear_case;

typedef struct model_case {
    const char *golden;
    const char *layer; /* before all names */
    bool v_in_heads;   /* a row of qkv is [heads][q k v][dim], not [q k v][heads][dim] */
    linear_case linears[7];
} model_case;

#define NEOX                                                                                                 \
    {                                                                                                        \
        {"attention.query_key_value", NORM, "input_layernorm", NULL},                                        \
            {"attention.dense", ATTENTION, "input_layernorm", "attention.query_key_value"},                  \
            {"mlp.dense_h_to_4h", NORM, "post_attention_layernorm", NULL},                                   \
            {"mlp.dense_4h_to_h", GELU, "post_attention_layernorm", "mlp.dense_h_to_4h"},                    \
    }

static const model_case cases[] = {
    {"neox-parallel", "gpt_neox.layers.{}.", true, NEOX},
    {"neox-serial", "gpt_neox.layers.{}.", true, NEOX},
    {"gpt2",
     "transformer.h.{}.",
     false,
     {
         {"attn.c_attn", NORM, "ln_1", NULL},
         {"attn.c_proj", ATTENTION, "ln_1", "attn.c_attn"},
         {"mlp.c_fc", NORM, "ln_2", NULL},
         {"mlp.c_proj", GELU, "ln_2", "mlp.c_fc"},
     }},
    {"llama-llama3-bias",
     "model.layers.{}.",
     false,
     {
         {"self_attn.q_proj", NONE, NULL, NULL},
         {"self_attn.k_proj", NONE, NULL, NULL},
         {"self_attn.v_proj", NONE, NULL, NULL},
         {"self_attn.o_proj", ATTENTION, NULL, "self_attn.v_proj"},
     }},
};

static const fb_weight *find(const fb_model *m, const model_case *c, const char *name, const char *part,
                             int64_t layer) {
    char wanted[96];
    snprintf(wanted, sizeof wanted, "%s%s.%s", c->layer, name, part);
    const fb_program *p = &m->spec->program;
    for (int32_t s = 0; s < p->slot_count; s++)
        if (strcmp(p->slots[s].name, wanted) == 0) return &m->weights[s * p->layers + layer];
    fail_msg("no %s", wanted);
    return NULL;
}

/* E[z Phi(z)], z normal, as a sum over 12 deviations to each side. */
static double gelu_integral(double mean, double deviation) {
    enum { STEPS = 4000 };
    double sum = 0, norm = 0;
    for (int i = -STEPS; i <= STEPS; i++) {
        double u = 12.0 * i / STEPS, z = mean + deviation * u, density = exp(-u * u / 2);
        sum += density * z * 0.5 * (1 + erf(z / sqrt(2)));
        norm += density;
    }
    return sum / norm;
}

/* Mean and variance of row `row` of the linear between. */
static void between_moments(const fb_model *m, const model_case *c, const linear_case *l, int64_t layer,
                            int64_t row, double *mean, double *variance) {
    const fb_weight *w = find(m, c, l->between, "weight", layer);
    *mean = fb_weight_get(find(m, c, l->between, "bias", layer), 0, row);
    *variance = 0;
    for (int64_t i = 0; l->norm && i < w->cols; i++) {
        double value = fb_weight_get(w, row, i);
        *mean += value * fb_weight_get(find(m, c, l->norm, "bias", layer), 0, i);
        *variance += pow(value * fb_weight_get(find(m, c, l->norm, "weight", layer), 0, i), 2);
    }
}

/* The row of v, in the tensor that has it, for element i of attention's output. */
static int64_t v_row(const fb_model *m, const model_case *c, int64_t i) {
    const fb_program *p = &m->spec->program;
    int64_t d = p->head_dim, head = i / d / (m->spec->hyper.heads / p->kv_heads);
    if (!c->linears[0].norm) return head * d + i % d; /* llama: a tensor of its own */
    return c->v_in_heads ? (head * 3 + 2) * d + i % d : 2 * p->hidden + head * d + i % d;
}

static double input_mean(const fb_model *m, const model_case *c, const linear_case *l, int64_t layer,
                         int64_t i) {
    double mean = 0, variance;
    switch (l->input) {
    case NORM:
        return fb_weight_get(find(m, c, l->norm, "bias", layer), 0, i);
    case GELU:
        between_moments(m, c, l, layer, i, &mean, &variance);
        return gelu_integral(mean, sqrt(variance));
    case ATTENTION:
        between_moments(m, c, l, layer, v_row(m, c, i), &mean, &variance);
        return mean;
    default:
        return 0;
    }
}

/* Compares one linear's bias; gives whether it differs from what it was. */
static bool check_linear(const fb_model *from, const fb_model *to, const model_case *c, const linear_case *l,
                         int64_t layer) {
    const fb_weight *w = find(from, c, l->name, "weight", layer),
                    *rounded = find(to, c, l->name, "weight", layer);
    const fb_weight *bias = find(from, c, l->name, "bias", layer), *got = find(to, c, l->name, "bias", layer);
    bool changed = false;
    double *mean = malloc((size_t)w->cols * sizeof *mean);
    assert_non_null(mean);
    for (int64_t i = 0; i < w->cols; i++)
        mean[i] = rounded->dtype == FB_Q4_0 ? input_mean(from, c, l, layer, i) : 0;
    for (int64_t row = 0; row < w->rows; row++) {
        double before = fb_weight_get(bias, 0, row), want = before, size = fabs(before);
        for (int64_t i = 0; i < w->cols; i++) {
            double part = (fb_weight_get(w, row, i) - fb_weight_get(rounded, row, i)) * mean[i];
            want += part;
            size += fabs(part);
        }
        double have = fb_weight_get(got, 0, row);
        assert_true(fabs(have - want) <= 1e-6 * size);
        if (want == before) assert_true(have == before);
        changed = changed || have != before;
    }
    free(mean);
    return changed;
}

/* *corrected: biases. */
static fb_model *quantised(const fb_model *from, fb_dtype type, int64_t *corrected) {
    char *dir = fbt_dir_create(), *path = fbt_format("%s/out.gguf", dir);
    fb_quantize_options options;
    fb_quantize_report *report;
    fb_model *to;
    fb_error err;
    fb_quantize_options_default(&options);
    options.type = type;
    assert_ok(fb_model_quantize(from, path, &options, &report, &err), &err);
    *corrected = report->corrected;
    fb_quantize_free(report);
    assert_ok(fb_model_open(path, &to, &err), &err);
    free(path);
    fbt_dir_remove(dir);
    return to;
}

static void test_biases(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int type = 0; type < 2; type++) {
            const model_case *c = &cases[k];
            int64_t corrected;
            fb_model *from = fbt_golden_open(c->golden),
                     *to = quantised(from, type ? FB_Q4_0 : FB_Q8_0, &corrected);
            int64_t changed = 0, layers = from->spec->program.layers;
            for (int64_t layer = 0; layer < layers; layer++)
                for (const linear_case *l = c->linears; l->name; l++)
                    changed += check_linear(from, to, c, l, layer);
            assert_int_equal(corrected, changed);
            /* Where the golden's rows are whole blocks, every linear of the list has been corrected. */
            if (strncmp(c->golden, "llama", 5) != 0) assert_int_equal(changed, type ? 4 * layers : 0);
            fb_model_free(to);
            fb_model_free(from);
        }
}

/* No biases, nothing corrected; and a matrix that was quantised before has no errors to be told. */
static void test_nothing(void **state) {
    (void)state;
    int64_t corrected;
    fb_model *from = fbt_golden_open("llama-mha"), *to = quantised(from, FB_Q4_0, &corrected);
    assert_int_equal(corrected, 0);
    fb_model_free(to);
    fb_model_free(from);
    from = fbt_golden_open("neox-parallel");
    to = quantised(from, FB_Q8_0, &corrected);
    fb_model_free(from);
    from = quantised(to, FB_Q4_0, &corrected);
    assert_int_equal(corrected, 0);
    fb_model_free(to);
    fb_model_free(from);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_biases), cmocka_unit_test(test_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
