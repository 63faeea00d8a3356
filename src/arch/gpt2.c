/* GPT-2: learned positions, serial residual, weights stored transposed ("Conv1D": [inputs, outputs]). */
#include <math.h>
#include <stdio.h>

#include "arch/config.h"
#include "program/build.h"

typedef struct gpt2 {
    int64_t heads, head_dim, mlp;
    double eps;
    bool tied;
    fb_op_kind activation;
} gpt2;

#define LAYER "transformer.h.{}."

static int32_t norm(fb_build *b, const char *value, const char *name, int32_t x, double eps) {
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    int64_t h = b->program->hidden;
    return fb_build_layernorm(b, value, x, fb_build_vector(b, weight, h), fb_build_vector(b, bias, h), eps);
}

static int32_t project(fb_build *b, const char *value, const char *name, int32_t x, int64_t rows,
                       int64_t cols) {
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, LAYER "%s.weight", name);
    snprintf(bias, sizeof bias, LAYER "%s.bias", name);
    return fb_build_linear(b, value, x, fb_build_matrix_transposed(b, weight, rows, cols),
                           fb_build_vector(b, bias, rows));
}

static void write_program(fb_build *b, const gpt2 *c) {
    fb_program *p = b->program;
    int64_t h = p->hidden, d = c->head_dim;
    int32_t tokens = fb_build_matrix(b, "transformer.wte.weight", p->vocab, h);
    int32_t positions = fb_build_matrix(b, "transformer.wpe.weight", p->context, h);

    b->section = FB_PROLOGUE;
    int32_t token = fb_build_embed(b, "token", tokens, 1);
    int32_t x = fb_build_binary(b, FB_OP_ADD, "x", token, fb_build_embed_position(b, "position", positions));

    b->section = FB_BODY;
    int32_t n1 = norm(b, "n1", LAYER "ln_1", x, c->eps);
    int32_t qkv = project(b, "qkv", "attn.c_attn", n1, 3 * h, h);
    /* A row of qkv is [q k v][heads][head_dim]. */
    int32_t q = fb_build_view(b, "q", qkv, c->heads, d, 0, d);
    int32_t k = fb_build_view(b, "k", qkv, c->heads, d, h, d);
    int32_t v = fb_build_view(b, "v", qkv, c->heads, d, 2 * h, d);
    fb_build_kv_append(b, k, v);
    int32_t context = fb_build_attention(b, "context", q, 1 / sqrt((double)d), 0);
    int32_t attn = project(b, "attn", "attn.c_proj", context, h, h);
    int32_t middle = fb_build_binary(b, FB_OP_ADD, "x_mid", attn, x);
    int32_t n2 = norm(b, "n2", LAYER "ln_2", middle, c->eps);
    int32_t up = project(b, "up", "mlp.c_fc", n2, c->mlp, h);
    int32_t act = fb_build_unary(b, c->activation, "act", up);
    int32_t mlp = project(b, "mlp", "mlp.c_proj", act, h, c->mlp);
    fb_build_carry(b, x, fb_build_binary(b, FB_OP_ADD, "x_out", middle, mlp));

    b->section = FB_EPILOGUE;
    p->residual = x;
    p->final_norm = norm(b, "final", "transformer.ln_f", x, c->eps);
    int32_t head = c->tied ? tokens : fb_build_matrix(b, "lm_head.weight", p->vocab, h);
    p->logits = fb_build_linear(b, "logits", p->final_norm, head, FB_NONE);
}

fb_status fb_gpt2_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    fb_program *p = &spec->program;
    gpt2 c;
    const char *activation;
    const char *what = config->what;
    static const char *const layers[] = {"n_layer", "num_hidden_layers", NULL};
    static const char *const hidden[] = {"n_embd", "hidden_size", NULL};
    static const char *const heads[] = {"n_head", "num_attention_heads", NULL};
    static const char *const context[] = {"n_positions", "n_ctx", "max_position_embeddings", NULL};
    FB_TRY(fb_config_size(config, layers, FB_LIMIT_LAYERS, &p->layers, err));
    FB_TRY(fb_config_size(config, hidden, FB_LIMIT_WIDTH / 4, &p->hidden, err));
    FB_TRY(fb_config_size(config, heads, FB_LIMIT_HEADS, &c.heads, err));
    FB_TRY(fb_config_size(config, context, FB_LIMIT_CONTEXT, &p->context, err));
    FB_TRY(fb_json_need_int(what, config->json, "vocab_size", 1, FB_LIMIT_VOCAB, &p->vocab, err));
    FB_TRY(fb_json_int(what, config->json, "n_inner", 1, FB_LIMIT_WIDTH, 4 * p->hidden, &c.mlp, err));
    FB_TRY(fb_json_real(what, config->json, "layer_norm_epsilon", 0, 1, 1e-5, &c.eps, err));
    FB_TRY(fb_json_bool(what, config->json, "tie_word_embeddings", true, &c.tied, err));
    FB_TRY(fb_config_activation(config, "activation_function", "gelu_new", &c.activation, &activation, err));
    FB_TRY(fb_config_heads(config, p->hidden, c.heads, &c.head_dim, err));

    fb_spec_fact(spec, "residual", "serial");
    fb_spec_fact(spec, "activation", "%s", activation);
    fb_spec_fact(spec, "positions", "learned, %lld", (long long)p->context);
    fb_spec_fact(spec, "norm", "layernorm, epsilon %g", c.eps);
    fb_spec_fact(spec, "heads", "%lld of %lld elements, joint [q k v][head]", (long long)c.heads,
                 (long long)c.head_dim);
    fb_spec_fact(spec, "mlp", "%lld", (long long)c.mlp);
    fb_spec_fact(spec, "embeddings", "%s", c.tied ? "tied" : "untied");

    spec->hyper.heads = c.heads;
    spec->hyper.mlp = c.mlp;
    spec->hyper.eps = c.eps;
    spec->hyper.activation = c.activation;
    spec->hyper.tied = c.tied;
    p->kv_heads = c.heads;
    p->head_dim = c.head_dim;
    spec->optional_prefix = "transformer.";
    spec->ignored[0] = ".attn.bias"; /* the causal mask */
    spec->ignored[1] = ".attn.masked_bias";
    spec->ignored[2] = c.tied ? "lm_head.weight" : NULL;
    fb_build b = {.program = p};
    write_program(&b, &c);
    return fb_build_end(&b, err);
}
