/* The cost of an op, counted from shapes alone: bytes by origin, floating-point operations, and the work of
 * its busiest worker. Work is counted in terms whose prices are measured (machine.h). */
#ifndef FB_PLAN_COST_H
#define FB_PLAN_COST_H

#include "backend/backend.h"

/* X(TERM, name, what a call is, what a unit is)
 *
 * The time of a kernel on one worker, with data in the L1 or L2 cache, is calls * (seconds per call) + units
 * * (seconds per unit). */
#define FB_TERMS(X)                                                                                          \
    X(ONE_F32, one_f32, "output", "multiply-add with a float32 weight, one token")                           \
    X(ONE_F16, one_f16, "output", "multiply-add with a float16 weight, one token")                           \
    X(ONE_BF16, one_bf16, "output", "multiply-add with a bfloat16 weight, one token")                        \
    X(MANY_F32, many_f32, "output", "multiply-add with a float32 weight, many tokens")                       \
    X(MANY_F16, many_f16, "output", "multiply-add with a float16 weight, many tokens")                       \
    X(MANY_BF16, many_bf16, "output", "multiply-add with a bfloat16 weight, many tokens")                    \
    X(ONE_Q8_0, one_q8_0, "output", "multiply-add of integers with a weight of Q8_0, one token")             \
    X(ONE_Q4_0, one_q4_0, "output", "multiply-add of integers with a weight of Q4_0, one token")             \
    X(MANY_Q8_0, many_q8_0, "output", "multiply-add of integers with a weight of Q8_0, many tokens")         \
    X(MANY_Q4_0, many_q4_0, "output", "multiply-add of integers with a weight of Q4_0, many tokens")         \
    X(ONE_Q4_K, one_q4_k, "output", "the same, types with a scale or a minimum for 32 columns")              \
    X(ONE_Q6_K, one_q6_k, "output", "the same, types with a scale for 16 columns")                           \
    X(MANY_Q4_K, many_q4_k, "output", "the same as one_q4_k, many tokens")                                   \
    X(MANY_Q6_K, many_q6_k, "output", "the same as one_q6_k, many tokens")                                   \
    X(DECODED, decoded, "output", "weight of a quantised type that is decoded to multiply floats")           \
    X(QUANTIZE, quantize, "row", "element")                                                                  \
    X(BEST, best, "output of head_argmax, besides the linear", "-")                                          \
    X(LAYERNORM, layernorm, "row", "element")                                                                \
    X(RMSNORM, rmsnorm, "row", "element")                                                                    \
    X(ADD, add, "row", "element")                                                                            \
    X(GELU, gelu, "row", "element")                                                                          \
    X(GELU_TANH, gelu_tanh, "row", "element")                                                                \
    X(SILU, silu, "row", "element")                                                                          \
    X(SCORES, scores, "position", "multiply-add")                                                            \
    X(SCORES_MANY, scores_many, "position", "multiply-add, many queries of a KV head")                       \
    X(SOFTMAX, softmax, "row", "position")                                                                   \
    X(VALUES, values, "position", "multiply-add")                                                            \
    X(VALUES_MANY, values_many, "position", "multiply-add, many queries of a KV head")                       \
    X(FLASH, flash, "position", "multiply-add with k and with v")                                            \
    X(FLASH_MANY, flash_many, "position", "multiply-add with k and with v, many queries of a KV head")       \
    X(ROPE, rope, "head", "element")                                                                         \
    X(ROPE_RAGGED, rope_ragged, "head whose rotating halves are no whole vectors", "-")                      \
    X(APPEND, append, "head", "element of k")                                                                \
    X(ANGLES, angles, "row", "angle")                                                                        \
    X(LOGITS, logits, "step", "logit that is handed out and compared")

typedef enum fb_term {
#define X(TERM, name, call, unit) FB_TERM_##TERM,
    FB_TERMS(X)
#undef X
        FB_TERM_COUNT
} fb_term;

/* The shape of a step: `rows` tokens starting at `position`. */
typedef struct fb_shape {
    int64_t rows, position;
    int64_t epilogue_rows;
    int32_t workers;
    fb_dtype act, kv; /* dtypes of what ops store, and of the cache */
} fb_shape;

typedef struct fb_work {
    double calls, units;
} fb_work;

typedef struct fb_cost {
    int64_t weight_bytes; /* each weight once; of a table only the rows that are read */
    int64_t act_read, act_written;
    int64_t kv_bytes; /* each cached element once, read or written */
    int64_t flops;    /* a multiply-add is two; exp, erf and tanh count FB_FLOPS_FUNCTION */
    int32_t workers;  /* workers that have something to do */
    /* Figures of the busiest worker: */
    double streams;              /* places in weights and cache where it starts to read */
    double foreign;              /* bytes that it reads and another worker wrote */
    fb_work work[FB_TERM_COUNT]; /* what it computes */
} fb_cost;

#define FB_FLOPS_FUNCTION 10

static inline int64_t fb_cost_bytes(const fb_cost *c) {
    return c->weight_bytes + c->act_read + c->act_written + c->kv_bytes;
}

/* The cost of one call of an op in a layer; and the mean of all layers, rounded to whole bytes. */
fb_cost fb_cost_in(const fb_bound *bound, fb_section section, int32_t index, int64_t layer,
                   const fb_shape *shape);
fb_cost fb_cost_of(const fb_bound *bound, fb_section section, int32_t index, const fb_shape *shape);

/* Layers in which an op's weights have the same types cost the same. Goes from one such set to the next:
 * *layer, at first -1, becomes its first layer, and *count how many it has. False: there are no more. An op
 * of another section than the body has one layer. */
bool fb_cost_layers(const fb_bound *bound, fb_section section, const fb_op *op, int64_t *layer,
                    int64_t *count);

/* Of an expert weight, the share that `rows` rows use, if they choose alike; otherwise 1. And of an op's
 * first weight. */
double fb_cost_chosen(const fb_op *op, const fb_weight *weight, int64_t rows);
double fb_cost_chosen_of(const fb_bound *bound, const fb_op *op, int64_t rows);

#endif
