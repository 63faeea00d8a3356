/* tokenizer.json: the whole file, the model's vocabulary and merges, and the added tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "text/tokenizer_impl.h"

#define FILE_LIMIT   (256u << 20) /* bytes; the largest published ones have 33 MB */
#define MERGES_LIMIT (1 << 24)
#define WHERE        256 /* bytes of "file: section" in messages */

/* ---- model ---- */

/* A vocabulary's ids are dense in all published files. Nothing here needs that, but the table of tokens takes
 * memory for each. */
#define IDS_FREE      (1 << 18) /* any file may have ids up to here … */
#define IDS_PER_TOKEN 4         /* … and four more for each token of its vocabulary */

static fb_status load_vocab(fb_vocab *vocab, const char *what, const fb_json *object, int64_t ids,
                            fb_error *err) {
    const fb_json *value;
    for (value = fb_json_first(object); value; value = fb_json_next(value)) {
        int64_t id = fb_json_is(value, FB_JSON_INT) ? fb_json_int_of(value) : -1;
        if (id < 0 || id >= FB_VOCAB_LIMIT) {
            char text[64];
            return fb_fail(err, FB_ERROR_FILE, "%s: vocab: \"%.64s\": %s (an id is 0 to %d)", what,
                           fb_json_key(value), fb_json_show(value, text, sizeof text), FB_VOCAB_LIMIT - 1);
        }
        if (id >= ids) ids = id + 1;
    }
    int64_t entries = (int64_t)fb_json_size(object), most = IDS_FREE + IDS_PER_TOKEN * entries;
    if (ids > most)
        return fb_fail(err, FB_ERROR_FILE, "%s: vocab: id %lld (at most %lld with %lld tokens)", what,
                       (long long)ids - 1, (long long)most - 1, (long long)entries);
    FB_TRY(fb_vocab_create(vocab, ids, entries, err));
    for (value = fb_json_first(object); value; value = fb_json_next(value)) {
        const char *name = fb_json_key(value);
        FB_TRY(fb_vocab_add(vocab, what, fb_json_int_of(value), name, (int64_t)strlen(name), err));
    }
    return FB_OK;
}

static fb_status bad_merge(const char *what, size_t index, const fb_json *merge, fb_error *err) {
    char text[64];
    return fb_fail(err, FB_ERROR_FILE, "%s: merges[%zu]: %s (expected two tokens)", what, index,
                   fb_json_show(merge, text, sizeof text));
}

/* Two tokens, as ["a", "b"] or, in older files, as "a b": one behind the other in `text`, the first of `left`
 * bytes. */
static fb_status read_merge(const char *what, size_t index, const fb_json *merge, fb_bytes *text,
                            int64_t *left, fb_error *err) {
    text->size = 0;
    if (fb_json_is(merge, FB_JSON_STRING)) {
        const char *pair = fb_json_text_of(merge), *space = strchr(pair, ' ');
        if (!space || strchr(space + 1, ' ') || strlen(pair) != fb_json_size(merge))
            return bad_merge(what, index, merge, err);
        FB_TRY(fb_bytes_append(text, pair, space - pair, err));
        *left = text->size;
        return fb_bytes_append(text, space + 1, (int64_t)strlen(space + 1), err);
    }
    const fb_json *first = fb_json_at(merge, 0), *second = fb_json_at(merge, 1);
    if (fb_json_size(merge) != 2 || !fb_json_is(first, FB_JSON_STRING) || !fb_json_is(second, FB_JSON_STRING))
        return bad_merge(what, index, merge, err);
    FB_TRY(fb_bytes_append(text, fb_json_text_of(first), (int64_t)fb_json_size(first), err));
    *left = text->size;
    return fb_bytes_append(text, fb_json_text_of(second), (int64_t)fb_json_size(second), err);
}

static fb_status load_merges(fb_bpe *bpe, const char *what, const fb_json *merges, fb_error *err) {
    size_t count = fb_json_is(merges, FB_JSON_ARRAY) ? fb_json_size(merges) : 0, i = 0;
    if (!fb_json_is(merges, FB_JSON_ARRAY) || count > MERGES_LIMIT)
        return fb_fail(err, FB_ERROR_FILE, "%s: merges: %zu (expected an array of at most %d)", what, count,
                       MERGES_LIMIT);
    FB_TRY(fb_bpe_prepare(bpe, (int64_t)count, err));
    fb_bytes text = {0};
    fb_status status = FB_OK;
    uint32_t rank = 0;
    for (const fb_json *merge = fb_json_first(merges); merge && status == FB_OK;
         merge = fb_json_next(merge), i++) {
        if (fb_json_is(merge, FB_JSON_STRING) && strncmp(fb_json_text_of(merge), "#version", 8) == 0)
            continue; /* of merges.txt */
        int64_t left = 0;
        status = read_merge(what, i, merge, &text, &left, err);
        if (status == FB_OK) status = fb_bpe_add_merge(bpe, what, rank++, text.data, left, text.size, err);
    }
    fb_bytes_free(&text);
    return status;
}

/* What would change the ids and is not done here. */
static fb_status check_bpe(const char *what, const fb_json *model, fb_error *err) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *text;
    for (int i = 0; i < 2; i++) {
        FB_TRY(fb_json_string(what, model, affixes[i], "", &text, err));
        if (text[0])
            return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: \"%.64s\" (known: null)", what, affixes[i],
                           text);
    }
    double dropout;
    FB_TRY(fb_json_real(what, model, "dropout", 0, 1, 0, &dropout, err));
    if (dropout > 0)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: dropout: %g (known: null)", what, dropout);
    return FB_OK;
}

static fb_status load_bpe(fb_tokenizer *tokenizer, const char *what, const fb_json *model, int64_t ids,
                          fb_error *err) {
    fb_bpe *bpe = &tokenizer->bpe;
    const char *unknown;
    FB_TRY(check_bpe(what, model, err));
    const fb_json *vocab = fb_json_get(model, "vocab");
    if (!fb_json_is(vocab, FB_JSON_OBJECT))
        return fb_fail(err, FB_ERROR_FILE, "%s: vocab: missing (expected an object)", what);
    FB_TRY(fb_json_bool(what, model, "byte_fallback", false, &bpe->byte_fallback, err));
    FB_TRY(fb_json_bool(what, model, "fuse_unk", false, &bpe->fuse_unknown, err));
    FB_TRY(fb_json_bool(what, model, "ignore_merges", false, &bpe->ignore_merges, err));
    FB_TRY(fb_json_string(what, model, "unk_token", NULL, &unknown, err));
    FB_TRY(load_vocab(&bpe->vocab, what, vocab, ids, err));
    if (unknown) {
        bpe->unknown = strdup(unknown);
        if (!bpe->unknown) return fb_fail_memory(err, "unk_token", (int64_t)strlen(unknown));
        bpe->unknown_id = fb_vocab_find(&bpe->vocab, unknown, (int64_t)strlen(unknown));
    }
    return load_merges(bpe, what, fb_json_get(model, "merges"), err);
}

/* ---- Unigram ---- */

/* [["token", score], …]: a token's id is its place. */
static fb_status load_scored(fb_vocab *vocab, const char *what, const fb_json *list, double *scores,
                             fb_error *err) {
    int64_t id = 0;
    for (const fb_json *entry = fb_json_first(list); entry; entry = fb_json_next(entry), id++) {
        const fb_json *text = fb_json_at(entry, 0), *score = fb_json_at(entry, 1);
        char where[WHERE], shown[64];
        if (!fb_json_is(text, FB_JSON_STRING) || !fb_json_is_number(score) || fb_json_size(entry) != 2)
            return fb_fail(err, FB_ERROR_FILE, "%s: vocab[%lld]: %s (expected a token and a score)", what,
                           (long long)id, fb_json_show(entry, shown, sizeof shown));
        snprintf(where, sizeof where, "%.200s: vocab[%lld]", what, (long long)id);
        int32_t other = fb_vocab_find(vocab, fb_json_text_of(text), (int64_t)fb_json_size(text));
        if (other >= 0)
            return fb_fail(err, FB_ERROR_FILE, "%s: %s (token %d already)", where,
                           fb_json_show(text, shown, sizeof shown), (int)other);
        FB_TRY(fb_vocab_add(vocab, where, id, fb_json_text_of(text), (int64_t)fb_json_size(text), err));
        scores[id] = fb_json_real_of(score);
    }
    return FB_OK;
}

static fb_status load_unigram(fb_tokenizer *tokenizer, const char *what, const fb_json *model, int64_t ids,
                              fb_error *err) {
    fb_vocab *vocab = &tokenizer->bpe.vocab;
    const fb_json *list = fb_json_get(model, "vocab");
    int64_t count = (int64_t)fb_json_size(list), unknown;
    bool byte_fallback;
    if (!fb_json_is(list, FB_JSON_ARRAY) || count == 0 || count > FB_VOCAB_LIMIT)
        return fb_fail(err, FB_ERROR_FILE, "%s: vocab: %lld tokens (expected an array of 1 to %d)", what,
                       (long long)count, FB_VOCAB_LIMIT);
    FB_TRY(fb_json_bool(what, model, "byte_fallback", false, &byte_fallback, err));
    FB_TRY(fb_json_int(what, model, "unk_id", 0, count - 1, -1, &unknown, err));
    if (ids > IDS_FREE + IDS_PER_TOKEN * count)
        return fb_fail(err, FB_ERROR_FILE, "%s: an added token's id %lld (at most %lld with %lld tokens)",
                       what, (long long)ids - 1, (long long)(IDS_FREE + IDS_PER_TOKEN * count - 1),
                       (long long)count);
    FB_TRY(fb_vocab_create(vocab, ids > count ? ids : count, count, err));
    double *scores = calloc((size_t)vocab->ids, sizeof *scores);
    if (!scores) return fb_fail_memory(err, "scores", vocab->ids * (int64_t)sizeof *scores);
    fb_status status = load_scored(vocab, what, list, scores, err);
    if (status != FB_OK) {
        free(scores);
        return status;
    }
    double lowest = scores[0];
    for (int64_t id = 1; id < count; id++)
        if (scores[id] < lowest) lowest = scores[id];
    return fb_tokenizer_use_unigram(tokenizer, scores, NULL, lowest, (int32_t)unknown, byte_fallback, err);
}

fb_status fb_tokenizer_use_unigram(fb_tokenizer *tokenizer, double *scores, const bool *used, double lowest,
                                   int32_t unknown, bool byte_fallback, fb_error *err) {
    tokenizer->unigram = calloc(1, sizeof *tokenizer->unigram);
    if (!tokenizer->unigram) {
        free(scores);
        return fb_fail_memory(err, "Unigram", (int64_t)sizeof *tokenizer->unigram);
    }
    FB_TRY(fb_unigram_create(&tokenizer->bpe.vocab, scores, used, tokenizer->unigram, err));
    tokenizer->unigram->unknown_id = unknown;
    tokenizer->unigram->unknown_score = lowest - FB_UNIGRAM_PENALTY;
    tokenizer->unigram->byte_fallback = byte_fallback;
    return FB_OK;
}

fb_status fb_tokenizer_load_model(fb_tokenizer *tokenizer, const char *what, const fb_json *model,
                                  int64_t ids, fb_error *err) {
    const char *type;
    if (!fb_json_is(model, FB_JSON_OBJECT))
        return fb_fail(err, FB_ERROR_FILE, "%s: missing (expected an object)", what);
    FB_TRY(fb_json_string(what, model, "type", "BPE", &type, err)); /* GPT-2's own file has no type */
    if (strcmp(type, "BPE") == 0) return load_bpe(tokenizer, what, model, ids, err);
    if (strcmp(type, "Unigram") == 0) return load_unigram(tokenizer, what, model, ids, err);
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: type: \"%.64s\" (known: BPE, Unigram)", what, type);
}

/* ---- added tokens ---- */

/* One more than the highest id of the added tokens, which are checked as far as that needs. */
static fb_status added_ids(const char *what, const fb_json *list, int64_t *ids, fb_error *err) {
    *ids = 0;
    if (list && !fb_json_is(list, FB_JSON_ARRAY))
        return fb_fail(err, FB_ERROR_FILE, "%s: not an array", what);
    size_t i = 0;
    for (const fb_json *entry = fb_json_first(list); entry; entry = fb_json_next(entry)) {
        char where[WHERE];
        int64_t id;
        snprintf(where, sizeof where, "%.200s[%zu]", what, i++);
        if (!fb_json_is(entry, FB_JSON_OBJECT))
            return fb_fail(err, FB_ERROR_FILE, "%s: not an object", where);
        FB_TRY(fb_json_need_int(where, entry, "id", 0, FB_VOCAB_LIMIT - 1, &id, err));
        if (id >= *ids) *ids = id + 1;
    }
    return FB_OK;
}

/* Makes the token's id known, and looks for its text in the raw or the normalised text. */
static fb_status add_token(fb_tokenizer *tokenizer, const char *what, const fb_json *entry, int64_t next,
                           int64_t *id, fb_growth growth[FB_STEPS_LIMIT], fb_pattern_work *work,
                           fb_bytes scratch[2], fb_error *err) {
    fb_vocab *vocab = &tokenizer->bpe.vocab;
    const char *content;
    bool special, normalized;
    fb_added_token token = {0};
    FB_TRY(fb_json_need_int(what, entry, "id", 0, vocab->ids - 1, id, err));
    FB_TRY(fb_json_need_string(what, entry, "content", &content, err));
    FB_TRY(fb_json_bool(what, entry, "single_word", false, &token.single_word, err));
    FB_TRY(fb_json_bool(what, entry, "lstrip", false, &token.lstrip, err));
    FB_TRY(fb_json_bool(what, entry, "rstrip", false, &token.rstrip, err));
    FB_TRY(fb_json_bool(what, entry, "special", false, &special, err));
    FB_TRY(fb_json_bool(what, entry, "normalized", !special, &normalized, err));
    int64_t size = (int64_t)strlen(content);
    int32_t known = fb_vocab_find(vocab, content, size);
    if (size == 0) return fb_fail(err, FB_ERROR_FILE, "%s: content: \"\" (expected some text)", what);
    /* `tokenizers` gives an added token the vocabulary's id or the next free one, whatever the file says; a
     * file that says something else was made by hand, and ids would differ from those of the training. */
    if (*id != (known >= 0 ? known : next))
        return fb_fail(err, FB_ERROR_FILE, "%s: \"%.64s\": id %lld (expected %lld: %s)", what, content,
                       (long long)*id, (long long)(known >= 0 ? known : next),
                       known >= 0 ? "the vocabulary's" : "the next free one");
    if (known < 0) FB_TRY(fb_vocab_name(vocab, what, *id, content, size, err));
    vocab->tokens[*id].special = special;

    token.id = (int32_t)*id;
    if (!normalized) return fb_added_insert(&tokenizer->raw, token, content, size, err);
    int which;
    FB_TRY(fb_tokenizer_normalize(tokenizer, work, content, size, growth, scratch, &which, err));
    FB_TRY(fb_vocab_show(vocab, *id, scratch[which].data, scratch[which].size, err));
    return fb_added_insert(&tokenizer->normalized, token, scratch[which].data, scratch[which].size, err);
}

static fb_status load_added(fb_tokenizer *tokenizer, const char *what, const fb_json *list, fb_error *err) {
    fb_bytes scratch[2] = {{0}, {0}};
    fb_growth growth[FB_STEPS_LIMIT];
    fb_growth_start(growth, what, FB_ADDED_LIMIT);
    fb_pattern_work work = {0};
    fb_pattern_work_start(&work, FB_ADDED_LIMIT);
    fb_status status = FB_OK;
    int64_t next = tokenizer->bpe.vocab.entries;
    size_t i = 0;
    for (const fb_json *entry = fb_json_first(list); entry && status == FB_OK; entry = fb_json_next(entry)) {
        char where[WHERE];
        int64_t id = 0;
        snprintf(where, sizeof where, "%.200s[%zu]", what, i++);
        status = add_token(tokenizer, where, entry, next, &id, growth, &work, scratch, err);
        if (id >= next) next = id + 1;
    }
    fb_bytes_free(&scratch[0]);
    fb_bytes_free(&scratch[1]);
    fb_pattern_work_free(&work);
    if (status == FB_OK) status = fb_added_build(&tokenizer->raw, err);
    return status == FB_OK ? fb_added_build(&tokenizer->normalized, err) : status;
}

/* ---- the file ---- */

/* Padding to the longest text of a batch leaves a single text alone; all else here would change its ids. */
static fb_status check_file(const char *what, const fb_json *root, fb_error *err) {
    char where[WHERE], text[64];
    const char *version;
    FB_TRY(fb_json_string(what, root, "version", "1.0", &version, err));
    if (strcmp(version, "1.0") != 0)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: version: \"%.64s\" (known: 1.0)", what, version);
    const fb_json *truncation = fb_json_member(root, "truncation"),
                  *padding = fb_json_member(root, "padding");
    if (truncation)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: truncation: %s (known: null)", what,
                       fb_json_show(truncation, text, sizeof text));
    if (!padding) return FB_OK;
    snprintf(where, sizeof where, "%s: padding", what);
    const fb_json *strategy = fb_json_get(padding, "strategy"),
                  *multiple = fb_json_member(padding, "pad_to_multiple_of");
    if (!fb_json_is(strategy, FB_JSON_STRING) || strcmp(fb_json_text_of(strategy), "BatchLongest") != 0)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: strategy: %s (known: BatchLongest)", where,
                       fb_json_show(strategy, text, sizeof text));
    if (multiple)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: pad_to_multiple_of: %s (known: null)", where,
                       fb_json_show(multiple, text, sizeof text));
    return FB_OK;
}

static fb_status load_all(fb_tokenizer *tokenizer, const char *what, const fb_json *root, fb_error *err) {
    char where[WHERE];
    int64_t ids;
    FB_TRY(check_file(what, root, err));
    const fb_json *added = fb_json_member(root, "added_tokens");
    snprintf(where, sizeof where, "%s: added_tokens", what);
    FB_TRY(added_ids(where, added, &ids, err));
    snprintf(where, sizeof where, "%s: model", what);
    FB_TRY(fb_tokenizer_load_model(tokenizer, where, fb_json_member(root, "model"), ids, err));
    snprintf(where, sizeof where, "%s: normalizer", what);
    FB_TRY(fb_tokenizer_load_normalizer(tokenizer, where, fb_json_member(root, "normalizer"), err));
    snprintf(where, sizeof where, "%s: added_tokens", what); /* some are normalised */
    FB_TRY(load_added(tokenizer, where, added, err));
    snprintf(where, sizeof where, "%s: pre_tokenizer", what);
    FB_TRY(fb_tokenizer_load_splitter(tokenizer, where, fb_json_member(root, "pre_tokenizer"), err));
    snprintf(where, sizeof where, "%s: post_processor", what);
    FB_TRY(fb_tokenizer_load_template(tokenizer, where, fb_json_member(root, "post_processor"), err));
    snprintf(where, sizeof where, "%s: decoder", what);
    return fb_tokenizer_load_decoder(tokenizer, where, fb_json_member(root, "decoder"), err);
}

static fb_status create(const char *what, const fb_json *root, fb_tokenizer **out, fb_error *err) {
    if (!fb_json_is(root, FB_JSON_OBJECT)) return fb_fail(err, FB_ERROR_FILE, "%s: not a JSON object", what);
    fb_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer) return fb_fail_memory(err, "tokenizer", (int64_t)sizeof *tokenizer);
    fb_status status = load_all(tokenizer, what, root, err);
    if (status == FB_OK)
        *out = tokenizer;
    else
        fb_tokenizer_free(tokenizer);
    return status;
}

fb_status fb_tokenizer_parse(const char *what, const char *json, size_t size, fb_tokenizer **out,
                             fb_error *err) {
    *out = NULL;
    fb_json *root;
    FB_TRY(fb_json_parse(what, json, size, FILE_LIMIT, &root, err));
    fb_status status = create(what, root, out, err);
    fb_json_free(root);
    return status;
}

fb_status fb_tokenizer_open_json(const char *path, fb_tokenizer **out, fb_error *err) {
    *out = NULL;
    fb_json *root;
    FB_TRY(fb_json_load(path, FILE_LIMIT, &root, err));
    fb_status status = create(path, root, out, err);
    fb_json_free(root);
    return status;
}
