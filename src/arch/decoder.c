#include "arch/decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "program/build.h"

#define LAYER     "model.layers.{}."
#define NAME_SIZE 96

/* ---- reading ---- */

static fb_status read_sizes(const fb_config *config, fb_program *p, fb_decoder *d, fb_error *err) {
    const char *what = config->what;
    FB_TRY(fb_json_need_int(what, config->json, "num_hidden_layers", 1, FB_LIMIT_LAYERS, &p->layers, err));
    FB_TRY(fb_json_need_int(what, config->json, "hidden_size", 1, FB_LIMIT_WIDTH, &p->hidden, err));
    FB_TRY(fb_json_need_int(what, config->json, "vocab_size", 1, FB_LIMIT_VOCAB, &p->vocab, err));
    FB_TRY(fb_json_int(what, config->json, "max_position_embeddings", 1, FB_LIMIT_CONTEXT, 2048, &p->context,
                       err));
    FB_TRY(fb_json_need_int(what, config->json, "num_attention_heads", 1, FB_LIMIT_HEADS, &d->heads, err));
    FB_TRY(fb_json_int(what, config->json, "num_key_value_heads", 1, d->heads, d->heads, &d->kv_heads, err));
    FB_TRY(fb_json_need_int(what, config->json, "intermediate_size", 1, FB_LIMIT_WIDTH, &d->mlp, err));
    FB_TRY(fb_json_int(what, config->json, "head_dim", 1, FB_LIMIT_WIDTH / d->heads, 0, &d->head_dim, err));
    if (!d->head_dim) FB_TRY(fb_config_heads(config, p->hidden, d->heads, &d->head_dim, err));
    if (d->heads % d->kv_heads)
        return fb_fail(err, FB_ERROR_FILE, "%s: num_key_value_heads: %lld (a divisor of %lld heads)", what,
                       (long long)d->kv_heads, (long long)d->heads);
    return FB_OK;
}

static fb_status read_rest(const fb_config *config, bool tied, fb_decoder *d, fb_error *err) {
    const char *what = config->what;
    bool bias;
    FB_TRY(fb_json_real(what, config->json, "rms_norm_eps", 0, 1, 1e-6, &d->eps, err));
    FB_TRY(fb_json_bool(what, config->json, "attention_bias", false, &bias, err));
    FB_TRY(fb_json_bool(what, config->json, "mlp_bias", false, &d->mlp_bias, err));
    FB_TRY(fb_json_bool(what, config->json, "tie_word_embeddings", tied, &d->tied, err));
    FB_TRY(fb_config_activation(config, "hidden_act", "silu", &d->activation, &d->activation_name, err));
    d->qkv_bias = d->output_bias = bias;
    d->before_attention = "input_layernorm";
    d->before_mlp = "post_attention_layernorm";
    d->embedding_scale = d->residual_scale = d->logit_scale = 1;
    d->attention_scale = 1 / sqrt((double)d->head_dim);
    d->rotary_fraction = 1;
    d->rope_base = 10000;
    return FB_OK;
}

static fb_status read_rope(const fb_config *config, fb_spec *spec, fb_decoder *d, fb_error *err) {
    const fb_json *dictionary;
    char what[512];
    FB_TRY(fb_rope_dictionary(config, &dictionary, what, sizeof what, err));
    FB_TRY(fb_rope_read(config, what, dictionary, d->head_dim, spec->program.context, d->rope_base,
                        d->rotary_fraction, &d->ropes[0], err));
    d->rope_count = 1;
    if (!d->partial && d->ropes[0].rotary != d->head_dim)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: rotating elements of a head: %d (all %lld for %s)",
                       config->what, d->ropes[0].rotary, (long long)d->head_dim, spec->architecture);
    fb_rope_facts(&d->ropes[0], spec, d->head_dim);
    return FB_OK;
}

static fb_status read_layer_types(const fb_config *config, const fb_spec *spec, const fb_json *types,
                                  fb_decoder *d, fb_error *err) {
    int64_t layers = spec->program.layers, layer = 0;
    char text[64];
    if (!fb_json_is(types, FB_JSON_ARRAY) || fb_json_size(types) != (size_t)layers)
        return fb_fail(err, FB_ERROR_FILE, "%s: layer_types: %s (a list of %lld)", config->what,
                       fb_json_show(types, text, sizeof text), (long long)layers);
    for (const fb_json *type = fb_json_first(types); type; type = fb_json_next(type)) {
        const char *name = fb_json_text_of(type);
        d->slides[layer] = name && strcmp(name, "sliding_attention") == 0;
        if (!name || (!d->slides[layer] && strcmp(name, "full_attention") != 0))
            return fb_fail(err, FB_ERROR_UNSUPPORTED,
                           "%s: layer_types: %s (known: full_attention, sliding_attention)", config->what,
                           fb_json_show(type, text, sizeof text));
        layer++;
    }
    return FB_OK;
}

fb_status fb_decoder_windows(const fb_config *config, const fb_spec *spec, fb_decoder *d, int64_t fallback,
                             bool by_type,
                             bool (*slides)(const fb_decoder *d, int64_t layer, int64_t pattern),
                             int64_t pattern, fb_error *err) {
    const fb_json *types = fb_json_member(config->json, "layer_types");
    bool any = false;
    if (fb_json_get(config->json, "sliding_window")) fallback = 0;
    FB_TRY(fb_json_int(config->what, config->json, "sliding_window", 1, FB_LIMIT_CONTEXT, fallback,
                       &d->window, err));
    if (types) FB_TRY(read_layer_types(config, spec, types, d, err));
    for (int64_t layer = 0; layer < spec->program.layers; layer++) {
        bool usual = d->window && slides(d, layer, pattern);
        if (types && !by_type && d->slides[layer] != usual)
            return fb_fail(err, FB_ERROR_UNSUPPORTED,
                           "%s: layer_types: layer %lld (in this architecture sliding_window decides alone)",
                           config->what, (long long)layer);
        if (!types) d->slides[layer] = usual;
        any = any || d->slides[layer];
    }
    if (any && !d->window)
        return fb_fail(err, FB_ERROR_FILE, "%s: sliding_window: missing (layer_types names sliding layers)",
                       config->what);
    if (!any) d->window = 0;
    return FB_OK;
}

fb_status fb_decoder_experts_used(const fb_config *config, fb_decoder *d, int64_t fallback, fb_error *err) {
    FB_TRY(fb_json_int(config->what, config->json, "num_experts_per_tok", 1, d->experts, fallback,
                       &d->experts_used, err));
    if (d->experts_used <= d->experts) return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: num_experts_per_tok: missing (%lld by default, of %lld experts)",
                   config->what, (long long)d->experts_used, (long long)d->experts);
}

/* ---- the program ---- */

/* A weight of one norm. */
static int32_t norm_weight(fb_build *b, const fb_decoder *d, const char *prefix, const char *name,
                           int64_t n) {
    char tensor[NAME_SIZE];
    snprintf(tensor, sizeof tensor, "%s%s.weight", prefix, name);
    return d->plus_one ? fb_build_vector_plus_one(b, tensor, n) : fb_build_vector(b, tensor, n);
}

static int32_t norm(fb_build *b, const fb_decoder *d, const char *value, const char *prefix, const char *name,
                    int32_t x) {
    int64_t h = b->program->hidden;
    char tensor[NAME_SIZE];
    int32_t weight = norm_weight(b, d, prefix, name, h);
    if (!d->layernorm) return fb_build_rmsnorm(b, value, x, weight, d->eps);
    snprintf(tensor, sizeof tensor, "%s%s.bias", prefix, name);
    return fb_build_layernorm(b, value, x, weight, fb_build_vector(b, tensor, h), d->eps);
}

/* A norm of the layer; x itself if there is none. */
static int32_t maybe_norm(fb_build *b, const fb_decoder *d, const char *value, const char *name, int32_t x) {
    return name ? norm(b, d, value, LAYER, name, x) : x;
}

/* A projection `layer.name` of x: rows `first` to first + rows - 1 of a tensor of `of` rows; of 0: all of it.
 */
static int32_t project(fb_build *b, const char *value, const char *name, int32_t x, int64_t first,
                       int64_t rows, int64_t of, int64_t cols, bool bias) {
    char tensor[NAME_SIZE];
    snprintf(tensor, sizeof tensor, LAYER "%s.weight", name);
    int32_t weight = fb_build_matrix_part(b, tensor, first, rows, of, cols), add = FB_NONE;
    snprintf(tensor, sizeof tensor, LAYER "%s.bias", name);
    if (bias) add = fb_build_vector_part(b, tensor, first, rows, of);
    return fb_build_linear(b, value, x, weight, add);
}

/* q or k: its heads, normalised if the architecture does, and rotated. */
static int32_t heads_of(fb_build *b, const fb_decoder *d, const char *name, int32_t flat, int64_t heads,
                        int32_t angles) {
    char value[16], tensor[NAME_SIZE];
    snprintf(tensor, sizeof tensor, "self_attn.%s_norm", name);
    snprintf(value, sizeof value, "%s_norm", name);
    if (d->qk_norm == FB_QK_ROW)
        flat =
            fb_build_rmsnorm(b, value, flat, norm_weight(b, d, LAYER, tensor, heads * d->head_dim), d->eps);
    int32_t x = fb_build_view(b, name, flat, heads, d->head_dim, 0, d->head_dim);
    if (d->qk_norm == FB_QK_HEAD)
        x = fb_build_rmsnorm(b, value, x, norm_weight(b, d, LAYER, tensor, d->head_dim), d->eps);
    snprintf(value, sizeof value, "%s_rot", name);
    return angles == FB_NONE ? x : fb_build_rope(b, value, x, angles);
}

static int32_t attention(fb_build *b, const fb_decoder *d, int32_t x, int32_t angles) {
    int64_t h = b->program->hidden, q_size = d->heads * d->head_dim, kv_size = d->kv_heads * d->head_dim;
    int64_t of = d->merged ? q_size + 2 * kv_size : 0, k_at = d->merged ? q_size : 0;
    const char *names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    const char *one = "self_attn.qkv_proj";
    int32_t q = project(b, "q_flat", d->merged ? one : names[0], x, 0, q_size, of, h, d->qkv_bias);
    int32_t k = project(b, "k_flat", d->merged ? one : names[1], x, k_at, kv_size, of, h, d->qkv_bias);
    int32_t v = project(b, "v_flat", d->merged ? one : names[2], x, d->merged ? k_at + kv_size : 0, kv_size,
                        of, h, d->qkv_bias);
    q = heads_of(b, d, "q", q, d->heads, angles);
    k = heads_of(b, d, "k", k, d->kv_heads, angles);
    fb_build_kv_append(b, k, fb_build_view(b, "v", v, d->kv_heads, d->head_dim, 0, d->head_dim));
    int32_t context = fb_build_attention(b, "context", q, d->attention_scale, d->attention_cap);
    return project(b, "attn", "self_attn.o_proj", context, 0, h, 0, q_size, d->output_bias);
}

static int32_t gated_mlp(fb_build *b, const fb_decoder *d, int32_t x) {
    int64_t h = b->program->hidden, of = d->merged ? 2 * d->mlp : 0;
    int32_t gate = project(b, "gate", d->merged ? "mlp.gate_up_proj" : "mlp.gate_proj", x, 0, d->mlp, of, h,
                           d->mlp_bias);
    int32_t act = fb_build_unary(b, d->activation, "act", gate);
    int32_t up = project(b, "up", d->merged ? "mlp.gate_up_proj" : "mlp.up_proj", x, d->merged ? d->mlp : 0,
                         d->mlp, of, h, d->mlp_bias);
    int32_t gated = fb_build_binary(b, FB_OP_MUL, "gated", act, up);
    return project(b, "mlp", "mlp.down_proj", gated, 0, h, 0, d->mlp, d->mlp_bias);
}

static int32_t expert_matrix(fb_build *b, const fb_decoder *d, const char *name, int64_t rows, int64_t cols) {
    char tensor[NAME_SIZE];
    snprintf(tensor, sizeof tensor, LAYER "%s.weight", name);
    return fb_build_expert_matrix(b, tensor, d->experts, rows, cols);
}

static int32_t mixture(fb_build *b, const fb_decoder *d, int32_t x) {
    int64_t h = b->program->hidden;
    int32_t scores = project(b, "router", d->router, x, 0, d->experts, 0, h, false);
    int32_t routes = fb_build_top_k(b, "routes", scores, (int32_t)d->experts_used, d->shares_sum_to_one);
    int32_t gate =
        fb_build_expert_linear(b, "gate", x, routes, expert_matrix(b, d, d->expert_gate, d->mlp, h), false);
    int32_t act = fb_build_unary(b, d->activation, "act", gate);
    int32_t up =
        fb_build_expert_linear(b, "up", x, routes, expert_matrix(b, d, d->expert_up, d->mlp, h), false);
    int32_t gated = fb_build_binary(b, FB_OP_MUL, "gated", act, up);
    int32_t down = fb_build_expert_linear(b, "down", gated, routes,
                                          expert_matrix(b, d, d->expert_down, h, d->mlp), true);
    return fb_build_expert_sum(b, "mlp", down, routes);
}

/* x plus a branch, scaled if the architecture does. */
static int32_t add(fb_build *b, const fb_decoder *d, const char *value, const char *scaled, int32_t x,
                   int32_t branch) {
    if (d->residual_scale != 1) branch = fb_build_scale(b, scaled, branch, d->residual_scale);
    return fb_build_binary(b, FB_OP_ADD, value, x, branch);
}

/* The angles of each table, and the kinds of layers. Kind 0 is that of layer 0. Layers without rotary
 * positions are rotated by angles of zero. */
static int32_t kinds(fb_build *b, const fb_decoder *d) {
    fb_program *p = b->program;
    int32_t angles[3] = {FB_NONE, FB_NONE, FB_NONE}, tables = 0; /* full, sliding, none */
    for (int32_t i = 0; i < d->rope_count && d->ropes[0].rotary; i++) {
        angles[i] = fb_build_rope_angles(b, i ? "angles_window" : "angles", d->ropes[i].rotary, tables,
                                         d->ropes[i].magnitude);
        tables += 1 + fb_rope_has_long(&d->ropes[i]);
    }
    if (d->rope_count == 1) angles[1] = angles[0];
    for (int64_t layer = 0; layer < p->layers; layer++) {
        if (d->still[layer] && angles[2] == FB_NONE && d->ropes[0].rotary)
            angles[2] = fb_build_rope_angles(b, "angles_none", d->ropes[0].rotary, tables, 1);
        fb_kind kind = {.window = d->slides[layer] ? d->window : 0,
                        .angles = angles[d->still[layer] ? 2 : d->slides[layer]]};
        int32_t k = 0;
        while (k < p->kind_count && (p->kinds[k].window != kind.window || p->kinds[k].angles != kind.angles))
            k++;
        if (k == p->kind_count && k < FB_MAX_KINDS) p->kinds[p->kind_count++] = kind;
        p->kind_of[layer] = (uint8_t)k;
    }
    return p->kinds[0].angles;
}

static void write_program(fb_build *b, const fb_decoder *d) {
    fb_program *p = b->program;
    int32_t embed = fb_build_matrix(b, "model.embed_tokens.weight", p->vocab, p->hidden);

    b->section = FB_PROLOGUE;
    int32_t x = fb_build_embed(b, "x", embed, d->embedding_scale);
    int32_t angles = kinds(b, d);

    b->section = FB_BODY;
    int32_t attn = attention(b, d, maybe_norm(b, d, "n1", d->before_attention, x), angles);
    attn = maybe_norm(b, d, "attn_norm", d->after_attention, attn);
    int32_t middle = add(b, d, "x_mid", "attn_scaled", x, attn);
    int32_t n2 = maybe_norm(b, d, "n2", d->before_mlp, middle);
    int32_t mlp = d->experts ? mixture(b, d, n2) : gated_mlp(b, d, n2);
    mlp = maybe_norm(b, d, "mlp_norm", d->after_mlp, mlp);
    fb_build_carry(b, x, add(b, d, "x_out", "mlp_scaled", middle, mlp));

    b->section = FB_EPILOGUE;
    p->residual = x;
    p->final_norm = norm(b, d, "final", "", "model.norm", x);
    int32_t head = d->tied ? embed : fb_build_matrix(b, "lm_head.weight", p->vocab, p->hidden);
    p->logits = fb_build_linear(b, "logits", p->final_norm, head, FB_NONE);
    if (d->logit_scale != 1) p->logits = fb_build_scale(b, "logits_scaled", p->logits, d->logit_scale);
    if (d->logit_cap != 0) p->logits = fb_build_softcap(b, "logits_capped", p->logits, d->logit_cap);
}

/* A table of zeros behind the others, for layers without rotary positions. */
static fb_status set_frequencies(const fb_config *config, fb_spec *spec, const fb_decoder *d, fb_error *err) {
    fb_rope ropes[3];
    bool still = false;
    for (int64_t layer = 0; layer < spec->program.layers; layer++) still = still || d->still[layer];
    for (int32_t i = 0; i < d->rope_count; i++)
        if (fb_rope_has_long(&d->ropes[i]) && (still || d->rope_count > 1))
            return fb_fail(err, FB_ERROR_UNSUPPORTED,
                           "%s: rope_type: longrope (only where all layers rotate alike)", config->what);
    memcpy(ropes, d->ropes, sizeof d->ropes);
    ropes[d->rope_count] = (fb_rope){.rotary = d->ropes[0].rotary};
    return fb_rope_tables(ropes, d->rope_count + still, spec, err);
}

/* ---- facts ---- */

static void add_facts(fb_spec *spec, const fb_decoder *d) {
    int64_t slides = 0, still = 0;
    for (int64_t layer = 0; layer < spec->program.layers; layer++)
        slides += d->slides[layer], still += d->still[layer];
    fb_spec_fact(spec, "residual", "serial");
    fb_spec_fact(spec, "activation", "%s, gated", d->activation_name);
    fb_spec_fact(spec, "norm", "%s, epsilon %g", d->layernorm ? "layernorm" : "rmsnorm", d->eps);
    fb_spec_fact(spec, "norms", "%s%s", d->before_attention ? "before" : "",
                 !d->after_attention   ? ""
                 : d->before_attention ? " and after each branch"
                                       : "after");
    fb_spec_fact(spec, "heads", "%lld of %lld elements, on %lld KV heads", (long long)d->heads,
                 (long long)d->head_dim, (long long)d->kv_heads);
    if (d->qk_norm != FB_QK_NONE)
        fb_spec_fact(spec, "norm of q and k", d->qk_norm == FB_QK_HEAD ? "each head" : "whole rows");
    fb_spec_fact(spec, "attention bias", "%s",
                 !d->qkv_bias     ? "no"
                 : d->output_bias ? "yes"
                                  : "q, k and v only");
    fb_spec_fact(spec, "attention scale", "%g", d->attention_scale);
    if (d->window)
        fb_spec_fact(spec, "window", "%lld tokens, in %lld layers", (long long)d->window, (long long)slides);
    if (still) fb_spec_fact(spec, "layers without rotary", "%lld", (long long)still);
    if (d->attention_cap) fb_spec_fact(spec, "cap of scores", "%g", d->attention_cap);
    if (d->logit_cap) fb_spec_fact(spec, "cap of logits", "%g", d->logit_cap);
    if (d->embedding_scale != 1) fb_spec_fact(spec, "scale of embeddings", "%g", d->embedding_scale);
    if (d->residual_scale != 1) fb_spec_fact(spec, "scale of branches", "%g", d->residual_scale);
    if (d->logit_scale != 1) fb_spec_fact(spec, "scale of logits", "%g", d->logit_scale);
    if (d->experts)
        fb_spec_fact(spec, "experts", "%lld, of which a token uses %lld", (long long)d->experts,
                     (long long)d->experts_used);
    fb_spec_fact(spec, "mlp", "%lld%s", (long long)d->mlp, d->mlp_bias ? ", with bias" : "");
    fb_spec_fact(spec, "embeddings", "%s", d->tied ? "tied" : "untied");
}

/* The period of the layers that see everything, if all others have the window; 1: all have it; 0: other. */
static int64_t pattern_of(const fb_decoder *d, int64_t layers) {
    for (int64_t pattern = 1; pattern <= layers + 1; pattern++) {
        bool same = true;
        for (int64_t i = 0; i < layers && same; i++)
            same = d->slides[i] == (pattern == 1 || (i + 1) % pattern != 0);
        if (same) return pattern > layers ? 1 : pattern;
    }
    return 0;
}

static void say_more(fb_hyper *h, const fb_decoder *d, int64_t layers) {
    const fb_rope *rope = &d->ropes[0];
    h->rope_yarn = fb_rope_is_usual_yarn(rope) ? rope->factor : 0;
    h->rope_original = rope->original_context;
    h->rope_magnitude = rope->magnitude;
    h->rope_other = fb_rope_is_other(rope) || (d->rope_count > 1 && !fb_rope_is_default(&d->ropes[1]));
    h->rope_base_window = d->rope_count > 1 ? d->ropes[1].base : 0;
    h->embedding_scale = d->embedding_scale;
    h->attention_scale = d->attention_scale;
    h->residual_scale = d->residual_scale;
    h->logit_scale = d->logit_scale;
    h->attention_cap = d->attention_cap;
    h->logit_cap = d->logit_cap;
    h->window = d->window;
    h->window_pattern = d->window ? pattern_of(d, layers) : 0;
    h->still_fourth = true;
    for (int64_t i = 0; i < layers; i++) {
        h->still = h->still || d->still[i];
        h->still_fourth = h->still_fourth && d->still[i] == ((i + 1) % 4 == 0);
    }
}

static fb_status write_spec(const fb_config *config, fb_spec *spec, const fb_decoder *d, fb_error *err) {
    fb_program *p = &spec->program;
    spec->hyper.heads = d->heads;
    spec->hyper.mlp = d->mlp;
    spec->hyper.experts = d->experts;
    spec->hyper.experts_used = d->experts_used;
    spec->hyper.shares_sum_to_one = d->shares_sum_to_one;
    spec->hyper.eps = d->eps;
    spec->hyper.activation = d->activation;
    spec->hyper.tied = d->tied;
    spec->hyper.rotary = d->ropes[0].rotary;
    spec->hyper.rope_base = d->ropes[0].base;
    spec->hyper.rope_linear = fb_rope_is_linear(&d->ropes[0]) ? d->ropes[0].factor : 1;
    say_more(&spec->hyper, d, p->layers);
    p->kv_heads = d->kv_heads;
    p->head_dim = d->head_dim;
    spec->ignored[0] = ".self_attn.rotary_emb.inv_freq";
    spec->ignored[1] = d->tied ? "lm_head.weight" : NULL;
    if (d->ropes[0].rotary) FB_TRY(set_frequencies(config, spec, d, err));
    fb_build b = {.program = p};
    write_program(&b, d);
    return fb_build_end(&b, err);
}

fb_status fb_decoder_describe(const fb_config *config, fb_spec *spec, bool tied,
                              fb_status (*read)(const fb_config *config, fb_spec *spec, fb_decoder *d,
                                                fb_error *err),
                              fb_error *err) {
    fb_decoder *d = calloc(1, sizeof *d);
    if (!d) return fb_fail_memory(err, config->what, sizeof *d);
    fb_status status = read_sizes(config, &spec->program, d, err);
    if (status == FB_OK) status = read_rest(config, tied, d, err);
    if (status == FB_OK && read) status = read(config, spec, d, err);
    if (status == FB_OK && !d->rope_count) status = read_rope(config, spec, d, err);
    if (status == FB_OK) {
        add_facts(spec, d);
        status = write_spec(config, spec, d, err);
    }
    free(d);
    return status;
}
