/* Names and row orders of GGUF files. The names expected here are written out, not read from the table. */
#include "arch/gguf_names.h"

#include <stdlib.h>
#include <string.h>

#include "arch/arch.h"
#include "support/support.h"

static void test_architectures(void **state) {
    (void)state;
    assert_string_equal(fb_gguf_architecture("gpt_neox"), "gptneox");
    assert_string_equal(fb_gguf_model_type("gptneox"), "gpt_neox");
    assert_string_equal(fb_gguf_architecture("llama"), "llama");
    assert_string_equal(fb_gguf_model_type("gpt2"), "gpt2");
    assert_null(fb_gguf_architecture("gptneox"));
    assert_string_equal(fb_gguf_architecture("mistral"), "llama");
    assert_string_equal(fb_gguf_model_type("llama"), "llama");
    assert_string_equal(fb_gguf_model_type("gemma3"), "gemma3_text");
    assert_null(fb_gguf_model_type("mamba"));
}

static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *model_type, *checkpoint, *gguf;
        fb_row_order order;
    } cases[] = {
        {"gpt_neox", "gpt_neox.embed_in.weight", "token_embd.weight", FB_ROWS_SAME},
        {"gpt_neox", "gpt_neox.layers.{}.attention.query_key_value.bias", "blk.{}.attn_qkv.bias",
         FB_ROWS_QKV},
        {"gpt_neox", "gpt_neox.layers.17.mlp.dense_4h_to_h.weight", "blk.17.ffn_down.weight", FB_ROWS_SAME},
        {"gpt_neox", "embed_out.weight", "output.weight", FB_ROWS_SAME},
        {"llama", "model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight", FB_ROWS_ROPE_PAIRS},
        {"llama", "model.layers.{}.self_attn.k_proj.bias", "blk.{}.attn_k.bias", FB_ROWS_ROPE_PAIRS},
        {"llama", "model.layers.3.self_attn.v_proj.weight", "blk.3.attn_v.weight", FB_ROWS_SAME},
        {"llama", "model.layers.3.post_attention_layernorm.weight", "blk.3.ffn_norm.weight", FB_ROWS_SAME},
        {"llama", "lm_head.weight", "output.weight", FB_ROWS_SAME},
        {"mistral", "model.layers.1.self_attn.k_proj.weight", "blk.1.attn_k.weight", FB_ROWS_ROPE_PAIRS},
        {"qwen2", "model.layers.1.self_attn.k_proj.bias", "blk.1.attn_k.bias", FB_ROWS_SAME},
        {"qwen3", "model.layers.1.self_attn.q_norm.weight", "blk.1.attn_q_norm.weight", FB_ROWS_SAME},
        {"gemma2", "model.layers.1.post_attention_layernorm.weight", "blk.1.post_attention_norm.weight",
         FB_ROWS_SAME},
        {"gemma3_text", "model.layers.1.pre_feedforward_layernorm.weight", "blk.1.ffn_norm.weight",
         FB_ROWS_SAME},
        {"phi3", "model.layers.1.mlp.gate_up_proj.weight", "blk.1.ffn_up.weight", FB_ROWS_SAME},
        {"phi3", "model.layers.1.self_attn.qkv_proj.weight", "blk.1.attn_qkv.weight", FB_ROWS_SAME},
        {"olmo2", "model.layers.1.post_feedforward_layernorm.weight", "blk.1.post_ffw_norm.weight",
         FB_ROWS_SAME},
        {"gpt2", "transformer.wpe.weight", "position_embd.weight", FB_ROWS_SAME},
        {"gpt2", "transformer.h.11.attn.c_attn.weight", "blk.11.attn_qkv.weight", FB_ROWS_SAME},
        {"gpt2", "transformer.h.11.mlp.c_proj.bias", "blk.11.ffn_down.bias", FB_ROWS_SAME},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[FB_GGUF_NAME_SIZE];
        fb_row_order order;
        assert_true(fb_gguf_name(cases[i].model_type, cases[i].checkpoint, name, &order));
        assert_string_equal(name, cases[i].gguf);
        assert_int_equal(order, cases[i].order);
        assert_true(fb_gguf_checkpoint_name(cases[i].model_type, cases[i].gguf, name, &order));
        assert_string_equal(name, cases[i].checkpoint);
        assert_int_equal(order, cases[i].order);
    }
}

static void test_names_unknown(void **state) {
    (void)state;
    static const char *const unknown[] = {"",
                                          "blk",
                                          "blk.",
                                          "blk..attn_q.weight",
                                          "blk.0.attn_q",
                                          "blk.0.attn_q.scale",
                                          "blk.0.attn_q.weight.",
                                          "blk.0.attn_qk.weight",
                                          "blk.x.attn_q.weight",
                                          "blk.-1.attn_q.weight",
                                          "output_norm_2.weight",
                                          "position_embd.weight",
                                          FB_GGUF_ROPE_FREQS};
    char name[FB_GGUF_NAME_SIZE], number[200];
    fb_row_order order;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_false(fb_gguf_checkpoint_name("llama", unknown[i], name, &order));
    assert_false(fb_gguf_name("llama", "transformer.wte.weight", name, &order));
    /* A name that would not fit is no name. */
    memset(number, '7', sizeof number);
    memcpy(number, "blk.", 4);
    memcpy(number + sizeof number - 15, ".attn_q.weight", 15);
    assert_false(fb_gguf_checkpoint_name("llama", number, name, &order));
}

/* Every tensor that a program reads has a name, and comes back from it. */
static void test_slots(void **state) {
    (void)state;
    static const char *const cases[] = {
        "neox-parallel", "neox-serial",    "llama-mha", "llama-gqa-tied", "llama-llama3-bias",
        "gpt2",          "mistral-window", "qwen2",     "qwen3",          "gemma2",
        "gemma3",        "phi3",           "olmo2",     "granite",        "smollm3",
        "stablelm"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = fbt_format(FBT_GOLDENS "/%s/config.json", cases[i]);
        size_t size;
        char *json = fbt_file_read(path, &size);
        fb_error err;
        fb_spec *spec;
        assert_ok(fb_arch_describe(path, json, size, &spec, &err), &err);
        for (int32_t s = 0; s < spec->program.slot_count; s++) {
            char name[FB_GGUF_NAME_SIZE], back[FB_GGUF_NAME_SIZE];
            fb_row_order order;
            assert_true(fb_gguf_name(spec->architecture, spec->program.slots[s].name, name, &order));
            assert_true(fb_gguf_checkpoint_name(spec->architecture, name, back, &order));
            assert_string_equal(back, spec->program.slots[s].name);
        }
        fb_spec_free(spec);
        free(json);
        free(path);
    }
}

static void check_rows(fb_row_order order, int64_t head_dim, const int64_t *expected, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) assert_int_equal(fb_order_row(order, rows, head_dim, i), expected[i]);
}

static void test_rows(void **state) {
    (void)state;
    /* Two heads of six: elements 0, 1, 2 rotate with 3, 4, 5. */
    check_rows(FB_ROWS_ROPE_PAIRS, 6, (int64_t[]){0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}, 12);
    /* Two heads of two: q0 q0 k0 k0 v0 v0 q1 q1 k1 k1 v1 v1. */
    check_rows(FB_ROWS_QKV, 2, (int64_t[]){0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11}, 12);
    check_rows(FB_ROWS_SAME, 2, (int64_t[]){0, 1, 2, 3, 4}, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_architectures), cmocka_unit_test(test_names),
        cmocka_unit_test(test_names_unknown), cmocka_unit_test(test_slots),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
