/* What the kernel tests share: a rig is one call of one op on random data. Checking it runs the kernel of
 * every instruction set of this machine and holds it to three things:
 *
 *  - accuracy: against `ref` storing float64, an error of at most twice that of a naive float32 loop on the
 * same data, plus an ulp of the largest; 16-bit results are the rounding of such a value. Ops without
 * arithmetic to disagree about are `exact` instead: the bits of `ref`.
 *  - one result: any number of workers, in any order, any part of the rows, and (elementwise ops) in place
 * give the same bits.
 *  - manners: nothing outside the output is written, nothing outside the inputs is read. Outputs and scratch
 * are NaN before each run, and so is all that lies between rows or beyond the context; inputs are read-only
 * memory, and every buffer ends at a page that cannot be touched. */
#ifndef FB_TESTS_KERNEL_HARNESS_H
#define FB_TESTS_KERNEL_HARNESS_H

#include "backend/cpu/host/isa.h"
#include "base/pack.h"
#include "base/quant.h"
#include "support/support.h"

/* Tokens in a rig. Not a multiple of any tile. */
#define RIG_ROWS 24

/* Which test program checks an op: tests/backend/cpu/test_<family>.c */
#define KERNEL_FAMILIES(X)                                                                                   \
    X(EMBED, "embed")                                                                                        \
    X(EMBED_POSITION, "embed")                                                                               \
    X(ROPE_ANGLES, "rope")                                                                                   \
    X(LAYERNORM, "norm")                                                                                     \
    X(RMSNORM, "norm")                                                                                       \
    X(QUANTIZE, "quantize")                                                                                  \
    X(LINEAR, "linear")                                                                                      \
    X(ROPE, "rope")                                                                                          \
    X(KV_APPEND, "rope")                                                                                     \
    X(ATTN_SCORES, "attention")                                                                              \
    X(SOFTMAX, "attention")                                                                                  \
    X(ATTN_VALUES, "attention")                                                                              \
    X(GELU, "activation")                                                                                    \
    X(GELU_TANH, "activation")                                                                               \
    X(SILU, "activation")                                                                                    \
    X(SCALE, "activation")                                                                                   \
    X(SOFTCAP, "activation")                                                                                 \
    X(MUL, "elementwise")                                                                                    \
    X(ADD, "elementwise")                                                                                    \
    X(ADD3, "fused")                                                                                         \
    X(ADD_NORM, "fused")                                                                                     \
    X(NORM_ADD, "fused")                                                                                     \
    X(SWIGLU, "fused")                                                                                       \
    X(LINEAR_GROUP, "fused")                                                                                 \
    X(ROPE_KV, "fused")                                                                                      \
    X(ATTN_ROWS, "fused")                                                                                    \
    X(ATTN_FLASH, "fused")                                                                                   \
    X(HEAD_ARGMAX, "fused")                                                                                  \
    X(TOP_K, "experts")                                                                                      \
    X(EXPERT_LINEAR, "experts")                                                                              \
    X(EXPERT_SUM, "experts")                                                                                 \
    X(ROUTER, "experts")                                                                                     \
    X(EXPERT_GROUP, "experts")

extern const char *const kernel_family[FB_OP_COUNT];

/* Memory whose last byte is followed by a page that may not be touched. */
typedef struct fence {
    uint8_t *data;
    int64_t size;
    uint8_t *map;
    size_t mapped;
} fence;

/* The positions of a call's rows: one after the other, or with a gap after every second row. A kernel that
 * counts rows instead of reading their positions fails where there are gaps. */
typedef enum spacing { IN_ORDER, WITH_GAPS } spacing;
static inline int64_t place_of_row(int64_t first, spacing spaced, int64_t row) {
    return first + row + (spaced == WITH_GAPS ? row / 2 : 0);
}
static inline void place_rows(fb_row *row, int64_t rows, int64_t first, spacing spaced) {
    for (int64_t r = 0; r < rows; r++) row[r] = (fb_row){.position = place_of_row(first, spaced, r)};
}
/* The position after the last row's. */
static inline int64_t end_of_rows(const fb_call *call) { return call->row[call->rows - 1].position + 1; }

#define RIG_FENCES 8

typedef struct rig rig;

/* Computes the op in float32, one element after the other, into call->out[0], which is float32. */
typedef void (*naive_fn)(const fb_call *call);

struct rig {
    fb_op_kind kind;
    fb_call call; /* of RIG_ROWS tokens; the family fills it */
    fbt_random *random;
    bool skewed;          /* nothing is aligned: weights lie at odd addresses */
    bool exact;           /* the bits of ref */
    naive_fn naive;       /* unless exact */
    double naive_is_near; /* how far it may be from ref, relative to the largest element; 0: the usual */
    bool row_by_row;      /* rows differ in size: each row's errors are compared separately */
    int64_t scratch_floats;
    char text[128]; /* what this rig is, for failures */
    /* the harness's own */
    fence inputs[RIG_FENCES];
    int input_count;
    fence outputs[2], scratch;
    int output_count;
};

/* How the heads and rows of a view lie: elements between them that nobody may touch. */
typedef struct gaps {
    int64_t head, row;
} gaps;

void rig_start(rig *r, fb_op_kind kind, fbt_random *random, bool skewed);
/* The rows of the call, whose tokens are 0 until they are set. */
fb_row *rig_rows(rig *r, int64_t first, spacing spaced);
/* An input, NaN until it is filled. Width 0: as wide as the context, of which there are `capacity` columns.
 */
fb_view rig_input(rig *r, fb_dtype dtype, int64_t heads, int64_t width, gaps between, int64_t capacity);
fb_view rig_output(rig *r, fb_dtype dtype, int64_t heads, int64_t width, gaps between, int64_t capacity);
/* Normally distributed around `mean`, one in 64 an outlier twenty times as far from it. */
void rig_fill(rig *r, const fb_view *view, double mean, double deviation);
fb_weight rig_weight(rig *r, fb_dtype dtype, int64_t rows, int64_t cols, double mean, double deviation);
/* The same weight (Q8_0 or Q4_0), packed. */
fb_weight rig_packed(rig *r, fb_weight weight);
/* Rows of `width` elements as quantised blocks. */
fb_view rig_quantized(rig *r, int64_t width);
/* A cache in which the call's tokens and those before them are filled; with `output`, it is what the op
 * writes, and may be a ring: the one that the call has already. */
fb_kv rig_cache(rig *r, fb_dtype dtype, int64_t heads, int64_t capacity, int64_t width, double deviation,
                bool output);
/* Columns of row `row` of a view. */
int64_t rig_width(const fb_call *call, const fb_view *view, int64_t row);

/* Checks the rig on every instruction set, and releases it. */
void rig_check(rig *r);

/* Another backend with the same rigs: an "instruction set" that takes a CPU's calls. There a row's sums may
 * depend on the number of rows. So each number of rows is compared with the truth, and not with the bits of
 * another number. */
typedef struct kernel_device {
    const fb_isa *isas; /* instead of fb_isa_table: the device, then ref; a row without a name ends it */
    bool (*has)(const rig *r); /* whether the device has a kernel for it */
    int every;                 /* one in so many rigs is checked */
    bool all_rows;             /* check each rig with every number of rows, not with one of them in turn */
} kernel_device;
extern const kernel_device *kernel_device_under_test; /* NULL: the CPU */

/* Runs the family's tests, and one that fails if an op of the family was not checked on some instruction set.
 */
int kernel_run_family(const char *family, const struct CMUnitTest *tests, size_t count);

#endif
