/* Fusebox: writes models as GGUF files, their matrices in fewer bits. What fusebox_tools.h says about
 * options, reports and threads holds here too. */
#ifndef FUSEBOX_QUANTIZE_H
#define FUSEBOX_QUANTIZE_H

#include "fusebox.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Mixes of types, by the names that people know. Most matrices have the type in the name, the head Q6_K, and
 * some in which errors cost more a better type: attention's v (or qkv) and output, and ffn_down, in all
 * layers or in some. */
typedef enum fb_mix {
    FB_MIX_NONE = 0,
    FB_MIX_Q2_K = 1,
    FB_MIX_Q3_K_S = 2,
    FB_MIX_Q3_K_M = 3,
    FB_MIX_Q3_K_L = 4,
    FB_MIX_Q4_K_S = 5,
    FB_MIX_Q4_K_M = 6,
    FB_MIX_Q5_K_S = 7,
    FB_MIX_Q5_K_M = 8,
    FB_MIX_IQ4_XS = 9
} fb_mix;

/* What a text says about the inputs of each matrix (fb_importance_collect). */
typedef struct fb_importance fb_importance;

typedef struct fb_quantize_options {
    size_t size;
    fb_dtype type;              /* of matrices: FB_F16 or any quantised type; FB_Q8_0 by default */
    fb_dtype head;              /* of the output head (which may also be the embedding); the same choice */
    bool replace;               /* overwrite an existing file */
    const char *name;           /* name of the model, unless its file has one; NULL: none */
    fb_progress_fn on_progress; /* counts weights; return false to stop. May be NULL */
    void *user;
    int64_t mix; /* an fb_mix, which then decides instead of `type` (not of `head`) */
    /* The errors of a row's columns make up for each other, by the products of the inputs; biases are
     * corrected by the inputs' means, with every type below 8 bits; and the embedding is of the type of the
     * head. An expert goes by the rows that were routed to it. NULL: all columns count alike. */
    const fb_importance *importance;
} fb_quantize_options;

FB_API void fb_quantize_options_init(fb_quantize_options *options, size_t size);
static inline void fb_quantize_options_default(fb_quantize_options *o) {
    fb_quantize_options_init(o, sizeof *o);
}

/* Sets `type`, `head` and `mix` by the name of a type or a mix, in any case: "q4_0", "Q4_K_M". "q2_k" and
 * "iq4_xs" are the mixes. The head is of the type; of FB_Q6_K with a mix, and if `importance` is set and the
 * type has fewer bits. fb_quantize_name(0), (1), … are all names, up to NULL. */
FB_API fb_status fb_quantize_options_parse(const char *name, fb_quantize_options *options, fb_error *err);
FB_API const char *fb_quantize_name(int64_t index);

/* All layers' tensors of one kind and type. */
typedef struct fb_quantize_kind {
    char name[64]; /* "ffn_up.weight" */
    fb_dtype type;
    bool no_blocks; /* its rows are not whole blocks of the type asked for: it is of another one */
    int64_t tensors, weights, bytes;
    int64_t corrected; /* bias tensors that were corrected by the mean error of their quantised matrix */
    double rel;        /* norm of the error over the norm of the weights */
    double max_abs;    /* largest error of a weight */
    fb_dtype asked;    /* the type that it would have if its rows were whole blocks */
} fb_quantize_kind;

typedef struct fb_quantize_report {
    int64_t weights;
    int64_t bytes_before, bytes_after; /* of the weights */
    int64_t file_bytes;                /* of the file, metadata included */
    int64_t corrected;                 /* biases */
    int64_t kind_count;
    fb_quantize_kind **kinds;
    /* With `importance`, matrices of experts that were quantised: by their own inputs; by those of all
     * experts of the layer, because the text hardly reached the expert, or there are too many to keep; by
     * none. */
    int64_t experts_own, experts_shared, experts_plain;
} fb_quantize_report;

/* Writes the model as a GGUF file, tokenizer included: matrices in the types asked for, vectors in F32.
 * Scales are searched for the least squared error, but for Q8_0. Where a matrix becomes Q4_0, Q4_1, Q5_1,
 * Q2_K, Q4_K or Q5_K, the bias of its linear is corrected by the mean of the error, if the weights tell the
 * mean of the linear's input: after a LayerNorm, GELU or attention. A row that is no whole blocks of 256 gets
 * a type of about as many bits with blocks of 32: Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K, IQ4_NL for
 * IQ4_XS, Q4_0 for Q3_K and Q2_K; a row that is no whole blocks of 32, F16. Refuses a model that such a file
 * cannot describe. `path` never holds a partial file. `report` may be NULL. */
FB_API fb_status fb_model_quantize(const fb_model *model, const char *path,
                                   const fb_quantize_options *options, fb_quantize_report **report,
                                   fb_error *err);
FB_API void fb_quantize_free(fb_quantize_report *report);

/* Of fusebox_tools.h. */
struct fb_perplexity_options;
struct fb_perplexity_report;

/* Scores a text as fb_perplexity_run does, by the plain ops on the CPU in float32, and keeps the mean of
 * every column that a matrix is multiplied with, and the products of columns: 4 bytes for each of 1024
 * others, of 512 or 256 where that would be more than 2 GiB. Each expert of a mixture has products of its
 * own, from the rows that were routed to it. They take 2 GiB at most, or a byte for five weights. Where that
 * is not enough, experts that read the same share one. Some ten thousand tokens of the kind of text that the
 * model is for are enough, more if it has many experts. Of the options: threads, kv, isa, chunk, window,
 * max_windows, scoring, on_progress and user. `report` may be NULL. */
FB_API fb_status fb_importance_collect(const fb_model *model, const struct fb_perplexity_options *options,
                                       const int32_t *ids, int64_t count, fb_importance **importance,
                                       struct fb_perplexity_report **report, fb_error *err);
FB_API void fb_importance_free(fb_importance *importance);

#ifdef __cplusplus
}
#endif
#endif
