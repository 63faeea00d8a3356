#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_impl.h"
#include "text/unicode.h"
#include "text/utf8.h"

void fb_tokenizer_free(fb_tokenizer *tokenizer) {
    if (!tokenizer) return;
    fb_added_free(&tokenizer->raw);
    fb_added_free(&tokenizer->normalized);
    for (int64_t i = 0; i < tokenizer->normalizer_count; i++) fb_normalizer_free(&tokenizer->normalizers[i]);
    for (int64_t i = 0; i < tokenizer->splitter_count; i++) fb_splitter_free(&tokenizer->splitters[i]);
    fb_bpe_free(&tokenizer->bpe);
    if (tokenizer->unigram) fb_unigram_free(tokenizer->unigram);
    free(tokenizer->unigram);
    fb_ids_free(&tokenizer->prefix);
    fb_ids_free(&tokenizer->suffix);
    fb_decoder_free(&tokenizer->decoder);
    free(tokenizer);
}

void fb_tokenizer_pad(fb_tokenizer *tokenizer, int64_t ids) { tokenizer->limit = ids; }

int64_t fb_tokenizer_vocab(const fb_tokenizer *tokenizer) { return tokenizer->bpe.vocab.ids; }

bool fb_tokenizer_piece(const fb_tokenizer *tokenizer, int32_t id, const char **text, size_t *bytes) {
    const fb_vocab *vocab = &tokenizer->bpe.vocab;
    *text = NULL;
    *bytes = 0;
    if (id < 0 || id >= vocab->ids || !vocab->tokens[id].used) return false;
    *text = vocab->text.data + vocab->tokens[id].offset;
    *bytes = vocab->tokens[id].size;
    return true;
}

const int32_t *fb_tokenizer_prefix(const fb_tokenizer *tokenizer, int64_t *count) {
    *count = tokenizer->prefix.size;
    return tokenizer->prefix.data;
}

/* What the steps may make of a text of n bytes. NFKC makes 11 n of it where it is nothing but U+FDFA, other
 * published normalizers 3 n (every space becomes three bytes); a byte-level step doubles that. */
#define NORMAL_GROWTH   12
#define SPLIT_GROWTH    24
#define GROWTH_CONSTANT 4096 /* for prefixes of short texts */

/* One encoding: where its ids go, and room for every step. Nothing in the tokenizer itself is written to. */
typedef struct encoding {
    const fb_tokenizer *tokenizer;
    fb_ids ids;
    fb_growth normal_growth[FB_STEPS_LIMIT], split_growth[FB_STEPS_LIMIT];
    fb_bytes clean;         /* the text as valid UTF-8 */
    fb_parts raw;           /* cuts of the text at added tokens */
    fb_bytes normal[2];     /* one part, normalised */
    fb_parts normalized;    /* its cuts at added tokens */
    fb_pieces pieces, room; /* one of those, cut into words */
    fb_pattern_work patterns;
    fb_bpe_work merging;
    fb_unigram_work cutting;
    fb_added_filter filter; /* of a marked text; guarded is NULL otherwise */
} encoding;

static void free_encoding(encoding *e) {
    fb_ids_free(&e->ids);
    fb_bytes_free(&e->clean);
    fb_parts_free(&e->raw);
    fb_bytes_free(&e->normal[0]);
    fb_bytes_free(&e->normal[1]);
    fb_parts_free(&e->normalized);
    fb_pieces_free(&e->pieces);
    fb_pieces_free(&e->room);
    fb_pattern_work_free(&e->patterns);
    fb_bpe_work_free(&e->merging);
    fb_unigram_work_free(&e->cutting);
}

void fb_growth_start(fb_growth growth[FB_STEPS_LIMIT], const char *what, int64_t limit) {
    for (int i = 0; i < FB_STEPS_LIMIT; i++) growth[i] = (fb_growth){what, 0, limit};
}

fb_status fb_tokenizer_normalize(const fb_tokenizer *tokenizer, fb_pattern_work *work, const char *text,
                                 int64_t size, fb_growth growth[FB_STEPS_LIMIT], fb_bytes out[2], int *which,
                                 fb_error *err) {
    *which = 0;
    out[0].size = 0;
    FB_TRY(fb_bytes_append(&out[0], text, size, err));
    for (int64_t i = 0; i < tokenizer->normalizer_count; i++) {
        const fb_bytes *from = &out[*which];
        fb_bytes *to = &out[!*which];
        to->size = 0;
        FB_TRY(fb_normalizer_apply(&tokenizer->normalizers[i], work, from->data, from->size, &growth[i], to,
                                   err));
        *which = !*which;
    }
    return FB_OK;
}

static fb_status encode_word(encoding *e, const char *word, int64_t size, fb_error *err) {
    const fb_tokenizer *t = e->tokenizer;
    if (t->unigram)
        return fb_unigram_encode(t->unigram, &t->bpe.vocab, &e->cutting, word, size, &e->ids, err);
    return fb_bpe_encode(&t->bpe, &e->merging, word, size, &e->ids, err);
}

/* The first guarded id from `first` on; -1: there is none. */
static int32_t guarded_id(const encoding *e, int64_t first) {
    for (int64_t i = first; e->filter.guarded && i < e->ids.size; i++)
        if (e->filter.guarded[e->ids.data[i]]) return e->ids.data[i];
    return -1;
}

/* In a marked text, a word that merges into a guarded token is encoded character by character: what a user
 * wrote must not become one. */
static fb_status encode_guarded(encoding *e, const char *word, int64_t size, fb_error *err) {
    int64_t first = e->ids.size;
    FB_TRY(encode_word(e, word, size, err));
    if (guarded_id(e, first) < 0) return FB_OK;
    e->ids.size = first;
    for (int64_t at = 0; at < size;) {
        int64_t bytes = fb_utf8_read(word + at, size - at).size;
        FB_TRY(encode_word(e, word + at, bytes, err));
        at += bytes;
    }
    int32_t id = guarded_id(e, first);
    if (id < 0) return FB_OK;
    return fb_fail(err, FB_ERROR_UNSUPPORTED,
                   "messages: a text has a character that is the special token %d of this vocabulary", id);
}

/* Text without added tokens: into words, and each word into ids. `first`: it is the start of the whole text.
 */
static fb_status encode_piece(encoding *e, const char *text, int64_t size, bool first, fb_error *err) {
    const fb_tokenizer *tokenizer = e->tokenizer;
    e->pieces.text.size = e->pieces.spans.size = 0;
    FB_TRY(fb_bytes_append(&e->pieces.text, text, size, err));
    FB_TRY(fb_spans_add(&e->pieces.spans, 0, size, err));
    for (int64_t i = 0; i < tokenizer->splitter_count; i++) {
        FB_TRY(fb_splitter_apply(&tokenizer->splitters[i], &e->patterns, first, &e->pieces, &e->room, err));
        FB_TRY(fb_growth_add(&e->split_growth[i], e->pieces.text.size, err));
    }
    for (int64_t i = 0; i < e->pieces.spans.size; i++) {
        fb_span span = e->pieces.spans.data[i];
        FB_TRY(encode_guarded(e, e->pieces.text.data + span.start, span.end - span.start, err));
    }
    return FB_OK;
}

static fb_status encode_part(encoding *e, const char *text, int64_t size, bool first, fb_error *err) {
    int which;
    FB_TRY(fb_tokenizer_normalize(e->tokenizer, &e->patterns, text, size, e->normal_growth, e->normal, &which,
                                  err));
    const fb_bytes *normal = &e->normal[which];
    FB_TRY(fb_added_cut(&e->tokenizer->normalized, normal->data, normal->size, &e->normalized, err));
    for (int64_t i = 0; i < e->normalized.size; i++) {
        const fb_part *part = &e->normalized.data[i];
        if (part->id >= 0)
            FB_TRY(fb_ids_append(&e->ids, &part->id, 1, err));
        else
            FB_TRY(encode_piece(e, normal->data + part->span.start, part->span.end - part->span.start,
                                first && part->span.start == 0, err));
    }
    return FB_OK;
}

/* A part of a marked text between two added tokens. Marks cannot be followed through a normalizer: tokens
 * that are looked for in normalised text are cut out before, unless the part has no mark at all. */
static fb_status encode_marked_part(encoding *e, const char *text, fb_span span, fb_error *err) {
    const fb_added *normalized = &e->tokenizer->normalized;
    int64_t size = span.end - span.start;
    bool first = span.start == 0;
    if (normalized->count == 0 || !memchr(e->filter.marks + span.start, 1, (size_t)size))
        return encode_part(e, text + span.start, size, first, err);
    fb_added_filter filter = {e->filter.marks + span.start, e->filter.guarded};
    fb_parts parts = {0};
    fb_status status = fb_added_cut_filtered(normalized, text + span.start, size, &filter, &parts, err);
    for (int64_t i = 0; i < parts.size && status == FB_OK; i++) {
        const fb_part *part = &parts.data[i];
        const char *at = text + span.start + part->span.start;
        int which;
        if (part->id >= 0) {
            status = fb_ids_append(&e->ids, &part->id, 1, err);
            continue;
        }
        status = fb_tokenizer_normalize(e->tokenizer, &e->patterns, at, part->span.end - part->span.start,
                                        e->normal_growth, e->normal, &which, err);
        if (status == FB_OK)
            status = encode_piece(e, e->normal[which].data, e->normal[which].size,
                                  first && part->span.start == 0, err);
    }
    fb_parts_free(&parts);
    return status;
}

static fb_status encode_text(encoding *e, const char *text, int64_t size, fb_error *err) {
    if (!fb_utf8_valid(text, size)) {
        FB_TRY(fb_utf8_append_lossy(&e->clean, text, size, err));
        text = e->clean.data;
        size = e->clean.size;
    }
    fb_growth_start(e->normal_growth, "normalizer", NORMAL_GROWTH * size + GROWTH_CONSTANT);
    fb_pattern_work_start(&e->patterns, size);
    e->cutting.limit = FB_UNIGRAM_STEPS + FB_UNIGRAM_STEPS_PER_BYTE * size;
    fb_growth_start(e->split_growth, "pre_tokenizer", SPLIT_GROWTH * size + GROWTH_CONSTANT);
    bool marked = e->filter.guarded != NULL;
    FB_TRY(fb_added_cut_filtered(&e->tokenizer->raw, text, size, marked ? &e->filter : NULL, &e->raw, err));
    for (int64_t i = 0; i < e->raw.size; i++) {
        const fb_part *part = &e->raw.data[i];
        if (part->id >= 0)
            FB_TRY(fb_ids_append(&e->ids, &part->id, 1, err));
        else if (marked)
            FB_TRY(encode_marked_part(e, text, part->span, err));
        else
            FB_TRY(encode_part(e, text + part->span.start, part->span.end - part->span.start,
                               part->span.start == 0, err));
    }
    return FB_OK;
}

static fb_status encode_all(encoding *e, const char *text, int64_t size, bool special, fb_error *err) {
    const fb_tokenizer *tokenizer = e->tokenizer;
    if (special) FB_TRY(fb_ids_append(&e->ids, tokenizer->prefix.data, tokenizer->prefix.size, err));
    FB_TRY(encode_text(e, text, size, err));
    if (special) FB_TRY(fb_ids_append(&e->ids, tokenizer->suffix.data, tokenizer->suffix.size, err));
    return fb_ids_append(&e->ids, NULL, 0, err); /* an array even for no ids */
}

static fb_status encode(encoding *e, const char *text, size_t bytes, bool special, int32_t **ids,
                        int64_t *count, fb_error *err) {
    *ids = NULL;
    *count = 0;
    if (bytes > FB_TEXT_LIMIT)
        return fb_fail(err, FB_ERROR_USAGE, "text: %zu bytes (at most %lld)", bytes,
                       (long long)FB_TEXT_LIMIT);
    fb_status status = encode_all(e, text, (int64_t)bytes, special, err);
    if (status == FB_OK) {
        *ids = e->ids.data;
        *count = e->ids.size;
        e->ids = (fb_ids){0};
    }
    free_encoding(e);
    return status;
}

fb_status fb_tokenizer_encode(const fb_tokenizer *tokenizer, const char *text, size_t bytes, bool special,
                              int32_t **ids, int64_t *count, fb_error *err) {
    encoding e = {.tokenizer = tokenizer};
    return encode(&e, text, bytes, special, ids, count, err);
}

/* ---- texts of users ---- */

static bool is_space(const char *text, int64_t size) {
    for (int64_t at = 0; at < size;) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        if (!fb_unicode_is_space(c.code)) return false;
        at += c.size;
    }
    return true;
}

/* Guards the set's tokens that are special or have a meaning in the template. */
static void guard_tokens(const fb_tokenizer *tokenizer, const fb_added *added, const char *template_text,
                         bool *guarded) {
    size_t size = strlen(template_text);
    for (int64_t i = 0; i < added->count; i++) {
        int32_t id = added->tokens[i].id;
        int64_t bytes;
        const char *text = fb_tokenizer_token_text(tokenizer, id, &bytes);
        guarded[id] = tokenizer->bpe.vocab.tokens[id].special ||
                      (text && !is_space(text, bytes) && memmem(template_text, size, text, (size_t)bytes));
    }
}

fb_status fb_tokenizer_encode_marked(const fb_tokenizer *tokenizer, const char *text,
                                     const unsigned char *marks, size_t bytes, const char *template_text,
                                     int32_t **ids, int64_t *count, fb_error *err) {
    int64_t vocab = tokenizer->bpe.vocab.ids;
    bool *guarded = calloc((size_t)vocab + 1, sizeof *guarded);
    *ids = NULL;
    *count = 0;
    if (!guarded) return fb_fail_memory(err, "tokenizer", vocab);
    guard_tokens(tokenizer, &tokenizer->raw, template_text, guarded);
    guard_tokens(tokenizer, &tokenizer->normalized, template_text, guarded);
    encoding e = {.tokenizer = tokenizer, .filter = {marks, guarded}};
    fb_status status = encode(&e, text, bytes, false, ids, count, err);
    free(guarded);
    return status;
}

int32_t fb_tokenizer_find_added(const fb_tokenizer *tokenizer, const char *text) {
    const fb_added *sets[] = {&tokenizer->raw, &tokenizer->normalized};
    int64_t wanted = (int64_t)strlen(text);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < sets[k]->count; i++) {
            int64_t size;
            const char *name = fb_tokenizer_token_text(tokenizer, sets[k]->tokens[i].id, &size);
            if (name && size == wanted && memcmp(name, text, (size_t)size) == 0) return sets[k]->tokens[i].id;
        }
    return -1;
}

const char *fb_tokenizer_token_text(const fb_tokenizer *tokenizer, int64_t id, int64_t *size) {
    const fb_vocab *vocab = &tokenizer->bpe.vocab;
    *size = 0;
    if (id < 0 || id >= vocab->ids || !vocab->tokens[id].used) return NULL;
    *size = vocab->tokens[id].size;
    return vocab->text.data + vocab->tokens[id].offset;
}
