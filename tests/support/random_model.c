#include "support/random_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/arch.h"
#include "base/dtype.h"

const char *const fbt_architectures[] = {"gpt_neox", "llama", "gpt2", NULL};

/* ---- the config ---------------------------------------------------------------------------------------- */

static int64_t between(fbt_random *r, int64_t low, int64_t high) {
    return low + fbt_random_below(r, high - low + 1);
}

static const char *flip(fbt_random *r) { return fbt_random_below(r, 2) ? "true" : "false"; }

#define PICK(r, table) ((table)[fbt_random_below(r, (int64_t)(sizeof(table) / sizeof *(table)))])

static const double epsilons[] = {1e-5, 1e-6, 1e-12, 0.1};
static const double bases[] = {10000, 500000, 100, 1e6};

typedef struct sizes {
    int64_t layers, heads, kv_heads, head_dim, mlp, vocab, context;
} sizes;

static sizes draw_sizes(fbt_random *r) {
    sizes s = {.layers = between(r, 1, 3),
               .heads = between(r, 1, 4),
               .head_dim = 2 * between(r, 1, 12),
               .mlp = between(r, 1, 160),
               .vocab = between(r, 3, 300),
               .context = between(r, 80, 300)};
    s.kv_heads = s.heads;
    while (fbt_random_below(r, 2)) s.kv_heads = between(r, 1, s.heads);
    while (s.heads % s.kv_heads) s.kv_heads--;
    return s;
}

/* The share of a head that rotates: none, all, or an even number of elements. */
static double draw_share(fbt_random *r, int64_t head_dim) {
    int64_t elements = 2 * between(r, 0, head_dim / 2);
    return (double)elements / (double)head_dim;
}

static char *gpt_neox(fbt_random *r, const sizes *s) {
    bool old = fbt_random_below(r, 2) == 0;
    char *rope = old ? fbt_format("\"rotary_pct\": %.17g, \"rotary_emb_base\": %g",
                                  draw_share(r, s->head_dim), PICK(r, bases))
                     : fbt_format("\"rope_parameters\": {\"rope_type\": \"%s\", \"factor\": %lld, "
                                  "\"rope_theta\": %g, \"partial_rotary_factor\": %.17g}",
                                  fbt_random_below(r, 2) ? "linear" : "default", (long long)between(r, 1, 4),
                                  PICK(r, bases), draw_share(r, s->head_dim));
    char *text = fbt_format(
        "{\"model_type\": \"gpt_neox\", \"num_hidden_layers\": %lld, \"hidden_size\": %lld, \"vocab_size\": "
        "%lld, "
        "\"max_position_embeddings\": %lld, \"num_attention_heads\": %lld, \"intermediate_size\": %lld, "
        "\"layer_norm_eps\": %g, \"use_parallel_residual\": %s, \"attention_bias\": %s, "
        "\"tie_word_embeddings\": %s, %s}",
        (long long)s->layers, (long long)(s->heads * s->head_dim), (long long)s->vocab, (long long)s->context,
        (long long)s->heads, (long long)s->mlp, PICK(r, epsilons), flip(r), flip(r), flip(r), rope);
    free(rope);
    return text;
}

static char *llama(fbt_random *r, const sizes *s) {
    static const char *const scalings[] = {
        "", ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 3}",
        (", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}")};
    int64_t hidden = fbt_random_below(r, 2) ? s->heads * s->head_dim : between(r, 2, 96);
    return fbt_format(
        "{\"model_type\": \"llama\", \"num_hidden_layers\": %lld, \"hidden_size\": %lld, \"vocab_size\": "
        "%lld, "
        "\"max_position_embeddings\": %lld, \"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, "
        "\"head_dim\": %lld, \"intermediate_size\": %lld, \"rms_norm_eps\": %g, \"rope_theta\": %g, "
        "\"attention_bias\": %s, \"mlp_bias\": %s, \"tie_word_embeddings\": %s%s}",
        (long long)s->layers, (long long)hidden, (long long)s->vocab, (long long)s->context,
        (long long)s->heads, (long long)s->kv_heads, (long long)s->head_dim, (long long)s->mlp,
        PICK(r, epsilons), PICK(r, bases), flip(r), flip(r), flip(r), PICK(r, scalings));
}

static char *gpt2(fbt_random *r, const sizes *s) {
    return fbt_format("{\"model_type\": \"gpt2\", \"n_layer\": %lld, \"n_embd\": %lld, \"vocab_size\": %lld, "
                      "\"n_positions\": %lld, \"n_head\": %lld, \"n_inner\": %lld, "
                      "\"layer_norm_epsilon\": %g, \"tie_word_embeddings\": %s}",
                      (long long)s->layers, (long long)(s->heads * s->head_dim), (long long)s->vocab,
                      (long long)s->context, (long long)s->heads, (long long)s->mlp, PICK(r, epsilons),
                      flip(r));
}

static char *draw_config(fbt_random *r, const char *architecture) {
    sizes s = draw_sizes(r);
    if (strcmp(architecture, "gpt_neox") == 0) return gpt_neox(r, &s);
    if (strcmp(architecture, "llama") == 0) return llama(r, &s);
    assert_string_equal(architecture, "gpt2");
    return gpt2(r, &s);
}

/* ---- the weights --------------------------------------------------------------------------------------- */

/* Float16 elements around `mean`. */
static uint16_t *draw_elements(fbt_random *r, int64_t count, double mean, double deviation) {
    uint16_t *elements = malloc((size_t)count * sizeof *elements);
    assert_non_null(elements);
    for (int64_t i = 0; i < count; i++)
        elements[i] = fb_f32_to_f16((float)(mean + deviation * fbt_random_normal(r)));
    return elements;
}

static fbt_tensor draw_tensor(fbt_random *r, const fb_slot *slot, int64_t layer) {
    const char *hole = strstr(slot->name, "{}");
    bool norm = slot->vector && strstr(slot->name, "weight");
    /* A matrix of gain 1 keeps the size of what it multiplies. */
    double gain = exp2(fbt_random_uniform(r, -2, 2));
    double deviation = slot->vector ? 0.2 * gain : gain / sqrt((double)slot->cols);
    int64_t rows = slot->transposed ? slot->cols : slot->rows, cols = slot->rows * slot->cols / rows;
    fbt_tensor t = {.dtype = "F16",
                    .dims = slot->vector ? 1 : 2,
                    .shape = {slot->vector ? slot->cols : rows, cols},
                    .size = (size_t)(slot->rows * slot->cols) * 2,
                    .bytes = draw_elements(r, slot->rows * slot->cols, norm ? 1 : 0, deviation)};
    t.name = hole ? fbt_format("%.*s%lld%s", (int)(hole - slot->name), slot->name, (long long)layer, hole + 2)
                  : fbt_format("%s", slot->name);
    return t;
}

static void write_weights(fbt_random *r, const fb_program *p, const char *path) {
    size_t count = 0;
    fbt_tensor *tensors = calloc((size_t)(p->slot_count * p->layers), sizeof *tensors);
    assert_non_null(tensors);
    for (int32_t s = 0; s < p->slot_count; s++)
        for (int64_t layer = 0; layer < (p->slots[s].per_layer ? p->layers : 1); layer++)
            tensors[count++] = draw_tensor(r, &p->slots[s], layer);
    fbt_safetensors_write(path, tensors, count, NULL);
    for (size_t i = 0; i < count; i++) {
        free((void *)(uintptr_t)tensors[i].name);
        free((void *)(uintptr_t)tensors[i].bytes);
    }
    free(tensors);
}

char *fbt_random_model(fbt_random *random, const char *architecture, char **config) {
    char *dir = fbt_dir_create(), *path = fbt_format("%s/config.json", dir);
    *config = draw_config(random, architecture);
    fbt_text_write(path, *config);
    free(path);
    fb_spec *spec;
    fb_error err;
    assert_ok(fb_arch_describe("config", *config, strlen(*config), &spec, &err), &err);
    path = fbt_format("%s/model.safetensors", dir);
    write_weights(random, &spec->program, path);
    fb_spec_free(spec);
    free(path);
    return dir;
}
