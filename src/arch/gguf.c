#include "arch/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/config.h"
#include "arch/gguf_names.h"
#include "file/json_build.h"

#define KEY_SIZE 256 /* no key of a file is longer */

/* Which architectures a row of the tables below is for. */
enum {
    ROTARY = ~FB_ARCH_GPT2,
    GROUPED = ~(FB_ARCH_NEOX | FB_ARCH_GPT2), /* KV heads may be fewer than heads */
    RMS = GROUPED & ~FB_ARCH_STABLELM
};

/* What is not said in a GGUF file because it is the same for all of an architecture. */
typedef struct arch_row {
    uint32_t bit;
    const char *model_type, *activation_key, *activation;
    /* Tensors that are there when layers have these biases, or NULL; and the config's key. */
    const char *attention_bias, *attention_key, *mlp_bias;
} arch_row;

static const arch_row archs[] = {
    {FB_ARCH_NEOX, "gpt_neox", "hidden_act", "gelu", "blk.0.attn_qkv.bias", "attention_bias", NULL},
    {FB_ARCH_LLAMA, "llama", "hidden_act", "silu", "blk.0.attn_q.bias", "attention_bias",
     "blk.0.ffn_gate.bias"},
    {FB_ARCH_GPT2, "gpt2", "activation_function", "gelu_new", NULL, NULL, NULL},
    {FB_ARCH_MISTRAL, "mistral", "hidden_act", "silu", NULL, NULL, NULL},
    {FB_ARCH_QWEN2, "qwen2", "hidden_act", "silu", NULL, NULL, NULL},
    {FB_ARCH_QWEN3, "qwen3", "hidden_act", "silu", "blk.0.attn_q.bias", "attention_bias", NULL},
    {FB_ARCH_GEMMA2, "gemma2", "hidden_activation", "gelu_pytorch_tanh", "blk.0.attn_q.bias",
     "attention_bias", NULL},
    {FB_ARCH_GEMMA3, "gemma3_text", "hidden_activation", "gelu_pytorch_tanh", "blk.0.attn_q.bias",
     "attention_bias", NULL},
    {FB_ARCH_PHI3, "phi3", "hidden_act", "silu", NULL, NULL, NULL},
    {FB_ARCH_OLMO2, "olmo2", "hidden_act", "silu", "blk.0.attn_q.bias", "attention_bias", NULL},
    {FB_ARCH_GRANITE, "granite", "hidden_act", "silu", "blk.0.attn_q.bias", "attention_bias",
     "blk.0.ffn_gate.bias"},
    {FB_ARCH_SMOLLM3, "smollm3", "hidden_act", "silu", "blk.0.attn_q.bias", "attention_bias",
     "blk.0.ffn_gate.bias"},
    {FB_ARCH_MIXTRAL, "mixtral", "hidden_act", "silu", NULL, NULL, NULL},
    {FB_ARCH_QWEN3_MOE, "qwen3_moe", "hidden_act", "silu", "blk.0.attn_q.bias", "attention_bias", NULL},
    {FB_ARCH_STABLELM, "stablelm", "hidden_act", "silu", "blk.0.attn_q.bias", "use_qkv_bias", NULL},
};

/* Keys of a file, behind "<architecture>.", that are the same number under another name in a config. */
static const struct {
    const char *key;
    bool needed; /* by every architecture of the row */
    uint32_t archs;
    const char *config;
} renamed[] = {
    {"vocab_size", false, ~0u, "vocab_size"},
    {"context_length", true, ROTARY, "max_position_embeddings"},
    {"context_length", true, FB_ARCH_GPT2, "n_positions"},
    {"embedding_length", true, ROTARY, "hidden_size"},
    {"embedding_length", true, FB_ARCH_GPT2, "n_embd"},
    {"block_count", true, ROTARY, "num_hidden_layers"},
    {"block_count", true, FB_ARCH_GPT2, "n_layer"},
    {"feed_forward_length", true, ROTARY, "intermediate_size"},
    {"feed_forward_length", true, FB_ARCH_GPT2, "n_inner"},
    {"use_parallel_residual", true, FB_ARCH_NEOX, "use_parallel_residual"},
    {"use_parallel_residual", false, FB_ARCH_STABLELM, "use_parallel_residual"},
    {"attention.head_count", true, ROTARY, "num_attention_heads"},
    {"attention.head_count", true, FB_ARCH_GPT2, "n_head"},
    {"attention.head_count_kv", false, GROUPED, "num_key_value_heads"},
    {"attention.key_length", false, ~0u, "head_dim"},
    {"attention.layer_norm_epsilon", true, FB_ARCH_NEOX | FB_ARCH_STABLELM, "layer_norm_eps"},
    {"attention.layer_norm_epsilon", true, FB_ARCH_GPT2, "layer_norm_epsilon"},
    {"attention.layer_norm_rms_epsilon", true, RMS, "rms_norm_eps"},
    {"rope.freq_base", false, ROTARY, "rope_theta"},
    {"rope.freq_base_swa", false, FB_ARCH_GEMMA3, "rope_local_base_freq"},
    {"attention.sliding_window", false, FB_ARCH_MISTRAL | FB_ARCH_MIXTRAL | FB_ARCH_PHI3 | FB_ARCH_GEMMA,
     "sliding_window"},
    {"attention.sliding_window_pattern", false, FB_ARCH_GEMMA3, "sliding_window_pattern"},
    {"attn_logit_softcapping", false, FB_ARCH_GEMMA, "attn_logit_softcapping"},
    {"final_logit_softcapping", false, FB_ARCH_GEMMA, "final_logit_softcapping"},
    {"expert_count", true, FB_ARCH_MIXTRAL, "num_local_experts"},
    {"expert_count", true, FB_ARCH_QWEN3_MOE, "num_experts"},
    {"expert_used_count", true, FB_ARCH_MIXTRAL | FB_ARCH_QWEN3_MOE, "num_experts_per_tok"},
    {"expert_feed_forward_length", true, FB_ARCH_QWEN3_MOE, "moe_intermediate_size"},
    {"attention.scale", false, FB_ARCH_GRANITE, "attention_multiplier"},
    {"embedding_scale", false, FB_ARCH_GRANITE, "embedding_multiplier"},
    {"residual_scale", false, FB_ARCH_GRANITE, "residual_multiplier"},
    {"logit_scale", false, FB_ARCH_GRANITE, "logits_scaling"},
};

/* Keys that change nothing as long as they have this value, unless the table above has them. */
static const struct {
    const char *key;
    double value;
    uint32_t readers; /* architectures that read it elsewhere, if the file has the lists of longrope */
} neutral[] = {
    {"expert_count", 0, 0},
    {"expert_used_count", 0, 0},
    {"attention.sliding_window", 0, 0},
    {"attention.max_alibi_bias", 0, 0},
    {"attention.clamp_kqv", 0, 0},
    {"attention.scale", 0, 0},
    {"attention.causal", 1, 0},
    {"rope.scaling.attn_factor", 1, FB_ARCH_PHI3},
};

/* Keys that are read elsewhere here, or that say nothing about the maths. */
static const char *const others[] = {
    "attention.head_count_kv", "attention.value_length",
    "rope.dimension_count",    "rope.scaling.type",
    "rope.scaling.factor",     "rope.scale_linear",
    "rope.scaling.finetuned",  "rope.scaling.original_context_length", /* of yarn, which is refused */
    "tensor_data_layout",
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

/* One translation. */
typedef struct translation {
    const char *what;
    const fb_gguf *gguf;
    const char *prefix; /* what the file calls the architecture */
    const arch_row *arch;
    fb_json_builder *config;
} translation;

/* "<architecture>.key" */
static const char *full_key(const translation *t, const char *key, char text[KEY_SIZE]) {
    snprintf(text, KEY_SIZE, "%s.%s", t->prefix, key);
    return text;
}

static const fb_json *member(const translation *t, const char *key) {
    char full[KEY_SIZE];
    return fb_json_member(t->gguf->values, full_key(t, key, full));
}

static fb_status read_int(const translation *t, const char *key, int64_t min, int64_t max, int64_t fallback,
                          int64_t *out, fb_error *err) {
    char full[KEY_SIZE];
    return fb_json_int(t->what, t->gguf->values, full_key(t, key, full), min, max, fallback, out, err);
}

static fb_status read_real(const translation *t, const char *key, double min, double max, double fallback,
                           double *out, fb_error *err) {
    char full[KEY_SIZE];
    return fb_json_real(t->what, t->gguf->values, full_key(t, key, full), min, max, fallback, out, err);
}

static void put_text(const translation *t, const char *key, const char *text) {
    fb_json_put_text(t->config, key, text, strlen(text));
}

/* ---- what a file may say ------------------------------------------------------------------------------- */

static bool is_renamed(const translation *t, const char *key) {
    for (size_t i = 0; i < COUNT(renamed); i++)
        if (strcmp(key, renamed[i].key) == 0 && renamed[i].archs & t->arch->bit) return true;
    return false;
}

static bool is_known(const translation *t, const char *key) {
    if (is_renamed(t, key)) return true;
    for (size_t i = 0; i < COUNT(neutral); i++)
        if (strcmp(key, neutral[i].key) == 0) return true;
    for (size_t i = 0; i < COUNT(others); i++)
        if (strcmp(key, others[i]) == 0) return t->arch->bit != FB_ARCH_GPT2 || strncmp(key, "rope.", 5) != 0;
    return false;
}

static fb_status check_neutral(const translation *t, fb_error *err) {
    for (size_t i = 0; i < COUNT(neutral); i++) {
        bool read = is_renamed(t, neutral[i].key) || (neutral[i].readers & t->arch->bit &&
                                                      fb_tensors_find(t->gguf->tensors, FB_GGUF_ROPE_LONG));
        const fb_json *value = read ? NULL : member(t, neutral[i].key);
        double number = fb_json_is(value, FB_JSON_BOOL) ? fb_json_bool_of(value) : fb_json_real_of(value);
        char text[64];
        if (value && (fb_json_is(value, FB_JSON_STRING) || number != neutral[i].value))
            return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s.%s: %s (only %g)", t->what, t->prefix,
                           neutral[i].key, fb_json_show(value, text, sizeof text), neutral[i].value);
    }
    return FB_OK;
}

/* Every key of the architecture must be known, and be one value for all layers. */
static fb_status check_keys(const translation *t, fb_error *err) {
    size_t length = strlen(t->prefix);
    char text[64];
    for (const fb_json *value = fb_json_first(t->gguf->values); value; value = fb_json_next(value)) {
        const char *key = fb_json_key(value);
        if (strncmp(key, t->prefix, length) != 0 || key[length] != '.') continue;
        if (!is_known(t, key + length + 1))
            return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: %s (not known)", t->what, key,
                           fb_json_is(value, FB_JSON_NULL) ? "an array"
                                                           : fb_json_show(value, text, sizeof text));
        if (fb_json_is(value, FB_JSON_NULL))
            return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: an array (one value for all layers)", t->what,
                           key);
    }
    return check_neutral(t, err);
}

/* ---- the parts of a config ----------------------------------------------------------------------------- */

static fb_status put_renamed(const translation *t, fb_error *err) {
    for (size_t i = 0; i < COUNT(renamed); i++) {
        const char *to = renamed[i].archs & t->arch->bit ? renamed[i].config : NULL;
        const fb_json *value = to ? member(t, renamed[i].key) : NULL;
        if (to && !value && renamed[i].needed)
            return fb_fail(err, FB_ERROR_FILE, "%s: %s.%s: missing", t->what, t->prefix, renamed[i].key);
        /* A window of 0 is none. */
        bool none =
            value && strcmp(renamed[i].key, "attention.sliding_window") == 0 && !fb_json_int_of(value);
        if (none)
            fb_json_put_null(t->config, to);
        else if (value)
            fb_json_put_copy(t->config, to, value);
    }
    return FB_OK;
}

/* The vocabulary's size may be left to the embedding. */
static fb_status put_vocab(const translation *t, fb_error *err) {
    const fb_tensor_entry *embedding = fb_tensors_find(t->gguf->tensors, "token_embd.weight");
    if (!embedding) return fb_fail(err, FB_ERROR_FILE, "%s: token_embd.weight: missing tensor", t->what);
    if (!member(t, "vocab_size"))
        fb_json_put_int(t->config, "vocab_size", embedding->dims == 2 ? embedding->shape[0] : 0);
    return FB_OK;
}

/* Heads whose keys and values differ in size, or that share KV heads where the architecture has none to
 * share, do not exist in a config. */
static fb_status check_heads(const translation *t, int64_t *head_dim, fb_error *err) {
    int64_t heads, kv_heads, hidden, values;
    FB_TRY(read_int(t, "attention.head_count", 1, FB_LIMIT_HEADS, 1, &heads, err));
    FB_TRY(read_int(t, "embedding_length", 1, FB_LIMIT_WIDTH, 1, &hidden, err));
    FB_TRY(read_int(t, "attention.head_count_kv", 1, heads, heads, &kv_heads, err));
    FB_TRY(read_int(t, "attention.key_length", 1, FB_LIMIT_WIDTH, hidden / heads, head_dim, err));
    FB_TRY(read_int(t, "attention.value_length", 1, FB_LIMIT_WIDTH, *head_dim, &values, err));
    if (*head_dim < 1) /* not given, and fewer elements than heads */
        return fb_fail(err, FB_ERROR_FILE,
                       "%s: %s.attention.head_count: %lld (at most embedding_length %lld)", t->what,
                       t->prefix, (long long)heads, (long long)hidden);
    if (!(t->arch->bit & GROUPED) && kv_heads != heads)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s.attention.head_count_kv: %lld (only %lld)", t->what,
                       t->prefix, (long long)kv_heads, (long long)heads);
    if (values != *head_dim)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "%s: %s.attention.value_length: %lld (only key_length %lld)", t->what, t->prefix,
                       (long long)values, (long long)*head_dim);
    return FB_OK;
}

/* The share of a head that rotates, such that share * head_dim gives `rotary` again. */
static double rotary_share(int64_t rotary, int64_t head_dim) {
    double share = (double)rotary / (double)head_dim;
    return (int64_t)(share * (double)head_dim) < rotary ? nextafter(share, 1) : share;
}

/* The lists of longrope are tensors of the file. */
static fb_status put_list(const translation *t, const char *tensor, const char *key, int64_t count,
                          fb_error *err) {
    const fb_tensor_entry *entry = fb_tensors_find(t->gguf->tensors, tensor);
    char text[96];
    if (!entry) return fb_fail(err, FB_ERROR_FILE, "%s: %s: missing tensor", t->what, tensor);
    if (entry->type != FB_STORED_F32 || entry->dims != 1 || entry->count != count)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %s %s (F32 [%lld])", t->what, tensor,
                       fb_stored_name(entry->type), fb_tensor_shape_text(entry, text, sizeof text),
                       (long long)count);
    fb_json_open_array(t->config, key);
    for (int64_t i = 0; i < count; i++) {
        float factor;
        memcpy(&factor, entry->data + i * (int64_t)sizeof factor, sizeof factor);
        fb_json_put_real(t->config, NULL, isfinite(factor) ? (double)factor : 0);
    }
    fb_json_close(t->config);
    return FB_OK;
}

static fb_status put_longrope(const translation *t, int64_t rotary, fb_error *err) {
    double magnitude;
    int64_t original, context;
    FB_TRY(read_real(t, "rope.scaling.attn_factor", 1e-6, 1e6, 1, &magnitude, err));
    FB_TRY(read_int(t, "context_length", 1, FB_LIMIT_CONTEXT, 4096, &context, err));
    FB_TRY(read_int(t, "rope.scaling.original_context_length", 1, FB_LIMIT_CONTEXT, context, &original, err));
    fb_json_open_object(t->config, "rope_scaling");
    put_text(t, "rope_type", "longrope");
    fb_json_put_int(t->config, "original_max_position_embeddings", original);
    fb_json_put_real(t->config, "attention_factor", magnitude);
    FB_TRY(put_list(t, FB_GGUF_ROPE_SHORT, "short_factor", rotary / 2, err));
    FB_TRY(put_list(t, FB_GGUF_ROPE_LONG, "long_factor", rotary / 2, err));
    fb_json_close(t->config);
    return FB_OK;
}

/* A factor without a type, or under its old name, is linear too. */
static fb_status put_scaling(const translation *t, int64_t rotary, fb_error *err) {
    char key[KEY_SIZE];
    const char *type;
    double factor;
    int64_t original;
    if (t->arch->bit == FB_ARCH_PHI3 && fb_tensors_find(t->gguf->tensors, FB_GGUF_ROPE_LONG))
        return put_longrope(t, rotary, err);
    FB_TRY(read_real(t, "rope.scale_linear", 0, 1e6, 0, &factor, err));
    FB_TRY(read_real(t, "rope.scaling.factor", 0, 1e6, factor, &factor, err));
    FB_TRY(read_int(t, "rope.scaling.original_context_length", 1, FB_LIMIT_CONTEXT, 0, &original, err));
    FB_TRY(fb_json_string(t->what, t->gguf->values, full_key(t, "rope.scaling.type", key), "linear", &type,
                          err));
    bool yarn = strcmp(type, "yarn") == 0 && t->arch->bit & GROUPED;
    if (strcmp(type, "linear") != 0 && strcmp(type, "none") != 0 && !yarn)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: \"%.32s\" (known: none, linear%s)", t->what, key,
                       type, t->arch->bit & GROUPED ? ", yarn" : "");
    if (strcmp(type, "none") == 0 || factor == 0 || factor == 1) return FB_OK;
    fb_json_open_object(t->config, "rope_scaling");
    put_text(t, "rope_type", type);
    fb_json_put_real(t->config, "factor", factor);
    if (yarn && original) fb_json_put_int(t->config, "original_max_position_embeddings", original);
    fb_json_close(t->config);
    return FB_OK;
}

static fb_status put_rope(const translation *t, int64_t head_dim, fb_error *err) {
    int64_t rotary;
    if (t->arch->bit == FB_ARCH_GPT2) return FB_OK;
    FB_TRY(read_int(t, "rope.dimension_count", 0, head_dim, head_dim, &rotary, err));
    if (t->arch->bit & FB_ARCH_PAIRED && rotary != head_dim)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: rotating elements of a head: %lld (all %lld)",
                       t->what, t->prefix, (long long)rotary, (long long)head_dim);
    fb_json_put_real(t->config, "partial_rotary_factor", rotary_share(rotary, head_dim));
    return put_scaling(t, rotary, err);
}

/* What the file says by the tensors that it has. */
static void put_by_tensors(const translation *t) {
    const fb_tensor_table *tensors = t->gguf->tensors;
    const char *attention = t->arch->attention_bias, *mlp = t->arch->mlp_bias;
    fb_json_put_bool(t->config, "tie_word_embeddings", !fb_tensors_find(tensors, "output.weight"));
    if (attention)
        fb_json_put_bool(t->config, t->arch->attention_key, fb_tensors_find(tensors, attention) != NULL);
    if (mlp) fb_json_put_bool(t->config, "mlp_bias", fb_tensors_find(tensors, mlp) != NULL);
}

/* Queries are divided by the root of a head's width; in the largest of each family (Gemma 2 27B, Gemma 3
 * 27B), of the hidden size a head. Files do not say it. */
static fb_status put_query_scale(const translation *t, int64_t head_dim, fb_error *err) {
    int64_t layers, hidden, heads;
    FB_TRY(read_int(t, "block_count", 1, FB_LIMIT_LAYERS, 1, &layers, err));
    FB_TRY(read_int(t, "embedding_length", 1, FB_LIMIT_WIDTH, 1, &hidden, err));
    FB_TRY(read_int(t, "attention.head_count", 1, FB_LIMIT_HEADS, 1, &heads, err));
    bool largest = layers == (t->arch->bit == FB_ARCH_GEMMA2 ? 46 : 62);
    fb_json_put_int(t->config, "query_pre_attn_scalar", largest ? hidden / heads : head_dim);
    return FB_OK;
}

/* A file that does not say the attention's scale has the usual one. rope.scaling.finetuned is the switch of
 * rotary positions in this architecture. */
static fb_status put_granite(const translation *t, int64_t head_dim, fb_error *err) {
    const fb_json *rotates = member(t, "rope.scaling.finetuned");
    if (fb_json_is(rotates, FB_JSON_BOOL) && !fb_json_bool_of(rotates))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s.rope.scaling.finetuned: false (only true)", t->what,
                       t->prefix);
    if (!member(t, "attention.scale"))
        fb_json_put_real(t->config, "attention_multiplier", 1 / sqrt((double)head_dim));
    return FB_OK;
}

static fb_status write_config(const translation *t, fb_error *err) {
    int64_t head_dim;
    FB_TRY(check_keys(t, err));
    put_text(t, "model_type", t->arch->model_type);
    put_text(t, t->arch->activation_key, t->arch->activation);
    FB_TRY(put_renamed(t, err));
    FB_TRY(put_vocab(t, err));
    FB_TRY(check_heads(t, &head_dim, err));
    FB_TRY(put_rope(t, head_dim, err));
    if (t->arch->bit & FB_ARCH_GEMMA) FB_TRY(put_query_scale(t, head_dim, err));
    if (t->arch->bit == FB_ARCH_GRANITE) FB_TRY(put_granite(t, head_dim, err));
    put_by_tensors(t);
    /* Readers of a file divide the shares by their sum. */
    if (t->arch->bit == FB_ARCH_QWEN3_MOE) fb_json_put_bool(t->config, "norm_topk_prob", true);
    return FB_OK;
}

/* ---- the spec ------------------------------------------------------------------------------------------ */

/* A llama may come with a factor for each rotary frequency, which divides it: Llama 3's scaling, computed
 * when the file was made. */
static fb_status divide_frequencies(const translation *t, fb_spec *spec, fb_error *err) {
    const fb_tensor_entry *entry = fb_tensors_find(t->gguf->tensors, FB_GGUF_ROPE_FREQS);
    if (!entry || t->arch->bit != FB_ARCH_LLAMA) return FB_OK;
    int64_t count = spec->program.head_dim / 2;
    char text[96];
    if (entry->type != FB_STORED_F32 || entry->dims != 1 || entry->count != count)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %s %s (F32 [%lld])", t->what, entry->name,
                       fb_stored_name(entry->type), fb_tensor_shape_text(entry, text, sizeof text),
                       (long long)count);
    float low = INFINITY, high = 0;
    for (int64_t i = 0; i < count; i++) {
        float factor;
        memcpy(&factor, entry->data + i * (int64_t)sizeof factor, sizeof factor);
        if (!(factor > 1e-6f && factor < 1e6f))
            return fb_fail(err, FB_ERROR_FILE, "%s: %s: element %lld: %g (1e-06 to 1e+06)", t->what,
                           entry->name, (long long)i, (double)factor);
        spec->program.frequencies[i] /= (double)factor;
        low = fminf(low, factor);
        high = fmaxf(high, factor);
    }
    spec->ignored[0] = FB_GGUF_ROPE_FREQS;
    fb_spec_fact(spec, "rotary factors", "%g to %g, one a frequency", (double)low, (double)high);
    return FB_OK;
}

static fb_status find_arch(translation *t, fb_error *err) {
    const char *type;
    FB_TRY(fb_json_string(t->what, t->gguf->values, "general.type", "model", &type, err));
    if (strcmp(type, "model") != 0)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: general.type: \"%.64s\" (only \"model\")", t->what,
                       type);
    FB_TRY(fb_json_need_string(t->what, t->gguf->values, "general.architecture", &t->prefix, err));
    const char *model_type = fb_gguf_model_type(t->prefix);
    if (!model_type)
        return fb_fail(
            err, FB_ERROR_UNSUPPORTED,
            "%s: general.architecture: \"%.64s\" (known: gptneox, gpt2, llama, qwen2, qwen3, gemma2, "
            "gemma3, phi3, olmo2, granite, smollm3, stablelm, qwen3moe)",
            t->what, t->prefix);
    /* A llama with a window is a Mistral, one with experts a Mixtral. */
    int64_t window, experts;
    FB_TRY(read_int(t, "expert_count", 0, FB_LIMIT_EXPERTS, 0, &experts, err));
    FB_TRY(read_int(t, "attention.sliding_window", 0, FB_LIMIT_CONTEXT, 0, &window, err));
    if (window && strcmp(model_type, "llama") == 0) model_type = "mistral";
    if (experts && strcmp(t->prefix, "llama") == 0) model_type = "mixtral";
    t->arch = archs;
    while (strcmp(t->arch->model_type, model_type) != 0) t->arch++;
    return FB_OK;
}

fb_status fb_gguf_describe(const char *what, const fb_gguf *gguf, fb_spec **out, fb_error *err) {
    *out = NULL;
    fb_json_builder builder = {0};
    translation t = {.what = what, .gguf = gguf, .config = &builder};
    FB_TRY(find_arch(&t, err));
    fb_spec *spec = NULL;
    fb_json *config = NULL;
    fb_status status = write_config(&t, err);
    if (status == FB_OK) status = fb_json_finish(&builder, what, &config, err);
    if (status == FB_OK) status = fb_arch_describe_json(what, config, &spec, err);
    fb_json_builder_free(&builder);
    fb_json_free(config);
    if (status == FB_OK) {
        /* What a checkpoint may have besides its weights is not in a GGUF file. */
        memset((void *)spec->ignored, 0, sizeof spec->ignored);
        spec->optional_prefix = NULL;
        if (t.arch->bit == FB_ARCH_PHI3) {
            spec->ignored[0] = FB_GGUF_ROPE_LONG;
            spec->ignored[1] = FB_GGUF_ROPE_SHORT;
        }
        status = divide_frequencies(&t, spec, err);
    }
    if (status == FB_OK)
        *out = spec;
    else
        fb_spec_free(spec);
    return status;
}
