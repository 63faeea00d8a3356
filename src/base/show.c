#include "base/show.h"

#include <stdio.h>
#include <string.h>

/* The character at `text` and its length, or 0 if its bytes are not well-formed UTF-8. Overlong forms,
 * surrogates and what is beyond U+10FFFF are not. */
static size_t decode(const unsigned char *text, size_t bytes, uint32_t *character) {
    unsigned char first = text[0];
    *character = first;
    if (first < 0x80) return 1;
    size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || length > bytes) return 0;
    *character = first & (0xffU >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        *character = *character << 6 | (text[i] & 0x3fU);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    bool surrogate = *character >= 0xd800 && *character <= 0xdfff;
    return *character < least[length] || *character > 0x10ffff || surrogate ? 0 : length;
}

bool fb_character_steers(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c <= 0x9f)        /* C0, DEL, C1 */
           || c == 0x61c || c == 0x200e || c == 0x200f /* marks of direction */
           || (c >= 0x202a && c <= 0x202e)             /* embeddings and overrides */
           || (c >= 0x2066 && c <= 0x2069);            /* isolates */
}

size_t fb_show_character(const char *text, size_t bytes, bool lines, char shown[FB_SHOWN_BYTES]) {
    uint32_t c;
    size_t length = decode((const unsigned char *)text, bytes, &c);
    bool kept = length > 0 && (!fb_character_steers(c) || (lines && (c == '\n' || c == '\t')));
    if (kept) {
        memcpy(shown, text, length);
        shown[length] = '\0';
    } else if (length <= 1) {
        snprintf(shown, FB_SHOWN_BYTES, "\\x%02x", (unsigned)(unsigned char)*text);
    } else {
        snprintf(shown, FB_SHOWN_BYTES, "\\u%04x", (unsigned)c);
    }
    return length ? length : 1;
}

void fb_show(const char *text, char *out, size_t room) {
    size_t left = strlen(text), used = 0;
    char shown[FB_SHOWN_BYTES];
    while (left > 0) {
        size_t taken = fb_show_character(text, left, false, shown), length = strlen(shown);
        if (used + length >= room) break;
        memcpy(out + used, shown, length);
        used += length;
        text += taken;
        left -= taken;
    }
    out[used] = '\0';
}
