/* GPT-NeoX (Pythia and the built-in model). With parallel residual both branches read the layer's input:
 *     x = (mlp(ln2(x)) + attention(ln1(x))) + x
 * and without it the second reads what the first left. The order of the additions is part of the model. */
#include <math.h>

#include "arch/config.h"
#include "program/build.h"

typedef struct neox {
    int64_t heads, head_dim, mlp;
    int32_t rotary;
    double eps;
    bool parallel, attention_bias, tied;
    fb_op_kind activation;
} neox;

#define LAYER "gpt_neox.layers.{}."

static void write_program(fb_build *b, const neox *c) {
    fb_program *p = b->program;
    int64_t h = p->hidden, d = c->head_dim;
    int32_t embed_in = fb_build_matrix(b, "gpt_neox.embed_in.weight", p->vocab, h);

    b->section = FB_PROLOGUE;
    int32_t x = fb_build_embed(b, "x", embed_in, 1);
    int32_t angles = c->rotary ? fb_build_rope_angles(b, "angles", c->rotary, 0, 1) : FB_NONE;

    b->section = FB_BODY;
    int32_t n1 = fb_build_layernorm(b, "n1", x, fb_build_vector(b, LAYER "input_layernorm.weight", h),
                                    fb_build_vector(b, LAYER "input_layernorm.bias", h), c->eps);
    int32_t qkv_bias =
        c->attention_bias ? fb_build_vector(b, LAYER "attention.query_key_value.bias", 3 * h) : FB_NONE;
    int32_t qkv = fb_build_linear(
        b, "qkv", n1, fb_build_matrix(b, LAYER "attention.query_key_value.weight", 3 * h, h), qkv_bias);
    /* A row of qkv is [heads][q k v][head_dim]. */
    int32_t q = fb_build_view(b, "q", qkv, c->heads, d, 0, 3 * d);
    int32_t k = fb_build_view(b, "k", qkv, c->heads, d, d, 3 * d);
    int32_t v = fb_build_view(b, "v", qkv, c->heads, d, 2 * d, 3 * d);
    if (c->rotary) {
        q = fb_build_rope(b, "q_rot", q, angles);
        k = fb_build_rope(b, "k_rot", k, angles);
    }
    fb_build_kv_append(b, k, v);
    int32_t context = fb_build_attention(b, "context", q, 1 / sqrt((double)d), 0);
    int32_t dense_bias = c->attention_bias ? fb_build_vector(b, LAYER "attention.dense.bias", h) : FB_NONE;
    int32_t attn = fb_build_linear(b, "attn", context,
                                   fb_build_matrix(b, LAYER "attention.dense.weight", h, h), dense_bias);
    int32_t middle = c->parallel ? x : fb_build_binary(b, FB_OP_ADD, "x_mid", attn, x);

    int32_t n2 =
        fb_build_layernorm(b, "n2", middle, fb_build_vector(b, LAYER "post_attention_layernorm.weight", h),
                           fb_build_vector(b, LAYER "post_attention_layernorm.bias", h), c->eps);
    int32_t up = fb_build_linear(b, "up", n2, fb_build_matrix(b, LAYER "mlp.dense_h_to_4h.weight", c->mlp, h),
                                 fb_build_vector(b, LAYER "mlp.dense_h_to_4h.bias", c->mlp));
    int32_t act = fb_build_unary(b, c->activation, "act", up);
    int32_t mlp =
        fb_build_linear(b, "mlp", act, fb_build_matrix(b, LAYER "mlp.dense_4h_to_h.weight", h, c->mlp),
                        fb_build_vector(b, LAYER "mlp.dense_4h_to_h.bias", h));
    int32_t sum = c->parallel ? fb_build_binary(b, FB_OP_ADD, "sum", mlp, attn) : mlp;
    fb_build_carry(b, x, fb_build_binary(b, FB_OP_ADD, "x_out", sum, middle));

    b->section = FB_EPILOGUE;
    p->residual = x;
    p->final_norm =
        fb_build_layernorm(b, "final", x, fb_build_vector(b, "gpt_neox.final_layer_norm.weight", h),
                           fb_build_vector(b, "gpt_neox.final_layer_norm.bias", h), c->eps);
    int32_t head = c->tied ? embed_in : fb_build_matrix(b, "embed_out.weight", p->vocab, h);
    p->logits = fb_build_linear(b, "logits", p->final_norm, head, FB_NONE);
}

fb_status fb_gpt_neox_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    fb_program *p = &spec->program;
    neox c;
    const char *activation;
    const char *what = config->what;
    FB_TRY(fb_json_need_int(what, config->json, "num_hidden_layers", 1, FB_LIMIT_LAYERS, &p->layers, err));
    FB_TRY(fb_json_need_int(what, config->json, "hidden_size", 1, FB_LIMIT_WIDTH, &p->hidden, err));
    FB_TRY(fb_json_need_int(what, config->json, "vocab_size", 1, FB_LIMIT_VOCAB, &p->vocab, err));
    FB_TRY(fb_json_need_int(what, config->json, "max_position_embeddings", 1, FB_LIMIT_CONTEXT, &p->context,
                            err));
    FB_TRY(fb_json_need_int(what, config->json, "num_attention_heads", 1, FB_LIMIT_HEADS, &c.heads, err));
    FB_TRY(fb_json_need_int(what, config->json, "intermediate_size", 1, FB_LIMIT_WIDTH, &c.mlp, err));
    FB_TRY(fb_json_real(what, config->json, "layer_norm_eps", 0, 1, 1e-5, &c.eps, err));
    FB_TRY(fb_json_bool(what, config->json, "use_parallel_residual", true, &c.parallel, err));
    FB_TRY(fb_json_bool(what, config->json, "attention_bias", true, &c.attention_bias, err));
    FB_TRY(fb_json_bool(what, config->json, "tie_word_embeddings", false, &c.tied, err));
    FB_TRY(fb_config_activation(config, "hidden_act", "gelu", &c.activation, &activation, err));
    FB_TRY(fb_config_heads(config, p->hidden, c.heads, &c.head_dim, err));

    fb_spec_fact(spec, "residual", "%s", c.parallel ? "parallel: (mlp + attention) + x" : "serial");
    fb_spec_fact(spec, "activation", "%s", activation);
    FB_TRY(fb_config_rope(config, spec, c.head_dim, 0.25, &c.rotary, err));
    fb_spec_fact(spec, "norm", "layernorm, epsilon %g", c.eps);
    fb_spec_fact(spec, "heads", "%lld of %lld elements, joint [head][q k v]", (long long)c.heads,
                 (long long)c.head_dim);
    fb_spec_fact(spec, "attention bias", "%s", c.attention_bias ? "yes" : "no");
    fb_spec_fact(spec, "mlp", "%lld", (long long)c.mlp);
    fb_spec_fact(spec, "embeddings", "%s", c.tied ? "tied" : "untied");

    spec->hyper.heads = c.heads;
    spec->hyper.mlp = c.mlp;
    spec->hyper.eps = c.eps;
    spec->hyper.activation = c.activation;
    spec->hyper.parallel = c.parallel;
    spec->hyper.tied = c.tied;
    p->kv_heads = c.heads;
    p->head_dim = c.head_dim;
    spec->ignored[0] = ".attention.bias"; /* the causal mask, which old checkpoints carry */
    spec->ignored[1] = ".attention.masked_bias";
    spec->ignored[2] = ".attention.rotary_emb.inv_freq";
    spec->ignored[3] = c.tied ? "embed_out.weight" : NULL;
    fb_build b = {.program = p};
    write_program(&b, &c);
    return fb_build_end(&b, err);
}
