/* Patterns over ops, and functions that rewrite what they match. */
#ifndef FB_FUSE_MATCH_H
#define FB_FUSE_MATCH_H

#include "fuse/fuse.h"

#define FB_MAX_NODES 4
#define FB_ANY       (-1)

#define FB_KIND(kind) (1ull << (FB_OP_##kind))

/* Input `input` (or any input) of node `reader` is a whole output of node `writer`, not a view of it. `sole`:
 * nothing else reads that output. */
typedef struct fb_edge {
    int8_t reader, input, writer;
    bool sole;
} fb_edge;

typedef struct fb_match {
    fb_program *program;
    fb_section section;
    int32_t op[FB_MAX_NODES]; /* indices into the section */
    const fb_plan_options *options;
} fb_match;

typedef struct fb_pattern {
    fb_fuse_id fuse;
    fb_section section;
    int32_t nodes;
    uint64_t kinds[FB_MAX_NODES]; /* the op kinds that a node may be */
    fb_edge edges[FB_MAX_NODES];
    bool (*condition)(const fb_match *match); /* or NULL */
    /* False: the rewrite is not possible. The program is then restored, as it is if the result has no valid
     * layout. */
    bool (*rewrite)(const fb_match *match);
    const char *needs; /* the reason if nothing matches: "no gated MLP" */
} fb_pattern;

/* The pattern table, in the order of the fuses. */
extern const fb_pattern fb_pattern_table[];
extern const int32_t fb_pattern_count;

/* Applies the pattern once. False: it matches nowhere. */
bool fb_pattern_apply(const fb_pattern *pattern, fb_program *program, const fb_plan_options *options);

/* ---- for conditions and rewrites ---- */

fb_op *fb_match_op(const fb_match *match, int node);

/* The op of the section that writes `value` (its storage), or FB_NONE. */
int32_t fb_op_writing(const fb_program *program, fb_section section, int32_t value);
/* How many times ops of all sections read `value` or a view of its storage. A carry counts as a read. */
int32_t fb_value_reads(const fb_program *program, int32_t value);
/* Whether some op of `kinds` reads `value` or a view of its storage. */
bool fb_value_feeds(const fb_program *program, fb_section section, int32_t value, uint64_t kinds);

/* A new op of `kind`, without inputs, outputs and weights, marked with `fuse`. */
fb_op fb_match_new(fb_op_kind kind, fb_fuse_id fuse);

/* Replaces all matched nodes by `op`, which takes over the marks of their fuses, and sorts the section. False
 * if the ops cannot be ordered: one node depends on another through an op outside the match. */
bool fb_match_replace(const fb_match *match, const fb_op *op, int nodes);

bool fb_op_remove(fb_program *program, fb_section section, int32_t index);
void fb_value_replace(fb_program *program, int32_t old, int32_t by);         /* in every op's inputs */
int32_t fb_value_new(fb_program *program, int32_t like, const char *suffix); /* FB_NONE: the table is full */

/* Sorts a section topologically; stable. False if there is a cycle. */
bool fb_section_sort(fb_program *program, fb_section section);

/* Rewrites, by family. */
bool fb_rewrite_head_argmax(const fb_match *match);
bool fb_rewrite_head_screen(const fb_match *match);
bool fb_rewrite_attention(const fb_match *match);
bool fb_rewrite_rope_kv(const fb_match *match);
bool fb_condition_rope_kv(const fb_match *match);
bool fb_rewrite_quant_gemm(const fb_match *match);
bool fb_rewrite_swiglu_dual(const fb_match *match);
bool fb_rewrite_swiglu_vec(const fb_match *match);
bool fb_rewrite_linear_act(const fb_match *match);
bool fb_rewrite_down_add(const fb_match *match);
bool fb_rewrite_down_add_parallel(const fb_match *match);
bool fb_rewrite_group(const fb_match *match);
bool fb_condition_qkv(const fb_match *match);
bool fb_condition_qkv_up(const fb_match *match);
bool fb_condition_same_input(const fb_match *match);
bool fb_condition_gate(const fb_match *match);
bool fb_condition_no_gate(const fb_match *match);
bool fb_condition_router(const fb_match *match);
bool fb_rewrite_router(const fb_match *match);
bool fb_rewrite_experts_gated(const fb_match *match);
bool fb_rewrite_experts_sum(const fb_match *match);
bool fb_rewrite_norm_add(const fb_match *match);
bool fb_condition_greedy(const fb_match *match);
bool fb_condition_screen(const fb_match *match);
bool fb_condition_norm_linear(const fb_match *match);
bool fb_rewrite_norm_linear(const fb_match *match);
bool fb_rewrite_add3(const fb_match *match);
bool fb_rewrite_add_norm(const fb_match *match);
bool fb_condition_across(const fb_match *match);
bool fb_rewrite_add_norm_across(const fb_match *match);

#endif
