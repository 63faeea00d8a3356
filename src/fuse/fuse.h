/* Fuses: each rewrites some ops of a program into one. A fuse has a name, a switch, an exactness class and
 * rows in a pattern table (table.c). What is fused is decided here, never in an architecture or a kernel. */
#ifndef FB_FUSE_FUSE_H
#define FB_FUSE_FUSE_H

#include "program/program.h"

/* X(ID, name, class, what becomes one)
 *
 * Fuses are applied from first to last. A fuse does not apply if an earlier one has taken its ops. So the
 * fuses that combine more ops come first. */
#define FB_FUSES(X)                                                                                          \
    X(HEAD_SCREEN, head_screen, BIT,                                                                         \
      "LM head + argmax, of the rows that a copy in 8 bits says can win (cpu)")                              \
    X(HEAD_ARGMAX, head_argmax, BIT, "LM head + argmax; greedy decoding never stores the logits")            \
    X(ATTN_FLASH, attn_flash, TOL, "scores + softmax + values, without a buffer of scores")                  \
    X(ROPE_KV, rope_kv, BIT, "rope on q and k + the append to the KV cache")                                 \
    X(QUANT_GEMM, quant_gemm, BIT, "quantising x + the projection(s) that multiply its integers")            \
    X(ROUTER, router, BIT, "norm + router + the choice of experts")                                          \
    X(EXPERTS, experts, BIT,                                                                                 \
      "experts: gate and up + silu or gelu + product; down + weighted sum + residual")                       \
    X(SWIGLU_DUAL, swiglu_dual, BIT, "gate and up projections + silu or gelu + product")                     \
    X(SWIGLU_GEMM, swiglu_gemm, BIT, "silu or gelu on the sums of the gate projection")                      \
    X(SWIGLU_VEC, swiglu_vec, BIT, "silu or gelu + product")                                                 \
    X(DOWN_ADD, down_add, BIT, "output projection(s) + bias + residual")                                     \
    X(BIAS_ACT, bias_act, BIT, "projection + bias + gelu")                                                   \
    X(QKV, qkv, BIT, "q, k and v projections")                                                               \
    X(QKV_UP, qkv_up, BIT, "qkv and MLP-up projections, where both read the same x")                         \
    X(NORM_LINEAR, norm_linear, BIT, "norm + the projection(s) that read it")                                \
    X(NORM_ADD, norm_add, BIT, "norm of a branch + the residual addition after it")                          \
    X(ADD3, add3, BIT, "(a + b) + c")                                                                        \
    X(ADD_NORM, add_norm, BIT, "residual add(s) + the next norm(s), across the layer boundary")              \
    X(GRAPH, graph, BIT, "all launches of a decode step, recorded once (cuda)")                              \
    X(STEP, step, TOL, "all layers of a decode step in one kernel (cuda)")

typedef enum fb_fuse_id {
#define X(ID, name, class, text) FB_FUSE_##ID,
    FB_FUSES(X)
#undef X
        FB_FUSE_COUNT
} fb_fuse_id;

/* BIT: bit-identical to the plain ops at the same dtype. TOL: differs within a stated bound; such a fuse has
 * a second, bit-identical variant for --exact. */
typedef enum fb_exactness { FB_EXACT_BIT, FB_EXACT_TOL } fb_exactness;

typedef struct fb_fuse {
    const char *name, *text;
    fb_exactness exactness;
} fb_fuse;

extern const fb_fuse fb_fuse_table[FB_FUSE_COUNT];

const char *fb_fuse_name(int fuse);

#define FB_FUSE_BIT(id) (1u << (id))
#define FB_FUSE_ALL     (FB_FUSE_BIT(FB_FUSE_COUNT) - 1)

/* Parses "none", "all", "auto", or a list such as "add_norm,bias_act" or "all,-qkv_up". Sets `automatic` if
 * the planner is to choose. */
fb_status fb_fuse_parse(const char *spec, uint32_t *fuses, bool *automatic, fb_error *err);

typedef struct fb_plan_options {
    uint32_t fuses;        /* bits of the fuses that may be applied */
    bool exact;            /* bit-identical variants only */
    bool greedy;           /* only the best token of a step is wanted, not the logits */
    bool float_dot;        /* multiply quantised weights with floats: the program has no quantize op */
    int64_t sinks, window; /* of a cache that forgets (fb_ring); 0: dense */
    int64_t context;       /* the most tokens that one sees; 0: unknown */
    /* What the device can do. The device is asked before a plan is made; a plan never changes afterwards. */
    bool screen;           /* the head has a screen (base/screen.h) on the device … */
    const char *no_screen; /* … or the reason why not; NULL: the pattern's own reason */
    bool screen_failed;    /* the head could have one, but there was no memory for it */
    bool graph;            /* the device can record a step */
    /* Why a program's layers cannot be one kernel on the device, in a few words; NULL: they can;
     * FB_NO_MEMORY: there was none to find out, and there is no plan. The function itself is NULL if no
     * program's layers can. */
    const char *(*step_why_not)(const void *arg, const fb_program *program);
    const void *step_arg;
} fb_plan_options;

/* A program after its fuses. The plain program still owns the frequencies. */
typedef struct fb_plan {
    fb_program program;
    uint32_t applied;
    int64_t calls[FB_FUSE_COUNT];      /* ops that the fuse made, in one step, with all layers counted */
    int64_t head_calls[FB_FUSE_COUNT]; /* those of them in the epilogue */
} fb_plan;

fb_status fb_plan_make(const fb_program *plain, const fb_plan_options *options, fb_plan *plan, fb_error *err);

/* Why a fuse, applied alone (options->fuses is ignored), does not apply to a plain program, in a few words;
 * NULL: it applies. */
const char *fb_fuse_why_not(const fb_program *plain, fb_fuse_id fuse, const fb_plan_options *options);

/* The fuses that must be on for this one to do anything: itself. `step` also needs the fuses that leave a
 * layer with no ops but those of its kernel. */
static inline uint32_t fb_fuse_required(int fuse) {
    return fuse == FB_FUSE_STEP ? FB_FUSE_ALL : FB_FUSE_BIT(fuse);
}

/* Whether a fuse applies together with quant_gemm but not alone: a norm whose projections read it quantised.
 */
bool fb_fuse_after_quant_gemm(const fb_program *plain, fb_fuse_id fuse, const fb_plan_options *options);

/* Inserts `quantize` ops before the linears whose matrices are quantised, in all layers or in some. And
 * whether a program has such matrices. fb_plan_make does this to a plain program. */
fb_status fb_program_quantize(fb_program *program, fb_error *err);
bool fb_program_quantizes(const fb_program *plain);

#endif
