/* Guesses from the text itself: what came after the last tokens when they were there before.
 *
 * For some lengths n, a table has for a hash of n tokens where the token after them is. It is written over
 * freely: whether it is right shows when the tokens are compared. So a token takes constant time, and a text
 * that is cut needs no cleaning up. */
#include <stdlib.h>

#include "draft/draft.h"

static const int64_t lengths[] = {8, 4, 3, 2}; /* the longest first */
enum { LENGTHS = sizeof lengths / sizeof *lengths };
#define FIRST_BITS 10
#define MOST_BITS  20
/* A longer match is hardly more certain. */
#define MOST_MATCH 32

typedef struct index_of {
    int64_t *at; /* [LENGTHS << bits]: where the token after the n tokens is; 0: nothing */
    int32_t bits;
    int64_t count; /* tokens that are in it */
} index_of;

static uint64_t hash_of(const int32_t *tokens, int64_t count) {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < count; i++) hash = (hash ^ (uint32_t)tokens[i]) * 0xd6e8feb86659fd93u;
    return hash ^ hash >> 32;
}

/* The place for the `n` tokens before position `end`. */
static int64_t *place(const index_of *x, int length, const int32_t *tokens, int64_t end) {
    const int64_t n = lengths[length];
    uint64_t slot = hash_of(tokens + end - n, n) & (((uint64_t)1 << x->bits) - 1);
    return &x->at[((uint64_t)length << x->bits) + slot];
}

/* Twice the size, empty. */
static fb_status widen(index_of *x, fb_error *err) {
    int32_t bits = x->bits ? x->bits + 1 : FIRST_BITS;
    int64_t *at = calloc((size_t)LENGTHS << bits, sizeof *at);
    if (!at) return fb_fail_memory(err, "n-grams", (int64_t)(LENGTHS * sizeof *at) << bits);
    free(x->at);
    *x = (index_of){.at = at, .bits = bits};
    return FB_OK;
}

static fb_status take_tokens(index_of *x, const int32_t *tokens, int64_t count, fb_error *err) {
    while (!x->at || (count > (int64_t)1 << x->bits && x->bits < MOST_BITS)) FB_TRY(widen(x, err));
    for (; x->count < count; x->count++)
        for (int i = 0; i < LENGTHS; i++)
            if (x->count >= lengths[i]) *place(x, i, tokens, x->count) = x->count;
    return FB_OK;
}

/* How many tokens before `a` and before `b` are the same. */
static int64_t match(const int32_t *tokens, int64_t a, int64_t b) {
    int64_t n = 0;
    while (n < MOST_MATCH && n < a && tokens[a - 1 - n] == tokens[b - 1 - n]) n++;
    return n;
}

static int32_t class_of(int64_t match) {
    return match < 3 ? 0 : match < 4 ? 1 : match < 8 ? 2 : match < 16 ? 3 : 4;
}

/* What follows: if the match is near the end, the text repeats itself, and goes on with what it just guessed.
 */
static void copy_from(fb_draft_ask *a, int64_t from) {
    for (a->made = 0; a->made < a->most; a->made++) {
        int64_t at = from + a->made;
        a->ids[a->made] = at < a->count ? a->tokens[at] : a->ids[at - a->count];
    }
}

static fb_status guess_one(index_of *x, fb_draft_ask *a, fb_error *err) {
    FB_TRY(take_tokens(x, a->tokens, a->count, err));
    for (int i = 0; i < LENGTHS; i++) {
        if (a->count < lengths[i]) continue;
        int64_t at = *place(x, i, a->tokens, a->count);
        int64_t same = at > 0 && at < a->count ? match(a->tokens, at, a->count) : 0;
        if (same < lengths[i]) continue;
        a->class = class_of(same);
        copy_from(a, at);
        return FB_OK;
    }
    return FB_OK;
}

static fb_status guess(fb_drafter *d, fb_draft_ask *asks, int64_t count, fb_error *err) {
    (void)d;
    for (int64_t i = 0; i < count; i++) FB_TRY(guess_one(asks[i].stream->own, &asks[i], err));
    return FB_OK;
}

static fb_status stream_open(fb_drafter *d, fb_draft_stream *stream, fb_error *err) {
    (void)d;
    stream->own = calloc(1, sizeof(index_of));
    return stream->own ? FB_OK : fb_fail_memory(err, "n-grams", sizeof(index_of));
}

static void stream_close(fb_draft_stream *stream) {
    index_of *x = stream->own;
    if (x) free(x->at);
    free(x);
}

static void cut(fb_draft_stream *stream, int64_t count) {
    index_of *x = stream->own;
    if (count < x->count) x->count = count;
}

const fb_draft_source fb_draft_ngram = {.name = "ngram",
                                        .free = true,
                                        .classes = FB_DRAFT_CLASSES,
                                        .prior = {0.25, 0.4, 0.6, 0.75, 0.85},
                                        .stream_open = stream_open,
                                        .stream_close = stream_close,
                                        .cut = cut,
                                        .guess = guess};
