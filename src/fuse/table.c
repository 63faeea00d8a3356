/* The fuse table and the pattern table. Adding a fuse: a row in FB_FUSES, one or more rows here, a rewrite, a
 * kernel, a test (docs/adding-a-fuse.md). */
#include "fuse/match.h"

const fb_fuse fb_fuse_table[FB_FUSE_COUNT] = {
#define X(ID, name, class, text) [FB_FUSE_##ID] = {#name, text, FB_EXACT_##class},
    FB_FUSES(X)
#undef X
};

const char *fb_fuse_name(int fuse) { return fb_fuse_table[fuse].name; }

#define K(kind) FB_KIND(kind)
#define LINEARS (K(LINEAR) | K(LINEAR_GROUP))
#define NORMS   (K(LAYERNORM) | K(RMSNORM))
#define ACTS    (K(SILU) | K(GELU) | K(GELU_TANH))
#define SUMS    (K(ADD) | K(ADD3))

/* Each row has three lines: the nodes; the edges {reader, its input, writer, sole}; the functions and the
 * reason. */
/* clang-format off */
const fb_pattern fb_pattern_table[] = {
    {FB_FUSE_HEAD_SCREEN, FB_EPILOGUE, 1, {K(LINEAR)},
     {{0}},
     fb_condition_screen, fb_rewrite_head_screen, "the logits are wanted, or a head that has no copy in 8 bits"},

    {FB_FUSE_HEAD_ARGMAX, FB_EPILOGUE, 1, {K(LINEAR)},
     {{0}},
     fb_condition_greedy, fb_rewrite_head_argmax, "the logits are wanted (sampling, or a step that shows them)"},

    {FB_FUSE_ATTN_FLASH, FB_BODY, 3, {K(ATTN_SCORES), K(SOFTMAX), K(ATTN_VALUES)},
     {{1, 0, 0, true}, {2, 0, 1, true}},
     NULL, fb_rewrite_attention, "no attention"},

    {FB_FUSE_ROPE_KV, FB_BODY, 3, {K(ROPE), K(ROPE), K(KV_APPEND)},
     {{2, 0, 1, true}},
     fb_condition_rope_kv, fb_rewrite_rope_kv, "no rotary positions"},

    {FB_FUSE_QUANT_GEMM, FB_BODY, 2, {K(QUANTIZE), LINEARS | K(EXPERT_LINEAR)},
     {{1, FB_ANY, 0, false}},
     NULL, fb_rewrite_quant_gemm, "no quantised weights"},

    {FB_FUSE_QUANT_GEMM, FB_EPILOGUE, 2, {K(QUANTIZE), LINEARS | K(HEAD_ARGMAX)},
     {{1, 0, 0, false}},
     NULL, fb_rewrite_quant_gemm, "no quantised weights"},

    {FB_FUSE_ROUTER, FB_BODY, 3, {NORMS, K(LINEAR), K(TOP_K)},
     {{1, 0, 0, false}, {2, 0, 1, true}},
     fb_condition_router, fb_rewrite_router, "no mixture of experts"},

    {FB_FUSE_EXPERTS, FB_BODY, 4, {K(EXPERT_LINEAR), ACTS, K(EXPERT_LINEAR), K(MUL)},
     {{1, 0, 0, true}, {3, FB_ANY, 1, true}, {3, FB_ANY, 2, true}},
     fb_condition_same_input, fb_rewrite_experts_gated, "no mixture of experts"},

    {FB_FUSE_EXPERTS, FB_BODY, 3, {K(EXPERT_LINEAR), K(EXPERT_SUM), K(ADD)},
     {{1, 0, 0, true}, {2, FB_ANY, 1, true}},
     NULL, fb_rewrite_experts_sum, "no mixture of experts"},

    {FB_FUSE_EXPERTS, FB_BODY, 2, {K(EXPERT_LINEAR), K(EXPERT_SUM)},
     {{1, 0, 0, true}},
     NULL, fb_rewrite_experts_sum, "no mixture of experts"},

    {FB_FUSE_SWIGLU_DUAL, FB_BODY, 4, {K(LINEAR), ACTS, K(LINEAR), K(MUL)},
     {{1, 0, 0, true}, {3, FB_ANY, 1, true}, {3, FB_ANY, 2, true}},
     fb_condition_same_input, fb_rewrite_swiglu_dual, "no gated MLP"},

    {FB_FUSE_SWIGLU_GEMM, FB_BODY, 2, {LINEARS, ACTS},
     {{1, 0, 0, true}},
     fb_condition_gate, fb_rewrite_linear_act, "no gated MLP"},

    {FB_FUSE_SWIGLU_VEC, FB_BODY, 2, {ACTS, K(MUL)},
     {{1, FB_ANY, 0, true}},
     NULL, fb_rewrite_swiglu_vec, "no gated MLP"},

    {FB_FUSE_DOWN_ADD, FB_BODY, 4, {LINEARS, LINEARS, K(ADD), K(ADD)},
     {{2, 0, 0, true}, {2, 1, 1, true}, {3, FB_ANY, 2, true}},
     NULL, fb_rewrite_down_add_parallel, "no projection into a sum"},

    {FB_FUSE_DOWN_ADD, FB_BODY, 2, {LINEARS, K(ADD)},
     {{1, FB_ANY, 0, true}},
     NULL, fb_rewrite_down_add, "no projection into a sum"},

    {FB_FUSE_BIAS_ACT, FB_BODY, 2, {LINEARS, K(GELU) | K(GELU_TANH)},
     {{1, 0, 0, true}},
     fb_condition_no_gate, fb_rewrite_linear_act, "no projection into a gelu"},

    {FB_FUSE_QKV, FB_BODY, 3, {K(LINEAR), K(LINEAR), K(LINEAR)},
     {{0}},
     fb_condition_qkv, fb_rewrite_group, "q, k and v are one projection already"},

    {FB_FUSE_QKV_UP, FB_BODY, 2, {LINEARS, LINEARS},
     {{0}},
     fb_condition_qkv_up, fb_rewrite_group, "serial residual: the MLP reads what attention left"},

    {FB_FUSE_NORM_LINEAR, FB_BODY, 2, {NORMS, LINEARS},
     {{1, FB_ANY, 0, false}},
     fb_condition_norm_linear, fb_rewrite_norm_linear, "no norm into a projection"},

    {FB_FUSE_NORM_ADD, FB_BODY, 2, {NORMS, K(ADD)},
     {{1, FB_ANY, 0, true}},
     NULL, fb_rewrite_norm_add, "no norm after a branch"},

    {FB_FUSE_ADD3, FB_BODY, 2, {K(ADD), K(ADD)},
     {{1, FB_ANY, 0, true}},
     NULL, fb_rewrite_add3, "serial residual: no sum of three"},

    {FB_FUSE_ADD_NORM, FB_BODY, 2, {SUMS, NORMS},
     {{1, 0, 0, false}},
     NULL, fb_rewrite_add_norm, "no sum into a norm"},

    {FB_FUSE_ADD_NORM, FB_BODY, 2, {SUMS, NORMS},
     {{0}},
     fb_condition_across, fb_rewrite_add_norm_across, "no sum into a norm"},
};
/* clang-format on */

const int32_t fb_pattern_count = sizeof fb_pattern_table / sizeof *fb_pattern_table;
