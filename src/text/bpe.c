#include "text/bpe.h"

#include <stdio.h>
#include <stdlib.h>

#include "text/utf8.h"

#define MERGED  (-1)
#define UNKNOWN (-2)

/* ---- the order of merging ---- */

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The pair's slot, or the free one where it belongs. */
static fb_merge *merge_slot(const fb_bpe *bpe, uint64_t pair) {
    uint32_t slot = fb_hash_number(&bpe->vocab.key, pair) & bpe->merge_mask;
    while (bpe->merges[slot].pair != pair && bpe->merges[slot].pair != UINT64_MAX)
        slot = (slot + 1) & bpe->merge_mask;
    return &bpe->merges[slot];
}

const fb_merge *fb_bpe_find_merge(const fb_bpe *bpe, uint64_t pair) {
    const fb_merge *slot = merge_slot(bpe, pair);
    return slot->pair == UINT64_MAX ? NULL : slot;
}

fb_status fb_bpe_prepare(fb_bpe *bpe, int64_t count, fb_error *err) {
    int64_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    bpe->merges = malloc((size_t)slots * sizeof *bpe->merges);
    if (!bpe->merges) return fb_fail_memory(err, "merges", slots * (int64_t)sizeof *bpe->merges);
    for (int64_t i = 0; i < slots; i++) bpe->merges[i].pair = UINT64_MAX;
    bpe->merge_mask = (uint32_t)(slots - 1);

    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        int size = snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        bpe->byte_ids[byte] = fb_vocab_find(&bpe->vocab, name, size);
    }
    for (uint32_t code = 0; code < FB_BPE_CHARS; code++) {
        char name[4];
        int size = fb_utf8_write(code, name);
        bpe->char_ids[code] = fb_vocab_find(&bpe->vocab, name, size);
    }
    return FB_OK;
}

static fb_status find_part(const fb_bpe *bpe, const char *what, uint32_t rank, const char *text, int64_t size,
                           int32_t *id, fb_error *err) {
    *id = fb_vocab_find(&bpe->vocab, text, size);
    if (*id >= 0) return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: merges[%u]: \"%.*s\" (not in the vocabulary)", what, rank,
                   (int)(size < 64 ? size : 64), text);
}

fb_status fb_bpe_add_merge(fb_bpe *bpe, const char *what, uint32_t rank, const char *text, int64_t left,
                           int64_t size, fb_error *err) {
    int32_t left_id, right_id, id;
    FB_TRY(find_part(bpe, what, rank, text, left, &left_id, err));
    FB_TRY(find_part(bpe, what, rank, text + left, size - left, &right_id, err));
    FB_TRY(find_part(bpe, what, rank, text, size, &id, err));
    uint64_t pair = pair_of(left_id, right_id);
    *merge_slot(bpe, pair) =
        (fb_merge){pair, rank, id}; /* of two equal pairs the later counts, as in the library */
    return FB_OK;
}

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int compare_scores(const void *left, const void *right) {
    float a = ((const scored *)left)->score, b = ((const scored *)right)->score;
    return (a < b) - (a > b); /* the highest first */
}

fb_status fb_bpe_use_scores(fb_bpe *bpe, const float *scores, fb_error *err) {
    int64_t ids = bpe->vocab.ids;
    scored *order = malloc((size_t)(ids + 1) * sizeof *order);
    bpe->ranks = malloc((size_t)(ids + 1) * sizeof *bpe->ranks);
    if (!order || !bpe->ranks) {
        free(order);
        return fb_fail_memory(err, "scores", ids * (int64_t)(sizeof *order + sizeof *bpe->ranks));
    }
    for (int64_t id = 0; id < ids; id++) {
        order[id] = (scored){scores[id], (int32_t)id};
        if (bpe->vocab.tokens[id].size > bpe->longest) bpe->longest = bpe->vocab.tokens[id].size;
    }
    qsort(order, (size_t)ids, sizeof *order, compare_scores);
    uint32_t rank = 0; /* equal scores have equal ranks: position decides then */
    for (int64_t i = 0; i < ids; i++) {
        if (i > 0 && order[i].score < order[i - 1].score) rank++;
        bpe->ranks[order[i].id] = rank;
    }
    free(order);
    return FB_OK;
}

void fb_bpe_free(fb_bpe *bpe) {
    fb_vocab_free(&bpe->vocab);
    free(bpe->merges);
    free(bpe->ranks);
    free(bpe->unknown);
    bpe->ranks = NULL;
    bpe->merges = NULL;
    bpe->unknown = NULL;
}

void fb_bpe_work_free(fb_bpe_work *work) {
    free(work->symbols);
    free(work->heap);
    free(work->hashes);
    free(work->powers);
    *work = (fb_bpe_work){0};
}

/* ---- the candidates: a binary heap, the smallest key on top ---- */

static void heap_push(fb_bpe_work *work, fb_bpe_candidate candidate) {
    int64_t at = work->heap_count++;
    while (at > 0) {
        int64_t parent = (at - 1) / 2;
        if (work->heap[parent].key <= candidate.key) break;
        work->heap[at] = work->heap[parent];
        at = parent;
    }
    work->heap[at] = candidate;
}

static fb_bpe_candidate heap_pop(fb_bpe_work *work) {
    fb_bpe_candidate top = work->heap[0], last = work->heap[--work->heap_count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= work->heap_count) break;
        if (child + 1 < work->heap_count && work->heap[child + 1].key < work->heap[child].key) child++;
        if (last.key <= work->heap[child].key) break;
        work->heap[at] = work->heap[child];
        at = child;
    }
    work->heap[at] = last;
    return top;
}

/* ---- one word ---- */

static void add_symbol(fb_bpe_work *work, int32_t id, int64_t start) {
    int32_t at = (int32_t)work->symbol_count++;
    work->symbols[at] = (fb_bpe_symbol){id, at - 1, at + 1, (int32_t)start};
}

/* Where the symbol's text ends. */
static int64_t end_of(const fb_bpe_work *work, const fb_bpe_symbol *symbol) {
    return symbol->next >= 0 ? work->symbols[symbol->next].start : work->size;
}

static int32_t char_id(const fb_bpe *bpe, const char *text, int size) {
    const unsigned char *s = (const unsigned char *)text;
    if (size == 1) return bpe->char_ids[s[0]];
    if (size == 2) return bpe->char_ids[(s[0] & 0x1F) << 6 | (s[1] & 0x3F)];
    return fb_vocab_find(&bpe->vocab, text, size);
}

static bool add_bytes(const fb_bpe *bpe, fb_bpe_work *work, int64_t at, int size) {
    const unsigned char *s = (const unsigned char *)work->word + at;
    for (int i = 0; i < size; i++)
        if (bpe->byte_ids[s[i]] < 0) return false;
    for (int i = 0; i < size; i++) add_symbol(work, bpe->byte_ids[s[i]], at + i);
    return true;
}

/* The word's characters as symbols: at most one for each byte. */
static fb_status start_symbols(const fb_bpe *bpe, fb_bpe_work *work, fb_error *err) {
    bool pending = false; /* an unknown token that is not yet among the symbols */
    work->symbol_count = 0;
    for (int64_t at = 0; at < work->size;) {
        int length = fb_utf8_length(work->word[at]);
        int32_t id = char_id(bpe, work->word + at, length);
        if (id >= 0) {
            if (pending) add_symbol(work, bpe->unknown_id, at);
            pending = false;
            add_symbol(work, id, at);
        } else if (bpe->ranks) {
            add_symbol(work, UNKNOWN, at);
        } else if (bpe->byte_fallback && add_bytes(bpe, work, at, length)) {
            /* A pending unknown token stays so, and ends up behind these bytes: what the library does. */
        } else if (bpe->unknown) {
            if (bpe->unknown_id < 0)
                return fb_fail(err, FB_ERROR_FILE, "tokenizer: unk_token: \"%.64s\" (not in the vocabulary)",
                               bpe->unknown);
            if (pending && !bpe->fuse_unknown) add_symbol(work, bpe->unknown_id, at);
            pending = true;
        }
        at += length;
    }
    if (pending) add_symbol(work, bpe->unknown_id, work->size);
    if (work->symbol_count > 0) work->symbols[work->symbol_count - 1].next = -1;
    return FB_OK;
}

/* What the symbol and the one after it merge into, or -1. */
static int32_t find_merge(const fb_bpe *bpe, const fb_bpe_work *work, const fb_bpe_symbol *left,
                          uint32_t *rank) {
    const fb_bpe_symbol *right = &work->symbols[left->next];
    if (!bpe->ranks) {
        const fb_merge *merge = merge_slot(bpe, pair_of(left->id, right->id));
        *rank = merge->rank;
        return merge->pair == UINT64_MAX ? -1 : merge->id;
    }
    int64_t size = end_of(work, right) - left->start;
    if (size > bpe->longest) return -1;
    uint64_t hash =
        fb_hash_part(work->hashes[left->start], work->hashes[left->start + size], work->powers[size]);
    int32_t id = fb_vocab_find_hashed(&bpe->vocab, hash, work->word + left->start, size);
    *rank = id >= 0 ? bpe->ranks[id] : 0;
    return id;
}

static void consider(const fb_bpe *bpe, fb_bpe_work *work, int32_t left) {
    if (work->symbols[left].next < 0) return;
    uint32_t rank;
    int32_t id = find_merge(bpe, work, &work->symbols[left], &rank);
    if (id >= 0) heap_push(work, (fb_bpe_candidate){(uint64_t)rank << 32 | (uint32_t)left, id});
}

static void merge_symbols(const fb_bpe *bpe, fb_bpe_work *work) {
    fb_bpe_symbol *symbols = work->symbols;
    work->heap_count = 0;
    for (int32_t i = 0; i < work->symbol_count; i++) consider(bpe, work, i);
    while (work->heap_count > 0) {
        fb_bpe_candidate top = heap_pop(work);
        int32_t at = (int32_t)(uint32_t)top.key;
        uint32_t rank;
        fb_bpe_symbol *left = &symbols[at];
        if (left->id == MERGED || left->next < 0) continue;
        /* A neighbour may have changed since this candidate was found. */
        if (find_merge(bpe, work, left, &rank) != top.id) continue;
        fb_bpe_symbol *right = &symbols[left->next];
        left->id = top.id;
        left->next = right->next;
        right->id = MERGED;
        if (left->next >= 0) symbols[left->next].prev = at;
        if (left->prev >= 0) consider(bpe, work, left->prev);
        consider(bpe, work, at);
    }
}

/* The tokens of an unknown character's bytes; without them the unknown token, if there is one. `first` of
 * the ids are of other words. */
static fb_status append_bytes(const fb_bpe *bpe, const char *text, int64_t size, int64_t first, fb_ids *ids,
                              fb_error *err) {
    bool fused = bpe->fuse_unknown && ids->size > first && ids->data[ids->size - 1] == bpe->unknown_id;
    for (int64_t i = 0; i < size; i++)
        if (bpe->byte_ids[(unsigned char)text[i]] < 0)
            return bpe->unknown_id < 0 || fused ? FB_OK : fb_ids_append(ids, &bpe->unknown_id, 1, err);
    for (int64_t i = 0; i < size; i++)
        FB_TRY(fb_ids_append(ids, &bpe->byte_ids[(unsigned char)text[i]], 1, err));
    return FB_OK;
}

static fb_status reserve_work(fb_bpe_work *work, int64_t size, fb_error *err) {
    /* A merge takes one candidate off the heap and adds at most two, and there are fewer merges than symbols.
     */
    fb_bpe_symbol *symbols = fb_array_grow(work->symbols, 0, &work->symbol_capacity, size, sizeof *symbols);
    if (symbols) work->symbols = symbols;
    fb_bpe_candidate *heap = fb_array_grow(work->heap, 0, &work->heap_capacity, 2 * size, sizeof *heap);
    if (heap) work->heap = heap;
    if (!symbols || !heap)
        return fb_fail_memory(err, "merging a word", size * (int64_t)(sizeof *symbols + 2 * sizeof *heap));
    return FB_OK;
}

static fb_status hash_word(const fb_bpe *bpe, fb_bpe_work *work, fb_error *err) {
    const fb_hash_key *key = &bpe->vocab.key;
    int64_t most = work->size < bpe->longest ? work->size : bpe->longest; /* bytes of a part that may merge */
    uint64_t *hashes = fb_array_grow(work->hashes, 0, &work->hash_capacity, work->size + 1, sizeof *hashes);
    if (hashes) work->hashes = hashes;
    int64_t more = most + 1 > work->power_count ? most + 1 - work->power_count : 0;
    uint64_t *powers =
        fb_array_grow(work->powers, work->power_count, &work->power_capacity, more, sizeof *powers);
    if (powers) work->powers = powers;
    if (!hashes || !powers)
        return fb_fail_memory(err, "hashes of a word", (work->size + most + 2) * (int64_t)sizeof *hashes);
    hashes[0] = 0;
    for (int64_t i = 0; i < work->size; i++) hashes[i + 1] = fb_hash_byte(key, hashes[i], work->word[i]);
    for (; work->power_count <= most; work->power_count++)
        powers[work->power_count] =
            work->power_count > 0 ? fb_hash_multiply(powers[work->power_count - 1], key->base) : 1;
    return FB_OK;
}

fb_status fb_bpe_encode(const fb_bpe *bpe, fb_bpe_work *work, const char *word, int64_t size, fb_ids *ids,
                        fb_error *err) {
    if (bpe->ignore_merges) {
        int32_t id = fb_vocab_find(&bpe->vocab, word, size);
        if (id >= 0) return fb_ids_append(ids, &id, 1, err);
    }
    FB_TRY(reserve_work(work, size, err));
    work->word = word;
    work->size = size;
    if (bpe->ranks) FB_TRY(hash_word(bpe, work, err));
    FB_TRY(start_symbols(bpe, work, err));
    merge_symbols(bpe, work);
    int64_t first = ids->size;
    for (int64_t i = work->symbol_count > 0 ? 0 : -1; i >= 0; i = work->symbols[i].next) {
        const fb_bpe_symbol *symbol = &work->symbols[i];
        if (symbol->id == UNKNOWN)
            FB_TRY(append_bytes(bpe, word + symbol->start, end_of(work, symbol) - symbol->start, first, ids,
                                err));
        else
            FB_TRY(fb_ids_append(ids, &symbol->id, 1, err));
    }
    return FB_OK;
}
