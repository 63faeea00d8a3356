/* UTF-8, valid or not. */
#ifndef FB_TEXT_UTF8_H
#define FB_TEXT_UTF8_H

#include "text/bytes.h"

typedef enum fb_utf8_kind {
    FB_UTF8_VALID,
    FB_UTF8_BAD, /* not a character; `size` bytes become one U+FFFD (the maximal subpart of Unicode's table
                    3-7) */
    FB_UTF8_CUT  /* the same, but more bytes could still make it one */
} fb_utf8_kind;

typedef struct fb_utf8_char {
    uint32_t code;
    int32_t size;
    fb_utf8_kind kind;
} fb_utf8_char;

/* The character at the start of `text`, of which there is at least one byte. */
fb_utf8_char fb_utf8_read(const char *text, int64_t size);

/* Writes a character of at most 4 bytes; returns how many. */
int fb_utf8_write(uint32_t code, char *text);

/* Bytes of a character by its first one, in valid text. */
static inline int fb_utf8_length(char first) {
    unsigned char byte = (unsigned char)first;
    return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

bool fb_utf8_valid(const char *text, int64_t size);
bool fb_utf8_ascii(const char *text, int64_t size);

/* How many bytes at the end of `text` are a character that is still incomplete. */
int64_t fb_utf8_incomplete(const char *text, int64_t size);

/* Appends `text` with U+FFFD for what is not UTF-8. */
fb_status fb_utf8_append_lossy(fb_bytes *out, const char *text, int64_t size, fb_error *err);

#endif
