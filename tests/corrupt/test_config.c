/* config.json: missing, malformed, out of range, unknown, or at odds with the weights. */
#include "corrupt/corrupt.h"

#define NEOX  "neox-parallel"
#define LLAMA "llama-gqa-tied"
#define GPT2  "gpt2"
#define FILE_ "config.json"

#define TEXT(name, text, words)                                                                              \
    { name, NEOX, write_file, FILE_, NULL, text, "config.json|" words }
#define SET(name, base, key, value, words)                                                                   \
    { name, base, set_member, FILE_, key, value, "config.json|" words }

static const damage rows[] = {
    /* the file */
    {"missing", NEOX, remove_file, FILE_, NULL, NULL, "config.json|No such file"},
    {"nested a million deep", NEOX, nest_deeply, FILE_, NULL, NULL, "config.json|depth"},
    TEXT("empty", "", "empty"),
    TEXT("only space", " \n", "not JSON"),
    TEXT("cut", "{\"model_type\": \"gpt_ne", "not JSON"),
    TEXT("not UTF-8", "{\"model_type\": \"gpt\xff\"}", "not JSON|0xff"),
    TEXT("array", "[]", "object"),
    TEXT("string", "\"gpt_neox\"", "not JSON"),
    TEXT("trailing bytes", "{} {}", "not JSON|end of file"),
    TEXT("duplicate key", "{\"model_type\": \"gpt_neox\", \"model_type\": \"llama\"}", "duplicate"),
    TEXT("not a number", "{\"model_type\": \"gpt_neox\", \"vocab_size\": NaN}", "not JSON|NaN"),
    TEXT("infinite", "{\"model_type\": \"gpt_neox\", \"layer_norm_eps\": 1e999}", "not JSON|overflow"),
    TEXT("too big an integer", "{\"model_type\": \"gpt_neox\", \"vocab_size\": 99999999999999999999}",
         "too big"),
    TEXT("empty object", "{}", "model_type|missing"),

    /* what it is */
    SET("model_type missing", NEOX, "model_type", NULL, "model_type|missing"),
    SET("model_type a number", NEOX, "model_type", "3", "model_type|3|string"),
    SET("model_type unknown", NEOX, "model_type", "\"mamba\"", "model_type|\"mamba\"|gpt_neox, llama, gpt2"),
    SET("model_type with a NUL", NEOX, "model_type", "\"gpt_neox\\u0000\"", "model_type"),
    SET("model_type with an escape", NEOX, "model_type", "\"\\u001b[2J\"", "model_type"),
    SET("another class", NEOX, "architectures", "[\"GPTNeoXForTokenClassification\"]", "architectures"),
    SET("another model's weights", NEOX, "model_type", "\"llama\"", ""),

    /* sizes */
    SET("layers 0", NEOX, "num_hidden_layers", "0", "num_hidden_layers: 0 (1 to"),
    SET("layers -3", NEOX, "num_hidden_layers", "-3", "num_hidden_layers: -3"),
    SET("layers 10^18", NEOX, "num_hidden_layers", "1000000000000000000",
        "num_hidden_layers: 1000000000000000000"),
    SET("layers text", NEOX, "num_hidden_layers", "\"3\"", "num_hidden_layers|integer"),
    SET("layers real", NEOX, "num_hidden_layers", "3.5", "num_hidden_layers|3.5|integer"),
    SET("layers list", NEOX, "num_hidden_layers", "[3]", "num_hidden_layers|integer"),
    SET("layers null", NEOX, "num_hidden_layers", "null", "num_hidden_layers|missing"),
    SET("layers missing", NEOX, "num_hidden_layers", NULL, "num_hidden_layers|missing"),
    SET("heads 0", NEOX, "num_attention_heads", "0", "num_attention_heads: 0"),
    SET("heads -1", NEOX, "num_attention_heads", "-1", "num_attention_heads: -1"),
    SET("heads that do not divide", NEOX, "num_attention_heads", "5", "heads: 5|64"),
    SET("more heads than width", NEOX, "num_attention_heads", "128", "heads: 128|64"),
    SET("hidden 0", NEOX, "hidden_size", "0", "hidden_size: 0"),
    SET("hidden 2^62", NEOX, "hidden_size", "4611686018427387904", "hidden_size: 4611686018427387904"),
    SET("vocabulary 0", NEOX, "vocab_size", "0", "vocab_size: 0"),
    SET("vocabulary 2^40", NEOX, "vocab_size", "1099511627776", "vocab_size: 1099511627776"),
    SET("context 0", NEOX, "max_position_embeddings", "0", "max_position_embeddings: 0"),
    SET("mlp missing", NEOX, "intermediate_size", NULL, "intermediate_size|missing"),
    SET("llama: heads 0", LLAMA, "num_attention_heads", "0", "num_attention_heads: 0"),
    SET("llama: KV heads 0", LLAMA, "num_key_value_heads", "0", "num_key_value_heads: 0"),
    SET("llama: KV heads that do not divide", LLAMA, "num_key_value_heads", "3", "num_key_value_heads: 3"),
    SET("llama: more KV heads than heads", LLAMA, "num_key_value_heads", "8", "num_key_value_heads: 8"),
    SET("llama: head_dim 0", LLAMA, "head_dim", "0", "head_dim: 0"),
    SET("llama: head_dim odd", LLAMA, "head_dim", "15", "15"),
    SET("gpt2: layers 0", GPT2, "n_layer", "0", "n_layer: 0"),
    SET("gpt2: heads that do not divide", GPT2, "n_head", "7", "heads: 7|64"),
    SET("gpt2: inner 0", GPT2, "n_inner", "0", "n_inner: 0"),

    /* what changes the maths */
    SET("activation unknown", NEOX, "hidden_act", "\"relu6\"", "hidden_act|\"relu6\"|gelu"),
    SET("activation a number", NEOX, "hidden_act", "1", "hidden_act|1|string"),
    SET("llama: activation unknown", LLAMA, "hidden_act", "\"tanh\"", "hidden_act|\"tanh\""),
    SET("gpt2: activation unknown", GPT2, "activation_function", "\"relu\"", "activation_function|\"relu\""),
    SET("epsilon negative", NEOX, "layer_norm_eps", "-1e-5", "layer_norm_eps: -1e-05"),
    SET("epsilon text", NEOX, "layer_norm_eps", "\"1e-5\"", "layer_norm_eps|number"),
    SET("residual a word", NEOX, "use_parallel_residual", "\"yes\"", "use_parallel_residual|true or false"),
    SET("tied a number", NEOX, "tie_word_embeddings", "1", "tie_word_embeddings|true or false"),
    SET("rope not an object", NEOX, "rope_parameters", "3", "rope_parameters"),
    SET("rope type unknown", NEOX, "rope_parameters.rope_type", "\"yarn\"",
        "rope_type|\"yarn\"|default, linear, llama3"),
    SET("rope type a number", NEOX, "rope_parameters.rope_type", "1", "rope_type|1"),
    SET("rope factor missing", NEOX, "rope_parameters.rope_type", "\"linear\"", "factor|missing"),
    SET("rope with an unknown key", NEOX, "rope_parameters.beta_fast", "32", "beta_fast|32"),
    SET("rope base 0", NEOX, "rope_parameters.rope_theta", "0", "rope_theta: 0"),
    SET("rope base negative", NEOX, "rope_parameters.rope_theta", "-10000", "rope_theta: -10000"),
    SET("rotary fraction above 1", NEOX, "rope_parameters.partial_rotary_factor", "1.5",
        "partial_rotary_factor: 1.5"),
    SET("rotary fraction negative", NEOX, "rope_parameters.partial_rotary_factor", "-0.25",
        "partial_rotary_factor: -0.25"),
    SET("rotary elements odd", NEOX, "rope_parameters.partial_rotary_factor", "0.2", "rotating elements|3"),
    SET("llama: rope scaling of the old spelling", LLAMA, "rope_parameters",
        "{\"type\": \"dynamic\", \"factor\": 2}", "\"dynamic\""),
    SET("llama: rotary fraction", LLAMA, "rope_parameters.partial_rotary_factor", "0.5",
        "rotating elements|8|16"),
    SET("sliding window", NEOX, "sliding_window", "128", "sliding_window|128"),
    SET("layer types", LLAMA, "layer_types", "[\"full_attention\", \"sliding_attention\"]",
        "layer_types|sliding_attention"),
    SET("quantized", NEOX, "quantization_config", "{\"bits\": 4}", "quantization_config|bits"),
    SET("experts", LLAMA, "num_local_experts", "8", "num_local_experts|8"),
    SET("gpt2: scores by layer", GPT2, "scale_attn_by_inverse_layer_idx", "true",
        "scale_attn_by_inverse_layer_idx"),
    SET("gpt2: scores unscaled", GPT2, "scale_attn_weights", "false", "scale_attn_weights"),

    /* at odds with the weights: there the message names the tensor */
    {"another width", NEOX, set_member, FILE_, "hidden_size", "32", "[320, 64]|[320, 32]"},
    {"another vocabulary", NEOX, set_member, FILE_, "vocab_size", "321", "[320, 64]|[321, 64]"},
    {"another mlp", NEOX, set_member, FILE_, "intermediate_size", "128", "gpt_neox.layers.0.mlp|128"},
    {"a layer too many", NEOX, set_member, FILE_, "num_hidden_layers", "4", "gpt_neox.layers.3.|missing"},
    {"a layer too few", NEOX, set_member, FILE_, "num_hidden_layers", "2", "gpt_neox.layers.2."},
    {"no attention bias", NEOX, set_member, FILE_, "attention_bias", "false", "attention|bias"},
    {"not tied", LLAMA, set_member, FILE_, "tie_word_embeddings", "false", "lm_head.weight|missing"},
    {"more KV heads", LLAMA, set_member, FILE_, "num_key_value_heads", "4", "k_proj|[32, 64]|[64, 64]"},
    {"another head size", LLAMA, set_member, FILE_, "head_dim", "32", "q_proj|[64, 64]|[128, 64]"},
    {"a bias that is not there", LLAMA, set_member, FILE_, "attention_bias", "true", "q_proj.bias|missing"},
    {"gpt2: another context", GPT2, set_member, FILE_, "n_positions", "64", "wpe|[128, 64]|[64, 64]"},
    {"gpt2: another mlp", GPT2, set_member, FILE_, "n_inner", "128", "mlp.c_fc"},
};

int main(void) { return RUN_ROWS("config", run_damage, rows); }
