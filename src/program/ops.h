/* The op table. Dispatch, program printing, trace counters and test coverage all come from these rows; a new
 * op is a row here, a kernel of the same name in each backend, and a test. */
#ifndef FB_PROGRAM_OPS_H
#define FB_PROGRAM_OPS_H

#include "base/dtype.h"

/* X(KIND, name, inputs, outputs, weights, elementwise, what it computes)
 *
 * T is the number of tokens in a step, P the position of its first token. `weights` is the most an op takes;
 * a bias may be absent. An elementwise op reads, for element i of its output, only element i of its inputs:
 * output and input may share a buffer. */
#define FB_OPS(X)                                                                                            \
    X(EMBED, embed, 0, 1, 1, false, "out[t] = table[ids[t]]")                                                \
    X(EMBED_POSITION, embed_position, 0, 1, 1, false, "out[t] = table[P + t]")                               \
    X(ROPE_ANGLES, rope_angles, 0, 1, 0, false,                                                              \
      "cosines, then sines, of (P + t) * frequency[i], in float32")                                          \
    X(LAYERNORM, layernorm, 1, 1, 2, false, "(x - mean) / sqrt(variance + eps) * weight + bias")             \
    X(RMSNORM, rmsnorm, 1, 1, 1, false, "x / sqrt(mean(x^2) + eps) * weight")                                \
    X(LINEAR, linear, 1, 1, 2, false, "x * weight^T + bias")                                                 \
    X(ROPE, rope, 2, 1, 0, false,                                                                            \
      "pairs (i, i + n/2) of each head's first n elements, rotated by the angles")                           \
    X(KV_APPEND, kv_append, 2, 0, 0, false, "k and v become rows P + t of the layer's cache")                \
    X(ATTN_SCORES, attn_scores, 1, 1, 0, false, "q . cached k * scale, for positions 0 to P + t")            \
    X(SOFTMAX, softmax, 1, 1, 0, true, "exp(x - max) / sum, over positions 0 to P + t")                      \
    X(ATTN_VALUES, attn_values, 1, 1, 0, false, "sum of probability * cached v")                             \
    X(GELU, gelu, 1, 1, 0, true, "x * Phi(x)")                                                               \
    X(GELU_TANH, gelu_tanh, 1, 1, 0, true, "x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))")              \
    X(SILU, silu, 1, 1, 0, true, "x / (1 + exp(-x))")                                                        \
    X(MUL, mul, 2, 1, 0, true, "a * b")                                                                      \
    X(ADD, add, 2, 1, 0, true, "a + b")

typedef enum fb_op_kind {
#define X(KIND, name, in, out, w, elementwise, text) FB_OP_##KIND,
    FB_OPS(X)
#undef X
        FB_OP_COUNT
} fb_op_kind;

#define FB_MAX_IN      4
#define FB_MAX_OUT     4
#define FB_MAX_WEIGHTS 4

typedef struct fb_op_row {
    const char *name;
    int32_t inputs, outputs, weights;
    bool elementwise;
    const char *text;
} fb_op_row;

extern const fb_op_row fb_op_table[FB_OP_COUNT];

/* Numbers that some ops need. */
typedef struct fb_op_attr {
    float eps;                 /* layernorm, rmsnorm */
    float scale;               /* attn_scores */
    int32_t rotary;            /* rope, rope_angles: elements of a head that rotate; even */
    const double *frequencies; /* rope_angles: [rotary / 2]; belongs to the program */
} fb_op_attr;

#endif
