#include <stdlib.h>
#include <string.h>

#include "text/bpe.h"

fb_status fb_vocab_create(fb_vocab *vocab, int64_t ids, int64_t entries, fb_error *err) {
    *vocab = (fb_vocab){.ids = ids};
    fb_hash_key_create(&vocab->key);
    int64_t slots = 16;
    while (slots < 2 * entries) slots *= 2;
    vocab->mask = (uint32_t)(slots - 1);
    vocab->tokens = calloc((size_t)(ids > 0 ? ids : 1), sizeof *vocab->tokens);
    vocab->slots = malloc((size_t)slots * sizeof *vocab->slots);
    if (!vocab->tokens || !vocab->slots)
        return fb_fail_memory(err, "vocabulary",
                              ids * (int64_t)sizeof *vocab->tokens + slots * (int64_t)sizeof *vocab->slots);
    for (int64_t i = 0; i < slots; i++) vocab->slots[i] = (fb_vocab_slot){0, -1};
    return FB_OK;
}

void fb_vocab_free(fb_vocab *vocab) {
    fb_bytes_free(&vocab->text);
    free(vocab->tokens);
    free(vocab->slots);
    *vocab = (fb_vocab){0};
}

fb_status fb_vocab_name(fb_vocab *vocab, const char *what, int64_t id, const char *text, int64_t size,
                        fb_error *err) {
    fb_token *token = &vocab->tokens[id];
    if (token->used)
        return fb_fail(err, FB_ERROR_FILE, "%s: \"%.64s\": id %lld (taken by \"%.*s\")", what, text,
                       (long long)id, token->size < 64 ? (int)token->size : 64,
                       vocab->text.data + token->offset);
    *token = (fb_token){.offset = (uint32_t)vocab->text.size, .size = (uint32_t)size, .used = true};
    token->shown = token->offset;
    token->shown_size = token->size;
    return fb_bytes_append(&vocab->text, text, size, err);
}

fb_status fb_vocab_show(fb_vocab *vocab, int64_t id, const char *text, int64_t size, fb_error *err) {
    vocab->tokens[id].shown = (uint32_t)vocab->text.size;
    vocab->tokens[id].shown_size = (uint32_t)size;
    return fb_bytes_append(&vocab->text, text, size, err);
}

fb_status fb_vocab_add(fb_vocab *vocab, const char *what, int64_t id, const char *text, int64_t size,
                       fb_error *err) {
    FB_TRY(fb_vocab_name(vocab, what, id, text, size, err));
    uint32_t hash = fb_hash_slot(fb_hash_text(&vocab->key, text, size));
    uint32_t slot = hash & vocab->mask;
    while (vocab->slots[slot].id >= 0) slot = (slot + 1) & vocab->mask;
    vocab->slots[slot] = (fb_vocab_slot){hash, (int32_t)id};
    vocab->entries++;
    return FB_OK;
}

int32_t fb_vocab_find(const fb_vocab *vocab, const char *text, int64_t size) {
    return fb_vocab_find_hashed(vocab, fb_hash_text(&vocab->key, text, size), text, size);
}

int32_t fb_vocab_find_hashed(const fb_vocab *vocab, uint64_t text_hash, const char *text, int64_t size) {
    uint32_t hash = fb_hash_slot(text_hash);
    for (uint32_t slot = hash & vocab->mask; vocab->slots[slot].id >= 0; slot = (slot + 1) & vocab->mask) {
        if (vocab->slots[slot].hash != hash) continue;
        int32_t id = vocab->slots[slot].id;
        const fb_token *token = &vocab->tokens[id];
        if (token->size == size && memcmp(vocab->text.data + token->offset, text, (size_t)size) == 0)
            return id;
    }
    return -1;
}
