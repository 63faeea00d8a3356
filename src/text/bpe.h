/* Byte pair encoding: a vocabulary, an order of merging, and the merging of one word. The order is a table of
 * merges or, as SentencePiece has it, the score of what two neighbours become. */
#ifndef FB_TEXT_BPE_H
#define FB_TEXT_BPE_H

#include "text/bytes.h"
#include "text/hash.h"

#define FB_VOCAB_LIMIT (1 << 24) /* ids are below it; the largest published vocabularies have 2^18 */

typedef struct fb_token {
    uint32_t offset, size;      /* its text, in fb_vocab.text */
    uint32_t shown, shown_size; /* the same for what decoders see */
    bool used;                  /* false: no token has this id */
    bool special;               /* leaves no trace in decoded text */
} fb_token;

typedef struct fb_vocab_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
} fb_vocab_slot;

/* Token texts by id, and ids by token text. */
typedef struct fb_vocab {
    fb_bytes text;
    fb_token *tokens; /* [ids] */
    int64_t ids;      /* the highest id + 1 */
    int64_t entries;  /* tokens that can be found by text */
    fb_vocab_slot *slots;
    uint32_t mask; /* slots - 1; a power of two, at most half of them in use */
    fb_hash_key key;
} fb_vocab;

/* For ids below `ids`, of which `entries` can be found by text. */
fb_status fb_vocab_create(fb_vocab *vocab, int64_t ids, int64_t entries, fb_error *err);
void fb_vocab_free(fb_vocab *vocab);

/* Gives an unused id its text; fb_vocab_add also lets it be found by that text. `what` is for errors. */
fb_status fb_vocab_name(fb_vocab *vocab, const char *what, int64_t id, const char *text, int64_t size,
                        fb_error *err);
fb_status fb_vocab_add(fb_vocab *vocab, const char *what, int64_t id, const char *text, int64_t size,
                       fb_error *err);

/* Lets decoders see another text: an added token that was normalised. */
fb_status fb_vocab_show(fb_vocab *vocab, int64_t id, const char *text, int64_t size, fb_error *err);

int32_t fb_vocab_find(const fb_vocab *vocab, const char *text, int64_t size); /* -1: not there */
/* The same where the text's fb_hash_text is known. */
int32_t fb_vocab_find_hashed(const fb_vocab *vocab, uint64_t hash, const char *text, int64_t size);

typedef struct fb_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: a free slot */
    uint32_t rank; /* lower merges first */
    int32_t id;    /* what the pair becomes */
} fb_merge;

#define FB_BPE_CHARS 0x800 /* characters of one or two bytes have their id in a table */

typedef struct fb_bpe {
    fb_vocab vocab;
    fb_merge *merges;
    uint32_t merge_mask;
    uint32_t *ranks;    /* [vocab.ids], lower merges first; NULL: the table of merges decides */
    int64_t longest;    /* bytes of the longest token, with ranks */
    bool byte_fallback; /* an unknown character becomes its bytes' tokens, "<0x00>" to "<0xFF>" */
    bool fuse_unknown;  /* a run of unknown characters becomes one unknown token */
    bool ignore_merges; /* a word that is a token is that token */
    char *unknown;      /* the unknown token's text; NULL: unknown characters are dropped */
    int32_t unknown_id; /* -1: not in the vocabulary, and an error once it is needed */
    int32_t byte_ids[256];
    int32_t char_ids[FB_BPE_CHARS];
} fb_bpe;

/* After the vocabulary: an empty table for `count` merges, and the ids of single characters and bytes. */
fb_status fb_bpe_prepare(fb_bpe *bpe, int64_t count, fb_error *err);
/* `text` is two tokens one after the other, the first of `left` bytes, that merge into one. */
fb_status fb_bpe_add_merge(fb_bpe *bpe, const char *what, uint32_t rank, const char *text, int64_t left,
                           int64_t size, fb_error *err);
/* The merge of a pair of ids, as in fb_merge; NULL: there is none. */
const fb_merge *fb_bpe_find_merge(const fb_bpe *bpe, uint64_t pair);
/* Instead of merges: two neighbours whose texts together are a token may merge into it, those with the
 * highest of the `scores` [vocab.ids] first. An unknown character may still be a part of a token; left alone,
 * it becomes its bytes' tokens. */
fb_status fb_bpe_use_scores(fb_bpe *bpe, const float *scores, fb_error *err);
void fb_bpe_free(fb_bpe *bpe);

/* What the merging of a word needs, kept from one word to the next. */
typedef struct fb_bpe_symbol {
    int32_t id; /* -1: merged into the one before; -2: a character that is no token */
    int32_t prev, next;
    int32_t start; /* of its text in the word */
} fb_bpe_symbol;

typedef struct fb_bpe_candidate {
    uint64_t key; /* rank << 32 | position: the order of merging */
    int32_t id;
} fb_bpe_candidate;

typedef struct fb_bpe_work {
    const char *word; /* [size] */
    int64_t size;
    fb_bpe_symbol *symbols;
    int64_t symbol_count, symbol_capacity;
    fb_bpe_candidate *heap;
    int64_t heap_count, heap_capacity;
    /* With ranks: hashes of the word's first 0, 1, … bytes, and powers of their base. So the hash of any part
     * takes one product, however long the part is. */
    uint64_t *hashes, *powers;
    int64_t hash_capacity, power_count, power_capacity;
} fb_bpe_work;

void fb_bpe_work_free(fb_bpe_work *work);

/* Appends the ids of one word: valid UTF-8 of at most FB_TEXT_LIMIT bytes. O(n log n). */
fb_status fb_bpe_encode(const fb_bpe *bpe, fb_bpe_work *work, const char *word, int64_t size, fb_ids *ids,
                        fb_error *err);

#endif
