/* The tokenizer in a GGUF file's metadata (tokenizer.ggml.*): "gpt2", byte-level BPE with merges; "llama",
 * SentencePiece's BPE with scores; "t5", its Unigram; or "gemma4", BPE with merges of SentencePiece's pieces.
 * The file says neither how a text is normalised (not at all, unless we
 * wrote it) nor, for "gpt2", how it is split into words, but for a name (gguf_pre.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "text/gguf_pre.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#define KEY(name)    "tokenizer.ggml." name
#define SPACE        "\xE2\x96\x81" /* U+2581, SentencePiece's space */
#define MERGES_LIMIT (1 << 24)

/* tokenizer.ggml.token_type */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

typedef struct loading {
    const char *what;
    const fb_gguf *gguf;
    fb_tokenizer *tokenizer;
    bool add_bos, add_eos; /* unless the file says otherwise */
    int64_t bos, eos;      /* likewise; -1: none */
} loading;

/* An array of the metadata, which has `count` elements unless that is negative. `out` is NULL if it is
 * missing and not needed. */
static fb_status find_array(const loading *l, const char *key, bool needed, int64_t count,
                            const fb_gguf_array **out, fb_error *err) {
    *out = fb_gguf_find_array(l->gguf, key);
    if (!*out) return needed ? fb_fail(err, FB_ERROR_FILE, "%s: %s: missing array", l->what, key) : FB_OK;
    if (count >= 0 && (*out)->count != count)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %lld elements (%lld tokens)", l->what, key,
                       (long long)(*out)->count, (long long)count);
    return FB_OK;
}

static fb_status wrong_type(const loading *l, const fb_gguf_array *array, const char *expected,
                            fb_error *err) {
    return fb_fail(err, FB_ERROR_FILE, "%s: %s: array of %s (%s)", l->what, array->key,
                   fb_gguf_type_name(array->type), expected);
}

/* ---- vocabulary ---- */

static fb_status add_token(const loading *l, int64_t id, fb_gguf_text text, fb_error *err) {
    fb_vocab *vocab = &l->tokenizer->bpe.vocab;
    char where[256];
    snprintf(where, sizeof where, "%.150s: %s[%lld]", l->what, KEY("tokens"), (long long)id);
    if (!fb_utf8_valid(text.data, text.size)) return fb_fail(err, FB_ERROR_FILE, "%s: not UTF-8", where);
    if (text.size == 0) return fb_vocab_name(vocab, where, id, "", 0, err);
    int32_t other = fb_vocab_find(vocab, text.data, text.size);
    if (other >= 0)
        return fb_fail(err, FB_ERROR_FILE, "%s: \"%.*s\" (token %d already)", where,
                       (int)(text.size < 64 ? text.size : 64), text.data, (int)other);
    return fb_vocab_add(vocab, where, id, text.data, text.size, err);
}

static fb_status load_vocab(const loading *l, fb_error *err) {
    const fb_gguf_array *tokens = NULL;
    FB_TRY(find_array(l, KEY("tokens"), true, -1, &tokens, err));
    if (tokens->type != FB_GGUF_STRING) return wrong_type(l, tokens, "strings", err);
    if (tokens->count == 0 || tokens->count > FB_VOCAB_LIMIT)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %lld tokens (1 to %d)", l->what, tokens->key,
                       (long long)tokens->count, FB_VOCAB_LIMIT);
    FB_TRY(fb_vocab_create(&l->tokenizer->bpe.vocab, tokens->count, tokens->count, err));
    const uint8_t *at = tokens->data;
    for (int64_t id = 0; id < tokens->count; id++) FB_TRY(add_token(l, id, fb_gguf_next_text(&at), err));
    return FB_OK;
}

/* Tokens that are cut out of a text before anything else; but for the user's own they leave no trace in it
 * again. */
static fb_status load_types(const loading *l, fb_error *err) {
    fb_vocab *vocab = &l->tokenizer->bpe.vocab;
    const fb_gguf_array *types;
    FB_TRY(find_array(l, KEY("token_type"), false, vocab->ids, &types, err));
    if (!types) return FB_OK;
    if (!fb_gguf_is_int(types->type)) return wrong_type(l, types, "integers", err);
    for (int64_t id = 0; id < vocab->ids; id++) {
        int64_t type = fb_gguf_int_at(types, id);
        if (type < UNKNOWN || type > UNUSED) continue;
        fb_token *token = &vocab->tokens[id];
        token->special = type != USER_DEFINED;
        if (type == UNUSED) continue; /* only fills a number */
        FB_TRY(fb_added_insert(&l->tokenizer->raw, (fb_added_token){.id = (int32_t)id},
                               vocab->text.data + token->offset, token->size, err));
    }
    return fb_added_build(&l->tokenizer->raw, err);
}

/* ---- what is added around a text ---- */

static fb_status load_id(const loading *l, const char *key, int64_t fallback, int64_t *out, fb_error *err) {
    return fb_json_int(l->what, l->gguf->values, key, 0, l->tokenizer->bpe.vocab.ids - 1, fallback, out, err);
}

/* The token of `id_key` before or behind each text, if `add_key` says so. */
static fb_status load_around(const loading *l, const char *add_key, bool add, const char *id_key, int64_t id,
                             fb_ids *out, fb_error *err) {
    FB_TRY(fb_json_bool(l->what, l->gguf->values, add_key, add, &add, err));
    FB_TRY(load_id(l, id_key, id, &id, err));
    if (!add) return FB_OK;
    if (id < 0 || id >= l->tokenizer->bpe.vocab.ids)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: missing (%s needs it)", l->what, id_key, add_key);
    return fb_ids_append(out, &(int32_t){(int32_t)id}, 1, err);
}

static fb_status load_template(const loading *l, fb_error *err) {
    bool separator;
    FB_TRY(fb_json_bool(l->what, l->gguf->values, KEY("add_sep_token"), false, &separator, err));
    if (separator)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: true (only false)", l->what, KEY("add_sep_token"));
    FB_TRY(load_around(l, KEY("add_bos_token"), l->add_bos, KEY("bos_token_id"), l->bos,
                       &l->tokenizer->prefix, err));
    return load_around(l, KEY("add_eos_token"), l->add_eos, KEY("eos_token_id"), l->eos,
                       &l->tokenizer->suffix, err);
}

/* ---- "gpt2" ---- */

/* "left right"; a token may itself start with a space. */
static fb_status add_merge(const loading *l, int64_t index, fb_gguf_text merge, fb_bytes *pair,
                           fb_error *err) {
    const char *space = merge.size > 2 ? memchr(merge.data + 1, ' ', (size_t)merge.size - 1) : NULL;
    if (!space || space + 1 == merge.data + merge.size)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s[%lld]: \"%.*s\" (two tokens and a space)", l->what,
                       KEY("merges"), (long long)index, (int)(merge.size < 64 ? merge.size : 64), merge.data);
    int64_t left = space - merge.data;
    pair->size = 0;
    FB_TRY(fb_bytes_append(pair, merge.data, left, err));
    FB_TRY(fb_bytes_append(pair, space + 1, merge.size - left - 1, err));
    return fb_bpe_add_merge(&l->tokenizer->bpe, l->what, (uint32_t)index, pair->data, left, pair->size, err);
}

static fb_status load_merges(const loading *l, fb_error *err) {
    const fb_gguf_array *merges = NULL;
    FB_TRY(find_array(l, KEY("merges"), true, -1, &merges, err));
    if (merges->type != FB_GGUF_STRING) return wrong_type(l, merges, "strings", err);
    if (merges->count > MERGES_LIMIT)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %lld merges (at most %d)", l->what, merges->key,
                       (long long)merges->count, MERGES_LIMIT);
    FB_TRY(fb_bpe_prepare(&l->tokenizer->bpe, merges->count, err));
    const uint8_t *at = merges->data;
    fb_bytes pair = {0};
    fb_status status = FB_OK;
    for (int64_t i = 0; i < merges->count && status == FB_OK; i++)
        status = add_merge(l, i, fb_gguf_next_text(&at), &pair, err);
    fb_bytes_free(&pair);
    return status;
}

static fb_status load_words(const loading *l, const char *const *patterns, fb_error *err) {
    fb_tokenizer *tokenizer = l->tokenizer;
    for (const char *const *pattern = patterns; *pattern; pattern++) {
        fb_splitter *step = &tokenizer->splitters[tokenizer->splitter_count++];
        step->kind = FB_SPLITTER_PATTERN;
        FB_TRY(fb_pattern_compile(l->what, *pattern, (int64_t)strlen(*pattern), false, &step->pattern, err));
    }
    return FB_OK;
}

/* Tokens that were cut out of a text are that text; the decoder takes every character for a byte. */
static fb_status show_added(const loading *l, fb_error *err) {
    fb_vocab *vocab = &l->tokenizer->bpe.vocab;
    fb_bytes shown = {0};
    fb_status status = FB_OK;
    for (int64_t i = 0; i < l->tokenizer->raw.count && status == FB_OK; i++) {
        int32_t id = l->tokenizer->raw.tokens[i].id;
        const fb_token *token = &vocab->tokens[id];
        shown.size = 0;
        status = fb_bytes_reserve(&shown, 2 * (int64_t)token->size, err); /* all are below U+0800 */
        for (uint32_t k = 0; k < token->size && status == FB_OK; k++) {
            unsigned char byte = (unsigned char)vocab->text.data[token->offset + k];
            shown.size += fb_utf8_write(fb_byte_to_char(byte), shown.data + shown.size);
        }
        if (status == FB_OK) status = fb_vocab_show(vocab, id, shown.data, shown.size, err);
    }
    fb_bytes_free(&shown);
    return status;
}

/* Our own key: the format has no word for it. */
static fb_status load_normalizer(const loading *l, fb_error *err) {
    const char *name;
    FB_TRY(fb_json_string(l->what, l->gguf->values, FB_GGUF_NORMALIZER, "none", &name, err));
    if (strcmp(name, "none") == 0) return FB_OK;
    if (strcmp(name, "nfc") != 0)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: \"%.64s\" (known: none, nfc)", l->what,
                       FB_GGUF_NORMALIZER, name);
    l->tokenizer->normalizers[l->tokenizer->normalizer_count++].kind = FB_NORMALIZER_NFC;
    return FB_OK;
}

static fb_status load_gpt2(loading *l, fb_error *err) {
    const char *name;
    bool prefix;
    FB_TRY(fb_json_string(l->what, l->gguf->values, KEY("pre"), "default", &name, err));
    const fb_gguf_pre *pre = fb_gguf_pre_find(name);
    if (!pre)
        return fb_fail(
            err, FB_ERROR_UNSUPPORTED,
            "%s: %s: \"%.64s\" (known: gpt-2, llama-bpe, qwen2, deepseek-v3, gpt-4o, tekken and others: "
            "docs/tokenizers.md)",
            l->what, KEY("pre"), name);
    FB_TRY(fb_json_bool(l->what, l->gguf->values, KEY("add_space_prefix"), false, &prefix, err));
    if (prefix)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: true (only false for gpt2)", l->what,
                       KEY("add_space_prefix"));
    l->add_bos = pre->add_bos;
    l->tokenizer->bpe.ignore_merges = pre->ignore_merges;
    FB_TRY(load_normalizer(l, err));
    FB_TRY(load_merges(l, err));
    FB_TRY(load_words(l, pre->patterns, err));
    l->tokenizer->splitters[l->tokenizer->splitter_count++].kind = FB_SPLITTER_BYTE_LEVEL;
    FB_TRY(show_added(l, err));
    l->tokenizer->decoder.kind = FB_DECODER_BYTE_LEVEL;
    l->tokenizer->decoder.fused = true;
    return FB_OK;
}

/* ---- "llama" ---- */

static fb_status load_scores(const loading *l, fb_error *err) {
    fb_bpe *bpe = &l->tokenizer->bpe;
    const fb_gguf_array *array;
    FB_TRY(find_array(l, KEY("scores"), false, bpe->vocab.ids, &array, err));
    if (array && !fb_gguf_is_real(array->type)) return wrong_type(l, array, "floats", err);
    float *scores = calloc((size_t)bpe->vocab.ids, sizeof *scores);
    if (!scores) return fb_fail_memory(err, "scores", bpe->vocab.ids * (int64_t)sizeof *scores);
    fb_status status = FB_OK;
    for (int64_t id = 0; array && id < bpe->vocab.ids && status == FB_OK; id++) {
        scores[id] = (float)fb_gguf_real_at(array, id);
        if (isnan(scores[id]))
            status = fb_fail(err, FB_ERROR_FILE, "%s: %s[%lld]: nan (a number)", l->what, array->key,
                             (long long)id);
    }
    if (status == FB_OK) status = fb_bpe_use_scores(bpe, scores, err);
    free(scores);
    return status;
}

static fb_status add_normalizer(fb_tokenizer *tokenizer, fb_normalizer_kind kind, const char *from,
                                const char *to, fb_error *err) {
    fb_normalizer *step = &tokenizer->normalizers[tokenizer->normalizer_count++];
    step->kind = kind;
    FB_TRY(fb_bytes_append(&step->replace.from, from, (int64_t)strlen(from), err));
    return fb_bytes_append(&step->replace.to, to, (int64_t)strlen(to), err);
}

/* The letter that stands for a space becomes one; the first of a text is dropped if `prefix`. */
static fb_status show_spaces(const loading *l, bool prefix, fb_error *err) {
    fb_decoder *decoder = &l->tokenizer->decoder;
    fb_replacement *back = &decoder->replaces[decoder->replace_count++];
    FB_TRY(fb_bytes_append(&back->from, SPACE, sizeof SPACE - 1, err));
    FB_TRY(fb_bytes_append(&back->to, " ", 1, err));
    decoder->kind = FB_DECODER_BYTE_FALLBACK;
    decoder->fused = true;
    decoder->strip[0] = ' ';
    decoder->strip_size = 1;
    decoder->strip_count = prefix;
    return FB_OK;
}

/* Spaces become a letter, and every text starts with one; the decoder takes that away again. */
static fb_status load_spaces(const loading *l, fb_error *err) {
    bool prefix;
    FB_TRY(fb_json_bool(l->what, l->gguf->values, KEY("add_space_prefix"), true, &prefix, err));
    if (prefix) FB_TRY(add_normalizer(l->tokenizer, FB_NORMALIZER_PREPEND, "", SPACE, err));
    FB_TRY(add_normalizer(l->tokenizer, FB_NORMALIZER_REPLACE, " ", SPACE, err));
    return show_spaces(l, prefix, err);
}

static fb_status load_llama(loading *l, fb_error *err) {
    fb_bpe *bpe = &l->tokenizer->bpe;
    int64_t unknown;
    FB_TRY(load_id(l, KEY("unknown_token_id"), 0, &unknown, err));
    bpe->unknown_id = (int32_t)unknown;
    l->add_bos = true;
    l->bos = 1; /* SentencePiece's own numbers */
    l->eos = 2;
    FB_TRY(fb_bpe_prepare(bpe, 0, err));
    FB_TRY(load_scores(l, err));
    return load_spaces(l, err);
}

/* ---- "t5" ---- */

/* What SentencePiece does to a text, by the map of the file. */
static fb_status load_map(const loading *l, fb_error *err) {
    fb_normalizer *step = &l->tokenizer->normalizers[l->tokenizer->normalizer_count++];
    step->kind = FB_NORMALIZER_SENTENCEPIECE;
    const fb_json *values = l->gguf->values;
    FB_TRY(fb_json_bool(l->what, values, KEY("add_space_prefix"), true, &step->prefix, err));
    FB_TRY(fb_json_bool(l->what, values, KEY("remove_extra_whitespaces"), false, &step->merge_spaces, err));
    const fb_gguf_array *map = fb_gguf_find_array(l->gguf, KEY("precompiled_charsmap"));
    if (!map) return FB_OK;
    if (map->type != FB_GGUF_U8 && map->type != FB_GGUF_I8) return wrong_type(l, map, "bytes", err);
    return fb_charsmap_create(l->what, map->data, map->count, &step->map, err);
}

/* `used` [ids]: which tokens a text may be cut into. */
static fb_status load_unigram(const loading *l, int64_t unknown, double *scores, bool *used, fb_error *err) {
    int64_t ids = l->tokenizer->bpe.vocab.ids;
    const fb_gguf_array *array = NULL, *types;
    double lowest = 0;
    bool any = false;
    fb_status status = find_array(l, KEY("scores"), true, ids, &array, err);
    if (status == FB_OK && !fb_gguf_is_real(array->type)) status = wrong_type(l, array, "floats", err);
    if (status == FB_OK) status = find_array(l, KEY("token_type"), false, ids, &types, err);
    for (int64_t id = 0; id < ids && status == FB_OK; id++) {
        int64_t type = types ? fb_gguf_int_at(types, id) : NORMAL;
        double score = fb_gguf_real_at(array, id);
        if (!isfinite(score))
            status = fb_fail(err, FB_ERROR_FILE, "%s: %s[%lld]: %g (a number)", l->what, array->key,
                             (long long)id, score);
        used[id] = type == NORMAL || type == USER_DEFINED || type == UNUSED;
        scores[id] = type == USER_DEFINED ? 0 : score;
        if (type == NORMAL && (!any || score < lowest)) lowest = score;
        any = any || type == NORMAL;
    }
    if (status == FB_OK)
        return fb_tokenizer_use_unigram(l->tokenizer, scores, used, lowest, (int32_t)unknown, false, err);
    free(scores);
    return status;
}

static fb_status load_t5(loading *l, fb_error *err) {
    int64_t ids = l->tokenizer->bpe.vocab.ids, unknown;
    FB_TRY(load_id(l, KEY("unknown_token_id"), 2, &unknown, err));
    if (unknown >= ids)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %lld (0 to %lld)", l->what, KEY("unknown_token_id"),
                       (long long)unknown, (long long)ids - 1);
    l->eos = 1; /* T5's own number */
    l->add_eos = true;
    double *scores = calloc((size_t)ids, sizeof *scores);
    bool *used = calloc((size_t)ids, sizeof *used);
    if (!scores || !used) {
        free(scores);
        free(used);
        return fb_fail_memory(err, "scores", ids * (int64_t)sizeof *scores);
    }
    fb_status status = load_unigram(l, unknown, scores, used, err);
    free(used);
    if (status == FB_OK) status = load_map(l, err);
    return status == FB_OK ? show_spaces(l, true, err) : status;
}

/* ---- "gemma4" ---- */

/* Merges of characters, as "gpt2", but spaces are a letter, and other characters their bytes' tokens. Lines
 * are split, because no token goes over a line's end. */
static fb_status load_gemma4(loading *l, fb_error *err) {
    static const char *const lines[] = {"[^\\n]+|[\\n]+", NULL};
    l->tokenizer->bpe.byte_fallback = true;
    FB_TRY(load_merges(l, err));
    FB_TRY(load_words(l, lines, err));
    FB_TRY(add_normalizer(l->tokenizer, FB_NORMALIZER_REPLACE, " ", SPACE, err));
    return show_spaces(l, false, err);
}

/* ---- the file ---- */

static const struct {
    const char *name;
    fb_status (*load)(loading *l, fb_error *err);
} models[] = {{"gpt2", load_gpt2}, {"llama", load_llama}, {"t5", load_t5}, {"gemma4", load_gemma4}};

static fb_status load_all(loading *l, int model, fb_error *err) {
    if (models[model].load != load_t5 && fb_gguf_find_array(l->gguf, KEY("precompiled_charsmap")))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: a normalisation of its own (not known)", l->what,
                       KEY("precompiled_charsmap"));
    FB_TRY(load_vocab(l, err));
    FB_TRY(load_types(l, err));
    FB_TRY(models[model].load(l, err));
    return load_template(l, err);
}

fb_status fb_tokenizer_from_gguf(const char *what, const fb_gguf *gguf, fb_tokenizer **out, fb_error *err) {
    *out = NULL;
    const char *name;
    FB_TRY(fb_json_string(what, gguf->values, KEY("model"), "none", &name, err));
    if (strcmp(name, "none") == 0 || strcmp(name, "no_vocab") == 0) return FB_OK;
    int model = 0, count = sizeof models / sizeof *models;
    while (model < count && strcmp(name, models[model].name) != 0) model++;
    if (model == count)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: \"%.64s\" (known: gpt2, llama, t5, gemma4)", what,
                       KEY("model"), name);
    loading l = {.what = what, .gguf = gguf, .bos = -1, .eos = -1};
    l.tokenizer = calloc(1, sizeof *l.tokenizer);
    if (!l.tokenizer) return fb_fail_memory(err, "tokenizer", (int64_t)sizeof *l.tokenizer);
    fb_status status = load_all(&l, model, err);
    if (status == FB_OK)
        *out = l.tokenizer;
    else
        fb_tokenizer_free(l.tokenizer);
    return status;
}
