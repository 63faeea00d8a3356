#include "text/decode.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_impl.h"
#include "text/utf8.h"

/* What replacements may make of a token of n bytes: 8 n + 256 bytes. Published ones make three of one, or one
 * of three. */
#define GROWTH          8
#define GROWTH_CONSTANT 256

struct fb_text_stream {
    const fb_tokenizer *tokenizer;
    bool special;       /* special tokens are text too */
    bool started;       /* a token was seen */
    bool raw;           /* bytes stay what they are, also if they are no characters */
    int64_t strip_left; /* characters that may still be stripped */
    fb_bytes pending;   /* bytes that are not text yet: half a character, or a run of byte tokens */
    fb_bytes scratch[2];
    fb_bytes out;
};

void fb_decoder_free(fb_decoder *decoder) {
    for (int64_t i = 0; i < decoder->replace_count; i++) fb_replacement_free(&decoder->replaces[i]);
    decoder->replace_count = 0;
}

static void start_stream(fb_text_stream *stream, const fb_tokenizer *tokenizer, bool special) {
    *stream = (fb_text_stream){.tokenizer = tokenizer, .special = special};
    stream->strip_left = tokenizer->decoder.strip_count;
}

static void free_stream(fb_text_stream *stream) {
    fb_bytes_free(&stream->pending);
    fb_bytes_free(&stream->scratch[0]);
    fb_bytes_free(&stream->scratch[1]);
    fb_bytes_free(&stream->out);
}

/* ---- what becomes of a token ---- */

/* Appends finished text, less what the start of the whole text loses. */
static fb_status emit(fb_text_stream *stream, const char *text, int64_t size, fb_error *err) {
    const fb_decoder *decoder = &stream->tokenizer->decoder;
    while (stream->strip_left > 0 && size > 0) {
        if (size < decoder->strip_size || memcmp(text, decoder->strip, (size_t)decoder->strip_size) != 0) {
            stream->strip_left = 0;
            break;
        }
        text += decoder->strip_size;
        size -= decoder->strip_size;
        stream->strip_left--;
    }
    return fb_bytes_append(&stream->out, text, size, err);
}

/* Emits the first `size` pending bytes, with U+FFFD for what is not UTF-8, and keeps the rest. */
static fb_status emit_pending(fb_text_stream *stream, int64_t size, fb_error *err) {
    fb_bytes *text = &stream->scratch[0];
    text->size = 0;
    if (stream->raw)
        FB_TRY(fb_bytes_append(text, stream->pending.data, size, err));
    else
        FB_TRY(fb_utf8_append_lossy(text, stream->pending.data, size, err));
    stream->pending.size -= size;
    if (stream->pending.size > 0)
        memmove(stream->pending.data, stream->pending.data + size, (size_t)stream->pending.size);
    return emit(stream, text->data, text->size, err);
}

/* Each character is a byte; a token that has another character is text as it stands. */
static fb_status push_byte_level(fb_text_stream *stream, const char *text, int64_t size, fb_error *err) {
    fb_bytes *pending = &stream->pending;
    int64_t before = pending->size;
    FB_TRY(fb_bytes_reserve(pending, size, err));
    for (int64_t at = 0; at < size;) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        int byte = fb_char_to_byte(c.code);
        if (byte < 0) {
            pending->size = before;
            FB_TRY(fb_bytes_append(pending, text, size, err));
            break;
        }
        pending->data[pending->size++] = (char)byte;
        at += c.size;
    }
    return emit_pending(stream, pending->size - fb_utf8_incomplete(pending->data, pending->size), err);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* The byte of a token such as "<0x0A>", or -1. */
static int byte_token(const char *text, int64_t size) {
    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* A run of byte tokens is text if all of it is UTF-8, else one U+FFFD for each. So nothing of it is text
 * before its end. */
static fb_status end_byte_run(fb_text_stream *stream, fb_error *err) {
    fb_bytes *run = &stream->pending;
    if (run->size == 0) return FB_OK;
    if (stream->raw || fb_utf8_valid(run->data, run->size))
        FB_TRY(emit(stream, run->data, run->size, err));
    else
        for (int64_t i = 0; i < run->size; i++) FB_TRY(emit(stream, "\xEF\xBF\xBD", 3, err));
    run->size = 0;
    return FB_OK;
}

static fb_status push_byte_fallback(fb_text_stream *stream, const char *text, int64_t size, fb_error *err) {
    int byte = byte_token(text, size);
    if (byte >= 0) return fb_bytes_append(&stream->pending, &(char){(char)byte}, 1, err);
    FB_TRY(end_byte_run(stream, err));
    return emit(stream, text, size, err);
}

static fb_status push_metaspace(fb_text_stream *stream, bool first, const char *text, int64_t size,
                                fb_error *err) {
    const fb_decoder *decoder = &stream->tokenizer->decoder;
    for (int64_t at = 0; at < size;) {
        int length = fb_utf8_length(text[at]);
        bool space = length == decoder->space_size && memcmp(text + at, decoder->space, (size_t)length) == 0;
        if (!space)
            FB_TRY(emit(stream, text + at, length, err));
        else if (!first || !decoder->drop_first)
            FB_TRY(emit(stream, " ", 1, err));
        at += length;
    }
    return FB_OK;
}

/* What the replacements make of a token. */
static fb_status replace(const fb_decoder *decoder, fb_bytes scratch[2], const char **text, int64_t *size,
                         fb_error *err) {
    const int64_t most = GROWTH * *size + GROWTH_CONSTANT;
    for (int64_t i = 0; i < decoder->replace_count; i++) {
        fb_bytes *out = &scratch[i & 1];
        out->size = 0;
        FB_TRY(fb_replacement_apply(&decoder->replaces[i], NULL, *text, *size,
                                    &(fb_growth){"decoder", 0, most}, out, err));
        *text = out->data;
        *size = out->size;
    }
    return FB_OK;
}

static fb_status push_text(fb_text_stream *stream, const char *text, int64_t size, fb_error *err) {
    const fb_decoder *decoder = &stream->tokenizer->decoder;
    FB_TRY(replace(decoder, stream->scratch, &text, &size, err));
    bool first = !stream->started;
    stream->started = true;
    switch (decoder->kind) {
    case FB_DECODER_NONE:
        if (!first) FB_TRY(emit(stream, " ", 1, err));
        return emit(stream, text, size, err);
    case FB_DECODER_CONCATENATE:
        return emit(stream, text, size, err);
    case FB_DECODER_BYTE_LEVEL:
        return push_byte_level(stream, text, size, err);
    case FB_DECODER_BYTE_FALLBACK:
        return push_byte_fallback(stream, text, size, err);
    case FB_DECODER_METASPACE:
        return push_metaspace(stream, first, text, size, err);
    }
    return FB_OK;
}

/* Appends to `out` what the token makes final. */
static fb_status push_id(fb_text_stream *stream, int32_t id, fb_error *err) {
    const fb_vocab *vocab = &stream->tokenizer->bpe.vocab;
    int64_t limit = stream->tokenizer->limit > vocab->ids ? stream->tokenizer->limit : vocab->ids;
    if (id < 0 || id >= limit)
        return fb_fail(err, FB_ERROR_USAGE, "token id: %d (0 to %lld)", (int)id, (long long)limit - 1);
    if (id >= vocab->ids) return FB_OK;
    const fb_token *token = &vocab->tokens[id];
    if (!token->used || (token->special && !stream->special)) return FB_OK;
    return push_text(stream, vocab->text.data + token->shown, token->shown_size, err);
}

/* Appends what is left, and is at the start of a text again. */
static fb_status end_text(fb_text_stream *stream, fb_error *err) {
    if (stream->tokenizer->decoder.kind == FB_DECODER_BYTE_FALLBACK)
        FB_TRY(end_byte_run(stream, err));
    else
        FB_TRY(emit_pending(stream, stream->pending.size, err));
    stream->started = false;
    stream->strip_left = stream->tokenizer->decoder.strip_count;
    return FB_OK;
}

/* `out` as a string. */
static fb_status terminate(fb_text_stream *stream, fb_error *err) {
    FB_TRY(fb_bytes_append(&stream->out, "", 1, err));
    stream->out.size--;
    return FB_OK;
}

/* ---- the bytes of one token ---- */

static fb_status byte_level_bytes(const char *text, int64_t size, fb_bytes *out, fb_error *err) {
    const int64_t before = out->size;
    for (int64_t at = 0; at < size;) {
        const fb_utf8_char c = fb_utf8_read(text + at, size - at);
        const int byte = fb_char_to_byte(c.code);
        if (byte < 0) { /* the text as it stands */
            out->size = before;
            return fb_bytes_append(out, text, size, err);
        }
        FB_TRY(fb_bytes_append(out, &(char){(char)byte}, 1, err));
        at += c.size;
    }
    return FB_OK;
}

static fb_status metaspace_bytes(const fb_decoder *decoder, const char *text, int64_t size, fb_bytes *out,
                                 fb_error *err) {
    for (int64_t at = 0; at < size;) {
        const int length = fb_utf8_length(text[at]);
        const bool space =
            length == decoder->space_size && memcmp(text + at, decoder->space, (size_t)length) == 0;
        FB_TRY(space ? fb_bytes_append(out, " ", 1, err) : fb_bytes_append(out, text + at, length, err));
        at += length;
    }
    return FB_OK;
}

static fb_status joined_bytes(const fb_decoder *decoder, const char *text, int64_t size, fb_bytes *out,
                              fb_error *err) {
    const int byte = decoder->kind == FB_DECODER_BYTE_FALLBACK ? byte_token(text, size) : -1;
    if (byte >= 0) return fb_bytes_append(out, &(char){(char)byte}, 1, err);
    if (decoder->kind == FB_DECODER_BYTE_LEVEL) return byte_level_bytes(text, size, out, err);
    if (decoder->kind == FB_DECODER_METASPACE) return metaspace_bytes(decoder, text, size, out, err);
    return fb_bytes_append(out, text, size, err);
}

fb_status fb_decoder_token_bytes(const fb_tokenizer *tokenizer, int32_t id, fb_bytes *out, fb_error *err) {
    const fb_decoder *decoder = &tokenizer->decoder;
    const fb_vocab *vocab = &tokenizer->bpe.vocab;
    const bool strips = decoder->strip_count > 0 && (decoder->strip_size != 1 || decoder->strip[0] != ' ');
    if (decoder->kind == FB_DECODER_NONE || strips)
        return fb_fail(err, FB_ERROR_USAGE, "schema: a tokenizer with this decoder: not supported");
    if (id < 0 || id >= vocab->ids || !vocab->tokens[id].used || vocab->tokens[id].special) return FB_OK;
    const char *text = vocab->text.data + vocab->tokens[id].shown;
    int64_t size = vocab->tokens[id].shown_size;
    fb_bytes scratch[2] = {{0}};
    fb_status status = replace(decoder, scratch, &text, &size, err);
    if (status == FB_OK) status = joined_bytes(decoder, text, size, out, err);
    fb_bytes_free(&scratch[0]);
    fb_bytes_free(&scratch[1]);
    return status;
}

bool fb_decoder_drops_spaces(const fb_tokenizer *tokenizer) {
    return tokenizer->decoder.kind == FB_DECODER_METASPACE && tokenizer->decoder.drop_first;
}

/* ---- the interface ---- */

fb_status fb_tokenizer_decode(const fb_tokenizer *tokenizer, const int32_t *ids, int64_t count, bool special,
                              char **text, size_t *bytes, fb_error *err) {
    *text = NULL;
    *bytes = 0;
    fb_text_stream stream;
    start_stream(&stream, tokenizer, special);
    fb_status status = FB_OK;
    for (int64_t i = 0; i < count && status == FB_OK; i++) status = push_id(&stream, ids[i], err);
    if (status == FB_OK) status = end_text(&stream, err);
    if (status == FB_OK) status = terminate(&stream, err);
    if (status == FB_OK) {
        *text = stream.out.data;
        *bytes = (size_t)stream.out.size;
        stream.out = (fb_bytes){0};
    }
    free_stream(&stream);
    return status;
}

fb_status fb_tokenizer_token_bytes(const fb_tokenizer *tokenizer, int32_t id, bool first, bool special,
                                   char **text, size_t *bytes, fb_error *err) {
    *text = NULL;
    *bytes = 0;
    fb_text_stream stream;
    start_stream(&stream, tokenizer, special);
    stream.raw = true;
    stream.started = !first;
    if (!first) stream.strip_left = 0;
    fb_status status = push_id(&stream, id, err);
    if (status == FB_OK) status = end_text(&stream, err);
    if (status == FB_OK) status = terminate(&stream, err);
    if (status == FB_OK) {
        *text = stream.out.data;
        *bytes = (size_t)stream.out.size;
        stream.out = (fb_bytes){0};
    }
    free_stream(&stream);
    return status;
}

fb_status fb_tokenizer_stream(const fb_tokenizer *tokenizer, fb_text_stream **out, fb_error *err) {
    *out = malloc(sizeof **out);
    if (!*out) return fb_fail_memory(err, "text stream", (int64_t)sizeof **out);
    start_stream(*out, tokenizer, false);
    return FB_OK;
}

fb_status fb_text_push(fb_text_stream *stream, int32_t id, const char **text, size_t *bytes, fb_error *err) {
    *text = NULL;
    *bytes = 0;
    stream->out.size = 0;
    FB_TRY(push_id(stream, id, err));
    FB_TRY(terminate(stream, err));
    *text = stream->out.data;
    *bytes = (size_t)stream->out.size;
    return FB_OK;
}

fb_status fb_text_flush(fb_text_stream *stream, const char **text, size_t *bytes, fb_error *err) {
    *text = NULL;
    *bytes = 0;
    stream->out.size = 0;
    FB_TRY(end_text(stream, err));
    FB_TRY(terminate(stream, err));
    *text = stream->out.data;
    *bytes = (size_t)stream->out.size;
    return FB_OK;
}

void fb_text_free(fb_text_stream *stream) {
    if (!stream) return;
    free_stream(stream);
    free(stream);
}
