/* The translation of split patterns, and what both engines must agree on. */
#include "text/pattern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/unicode.h"
#include "text/utf8.h"

static fb_pattern *compile(const char *source, bool literal) {
    fb_error err = {0};
    fb_pattern *pattern;
    if (fb_pattern_compile("t", source, (int64_t)strlen(source), literal, &pattern, &err) != FB_OK)
        fail_msg("%s", err.message);
    return pattern;
}

/* The spans of `text` joined by bars. */
static void expect_split(const char *source, bool literal, const char *text, const char *expected) {
    fb_pattern *pattern = compile(source, literal);
    fb_pattern_work work = {0};
    fb_spans spans = {0};
    char joined[256] = "";
    assert_int_equal(fb_pattern_split(pattern, &work, text, (int64_t)strlen(text), 0, &spans, NULL), FB_OK);
    for (int64_t i = 0; i < spans.size; i++) {
        if (i > 0) strcat(joined, "|");
        strncat(joined, text + spans.data[i].start, (size_t)(spans.data[i].end - spans.data[i].start));
    }
    assert_string_equal(joined, expected);
    fb_spans_free(&spans);
    fb_pattern_work_free(&work);
    fb_pattern_free(pattern);
}

static void test_split(void **state) {
    (void)state;
    expect_split("\\s+(?!\\S)|\\s+", false, "a   b  ", "a|  | |b|  ");
    expect_split("(?i:'s|'ll)|\\p{L}+", false, "it'S I'LL", "it|'S| |I|'LL");
    expect_split("\\p{N}{1,3}", false, "12345x", "123|45|x");
    expect_split("[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", false, "-ab\ncd", "-ab|\n|cd");
    expect_split("a.b", true, "xa.ba+b", "x|a.b|a+b");
    expect_split("[\\s\\-]", false, "a-b c", "a|-|b| |c");
    expect_split("(?<=a)b|c++", false, "abbcc", "a|b|b|cc");
    expect_split(" ?[^(\\s|[.,!])]+", false, "ab (c. d,e", "ab| (|c|.| d|,|e");
    expect_split("\\p{L}", false, "", "");
}

static void test_refused(void **state) {
    (void)state;
    static const char *const sources[] = {
        "\\b",   "\\h",        "\\R",   "\\x41",   "\\u0041", "^a",    "a$",      "[a[^b]]",    "[a&&b]",
        "[]a]",  "(?m:a)",     "(?x)a", "(*UTF)a", "a{,3}",   "a{2}+", "a{2}?",   "\\pL",       "\\p{Thai}",
        "\\p{L", "[\\P{Han}]", "a*",    "a|",      "\\",      "(?=a)", "(?<n>a)", "[[:alpha:]]"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        fb_error err = {0};
        fb_pattern *pattern = (fb_pattern *)1;
        if (fb_pattern_compile("t", sources[i], (int64_t)strlen(sources[i]), false, &pattern, &err) !=
            FB_ERROR_UNSUPPORTED)
            fail_msg("%s: %s", sources[i], err.message);
        assert_null(pattern);
    }
    static const char *const broken[] = {"(a", "a)", "[a", "", "*a"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        fb_pattern *pattern;
        assert_int_equal(
            fb_pattern_compile("t", broken[i], (int64_t)strlen(broken[i]), false, &pattern, NULL),
            FB_ERROR_FILE);
    }
}

/* All code points in order, as UTF-8; `starts` has where each begins. */
typedef struct every_character {
    char *text;
    int64_t size;
    int64_t *starts; /* [0x110001] */
} every_character;

static every_character all_characters(void) {
    every_character all = {malloc(5 << 20), 0, malloc(0x110001 * sizeof(int64_t))};
    assert_non_null(all.text);
    assert_non_null(all.starts);
    for (uint32_t code = 0; code < 0x110000; code++) {
        all.starts[code] = all.size;
        if (code < 0xD800 || code > 0xDFFF) all.size += fb_utf8_write(code, all.text + all.size);
    }
    all.starts[0x110000] = all.size;
    return all;
}

/* Every run of members is one match of SOURCE+, and nothing else is. Returns the number of members. */
static int64_t check_members(const every_character *all, const char *source, bool (*expected)(uint32_t)) {
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%s+", source);
    fb_pattern *compiled = compile(pattern, false);
    fb_pattern_work work = {0};
    fb_spans spans = {0};
    assert_int_equal(fb_pattern_split(compiled, &work, all->text, all->size, 0, &spans, NULL), FB_OK);
    int64_t at = 0, count = 0;
    for (uint32_t code = 0; code < 0x110000; at++) {
        bool member = expected(code);
        uint32_t end = code;
        for (; end < 0x110000 && (expected(end) == member || (end >= 0xD800 && end <= 0xDFFF)); end++)
            count += member && (end < 0xD800 || end > 0xDFFF);
        if (at >= spans.size || spans.data[at].start != all->starts[code] ||
            spans.data[at].end != all->starts[end])
            fail_msg("%s: U+%04X to U+%04X are not one part", source, code, end - 1);
        code = end;
    }
    assert_int_equal(at, spans.size);
    fb_spans_free(&spans);
    fb_pattern_work_free(&work);
    fb_pattern_free(compiled);
    return count;
}

static uint32_t wanted; /* categories */
static unsigned char category_of[0x110000];
static bool is_wanted(uint32_t code) { return wanted >> category_of[code] & 1; }
static bool is_not_wanted(uint32_t code) { return !is_wanted(code); }
static bool is_not_space(uint32_t code) { return !fb_unicode_is_space(code); }
static bool is_word(uint32_t code) {
    if (code == 0xB2 || code == 0xB3 || code == 0xB9 || (code >= 0xBC && code <= 0xBE)) return true;
    return code != 0x200C && code != 0x200D && fb_unicode_is_word(code);
}
static bool is_not_word(uint32_t code) { return !is_word(code); }
static bool is_han(uint32_t code) {
    for (int i = 0; i < fb_unicode_han_count; i++)
        if (code >= fb_unicode_han[i].first && code <= fb_unicode_han[i].last) return true;
    return false;
}

/* Every code point, and the number of members that Oniguruma has in `tokenizers` 0.23, with Unicode 16. */
static void test_classes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t members;
    } categories[] = {
        {"L", 141028}, {"Lu", 1858},  {"Ll", 2258}, {"Lt", 31},  {"Lm", 404},    {"Lo", 136477},
        {"M", 2501},   {"Mn", 2020},  {"Mc", 468},  {"Me", 13},  {"N", 1911},    {"Nd", 760},
        {"Nl", 236},   {"No", 915},   {"P", 855},   {"Pc", 10},  {"Pd", 27},     {"Ps", 79},
        {"Pe", 77},    {"Pi", 12},    {"Pf", 10},   {"Po", 640}, {"S", 8514},    {"Sm", 950},
        {"Sc", 63},    {"Sk", 125},   {"So", 7376}, {"Z", 19},   {"Zs", 17},     {"Zl", 1},
        {"Zp", 1},     {"C", 957236}, {"Cc", 65},   {"Cf", 170}, {"Cn", 819533}, {"Co", 137468},
    };
    every_character all = all_characters();
    for (uint32_t code = 0; code < 0x110000; code++)
        category_of[code] = (unsigned char)fb_unicode_category(code);
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++) {
        const char *name = categories[i].name;
        char source[32];
        wanted = fb_unicode_categories(name, (int64_t)strlen(name));
        snprintf(source, sizeof source, "\\p{%s}", name);
        assert_int_equal(check_members(&all, source, is_wanted), categories[i].members);
        if (strlen(name) > 1) continue; /* for the time of it */
        snprintf(source, sizeof source, "[\\P{%s}]", name);
        check_members(&all, source, is_not_wanted);
    }
    assert_int_equal(check_members(&all, "\\s", fb_unicode_is_space), 25);
    assert_int_equal(check_members(&all, "\\w", is_word), 144671);
    assert_int_equal(check_members(&all, "\\p{Han}", is_han), 99030);
    check_members(&all, "\\S", is_not_space);
    check_members(&all, "[\\S]", is_not_space);
    check_members(&all, "\\W", is_not_word);
    free(all.text);
    free(all.starts);
}

static void test_match_limit(void **state) {
    (void)state;
    fb_pattern *pattern = compile("(?:a+a+)+[bc]", false);
    fb_pattern_work work = {0};
    fb_spans spans = {0};
    fb_error err = {0};
    char text[64];
    memset(text, 'a', sizeof text);
    assert_int_equal(fb_pattern_split(pattern, &work, text, sizeof text, 0, &spans, &err),
                     FB_ERROR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "match limit exceeded (at most 10000000 steps)"));
    fb_spans_free(&spans);
    fb_pattern_work_free(&work);
    fb_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_match_limit),
    };
    return cmocka_run_group_tests_name("pattern", tests, NULL, NULL);
}
