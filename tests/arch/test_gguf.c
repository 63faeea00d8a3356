/* The metadata of a GGUF file becomes a spec, or is refused by the key that would change the maths. */
#include "arch/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/gguf_writer.h"
#include "support/support.h"

typedef enum value_kind { NO_VALUE, INT, REAL, BOOL, TEXT, ARRAY } value_kind;

typedef struct value {
    const char *key;
    value_kind kind;
    double number;
    const char *text;
} value;

static const value llama[] = {
    {"general.architecture", TEXT, 0, "llama"},
    {"llama.context_length", INT, 64, NULL},
    {"llama.embedding_length", INT, 16, NULL},
    {"llama.block_count", INT, 1, NULL},
    {"llama.feed_forward_length", INT, 24, NULL},
    {"llama.attention.head_count", INT, 2, NULL},
    {"llama.attention.layer_norm_rms_epsilon", REAL, 1e-5, NULL},
    {0},
};
static const value neox[] = {
    {"general.architecture", TEXT, 0, "gptneox"},
    {"gptneox.context_length", INT, 64, NULL},
    {"gptneox.embedding_length", INT, 16, NULL},
    {"gptneox.block_count", INT, 1, NULL},
    {"gptneox.feed_forward_length", INT, 24, NULL},
    {"gptneox.attention.head_count", INT, 2, NULL},
    {"gptneox.attention.layer_norm_epsilon", REAL, 1e-5, NULL},
    {"gptneox.use_parallel_residual", BOOL, 1, NULL},
    {0},
};
static const value gpt2[] = {
    {"general.architecture", TEXT, 0, "gpt2"},
    {"gpt2.context_length", INT, 64, NULL},
    {"gpt2.embedding_length", INT, 16, NULL},
    {"gpt2.block_count", INT, 1, NULL},
    {"gpt2.feed_forward_length", INT, 24, NULL},
    {"gpt2.attention.head_count", INT, 2, NULL},
    {"gpt2.attention.layer_norm_epsilon", REAL, 1e-5, NULL},
    {0},
};

static void put_value(fbt_bytes *file, const value *v) {
    if (v->kind == INT) fbt_gguf_u32(file, v->key, (uint32_t)v->number);
    if (v->kind == REAL) fbt_gguf_f32(file, v->key, (float)v->number);
    if (v->kind == BOOL) fbt_gguf_bool(file, v->key, (uint8_t)v->number);
    if (v->kind == TEXT) fbt_gguf_text(file, v->key, v->text);
    if (v->kind != ARRAY) return;
    fbt_gguf_array(file, v->key, FB_GGUF_U32, 1);
    fbt_put_u32(file, (uint32_t)v->number);
}

/* A file with these values, `more` in place of those with the same key, and the tensors that decide about a
 * config: an embedding and, if there is any, a list of frequency factors. */
static fbt_bytes write_file(const value *base, const value *more, int64_t more_count, const float *factors,
                            uint64_t factor_count) {
    fbt_bytes file = {0};
    uint64_t count = 0;
    fbt_gguf_start(&file, 3, factors ? 2 : 1, 0);
    for (const value *v = base; v->key; v++) {
        bool replaced = false;
        for (int64_t i = 0; i < more_count; i++) replaced = replaced || strcmp(v->key, more[i].key) == 0;
        if (replaced) continue;
        put_value(&file, v);
        count++;
    }
    for (int64_t i = 0; i < more_count; i++) {
        put_value(&file, &more[i]);
        count += more[i].kind != NO_VALUE;
    }
    memcpy(file.data + 16, &count, sizeof count);
    fbt_gguf_tensor(&file, "token_embd.weight", 2, (uint64_t[]){16, 32}, 1, 0);
    if (factors) fbt_gguf_tensor(&file, "rope_freqs.weight", 1, &factor_count, 0, 1024);
    fbt_gguf_data(&file, 32, 1024);
    if (factors) fbt_put(&file, factors, factor_count * sizeof *factors);
    return file;
}

static fb_status describe(const fbt_bytes *file, fb_spec **spec, fb_error *err) {
    fb_gguf *gguf;
    assert_ok(fb_gguf_parse("test", file->data, file->size, &gguf, err), err);
    fb_status status = fb_gguf_describe("test", gguf, spec, err);
    fb_gguf_free(gguf);
    return status;
}

static const char *fact(const fb_spec *spec, const char *name) {
    for (int32_t i = 0; i < spec->fact_count; i++)
        if (strcmp(spec->facts[i].name, name) == 0) return spec->facts[i].value;
    return "none";
}

/* ---- what it becomes ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    const value *base;
    value more[3];
    const char *fact, *expected;
} facts[] = {
    {"epsilon", llama, {{0}}, "norm", "rmsnorm, epsilon 1e-05"},
    {"heads", llama, {{0}}, "heads", "2 of 8 elements, on 2 KV heads"},
    {"no output matrix", llama, {{0}}, "embeddings", "tied"},
    {"KV heads",
     llama,
     {{"llama.attention.head_count_kv", INT, 1, NULL}},
     "heads",
     "2 of 8 elements, on 1 KV heads"},
    {"wide heads",
     llama,
     {{"llama.attention.key_length", INT, 12, NULL}, {"llama.attention.value_length", INT, 12, NULL}},
     "heads",
     "2 of 12 elements, on 2 KV heads"},
    {"base", llama, {{"llama.rope.freq_base", REAL, 500000, NULL}}, "rotary base", "500000"},
    {"linear",
     llama,
     {{"llama.rope.scaling.type", TEXT, 0, "linear"}, {"llama.rope.scaling.factor", REAL, 2.5, NULL}},
     "rotary factor",
     "2.5"},
    {"a factor alone", llama, {{"llama.rope.scaling.factor", REAL, 2.5, NULL}}, "rotary type", "linear"},
    {"its old name", llama, {{"llama.rope.scale_linear", REAL, 4, NULL}}, "rotary factor", "4"},
    {"a factor for nothing",
     llama,
     {{"llama.rope.scaling.type", TEXT, 0, "none"}, {"llama.rope.scaling.factor", REAL, 2.5, NULL}},
     "rotary type",
     "default"},
    {"no experts", llama, {{"llama.expert_count", INT, 0, NULL}}, "mlp", "24"},
    {"no window", llama, {{"llama.attention.sliding_window", INT, 0, NULL}}, "mlp", "24"},
    {"all rotate", neox, {{0}}, "rotary fraction", "1 (8 of 8 elements of a head)"},
    {"some rotate",
     neox,
     {{"gptneox.rope.dimension_count", INT, 2, NULL}},
     "rotary fraction",
     "0.25 (2 of 8 elements of a head)"},
    {"serial", neox, {{"gptneox.use_parallel_residual", BOOL, 0, NULL}}, "residual", "serial"},
    {"exact gelu", neox, {{0}}, "activation", "gelu"},
    {"no bias tensor", neox, {{0}}, "attention bias", "no"},
    {"gelu by tanh", gpt2, {{0}}, "activation", "gelu_new"},
};

static int64_t count_of(const value *more, int64_t most) {
    int64_t count = 0;
    while (count < most && more[count].key) count++;
    return count;
}

static void becomes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        fbt_bytes file = write_file(facts[i].base, facts[i].more, count_of(facts[i].more, 3), NULL, 0);
        fb_spec *spec;
        fb_error err;
        assert_ok(describe(&file, &spec, &err), &err);
        if (strcmp(fact(spec, facts[i].fact), facts[i].expected) != 0)
            fail_msg("%s: %s: \"%s\" (expected \"%s\")", facts[i].name, facts[i].fact,
                     fact(spec, facts[i].fact), facts[i].expected);
        assert_int_equal(spec->program.vocab, 32); /* the embedding's rows */
        fb_spec_free(spec);
        free(file.data);
    }
}

/* Each head size and each even number of rotating elements comes out as it went in. */
static void rotary_counts(void **state) {
    (void)state;
    for (int dim = 2; dim <= 160; dim += 2)
        for (int rotary = 2; rotary <= dim; rotary += 2) {
            const value more[] = {{"gptneox.attention.head_count", INT, 1, NULL},
                                  {"gptneox.embedding_length", INT, dim, NULL},
                                  {"gptneox.rope.dimension_count", INT, rotary, NULL}};
            fbt_bytes file = write_file(neox, more, 3, NULL, 0);
            fb_spec *spec;
            fb_error err;
            assert_ok(describe(&file, &spec, &err), &err);
            char *expected = fbt_format("(%d of %d elements", rotary, dim);
            if (!strstr(fact(spec, "rotary fraction"), expected))
                fail_msg("%s, expected %s", fact(spec, "rotary fraction"), expected);
            free(expected);
            fb_spec_free(spec);
            free(file.data);
        }
}

static void factors_divide(void **state) {
    (void)state;
    static const float factors[] = {1, 2, 4, 8};
    fbt_bytes file = write_file(llama, NULL, 0, factors, 4);
    fb_spec *spec;
    fb_error err;
    assert_ok(describe(&file, &spec, &err), &err);
    for (int i = 0; i < 4; i++)
        assert_true(spec->program.frequencies[i] == pow(10000, -2.0 * i / 8) / (double)factors[i]);
    assert_string_equal(fact(spec, "rotary factors"), "1 to 8, one a frequency");
    fb_spec_free(spec);
    free(file.data);
}

static void bad_factors(void **state) {
    (void)state;
    static const struct {
        float values[5];
        uint64_t count;
        const char *words;
    } cases[] = {
        {{1, 2, 3}, 3, "rope_freqs.weight: F32 [3] (F32 [4])"},
        {{1, 2, 0, 4}, 4, "rope_freqs.weight: element 2: 0"},
        {{1, 2, 3, NAN}, 4, "rope_freqs.weight: element 3"},
        {{1, -2, 3, 4}, 4, "rope_freqs.weight: element 1: -2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fbt_bytes file = write_file(llama, NULL, 0, cases[i].values, cases[i].count);
        fb_spec *spec;
        fb_error err;
        assert_refused(describe(&file, &spec, &err), FB_ERROR_FILE, &err, cases[i].words);
        free(file.data);
    }
}

/* ---- what is refused ----------------------------------------------------------------------------------- */

static const struct {
    const value *base;
    value more[3];
    const char *words;
} refusals[] = {
    {llama, {{"general.architecture", TEXT, 0, "mamba"}}, "general.architecture: \"mamba\" (known: gptneox"},
    {llama, {{"general.architecture", INT, 1, NULL}}, "general.architecture"},
    {llama, {{"general.architecture", NO_VALUE, 0, NULL}}, "general.architecture"},
    {llama, {{"general.type", TEXT, 0, "adapter"}}, "general.type: \"adapter\""},
    {llama, {{"llama.block_count", NO_VALUE, 0, NULL}}, "llama.block_count: missing"},
    {neox, {{"gptneox.use_parallel_residual", NO_VALUE, 0, NULL}}, "gptneox.use_parallel_residual: missing"},
    {gpt2, {{"gpt2.attention.layer_norm_epsilon", NO_VALUE, 0, NULL}}, "layer_norm_epsilon: missing"},
    {neox,
     {{"gptneox.rope.scaling.type", TEXT, 0, "yarn"}},
     "gptneox.rope.scaling.type: \"yarn\" (known: none"},
    {llama,
     {{"llama.rope.scaling.type", TEXT, 0, "su"}},
     "llama.rope.scaling.type: \"su\" (known: none, linear, yarn"},
    {llama, {{"llama.rope.scaling.yarn_beta_fast", REAL, 32, NULL}}, "yarn_beta_fast: 32.0 (not known)"},
    {llama, {{"llama.rope.scaling.attn_factor", REAL, 1.5, NULL}}, "attn_factor: 1.5 (only 1)"},
    {llama, {{"llama.rope.dimension_count", INT, 4, NULL}}, "rotating elements of a head: 4"},
    {llama, {{"llama.rope.dimension_count", INT, 10, NULL}}, "llama.rope.dimension_count: 10"},
    {llama, {{"llama.rope.dimension_sections", ARRAY, 4, NULL}}, "dimension_sections: an array (not known)"},
    {llama, {{"llama.expert_count", INT, 8, NULL}}, "llama.expert_used_count: missing"},
    {llama, {{"llama.expert_count", INT, 2000, NULL}}, "llama.expert_count: 2000"},
    {neox, {{"gptneox.expert_count", INT, 8, NULL}}, "gptneox.expert_count: 8 (only 0)"},
    {neox, {{"gptneox.attention.sliding_window", INT, 4096, NULL}}, "sliding_window: 4096 (only 0)"},
    {llama, {{"llama.attention.causal", BOOL, 0, NULL}}, "llama.attention.causal: false (only 1)"},
    {llama, {{"llama.attention.scale", REAL, 0.1, NULL}}, "llama.attention.scale"},
    {llama, {{"llama.attention.value_length", INT, 4, NULL}}, "value_length: 4 (only key_length 8)"},
    {llama, {{"llama.attention.head_count_kv", ARRAY, 2, NULL}}, "head_count_kv: an array (one value"},
    {llama, {{"llama.feed_forward_length", ARRAY, 2, NULL}}, "feed_forward_length: an array (one value"},
    {llama, {{"llama.logit_scale", REAL, 2, NULL}}, "llama.logit_scale: 2.0 (not known)"},
    {llama, {{"llama.context_length", TEXT, 0, "many"}}, "max_position_embeddings: \"many\""},
    {llama, {{"llama.attention.head_count", INT, 0, NULL}}, "head_count: 0"},
    {llama, {{"llama.embedding_length", INT, 1, NULL}}, "head_count: 2 (at most embedding_length 1)"},
    {llama, {{"llama.attention.layer_norm_rms_epsilon", REAL, NAN, NULL}}, "rms_norm_eps: \"nan\""},
    {llama, {{"llama.use_parallel_residual", BOOL, 1, NULL}}, "use_parallel_residual: true (not known)"},
    {neox,
     {{"gptneox.attention.head_count_kv", INT, 1, NULL}},
     "gptneox.attention.head_count_kv: 1 (only 2)"},
    {gpt2, {{"gpt2.rope.dimension_count", INT, 8, NULL}}, "gpt2.rope.dimension_count: 8 (not known)"},
    {gpt2, {{"gpt2.rope.freq_base", REAL, 8, NULL}}, "gpt2.rope.freq_base: 8.0 (not known)"},
};

static void refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        fbt_bytes file =
            write_file(refusals[i].base, refusals[i].more, count_of(refusals[i].more, 3), NULL, 0);
        fb_spec *spec = (fb_spec *)(uintptr_t)1;
        fb_error err = {0};
        fb_status status = describe(&file, &spec, &err);
        if (status == FB_OK) fail_msg("%s: described", refusals[i].words);
        assert_null(spec);
        assert_refused(status, status, &err, refusals[i].words);
        free(file.data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(becomes),     cmocka_unit_test(rotary_counts), cmocka_unit_test(factors_divide),
        cmocka_unit_test(bad_factors), cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests_name("metadata of GGUF files", tests, NULL, NULL);
}
