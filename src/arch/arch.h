/* Architectures: a config.json becomes a spec, which holds the plain program and all that the model needs to
 * know to bind weights to it. One file an architecture; arch.c has their table. */
#ifndef FB_ARCH_ARCH_H
#define FB_ARCH_ARCH_H

#include "file/json.h"
#include "program/program.h"

#define FB_CONFIG_LIMIT (1 << 24) /* bytes of a config.json; real ones have a few thousand */
#define FB_MAX_FACTS    32
#define FB_MAX_ENDS     16
#define FB_MAX_IGNORED  6

typedef struct fb_fact {
    char name[32], value[64];
} fb_fact;

/* What the program's ops say in detail, as numbers of the whole model: other formats name them. */
typedef struct fb_hyper {
    int64_t heads, mlp;
    int64_t experts, experts_used; /* 0: no mixture of experts */
    bool shares_sum_to_one;
    double eps;
    fb_op_kind activation;
    bool parallel; /* both branches of a layer read its input */
    bool tied;     /* the head is the embedding */
    int32_t rotary;
    double rope_base,
        rope_linear;         /* frequencies: base^(-2 i / rotary) / linear, and perhaps scaled further */
    double rope_yarn;        /* the factor of yarn, with its usual settings; 0: other frequencies */
    int64_t rope_original;   /* yarn, longrope: the original context */
    double rope_magnitude;   /* of cosines and sines */
    bool rope_other;         /* scaled in a way that no number here tells */
    double rope_base_window; /* of layers with a window; 0: the same */
    double embedding_scale, attention_scale, residual_scale, logit_scale; /* 0: not said */
    double attention_cap, logit_cap;                                      /* 0: none */
    int64_t window,
        window_pattern; /* pattern n: all layers but every n-th have the window; 1: all; 0: other */
    bool still;         /* some layers have no rotary positions */
    bool still_fourth;  /* exactly every fourth layer has none */
} fb_hyper;

typedef struct fb_spec {
    const char *architecture;
    fb_program program;
    fb_hyper hyper;
    fb_fact facts[FB_MAX_FACTS];
    int32_t fact_count;
    const char *optional_prefix;         /* tensor names may come without it; or NULL */
    const char *ignored[FB_MAX_IGNORED]; /* tensors that are not weights, by the end of their name */
    int32_t ends[FB_MAX_ENDS];           /* ids that end a text */
    int32_t end_count;
    int32_t begin; /* the id that begins one, or FB_NONE */
} fb_spec;

/* From the bytes of a config.json, at most FB_CONFIG_LIMIT. `what` names them in errors. What would change
 * the maths and is not known is refused by name. */
fb_status fb_arch_describe(const char *what, const char *json, size_t size, fb_spec **out, fb_error *err);
/* The same once it is parsed, or made from another format's metadata. */
fb_status fb_arch_describe_json(const char *what, const fb_json *json, fb_spec **out, fb_error *err);
void fb_spec_free(fb_spec *spec);

#endif
