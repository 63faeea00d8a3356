/* With `exact` a token has the bits of a generated one wherever it stands: the logits of a prompt are those
 * of its tokens decoded one by one, for every way in which weights are multiplied. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_harness.h"
#include "fusebox_tools.h"
#include "support/support.h"

enum { HIDDEN = 256, MLP = 512, VOCAB = 64, KV = 64, TOKENS = 70 /* more than products of few rows take */ };

/* ---- a model whose rows are whole blocks ---- */

static const struct {
    const char *name;
    int64_t rows, cols; /* rows 0: a norm */
} tensors[] = {{"model.embed_tokens.weight", VOCAB, HIDDEN},
               {"model.norm.weight", 0, HIDDEN},
               {"model.layers.0.input_layernorm.weight", 0, HIDDEN},
               {"model.layers.0.post_attention_layernorm.weight", 0, HIDDEN},
               {"model.layers.0.self_attn.q_proj.weight", HIDDEN, HIDDEN},
               {"model.layers.0.self_attn.k_proj.weight", KV, HIDDEN},
               {"model.layers.0.self_attn.v_proj.weight", KV, HIDDEN},
               {"model.layers.0.self_attn.o_proj.weight", HIDDEN, HIDDEN},
               {"model.layers.0.mlp.gate_proj.weight", MLP, HIDDEN},
               {"model.layers.0.mlp.up_proj.weight", MLP, HIDDEN},
               {"model.layers.0.mlp.down_proj.weight", HIDDEN, MLP}};
enum { TENSORS = sizeof tensors / sizeof *tensors };

static const char config[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 256, \"intermediate_size\": 512, "
    "\"vocab_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 1, \"hidden_act\": \"silu\", "
    "\"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000, "
    "\"tie_word_embeddings\": true}";

static void write_checkpoint(const char *dir) {
    fbt_random random = fbt_random_start(71);
    fbt_tensor list[TENSORS];
    uint16_t *data[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        const bool norm = tensors[i].rows == 0;
        const int64_t rows = norm ? 1 : tensors[i].rows, count = rows * tensors[i].cols;
        data[i] = malloc((size_t)count * sizeof **data);
        assert_non_null(data[i]);
        for (int64_t k = 0; k < count; k++)
            data[i][k] = fb_f32_to_f16((norm ? 1.0f : 0) + 0.08f * (float)fbt_random_normal(&random));
        list[i] = (fbt_tensor){.name = tensors[i].name,
                               .dtype = "F16",
                               .dims = norm ? 1 : 2,
                               .shape = {norm ? tensors[i].cols : rows, tensors[i].cols},
                               .bytes = data[i],
                               .size = (size_t)count * sizeof **data};
    }
    char *file = fbt_format("%s/model.safetensors", dir), *text = fbt_format("%s/config.json", dir);
    fbt_safetensors_write(file, list, TENSORS, NULL);
    fbt_text_write(text, config);
    for (int i = 0; i < TENSORS; i++) free(data[i]);
    free(file);
    free(text);
}

/* The model with matrices of a type, or of a mix. */
static fb_model *model_of(const char *type) {
    char *dir = fbt_dir_create(), *path = fbt_format("%s/model.gguf", dir);
    fb_quantize_options options;
    fb_error err;
    write_checkpoint(dir);
    fb_model *floats = fbt_model_open(dir);
    fb_quantize_options_default(&options);
    assert_ok(fb_quantize_options_parse(type, &options, &err), &err);
    assert_ok(fb_model_quantize(floats, path, &options, NULL, &err), &err);
    fb_model_free(floats);
    fb_model *model = fbt_model_open(path);
    free(path);
    fbt_dir_remove(dir);
    return model;
}

/* ---- as a prompt, and one by one ---- */

/* The logits of all tokens; the first `prompt` of them are a prompt's. */
static float *logits_of(const fb_model *model, bool exact, const char *fuse, int64_t prompt, int64_t count) {
    fb_session *session;
    fb_session_options o;
    fb_error err;
    int32_t ids[TOKENS];
    const float *logits;
    int64_t rows, vocab;
    float *all = malloc((size_t)count * VOCAB * sizeof *all);
    assert_non_null(all);
    for (int i = 0; i < TOKENS; i++) ids[i] = i * 7919 % VOCAB;
    fb_session_options_default(&o);
    o.backend = "cuda";
    o.act = FB_F16;
    o.exact = exact;
    o.fuse = fuse;
    o.capacity = 128;
    o.all_logits = true;
    assert_ok(fb_session_create(model, &o, &session, &err), &err);
    for (int64_t done = 0; done < count; done += rows) {
        fb_status status = done < prompt ? fb_session_prefill(session, ids, prompt, &err)
                                         : fb_session_decode(session, ids[done], &err);
        assert_ok(status, &err);
        assert_ok(fb_session_logits(session, &logits, &rows, &vocab, &err), &err);
        assert_true(vocab == VOCAB && rows == (done < prompt ? prompt : 1));
        memcpy(all + done * VOCAB, logits, (size_t)(rows * VOCAB) * sizeof *all);
    }
    fb_session_free(session);
    return all;
}

/* Whether a prompt of all tokens has the bits of a shorter one and the other tokens one by one. */
static bool same_bits(const fb_model *model, bool exact, const char *fuse, int64_t first, int64_t count) {
    float *prompt = logits_of(model, exact, fuse, count, count);
    float *alone = logits_of(model, exact, fuse, first, count);
    bool same = memcmp(prompt, alone, (size_t)count * VOCAB * sizeof *prompt) == 0;
    free(prompt);
    free(alone);
    return same;
}

static void prompts_as_generated(void **state) {
    (void)state;
    /* The emulated device of these tests has too many multiprocessors for `step`. */
    static const char *const all = "all,-step";
    const struct {
        const char *type, *fuse;
        int64_t first, count;
    } cases[] = {{"q4_0", all, 1, 7}, {"q8_0", all, 1, 7},      {"q4_k", all, 1, 7},
                 {"q6_k", all, 1, 7}, {"q4_k_m", "none", 1, 7}, {"q4_k", all, 66, TOKENS},
                 {"f16", all, 1, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *fuse = cases[i].fuse;
        const int64_t first = cases[i].first, count = cases[i].count;
        fb_model *model = model_of(cases[i].type);
        if (!same_bits(model, true, fuse, first, count))
            fail_msg("%s, fuses %s: a prompt of %lld tokens has other bits than the last %lld decoded",
                     cases[i].type, fuse, (long long)count, (long long)(count - first));
        /* Otherwise a prompt has sums of its own; so the comparison above sees what differs. */
        if (i < 4) assert_false(same_bits(model, false, fuse, 1, 2));
        fb_model_free(model);
    }
}

int main(void) {
    const char *given = getenv("FUSEBOX_CUDA_LIBRARY");
    if (!given || !*given || strcmp(given, "none") == 0) fb_cuda_library(cuda_emulated_path(), NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(prompts_as_generated)};
    return cuda_run_group("exact", tests, 1, NULL);
}
