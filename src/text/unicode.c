#include "text/unicode.h"

#include <string.h>

/* The change that decides about a code point: the last one at or before it. */
static int find_change(uint32_t code) {
    int low = 0, high = fb_unicode_changes_count;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (fb_unicode_changes[middle] >> 8 <= code)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static fb_category category_at(int change) { return (fb_category)(fb_unicode_changes[change] & 0xFF); }

fb_category fb_unicode_category(uint32_t code) { return category_at(find_change(code)); }

uint32_t fb_unicode_categories(const char *name, int64_t size) {
    static const char names[FB_CATEGORY_COUNT][3] = {
        "Cn", "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl",
        "No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"};
    uint32_t found = 0;
    for (int i = 0; i < FB_CATEGORY_COUNT; i++)
        if ((size == 1 || size == 2) && memcmp(names[i], name, (size_t)size) == 0) found |= 1u << i;
    return found;
}

bool fb_unicode_next(uint32_t categories, uint32_t from, fb_unicode_span *span) {
    if (from > 0x10FFFF) return false;
    int at = find_change(from);
    while (at < fb_unicode_changes_count && !(categories >> category_at(at) & 1)) at++;
    if (at == fb_unicode_changes_count) return false;
    span->first = fb_unicode_changes[at] >> 8;
    if (span->first < from) span->first = from;
    while (at < fb_unicode_changes_count && categories >> category_at(at) & 1) at++;
    span->last = at < fb_unicode_changes_count ? (fb_unicode_changes[at] >> 8) - 1 : 0x10FFFF;
    return true;
}

static bool in_spans(const fb_unicode_span *spans, int count, uint32_t code) {
    int low = 0, high = count;
    if (code < spans[0].first) return false;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (spans[middle].first <= code)
            low = middle;
        else
            high = middle;
    }
    return code <= spans[low].last;
}

bool fb_unicode_is_after_9(uint32_t code) {
    return in_spans(fb_unicode_after_9, fb_unicode_after_9_count, code);
}

bool fb_unicode_is_accent(uint32_t code) {
    if (code < 0x300) return false;
    if (code == 0x1CF2 || code == 0x1CF3) return true; /* letters since Unicode 12 */
    if (code == 0x111C9) return false;                 /* a mark since Unicode 11 */
    return fb_unicode_is(code, FB_CATEGORIES_MARK) && !fb_unicode_is_after_9(code);
}

bool fb_unicode_is_punctuation(uint32_t code) {
    if (code < 0x80)
        return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') || (code >= '[' && code <= '`') ||
               (code >= '{' && code <= '~');
    return in_spans(fb_unicode_punctuation, fb_unicode_punctuation_count, code);
}

bool fb_unicode_is_space(uint32_t code) {
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
           code == 0x205F || code == 0x3000;
}

bool fb_unicode_is_word(uint32_t code) {
    if (code < 0x80)
        return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') || (code >= '0' && code <= '9') ||
               code == '_';
    if (fb_unicode_is(code, FB_CATEGORY(LL) | FB_CATEGORY(LM) | FB_CATEGORY(LO) | FB_CATEGORY(LT) |
                                FB_CATEGORY(LU) | FB_CATEGORIES_MARK | FB_CATEGORY(ND) | FB_CATEGORY(NL) |
                                FB_CATEGORY(PC)))
        return true;
    /* Join_Control, and the symbols that are Alphabetic: circled and squared letters. */
    return code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) ||
           (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
           (code >= 0x1F170 && code <= 0x1F189);
}
