/* Llama: RMSNorm, rotary positions, grouped KV heads, gated MLP. */
#include <stdio.h>

#include "arch/config.h"
#include "program/build.h"

typedef struct llama {
    int64_t heads, kv_heads, head_dim, mlp;
    int32_t rotary;
    double eps;
    bool attention_bias, mlp_bias, tied;
    fb_op_kind activation;
} llama;

#define LAYER "model.layers.{}."

/* A projection `layer.name`.weight [rows, cols] of x, with `layer.name`.bias if there is one. */
static int32_t project(fb_build *b, const char *value, const char *name, int32_t x, int64_t rows,
                       int64_t cols, bool bias) {
    char tensor[64];
    snprintf(tensor, sizeof tensor, LAYER "%s.weight", name);
    int32_t weight = fb_build_matrix(b, tensor, rows, cols);
    snprintf(tensor, sizeof tensor, LAYER "%s.bias", name);
    return fb_build_linear(b, value, x, weight, bias ? fb_build_vector(b, tensor, rows) : FB_NONE);
}

static void write_program(fb_build *b, const llama *c) {
    fb_program *p = b->program;
    int64_t h = p->hidden, d = c->head_dim, q_size = c->heads * d, kv_size = c->kv_heads * d;
    int32_t embed = fb_build_matrix(b, "model.embed_tokens.weight", p->vocab, h);

    b->section = FB_PROLOGUE;
    int32_t x = fb_build_embed(b, "x", embed);
    int32_t angles = fb_build_rope_angles(b, "angles", c->rotary);

    b->section = FB_BODY;
    int32_t n1 = fb_build_rmsnorm(b, "n1", x, fb_build_vector(b, LAYER "input_layernorm.weight", h), c->eps);
    int32_t q_flat = project(b, "q_flat", "self_attn.q_proj", n1, q_size, h, c->attention_bias);
    int32_t k_flat = project(b, "k_flat", "self_attn.k_proj", n1, kv_size, h, c->attention_bias);
    int32_t v_flat = project(b, "v_flat", "self_attn.v_proj", n1, kv_size, h, c->attention_bias);
    int32_t q = fb_build_rope(b, "q_rot", fb_build_view(b, "q", q_flat, c->heads, d, 0, d), angles);
    int32_t k = fb_build_rope(b, "k_rot", fb_build_view(b, "k", k_flat, c->kv_heads, d, 0, d), angles);
    fb_build_kv_append(b, k, fb_build_view(b, "v", v_flat, c->kv_heads, d, 0, d));
    int32_t context = fb_build_attention(b, "context", q);
    int32_t attn = project(b, "attn", "self_attn.o_proj", context, h, q_size, c->attention_bias);
    int32_t middle = fb_build_binary(b, FB_OP_ADD, "x_mid", x, attn);

    int32_t n2 = fb_build_rmsnorm(b, "n2", middle,
                                  fb_build_vector(b, LAYER "post_attention_layernorm.weight", h), c->eps);
    int32_t gate = project(b, "gate", "mlp.gate_proj", n2, c->mlp, h, c->mlp_bias);
    int32_t act = fb_build_unary(b, c->activation, "act", gate);
    int32_t up = project(b, "up", "mlp.up_proj", n2, c->mlp, h, c->mlp_bias);
    int32_t gated = fb_build_binary(b, FB_OP_MUL, "gated", act, up);
    int32_t mlp = project(b, "mlp", "mlp.down_proj", gated, h, c->mlp, c->mlp_bias);
    fb_build_carry(b, x, fb_build_binary(b, FB_OP_ADD, "x_out", middle, mlp));

    b->section = FB_EPILOGUE;
    p->residual = x;
    p->final_norm = fb_build_rmsnorm(b, "final", x, fb_build_vector(b, "model.norm.weight", h), c->eps);
    int32_t head = c->tied ? embed : fb_build_matrix(b, "lm_head.weight", p->vocab, h);
    p->logits = fb_build_linear(b, "logits", p->final_norm, head, FB_NONE);
}

fb_status fb_llama_describe(const fb_config *config, fb_spec *spec, fb_error *err) {
    fb_program *p = &spec->program;
    llama c;
    const char *activation;
    const char *what = config->what;
    FB_TRY(fb_json_need_int(what, config->json, "num_hidden_layers", 1, FB_LIMIT_LAYERS, &p->layers, err));
    FB_TRY(fb_json_need_int(what, config->json, "hidden_size", 1, FB_LIMIT_WIDTH, &p->hidden, err));
    FB_TRY(fb_json_need_int(what, config->json, "vocab_size", 1, FB_LIMIT_VOCAB, &p->vocab, err));
    FB_TRY(fb_json_int(what, config->json, "max_position_embeddings", 1, FB_LIMIT_CONTEXT, 2048, &p->context,
                       err));
    FB_TRY(fb_json_need_int(what, config->json, "num_attention_heads", 1, FB_LIMIT_HEADS, &c.heads, err));
    FB_TRY(fb_json_int(what, config->json, "num_key_value_heads", 1, c.heads, c.heads, &c.kv_heads, err));
    FB_TRY(fb_json_need_int(what, config->json, "intermediate_size", 1, FB_LIMIT_WIDTH, &c.mlp, err));
    FB_TRY(fb_json_real(what, config->json, "rms_norm_eps", 0, 1, 1e-6, &c.eps, err));
    FB_TRY(fb_json_bool(what, config->json, "attention_bias", false, &c.attention_bias, err));
    FB_TRY(fb_json_bool(what, config->json, "mlp_bias", false, &c.mlp_bias, err));
    FB_TRY(fb_json_bool(what, config->json, "tie_word_embeddings", false, &c.tied, err));
    FB_TRY(fb_config_activation(config, "hidden_act", "silu", &c.activation, &activation, err));
    FB_TRY(fb_json_int(what, config->json, "head_dim", 1, FB_LIMIT_WIDTH / c.heads, 0, &c.head_dim, err));
    if (!c.head_dim) FB_TRY(fb_config_heads(config, p->hidden, c.heads, &c.head_dim, err));
    if (c.heads % c.kv_heads)
        return fb_fail(err, FB_ERROR_FILE, "%s: num_key_value_heads: %lld (a divisor of %lld heads)", what,
                       (long long)c.kv_heads, (long long)c.heads);

    fb_spec_fact(spec, "residual", "serial");
    fb_spec_fact(spec, "activation", "%s, gated", activation);
    FB_TRY(fb_config_rope(config, spec, c.head_dim, 1, &c.rotary, err));
    if (c.rotary != c.head_dim)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: rotating elements of a head: %d (all %lld for llama)",
                       what, c.rotary, (long long)c.head_dim);
    fb_spec_fact(spec, "norm", "rmsnorm, epsilon %g", c.eps);
    fb_spec_fact(spec, "heads", "%lld of %lld elements, on %lld KV heads", (long long)c.heads,
                 (long long)c.head_dim, (long long)c.kv_heads);
    fb_spec_fact(spec, "attention bias", "%s", c.attention_bias ? "yes" : "no");
    fb_spec_fact(spec, "mlp", "%lld%s", (long long)c.mlp, c.mlp_bias ? ", with bias" : "");
    fb_spec_fact(spec, "embeddings", "%s", c.tied ? "tied" : "untied");

    spec->hyper.heads = c.heads;
    spec->hyper.mlp = c.mlp;
    spec->hyper.eps = c.eps;
    spec->hyper.activation = c.activation;
    spec->hyper.tied = c.tied;
    p->kv_heads = c.kv_heads;
    p->head_dim = c.head_dim;
    spec->ignored[0] = ".self_attn.rotary_emb.inv_freq";
    spec->ignored[1] = c.tied ? "lm_head.weight" : NULL;
    fb_build b = {.program = p};
    write_program(&b, &c);
    return fb_build_end(&b, err);
}
