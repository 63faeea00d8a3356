#include "text/sentencepiece.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/map.h"
#include "text/tokenizer_impl.h"

#define FILE_LIMIT (256u << 20)
#define JSON_LIMIT (16u << 20)
#define PATH_SIZE  4096
#define SPACE      "\xE2\x96\x81" /* U+2581, SentencePiece's space */

typedef struct loading {
    const char *what;
    fb_piece_file file;
    const fb_piece_options *options;
    fb_piece_style style;
    fb_tokenizer *tokenizer;
} loading;

/* ---- tokenizer_config.json ---- */

/* By the name of the class, with or without "Fast" at its end. */
static fb_status find_style(loading *l, fb_error *err) {
    static const struct {
        const char *prefix;
        fb_piece_style style;
    } classes[] = {{"LlamaTokenizer", FB_PIECES_LLAMA},
                   {"CodeLlamaTokenizer", FB_PIECES_LLAMA},
                   {"GemmaTokenizer", FB_PIECES_GEMMA},
                   {"T5Tokenizer", FB_PIECES_T5}};
    const char *name;
    l->style = FB_PIECES_PLAIN;
    FB_TRY(fb_json_string(l->what, l->options->config, "tokenizer_class", NULL, &name, err));
    if (!name) return FB_OK;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        size_t size = strlen(classes[i].prefix);
        if (strncmp(name, classes[i].prefix, size) == 0 && (!name[size] || strcmp(name + size, "Fast") == 0))
            l->style = classes[i].style;
    }
    if (l->style == FB_PIECES_PLAIN && strcmp(name, "PreTrainedTokenizerFast") != 0)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "%s: tokenizer_class: \"%.64s\" (known: LlamaTokenizer, CodeLlamaTokenizer, "
                       "GemmaTokenizer, T5Tokenizer; others: save it as tokenizer.json)",
                       l->what, name);
    bool unigram = l->file.model_type == FB_PIECES_UNIGRAM;
    if (l->style != FB_PIECES_PLAIN && unigram != (l->style == FB_PIECES_T5))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: tokenizer_class: \"%.64s\" of a %s model", l->what,
                       name, unigram ? "Unigram" : "BPE");
    return FB_OK;
}

/* ---- vocabulary ---- */

/* One more than the highest id of a list {"content": id} or {"id": {…}}. */
static fb_status count_ids(const loading *l, const fb_json *list, bool by_id, int64_t *ids, fb_error *err) {
    for (const fb_json *value = fb_json_first(list); value; value = fb_json_next(value)) {
        char *end = NULL;
        int64_t id = by_id ? strtoll(fb_json_key(value), &end, 10) : fb_json_int_of(value);
        if ((by_id ? *end || !fb_json_is(value, FB_JSON_OBJECT) : !fb_json_is(value, FB_JSON_INT)) ||
            id < 0 || id >= FB_VOCAB_LIMIT || id > 2 * l->file.count + 65536)
            return fb_fail(err, FB_ERROR_FILE, "%s: added token \"%.64s\": no id (0 to %lld)", l->what,
                           fb_json_key(value), (long long)(2 * l->file.count + 65536));
        if (id >= *ids) *ids = id + 1;
    }
    return FB_OK;
}

static fb_status add_pieces(loading *l, int64_t ids, fb_error *err) {
    fb_vocab *vocab = &l->tokenizer->bpe.vocab;
    FB_TRY(fb_vocab_create(vocab, ids, l->file.count, err));
    for (int64_t id = 0; id < l->file.count; id++) {
        const fb_piece *piece = &l->file.pieces[id];
        char where[256];
        snprintf(where, sizeof where, "%.200s: piece %lld", l->what, (long long)id);
        int32_t other = piece->size ? fb_vocab_find(vocab, piece->text, piece->size) : -1;
        if (other >= 0)
            return fb_fail(err, FB_ERROR_FILE, "%s: \"%.*s\" (piece %d already)", where,
                           (int)(piece->size < 64 ? piece->size : 64), piece->text, (int)other);
        FB_TRY((piece->size ? fb_vocab_add : fb_vocab_name)(vocab, where, id, piece->text, piece->size, err));
        bool special = piece->type == FB_PIECE_CONTROL || piece->type == FB_PIECE_UNKNOWN;
        vocab->tokens[id].special = special;
        if (special || piece->type == FB_PIECE_USER)
            FB_TRY(fb_added_insert(&l->tokenizer->raw, (fb_added_token){.id = (int32_t)id}, piece->text,
                                   piece->size, err));
    }
    return FB_OK;
}

/* ---- added tokens ---- */

static fb_status add_token(loading *l, fb_added_token token, const char *content, bool special,
                           fb_error *err) {
    fb_vocab *vocab = &l->tokenizer->bpe.vocab;
    int64_t size = (int64_t)strlen(content);
    bool known = vocab->tokens[token.id].used;
    if (known && (vocab->tokens[token.id].size != size ||
                  memcmp(vocab->text.data + vocab->tokens[token.id].offset, content, (size_t)size) != 0))
        return fb_fail(err, FB_ERROR_FILE, "%s: added token \"%.64s\": id %d (another piece's)", l->what,
                       content, (int)token.id);
    if (!known) FB_TRY(fb_vocab_name(vocab, l->what, token.id, content, size, err));
    vocab->tokens[token.id].special = special;
    if (token.id < l->file.count && l->file.pieces[token.id].type != FB_PIECE_NORMAL &&
        l->file.pieces[token.id].type != FB_PIECE_UNUSED && l->file.pieces[token.id].type != FB_PIECE_BYTE)
        return FB_OK; /* is one already */
    return fb_added_insert(&l->tokenizer->raw, token, content, size, err);
}

/* "added_tokens_decoder": {"32000": {"content": "<tool>", "special": true, …}}. */
static fb_status add_decoder_tokens(loading *l, const fb_json *list, fb_error *err) {
    for (const fb_json *value = fb_json_first(list); value; value = fb_json_next(value)) {
        const char *content;
        bool special;
        fb_added_token token = {.id = (int32_t)strtoll(fb_json_key(value), NULL, 10)};
        FB_TRY(fb_json_need_string(l->what, value, "content", &content, err));
        FB_TRY(fb_json_bool(l->what, value, "single_word", false, &token.single_word, err));
        FB_TRY(fb_json_bool(l->what, value, "lstrip", false, &token.lstrip, err));
        FB_TRY(fb_json_bool(l->what, value, "rstrip", false, &token.rstrip, err));
        FB_TRY(fb_json_bool(l->what, value, "special", false, &special, err));
        FB_TRY(add_token(l, token, content, special, err));
    }
    return FB_OK;
}

/* A special token of special_tokens_map.json: "<s>" or {"content": "<s>", …}, or a list of them. */
static bool is_named(const fb_json *value, const char *content) {
    const fb_json *text = fb_json_is(value, FB_JSON_OBJECT) ? fb_json_get(value, "content") : value;
    if (fb_json_is(text, FB_JSON_STRING)) return strcmp(fb_json_text_of(text), content) == 0;
    if (!fb_json_is(value, FB_JSON_ARRAY)) return false;
    for (const fb_json *entry = fb_json_first(value); entry; entry = fb_json_next(entry)) {
        const fb_json *name = fb_json_is(entry, FB_JSON_OBJECT) ? fb_json_get(entry, "content") : entry;
        if (fb_json_is(name, FB_JSON_STRING) && strcmp(fb_json_text_of(name), content) == 0) return true;
    }
    return false;
}

static fb_status add_listed_tokens(loading *l, const fb_json *list, fb_error *err) {
    for (const fb_json *value = fb_json_first(list); value; value = fb_json_next(value)) {
        bool special = false;
        const fb_json *name = fb_json_first(l->options->special_names);
        for (; name && !special; name = fb_json_next(name)) special = is_named(name, fb_json_key(value));
        fb_added_token token = {.id = (int32_t)fb_json_int_of(value)};
        FB_TRY(add_token(l, token, fb_json_key(value), special, err));
    }
    return FB_OK;
}

static fb_status load_vocab(loading *l, fb_error *err) {
    const fb_json *decoder = fb_json_member(l->options->config, "added_tokens_decoder");
    const fb_json *listed = decoder ? NULL : l->options->added_tokens;
    int64_t ids = l->file.count;
    FB_TRY(count_ids(l, decoder, true, &ids, err));
    FB_TRY(count_ids(l, listed, false, &ids, err));
    FB_TRY(add_pieces(l, ids, err));
    FB_TRY(add_decoder_tokens(l, decoder, err));
    FB_TRY(add_listed_tokens(l, listed, err));
    return fb_added_build(&l->tokenizer->raw, err);
}

/* ---- the model ---- */

static fb_status load_bpe(loading *l, fb_error *err) {
    fb_bpe *bpe = &l->tokenizer->bpe;
    float *scores = calloc((size_t)bpe->vocab.ids, sizeof *scores);
    if (!scores) return fb_fail_memory(err, "scores", bpe->vocab.ids * (int64_t)sizeof *scores);
    for (int64_t id = 0; id < l->file.count; id++) scores[id] = l->file.pieces[id].score;
    bpe->unknown_id = (int32_t)l->file.unknown;
    bpe->fuse_unknown = true;
    fb_status status = fb_bpe_prepare(bpe, 0, err);
    if (status == FB_OK) status = fb_bpe_use_scores(bpe, scores, err);
    for (int byte = 0; byte < 256 && !l->file.byte_fallback; byte++) bpe->byte_ids[byte] = -1;
    free(scores);
    return status;
}

static fb_status load_unigram(loading *l, fb_error *err) {
    int64_t ids = l->tokenizer->bpe.vocab.ids;
    double *scores = calloc((size_t)ids, sizeof *scores), lowest = 0;
    bool *used = calloc((size_t)ids, sizeof *used), any = false;
    if (!scores || !used) {
        free(scores);
        free(used);
        return fb_fail_memory(err, "scores", ids * (int64_t)sizeof *scores);
    }
    for (int64_t id = 0; id < l->file.count; id++) {
        const fb_piece *piece = &l->file.pieces[id];
        used[id] = l->style == FB_PIECES_T5 || piece->type == FB_PIECE_NORMAL ||
                   piece->type == FB_PIECE_USER || piece->type == FB_PIECE_UNUSED;
        scores[id] = piece->score;
        if (piece->type != FB_PIECE_NORMAL) continue;
        if (!any || scores[id] < lowest) lowest = scores[id];
        any = true;
    }
    /* Hugging Face's T5 has no byte fallback. */
    fb_status status = fb_tokenizer_use_unigram(l->tokenizer, scores, used, lowest, (int32_t)l->file.unknown,
                                                l->file.byte_fallback && l->style != FB_PIECES_T5, err);
    free(used);
    return status;
}

/* ---- spaces ---- */

static fb_normalizer *add_normalizer(loading *l, fb_normalizer_kind kind) {
    fb_normalizer *step = &l->tokenizer->normalizers[l->tokenizer->normalizer_count++];
    step->kind = kind;
    return step;
}

static void add_metaspace(loading *l, fb_prepend prepend, bool split) {
    fb_splitter *step = &l->tokenizer->splitters[l->tokenizer->splitter_count++];
    *step = (fb_splitter){.kind = FB_SPLITTER_METASPACE, .space_size = 3, .prepend = prepend, .split = split};
    memcpy(step->space, SPACE, 3);
}

static fb_status load_map(loading *l, fb_normalizer *step, fb_error *err) {
    return fb_charsmap_create(l->what, l->file.charsmap, l->file.charsmap_size, &step->map, err);
}

/* `prefix`: texts get a space in front, which the decoder takes away again. */
static fb_status load_spaces(loading *l, bool *prefix, fb_error *err) {
    bool legacy;
    *prefix = l->file.prefix;
    switch (l->style) {
    case FB_PIECES_PLAIN: {
        fb_normalizer *step = add_normalizer(l, FB_NORMALIZER_SENTENCEPIECE);
        step->exact = true;
        step->prefix = l->file.prefix;
        step->merge_spaces = l->file.merge_spaces;
        return load_map(l, step, err);
    }
    case FB_PIECES_LLAMA:
        FB_TRY(fb_json_bool(l->what, l->options->config, "legacy", false, &legacy, err));
        FB_TRY(fb_json_bool(l->what, l->options->config, "add_prefix_space", true, prefix, err));
        add_metaspace(l, !*prefix ? FB_PREPEND_NEVER : legacy ? FB_PREPEND_ALWAYS : FB_PREPEND_FIRST, false);
        return FB_OK;
    case FB_PIECES_GEMMA:
        *prefix = false;
        add_metaspace(l, FB_PREPEND_NEVER, false);
        return FB_OK;
    case FB_PIECES_T5:
        *prefix = true;
        if (l->file.charsmap_size > 0) FB_TRY(load_map(l, add_normalizer(l, FB_NORMALIZER_CHARSMAP), err));
        l->tokenizer->splitters[l->tokenizer->splitter_count++] =
            (fb_splitter){.kind = FB_SPLITTER_SPACE, .behavior = FB_BEHAVIOR_REMOVED};
        add_metaspace(l, FB_PREPEND_ALWAYS, true);
        return FB_OK;
    }
    return FB_OK;
}

static fb_status load_decoder(loading *l, bool prefix, fb_error *err) {
    fb_decoder *decoder = &l->tokenizer->decoder;
    if (l->style == FB_PIECES_T5) {
        decoder->kind = FB_DECODER_METASPACE;
        memcpy(decoder->space, SPACE, 3);
        decoder->space_size = 3;
        decoder->drop_first = true;
        return FB_OK;
    }
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

/* ---- what is added around a text ---- */

/* The id of a token that tokenizer_config.json names, else the file's own. */
static fb_status find_named(const loading *l, const char *key, int64_t fallback, int64_t *id, fb_error *err) {
    const fb_json *value = fb_json_member(l->options->config, key);
    const fb_json *text = fb_json_is(value, FB_JSON_OBJECT) ? fb_json_get(value, "content") : value;
    *id = fallback;
    if (!fb_json_is(text, FB_JSON_STRING)) return FB_OK;
    const char *name = fb_json_text_of(text);
    const fb_vocab *vocab = &l->tokenizer->bpe.vocab;
    *id = fb_vocab_find(vocab, name, (int64_t)strlen(name));
    for (int64_t other = l->file.count; other < vocab->ids && *id < 0; other++)
        if (vocab->tokens[other].size == strlen(name) &&
            memcmp(vocab->text.data + vocab->tokens[other].offset, name, strlen(name)) == 0)
            *id = other;
    if (*id >= 0) return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: %s: \"%.64s\" (no piece and no added token)", l->what, key, name);
}

static fb_status load_around(const loading *l, const char *add_key, bool add, const char *key, int64_t id,
                             fb_ids *out, fb_error *err) {
    FB_TRY(fb_json_bool(l->what, l->options->config, add_key, add, &add, err));
    if (!add) return FB_OK;
    FB_TRY(find_named(l, key, id, &id, err));
    if (id < 0 || id >= l->tokenizer->bpe.vocab.ids || !l->tokenizer->bpe.vocab.tokens[id].used)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: missing (%s needs it)", l->what, key, add_key);
    return fb_ids_append(out, &(int32_t){(int32_t)id}, 1, err);
}

/* ---- the file ---- */

static fb_status load_all(loading *l, fb_error *err) {
    bool prefix, unigram = l->file.model_type == FB_PIECES_UNIGRAM;
    if (!unigram && l->file.model_type != FB_PIECES_BPE)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: model_type: %lld (known: 1, Unigram, and 2, BPE)",
                       l->what, (long long)l->file.model_type);
    if (l->file.suffix_space || !l->file.escape)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s (not known)", l->what,
                       l->file.escape ? "treat_whitespace_as_suffix: true" : "escape_whitespaces: false");
    if (l->file.unknown < 0 || l->file.unknown >= l->file.count)
        return fb_fail(err, FB_ERROR_FILE, "%s: unk_id: %lld (0 to %lld)", l->what,
                       (long long)l->file.unknown, (long long)l->file.count - 1);
    FB_TRY(find_style(l, err));
    FB_TRY(load_vocab(l, err));
    FB_TRY((unigram ? load_unigram : load_bpe)(l, err));
    FB_TRY(load_spaces(l, &prefix, err));
    FB_TRY(load_decoder(l, prefix, err));
    FB_TRY(load_around(l, "add_bos_token", !unigram, "bos_token", l->file.begin, &l->tokenizer->prefix, err));
    return load_around(l, "add_eos_token", l->style == FB_PIECES_T5, "eos_token", l->file.end,
                       &l->tokenizer->suffix, err);
}

fb_status fb_tokenizer_parse_model(const char *what, const uint8_t *bytes, size_t size,
                                   const fb_piece_options *options, fb_tokenizer **out, fb_error *err) {
    loading l = {.what = what, .options = options};
    *out = NULL;
    fb_status status = fb_piece_file_parse(what, bytes, size, &l.file, err);
    if (status == FB_OK) {
        l.tokenizer = calloc(1, sizeof *l.tokenizer);
        status =
            l.tokenizer ? load_all(&l, err) : fb_fail_memory(err, "tokenizer", (int64_t)sizeof *l.tokenizer);
    }
    free(l.file.pieces);
    if (status == FB_OK)
        *out = l.tokenizer;
    else
        fb_tokenizer_free(l.tokenizer);
    return status;
}

/* A JSON file beside `path`; NULL if there is none. */
static fb_status load_beside(const char *path, const char *name, fb_json **out, fb_error *err) {
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    char beside[PATH_SIZE];
    *out = NULL;
    if (snprintf(beside, sizeof beside, "%.*s%s", folder, path, name) >= PATH_SIZE)
        return fb_fail(err, FB_ERROR_FILE, "%.64s...: path of %zu bytes (at most %d)", path, strlen(path),
                       PATH_SIZE);
    return fb_map_missing(beside) ? FB_OK : fb_json_load(beside, JSON_LIMIT, out, err);
}

static fb_status parse_file(const char *path, const fb_piece_options *options, fb_tokenizer **out,
                            fb_error *err) {
    fb_map map;
    FB_TRY(fb_map_open(path, &map, err));
    fb_status status = FB_OK;
    uint8_t *bytes = NULL;
    if (map.size == 0 || map.size > FILE_LIMIT)
        status = fb_fail(err, FB_ERROR_FILE, "%s: %zu bytes (1 to %u)", path, map.size, FILE_LIMIT);
    if (status == FB_OK && !(bytes = malloc(map.size)))
        status = fb_fail_memory(err, "tokenizer.model", (int64_t)map.size);
    if (status == FB_OK) status = fb_map_copy(&map, path, 0, map.size, bytes, err);
    if (status == FB_OK) status = fb_tokenizer_parse_model(path, bytes, map.size, options, out, err);
    free(bytes);
    fb_map_close(&map);
    return status;
}

fb_status fb_tokenizer_open_model(const char *path, fb_tokenizer **out, fb_error *err) {
    fb_json *config = NULL, *added = NULL, *names = NULL;
    *out = NULL;
    fb_status status = load_beside(path, "tokenizer_config.json", &config, err);
    if (status == FB_OK) status = load_beside(path, "added_tokens.json", &added, err);
    if (status == FB_OK) status = load_beside(path, "special_tokens_map.json", &names, err);
    fb_piece_options options = {config, added, names};
    if (status == FB_OK) status = parse_file(path, &options, out, err);
    if (config) fb_json_free(config);
    if (added) fb_json_free(added);
    if (names) fb_json_free(names);
    return status;
}
