/* The op table. Dispatch, program printing, trace counters and test coverage all use these rows. A new op
 * needs a row here, a kernel of the same name in each backend, and a test. */
#ifndef FB_PROGRAM_OPS_H
#define FB_PROGRAM_OPS_H

#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(KIND, name, inputs, outputs, weights, parts, what it computes)
 *
 * Row t of a value belongs to token t of the step; p[t] is that token's position (fb_row). `weights` is the
 * most that an op takes; a bias may be absent. An op marked ELEMENT may write its output over an input: a
 * part of the output needs only the same part of that input. For linear_group this holds for the residual
 * only. An op marked HEAD is divided by KV head.
 *
 * With a cache that keeps sinks (fb_ring), attention has a second query. It is rotated at the position that
 * the token has in the cache, and is compared with the sinks. It is the second input of attn_* and the second
 * output of rope_kv, whose fifth input holds its angles.
 *
 * `inputs` does not count what inputs were quantised from (FB_UNQUANTIZED). */
#define FB_OPS(X)                                                                                            \
    X(EMBED, embed, 0, 1, 1, ANY, "out[t] = table[token[t]], times a scale if there is one")                 \
    X(EMBED_POSITION, embed_position, 0, 1, 1, ANY, "out[t] = table[p[t]]")                                  \
    X(ROPE_ANGLES, rope_angles, 0, 1, 0, ANY, "cosines, then sines, of p[t] * frequency[i], times a scale")  \
    X(LAYERNORM, layernorm, 1, 1, 2, ANY, "(x - mean) / sqrt(variance + eps) * weight + bias")               \
    X(RMSNORM, rmsnorm, 1, 1, 1, ANY, "x / sqrt(mean(x^2) + eps) * weight; of a row, or of each head")       \
    X(QUANTIZE, quantize, 1, 1, 0, ANY, "blocks of 32: int8, their scale and their sum")                     \
    X(LINEAR, linear, 1, 1, 2, ANY, "x * weight^T + bias")                                                   \
    X(ROPE, rope, 2, 1, 0, ANY, "pairs (i, i + n/2) of each head's first n elements, rotated by the angles") \
    X(KV_APPEND, kv_append, 2, 0, 0, ANY, "k and v become rows p[t] of the layer's cache")                   \
    X(ATTN_SCORES, attn_scores, 2, 1, 0, ANY,                                                                \
      "q . cached k * scale, or softcap of it, for slots that t sees")                                       \
    X(SOFTMAX, softmax, 1, 1, 0, ELEMENT, "exp(x - max) / sum, over the slots that attn_scores wrote")       \
    X(ATTN_VALUES, attn_values, 1, 1, 0, ANY, "sum of probability * cached v")                               \
    X(GELU, gelu, 1, 1, 0, ELEMENT, "x * Phi(x)")                                                            \
    X(GELU_TANH, gelu_tanh, 1, 1, 0, ELEMENT, "x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))")           \
    X(SILU, silu, 1, 1, 0, ELEMENT, "x / (1 + exp(-x))")                                                     \
    X(SCALE, scale, 1, 1, 0, ELEMENT, "x * scale")                                                           \
    X(SOFTCAP, softcap, 1, 1, 0, ELEMENT, "cap * tanh(x / cap)")                                             \
    X(MUL, mul, 2, 1, 0, ELEMENT, "a * b")                                                                   \
    X(ADD, add, 2, 1, 0, ELEMENT, "a + b")                                                                   \
    X(ADD3, add3, 3, 1, 0, ELEMENT, "(a + b) + c")                                                           \
    X(ADD_NORM, add_norm, 3, 3, 4, ELEMENT, "x = a + b or (a + b) + c, and one or two norms of it")          \
    X(NORM_ADD, norm_add, 2, 1, 2, ANY, "a norm of a, plus b")                                               \
    X(SWIGLU, swiglu, 2, 1, 0, ELEMENT, "act(a) * b, with silu or a gelu")                                   \
    X(LINEAR_GROUP, linear_group, 4, 3, 12, ELEMENT,                                                         \
      "up to three linears with norm, activation, product or residual")                                      \
    X(ROPE_KV, rope_kv, 5, 2, 0, HEAD, "q and k rotated; k and v become rows p[t] of the layer's cache")     \
    X(ATTN_ROWS, attn_rows, 2, 1, 0, HEAD, "scores, softmax and values of a row, in the plain ops' order")   \
    X(ATTN_FLASH, attn_flash, 2, 1, 0, HEAD, "scores, softmax and values in one pass over the cache")        \
    X(HEAD_ARGMAX, head_argmax, 1, 1, 1, ANY, "the column of the largest x * weight^T, and that value")      \
    X(TOP_K, top_k, 1, 1, 0, ANY, "(column, share) of the largest of softmax(x), in the order of columns")   \
    X(EXPERT_LINEAR, expert_linear, 2, 1, 1, ANY,                                                            \
      "x * weight^T of each expert in the row's (expert, share)")                                            \
    X(EXPERT_SUM, expert_sum, 2, 1, 0, ANY, "sum of share * what the row's experts computed")                \
    X(ROUTER, router, 1, 2, 4, ANY, "a norm of x, and top_k of its linear")                                  \
    X(EXPERT_GROUP, expert_group, 4, 1, 8, ANY,                                                              \
      "one or two expert_linears with activation and product, or with sum and residual")

typedef enum fb_op_kind {
#define X(KIND, name, in, out, w, parts, text) FB_OP_##KIND,
    FB_OPS(X)
#undef X
        FB_OP_COUNT
} fb_op_kind;

#define FB_MAX_IN       8
#define FB_MAX_OUT      3
#define FB_MAX_WEIGHTS  12
#define FB_MAX_SEGMENTS 3

/* Experts of a layer, at most. */
#define FB_LIMIT_EXPERTS 1024

/* Workers divide the outputs of a projection in multiples of this: whole groups of packed rows. */
#define FB_LINEAR_GRAIN 16

typedef enum fb_parts { FB_PARTS_ANY, FB_PARTS_ELEMENT, FB_PARTS_HEAD } fb_parts;

typedef struct fb_op_row {
    const char *name;
    int32_t inputs, outputs, weights;
    fb_parts parts;
    const char *text;
} fb_op_row;

extern const fb_op_row fb_op_table[FB_OP_COUNT];

/* How a linear multiplies. FLOAT: with floats; quantised weights are decoded. GIVEN and QUANTIZE, for
 * quantised weights: with integers. The input is quantised already (GIVEN), or the linear quantises it.
 *
 * A matrix may be quantised in one layer and floats in another. An op of the program then says GIVEN or
 * QUANTIZE, and a layer whose matrix is floats multiplies with floats (fb_dot_in). */
typedef enum fb_dot { FB_DOT_FLOAT, FB_DOT_GIVEN, FB_DOT_QUANTIZE } fb_dot;

/* How a segment multiplies in a layer, where its matrix has this dtype. */
static inline fb_dot fb_dot_in(fb_dot dot, fb_dtype matrix) {
    return fb_dtype_is_float(matrix) ? FB_DOT_FLOAT : dot;
}

/* One linear of a linear_group: act(norm(in[s]) * weight^T + bias). Weight 4 s is the matrix, 4 s + 1 the
 * bias, 4 s + 2 and 4 s + 3 the norm's weight and bias. A kind of FB_OP_COUNT means none. */
typedef struct fb_segment {
    fb_op_kind norm, act;
    float eps;
    fb_dot dot; /* also used by a plain linear and by head_argmax, as segment 0 */
} fb_segment;

/* What a linear_group does with its segments. NONE: stores each. MUL: out[0] = segment 0 * segment 1. ADD:
 * out[0] = segment 0 (+ segment 1) + the residual in[FB_RESIDUAL]. SUM, of an expert_group: out[0] = the sum
 * of share * segment 0 over a row's experts (+ the residual, if there is one). */
typedef enum fb_combine { FB_COMBINE_NONE, FB_COMBINE_MUL, FB_COMBINE_ADD, FB_COMBINE_SUM } fb_combine;
#define FB_RESIDUAL 3

/* in[FB_UNQUANTIZED + s]: what in[s] was quantised from, of a GIVEN segment whose matrix is floats in some
 * layers. These layers read it instead of in[s]. Experts read in[0] for all segments. */
#define FB_UNQUANTIZED 5

/* Parameters of ops. Each comment names the ops that use a field. */
typedef struct fb_op_attr {
    int32_t segments;                    /* linear_group */
    fb_segment segment[FB_MAX_SEGMENTS]; /* linear_group */
    fb_combine combine;                  /* linear_group */
    int32_t terms, norms;                /* add_norm: 2 or 3 terms, 1 or 2 norms */
    fb_op_kind norm;                     /* add_norm, norm_add */
    float eps;                           /* layernorm, rmsnorm, add_norm, norm_add */
    float scale;                         /* attn_*, scale; embed, rope_angles: 0 is none */
    float cap;                           /* softcap; attn_*: of the scores, 0 is none */
    fb_op_kind act;                      /* swiglu: gelu or gelu_tanh; anything else is silu */
    int32_t rotary;                      /* rope, rope_angles: elements of a head that rotate; even */
    const double *frequencies;           /* rope_angles: [rotary / 2]; belongs to the program */
    int32_t table;                       /* rope_angles: which of the program's tables `frequencies` is */
    int64_t limit;          /* rope_angles: larger positions are treated as this one; 0: no limit */
    bool screen;            /* head_argmax: use the weight's screen */
    int32_t used;           /* top_k, router, expert_*: experts of a row */
    bool shares_sum_to_one; /* top_k, router: shares are divided by their sum */
    bool each;              /* expert_linear, expert_group: x has a part for each of a row's experts */
} fb_op_attr;

#ifdef __cplusplus
}
#endif
#endif
