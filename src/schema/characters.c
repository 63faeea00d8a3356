/* Code points as the bytes that spell them in a JSON string, and numbers as their digits. */
#include <stdio.h>
#include <string.h>

#include "schema/nfa.h"
#include "text/utf8.h"

/* ---- characters ---- */

static fb_status escaped(fb_nfa *nfa, int32_t from, uint32_t code, int32_t to, fb_error *err) {
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *found = code ? strchr(plain, (int)code) : NULL;
    char text[8];
    if (found)
        snprintf(text, sizeof text, "\\%c", letters[found - plain]);
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned)code);
    return fb_nfa_text(nfa, from, text, strlen(text), to, err);
}

static fb_status ascii(fb_nfa *nfa, int32_t from, uint32_t low, uint32_t high, int32_t to, fb_error *err) {
    for (uint32_t code = low, end; code <= high; code = end) {
        end = code + 1;
        if (code < 0x20 || code == '"' || code == '\\') {
            FB_TRY(escaped(nfa, from, code, to, err));
            continue;
        }
        while (end <= high && end != '"' && end != '\\') end++;
        FB_TRY(fb_nfa_bytes(nfa, from, (int)code, (int)end - 1, to, err));
    }
    return FB_OK;
}

/* Characters of `left` more bytes each, whose bits before those are the same but for the last byte's range.
 */
static fb_status multibyte(fb_nfa *nfa, int32_t from, uint32_t low, uint32_t high, int32_t to,
                           fb_error *err) {
    for (int bits = 6; bits <= 18; bits += 6) {
        const uint32_t mask = (1u << bits) - 1;
        if ((low & ~mask) == (high & ~mask)) break;
        if (low & mask) { /* up to the next border, then the rest */
            FB_TRY(multibyte(nfa, from, low, low | mask, to, err));
            return multibyte(nfa, from, (low | mask) + 1, high, to, err);
        }
        if ((high & mask) != mask) {
            FB_TRY(multibyte(nfa, from, low, (high & ~mask) - 1, to, err));
            return multibyte(nfa, from, high & ~mask, high, to, err);
        }
    }
    char first[4], last[4];
    const int size = fb_utf8_write(low, first);
    fb_utf8_write(high, last);
    for (int i = 0; i < size; i++) {
        int32_t next = to;
        if (i + 1 < size) FB_TRY(fb_nfa_node_add(nfa, &next, err));
        FB_TRY(fb_nfa_bytes(nfa, from, (uint8_t)first[i], (uint8_t)last[i], next, err));
        from = next;
    }
    return FB_OK;
}

fb_status fb_nfa_characters(fb_nfa *nfa, int32_t from, uint32_t low, uint32_t high, int32_t to,
                            fb_error *err) {
    static const uint32_t parts[][2] = {
        {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    if (low < 0x80) FB_TRY(ascii(nfa, from, low, high < 0x7f ? high : 0x7f, to, err));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint32_t begin = low > parts[i][0] ? low : parts[i][0], end = high < parts[i][1] ? high : parts[i][1];
        if (begin <= end) FB_TRY(multibyte(nfa, from, begin, end, to, err));
    }
    return FB_OK;
}

/* ---- numbers ---- */

/* More digits change no double, and a model could go on for ever. */
#define INTEGER_DIGITS  18
#define FRACTION_DIGITS 17
#define EXPONENT_DIGITS 2

/* Up to `most` digits, at least `least`, which is 0 or 1. */
static fb_status digits(fb_nfa *nfa, int32_t from, int least, int most, int32_t to, fb_error *err) {
    if (least == 0) FB_TRY(fb_nfa_skip(nfa, from, to, err));
    for (int i = 0; i < most; i++) {
        int32_t next;
        FB_TRY(fb_nfa_node_add(nfa, &next, err));
        FB_TRY(fb_nfa_bytes(nfa, from, '0', '9', next, err));
        FB_TRY(fb_nfa_skip(nfa, next, to, err));
        from = next;
    }
    return FB_OK;
}

/* A point and digits, or nothing. */
static fb_status fraction(fb_nfa *nfa, int32_t from, char low, char high, int32_t to, fb_error *err) {
    int32_t point, next;
    FB_TRY(fb_nfa_skip(nfa, from, to, err));
    FB_TRY(fb_nfa_node_add(nfa, &point, err));
    FB_TRY(fb_nfa_bytes(nfa, from, '.', '.', point, err));
    for (int i = 0; i < FRACTION_DIGITS; i++, point = next) {
        FB_TRY(fb_nfa_node_add(nfa, &next, err));
        FB_TRY(fb_nfa_bytes(nfa, point, low, high, next, err));
        FB_TRY(fb_nfa_skip(nfa, next, to, err));
    }
    return FB_OK;
}

fb_status fb_nfa_number(fb_nfa *nfa, int32_t from, bool with_fraction, int32_t to, fb_error *err) {
    int32_t magnitude, first, whole = to, power, sign;
    FB_TRY(fb_nfa_node_add(nfa, &magnitude, err));
    FB_TRY(fb_nfa_node_add(nfa, &first, err));
    if (with_fraction) FB_TRY(fb_nfa_node_add(nfa, &whole, err));
    FB_TRY(fb_nfa_bytes(nfa, from, '-', '-', magnitude, err));
    FB_TRY(fb_nfa_skip(nfa, from, magnitude, err));
    FB_TRY(fb_nfa_bytes(nfa, magnitude, '0', '0', whole, err));
    FB_TRY(fb_nfa_bytes(nfa, magnitude, '1', '9', first, err));
    FB_TRY(digits(nfa, first, 0, INTEGER_DIGITS - 1, whole, err));
    if (!with_fraction) return FB_OK;
    FB_TRY(fb_nfa_node_add(nfa, &power, err));
    FB_TRY(fb_nfa_node_add(nfa, &sign, err));
    FB_TRY(fraction(nfa, whole, '0', '9', power, err));
    FB_TRY(fb_nfa_skip(nfa, power, to, err));
    FB_TRY(fb_nfa_bytes(nfa, power, 'e', 'e', sign, err));
    FB_TRY(fb_nfa_bytes(nfa, power, 'E', 'E', sign, err));
    FB_TRY(fb_nfa_node_add(nfa, &power, err));
    FB_TRY(fb_nfa_bytes(nfa, sign, '+', '+', power, err));
    FB_TRY(fb_nfa_bytes(nfa, sign, '-', '-', power, err));
    FB_TRY(fb_nfa_skip(nfa, sign, power, err));
    return digits(nfa, power, 1, EXPONENT_DIGITS, to, err);
}

/* Numbers with as many digits as `low` and `high`, which begin alike up to `at`. */
static fb_status same_length(fb_nfa *nfa, int32_t from, const char *low, const char *high, int32_t to,
                             fb_error *err) {
    const size_t size = strlen(low);
    if (size == 1) return fb_nfa_bytes(nfa, from, low[0], high[0], to, err);
    const bool all_low = strspn(low + 1, "0") == size - 1, all_high = strspn(high + 1, "9") == size - 1;
    char edge[24];
    int32_t next;
    if (low[0] == high[0] || (all_low && all_high)) {
        FB_TRY(fb_nfa_node_add(nfa, &next, err));
        FB_TRY(fb_nfa_bytes(nfa, from, low[0], high[0], next, err));
        return same_length(nfa, next, low + 1, high + 1, to, err);
    }
    if (!all_low) { /* those with the first digit of `low`, then the rest */
        snprintf(edge, sizeof edge, "%s", low);
        memset(edge + 1, '9', size - 1);
        FB_TRY(same_length(nfa, from, low, edge, to, err));
        edge[0]++;
        memset(edge + 1, '0', size - 1);
        return same_length(nfa, from, edge, high, to, err);
    }
    snprintf(edge, sizeof edge, "%s", high);
    memset(edge + 1, '0', size - 1);
    FB_TRY(same_length(nfa, from, edge, high, to, err));
    edge[0]--;
    memset(edge + 1, '9', size - 1);
    return same_length(nfa, from, low, edge, to, err);
}

/* Whole numbers from low to high, 0 <= low; nothing if low is above high. */
static fb_status whole(fb_nfa *nfa, int32_t from, int64_t low, int64_t high, int32_t to, fb_error *err) {
    while (low <= high) {
        char begin[24], end[24];
        snprintf(begin, sizeof begin, "%lld", (long long)low);
        snprintf(end, sizeof end, "%lld", (long long)high);
        const size_t size = strlen(begin);
        bool longer = strlen(end) > size;
        if (longer) {
            memset(end, '9', size);
            end[size] = 0;
        }
        FB_TRY(same_length(nfa, from, begin, end, to, err));
        if (!longer) break;
        low = 1;
        for (size_t i = 0; i < size; i++) low *= 10;
    }
    return FB_OK;
}

/* A fraction that is not zero: the magnitude is above its whole part. */
static fb_status some_fraction(fb_nfa *nfa, int32_t from, int32_t to, fb_error *err) {
    int32_t zeros, next, after;
    FB_TRY(fb_nfa_node_add(nfa, &zeros, err));
    FB_TRY(fb_nfa_bytes(nfa, from, '.', '.', zeros, err));
    for (int i = 0; i < FRACTION_DIGITS; i++, zeros = next) {
        FB_TRY(fb_nfa_node_add(nfa, &next, err));
        FB_TRY(fb_nfa_node_add(nfa, &after, err));
        FB_TRY(fb_nfa_bytes(nfa, zeros, '0', '0', next, err));
        FB_TRY(fb_nfa_bytes(nfa, zeros, '1', '9', after, err));
        FB_TRY(digits(nfa, after, 0, FRACTION_DIGITS - 1 - i, to, err));
    }
    return FB_OK;
}

/* Magnitudes from low to high. */
static fb_status magnitudes(fb_nfa *nfa, int32_t from, int64_t low, bool above, int64_t high, bool below,
                            bool with_fraction, int32_t to, fb_error *err) {
    int32_t behind;
    if (low > high) return FB_OK;
    if (!with_fraction) return whole(nfa, from, low + above, high - below, to, err);
    FB_TRY(fb_nfa_node_add(nfa, &behind, err));
    FB_TRY(whole(nfa, from, low + 1, high - 1, behind, err));
    FB_TRY(fraction(nfa, behind, '0', '9', to, err));
    FB_TRY(fb_nfa_node_add(nfa, &behind, err));
    FB_TRY(whole(nfa, from, low, low, behind, err));
    if (low < high && above) FB_TRY(some_fraction(nfa, behind, to, err));
    if (low < high && !above) FB_TRY(fraction(nfa, behind, '0', '9', to, err));
    if (low == high && !above && !below) FB_TRY(fraction(nfa, behind, '0', '0', to, err));
    if (low == high || below) return FB_OK;
    FB_TRY(fb_nfa_node_add(nfa, &behind, err));
    FB_TRY(whole(nfa, from, high, high, behind, err));
    return fraction(nfa, behind, '0', '0', to, err);
}

/* A minus comes before a whole number above 0, or before any magnitude with a fraction. */
fb_status fb_nfa_between(fb_nfa *nfa, int32_t from, const fb_nfa_range *r, int32_t to, fb_error *err) {
    const bool negative = r->min < 0, positive = r->max >= 0;
    int32_t minus;
    if (r->min > r->max) return FB_OK;
    if (positive)
        FB_TRY(magnitudes(nfa, from, negative ? 0 : r->min, !negative && r->above_min, r->max, r->below_max,
                          r->fraction, to, err));
    if (!negative) return FB_OK;
    FB_TRY(fb_nfa_node_add(nfa, &minus, err));
    FB_TRY(fb_nfa_bytes(nfa, from, '-', '-', minus, err));
    if (positive)
        return magnitudes(nfa, minus, r->fraction ? 0 : 1, r->fraction, -r->min, r->above_min, r->fraction,
                          to, err);
    return magnitudes(nfa, minus, -r->max, r->below_max, -r->min, r->above_min, r->fraction, to, err);
}
