#include "text/unigram.h"

#include <stdio.h>
#include <stdlib.h>

#include "text/utf8.h"

static void find_bytes(const fb_vocab *vocab, int32_t byte_ids[256]) {
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        int size = snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        byte_ids[byte] = fb_vocab_find(vocab, name, size);
    }
}

fb_status fb_unigram_create(const fb_vocab *vocab, double *scores, const bool *used, fb_unigram *out,
                            fb_error *err) {
    *out = (fb_unigram){.scores = scores, .unknown_id = -1};
    fb_trie_token *tokens = malloc((size_t)(vocab->ids + 1) * sizeof *tokens);
    if (!tokens) return fb_fail_memory(err, "tokens", vocab->ids * (int64_t)sizeof *tokens);
    int64_t count = 0;
    for (int64_t id = 0; id < vocab->ids; id++) {
        const fb_token *token = &vocab->tokens[id];
        if (token->used && token->size > 0 && (!used || used[id]))
            tokens[count++] =
                (fb_trie_token){vocab->text.data + token->offset, (int32_t)token->size, (int32_t)id};
    }
    fb_status status = fb_trie_build(&out->trie, tokens, count, err);
    free(tokens);
    find_bytes(vocab, out->byte_ids);
    return status;
}

void fb_unigram_free(fb_unigram *unigram) {
    fb_trie_free(&unigram->trie);
    free(unigram->scores);
    unigram->scores = NULL;
}

void fb_unigram_work_free(fb_unigram_work *work) {
    free(work->paths);
    fb_ids_free(&work->found);
    *work = (fb_unigram_work){0};
}

/* ---- the best path ---- */

static void offer(fb_unigram_path *path, double score, int64_t start, int32_t id) {
    if (path->start >= 0 && score <= path->score) return;
    *path = (fb_unigram_path){score, (int32_t)start, id};
}

static fb_status fail_unknown(const char *text, int length, fb_error *err) {
    return fb_fail(err, FB_ERROR_FILE, "tokenizer: unk_id: null (\"%.*s\" is not in the vocabulary)", length,
                   text);
}

/* All tokens that start at one character. */
static fb_status extend(const fb_unigram *unigram, fb_unigram_work *work, const char *word, int64_t size,
                        int64_t start, int length, fb_error *err) {
    double score = work->paths[start].score;
    bool whole = false; /* the character itself is a token */
    int32_t node = 0;
    for (int64_t at = start; at < size; at++) {
        node = fb_trie_step(&unigram->trie, node, (unsigned char)word[at]);
        work->steps++;
        if (node == 0) break;
        int32_t id = unigram->trie.nodes[node].id;
        if (id < 0) continue;
        offer(&work->paths[at + 1], score + unigram->scores[id], start, id);
        whole = whole || at + 1 - start == length;
    }
    if (work->steps > work->limit)
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "Unigram: too expensive for this text: %lld steps (at most %lld)",
                       (long long)work->steps, (long long)work->limit);
    if (whole) return FB_OK;
    if (unigram->unknown_id < 0) return fail_unknown(word + start, length, err);
    offer(&work->paths[start + length], score + unigram->unknown_score, start, unigram->unknown_id);
    return FB_OK;
}

static fb_status find_paths(const fb_unigram *unigram, fb_unigram_work *work, const char *word, int64_t size,
                            fb_error *err) {
    fb_unigram_path *paths = fb_array_grow(work->paths, 0, &work->capacity, size + 1, sizeof *paths);
    if (!paths) return fb_fail_memory(err, "cutting a word", (size + 1) * (int64_t)sizeof *paths);
    work->paths = paths;
    for (int64_t i = 0; i <= size; i++) paths[i] = (fb_unigram_path){0, -1, -1};
    for (int64_t at = 0; at < size;) {
        int length = fb_utf8_length(word[at]);
        FB_TRY(extend(unigram, work, word, size, at, length, err));
        at += length;
    }
    return FB_OK;
}

/* ---- the ids along it ---- */

/* Unknown text, all of a run: perhaps a token after all, else its bytes, else the unknown token. */
static fb_status add_unknown(const fb_unigram *unigram, const fb_vocab *vocab, const char *text, int64_t size,
                             fb_ids *found, fb_error *err) {
    int32_t id = fb_vocab_find(vocab, text, size);
    bool bytes = id < 0 && unigram->byte_fallback;
    for (int64_t i = 0; i < size && bytes; i++) bytes = unigram->byte_ids[(unsigned char)text[i]] >= 0;
    if (!bytes) return fb_ids_append(found, id >= 0 ? &id : &unigram->unknown_id, 1, err);
    for (int64_t i = size - 1; i >= 0; i--)
        FB_TRY(fb_ids_append(found, &unigram->byte_ids[(unsigned char)text[i]], 1, err));
    return FB_OK;
}

fb_status fb_unigram_encode(const fb_unigram *unigram, const fb_vocab *vocab, fb_unigram_work *work,
                            const char *word, int64_t size, fb_ids *ids, fb_error *err) {
    FB_TRY(find_paths(unigram, work, word, size, err));
    work->found.size = 0;
    for (int64_t end = size; end > 0;) {
        int64_t start = work->paths[end].start;
        if (work->paths[end].id == unigram->unknown_id) {
            while (start > 0 && work->paths[start].id == unigram->unknown_id)
                start = work->paths[start].start;
            FB_TRY(add_unknown(unigram, vocab, word + start, end - start, &work->found, err));
        } else {
            FB_TRY(fb_ids_append(&work->found, &work->paths[end].id, 1, err));
        }
        end = start;
    }
    for (int64_t i = work->found.size - 1; i >= 0; i--)
        FB_TRY(fb_ids_append(ids, &work->found.data[i], 1, err));
    return FB_OK;
}
