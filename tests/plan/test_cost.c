#include "plan/cost.h"

#include <stdlib.h>

#include "fuse/fuse.h"
#include "model/model.h"
#include "support/support.h"

/* The tiny checkpoints have hidden 64, 3 layers, 4 heads of 16, vocabulary 320 and float16 weights: two bytes
 * a weight; activations are float32, four bytes. */

typedef struct opened {
    fb_model *model;
    fb_plan *plan;
    fb_bound bound;
} opened;

static opened open_path(const char *path, uint32_t fuses, bool float_dot) {
    opened o = {.plan = malloc(sizeof(fb_plan))};
    fb_error err;
    assert_non_null(o.plan);
    assert_ok(fb_model_open(path, &o.model, &err), &err);
    fb_plan_options options = {.fuses = fuses, .greedy = true, .float_dot = float_dot};
    assert_ok(fb_plan_make(&o.model->spec->program, &options, o.plan, &err), &err);
    o.bound = (fb_bound){&o.plan->program, o.model->weights};
    return o;
}

static opened open_case(const char *name, uint32_t fuses) {
    char *path = fbt_format(FBT_GOLDENS "/%s", name);
    opened o = open_path(path, fuses, false);
    free(path);
    return o;
}

static void close_case(opened *o) {
    fb_model_free(o->model);
    free(o->plan);
}

/* Number `nth` op of the kind in the section. */
static fb_cost cost_of(const opened *o, fb_section section, fb_op_kind kind, int nth, const fb_shape *shape) {
    for (int32_t i = 0; i < o->plan->program.op_count[section]; i++)
        if (o->plan->program.ops[section][i].kind == kind && nth-- == 0)
            return fb_cost_of(&o->bound, section, i, shape);
    fail_msg("no such op");
    return (fb_cost){0};
}

static void assert_cost(fb_cost c, int64_t weights, int64_t read, int64_t written, int64_t kv,
                        int64_t flops) {
    assert_int_equal(c.weight_bytes, weights);
    assert_int_equal(c.act_read, read);
    assert_int_equal(c.act_written, written);
    assert_int_equal(c.kv_bytes, kv);
    assert_int_equal(c.flops, flops);
}

static const fb_shape step = {1, 9, 1, 2, FB_F32, FB_F32}; /* sees ten positions */

static void counts_neox(void **state) {
    (void)state;
    opened o = open_case("neox-parallel", 0);
    assert_cost(cost_of(&o, FB_PROLOGUE, FB_OP_EMBED, 0, &step), 64 * 2, 0, 64 * 4, 0, 0);
    assert_cost(cost_of(&o, FB_BODY, FB_OP_LAYERNORM, 0, &step), 2 * 64 * 2, 64 * 4, 64 * 4, 0, 8 * 64);
    /* qkv: 192 x 64 and a bias. */
    assert_cost(cost_of(&o, FB_BODY, FB_OP_LINEAR, 0, &step), (192 * 64 + 192) * 2, 64 * 4, 192 * 4, 0,
                2 * 192 * 64 + 192);
    assert_cost(cost_of(&o, FB_BODY, FB_OP_KV_APPEND, 0, &step), 0, 2 * 64 * 4, 0, 2 * 64 * 4, 0);
    /* Scores: ten keys of 64 elements, four heads of ten scores. */
    assert_cost(cost_of(&o, FB_BODY, FB_OP_ATTN_SCORES, 0, &step), 0, 64 * 4, 4 * 10 * 4, 10 * 64 * 4,
                2 * 10 * 64);
    assert_cost(cost_of(&o, FB_BODY, FB_OP_ADD, 0, &step), 0, 2 * 64 * 4, 64 * 4, 0, 64);
    assert_cost(cost_of(&o, FB_EPILOGUE, FB_OP_LINEAR, 0, &step), 320 * 64 * 2, 64 * 4, 320 * 4, 0,
                2 * 320 * 64);
    /* One worker computes a row. */
    assert_int_equal(cost_of(&o, FB_BODY, FB_OP_LAYERNORM, 0, &step).workers, 1);
    assert_int_equal(cost_of(&o, FB_BODY, FB_OP_LINEAR, 0, &step).workers, 2);
    close_case(&o);
}

static void counts_llama(void **state) {
    (void)state;
    opened o = open_case("llama-gqa-tied", 0); /* two KV heads for four of q; MLP 176 */
    assert_cost(cost_of(&o, FB_BODY, FB_OP_RMSNORM, 0, &step), 64 * 2, 64 * 4, 64 * 4, 0, 4 * 64);
    assert_cost(cost_of(&o, FB_BODY, FB_OP_LINEAR, 1, &step), 32 * 64 * 2, 64 * 4, 32 * 4, 0, 2 * 32 * 64);
    assert_cost(cost_of(&o, FB_BODY, FB_OP_ATTN_VALUES, 0, &step), 0, 4 * 10 * 4, 64 * 4, 10 * 32 * 4,
                2 * 10 * 64);
    assert_cost(cost_of(&o, FB_BODY, FB_OP_MUL, 0, &step), 0, 2 * 176 * 4, 176 * 4, 0, 176);
    close_case(&o);
}

static void counts_gpt2_in_prefill(void **state) {
    (void)state;
    opened o = open_case("gpt2", 0);
    const fb_shape many = {5, 0, 1, 2, FB_F32, FB_F32}; /* 1 + 2 + 3 + 4 + 5 positions seen */
    assert_cost(cost_of(&o, FB_PROLOGUE, FB_OP_EMBED_POSITION, 0, &many), 5 * 64 * 2, 0, 5 * 64 * 4, 0, 0);
    assert_cost(cost_of(&o, FB_BODY, FB_OP_ATTN_SCORES, 0, &many), 0, 5 * 64 * 4, 4 * 15 * 4, 5 * 64 * 4,
                2 * 15 * 64);
    /* Only the last row is scored; its weights are read all the same. */
    assert_cost(cost_of(&o, FB_EPILOGUE, FB_OP_LINEAR, 0, &many), 320 * 64 * 2, 64 * 4, 320 * 4, 0,
                2 * 320 * 64);
    close_case(&o);
}

static void counts_fused(void **state) {
    (void)state;
    opened o = open_case("neox-parallel", FB_FUSE_ALL);
    /* norm, qkv, norm, up, gelu: x in, qkv and act out; nothing in between. */
    assert_cost(cost_of(&o, FB_BODY, FB_OP_LINEAR_GROUP, 0, &step),
                (192 * 64 + 192 + 256 * 64 + 256 + 4 * 64) * 2, 64 * 4, (192 + 256) * 4, 0,
                2 * 448 * 64 + 448 + 2 * 8 * 64 + FB_FLOPS_FUNCTION * 256);
    assert_cost(cost_of(&o, FB_BODY, FB_OP_ATTN_FLASH, 0, &step), 0, 64 * 4, 64 * 4, 2 * 10 * 64 * 4,
                4 * 10 * 64 + 4 * 10 * (3 + FB_FLOPS_FUNCTION));
    /* A worker's best and its column. */
    assert_int_equal(cost_of(&o, FB_EPILOGUE, FB_OP_HEAD_ARGMAX, 0, &step).act_written, 2 * 8);
    close_case(&o);
}

/* A cache of 16 bits under float32 activations: half the bytes of the cache, as many of everything else. */
static void counts_the_cache(void **state) {
    (void)state;
    const fb_shape half = {1, 9, 1, 2, FB_F32, FB_F16};
    opened o = open_case("neox-parallel", FB_FUSE_ALL);
    assert_cost(cost_of(&o, FB_BODY, FB_OP_ATTN_FLASH, 0, &half), 0, 64 * 4, 64 * 4, 2 * 10 * 64 * 2,
                4 * 10 * 64 + 4 * 10 * (3 + FB_FLOPS_FUNCTION));
    assert_int_equal(cost_of(&o, FB_BODY, FB_OP_ROPE_KV, 0, &half).kv_bytes, 2 * 64 * 2);
    close_case(&o);
}

static void assert_work(fb_cost c, fb_term term, double calls, double units) {
    assert_true(c.work[term].calls == calls && c.work[term].units == units);
}

/* Q8_0: 34 bytes for 32 weights; a row of 64 is 2 blocks of 40 bytes. Of two workers each has half. */
static void counts_quantised(void **state) {
    (void)state;
    static const char path[] = "tests/data/gguf/neox-parallel-q8_0.gguf";
    const int64_t qkv = 192 * 64 / 32 * 34 + 192 * 4;
    opened o = open_path(path, 0, false);
    fb_cost quantize = cost_of(&o, FB_BODY, FB_OP_QUANTIZE, 0, &step);
    assert_cost(quantize, 0, 64 * 4, 80, 0, 4 * 64);
    assert_work(quantize, FB_TERM_QUANTIZE, 1, 32);
    fb_cost linear = cost_of(&o, FB_BODY, FB_OP_LINEAR, 0, &step);
    assert_cost(linear, qkv, 80, 192 * 4, 0, 2 * 192 * 64 + 192);
    assert_work(linear, FB_TERM_ONE_Q8_0, 96, 96 * 64);
    assert_work(linear, FB_TERM_QUANTIZE, 0, 0);
    assert_work(linear, FB_TERM_DECODED, 0, 0);
    close_case(&o);
    /* Inside the projection: every worker quantises the whole row. */
    o = open_path(path, FB_FUSE_BIT(FB_FUSE_QUANT_GEMM), false);
    linear = cost_of(&o, FB_BODY, FB_OP_LINEAR, 0, &step);
    assert_cost(linear, qkv, 64 * 4, 192 * 4, 0, 2 * 192 * 64 + 192 + 4 * 64);
    assert_work(linear, FB_TERM_ONE_Q8_0, 96, 96 * 64);
    assert_work(linear, FB_TERM_QUANTIZE, 1, 64);
    close_case(&o);
    o = open_path(path, 0, true);
    linear = cost_of(&o, FB_BODY, FB_OP_LINEAR, 0, &step);
    assert_work(linear, FB_TERM_ONE_F32, 96, 96 * 64);
    assert_work(linear, FB_TERM_DECODED, 96, 96 * 64);
    assert_work(linear, FB_TERM_ONE_Q8_0, 0, 0);
    close_case(&o);
}

/* The projection qkv is floats in one of three layers: an op's cost is the mean, and each layer has its own.
 */
static void counts_layers(void **state) {
    (void)state;
    const int64_t bias = 192 * 4, q8 = 192 * 64 / 32 * 34 + bias, f16 = 192 * 64 * 2 + bias;
    for (int within = 0; within < 2; within++) { /* quantised before, or by the projection */
        opened o = open_path("tests/data/gguf/neox-parallel-q8_0.gguf", 0, false);
        fb_plan_options options = {.fuses = within ? FB_FUSE_BIT(FB_FUSE_QUANT_GEMM) : 0, .greedy = true};
        fb_program *p = &o.plan->program;
        fb_error err;
        int32_t qkv = 0;
        while (p->ops[FB_BODY][qkv].kind != FB_OP_LINEAR) qkv++;
        o.model->weights[p->ops[FB_BODY][qkv].weights[0] * p->layers + 1].dtype = FB_F16;
        fb_model_note_dtypes(o.model);
        assert_ok(fb_plan_make(&o.model->spec->program, &options, o.plan, &err), &err);
        for (qkv = 0; p->ops[FB_BODY][qkv].kind != FB_OP_LINEAR;) qkv++;
        const int64_t prepared = within ? 4 * 64 : 0, blocks = within ? 64 * 4 : 80;
        for (int64_t layer = 0; layer < 3; layer++) {
            fb_cost c = fb_cost_in(&o.bound, FB_BODY, qkv, layer, &step);
            bool floats = layer == 1;
            assert_cost(c, floats ? f16 : q8, floats ? 64 * 4 : blocks, 192 * 4, 0,
                        2 * 192 * 64 + 192 + (floats ? 0 : prepared));
            assert_work(c, floats ? FB_TERM_ONE_F16 : FB_TERM_ONE_Q8_0, 96, 96 * 64);
            assert_work(c, floats ? FB_TERM_ONE_Q8_0 : FB_TERM_ONE_F16, 0, 0);
            assert_work(c, FB_TERM_DECODED, 0, 0);
        }
        fb_cost mean = fb_cost_of(&o.bound, FB_BODY, qkv, &step);
        assert_int_equal(mean.weight_bytes, (2 * q8 + f16) / 3);
        assert_int_equal(mean.act_read, (2 * blocks + 64 * 4 + 1) / 3);
        assert_work(mean, FB_TERM_ONE_Q8_0, 64, 64 * 64);
        assert_work(mean, FB_TERM_ONE_F16, 32, 32 * 64);
        close_case(&o);
    }
}

/* Segments of one input prepare it once, unless one quantises it and the other one does not. */
static void counts_an_input_once(void **state) {
    (void)state;
    opened o = open_path("tests/data/gguf/neox-parallel-q8_0.gguf",
                         FB_FUSE_BIT(FB_FUSE_QUANT_GEMM) | FB_FUSE_BIT(FB_FUSE_QKV_UP), false);
    fb_op *op = o.plan->program.ops[FB_BODY];
    while (op->kind != FB_OP_LINEAR_GROUP) op++;
    assert_work(cost_of(&o, FB_BODY, FB_OP_LINEAR_GROUP, 0, &step), FB_TERM_QUANTIZE, 2, 2 * 64);
    op->in[1] = op->in[0];
    fb_cost one = cost_of(&o, FB_BODY, FB_OP_LINEAR_GROUP, 0, &step);
    assert_work(one, FB_TERM_QUANTIZE, 1, 64);
    op->attr.segment[1].dot = FB_DOT_FLOAT;
    fb_cost mixed = cost_of(&o, FB_BODY, FB_OP_LINEAR_GROUP, 0, &step);
    assert_work(mixed, FB_TERM_QUANTIZE, 1, 64);
    assert_true(mixed.foreign == 2 * one.foreign && one.foreign > 0);
    close_case(&o);
}

/* Fusing never changes the weights or the cache that are read. */
static void fusing_keeps_weights(void **state) {
    (void)state;
    for (int c = 0; fbt_cases[c]; c++) {
        int64_t weights[2] = {0}, acts[2] = {0};
        for (int fused = 0; fused < 2; fused++) {
            opened o = open_case(fbt_cases[c], fused ? FB_FUSE_ALL : 0);
            for (int s = 0; s < FB_SECTIONS; s++)
                for (int32_t i = 0; i < o.plan->program.op_count[s]; i++) {
                    fb_cost cost = fb_cost_of(&o.bound, (fb_section)s, i, &step);
                    weights[fused] += cost.weight_bytes;
                    acts[fused] += cost.act_read + cost.act_written;
                }
            close_case(&o);
        }
        assert_int_equal(weights[0], weights[1]);
        assert_true(acts[1] < acts[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_neox),
        cmocka_unit_test(counts_llama),
        cmocka_unit_test(counts_gpt2_in_prefill),
        cmocka_unit_test(counts_quantised),
        cmocka_unit_test(counts_layers),
        cmocka_unit_test(counts_an_input_once),
        cmocka_unit_test(counts_fused),
        cmocka_unit_test(counts_the_cache),
        cmocka_unit_test(fusing_keeps_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
