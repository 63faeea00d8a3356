#include "text/export.h"

#include <stdlib.h>
#include <string.h>

#include "text/gguf_pre.h"
#include "text/tokenizer_impl.h"

static fb_status refuse(fb_error *err, const char *what) {
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "tokenizer: %s (a GGUF file cannot say so)", what);
}

/* ---- how a text becomes words -------------------------------------------------------------------------- */

/* The patterns that cut a text, in order. */
static fb_status list_patterns(const fb_tokenizer *t, const char *patterns[FB_STEPS_LIMIT], int *count,
                               fb_error *err) {
    bool bytes = false;
    *count = 0;
    for (int64_t i = 0; i < t->splitter_count; i++) {
        const fb_splitter *step = &t->splitters[i];
        bool known = step->kind == FB_SPLITTER_BYTE_LEVEL ||
                     (step->kind == FB_SPLITTER_PATTERN && step->behavior == FB_BEHAVIOR_ISOLATED);
        if (!known || bytes) return refuse(err, "pre_tokenizer: not byte-level");
        if (step->prefix_space) return refuse(err, "pre_tokenizer: add_prefix_space");
        if (step->pattern) patterns[(*count)++] = fb_pattern_source(step->pattern);
        bytes = step->kind == FB_SPLITTER_BYTE_LEVEL;
    }
    return bytes ? FB_OK : refuse(err, "pre_tokenizer: not byte-level");
}

static fb_status find_pre(const fb_tokenizer *t, const char **name, fb_error *err) {
    const char *patterns[FB_STEPS_LIMIT];
    int count;
    FB_TRY(list_patterns(t, patterns, &count, err));
    const fb_gguf_pre *pre = fb_gguf_pre_match(patterns, count, t->bpe.ignore_merges);
    if (!pre)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "tokenizer: pre_tokenizer: \"%.128s\"%s (no GGUF name is known for it)",
                       count ? patterns[0] : "", t->bpe.ignore_merges ? " with ignore_merges" : "");
    *name = pre->name;
    return FB_OK;
}

static fb_status find_normalizer(const fb_tokenizer *t, bool *nfc, fb_error *err) {
    for (int64_t i = 0; i < t->normalizer_count; i++)
        if (t->normalizers[i].kind != FB_NORMALIZER_NFC)
            return refuse(err, "normalizer: changes texts other than by NFC");
    *nfc = t->normalizer_count > 0;
    return FB_OK;
}

/* ---- tokens -------------------------------------------------------------------------------------------- */

static fb_status mark_added(const fb_added *added, fb_exported *out, fb_error *err) {
    for (int64_t i = 0; i < added->count; i++) {
        const fb_added_token *token = &added->tokens[i];
        fb_exported_token *to = &out->tokens[token->id];
        if (token->single_word || token->lstrip || token->rstrip)
            return fb_fail(err, FB_ERROR_UNSUPPORTED,
                           "tokenizer: \"%.*s\": single_word, lstrip or rstrip (a GGUF file cannot say so)",
                           (int)(to->size < 64 ? to->size : 64), to->text);
        if (to->kind == FB_TOKEN_NORMAL) to->kind = FB_TOKEN_ADDED;
    }
    return FB_OK;
}

static fb_status list_tokens(const fb_tokenizer *t, fb_exported *out, fb_error *err) {
    const fb_vocab *vocab = &t->bpe.vocab;
    out->count = vocab->ids;
    out->tokens = calloc((size_t)(vocab->ids > 0 ? vocab->ids : 1), sizeof *out->tokens);
    if (!out->tokens) return fb_fail_memory(err, "tokens", vocab->ids * (int64_t)sizeof *out->tokens);
    for (int64_t id = 0; id < vocab->ids; id++) {
        const fb_token *token = &vocab->tokens[id];
        out->tokens[id].text = token->used ? vocab->text.data + token->offset : "";
        out->tokens[id].size = token->size;
        out->tokens[id].kind = !token->used     ? FB_TOKEN_UNUSED
                               : token->special ? FB_TOKEN_SPECIAL
                                                : FB_TOKEN_NORMAL;
    }
    FB_TRY(mark_added(&t->raw, out, err));
    return mark_added(&t->normalized, out, err);
}

/* ---- merges -------------------------------------------------------------------------------------------- */

static int by_rank(const void *a, const void *b) {
    uint32_t x = ((const fb_merge *)a)->rank, y = ((const fb_merge *)b)->rank;
    return (x > y) - (x < y);
}

/* A merge is written as "left right". */
static fb_status check_merges(const fb_exported *out, fb_error *err) {
    for (int64_t i = 0; i < out->merge_count; i++)
        for (int side = 0; side < 2; side++) {
            const fb_exported_token *token = &out->tokens[out->merges[i][side]];
            if (memchr(token->text, ' ', (size_t)token->size))
                return refuse(err, "merges: a token with a space in it");
        }
    return FB_OK;
}

static fb_status list_merges(const fb_bpe *bpe, fb_exported *out, fb_error *err) {
    int64_t slots = (int64_t)bpe->merge_mask + 1, count = 0;
    fb_merge *sorted = malloc((size_t)slots * sizeof *sorted);
    out->merges = malloc((size_t)slots * sizeof *out->merges);
    if (!sorted || !out->merges) {
        free(sorted);
        return fb_fail_memory(err, "merges", slots * (int64_t)sizeof *sorted);
    }
    for (int64_t i = 0; i < slots; i++)
        if (bpe->merges[i].pair != UINT64_MAX) sorted[count++] = bpe->merges[i];
    qsort(sorted, (size_t)count, sizeof *sorted, by_rank);
    for (int64_t i = 0; i < count; i++) {
        out->merges[i][0] = (int32_t)(sorted[i].pair >> 32);
        out->merges[i][1] = (int32_t)(uint32_t)sorted[i].pair;
    }
    out->merge_count = count;
    free(sorted);
    return check_merges(out, err);
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

static fb_status one_id(const fb_ids *ids, int32_t *out, fb_error *err) {
    if (ids->size > 1) return refuse(err, "post_processor: more than one id on a side of a text");
    *out = ids->size ? ids->data[0] : -1;
    return FB_OK;
}

fb_status fb_tokenizer_export(const fb_tokenizer *t, fb_exported *out, fb_error *err) {
    *out = (fb_exported){.unknown = t->bpe.unknown ? t->bpe.unknown_id : -1};
    if (t->unigram) return refuse(err, "model: Unigram");
    if (t->bpe.byte_fallback) return refuse(err, "model: byte_fallback in a vocabulary without scores");
    FB_TRY(find_pre(t, &out->pre, err));
    FB_TRY(find_normalizer(t, &out->nfc, err));
    FB_TRY(one_id(&t->prefix, &out->begin, err));
    FB_TRY(one_id(&t->suffix, &out->end, err));
    FB_TRY(list_tokens(t, out, err));
    return list_merges(&t->bpe, out, err);
}

void fb_exported_free(fb_exported *exported) {
    free(exported->tokens);
    free(exported->merges);
    *exported = (fb_exported){0};
}
