#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "arch/gguf_names.h"
#include "model/mix.h"
#include "model/quantize.h"
#include "text/export.h"
#include "text/gguf_pre.h"

/* What a GGUF file does not say, because it is the same for all of an architecture. */
static const struct {
    const char *model_type;
    fb_op_kind activation;
    bool rms; /* the norm's epsilon is named so */
} implied[] = {
    {"gpt_neox", FB_OP_GELU, false},   {"llama", FB_OP_SILU, true},
    {"gpt2", FB_OP_GELU_TANH, false},  {"mistral", FB_OP_SILU, true},
    {"qwen2", FB_OP_SILU, true},       {"qwen3", FB_OP_SILU, true},
    {"gemma2", FB_OP_GELU_TANH, true}, {"gemma3_text", FB_OP_GELU_TANH, true},
    {"phi3", FB_OP_SILU, true},        {"olmo2", FB_OP_SILU, true},
    {"granite", FB_OP_SILU, true},     {"smollm3", FB_OP_SILU, true},
    {"stablelm", FB_OP_SILU, false},   {"mixtral", FB_OP_SILU, true},
    {"qwen3_moe", FB_OP_SILU, true},
};

#define QUANTIZATION_VERSION 2 /* of the block layouts */

/* ---- the model ----------------------------------------------------------------------------------------- */

typedef struct target {
    fb_gguf_writer *writer;
    const char *prefix; /* the architecture's name */
} target;

static const char *full_key(const target *t, const char *key, char text[96]) {
    snprintf(text, 96, "%s.%s", t->prefix, key);
    return text;
}

static void put_u32(const target *t, const char *key, int64_t value) {
    char full[96];
    fb_gguf_put_u32(t->writer, full_key(t, key, full), value);
}

static void put_f32(const target *t, const char *key, double value) {
    char full[96];
    fb_gguf_put_f32(t->writer, full_key(t, key, full), value);
}

static fb_status check_implied(const fb_spec *spec, bool *rms, fb_error *err) {
    *rms = false;
    for (size_t i = 0; i < sizeof implied / sizeof *implied; i++) {
        if (strcmp(implied[i].model_type, spec->architecture) != 0) continue;
        *rms = implied[i].rms;
        if (implied[i].activation == spec->hyper.activation) return FB_OK;
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "activation: %s (in a GGUF file, %s has %s)",
                       fb_op_table[spec->hyper.activation].name, spec->architecture,
                       fb_op_table[implied[i].activation].name);
    }
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "architecture: %s (no GGUF name is known for it)",
                   spec->architecture);
}

static void put_rope(const target *t, const fb_program *p, const fb_hyper *h) {
    char full[96];
    put_u32(t, "rope.dimension_count", h->rotary);
    put_f32(t, "rope.freq_base", h->rope_base);
    if (h->rope_yarn != 0 || p->long_context)
        put_u32(t, "rope.scaling.original_context_length", h->rope_original);
    if (p->long_context) put_f32(t, "rope.scaling.attn_factor", h->rope_magnitude);
    if (h->rope_linear == 1 && h->rope_yarn == 0) return;
    fb_gguf_put_string(t->writer, full_key(t, "rope.scaling.type", full),
                       h->rope_yarn != 0 ? "yarn" : "linear");
    put_f32(t, "rope.scaling.factor", h->rope_yarn != 0 ? h->rope_yarn : h->rope_linear);
}

static bool is(const fb_spec *spec, const char *model_type) {
    return strcmp(spec->architecture, model_type) == 0;
}

/* What a file of this architecture cannot say must be what its readers take for granted. */
static fb_status check_unsaid(const fb_spec *spec, fb_error *err) {
    const fb_program *p = &spec->program;
    const fb_hyper *h = &spec->hyper;
    bool gemma2 = is(spec, "gemma2"), gemma = gemma2 || is(spec, "gemma3_text");
    double queries =
        p->layers == (gemma2 ? 46 : 62) ? (double)p->hidden / (double)h->heads : (double)p->head_dim;
    char name[FB_GGUF_NAME_SIZE];
    fb_row_order order;
    if (fb_gguf_name(spec->architecture, "model.layers.{}.self_attn.q_proj.weight", name, &order) &&
        order == FB_ROWS_ROPE_PAIRS && h->rotary != p->head_dim)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "partial_rotary_factor: %d of %lld elements rotate (in a GGUF file of a %s, all)",
                       h->rotary, (long long)p->head_dim, spec->architecture);
    if (h->rope_other)
        return fb_fail(
            err, FB_ERROR_UNSUPPORTED,
            "rope: yarn with settings of its own, or scaled in layers with a window (not written to a "
            "GGUF file)");
    if (gemma && fabs(h->attention_scale * sqrt(queries) - 1) > 1e-6)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "query_pre_attn_scalar: %g (in a GGUF file of this size, %g)",
                       1 / (h->attention_scale * h->attention_scale), queries);
    if (h->window && (gemma ? h->window_pattern < 2 : h->window_pattern != 1))
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "layer_types: windows in some layers (not written to a GGUF file of this kind)");
    if (h->window && !gemma && !is(spec, "mistral") && !is(spec, "mixtral") && !is(spec, "phi3"))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "sliding_window: %lld (a GGUF file of a %s has none)",
                       (long long)h->window, spec->architecture);
    if (is(spec, "smollm3") ? !h->still_fourth : h->still)
        return fb_fail(
            err, FB_ERROR_UNSUPPORTED,
            "no_rope_layers: (in a GGUF file of a smollm3, exactly every fourth layer does not rotate)");
    if (gemma2 && (h->attention_cap == 0 || h->logit_cap == 0))
        return fb_fail(
            err, FB_ERROR_UNSUPPORTED,
            "attn_logit_softcapping, final_logit_softcapping: null (readers of a GGUF file take 50 and 30)");
    if (gemma2 && h->window && h->window_pattern != 2)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "layer_types: (in a GGUF file of a gemma2, every other layer has the window)");
    if (gemma2 && !h->window)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "sliding_window: null (readers of a GGUF file take 4096)");
    if (h->experts && !h->shares_sum_to_one)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "norm_topk_prob: false (in a GGUF file of a %s, true)",
                       spec->architecture);
    if (p->long_context && !is(spec, "phi3"))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "rope_type: longrope (in a GGUF file, only of a phi3)");
    return FB_OK;
}

/* Keys of single families. */
static void put_family(const fb_spec *spec, const target *t) {
    const fb_hyper *h = &spec->hyper;
    char full[96];
    if (h->window) put_u32(t, "attention.sliding_window", h->window);
    if (h->experts) {
        put_u32(t, "expert_count", h->experts);
        put_u32(t, "expert_used_count", h->experts_used);
    }
    if (is(spec, "qwen3_moe")) put_u32(t, "expert_feed_forward_length", h->mlp);
    if (is(spec, "gemma3_text") && h->window)
        put_u32(t, "attention.sliding_window_pattern", h->window_pattern);
    if (h->rope_base_window != 0) put_f32(t, "rope.freq_base_swa", h->rope_base_window);
    if (h->attention_cap != 0) put_f32(t, "attn_logit_softcapping", h->attention_cap);
    if (h->logit_cap != 0) put_f32(t, "final_logit_softcapping", h->logit_cap);
    if (is(spec, "stablelm")) fb_gguf_put_bool(t->writer, full_key(t, "use_parallel_residual", full), false);
    if (!is(spec, "granite")) return;
    put_f32(t, "attention.scale", h->attention_scale);
    put_f32(t, "embedding_scale", h->embedding_scale);
    put_f32(t, "residual_scale", h->residual_scale);
    put_f32(t, "logit_scale", 1 / h->logit_scale);
}

static fb_status put_model(const fb_spec *spec, const target *t, fb_error *err) {
    const fb_program *p = &spec->program;
    const fb_hyper *h = &spec->hyper;
    bool rms;
    char full[96];
    FB_TRY(check_implied(spec, &rms, err));
    FB_TRY(check_unsaid(spec, err));
    put_u32(t, "vocab_size", p->vocab);
    put_u32(t, "context_length", p->context);
    put_u32(t, "embedding_length", p->hidden);
    put_u32(t, "block_count", p->layers);
    put_u32(t, "feed_forward_length", h->mlp);
    put_u32(t, "attention.head_count", h->heads);
    if (p->kv_heads != h->heads) put_u32(t, "attention.head_count_kv", p->kv_heads);
    if (p->head_dim * h->heads != p->hidden) {
        put_u32(t, "attention.key_length", p->head_dim);
        put_u32(t, "attention.value_length", p->head_dim);
    }
    put_f32(t, rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", h->eps);
    if (strcmp(spec->architecture, "gpt_neox") == 0)
        fb_gguf_put_bool(t->writer, full_key(t, "use_parallel_residual", full), h->parallel);
    /* Also where nothing rotates: a file that does not say so rotates the whole head. */
    if (h->rope_base > 0) put_rope(t, p, h);
    put_family(spec, t);
    return FB_OK;
}

/* The factors of one table of frequencies; `scaled`: not all are 1. */
static fb_status add_factors(const fb_model *m, const char *name, int32_t table, fb_rope_factors *out,
                             bool *scaled, fb_error *err) {
    const fb_hyper *h = &m->spec->hyper;
    int32_t count = h->rotary / 2;
    float *factors = malloc((size_t)count * sizeof *factors);
    if (!factors) return fb_fail_memory(err, name, count * (int64_t)sizeof *factors);
    out->name[out->count] = name;
    out->factors[out->count++] = factors;
    *scaled = false;
    for (int32_t i = 0; i < count; i++) {
        double plain = pow(h->rope_base, -2.0 * i / h->rotary) / h->rope_linear;
        factors[i] = (float)(plain / m->spec->program.frequencies[table * count + i]);
        *scaled = *scaled || factors[i] != 1;
    }
    return FB_OK;
}

fb_status fb_model_rope_factors(const fb_model *m, fb_rope_factors *out, fb_error *err) {
    *out = (fb_rope_factors){.count = 0};
    const fb_program *p = &m->spec->program;
    bool scaled;
    if (!p->frequencies || m->spec->hyper.rope_yarn != 0) return FB_OK;
    if (p->long_context) {
        FB_TRY(add_factors(m, FB_GGUF_ROPE_LONG, 1, out, &scaled, err));
        return add_factors(m, FB_GGUF_ROPE_SHORT, 0, out, &scaled, err);
    }
    FB_TRY(add_factors(m, FB_GGUF_ROPE_FREQS, 0, out, &scaled, err));
    if (scaled && strcmp(m->spec->architecture, "llama") == 0) return FB_OK;
    out->count = 0;
    free(out->factors[0]);
    out->factors[0] = NULL;
    if (!scaled) return FB_OK;
    return fb_fail(err, FB_ERROR_UNSUPPORTED,
                   "rope: frequencies scaled one by one (in a GGUF file, only a llama has them)");
}

/* ---- the tokenizer ------------------------------------------------------------------------------------- */

enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5 };

static const int32_t token_types[] = {
    [FB_TOKEN_NORMAL] = TOKEN_NORMAL,
    [FB_TOKEN_SPECIAL] = TOKEN_CONTROL,
    [FB_TOKEN_ADDED] = TOKEN_USER,
    [FB_TOKEN_UNUSED] = TOKEN_UNUSED,
};

static fb_token_kind kind_of(const fb_exported *e, int64_t id) {
    return id < e->count ? e->tokens[id].kind : FB_TOKEN_UNUSED;
}

/* Ids without a token, up to the model's vocabulary, have a text of their own, as texts must differ. */
static void put_tokens(fb_gguf_writer *w, const fb_exported *e, int64_t vocab) {
    fb_gguf_put_strings(w, "tokenizer.ggml.tokens", vocab);
    for (int64_t id = 0; id < vocab; id++) {
        char text[32];
        if (kind_of(e, id) == FB_TOKEN_UNUSED)
            fb_gguf_item_string(w, text, snprintf(text, sizeof text, "[PAD%lld]", (long long)id));
        else
            fb_gguf_item_string(w, e->tokens[id].text, e->tokens[id].size);
    }
    fb_gguf_put_i32s(w, "tokenizer.ggml.token_type", vocab);
    for (int64_t id = 0; id < vocab; id++)
        fb_gguf_item_i32(w, id == e->unknown ? TOKEN_UNKNOWN : token_types[kind_of(e, id)]);
}

/* "left right" */
static fb_status put_merges(fb_gguf_writer *w, const fb_exported *e, fb_error *err) {
    char *text = NULL;
    size_t capacity = 0;
    fb_gguf_put_strings(w, "tokenizer.ggml.merges", e->merge_count);
    for (int64_t i = 0; i < e->merge_count; i++) {
        const fb_exported_token *left = &e->tokens[e->merges[i][0]], *right = &e->tokens[e->merges[i][1]];
        size_t size = (size_t)(left->size + right->size) + 1;
        if (size > capacity) {
            capacity = 2 * size;
            free(text);
            text = malloc(capacity);
            if (!text) return fb_fail_memory(err, "merges", (int64_t)capacity);
        }
        memcpy(text, left->text, (size_t)left->size);
        text[left->size] = ' ';
        memcpy(text + left->size + 1, right->text, (size_t)right->size);
        fb_gguf_item_string(w, text, (int64_t)size);
    }
    free(text);
    return FB_OK;
}

static void put_id(fb_gguf_writer *w, const char *key, int32_t id) {
    if (id >= 0) fb_gguf_put_u32(w, key, id);
}

/* A text may end in three ways: at the end of a text, a turn or a message. */
static fb_status put_ids(fb_gguf_writer *w, const fb_spec *spec, const fb_exported *e, fb_error *err) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    enum { ENDS = sizeof ends / sizeof *ends };
    if (spec->end_count > ENDS)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "eos_token_id: %d ids (a GGUF file has room for %d)",
                       spec->end_count, ENDS);
    if (e->end >= 0 && (spec->end_count == 0 || spec->ends[0] != e->end))
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "tokenizer: post_processor: id %d after a text (in a GGUF file, only eos_token_id)",
                       e->end);
    put_id(w, "tokenizer.ggml.bos_token_id", e->begin >= 0 ? e->begin : spec->begin);
    for (int32_t i = 0; i < spec->end_count; i++) put_id(w, ends[i], spec->ends[i]);
    put_id(w, "tokenizer.ggml.unknown_token_id", e->unknown);
    fb_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", e->begin >= 0);
    fb_gguf_put_bool(w, "tokenizer.ggml.add_eos_token", e->end >= 0);
    return FB_OK;
}

static fb_status put_exported(fb_gguf_writer *w, const fb_spec *spec, const fb_exported *e, fb_error *err) {
    fb_gguf_put_string(w, "tokenizer.ggml.model", "gpt2");
    fb_gguf_put_string(w, "tokenizer.ggml.pre", e->pre);
    put_tokens(w, e, spec->program.vocab);
    FB_TRY(put_merges(w, e, err));
    FB_TRY(put_ids(w, spec, e, err));
    if (e->nfc) fb_gguf_put_string(w, FB_GGUF_NORMALIZER, "nfc");
    return FB_OK;
}

/* The format has a key for each template. */
static void put_templates(const fb_model *m, fb_gguf_writer *w) {
    const char *name, *text;
    for (int i = 0; fb_model_chat_template(m, i, &name, &text); i++) {
        char key[128] = "tokenizer.chat_template";
        if (strcmp(name, "default") != 0) snprintf(key, sizeof key, "tokenizer.chat_template.%.80s", name);
        fb_gguf_put_string(w, key, text);
    }
}

static fb_status put_tokenizer(const fb_model *m, fb_gguf_writer *w, fb_error *err) {
    if (m->gguf) {
        fb_gguf_copy(w, m->gguf, "tokenizer.", NULL);
        fb_gguf_copy(w, m->gguf, FB_GGUF_NORMALIZER, NULL);
        return FB_OK;
    }
    if (!m->tokenizer) {
        fb_gguf_put_string(w, "tokenizer.ggml.model", "none");
        return put_ids(w, m->spec, &(fb_exported){.begin = -1, .end = -1, .unknown = -1}, err);
    }
    fb_exported exported;
    fb_status status = fb_tokenizer_export(m->tokenizer, &exported, err);
    if (status == FB_OK) status = put_exported(w, m->spec, &exported, err);
    if (status == FB_OK) put_templates(m, w);
    fb_exported_free(&exported);
    return status;
}

/* ---- about the model ------------------------------------------------------------------------------------
 */

/* "135M", "1.1B": as others name a size. */
static const char *size_label(int64_t parameters, char text[16]) {
    static const struct {
        double unit;
        char letter;
    } units[] = {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}, {1e3, 'K'}};
    snprintf(text, 16, "%d", (int)(parameters % 1000));
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        double value = (double)parameters / units[i].unit;
        if (value < 1) continue;
        snprintf(text, 16, value < 9.95 ? "%.1f%c" : "%.0f%c", value, units[i].letter);
        break;
    }
    return text;
}

/* What a GGUF file says about its model is kept: all but what is written anew, and the alignment of its data.
 */
static void put_general(const fb_model *m, const fb_quantize_options *o, fb_gguf_writer *w) {
    static const char *const own[] = {"general.architecture", "general.type",
                                      "general.file_type",    "general.quantization_version",
                                      "general.alignment",    NULL};
    char label[16];
    fb_gguf_put_string(w, "general.type", "model");
    if (m->gguf) {
        fb_gguf_copy(w, m->gguf, "general.", own);
    } else {
        if (o->name) fb_gguf_put_string(w, "general.name", o->name);
        fb_gguf_put_string(w, "general.size_label", size_label(m->info.parameters, label));
    }
    fb_gguf_put_u32(w, "general.file_type", fb_mix_file_type(o));
    fb_gguf_put_u32(w, "general.quantization_version", QUANTIZATION_VERSION);
}

fb_status fb_model_put_metadata(const fb_model *m, const fb_quantize_options *o, fb_gguf_writer *w,
                                fb_error *err) {
    target t = {w, fb_gguf_architecture(m->spec->architecture)};
    if (!t.prefix)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "architecture: %s (no GGUF name is known for it)",
                       m->spec->architecture);
    fb_gguf_put_string(w, "general.architecture", t.prefix);
    put_general(m, o, w);
    FB_TRY(put_model(m->spec, &t, err));
    return put_tokenizer(m, w, err);
}
