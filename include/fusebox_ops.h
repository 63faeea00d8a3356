/* Fusebox: single fused ops on the caller's memory and, on a GPU, on the caller's stream.
 *
 * These are the engine's own kernels, without a model: each function describes one op and calls the kernel
 * that a session would call. So results have the bits of the engine's ops. Fused ops round to the dtype of
 * the activations wherever the plain ops would have stored.
 *
 *     fb_ops_create      a context for the CPU or one GPU
 *     fb_ops_layer_norm  … one function for each op
 *     fb_ops_free
 *
 * Tensors. x, out and all other activations of a call have one dtype: FB_F32, FB_F16 or FB_BF16. Kernels
 * compute in float32. A row has `cols` elements without gaps. Rows begin `stride` elements apart, at any
 * address that is a multiple of the element's size; nothing else has to be aligned. A call with no rows
 * checks its arguments, writes nothing and returns FB_OK.
 *
 * Weights are FB_F32, FB_F16 or FB_BF16, whatever the dtype of the activations. A vector (a norm's weight, a
 * bias) has one row. A matrix [outputs, inputs] has no gaps between its rows: its stride must be its number
 * of columns, because the kernels have no stride for weights. Copy a slice of columns before the call.
 *
 * Overlap. An output may be the very memory of an input with the same stride, where a function says so. Any
 * other overlap of an output with anything else gives wrong results.
 *
 * Threads. A context may be used by several threads at once. On the CPU, small ops run on the calling thread;
 * larger ones use the threads that sessions use, too, and take turns with them. Results depend neither on the
 * number of threads nor, on the CPU, on how rows are divided among calls.
 *
 * Streams. On a GPU a function launches its kernels on `stream`, a cudaStream_t of the context's device, and
 * returns. It neither allocates nor waits, except to make or enlarge the workspace of a stream. A context has
 * one workspace for each stream, so that streams do not disturb each other. The device that is current in the
 * calling thread stays current. On the CPU `stream` is ignored and the result is there on return.
 *
 * Graphs. Every op can be captured in a CUDA graph, also the first one on a stream: memory that it needs is
 * allocated outside the graph. A graph uses the workspace of the stream that it was captured on. So it must
 * not run at the same time as other ops on that stream, or as another graph that was captured there.
 * fb_ops_free must come after the last launch of such a graph.
 *
 * Errors and growth are as in fusebox.h. The structs here are frozen: they never change, so they need no
 * size. */
#ifndef FUSEBOX_OPS_H
#define FUSEBOX_OPS_H

#include "fusebox.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- contexts ---- */

typedef struct fb_ops fb_ops;

/* The device of a context: the CPU, or the CUDA device of this index. */
#define FB_OPS_CPU (-1)

/* `threads`: the most threads that an op uses on the CPU; 0: one for each core that this process may use. */
FB_API fb_status fb_ops_create(int32_t device, int32_t threads, fb_ops **out, fb_error *err);
/* Waits for the context's streams, as freeing device memory does. Weights of fb_ops_pack must be freed
 * before. */
FB_API void fb_ops_free(fb_ops *ops);

/* Makes the stream's workspace at least `bytes` long, so that later ops need not allocate. On the CPU it does
 * nothing. */
FB_API fb_status fb_ops_reserve(fb_ops *ops, void *stream, int64_t bytes, fb_error *err);

/* ---- tensors ---- */

/* [rows, cols]; element (r, i) has index r * stride + i. data NULL: there is none, where that is allowed. An
 * input's stride may be 0 (every row is the same); an output's is at least cols. */
typedef struct fb_ops_tensor {
    void *data;
    fb_dtype dtype;
    int64_t rows, cols, stride;
} fb_ops_tensor;

/* [rows, heads, width]; element (r, h, i) has index r * row_stride + h * head_stride + i. */
typedef struct fb_ops_heads {
    void *data;
    fb_dtype dtype;
    int64_t rows, heads, width, row_stride, head_stride;
} fb_ops_heads;

/* The position of each row [rows], in memory that the device can read. data NULL: see the function. `bits` is
 * 32 or 64: int32_t or int64_t. */
typedef struct fb_ops_positions {
    const void *data;
    int32_t bits;
} fb_ops_positions;

/* ---- norms ---- */

typedef enum fb_ops_norm { FB_OPS_LAYER_NORM = 0, FB_OPS_RMS_NORM = 1 } fb_ops_norm;

/* out[r] = (x[r] - mean) / sqrt(variance + eps) * weight + bias. x, out [rows, cols]; weight, bias [1, cols];
 * bias NULL: none. out may be x. */
FB_API fb_status fb_ops_layer_norm(fb_ops *ops, void *stream, const fb_ops_tensor *x,
                                   const fb_ops_tensor *weight, const fb_ops_tensor *bias, float eps,
                                   const fb_ops_tensor *out, fb_error *err);

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. Shapes as above. out may be x. */
FB_API fb_status fb_ops_rms_norm(fb_ops *ops, void *stream, const fb_ops_tensor *x,
                                 const fb_ops_tensor *weight, float eps, const fb_ops_tensor *out,
                                 fb_error *err);

/* out = layer_norm(x) + residual. The norm is rounded before the addition. residual [rows, cols]. out may be
 * x or residual. */
FB_API fb_status fb_ops_layer_norm_residual(fb_ops *ops, void *stream, const fb_ops_tensor *x,
                                            const fb_ops_tensor *residual, const fb_ops_tensor *weight,
                                            const fb_ops_tensor *bias, float eps, const fb_ops_tensor *out,
                                            fb_error *err);

/* sum = terms[0] + terms[1], or (terms[0] + terms[1]) + terms[2], rounded after each addition; then
 * outs[k] = norm(sum) with weights[k] and biases[k]. `term_count` is 2 or 3, `norm_count` 1 or 2. All of
 * terms, sum and outs are [rows, cols]; weights, biases [1, cols]. biases NULL, or data NULL: no bias; an RMS
 * norm has none. sum and outs may each be one of the terms, but not the same one. */
FB_API fb_status fb_ops_add_norm(fb_ops *ops, void *stream, const fb_ops_tensor *terms, int32_t term_count,
                                 fb_ops_norm norm, const fb_ops_tensor *weights, const fb_ops_tensor *biases,
                                 int32_t norm_count, float eps, const fb_ops_tensor *sum,
                                 const fb_ops_tensor *outs, fb_error *err);

/* ---- elementwise ---- */

/* out = (a + b) + c, rounded after each addition. All are [rows, cols]. out may be any of them. */
FB_API fb_status fb_ops_add3(fb_ops *ops, void *stream, const fb_ops_tensor *a, const fb_ops_tensor *b,
                             const fb_ops_tensor *c, const fb_ops_tensor *out, fb_error *err);

/* out = silu(gate) * up, with silu(x) = x / (1 + exp(-x)), rounded before the product. All are [rows, cols].
 * out may be gate or up. */
FB_API fb_status fb_ops_silu_mul(fb_ops *ops, void *stream, const fb_ops_tensor *gate,
                                 const fb_ops_tensor *up, const fb_ops_tensor *out, fb_error *err);

/* ---- projections ---- */

typedef enum fb_ops_activation {
    FB_OPS_NONE = 0,
    FB_OPS_GELU = 1,      /* x * Phi(x) */
    FB_OPS_GELU_TANH = 2, /* its approximation by tanh */
    FB_OPS_SILU = 3
} fb_ops_activation;

/* out = activation(x * weight^T + bias). x [rows, inputs]; weight [outputs, inputs]; bias [1, outputs] or
 * NULL; out [rows, outputs]. */
FB_API fb_status fb_ops_linear_bias_act(fb_ops *ops, void *stream, const fb_ops_tensor *x,
                                        const fb_ops_tensor *weight, const fb_ops_tensor *bias,
                                        fb_ops_activation activation, const fb_ops_tensor *out,
                                        fb_error *err);

/* out = activation(norm(x) * weight^T + bias), without storing the normalised x on the CPU, and on a GPU for
 * up to 8 rows. norm_weight [1, inputs]; norm_bias [1, inputs], or NULL; the rest as above. */
FB_API fb_status fb_ops_norm_linear(fb_ops *ops, void *stream, const fb_ops_tensor *x, fb_ops_norm norm,
                                    const fb_ops_tensor *norm_weight, const fb_ops_tensor *norm_bias,
                                    float eps, const fb_ops_tensor *weight, const fb_ops_tensor *bias,
                                    fb_ops_activation activation, const fb_ops_tensor *out, fb_error *err);

/* How swiglu is computed. All give the same bits. They differ in what is stored in between, in the stream's
 * workspace: VECTOR stores both projections, then computes silu(gate) * up as one elementwise op.
 * ACCUMULATOR applies silu to the sums of the first projection before they are stored, and then multiplies.
 * DUAL computes both projections together, and stores only the product. */
typedef enum fb_ops_strategy { FB_OPS_VECTOR = 0, FB_OPS_ACCUMULATOR = 1, FB_OPS_DUAL = 2 } fb_ops_strategy;

/* out = silu(x * w1^T) * (x * w3^T). x [rows, inputs]; w1, w3 [outputs, inputs]; out [rows, outputs]. */
FB_API fb_status fb_ops_swiglu(fb_ops *ops, void *stream, const fb_ops_tensor *x, const fb_ops_tensor *w1,
                               const fb_ops_tensor *w3, fb_ops_strategy strategy, const fb_ops_tensor *out,
                               fb_error *err);

/* ---- attention ---- */

/* Rotates pairs (i, i + rotary/2) of each head's first `rotary` elements by position * frequency[i], as
 * GPT-NeoX and Llama of Hugging Face do, and copies the others:
 *
 *     out[i]              = x[i] * cos - x[i + rotary/2] * sin
 *     out[i + rotary/2]   = x[i + rotary/2] * cos + x[i] * sin
 *
 * x, out [rows, heads, width]; `rotary` is even, at least 2, at most width and 512. frequencies [rotary / 2],
 * in host memory; NULL: theta^(-2 i / rotary). The angle is computed in double. positions: of each row,
 * required. out may be x. */
FB_API fb_status fb_ops_rope(fb_ops *ops, void *stream, const fb_ops_heads *x, fb_ops_positions positions,
                             int32_t rotary, double theta, const double *frequencies, const fb_ops_heads *out,
                             fb_error *err);

/* out[r, h] = softmax(scale * q[r, h] . k[0 … p, g]) * v[0 … p, g], where p is the position of row r, and g
 * is h / (heads / kv_heads): neighbouring query heads share a KV head. q, out [rows, heads, width]; k, v
 * [context, kv_heads, width], of q's dtype; width is at most 256. All rows belong to one sequence.
 *
 * positions: ascending from row to row, below `context`. data NULL: the rows are the last ones,
 * p = context - rows + r. The CPU checks positions. A GPU cannot: there, those outside the context are
 * treated as the nearest one inside.
 *
 * `exact`: scores and probabilities are rounded as if stored, as by separate ops. Otherwise one pass with an
 * online softmax, which rounds only the result, and is faster.
 *
 * Kernels have their own layout of k and v. On a GPU that is [kv_heads, context, width] without gaps within a
 * head (row_stride == width, one head_stride for both, a multiple of width), as a Hugging Face cache has it.
 * Such tensors are read in place. All others, and all on the CPU, are first copied to the workspace. */
FB_API fb_status fb_ops_attention(fb_ops *ops, void *stream, const fb_ops_heads *q, const fb_ops_heads *k,
                                  const fb_ops_heads *v, fb_ops_positions positions, float scale, bool exact,
                                  const fb_ops_heads *out, fb_error *err);

/* ---- quantised weights ---- */

/* A matrix of FB_Q8_0 or FB_Q4_0, in the layout of a device's kernels. */
typedef struct fb_ops_weight fb_ops_weight;

/* Encodes values [rows, cols] without gaps, in host memory, as FB_Q8_0 or FB_Q4_0: `blocks` is what
 * fb_ops_pack takes. The formula is that of `fusebox quantize` without a search. A value that is not finite
 * makes its block so. Runs on the calling thread. */
FB_API fb_status fb_ops_quantize_weight(fb_dtype dtype, const float *values, int64_t rows, int64_t cols,
                                        void *blocks, fb_error *err);

/* Packs a matrix [rows, cols] from blocks as GGUF files have them, in host memory: rows * cols / 32 blocks of
 * 34 bytes (Q8_0) or 18 bytes (Q4_0), without gaps; cols is a multiple of 32. The blocks are not needed
 * afterwards. Allocates and waits; not during a capture. */
FB_API fb_status fb_ops_pack(fb_ops *ops, fb_dtype dtype, const void *blocks, int64_t rows, int64_t cols,
                             fb_ops_weight **out, fb_error *err);
FB_API void fb_ops_weight_free(fb_ops_weight *weight);

/* 32 activations: q[i] * scale. `sum` is the sum of q. */
typedef struct fb_ops_block {
    float scale;
    int32_t sum;
    int8_t q[32];
} fb_ops_block;

/* Quantises each 32 elements of x [rows, cols]: scale = largest / 127, q = round(x / scale). A block with a
 * value that is not finite has the scale NaN. out: [rows, cols / 32] blocks at a multiple of 8 bytes; rows
 * begin `stride` blocks apart. */
FB_API fb_status fb_ops_quantize_q8(fb_ops *ops, void *stream, const fb_ops_tensor *x, fb_ops_block *out,
                                    int64_t stride, fb_error *err);

/* out = x * weight^T + bias, with a product of integers for each block of 32, and x quantised as by
 * fb_ops_quantize_q8. x [rows, cols]; bias [1, weight's rows] or NULL; out [rows, weight's rows]. */
FB_API fb_status fb_ops_linear_q8_0(fb_ops *ops, void *stream, const fb_ops_tensor *x,
                                    const fb_ops_weight *weight, const fb_ops_tensor *bias,
                                    const fb_ops_tensor *out, fb_error *err);
FB_API fb_status fb_ops_linear_q4_0(fb_ops *ops, void *stream, const fb_ops_tensor *x,
                                    const fb_ops_weight *weight, const fb_ops_tensor *bias,
                                    const fb_ops_tensor *out, fb_error *err);

/* The same with x [rows, cols / 32] quantised already. The bits are those of the functions above. */
FB_API fb_status fb_ops_linear_blocks(fb_ops *ops, void *stream, const fb_ops_block *x, int64_t stride,
                                      const fb_ops_weight *weight, const fb_ops_tensor *bias,
                                      const fb_ops_tensor *out, fb_error *err);

/* ---- layers ---- */

/* A transformer layer as the engine runs it: norms, projections, attention with its cache, MLP, residuals.
 * The layer becomes a program of plain ops, to which the fuses are applied. A layer may be used by several
 * threads; their calls take turns. */
typedef struct fb_ops_layer fb_ops_layer;

/* `name` is the tensor's name in a checkpoint, after the number of the layer: "attention.dense.weight". */
typedef struct fb_ops_named {
    const char *name;
    fb_ops_tensor tensor;
} fb_ops_named;

/* `config`: the text of a Hugging Face config.json (GPT-NeoX, Llama, GPT-2). `weights` [count]: the layer's
 * tensors. A matrix is [outputs, inputs] without gaps, also for GPT-2, whose checkpoints have it transposed.
 * Their memory must stay valid; its contents may change between runs. `act`: dtype of activations and cache.
 * `frequencies`: of rotary positions, as many as the config says; NULL: the config's. `fuse`: "none", "all"
 * or a list as in `fusebox run --fuse`; only fuses of a layer's own ops apply. `exact`: bit-identical
 * variants only. */
FB_API fb_status fb_ops_layer_create(fb_ops *ops, const char *config, const fb_ops_named *weights,
                                     int32_t count, const double *frequencies, int32_t frequency_count,
                                     fb_dtype act, const char *fuse, bool exact, fb_ops_layer **out,
                                     fb_error *err);
FB_API void fb_ops_layer_free(fb_ops_layer *layer);

/* Where the rows of a step stand: their positions, and the angles of rotary positions. All layers of a model
 * share it, so that it is computed once a step. `sequences` sequences have `rows` rows each; positions
 * [sequences, rows], one after the other within a sequence; data NULL: from `first` on, in each. A GPU treats
 * positions outside of the `capacity` slots as the nearest one inside. `places`: fb_ops_places_bytes bytes in
 * memory of the device, at a multiple of 256. */
FB_API int64_t fb_ops_places_bytes(const fb_ops_layer *layer, int64_t total_rows);
/* Where in `places` the angles begin, in bytes: [total_rows, rotary] floats, a row's cosines before its
 * sines.
 * `*rotary`: elements of a head that rotate; 0: none do. */
FB_API int64_t fb_ops_places_angles(const fb_ops_layer *layer, int64_t total_rows, int32_t *rotary);
FB_API fb_status fb_ops_places(fb_ops_layer *layer, void *stream, fb_ops_positions positions, int64_t first,
                               int64_t sequences, int64_t rows, int64_t capacity, void *places,
                               fb_error *err);

/* k and v [sequences, heads, capacity, width] of the layer's dtype, as Hugging Face caches have them; heads
 * are its KV heads; strides in elements. A position is a slot. No position of the step may be at or beyond
 * `capacity`. */
typedef struct fb_ops_cache {
    void *k, *v;
    int64_t sequences, heads, capacity, width, sequence_stride, head_stride;
} fb_ops_cache;

/* Runs the layer: appends k and v of the rows to the cache, and writes the new hidden state. x, out
 * [sequences * rows, hidden], of the layer's dtype; out must not be x. `places` was filled for the same
 * sequences and rows by any layer of the model. */
FB_API fb_status fb_ops_layer_run(fb_ops_layer *layer, void *stream, const fb_ops_tensor *x,
                                  const void *places, const fb_ops_cache *cache, const fb_ops_tensor *out,
                                  fb_error *err);

/* One fuse of a layer. */
typedef struct fb_ops_layer_fuse {
    const char *name;
    const char *why_not; /* why it is not on, in a few words; NULL: it is */
    bool bit;            /* bit-identical to the plain ops; otherwise within a bound */
    int64_t each, calls; /* ops that it made: in one run, and those that ran so far */
} fb_ops_layer_fuse;

/* Fuse `index`, from 0 on; `*more` is false when there is none. And the layer's plan as text, to be released
 * with fb_free. */
FB_API fb_status fb_ops_layer_fuse_at(fb_ops_layer *layer, int32_t index, fb_ops_layer_fuse *out, bool *more,
                                      fb_error *err);
FB_API fb_status fb_ops_layer_print(const fb_ops_layer *layer, char **text, fb_error *err);

#ifdef __cplusplus
}
#endif
#endif
