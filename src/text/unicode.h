/* General categories of Unicode 16, whatever the libraries of the system know. */
#ifndef FB_TEXT_UNICODE_H
#define FB_TEXT_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

/* In the order of make_unicode.py. */
typedef enum fb_category {
    FB_CN,
    FB_CC,
    FB_CF,
    FB_CO,
    FB_CS,
    FB_LL,
    FB_LM,
    FB_LO,
    FB_LT,
    FB_LU,
    FB_MC,
    FB_ME,
    FB_MN,
    FB_ND,
    FB_NL,
    FB_NO,
    FB_PC,
    FB_PD,
    FB_PE,
    FB_PF,
    FB_PI,
    FB_PO,
    FB_PS,
    FB_SC,
    FB_SK,
    FB_SM,
    FB_SO,
    FB_ZL,
    FB_ZP,
    FB_ZS,
    FB_CATEGORY_COUNT
} fb_category;

/* Sets of categories: one bit each. */
#define FB_CATEGORY(name)  (1u << FB_##name)
#define FB_CATEGORIES_MARK (FB_CATEGORY(MC) | FB_CATEGORY(ME) | FB_CATEGORY(MN))

fb_category fb_unicode_category(uint32_t code);

/* Whether a code point is of one of these categories. */
static inline bool fb_unicode_is(uint32_t code, uint32_t categories) {
    return categories >> fb_unicode_category(code) & 1;
}

/* The categories of a name such as "L" or "Lu"; 0: there is no such name. */
uint32_t fb_unicode_categories(const char *name, int64_t size);

typedef struct fb_unicode_span {
    uint32_t first, last;
} fb_unicode_span;

/* The first span of such code points from `from` on; false: there is none. */
bool fb_unicode_next(uint32_t categories, uint32_t from, fb_unicode_span *span);

/* The tables of unicode_table.c: code point << 8 | category wherever the category changes; the code points
 * that are younger than Unicode 14, or changed their category since; those that are younger than Unicode 9;
 * punctuation of Unicode 8; the Han script. */
extern const uint32_t fb_unicode_changes[];
extern const int fb_unicode_changes_count;
extern const fb_unicode_span fb_unicode_new[];
extern const int fb_unicode_new_count;
extern const fb_unicode_span fb_unicode_after_9[];
extern const int fb_unicode_after_9_count;
extern const fb_unicode_span fb_unicode_punctuation[];
extern const int fb_unicode_punctuation_count;
extern const fb_unicode_span fb_unicode_han[];
extern const int fb_unicode_han_count;

/* What `tokenizers` has from older tables: whether a code point was assigned after Unicode 9, by which it
 * normalises; a mark of that Unicode; punctuation of Unicode 8, and all of ASCII's. */
bool fb_unicode_is_after_9(uint32_t code);
bool fb_unicode_is_accent(uint32_t code);
bool fb_unicode_is_punctuation(uint32_t code);

bool fb_unicode_is_space(uint32_t code); /* White_Space */
bool fb_unicode_is_word(uint32_t code);  /* \w of UTS #18 */

#endif
