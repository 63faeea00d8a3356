#include "text/split.h"

#include <string.h>

#include "text/unicode.h"
#include "text/utf8.h"

static bool is_own_char(unsigned char byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t fb_byte_to_char(unsigned char byte) {
    if (is_own_char(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte == 0xAD) return 0x143;
    return 0x121u + (byte - 0x7Fu); /* 0x7F to 0xA0 */
}

int fb_char_to_byte(uint32_t code) {
    if (code < 0x100) return is_own_char((unsigned char)code) ? (int)code : -1;
    if (code <= 0x120) return (int)code - 0x100;
    if (code <= 0x142) return (int)code - 0x121 + 0x7F;
    return code == 0x143 ? 0xAD : -1;
}

void fb_splitter_free(fb_splitter *splitter) {
    fb_pattern_free(splitter->pattern);
    splitter->pattern = NULL;
}

void fb_pieces_free(fb_pieces *pieces) {
    fb_bytes_free(&pieces->text);
    fb_spans_free(&pieces->spans);
    fb_spans_free(&pieces->matches);
}

/* ---- matches and what is between them ---- */

/* Every character of a kind is a match. */
static fb_status find_characters(fb_splitter_kind kind, const char *text, fb_span piece, fb_spans *matches,
                                 fb_error *err) {
    for (int64_t at = piece.start; at < piece.end;) {
        fb_utf8_char c = fb_utf8_read(text + at, piece.end - at);
        bool match =
            kind == FB_SPLITTER_PUNCTUATION ? fb_unicode_is_punctuation(c.code) : fb_unicode_is_space(c.code);
        if (match) FB_TRY(fb_spans_add(matches, at, at + c.size, err));
        at += c.size;
    }
    return FB_OK;
}

static fb_status find_matches(const fb_splitter *splitter, fb_pattern_work *work, const char *text,
                              fb_span piece, fb_spans *matches, fb_error *err) {
    matches->size = 0;
    if (splitter->kind != FB_SPLITTER_PATTERN)
        return find_characters(splitter->kind, text, piece, matches, err);
    return fb_pattern_find(splitter->pattern, work, text + piece.start, piece.end - piece.start, piece.start,
                           matches, err);
}

/* The parts of one piece so far. */
typedef struct joining {
    fb_behavior behavior;
    fb_spans *spans;
    int64_t first;  /* of this piece's spans */
    bool was_match; /* the part before */
} joining;

/* Adds the next part, or joins it to the one before. */
static fb_status add_part(joining *j, fb_span part, bool match, fb_error *err) {
    if (part.start == part.end) return FB_OK;
    fb_span *last = j->spans->size > j->first ? &j->spans->data[j->spans->size - 1] : NULL;
    bool join = false;
    if (j->behavior == FB_BEHAVIOR_PREVIOUS) join = match && !j->was_match;
    if (j->behavior == FB_BEHAVIOR_NEXT) join = !match && j->was_match;
    if (j->behavior == FB_BEHAVIOR_CONTIGUOUS) join = match == j->was_match;
    j->was_match = match;
    if (match && j->behavior == FB_BEHAVIOR_REMOVED) return FB_OK;
    if (!join || !last) return fb_spans_add(j->spans, part.start, part.end, err);
    last->end = part.end;
    return FB_OK;
}

static fb_status split_piece(const fb_splitter *splitter, fb_pattern_work *work, const char *text,
                             fb_span piece, fb_spans *matches, fb_spans *spans, fb_error *err) {
    FB_TRY(find_matches(splitter, work, text, piece, matches, err));
    joining j = {splitter->behavior, spans, spans->size, false};
    int64_t at = piece.start;
    for (int64_t i = 0; i < matches->size; i++) {
        fb_span match = matches->data[i];
        FB_TRY(add_part(&j, (fb_span){at, match.start}, splitter->invert, err));
        FB_TRY(add_part(&j, match, !splitter->invert, err));
        at = match.end;
    }
    return add_part(&j, (fb_span){at, piece.end}, splitter->invert, err);
}

static fb_status split_matches(const fb_splitter *splitter, fb_pattern_work *work, const fb_pieces *pieces,
                               fb_pieces *out, fb_error *err) {
    for (int64_t i = 0; i < pieces->spans.size; i++)
        FB_TRY(split_piece(splitter, work, pieces->text.data, pieces->spans.data[i], &out->matches,
                           &out->spans, err));
    return FB_OK;
}

/* The usual case: each match is a word, and what is between. */
static fb_status split_pattern(const fb_splitter *splitter, fb_pattern_work *work, const fb_pieces *pieces,
                               fb_spans *spans, fb_error *err) {
    for (int64_t i = 0; i < pieces->spans.size; i++) {
        fb_span span = pieces->spans.data[i];
        FB_TRY(fb_pattern_split(splitter->pattern, work, pieces->text.data + span.start,
                                span.end - span.start, span.start, spans, err));
    }
    return FB_OK;
}

/* ---- words ---- */

static fb_status split_words(const fb_pieces *pieces, fb_spans *spans, fb_error *err) {
    enum { SPACE, WORD, OTHER };
    for (int64_t i = 0; i < pieces->spans.size; i++) {
        fb_span span = pieces->spans.data[i];
        int64_t start = span.start;
        int run = SPACE;
        for (int64_t at = span.start; at < span.end;) {
            fb_utf8_char c = fb_utf8_read(pieces->text.data + at, span.end - at);
            int kind = fb_unicode_is_word(c.code) ? WORD : fb_unicode_is_space(c.code) ? SPACE : OTHER;
            if (kind != run) {
                if (run != SPACE) FB_TRY(fb_spans_add(spans, start, at, err));
                start = at;
                run = kind;
            }
            at += c.size;
        }
        if (run != SPACE) FB_TRY(fb_spans_add(spans, start, span.end, err));
    }
    return FB_OK;
}

/* ---- bytes and spaces ---- */

/* Copies each piece to `out`, with a space in front where there is none. */
static fb_status prefix_spaces(const fb_pieces *pieces, fb_pieces *out, fb_error *err) {
    for (int64_t i = 0; i < pieces->spans.size; i++) {
        fb_span span = pieces->spans.data[i];
        const char *text = pieces->text.data + span.start;
        int64_t start = out->text.size;
        if (text[0] != ' ') FB_TRY(fb_bytes_append(&out->text, " ", 1, err));
        FB_TRY(fb_bytes_append(&out->text, text, span.end - span.start, err));
        FB_TRY(fb_spans_add(&out->spans, start, out->text.size, err));
    }
    return FB_OK;
}

/* Copies each piece to `out`, every byte as its character. */
static fb_status map_bytes(const fb_pieces *pieces, fb_pieces *out, fb_error *err) {
    for (int64_t i = 0; i < pieces->spans.size; i++) {
        fb_span span = pieces->spans.data[i];
        int64_t start = out->text.size;
        FB_TRY(fb_bytes_reserve(&out->text, 2 * (span.end - span.start), err)); /* all are below U+0800 */
        for (int64_t at = span.start; at < span.end; at++) {
            uint32_t code = fb_byte_to_char((unsigned char)pieces->text.data[at]);
            char *to = out->text.data + out->text.size;
            if (code < 0x80) {
                to[0] = (char)code;
                out->text.size++;
            } else {
                to[0] = (char)(0xC0 | code >> 6);
                to[1] = (char)(0x80 | (code & 0x3F));
                out->text.size += 2;
            }
        }
        FB_TRY(fb_spans_add(&out->spans, start, out->text.size, err));
    }
    return FB_OK;
}

/* Copies one piece to `out`, every space as the step's character, and cuts in front of each. */
static fb_status split_metaspace(const fb_splitter *splitter, bool prefix, const char *text, int64_t size,
                                 fb_pieces *out, fb_error *err) {
    int64_t start = out->text.size;
    for (int64_t at = 0; at < size;) {
        int length = fb_utf8_length(text[at]);
        bool space = text[at] == ' ' || (length == splitter->space_size &&
                                         memcmp(text + at, splitter->space, (size_t)length) == 0);
        if (space && splitter->split) {
            FB_TRY(fb_spans_add(&out->spans, start, out->text.size, err));
            start = out->text.size;
        }
        if (space || (prefix && at == 0))
            FB_TRY(fb_bytes_append(&out->text, splitter->space, splitter->space_size, err));
        if (!space) FB_TRY(fb_bytes_append(&out->text, text + at, length, err));
        at += length;
    }
    return fb_spans_add(&out->spans, start, out->text.size, err);
}

static fb_status split_metaspaces(const fb_splitter *splitter, bool first, const fb_pieces *pieces,
                                  fb_pieces *out, fb_error *err) {
    for (int64_t i = 0; i < pieces->spans.size; i++) {
        fb_span span = pieces->spans.data[i];
        bool prefix = splitter->prepend == FB_PREPEND_ALWAYS ||
                      (splitter->prepend == FB_PREPEND_FIRST && first && i == 0);
        FB_TRY(split_metaspace(splitter, prefix, pieces->text.data + span.start, span.end - span.start, out,
                               err));
    }
    return FB_OK;
}

static void swap_pieces(fb_pieces *pieces, fb_pieces *spare) {
    fb_pieces keep = *pieces;
    *pieces = *spare;
    *spare = keep;
    spare->text.size = spare->spans.size = 0;
}

static void swap_spans(fb_pieces *pieces, fb_pieces *spare) {
    fb_spans keep = pieces->spans;
    pieces->spans = spare->spans;
    spare->spans = keep;
    spare->spans.size = 0;
}

static fb_status split_byte_level(const fb_splitter *splitter, fb_pattern_work *work, fb_pieces *pieces,
                                  fb_pieces *spare, fb_error *err) {
    if (splitter->prefix_space) {
        FB_TRY(prefix_spaces(pieces, spare, err));
        swap_pieces(pieces, spare);
    }
    if (splitter->pattern) {
        FB_TRY(split_pattern(splitter, work, pieces, &spare->spans, err));
        swap_spans(pieces, spare);
    }
    FB_TRY(map_bytes(pieces, spare, err));
    swap_pieces(pieces, spare);
    return FB_OK;
}

fb_status fb_splitter_apply(const fb_splitter *splitter, fb_pattern_work *work, bool first, fb_pieces *pieces,
                            fb_pieces *spare, fb_error *err) {
    spare->text.size = spare->spans.size = 0;
    switch (splitter->kind) {
    case FB_SPLITTER_PATTERN:
    case FB_SPLITTER_PUNCTUATION:
    case FB_SPLITTER_SPACE:
        if (splitter->pattern && splitter->behavior == FB_BEHAVIOR_ISOLATED)
            FB_TRY(split_pattern(splitter, work, pieces, &spare->spans, err));
        else
            FB_TRY(split_matches(splitter, work, pieces, spare, err));
        swap_spans(pieces, spare);
        break;
    case FB_SPLITTER_WORDS:
        FB_TRY(split_words(pieces, &spare->spans, err));
        swap_spans(pieces, spare);
        break;
    case FB_SPLITTER_BYTE_LEVEL:
        return split_byte_level(splitter, work, pieces, spare, err);
    case FB_SPLITTER_METASPACE:
        FB_TRY(split_metaspaces(splitter, first, pieces, spare, err));
        swap_pieces(pieces, spare);
        break;
    }
    return FB_OK;
}
