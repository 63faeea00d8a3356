/* What Llama and its kin share: attention with rotary positions and grouped KV heads, a gated MLP, and norms
 * before or after each of the two. An architecture fills in an fb_decoder; decoder.c writes the program. */
#ifndef FB_ARCH_DECODER_H
#define FB_ARCH_DECODER_H

#include "arch/rope.h"

typedef enum fb_qk_norm { FB_QK_NONE, FB_QK_HEAD, FB_QK_ROW } fb_qk_norm;

typedef struct fb_decoder {
    int64_t heads, kv_heads, head_dim, mlp;
    fb_op_kind activation;
    const char *activation_name;
    bool tied;

    /* Norms. A name is that of the tensor in a layer, without ".weight"; NULL: there is no such norm. */
    const char *before_attention, *after_attention, *before_mlp, *after_mlp;
    double eps;
    bool layernorm; /* instead of rmsnorm; with a bias */
    bool plus_one;  /* a checkpoint stores the weights of norms less 1 */
    fb_qk_norm qk_norm;

    bool qkv_bias, output_bias, mlp_bias;
    bool merged; /* q, k and v are one tensor, gate and up another */

    /* A mixture of experts, each of width `mlp`, of which a token uses some; 0: there is one MLP. Names are
     * those of tensors in a layer, without ".weight"; "[]" stands for the expert. */
    int64_t experts, experts_used;
    bool shares_sum_to_one;
    const char *router, *expert_gate, *expert_up, *expert_down;

    double embedding_scale, attention_scale, residual_scale, logit_scale; /* 1: none, but attention's */
    double attention_cap, logit_cap;                                      /* 0: none */

    /* Rotary positions: of layers that see everything, and of layers with a window if these are others. */
    fb_rope ropes[2];
    int32_t rope_count;            /* 0: as the config's dictionary says, in all layers */
    double rotary_fraction;        /* if the config does not say */
    double rope_base;              /* if the config does not say */
    bool partial;                  /* a part of a head may rotate; otherwise all of it must */
    int64_t window;                /* of the layers that have one; 0: none has */
    uint8_t slides[FB_MAX_LAYERS]; /* layer i has the window */
    uint8_t still[FB_MAX_LAYERS];  /* layer i has no rotary positions */
} fb_decoder;

/* Describes such a model. Reads what all these architectures write alike: sizes, norm epsilon, biases,
 * activation, tied embeddings (`tied`: if the config does not say), rotary positions. The rest becomes what
 * Llama has. Then `read` changes what the architecture does otherwise; NULL: nothing. */
fb_status fb_decoder_describe(const fb_config *config, fb_spec *spec, bool tied,
                              fb_status (*read)(const fb_config *config, fb_spec *spec, fb_decoder *d,
                                                fb_error *err),
                              fb_error *err);

/* How many experts a token uses, `fallback` if the config does not say; no more than there are. */
fb_status fb_decoder_experts_used(const fb_config *config, fb_decoder *d, int64_t fallback, fb_error *err);

/* The window, `fallback` if the config does not have the key (null is none), and the layers that have it.
 * With `by_type`, those that the list layer_types names; if there is no such list, those for which `slides`
 * returns true. Without, a list that says otherwise is refused. */
fb_status fb_decoder_windows(const fb_config *config, const fb_spec *spec, fb_decoder *d, int64_t fallback,
                             bool by_type,
                             bool (*slides)(const fb_decoder *d, int64_t layer, int64_t pattern),
                             int64_t pattern, fb_error *err);

#endif
