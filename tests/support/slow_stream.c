#include "support/slow_stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "file/json.h"
#include "file/safetensors.h"
#include "support/support.h"

/* y = weight x + bias; also a norm, whose weight is one row. NULL: no bias. */
typedef struct slow_affine {
    const double *weight; /* [rows, cols] */
    const double *bias;   /* [rows] */
    int64_t rows, cols;
} slow_affine;

typedef struct slow_layer {
    slow_affine norm[2]; /* before attention, before the MLP */
    slow_affine q, k, v, out;
    slow_affine gate, up, down; /* gate: Llama only */
} slow_layer;

typedef struct slow_block {
    struct slow_block *next;
    double values[];
} slow_block;

struct slow_model {
    bool llama, parallel;
    int64_t layers, hidden, inner, heads, kv_heads, width, rotary, vocab;
    double eps, theta;
    const double *embed; /* [vocab, hidden] */
    slow_affine norm, head;
    slow_layer *layer;
    slow_block *memory; /* of every weight */
};

/* What a layer remembers, oldest first; keys not rotated. */
typedef struct slow_cache {
    double *keys, *values;       /* [held, kv_heads * width] */
    const double *cosine, *sine; /* of the angles [position, rotary / 2], the same for all layers */
} slow_cache;

/* ---- reading ------------------------------------------------------------------------------------------- */

static double *take(int64_t count) {
    double *values = calloc((size_t)count, sizeof *values);
    assert_non_null(values);
    return values;
}

static const double *tensor(slow_model *m, const fb_tensor_table *table, const char *name, int64_t count) {
    const fb_tensor_entry *entry = fb_tensors_find(table, name);
    if (!entry) fail_msg("slow_stream: no tensor %s", name);
    assert_int_equal(entry->type, FB_STORED_F16);
    assert_int_equal(entry->count, count);
    slow_block *block = malloc(sizeof *block + (size_t)count * sizeof(double));
    assert_non_null(block);
    block->next = m->memory;
    m->memory = block;
    for (int64_t i = 0; i < count; i++) block->values[i] = fb_dtype_get(FB_F16, entry->data, i);
    return block->values;
}

/* <name>.weight and, for GPT-NeoX, <name>.bias. */
static slow_affine affine(slow_model *m, const fb_tensor_table *table, const char *name, int64_t rows,
                          int64_t cols) {
    slow_affine a = {.rows = rows, .cols = cols};
    char *weight = fbt_format("%s.weight", name), *bias = fbt_format("%s.bias", name);
    a.weight = tensor(m, table, weight, rows * cols);
    if (!m->llama && strcmp(name, "embed_out") != 0) a.bias = tensor(m, table, bias, rows);
    free(weight);
    free(bias);
    return a;
}

static slow_affine layer_affine(slow_model *m, const fb_tensor_table *table, int64_t layer, const char *name,
                                int64_t rows, int64_t cols) {
    char *full = fbt_format("%s.layers.%lld.%s", m->llama ? "model" : "gpt_neox", (long long)layer, name);
    slow_affine a = affine(m, table, full, rows, cols);
    free(full);
    return a;
}

/* One of q, k, v from rows that lie [head][q k v][width]. */
static slow_affine pick(slow_model *m, const slow_affine *fused, int64_t part) {
    slow_affine a = {.rows = m->heads * m->width, .cols = fused->cols};
    slow_block *block = malloc(sizeof *block + (size_t)(a.rows * (a.cols + 1)) * sizeof(double));
    assert_non_null(block);
    block->next = m->memory;
    m->memory = block;
    double *bias = block->values + a.rows * a.cols;
    for (int64_t i = 0; i < a.rows; i++) {
        int64_t from = (i / m->width * 3 + part) * m->width + i % m->width;
        memcpy(block->values + i * a.cols, fused->weight + from * a.cols, (size_t)a.cols * sizeof *bias);
        bias[i] = fused->bias[from];
    }
    a.weight = block->values;
    a.bias = bias;
    return a;
}

static void read_neox(slow_model *m, const fb_tensor_table *t, int64_t i, slow_layer *l) {
    int64_t hidden = m->hidden;
    l->norm[0] = layer_affine(m, t, i, "input_layernorm", hidden, 1);
    l->norm[1] = layer_affine(m, t, i, "post_attention_layernorm", hidden, 1);
    slow_affine fused = layer_affine(m, t, i, "attention.query_key_value", 3 * hidden, hidden);
    l->q = pick(m, &fused, 0);
    l->k = pick(m, &fused, 1);
    l->v = pick(m, &fused, 2);
    l->out = layer_affine(m, t, i, "attention.dense", hidden, hidden);
    l->up = layer_affine(m, t, i, "mlp.dense_h_to_4h", m->inner, hidden);
    l->down = layer_affine(m, t, i, "mlp.dense_4h_to_h", hidden, m->inner);
}

static void read_llama(slow_model *m, const fb_tensor_table *t, int64_t i, slow_layer *l) {
    int64_t hidden = m->hidden, q = m->heads * m->width, kv = m->kv_heads * m->width;
    l->norm[0] = layer_affine(m, t, i, "input_layernorm", hidden, 1);
    l->norm[1] = layer_affine(m, t, i, "post_attention_layernorm", hidden, 1);
    l->q = layer_affine(m, t, i, "self_attn.q_proj", q, hidden);
    l->k = layer_affine(m, t, i, "self_attn.k_proj", kv, hidden);
    l->v = layer_affine(m, t, i, "self_attn.v_proj", kv, hidden);
    l->out = layer_affine(m, t, i, "self_attn.o_proj", hidden, q);
    l->gate = layer_affine(m, t, i, "mlp.gate_proj", m->inner, hidden);
    l->up = layer_affine(m, t, i, "mlp.up_proj", m->inner, hidden);
    l->down = layer_affine(m, t, i, "mlp.down_proj", hidden, m->inner);
}

static int64_t whole(const fb_json *config, const char *key) {
    const fb_json *value = fb_json_get(config, key);
    if (!fb_json_is(value, FB_JSON_INT)) fail_msg("slow_stream: config.json has no integer %s", key);
    return fb_json_int_of(value);
}

static void read_config(slow_model *m, const fb_json *config, bool *tied) {
    const char *type = fb_json_text_of(fb_json_get(config, "model_type"));
    const fb_json *rope = fb_json_get(config, "rope_parameters");
    assert_non_null(type);
    m->llama = strcmp(type, "llama") == 0;
    assert_true(m->llama || strcmp(type, "gpt_neox") == 0);
    assert_string_equal(fb_json_text_of(fb_json_get(config, "hidden_act")), m->llama ? "silu" : "gelu");
    assert_string_equal(fb_json_text_of(fb_json_get(rope, "rope_type")), "default");
    assert_int_equal(fb_json_bool_of(fb_json_get(config, "attention_bias")), !m->llama);
    m->layers = whole(config, "num_hidden_layers");
    m->hidden = whole(config, "hidden_size");
    m->inner = whole(config, "intermediate_size");
    m->vocab = whole(config, "vocab_size");
    m->heads = whole(config, "num_attention_heads");
    m->kv_heads = m->llama ? whole(config, "num_key_value_heads") : m->heads;
    m->width = m->llama ? whole(config, "head_dim") : m->hidden / m->heads;
    m->theta = fb_json_real_of(fb_json_get(rope, "rope_theta"));
    m->eps = fb_json_real_of(fb_json_get(config, m->llama ? "rms_norm_eps" : "layer_norm_eps"));
    double part = m->llama ? 1 : fb_json_real_of(fb_json_get(rope, "partial_rotary_factor"));
    m->rotary = (int64_t)((double)m->width * part);
    assert_true(m->theta > 1 && m->eps > 0 && m->rotary > 0 && m->rotary % 2 == 0);
    m->parallel = fb_json_bool_of(fb_json_get(config, "use_parallel_residual"));
    *tied = fb_json_bool_of(fb_json_get(config, "tie_word_embeddings"));
}

slow_model *slow_open(const char *folder) {
    slow_model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    char *path = fbt_format("%s/config.json", folder);
    fb_json *config;
    fb_tensor_table *table;
    fb_error err;
    bool tied;
    assert_ok(fb_json_load(path, 1 << 20, &config, &err), &err);
    assert_ok(fb_tensors_open_model(folder, &table, &err), &err);
    read_config(m, config, &tied);
    m->embed = tensor(m, table, m->llama ? "model.embed_tokens.weight" : "gpt_neox.embed_in.weight",
                      m->vocab * m->hidden);
    m->norm = affine(m, table, m->llama ? "model.norm" : "gpt_neox.final_layer_norm", m->hidden, 1);
    if (tied)
        m->head = (slow_affine){.weight = m->embed, .rows = m->vocab, .cols = m->hidden};
    else
        m->head = affine(m, table, m->llama ? "lm_head" : "embed_out", m->vocab, m->hidden);
    m->layer = calloc((size_t)m->layers, sizeof *m->layer);
    assert_non_null(m->layer);
    for (int64_t i = 0; i < m->layers; i++) (m->llama ? read_llama : read_neox)(m, table, i, &m->layer[i]);
    fb_tensors_free(table);
    fb_json_free(config);
    free(path);
    return m;
}

void slow_free(slow_model *m) {
    if (!m) return;
    while (m->memory) {
        slow_block *next = m->memory->next;
        free(m->memory);
        m->memory = next;
    }
    free(m->layer);
    free(m);
}

int64_t slow_vocab(const slow_model *m) { return m->vocab; }

/* ---- one token ----------------------------------------------------------------------------------------- */

static void apply(const slow_affine *a, const double *x, double *y) {
    for (int64_t i = 0; i < a->rows; i++) {
        double sum = a->bias ? a->bias[i] : 0;
        for (int64_t j = 0; j < a->cols; j++) sum += a->weight[i * a->cols + j] * x[j];
        y[i] = sum;
    }
}

/* Layernorm or, for Llama, rmsnorm, which takes no mean off. */
static void normalise(const slow_model *m, const slow_affine *norm, const double *x, double *y) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < m->hidden && !m->llama; i++) mean += x[i] / (double)m->hidden;
    for (int64_t i = 0; i < m->hidden; i++) square += (x[i] - mean) * (x[i] - mean) / (double)m->hidden;
    for (int64_t i = 0; i < m->hidden; i++)
        y[i] = (x[i] - mean) / sqrt(square + m->eps) * norm->weight[i] + (norm->bias ? norm->bias[i] : 0);
}

/* The pairs (i, i + rotary / 2) of each head, by the angles of `position`; the rest of a head stays. */
static void rotate(const slow_model *m, const slow_cache *cache, const double *x, int64_t heads,
                   int64_t position, double *y) {
    int64_t half = m->rotary / 2;
    memcpy(y, x, (size_t)(heads * m->width) * sizeof *x);
    for (int64_t at = 0; at < heads * m->width; at += m->width)
        for (int64_t i = 0; i < half; i++) {
            double c = cache->cosine[position * half + i], s = cache->sine[position * half + i];
            y[at + i] = x[at + i] * c - x[at + half + i] * s;
            y[at + half + i] = x[at + half + i] * c + x[at + i] * s;
        }
}

/* What the last of `held` tokens, whose query is q, sees of all of them: out [heads * width]. */
static void attend(const slow_model *m, const slow_cache *cache, int64_t held, const double *q, double *out) {
    int64_t row = m->kv_heads * m->width, group = m->heads / m->kv_heads;
    double *query = take(m->heads * m->width), *keys = take(held * row), *weight = take(held);
    rotate(m, cache, q, m->heads, held - 1, query);
    for (int64_t t = 0; t < held; t++)
        rotate(m, cache, cache->keys + t * row, m->kv_heads, t, keys + t * row);
    for (int64_t h = 0; h < m->heads; h++) {
        int64_t kv = h / group * m->width;
        double most = -INFINITY, total = 0;
        for (int64_t t = 0; t < held; t++) {
            double score = 0;
            for (int64_t i = 0; i < m->width; i++) score += query[h * m->width + i] * keys[t * row + kv + i];
            weight[t] = score / sqrt((double)m->width);
            most = fmax(most, weight[t]);
        }
        for (int64_t t = 0; t < held; t++) total += weight[t] = exp(weight[t] - most);
        for (int64_t i = 0; i < m->width; i++) {
            double sum = 0;
            for (int64_t t = 0; t < held; t++) sum += weight[t] * cache->values[t * row + kv + i];
            out[h * m->width + i] = sum / total;
        }
    }
    free(query);
    free(keys);
    free(weight);
}

static void mlp(const slow_model *m, const slow_layer *l, const double *x, double *y) {
    double *normed = take(m->hidden), *gate = take(m->inner), *up = take(m->inner);
    normalise(m, &l->norm[1], x, normed);
    apply(&l->up, normed, up);
    if (m->llama) apply(&l->gate, normed, gate);
    for (int64_t i = 0; i < m->inner; i++)
        up[i] = m->llama ? up[i] * gate[i] / (1 + exp(-gate[i])) : 0.5 * up[i] * (1 + erf(up[i] / sqrt(2)));
    apply(&l->down, up, y);
    free(normed);
    free(gate);
    free(up);
}

/* x [hidden] through a layer whose cache holds `before` tokens, and one more after it. */
static void step(const slow_model *m, const slow_layer *l, slow_cache *cache, int64_t before, double *x) {
    int64_t row = m->kv_heads * m->width;
    double *normed = take(m->hidden), *q = take(m->heads * m->width), *seen = take(m->heads * m->width);
    double *attention = take(m->hidden), *inner = take(m->hidden);
    normalise(m, &l->norm[0], x, normed);
    apply(&l->q, normed, q);
    apply(&l->k, normed, cache->keys + before * row);
    apply(&l->v, normed, cache->values + before * row);
    attend(m, cache, before + 1, q, seen);
    apply(&l->out, seen, attention);
    if (m->parallel) mlp(m, l, x, inner);
    for (int64_t i = 0; i < m->hidden; i++) x[i] += attention[i];
    if (!m->parallel) mlp(m, l, x, inner);
    for (int64_t i = 0; i < m->hidden; i++) x[i] += inner[i];
    free(normed);
    free(q);
    free(seen);
    free(attention);
    free(inner);
}

/* ---- a stream ------------------------------------------------------------------------------------------ */

/* Keeps the first `sinks` and the last `window` of `held` rows. */
static void forget(double *rows, int64_t row, int64_t held, int64_t sinks, int64_t window) {
    memmove(rows + sinks * row, rows + (held - window) * row, (size_t)(window * row) * sizeof *rows);
}

void slow_stream(const slow_model *m, const int32_t *ids, int64_t count, int64_t sinks, int64_t window,
                 double *logits) {
    int64_t held = 0, row = m->kv_heads * m->width, half = m->rotary / 2;
    slow_cache *caches = calloc((size_t)m->layers, sizeof *caches);
    double *x = take(m->hidden), *normed = take(m->hidden);
    double *cosine = take(count * half), *sine = take(count * half);
    assert_non_null(caches);
    for (int64_t i = 0; i < count * half; i++) {
        double angle = (double)(i / half) * pow(m->theta, -(double)(i % half) / (double)half);
        cosine[i] = cos(angle);
        sine[i] = sin(angle);
    }
    for (int64_t l = 0; l < m->layers; l++)
        caches[l] = (slow_cache){take(count * row), take(count * row), cosine, sine};
    for (int64_t t = 0; t < count; t++) {
        memcpy(x, m->embed + ids[t] * m->hidden, (size_t)m->hidden * sizeof *x);
        for (int64_t l = 0; l < m->layers; l++) step(m, &m->layer[l], &caches[l], held, x);
        normalise(m, &m->norm, x, normed);
        apply(&m->head, normed, logits + t * m->vocab);
        held++;
        if (window == 0 || held <= sinks + window) continue;
        for (int64_t l = 0; l < m->layers; l++) {
            forget(caches[l].keys, row, held, sinks, window);
            forget(caches[l].values, row, held, sinks, window);
        }
        held = sinks + window;
    }
    for (int64_t l = 0; l < m->layers; l++) {
        free(caches[l].keys);
        free(caches[l].values);
    }
    free(caches);
    free(cosine);
    free(sine);
    free(x);
    free(normed);
}
