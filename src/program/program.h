/* A model as a short list of ops: a prologue, a layer body that runs once a layer, an epilogue.
 *
 * Values are in single-assignment form: one op writes a value, once in a pass over its section. The one loop
 * of the program is explicit: `carry` says which value of the body becomes which input of the next pass.
 *
 * Every value is a matrix of [tokens, heads * width] inside a buffer, so that the q, k and v of a joint
 * projection are views of it: element (t, h, i) stands at t * (columns of the buffer) + offset + h * stride +
 * i. */
#ifndef FB_PROGRAM_PROGRAM_H
#define FB_PROGRAM_PROGRAM_H

#include "program/ops.h"

#define FB_MAX_OPS     40 /* in a section */
#define FB_MAX_VALUES  64
#define FB_MAX_SLOTS   48
#define FB_MAX_CARRIES 4
#define FB_NONE        (-1)

#define FB_ARGMAX_WIDTH 512

typedef enum fb_section { FB_PROLOGUE, FB_BODY, FB_EPILOGUE, FB_SECTIONS } fb_section;

typedef struct fb_value {
    char name[24];
    int32_t storage;      /* the value that owns the memory: itself, or the one that this is a view of */
    int64_t heads, width; /* width 0: one column for each position of the cache, as attention scores have */
    int64_t offset, stride;
    bool always_f32; /* stored in float32 whatever the activation dtype (float64 in a float64 run) */
} fb_value;

/* A weight that the program reads: one tensor, or one a layer. */
typedef struct fb_slot {
    char name[96];      /* tensor name; "{}" stands for the layer */
    int64_t rows, cols; /* as the op reads it, row-major; a vector has rows = 1 */
    bool per_layer;
    bool vector;     /* the tensor has one dimension */
    bool transposed; /* the file has [cols, rows] */
    fb_dtype dtype;  /* that the weight has in every layer; FB_DTYPE_COUNT: not known, or not the same */
} fb_slot;

typedef struct fb_op {
    fb_op_kind kind;
    int32_t in[FB_MAX_IN], out[FB_MAX_OUT]; /* values */
    int32_t weights[FB_MAX_WEIGHTS];        /* slots, or FB_NONE */
    /* An op of the body that belongs to the following layer reads that layer's weights, and in the last layer
     * these. */
    bool next_layer;
    int32_t last_weights[FB_MAX_WEIGHTS];
    uint32_t fuses; /* bits of the fuses that made it (fuse/fuse.h); 0 in a plain program */
    fb_op_attr attr;
} fb_op;

typedef struct fb_carry {
    int32_t next,
        from; /* value `from`, written in the body, is value `next` of the following pass and the epilogue */
} fb_carry;

typedef struct fb_program {
    fb_op ops[FB_SECTIONS][FB_MAX_OPS];
    int32_t op_count[FB_SECTIONS];
    fb_value values[FB_MAX_VALUES];
    int32_t value_count;
    fb_slot slots[FB_MAX_SLOTS];
    int32_t slot_count;
    fb_carry carries[FB_MAX_CARRIES];
    int32_t carry_count;

    int64_t layers, hidden, vocab, context;
    int64_t kv_heads, head_dim; /* of the cache: two rows of kv_heads * head_dim a token and layer */
    int32_t residual;           /* the value whose content after each pass is the layer's hidden state */
    int32_t final_norm;         /* the value that is the last hidden state */
    int32_t logits;             /* the value of all scores, or FB_NONE where only the best is computed: */
    int32_t best;               /* FB_ARGMAX_WIDTH floats a row: (score, column) of each lane; or FB_NONE */
    double *frequencies;        /* of rope, owned; NULL without it */
} fb_program;

void fb_program_clear(fb_program *program);

/* An op without inputs, outputs and weights. */
fb_op fb_op_new(fb_op_kind kind);

/* The slot of the head, whose product is the logits; FB_NONE: there is none. */
static inline int32_t fb_program_head(const fb_program *p) {
    for (int32_t i = 0; i < p->op_count[FB_EPILOGUE]; i++) {
        const fb_op *op = &p->ops[FB_EPILOGUE][i];
        if (op->kind == FB_OP_LINEAR && op->out[0] == p->logits) return op->weights[0];
    }
    return FB_NONE;
}

/* For a cache with sinks: attention gets its second query, rotated at positions of at most `limit`. A fault
 * of the caller if the program has no rotary positions. */
fb_status fb_program_add_sinks(fb_program *program, int64_t limit, fb_error *err);

/* The program as text: a header for each section, then one op a line with shapes. Released with free.
 * `fuse_name` gives the names of fb_op.fuses' bits; a plain program has none. */
typedef const char *(*fb_fuse_name_fn)(int fuse);
fb_status fb_program_print(const fb_program *program, fb_fuse_name_fn fuse_name, char **text, fb_error *err);

/* Whether `next`, which follows `op`, may begin in one thread while `op` still runs in another: what `op`
 * reads must then stay until the last op of a joined run is done. So it is where both work by KV heads, and
 * where the projections in `op` write the columns of a KV head side by side, one head after the other. */
bool fb_program_joined(const fb_program *program, const fb_op *op, const fb_op *next);

/* Whether `lanes` threads share whole KV heads in the ops that allow it: with fewer heads than threads some
 * would idle. */
bool fb_program_by_head(const fb_program *program, int32_t lanes);

/* Whether all threads must meet after an op. Not where a thread's part of the next op reads only what the
 * same thread's part of this one wrote: rope_kv after the projections, when the KV heads can be shared evenly
 * (each thread then takes its part of every projection by itself), and attention after rope_kv, when both
 * give each thread the same KV heads. */
bool fb_program_barrier(const fb_program *program, fb_section section, int32_t index, int32_t lanes);

/* Where each value lives: values whose lives do not overlap share a buffer, and an elementwise op writes over
 * an input that dies there. */
typedef struct fb_layout {
    int32_t buffer[FB_MAX_VALUES]; /* by value; views follow their storage */
    int32_t buffers;
    int64_t cols[FB_MAX_VALUES];         /* by buffer: elements a token, besides … */
    int64_t context_cols[FB_MAX_VALUES]; /* … this many for each position of the cache */
    bool always_f32[FB_MAX_VALUES];      /* by buffer */
} fb_layout;

/* Fails if a value is read before it is written or a carried value is overwritten while it is still read: a
 * fault of an architecture or of a fuse, never of a file. */
fb_status fb_layout_make(const fb_program *program, fb_layout *layout, fb_error *err);

#endif
