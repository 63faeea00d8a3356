/* What a config.json means: the spellings of old and new checkpoints, and what is refused because nothing
 * here would compute it. The configs are those of published checkpoints, as they are on the Hugging Face hub.
 */
#include "arch/arch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

#define PYTHIA                                                                                               \
    "{\"architectures\": [\"GPTNeoXForCausalLM\"], \"bos_token_id\": 0, \"eos_token_id\": 0, "               \
    "\"hidden_act\": \"gelu\","                                                                              \
    "\"hidden_size\": 768, \"initializer_range\": 0.02, \"intermediate_size\": 3072, \"layer_norm_eps\": "   \
    "1e-05,"                                                                                                 \
    "\"max_position_embeddings\": 2048, \"model_type\": \"gpt_neox\", \"num_attention_heads\": 12,"          \
    "\"num_hidden_layers\": 12, \"rotary_emb_base\": 10000, \"rotary_pct\": 0.25, \"tie_word_embeddings\": " \
    "false,"                                                                                                 \
    "\"torch_dtype\": \"float16\", \"transformers_version\": \"4.24.0\", \"use_cache\": true,"               \
    "\"use_parallel_residual\": true, \"vocab_size\": 50304}"

#define LLAMA_32                                                                                             \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0,"     \
    "\"bos_token_id\": 128000, \"eos_token_id\": 128001, \"head_dim\": 64, \"hidden_act\": \"silu\","        \
    "\"hidden_size\": 2048, \"initializer_range\": 0.02, \"intermediate_size\": 8192,"                       \
    "\"max_position_embeddings\": 131072, \"mlp_bias\": false, \"model_type\": \"llama\","                   \
    "\"num_attention_heads\": 32, \"num_hidden_layers\": 16, \"num_key_value_heads\": 8, "                   \
    "\"pretraining_tp\": 1,"                                                                                 \
    "\"rms_norm_eps\": 1e-05, \"rope_scaling\": {\"factor\": 32.0, \"high_freq_factor\": 4.0,"               \
    "\"low_freq_factor\": 1.0, \"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"},"      \
    "\"rope_theta\": 500000.0, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\","                \
    "\"transformers_version\": \"4.45.0.dev0\", \"use_cache\": true, \"vocab_size\": 128256}"

#define TINYLLAMA                                                                                            \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"bos_token_id\": 1, "           \
    "\"eos_token_id\": 2,"                                                                                   \
    "\"hidden_act\": \"silu\", \"hidden_size\": 2048, \"initializer_range\": 0.02, \"intermediate_size\": "  \
    "5632,"                                                                                                  \
    "\"max_position_embeddings\": 2048, \"model_type\": \"llama\", \"num_attention_heads\": 32,"             \
    "\"num_hidden_layers\": 22, \"num_key_value_heads\": 4, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05," \
    "\"rope_scaling\": null, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false,"                       \
    "\"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.35.0\", \"use_cache\": true, "             \
    "\"vocab_size\": 32000}"

#define GPT2                                                                                                 \
    "{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], \"attn_pdrop\": 0.1," \
    "\"bos_token_id\": 50256, \"embd_pdrop\": 0.1, \"eos_token_id\": 50256, \"initializer_range\": 0.02,"    \
    "\"layer_norm_epsilon\": 1e-05, \"model_type\": \"gpt2\", \"n_ctx\": 1024, \"n_embd\": 768, "            \
    "\"n_head\": 12,"                                                                                        \
    "\"n_layer\": 12, \"n_positions\": 1024, \"resid_pdrop\": 0.1, \"summary_activation\": null,"            \
    "\"summary_first_dropout\": 0.1, \"summary_proj_to_labels\": true, \"summary_type\": \"cls_index\","     \
    "\"summary_use_proj\": true, \"task_specific_params\": {\"text-generation\": {\"do_sample\": true,"      \
    "\"max_length\": 50}}, \"vocab_size\": 50257}"

/* ---- configs with changes
 * ---------------------------------------------------------------------------------- */

static fb_spec *describe(const char *base, const char *changes) {
    char *text = fbt_json_merge(base, changes);
    fb_spec *spec;
    fb_error err;
    assert_ok(fb_arch_describe("config.json", text, strlen(text), &spec, &err), &err);
    free(text);
    return spec;
}

static char *printed(const fb_spec *spec) {
    char *text;
    fb_error err;
    assert_ok(fb_program_print(&spec->program, NULL, &text, &err), &err);
    return text;
}

static int64_t rotary_of(const fb_program *p) {
    for (int32_t i = 0; i < p->op_count[FB_PROLOGUE]; i++)
        if (p->ops[FB_PROLOGUE][i].kind == FB_OP_ROPE_ANGLES) return p->ops[FB_PROLOGUE][i].attr.rotary;
    return 0;
}

static const char *fact(const fb_spec *spec, const char *name) {
    for (int32_t i = 0; i < spec->fact_count; i++)
        if (strcmp(spec->facts[i].name, name) == 0) return spec->facts[i].value;
    return "";
}

/* Both configs give the same program, frequencies among it. */
static void check_same(const char *base, const char *changes) {
    fb_spec *a = describe(base, "{}"), *b = describe(base, changes);
    char *left = printed(a), *right = printed(b);
    assert_string_equal(left, right);
    assert_int_equal(a->program.context, b->program.context);
    assert_int_equal(rotary_of(&a->program), rotary_of(&b->program));
    if (rotary_of(&a->program))
        assert_memory_equal(a->program.frequencies, b->program.frequencies,
                            (size_t)rotary_of(&a->program) / 2 * sizeof(double));
    free(left);
    free(right);
    fb_spec_free(a);
    fb_spec_free(b);
}

static void check_differs(const char *base, const char *changes) {
    fb_spec *a = describe(base, "{}"), *b = describe(base, changes);
    char *left = printed(a), *right = printed(b);
    int64_t rotary = rotary_of(&a->program);
    bool turned =
        rotary && rotary == rotary_of(&b->program) &&
        memcmp(a->program.frequencies, b->program.frequencies, (size_t)rotary / 2 * sizeof(double)) != 0;
    if (strcmp(left, right) == 0 && !turned) fail_msg("no difference: %s", changes);
    free(left);
    free(right);
    fb_spec_free(a);
    fb_spec_free(b);
}

/* ---- what is read
 * ------------------------------------------------------------------------------------------ */

static void published(void **state) {
    (void)state;
    static const struct {
        const char *config, *architecture;
        int64_t layers, hidden, vocab, context, kv_heads, head_dim, rotary;
    } rows[] = {
        {PYTHIA, "gpt_neox", 12, 768, 50304, 2048, 12, 64, 16},
        {LLAMA_32, "llama", 16, 2048, 128256, 131072, 8, 64, 64},
        {TINYLLAMA, "llama", 22, 2048, 32000, 2048, 4, 64, 64},
        {GPT2, "gpt2", 12, 768, 50257, 1024, 12, 64, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fb_spec *spec = describe(rows[i].config, "{}");
        const fb_program *p = &spec->program;
        assert_string_equal(spec->architecture, rows[i].architecture);
        assert_int_equal(p->layers, rows[i].layers);
        assert_int_equal(p->hidden, rows[i].hidden);
        assert_int_equal(p->vocab, rows[i].vocab);
        assert_int_equal(p->context, rows[i].context);
        assert_int_equal(p->kv_heads, rows[i].kv_heads);
        assert_int_equal(p->head_dim, rows[i].head_dim);
        assert_int_equal(rotary_of(p), rows[i].rotary);
        fb_spec_free(spec);
    }
}

static void spellings(void **state) {
    (void)state;
    check_same(
        PYTHIA,
        "{\"rotary_pct\": null, \"rotary_emb_base\": null, \"rope_parameters\": {\"rope_type\": \"default\","
        "\"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.25}}");
    check_same(PYTHIA, "{\"rotary_pct\": null, \"rotary_emb_base\": null}"); /* the defaults of that time */
    check_same(PYTHIA, "{\"rotary_pct\": null, \"partial_rotary_factor\": 0.25, \"attention_bias\": true}");
    check_same(PYTHIA, "{\"hidden_act\": null, \"layer_norm_eps\": null, \"use_parallel_residual\": null}");
    check_same(PYTHIA, "{\"architectures\": null}");
    check_same(LLAMA_32,
               "{\"rope_scaling\": null, \"rope_theta\": null, \"rope_parameters\": {\"factor\": 32.0,"
               "\"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, \"rope_theta\": 500000.0,"
               "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}}");
    check_same(LLAMA_32,
               "{\"rope_scaling\": {\"factor\": 32.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0,"
               "\"original_max_position_embeddings\": 8192, \"type\": \"llama3\"}}");
    check_same(LLAMA_32, "{\"head_dim\": null}");
    check_same(
        TINYLLAMA,
        "{\"rope_theta\": null, \"rope_parameters\": {\"rope_theta\": 10000, \"rope_type\": \"default\"}}");
    check_same(TINYLLAMA, "{\"head_dim\": 64, \"mlp_bias\": false, \"sliding_window\": null}");
    check_same(GPT2, "{\"n_positions\": null}"); /* n_ctx says it too */
    check_same(GPT2, "{\"n_ctx\": null}");
    check_same(GPT2, "{\"n_inner\": 3072, \"tie_word_embeddings\": true, \"scale_attn_weights\": true}");
    check_same(GPT2, "{\"n_layer\": null, \"n_embd\": null, \"n_head\": null, \"num_hidden_layers\": 12, "
                     "\"hidden_size\": 768,"
                     "\"num_attention_heads\": 12}");
}

static void differences(void **state) {
    (void)state;
    check_differs(PYTHIA, "{\"use_parallel_residual\": false}");
    check_differs(PYTHIA, "{\"rotary_pct\": 0.5}");
    check_differs(PYTHIA, "{\"rotary_pct\": 0}");
    check_differs(PYTHIA, "{\"rotary_emb_base\": 20000}");
    check_differs(PYTHIA, "{\"attention_bias\": false}");
    check_differs(PYTHIA, "{\"hidden_act\": \"gelu_new\"}");
    check_differs(PYTHIA, "{\"hidden_act\": \"gelu_fast\"}");
    check_differs(PYTHIA, "{\"tie_word_embeddings\": true}");
    check_differs(PYTHIA, "{\"layer_norm_eps\": 1e-6}");
    check_differs(LLAMA_32, "{\"rope_scaling\": null}");
    check_differs(LLAMA_32, "{\"rope_theta\": 10000.0}");
    check_differs(LLAMA_32, "{\"num_key_value_heads\": 32}");
    check_differs(LLAMA_32, "{\"num_key_value_heads\": null}");
    check_differs(LLAMA_32, "{\"head_dim\": 128}");
    check_differs(LLAMA_32, "{\"attention_bias\": true}");
    check_differs(LLAMA_32, "{\"mlp_bias\": true}");
    check_differs(LLAMA_32, "{\"tie_word_embeddings\": false}");
    check_differs(TINYLLAMA, "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}}");
    check_differs(GPT2, "{\"activation_function\": \"gelu\"}");
    check_differs(GPT2, "{\"n_inner\": 1000}");
    check_differs(GPT2, "{\"layer_norm_epsilon\": 1e-6}");
}

/* ---- frequencies
 * ------------------------------------------------------------------------------------------- */

static void check_frequencies(const char *base, const char *changes,
                              double (*formula)(double inverse_frequency), double theta) {
    fb_spec *spec = describe(base, changes);
    int64_t rotary = rotary_of(&spec->program);
    assert_true(rotary > 0);
    for (int64_t i = 0; i < rotary / 2; i++) {
        double want = formula(1 / pow(theta, (double)(2 * i) / (double)rotary)),
               have = spec->program.frequencies[i];
        if (!(fabs(have - want) <= 1e-14 * want))
            fail_msg("%lld: %.17g, should be %.17g", (long long)i, have, want);
    }
    fb_spec_free(spec);
}

static double plain(double f) { return f; }
static double halved(double f) { return f / 2; }

/* As the documentation of Hugging Face's "llama3" rope type words it: in wave lengths. */
static double llama3(double f) {
    double wavelength = 2 * M_PI / f, factor = 32, low = 1, high = 4, old_context = 8192;
    double low_wavelength = old_context / low, high_wavelength = old_context / high;
    if (wavelength < high_wavelength) return f;
    if (wavelength > low_wavelength) return f / factor;
    double smooth = (old_context / wavelength - low) / (high - low);
    return (1 - smooth) * f / factor + smooth * f;
}

static void frequencies(void **state) {
    (void)state;
    check_frequencies(PYTHIA, "{}", plain, 10000);
    check_frequencies(PYTHIA, "{\"rotary_pct\": 1.0, \"rotary_emb_base\": 50000}", plain, 50000);
    check_frequencies(TINYLLAMA, "{}", plain, 10000);
    check_frequencies(TINYLLAMA, "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}}", halved,
                      10000);
    check_frequencies(LLAMA_32, "{}", llama3, 500000);
    int kept = 0, divided = 0, mixed = 0; /* the formula's three cases all occur */
    for (int i = 0; i < 32; i++) {
        double f = pow(500000, -i / 32.0), scaled = llama3(f);
        kept += scaled == f;
        divided += scaled == f / 32;
        mixed += scaled != f && scaled != f / 32;
    }
    assert_true(kept > 0 && divided > 0 && mixed > 0);
}

static void facts(void **state) {
    (void)state;
    fb_spec *spec = describe(PYTHIA, "{}");
    assert_non_null(strstr(fact(spec, "residual"), "parallel"));
    assert_string_equal(fact(spec, "activation"), "gelu");
    assert_non_null(strstr(fact(spec, "rotary fraction"), "0.25"));
    assert_string_equal(fact(spec, "rotary base"), "10000");
    assert_non_null(strstr(fact(spec, "norm"), "1e-05"));
    assert_string_equal(fact(spec, "embeddings"), "untied");
    fb_spec_free(spec);
    spec = describe(LLAMA_32, "{}");
    assert_string_equal(fact(spec, "rotary type"), "llama3");
    assert_string_equal(fact(spec, "rotary factor"), "32");
    assert_non_null(strstr(fact(spec, "heads"), "on 8 KV heads"));
    assert_string_equal(fact(spec, "embeddings"), "tied");
    fb_spec_free(spec);
}

/* ---- what is refused
 * --------------------------------------------------------------------------------------- */

static const struct refusal {
    const char *name, *base, *changes, *words;
} refusals[] = {
    {"model type", PYTHIA, "{\"model_type\": \"gptj\"}", "model_type|gptj|gpt_neox"},
    {"no model type", PYTHIA, "{\"model_type\": null}", "model_type"},
    {"class", PYTHIA, "{\"architectures\": [\"GPTNeoXForSequenceClassification\"]}",
     "architectures|SequenceClass"},
    {"class of another architecture", LLAMA_32, "{\"architectures\": [\"MistralForCausalLM\"]}",
     "architectures|Mistral"},
    {"classes", GPT2, "{\"architectures\": []}", "architectures"},
    {"relu", PYTHIA, "{\"hidden_act\": \"relu\"}", "hidden_act|relu|gelu"},
    {"relu, gpt2", GPT2, "{\"activation_function\": \"relu\"}", "activation_function|relu"},
    {"yarn, gpt_neox", PYTHIA, "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}}",
     "yarn|architecture"},
    {"yarn without a factor", LLAMA_32, "{\"rope_scaling\": {\"rope_type\": \"yarn\"}}", "factor|missing"},
    {"yarn betas", LLAMA_32,
     "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, \"beta_fast\": 1, \"beta_slow\": 2}}",
     "beta_slow|2|beta_fast|1"},
    {"dynamic", TINYLLAMA, "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4.0}}", "dynamic"},
    {"longrope", TINYLLAMA, "{\"rope_parameters\": {\"rope_type\": \"longrope\"}}", "short_factor|32"},
    {"unknown rope type", PYTHIA, "{\"rope_scaling\": {\"rope_type\": \"spiral\"}}", "rope_type|spiral"},
    {"unknown rope key", TINYLLAMA, "{\"rope_parameters\": {\"rope_theta\": 1e4, \"beta_fast\": 32}}",
     "beta_fast|32|default"},
    {"two rope dictionaries that disagree", TINYLLAMA,
     "{\"rope_parameters\": {\"rope_type\": \"default\"}, \"rope_scaling\": {\"type\": \"linear\", "
     "\"factor\": 2}}",
     "rope_scaling"},
    {"no factor", LLAMA_32, "{\"rope_scaling\": {\"rope_type\": \"linear\"}}", "factor"},
    {"factor below one", LLAMA_32, "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0.5}}",
     "factor|0.5"},
    {"bands", LLAMA_32,
     "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 4}}",
     "low_freq_factor|4"},
    {"rope is a string", LLAMA_32, "{\"rope_scaling\": \"yarn\"}", "rope_scaling"},
    {"sliding window", LLAMA_32, "{\"sliding_window\": 4096}", "sliding_window|4096"},
    {"layer types", LLAMA_32, "{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
     "layer_types|sliding"},
    {"layer types of another type", LLAMA_32, "{\"layer_types\": \"sliding_attention\"}", "layer_types"},
    {"quantised", LLAMA_32, "{\"quantization_config\": {\"quant_method\": \"gptq\"}}",
     "quantization_config|gptq"},
    {"attention scale, gpt2", GPT2, "{\"scale_attn_weights\": false}", "scale_attn_weights|false"},
    {"attention scale by layer", GPT2, "{\"scale_attn_by_inverse_layer_idx\": true}",
     "scale_attn_by_inverse_layer_idx"},
    {"odd rotary", PYTHIA, "{\"rotary_pct\": 0.05}", "rotat|3"},
    {"rotary fraction above one", PYTHIA, "{\"rotary_pct\": 1.5}", "rotary_pct|1.5"},
    {"partial rotary, llama", LLAMA_32, "{\"partial_rotary_factor\": 0.5}", "rotat|32|64"},
    {"odd head", LLAMA_32, "{\"head_dim\": 63}", "63"},
    {"heads do not divide", PYTHIA, "{\"num_attention_heads\": 7}", "7|768"},
    {"heads do not divide, gpt2", GPT2, "{\"n_head\": 5}", "5|768"},
    {"KV heads do not divide", LLAMA_32, "{\"num_key_value_heads\": 5}", "num_key_value_heads|5|32"},
    {"more KV heads than heads", LLAMA_32, "{\"num_key_value_heads\": 64}", "num_key_value_heads|64|32"},
    {"head size, neox", PYTHIA, "{\"head_dim\": 32}", "head_dim|32|64"},
    {"no layers", PYTHIA, "{\"num_hidden_layers\": 0}", "num_hidden_layers|0"},
    {"negative size", LLAMA_32, "{\"hidden_size\": -2048}", "hidden_size|-2048"},
    {"real size", LLAMA_32, "{\"hidden_size\": 2048.5}", "hidden_size"},
    {"size as text", GPT2, "{\"n_embd\": \"768\"}", "n_embd"},
    {"huge vocabulary", LLAMA_32, "{\"vocab_size\": 9223372036854775807}", "vocab_size|9223372036854775807"},
    {"missing size", PYTHIA, "{\"hidden_size\": null}", "hidden_size"},
    {"missing size, gpt2", GPT2, "{\"n_embd\": null}", "n_embd"},
    {"epsilon", LLAMA_32, "{\"rms_norm_eps\": -1e-5}", "rms_norm_eps"},
    {"flag as number", PYTHIA, "{\"use_parallel_residual\": 1}", "use_parallel_residual"},
};

static void refused(void **state) {
    const struct refusal *row = *state;
    char *text = fbt_json_merge(row->base, row->changes);
    fb_spec *spec = (fb_spec *)(uintptr_t)1;
    fb_error err = {0};
    fb_status status = fb_arch_describe("config.json", text, strlen(text), &spec, &err);
    free(text);
    if (status == FB_OK) {
        fb_spec_free(spec);
        fail_msg("accepted: %s", row->changes);
    }
    assert_null(spec);
    assert_true(status == FB_ERROR_FILE || status == FB_ERROR_UNSUPPORTED);
    assert_refused(status, status, &err, row->words);
    assert_refused(status, status, &err, "config.json");
}

/* A config that is good, but for the spaces behind it. */
static void long_config_is_refused(void **state) {
    (void)state;
    char *text = malloc(FB_CONFIG_LIMIT + 1);
    assert_non_null(text);
    memset(text, ' ', FB_CONFIG_LIMIT + 1);
    memcpy(text, GPT2, sizeof GPT2 - 1);
    fb_spec *spec;
    fb_error err;
    assert_ok(fb_arch_describe("config.json", text, FB_CONFIG_LIMIT, &spec, &err), &err);
    fb_spec_free(spec);
    assert_refused(fb_arch_describe("config.json", text, FB_CONFIG_LIMIT + 1, &spec, &err), FB_ERROR_FILE,
                   &err, "config.json: 16777217 bytes (at most 16777216)");
    assert_null(spec);
    free(text);
}

int main(void) {
    enum { READ = 6, REFUSED = sizeof refusals / sizeof *refusals };
    struct CMUnitTest tests[READ + REFUSED] = {
        cmocka_unit_test(published),   cmocka_unit_test(spellings), cmocka_unit_test(differences),
        cmocka_unit_test(frequencies), cmocka_unit_test(facts),     cmocka_unit_test(long_config_is_refused),
    };
    for (size_t i = 0; i < REFUSED; i++)
        tests[READ + i] =
            (struct CMUnitTest){refusals[i].name, refused, NULL, NULL, (void *)(uintptr_t)&refusals[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
