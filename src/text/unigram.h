/* SentencePiece's Unigram model: of all ways to cut a word into tokens, the one of the highest probability.
 */
#ifndef FB_TEXT_UNIGRAM_H
#define FB_TEXT_UNIGRAM_H

#include "text/bpe.h"
#include "text/trie.h"

#define FB_UNIGRAM_PENALTY 10.0 /* what an unknown character costs below the lowest score */

typedef struct fb_unigram {
    fb_trie trie;
    double *scores; /* [vocab.ids]: logarithms of probabilities */
    double unknown_score;
    int32_t unknown_id;    /* -1: none; a character that is no token is then an error */
    bool byte_fallback;    /* unknown text becomes its bytes' tokens */
    int32_t byte_ids[256]; /* "<0x00>" to "<0xFF>"; -1: not there */
} fb_unigram;

/* Takes the scores [vocab->ids], which belong to it afterwards, also after a failure. `used` [vocab->ids]
 * says which tokens a text may be cut into; NULL: all of the vocabulary. */
fb_status fb_unigram_create(const fb_vocab *vocab, double *scores, const bool *used, fb_unigram *out,
                            fb_error *err);
void fb_unigram_free(fb_unigram *unigram);

/* The best way to the bytes before a place: its score, and the last token on it. */
typedef struct fb_unigram_path {
    double score;
    int32_t start, id; /* start -1: there is none yet */
} fb_unigram_path;

/* Steps through the trie that a text of n bytes may take: 5e7 + 256 n. A published vocabulary takes at most
 * 50 n. A hostile one has tokens of a, aa, aaa and so on, and would be quadratic. */
#define FB_UNIGRAM_STEPS          50000000
#define FB_UNIGRAM_STEPS_PER_BYTE 256

typedef struct fb_unigram_work {
    fb_unigram_path *paths;
    int64_t capacity;
    fb_ids found; /* of one word, the last first */
    int64_t steps, limit;
} fb_unigram_work;

void fb_unigram_work_free(fb_unigram_work *work);

/* Appends the ids of one word: valid UTF-8 of at most FB_TEXT_LIMIT bytes. */
fb_status fb_unigram_encode(const fb_unigram *unigram, const fb_vocab *vocab, fb_unigram_work *work,
                            const char *word, int64_t size, fb_ids *ids, fb_error *err);

#endif
