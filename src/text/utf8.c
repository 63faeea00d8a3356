#include "text/utf8.h"

#include <string.h>
#include <utf8proc.h>

fb_utf8_char fb_utf8_read(const char *text, int64_t size) {
    const unsigned char *s = (const unsigned char *)text;
    unsigned char first = s[0];
    if (first < 0x80) return (fb_utf8_char){first, 1, FB_UTF8_VALID};
    if (first < 0xC2 || first > 0xF4) return (fb_utf8_char){0, 1, FB_UTF8_BAD};

    int length = fb_utf8_length(text[0]);
    uint32_t code = first & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if (i >= size) return (fb_utf8_char){0, i, FB_UTF8_CUT};
        /* The second byte also rules out overlong forms, surrogates and what is beyond U+10FFFF. */
        unsigned char low = 0x80, high = 0xBF;
        if (i == 1 && first == 0xE0) low = 0xA0;
        if (i == 1 && first == 0xED) high = 0x9F;
        if (i == 1 && first == 0xF0) low = 0x90;
        if (i == 1 && first == 0xF4) high = 0x8F;
        if (s[i] < low || s[i] > high) return (fb_utf8_char){0, i, FB_UTF8_BAD};
        code = code << 6 | (s[i] & 0x3F);
    }
    return (fb_utf8_char){code, length, FB_UTF8_VALID};
}

int fb_utf8_write(uint32_t code, char *text) {
    return (int)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)text);
}

/* The length of the ASCII at the start, in steps of eight bytes. */
static int64_t ascii_blocks(const char *text, int64_t size) {
    int64_t at = 0;
    for (; at + 8 <= size; at += 8) {
        uint64_t block;
        memcpy(&block, text + at, 8);
        if (block & 0x8080808080808080u) break;
    }
    return at;
}

bool fb_utf8_ascii(const char *text, int64_t size) {
    for (int64_t at = ascii_blocks(text, size); at < size; at++)
        if ((unsigned char)text[at] >= 0x80) return false;
    return true;
}

bool fb_utf8_valid(const char *text, int64_t size) {
    int64_t at = 0;
    while (at < size) {
        if ((unsigned char)text[at] < 0x80) {
            int64_t skip = ascii_blocks(text + at, size - at);
            at += skip ? skip : 1;
            continue;
        }
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        if (c.kind != FB_UTF8_VALID) return false;
        at += c.size;
    }
    return true;
}

int64_t fb_utf8_incomplete(const char *text, int64_t size) {
    for (int64_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char byte = (unsigned char)text[size - back];
        if ((byte & 0xC0) == 0x80) continue;
        return fb_utf8_read(text + size - back, back).kind == FB_UTF8_CUT ? back : 0;
    }
    return 0;
}

fb_status fb_utf8_append_lossy(fb_bytes *out, const char *text, int64_t size, fb_error *err) {
    if (size == 0) return FB_OK; /* `text` may be NULL then */
    int64_t from = 0, at = 0;    /* [from, at) is valid and not yet copied */
    while (at < size) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        if (c.kind != FB_UTF8_VALID) {
            FB_TRY(fb_bytes_append(out, text + from, at - from, err));
            FB_TRY(fb_bytes_append(out, "\xEF\xBF\xBD", 3, err));
            from = at + c.size;
        }
        at += c.size;
    }
    return fb_bytes_append(out, text + from, size - from, err);
}
