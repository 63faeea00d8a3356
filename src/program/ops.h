/* The op table. Dispatch, program printing, trace counters and test coverage all come from these rows; a new
 * op is a row here, a kernel of the same name in each backend, and a test. */
#ifndef FB_PROGRAM_OPS_H
#define FB_PROGRAM_OPS_H

#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(KIND, name, inputs, outputs, weights, parts, what it computes)
 *
 * Row t of a value is that of the step's token t; p[t] is the position of that token (fb_row). `weights` is
 * the most an op takes; a bias may be absent. An elementwise op reads, for element i of its output, only
 * element i of its inputs: output and input may share a buffer.
 *
 * With a cache that keeps sinks (fb_ring), attention has a second query, rotated at the position that the
 * token has in the cache: the sinks are compared with that one. It is the second input of attn_*, and the
 * second output of rope_kv, whose fifth input are its angles. */
#define FB_OPS(X)                                                                                            \
    X(EMBED, embed, 0, 1, 1, ANY, "out[t] = table[token[t]]")                                                \
    X(EMBED_POSITION, embed_position, 0, 1, 1, ANY, "out[t] = table[p[t]]")                                  \
    X(ROPE_ANGLES, rope_angles, 0, 1, 0, ANY, "cosines, then sines, of p[t] * frequency[i], in float32")     \
    X(LAYERNORM, layernorm, 1, 1, 2, ANY, "(x - mean) / sqrt(variance + eps) * weight + bias")               \
    X(RMSNORM, rmsnorm, 1, 1, 1, ANY, "x / sqrt(mean(x^2) + eps) * weight")                                  \
    X(QUANTIZE, quantize, 1, 1, 0, ANY, "blocks of 32: int8, their scale and their sum")                     \
    X(LINEAR, linear, 1, 1, 2, ANY, "x * weight^T + bias")                                                   \
    X(ROPE, rope, 2, 1, 0, ANY, "pairs (i, i + n/2) of each head's first n elements, rotated by the angles") \
    X(KV_APPEND, kv_append, 2, 0, 0, ANY, "k and v become rows p[t] of the layer's cache")                   \
    X(ATTN_SCORES, attn_scores, 2, 1, 0, ANY, "q . cached k * scale, for slots that token t looks into")     \
    X(SOFTMAX, softmax, 1, 1, 0, ELEMENT, "exp(x - max) / sum, over the slots that attn_scores wrote")       \
    X(ATTN_VALUES, attn_values, 1, 1, 0, ANY, "sum of probability * cached v")                               \
    X(GELU, gelu, 1, 1, 0, ELEMENT, "x * Phi(x)")                                                            \
    X(GELU_TANH, gelu_tanh, 1, 1, 0, ELEMENT, "x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))")           \
    X(SILU, silu, 1, 1, 0, ELEMENT, "x / (1 + exp(-x))")                                                     \
    X(MUL, mul, 2, 1, 0, ELEMENT, "a * b")                                                                   \
    X(ADD, add, 2, 1, 0, ELEMENT, "a + b")                                                                   \
    X(ADD3, add3, 3, 1, 0, ELEMENT, "(a + b) + c")                                                           \
    X(ADD_NORM, add_norm, 3, 3, 4, ELEMENT, "x = a + b or (a + b) + c, and one or two norms of it")          \
    X(SWIGLU, swiglu, 2, 1, 0, ELEMENT, "silu(a) * b")                                                       \
    X(LINEAR_GROUP, linear_group, 4, 3, 12, ELEMENT,                                                         \
      "up to three linears with norm, activation, product or residual")                                      \
    X(ROPE_KV, rope_kv, 5, 2, 0, HEAD, "q and k rotated; k and v become rows p[t] of the layer's cache")     \
    X(ATTN_ROWS, attn_rows, 2, 1, 0, HEAD, "scores, softmax and values of a row, in the plain ops' order")   \
    X(ATTN_FLASH, attn_flash, 2, 1, 0, HEAD, "scores, softmax and values in one pass over the cache")        \
    X(HEAD_ARGMAX, head_argmax, 1, 1, 1, ANY, "the column of the largest x * weight^T, and that value")

typedef enum fb_op_kind {
#define X(KIND, name, in, out, w, parts, text) FB_OP_##KIND,
    FB_OPS(X)
#undef X
        FB_OP_COUNT
} fb_op_kind;

#define FB_MAX_IN       5
#define FB_MAX_OUT      3
#define FB_MAX_WEIGHTS  12
#define FB_MAX_SEGMENTS 3

/* Outputs of a projection that threads share come in multiples of this: whole groups of packed rows. */
#define FB_LINEAR_GRAIN 16

typedef enum fb_parts { FB_PARTS_ANY, FB_PARTS_ELEMENT, FB_PARTS_HEAD } fb_parts;

typedef struct fb_op_row {
    const char *name;
    int32_t inputs, outputs, weights;
    fb_parts parts;
    const char *text;
} fb_op_row;

extern const fb_op_row fb_op_table[FB_OP_COUNT];

/* How a linear multiplies: with floats (quantised weights are decoded); or, for weights of Q8_0 and Q4_0,
 * with integers, its input being quantised blocks already or quantised on the way in. */
typedef enum fb_dot { FB_DOT_FLOAT, FB_DOT_GIVEN, FB_DOT_QUANTIZE } fb_dot;

/* One linear of a linear_group: act(norm(in[s]) * weight^T + bias). Its weights are number 4 s (weight), 4 s
 * + 1 (bias), 4 s
 * + 2 and 4 s + 3 (the norm's weight and bias). Kinds are FB_OP_COUNT for none. */
typedef struct fb_segment {
    fb_op_kind norm, act;
    float eps;
    fb_dot dot; /* also of a plain linear and of head_argmax, whose segment 0 it is */
} fb_segment;

/* What a linear_group does with its segments: store each; out[0] = segment 0 * segment 1; out[0] = segment 0
 * (+ segment 1) + the residual in[FB_RESIDUAL]. */
typedef enum fb_combine { FB_COMBINE_NONE, FB_COMBINE_MUL, FB_COMBINE_ADD } fb_combine;
#define FB_RESIDUAL 3

/* Numbers that some ops need. */
typedef struct fb_op_attr {
    int32_t segments;                    /* linear_group */
    fb_segment segment[FB_MAX_SEGMENTS]; /* linear_group */
    fb_combine combine;                  /* linear_group */
    int32_t terms, norms;                /* add_norm: 2 or 3, 1 or 2 */
    fb_op_kind norm;                     /* add_norm */
    float eps;                           /* layernorm, rmsnorm */
    float scale;                         /* attn_scores */
    int32_t rotary;                      /* rope, rope_angles: elements of a head that rotate; even */
    const double *frequencies;           /* rope_angles: [rotary / 2]; belongs to the program */
    int64_t limit;                       /* rope_angles: positions beyond this count as this; 0: none */
    bool screen;                         /* head_argmax: by the weight's screen */
} fb_op_attr;

#ifdef __cplusplus
}
#endif
#endif
