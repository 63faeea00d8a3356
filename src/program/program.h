/* A model as a short list of ops: a prologue, a body that runs once per layer, and an epilogue.
 *
 * Values are in single-assignment form: one op writes a value, once in each pass over its section. The
 * program's only loop is explicit: a carry says which value of the body becomes which input of the next pass.
 *
 * Every value is a matrix [tokens, heads * width] inside a buffer. The q, k and v of a joint projection are
 * views of its output. Element (t, h, i) has index t * (columns of the buffer) + offset + h * stride + i. */
#ifndef FB_PROGRAM_PROGRAM_H
#define FB_PROGRAM_PROGRAM_H

#include "program/ops.h"

#define FB_MAX_OPS     40 /* in a section */
#define FB_MAX_VALUES  64
#define FB_MAX_SLOTS   48
#define FB_MAX_CARRIES 4
#define FB_MAX_KINDS   4
#define FB_MAX_LAYERS  4096
#define FB_NONE        (-1)

#define FB_ARGMAX_WIDTH 512

typedef enum fb_section { FB_PROLOGUE, FB_BODY, FB_EPILOGUE, FB_SECTIONS } fb_section;

typedef struct fb_value {
    char name[24];
    int32_t storage;      /* the value that owns the memory: this one, or the one that this is a view of */
    int64_t heads, width; /* width 0: one column per slot of the cache, as in attention scores */
    int64_t offset, stride;
    bool always_f32; /* stored in float32 for every activation dtype (in float64 in a float64 run) */
} fb_value;

/* A weight that the program reads: one tensor, or one tensor per layer. */
typedef struct fb_slot {
    char name[96];      /* tensor name; "{}" stands for the layer */
    int64_t rows, cols; /* as the op reads it, row-major; a vector has one row */
    bool per_layer;
    bool vector;     /* the tensor has one dimension */
    bool transposed; /* the file has [cols, rows] */
    bool plus_one;   /* a checkpoint stores the weight less 1 (a GGUF file does not) */
    /* Part of a tensor: rows `first` to first + rows - 1 of a tensor of `of` rows. `of` 0: the whole tensor.
     */
    int64_t first, of;
    /* How many matrices of rows / experts rows it is; 0: one. A checkpoint has a tensor for each, in whose
     * name
     * "[]" stands for the expert. A GGUF file has one tensor. */
    int64_t experts;
    uint32_t dtypes; /* bits of the dtypes that the weight has, in one layer or another; 0: unknown */
} fb_slot;

typedef struct fb_op {
    fb_op_kind kind;
    int32_t in[FB_MAX_IN], out[FB_MAX_OUT]; /* values */
    int32_t weights[FB_MAX_WEIGHTS];        /* slots, or FB_NONE */
    /* Set for an op of the body that computes something for the following layer. It reads that layer's
     * weights. In the last layer it reads `last_weights`. */
    bool next_layer;
    int32_t last_weights[FB_MAX_WEIGHTS];
    uint32_t fuses; /* bits of the fuses that made it (fuse/fuse.h); 0 in a plain program */
    fb_op_attr attr;
} fb_op;

typedef struct fb_carry {
    int32_t next,
        from; /* `from`, written in the body, becomes `next` of the following pass and of the epilogue */
} fb_carry;

/* How layers differ. All layers have the ops of the body; those of a kind share what is here. */
typedef struct fb_kind {
    int64_t window; /* a token sees so many positions, itself included; 0: all before it */
    int32_t
        angles; /* the value that ropes read instead of kind 0's, which the body names; FB_NONE: no rope */
} fb_kind;

typedef struct fb_program {
    fb_op ops[FB_SECTIONS][FB_MAX_OPS];
    int32_t op_count[FB_SECTIONS];
    fb_value values[FB_MAX_VALUES];
    int32_t value_count;
    fb_slot slots[FB_MAX_SLOTS];
    int32_t slot_count;
    fb_carry carries[FB_MAX_CARRIES];
    int32_t carry_count;

    fb_kind kinds[FB_MAX_KINDS];
    int32_t kind_count;             /* at least 1 */
    uint8_t kind_of[FB_MAX_LAYERS]; /* by layer */

    int64_t layers, hidden, vocab, context;
    int64_t kv_heads, head_dim; /* of the cache: each token has two rows of kv_heads * head_dim per layer */
    int32_t residual;           /* the value that holds a layer's hidden state after each pass */
    int32_t final_norm;         /* the value that holds the last hidden state */
    int32_t logits;             /* the value of all scores; FB_NONE if only the best is computed */
    int32_t best; /* FB_ARGMAX_WIDTH floats a row: (score, column) of each worker; FB_NONE if logits are
                     computed */
    double *frequencies; /* of rope, owned: [frequency_tables][rotary / 2]; NULL without rope */
    int32_t frequency_tables;
    /* Models whose frequencies depend on the context (longrope): a session of more tokens than this reads
     * table + 1 instead of each table. 0: it does not depend on it. */
    int64_t long_context;
} fb_program;

void fb_program_clear(fb_program *program);

/* An op without inputs, outputs and weights. */
fb_op fb_op_new(fb_op_kind kind);

/* The weight slot of the head, the linear that computes the logits; FB_NONE: there is none. */
static inline int32_t fb_program_head(const fb_program *p) {
    for (int32_t i = 0; i < p->op_count[FB_EPILOGUE]; i++) {
        const fb_op *op = &p->ops[FB_EPILOGUE][i];
        if (op->kind == FB_OP_LINEAR && op->out[0] == p->logits) return op->weights[0];
    }
    return FB_NONE;
}

/* For a session of more than long_context tokens: the angles are those of the long tables. */
void fb_program_use_long(fb_program *program);

/* For a cache with sinks: gives attention its second query, rotated at positions of at most `limit`. The
 * program must have rotary positions. */
fb_status fb_program_add_sinks(fb_program *program, int64_t limit, fb_error *err);

/* The program as text: a header for each section, then one op a line with shapes. Release it with free.
 * `fuse_name` gives the names of the bits in fb_op.fuses; a plain program has none. */
typedef const char *(*fb_fuse_name_fn)(int fuse);
fb_status fb_program_print(const fb_program *program, fb_fuse_name_fn fuse_name, char **text, fb_error *err);

/* Whether one worker may start `next` while another still runs `op`. That holds if both are divided by KV
 * head, or if `op` is a group of projections that writes the columns of each KV head together, head by head.
 * Buffers that `op` reads stay live until the joined run of ops ends. */
bool fb_program_joined(const fb_program *program, const fb_op *op, const fb_op *next);

/* Whether `workers` workers take whole KV heads each in the ops that allow it. With fewer heads than workers
 * some would be idle. */
bool fb_program_by_head(const fb_program *program, int32_t workers);

/* Whether all workers wait at a barrier after an op. They need not if a worker's part of the next op reads
 * only what the same worker wrote. This holds in two places. rope_kv after the projections, if the KV heads
 * divide evenly: each projection is then divided among the workers by itself. And attention after rope_kv, if
 * both give each worker the same KV heads. */
bool fb_program_barrier(const fb_program *program, fb_section section, int32_t index, int32_t workers);

/* The reason of a function that answers in words, when it found no memory. */
#define FB_NO_MEMORY "no memory"

/* The buffer of each value. Values that are not live at the same time share a buffer. An elementwise op
 * writes over an input that is not read later. */
typedef struct fb_layout {
    int32_t buffer[FB_MAX_VALUES]; /* by value; views follow their storage */
    int32_t buffers;
    int64_t cols[FB_MAX_VALUES];         /* by buffer: elements per token, and … */
    int64_t context_cols[FB_MAX_VALUES]; /* … additional elements per token for each slot of the cache */
    bool always_f32[FB_MAX_VALUES];      /* by buffer */
} fb_layout;

/* Fails if a value is read before it is written, or if a carried value is overwritten while it is still read.
 * Either is a mistake in an architecture or a fuse; no file can cause it. */
fb_status fb_layout_make(const fb_program *program, fb_layout *layout, fb_error *err);

#endif
