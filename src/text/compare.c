/* Whether two tokenizers are the same: tokens, the order of merging, and what they make of some texts. */
#include <stdio.h>
#include <stdlib.h>

#include "text/tokenizer_impl.h"

#define SHOWN 32 /* bytes of a token in a message */
#define SAME  "; both need the same tokenizer)"

/* A piece of a message. */
typedef struct shown {
    const char *text;
    int size;
} shown;

static shown show(const fb_tokenizer *t, int64_t id) {
    int64_t size = 0;
    const char *text = fb_tokenizer_token_text(t, id, &size);
    return (shown){text ? text : "", (int)(size < SHOWN ? size : SHOWN)};
}

/* ---- tokens ---- */

/* An id without a token, up to a multiple of some number. A GGUF file must name it. */
static bool is_padding(const fb_tokenizer *t, int64_t id) {
    char name[32];
    int64_t size = 0;
    const char *text = fb_tokenizer_token_text(t, id, &size);
    return !text || (snprintf(name, sizeof name, "[PAD%lld]", (long long)id) == size &&
                     memcmp(name, text, (size_t)size) == 0);
}

static bool same_token(const fb_tokenizer *a, const fb_tokenizer *b, int64_t id) {
    shown texts[2];
    int64_t sizes[2] = {0, 0};
    texts[0].text = fb_tokenizer_token_text(a, id, &sizes[0]);
    texts[1].text = fb_tokenizer_token_text(b, id, &sizes[1]);
    if (!texts[0].text || !texts[1].text) return is_padding(a, id) && is_padding(b, id);
    return sizes[0] == sizes[1] && memcmp(texts[0].text, texts[1].text, (size_t)sizes[0]) == 0;
}

static fb_status compare_tokens(const char *what, const fb_tokenizer *a, const fb_tokenizer *b,
                                fb_error *err) {
    int64_t most = a->bpe.vocab.ids > b->bpe.vocab.ids ? a->bpe.vocab.ids : b->bpe.vocab.ids, id = 0;
    while (id < most && same_token(a, b, id)) id++;
    if (id == most) return FB_OK;
    shown own = show(b, id), other = show(a, id);
    return fb_fail(err, FB_ERROR_USAGE, "%.200s: token %lld is \"%.*s\" (\"%.*s\" in the model" SAME, what,
                   (long long)id, own.size, own.text, other.size, other.text);
}

/* ---- the order of merging ---- */

/* Ends at the merge of `a` with the lowest rank that `b` has at another one, or not at all. */
static const fb_merge *first_other(const fb_bpe *a, const fb_bpe *b, const fb_merge *best) {
    for (int64_t i = 0; i <= (int64_t)a->merge_mask; i++) {
        const fb_merge *m = &a->merges[i], *same;
        if (m->pair == UINT64_MAX || (best && m->rank >= best->rank)) continue;
        same = fb_bpe_find_merge(b, m->pair);
        if (!same || same->rank != m->rank) best = m;
    }
    return best;
}

static fb_status compare_merges(const char *what, const fb_tokenizer *a, const fb_tokenizer *b,
                                fb_error *err) {
    const fb_merge *m = first_other(&b->bpe, &a->bpe, first_other(&a->bpe, &b->bpe, NULL));
    if (!m) return FB_OK;
    const fb_merge *in_a = fb_bpe_find_merge(&a->bpe, m->pair), *in_b = fb_bpe_find_merge(&b->bpe, m->pair);
    shown left = show(a, (int64_t)(m->pair >> 32)), right = show(a, (int64_t)(m->pair & UINT32_MAX));
    return fb_fail(err, FB_ERROR_USAGE,
                   "%.200s: the merge \"%.*s %.*s\" is number %lld (%lld in the model, -1: none" SAME, what,
                   left.size, left.text, right.size, right.text, in_b ? (long long)in_b->rank : -1,
                   in_a ? (long long)in_a->rank : -1);
}

/* Added tokens are found as they are, and files give them scores of many kinds. */
static bool is_added(const fb_added *set, int64_t id) {
    for (int64_t i = 0; i < set->count; i++)
        if (set->tokens[i].id == id) return true;
    return false;
}

static bool has_score(const fb_tokenizer *t, int64_t id) {
    return !is_padding(t, id) && !t->bpe.vocab.tokens[id].special && !is_added(&t->raw, id) &&
           !is_added(&t->normalized, id);
}

static int order_of(const fb_bpe *bpe, int64_t id, int64_t next) {
    return (bpe->ranks[id] < bpe->ranks[next]) - (bpe->ranks[id] > bpe->ranks[next]);
}

/* The score of a Unigram model; or whether the token comes before the next one in the order of merging. */
static bool same_score(const fb_tokenizer *a, const fb_tokenizer *b, int64_t id, int64_t next) {
    if (a->unigram) return (float)a->unigram->scores[id] == (float)b->unigram->scores[id];
    return order_of(&a->bpe, id, next) == order_of(&b->bpe, id, next);
}

static fb_status compare_scores(const char *what, const fb_tokenizer *a, const fb_tokenizer *b,
                                fb_error *err) {
    int64_t least = a->bpe.vocab.ids < b->bpe.vocab.ids ? a->bpe.vocab.ids : b->bpe.vocab.ids;
    for (int64_t id = 0; id + 1 < least; id++) {
        if (same_score(a, b, id, id + 1) || !has_score(a, id) || !has_score(a, id + 1) || !has_score(b, id) ||
            !has_score(b, id + 1))
            continue;
        shown token = show(b, id);
        return fb_fail(err, FB_ERROR_USAGE,
                       "%.200s: token %lld, \"%.*s\": another score (than in the model" SAME, what,
                       (long long)id, token.size, token.text);
    }
    return FB_OK;
}

/* Files of different kinds may say the same in two ways, which only texts can compare. */
static fb_status compare_order(const char *what, const fb_tokenizer *a, const fb_tokenizer *b,
                               fb_error *err) {
    if (a->unigram && b->unigram) return compare_scores(what, a, b, err);
    if (a->unigram || b->unigram || !a->bpe.ranks != !b->bpe.ranks) return FB_OK;
    return (a->bpe.ranks ? compare_scores : compare_merges)(what, a, b, err);
}

/* ---- texts ---- */

/* What pre-tokenizers and normalizers treat in different ways. */
static const char *const texts[] = {
    "The quick brown fox, it's said, doesn't jump; WE'LL see.",
    "numbers 7 42 2024 1234567 3.14 1,000 x2 2x",
    "two  spaces,   three, a\ttab, a line\nanother\n\nand\r\none more",
    "int main(void) { return f(a[i], \"b\") != 0x1F; } // done!!! (a+b)*c",
    "camelCase snake_case ALLCAPS e-mail@example.org https://example.org/a?b=c",
    "na\xc3\xafve caf\xc3\xa9 h\xc3\xb6ren",
    "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80",
};
enum { TEXTS = sizeof texts / sizeof *texts };

/* What a tokenizer makes of a text; one that it refuses has no ids. */
static fb_status take_ids(const fb_tokenizer *t, const char *text, fb_ids *ids, fb_error *err) {
    fb_status status = fb_tokenizer_encode(t, text, strlen(text), false, &ids->data, &ids->size, err);
    if (status != FB_OK) *ids = (fb_ids){0};
    return status == FB_ERROR_MEMORY ? status : FB_OK;
}

static fb_status compare_ids(const char *what, const char *text, const fb_tokenizer *a, const fb_ids *in_a,
                             const fb_tokenizer *b, const fb_ids *in_b, fb_error *err) {
    int64_t i = 0;
    while (i < in_a->size && i < in_b->size && in_a->data[i] == in_b->data[i]) i++;
    if (i == in_a->size && i == in_b->size) return FB_OK;
    shown own = show(b, i < in_b->size ? in_b->data[i] : -1),
          other = show(a, i < in_a->size ? in_a->data[i] : -1);
    return fb_fail(err, FB_ERROR_USAGE,
                   "%.200s: of the text \"%.20s...\" token %lld is \"%.*s\" (\"%.*s\" in the model" SAME,
                   what, text, (long long)i, own.size, own.text, other.size, other.text);
}

static fb_status compare_text(const char *what, const char *text, const fb_tokenizer *a,
                              const fb_tokenizer *b, fb_error *err) {
    fb_ids in_a = {0}, in_b = {0};
    fb_status status = take_ids(a, text, &in_a, err);
    if (status == FB_OK) status = take_ids(b, text, &in_b, err);
    if (status == FB_OK) status = compare_ids(what, text, a, &in_a, b, &in_b, err);
    fb_free(in_a.data);
    fb_free(in_b.data);
    return status;
}

fb_status fb_tokenizer_compare(const char *what, const fb_tokenizer *tokenizer, const fb_tokenizer *other,
                               fb_error *err) {
    FB_TRY(compare_tokens(what, tokenizer, other, err));
    FB_TRY(compare_order(what, tokenizer, other, err));
    for (int i = 0; i < TEXTS; i++) FB_TRY(compare_text(what, texts[i], tokenizer, other, err));
    return FB_OK;
}
