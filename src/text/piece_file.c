/* The protocol buffer of a tokenizer.model: the fields that decide about ids. Others are skipped. */
#include <string.h>

#include "text/bpe.h"
#include "text/sentencepiece.h"
#include "text/utf8.h"

/* ---- fields ---- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

typedef struct cursor {
    const char *what;
    const uint8_t *start, *at, *end;
} cursor;

typedef struct field {
    int64_t number;
    int type;
    uint64_t value;      /* VARINT, FIXED32 */
    const uint8_t *data; /* BYTES */
    int64_t size;
} field;

static fb_status fail_cut(const cursor *c, fb_error *err) {
    return fb_fail(err, FB_ERROR_FILE, "%s: byte %lld: a field that does not fit (tokenizer.model)", c->what,
                   (long long)(c->at - c->start));
}

static fb_status read_varint(cursor *c, uint64_t *out, fb_error *err) {
    *out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (c->at == c->end) return fail_cut(c, err);
        uint8_t byte = *c->at++;
        *out |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) return FB_OK;
    }
    return fail_cut(c, err);
}

static fb_status read_field(cursor *c, field *out, fb_error *err) {
    uint64_t tag, size = 0;
    FB_TRY(read_varint(c, &tag, err));
    *out = (field){.number = (int64_t)(tag >> 3), .type = (int)(tag & 7)};
    switch (out->type) {
    case VARINT:
        return read_varint(c, &out->value, err);
    case BYTES:
        FB_TRY(read_varint(c, &size, err));
        break;
    case FIXED32:
        size = 4;
        break;
    case FIXED64:
        size = 8;
        break;
    default:
        return fb_fail(err, FB_ERROR_FILE, "%s: byte %lld: wire type %d (0, 1, 2 or 5: tokenizer.model)",
                       c->what, (long long)(c->at - c->start), out->type);
    }
    if (size > (uint64_t)(c->end - c->at)) return fail_cut(c, err);
    out->data = c->at;
    out->size = (int64_t)size;
    for (int i = 0; out->type == FIXED32 && i < 4; i++) out->value |= (uint64_t)c->at[i] << 8 * i;
    c->at += size;
    return FB_OK;
}

static cursor inside(const cursor *c, const field *message) {
    return (cursor){c->what, c->start, message->data, message->data + message->size};
}

/* ---- messages ---- */

static fb_status read_piece(const cursor *parent, const field *message, fb_piece_file *out, fb_error *err) {
    fb_piece piece = {.text = "", .type = FB_PIECE_NORMAL};
    cursor c = inside(parent, message);
    while (c.at < c.end) {
        field f;
        FB_TRY(read_field(&c, &f, err));
        if (f.number == 1 && f.type == BYTES) {
            piece.text = (const char *)f.data;
            piece.size = f.size;
        } else if (f.number == 2 && f.type == FIXED32) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&piece.score, &bits, sizeof bits);
        } else if (f.number == 3 && f.type == VARINT) {
            piece.type = (int)(f.value & 0xFF);
        }
    }
    if (!(piece.score >= -1e30f && piece.score <= 1e30f) || !fb_utf8_valid(piece.text, piece.size))
        return fb_fail(err, FB_ERROR_FILE, "%s: piece %lld: not UTF-8, or no score (a number)", c.what,
                       (long long)out->count);
    if (out->count == FB_VOCAB_LIMIT)
        return fb_fail(err, FB_ERROR_FILE, "%s: more than %d pieces", c.what, FB_VOCAB_LIMIT);
    fb_piece *grown = fb_array_grow(out->pieces, out->count, &out->capacity, 1, sizeof *grown);
    if (!grown) return fb_fail_memory(err, "pieces", (out->count + 1) * (int64_t)sizeof *grown);
    out->pieces = grown;
    out->pieces[out->count++] = piece;
    return FB_OK;
}

/* An id; -1 is written as 2^64 - 1. */
static int64_t id_of(const field *f) { return f->value > INT32_MAX ? -1 : (int64_t)f->value; }

static fb_status read_trainer(const cursor *parent, const field *message, fb_piece_file *out, fb_error *err) {
    cursor c = inside(parent, message);
    while (c.at < c.end) {
        field f;
        FB_TRY(read_field(&c, &f, err));
        if (f.type != VARINT) continue;
        if (f.number == 3) out->model_type = id_of(&f);
        if (f.number == 24) out->suffix_space = f.value != 0;
        if (f.number == 35) out->byte_fallback = f.value != 0;
        if (f.number == 40) out->unknown = id_of(&f);
        if (f.number == 41) out->begin = id_of(&f);
        if (f.number == 42) out->end = id_of(&f);
    }
    return FB_OK;
}

static fb_status read_normalizer(const cursor *parent, const field *message, fb_piece_file *out,
                                 fb_error *err) {
    cursor c = inside(parent, message);
    while (c.at < c.end) {
        field f;
        FB_TRY(read_field(&c, &f, err));
        if (f.number == 2 && f.type == BYTES) {
            out->charsmap = f.data;
            out->charsmap_size = f.size;
        }
        if (f.type != VARINT) continue;
        if (f.number == 3) out->prefix = f.value != 0;
        if (f.number == 4) out->merge_spaces = f.value != 0;
        if (f.number == 5) out->escape = f.value != 0;
    }
    return FB_OK;
}

fb_status fb_piece_file_parse(const char *what, const uint8_t *bytes, size_t size, fb_piece_file *out,
                              fb_error *err) {
    /* SentencePiece's own defaults */
    *out = (fb_piece_file){.model_type = FB_PIECES_UNIGRAM,
                           .begin = 1,
                           .end = 2,
                           .prefix = true,
                           .merge_spaces = true,
                           .escape = true};
    cursor c = {what, bytes, bytes, bytes + size};
    while (c.at < c.end) {
        field f;
        FB_TRY(read_field(&c, &f, err));
        if (f.type != BYTES) continue;
        if (f.number == 1) FB_TRY(read_piece(&c, &f, out, err));
        if (f.number == 2) FB_TRY(read_trainer(&c, &f, out, err));
        if (f.number == 3) FB_TRY(read_normalizer(&c, &f, out, err));
    }
    if (out->count == 0) return fb_fail(err, FB_ERROR_FILE, "%s: 0 pieces (tokenizer.model)", what);
    return FB_OK;
}
