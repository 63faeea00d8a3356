#include "arch/gguf_names.h"

#include <stdio.h>
#include <string.h>

/* Of several with one GGUF name, the first is what a file of that name is taken for. */
static const struct {
    const char *model_type, *gguf;
} architectures[] = {
    {"gpt_neox", "gptneox"},  {"llama", "llama"},   {"gpt2", "gpt2"},          {"mistral", "llama"},
    {"qwen2", "qwen2"},       {"qwen3", "qwen3"},   {"gemma2", "gemma2"},      {"gemma3_text", "gemma3"},
    {"phi3", "phi3"},         {"olmo2", "olmo2"},   {"granite", "granite"},    {"smollm3", "smollm3"},
    {"stablelm", "stablelm"}, {"mixtral", "llama"}, {"qwen3_moe", "qwen3moe"},
};
enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

enum { CHECKPOINT, GGUF, SIDES };

/* Names without ".weight" or ".bias". */
typedef struct name_row {
    uint32_t architectures;
    const char *stem[SIDES];
    fb_row_order order;
} name_row;

#define LAYER "model.layers.{}."

static const name_row names[] = {
    {FB_ARCH_NEOX, {"gpt_neox.embed_in", "token_embd"}, FB_ROWS_SAME},
    {FB_ARCH_NEOX, {"gpt_neox.layers.{}.input_layernorm", "blk.{}.attn_norm"}, FB_ROWS_SAME},
    {FB_ARCH_NEOX, {"gpt_neox.layers.{}.attention.query_key_value", "blk.{}.attn_qkv"}, FB_ROWS_QKV},
    {FB_ARCH_NEOX, {"gpt_neox.layers.{}.attention.dense", "blk.{}.attn_output"}, FB_ROWS_SAME},
    {FB_ARCH_NEOX, {"gpt_neox.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"}, FB_ROWS_SAME},
    {FB_ARCH_NEOX, {"gpt_neox.layers.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"}, FB_ROWS_SAME},
    {FB_ARCH_NEOX, {"gpt_neox.layers.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"}, FB_ROWS_SAME},
    {FB_ARCH_NEOX, {"gpt_neox.final_layer_norm", "output_norm"}, FB_ROWS_SAME},
    {FB_ARCH_NEOX, {"embed_out", "output"}, FB_ROWS_SAME},

    {FB_ARCH_DECODERS, {"model.embed_tokens", "token_embd"}, FB_ROWS_SAME},
    {FB_ARCH_DECODERS & ~FB_ARCH_OLMO2, {LAYER "input_layernorm", "blk.{}.attn_norm"}, FB_ROWS_SAME},
    {FB_ARCH_PAIRED, {LAYER "self_attn.q_proj", "blk.{}.attn_q"}, FB_ROWS_ROPE_PAIRS},
    {FB_ARCH_PAIRED, {LAYER "self_attn.k_proj", "blk.{}.attn_k"}, FB_ROWS_ROPE_PAIRS},
    {FB_ARCH_DECODERS & ~FB_ARCH_PAIRED & ~FB_ARCH_PHI3,
     {LAYER "self_attn.q_proj", "blk.{}.attn_q"},
     FB_ROWS_SAME},
    {FB_ARCH_DECODERS & ~FB_ARCH_PAIRED & ~FB_ARCH_PHI3,
     {LAYER "self_attn.k_proj", "blk.{}.attn_k"},
     FB_ROWS_SAME},
    {FB_ARCH_DECODERS & ~FB_ARCH_PHI3, {LAYER "self_attn.v_proj", "blk.{}.attn_v"}, FB_ROWS_SAME},
    {FB_ARCH_PHI3, {LAYER "self_attn.qkv_proj", "blk.{}.attn_qkv"}, FB_ROWS_SAME},
    {FB_ARCH_QWEN3 | FB_ARCH_QWEN3_MOE | FB_ARCH_GEMMA3 | FB_ARCH_OLMO2,
     {LAYER "self_attn.q_norm", "blk.{}.attn_q_norm"},
     FB_ROWS_SAME},
    {FB_ARCH_QWEN3 | FB_ARCH_QWEN3_MOE | FB_ARCH_GEMMA3 | FB_ARCH_OLMO2,
     {LAYER "self_attn.k_norm", "blk.{}.attn_k_norm"},
     FB_ROWS_SAME},
    {FB_ARCH_DECODERS, {LAYER "self_attn.o_proj", "blk.{}.attn_output"}, FB_ROWS_SAME},
    {FB_ARCH_GEMMA | FB_ARCH_OLMO2,
     {LAYER "post_attention_layernorm", "blk.{}.post_attention_norm"},
     FB_ROWS_SAME},
    {FB_ARCH_DECODERS & ~FB_ARCH_GEMMA & ~FB_ARCH_OLMO2,
     {LAYER "post_attention_layernorm", "blk.{}.ffn_norm"},
     FB_ROWS_SAME},
    {FB_ARCH_GEMMA, {LAYER "pre_feedforward_layernorm", "blk.{}.ffn_norm"}, FB_ROWS_SAME},
    {FB_ARCH_GEMMA | FB_ARCH_OLMO2,
     {LAYER "post_feedforward_layernorm", "blk.{}.post_ffw_norm"},
     FB_ROWS_SAME},
    {FB_ARCH_DECODERS & ~FB_ARCH_PHI3, {LAYER "mlp.gate_proj", "blk.{}.ffn_gate"}, FB_ROWS_SAME},
    {FB_ARCH_DECODERS & ~FB_ARCH_PHI3, {LAYER "mlp.up_proj", "blk.{}.ffn_up"}, FB_ROWS_SAME},
    {FB_ARCH_PHI3, {LAYER "mlp.gate_up_proj", "blk.{}.ffn_up"}, FB_ROWS_SAME},
    {FB_ARCH_DECODERS, {LAYER "mlp.down_proj", "blk.{}.ffn_down"}, FB_ROWS_SAME},
    {FB_ARCH_MIXTRAL, {LAYER "block_sparse_moe.gate", "blk.{}.ffn_gate_inp"}, FB_ROWS_SAME},
    {FB_ARCH_MIXTRAL, {LAYER "block_sparse_moe.experts.[].w1", "blk.{}.ffn_gate_exps"}, FB_ROWS_SAME},
    {FB_ARCH_MIXTRAL, {LAYER "block_sparse_moe.experts.[].w3", "blk.{}.ffn_up_exps"}, FB_ROWS_SAME},
    {FB_ARCH_MIXTRAL, {LAYER "block_sparse_moe.experts.[].w2", "blk.{}.ffn_down_exps"}, FB_ROWS_SAME},
    {FB_ARCH_QWEN3_MOE, {LAYER "mlp.gate", "blk.{}.ffn_gate_inp"}, FB_ROWS_SAME},
    {FB_ARCH_QWEN3_MOE, {LAYER "mlp.experts.[].gate_proj", "blk.{}.ffn_gate_exps"}, FB_ROWS_SAME},
    {FB_ARCH_QWEN3_MOE, {LAYER "mlp.experts.[].up_proj", "blk.{}.ffn_up_exps"}, FB_ROWS_SAME},
    {FB_ARCH_QWEN3_MOE, {LAYER "mlp.experts.[].down_proj", "blk.{}.ffn_down_exps"}, FB_ROWS_SAME},
    {FB_ARCH_DECODERS, {"model.norm", "output_norm"}, FB_ROWS_SAME},
    {FB_ARCH_DECODERS, {"lm_head", "output"}, FB_ROWS_SAME},

    {FB_ARCH_GPT2, {"transformer.wte", "token_embd"}, FB_ROWS_SAME},
    {FB_ARCH_GPT2, {"transformer.wpe", "position_embd"}, FB_ROWS_SAME},
    {FB_ARCH_GPT2, {"transformer.h.{}.ln_1", "blk.{}.attn_norm"}, FB_ROWS_SAME},
    {FB_ARCH_GPT2, {"transformer.h.{}.attn.c_attn", "blk.{}.attn_qkv"}, FB_ROWS_SAME},
    {FB_ARCH_GPT2, {"transformer.h.{}.attn.c_proj", "blk.{}.attn_output"}, FB_ROWS_SAME},
    {FB_ARCH_GPT2, {"transformer.h.{}.ln_2", "blk.{}.ffn_norm"}, FB_ROWS_SAME},
    {FB_ARCH_GPT2, {"transformer.h.{}.mlp.c_fc", "blk.{}.ffn_up"}, FB_ROWS_SAME},
    {FB_ARCH_GPT2, {"transformer.h.{}.mlp.c_proj", "blk.{}.ffn_down"}, FB_ROWS_SAME},
    {FB_ARCH_GPT2, {"transformer.ln_f", "output_norm"}, FB_ROWS_SAME},
    {FB_ARCH_GPT2, {"lm_head", "output"}, FB_ROWS_SAME},
};

uint32_t fb_gguf_bit(const char *model_type) {
    for (int i = 0; i < ARCHITECTURES; i++)
        if (strcmp(model_type, architectures[i].model_type) == 0) return 1u << i;
    return 0;
}

const char *fb_gguf_architecture(const char *model_type) {
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (strcmp(model_type, architectures[i].model_type) == 0) return architectures[i].gguf;
    return NULL;
}

const char *fb_gguf_model_type(const char *architecture) {
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (strcmp(architecture, architectures[i].gguf) == 0) return architectures[i].model_type;
    return NULL;
}

/* Characters of the layer at the start of `name`: "{}" or a number. */
static int layer_length(const char *name) {
    if (strncmp(name, "{}", 2) == 0) return 2;
    return (int)strspn(name, "0123456789");
}

static bool is_part(const char *end) { return strcmp(end, ".weight") == 0 || strcmp(end, ".bias") == 0; }

/* Whether `name` is `stem` with a layer in place of "{}" and a part after it. */
static bool matches(const char *stem, const char *name, const char **layer, int *length, const char **part) {
    const char *hole = strstr(stem, "{}");
    size_t before = hole ? (size_t)(hole - stem) : strlen(stem);
    if (strncmp(name, stem, before) != 0) return false;
    *layer = name + before;
    *length = hole ? layer_length(*layer) : 0;
    if (hole && !*length) return false;
    const char *rest = hole ? hole + 2 : "";
    if (strncmp(*layer + *length, rest, strlen(rest)) != 0) return false;
    *part = *layer + *length + strlen(rest);
    return is_part(*part);
}

static bool translate(const char *model_type, int from, const char *given, char name[FB_GGUF_NAME_SIZE],
                      fb_row_order *order) {
    uint32_t architecture = fb_gguf_bit(model_type);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *layer, *part;
        int length;
        if (!(names[i].architectures & architecture) ||
            !matches(names[i].stem[from], given, &layer, &length, &part))
            continue;
        const char *stem = names[i].stem[1 - from], *hole = strstr(stem, "{}");
        int before = hole ? (int)(hole - stem) : (int)strlen(stem);
        *order = names[i].order;
        return snprintf(name, FB_GGUF_NAME_SIZE, "%.*s%.*s%s%s", before, stem, length, layer,
                        hole ? hole + 2 : "", part) < FB_GGUF_NAME_SIZE;
    }
    return false;
}

bool fb_gguf_name(const char *model_type, const char *checkpoint_name, char name[FB_GGUF_NAME_SIZE],
                  fb_row_order *order) {
    return translate(model_type, CHECKPOINT, checkpoint_name, name, order);
}

bool fb_gguf_checkpoint_name(const char *model_type, const char *gguf_name, char name[FB_GGUF_NAME_SIZE],
                             fb_row_order *order) {
    return translate(model_type, GGUF, gguf_name, name, order);
}
