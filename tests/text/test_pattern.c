/* The translation of split patterns, and what both engines must agree on. */
#include "text/pattern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

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
    expect_split("\\p{L}", false, "", "");
}

static void test_refused(void **state) {
    (void)state;
    static const char *const sources[] = {"\\w",      "\\b",    "\\h",      "\\R",        "\\x41", "\\u0041",
                                          "^a",       "a$",     "[a[b]]",   "[a&&b]",     "[]a]",  "[\\S]",
                                          "[\\P{L}]", "(?m:a)", "(?x)a",    "(*UTF)a",    "a{,3}", "a{2}+",
                                          "a{2}?",    "\\pL",   "\\p{Han}", "\\p{L",      "a*",    "a|",
                                          "\\",       "(?=a)",  "(?<n>a)",  "[[:alpha:]]"};
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

static int64_t count_matches(const char *source, bool (*expected)(uint32_t)) {
    fb_pattern *pattern = compile(source, false);
    fb_pattern_work work = {0};
    fb_spans spans = {0};
    int64_t count = 0;
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xD800 && code <= 0xDFFF) continue;
        char text[5] = "x";
        int size = fb_utf8_write(code, text + 1) + 1;
        spans.size = 0;
        assert_int_equal(fb_pattern_split(pattern, &work, text, size, 0, &spans, NULL), FB_OK);
        bool matched = spans.size == 2;
        if (expected) assert_int_equal(matched, expected(code));
        count += matched;
    }
    fb_spans_free(&spans);
    fb_pattern_work_free(&work);
    fb_pattern_free(pattern);
    return count;
}

/* Counts as Oniguruma has them in `tokenizers` 0.23, with Unicode 16. A PCRE2 of a later Unicode may know
 * more. */
static void test_classes(void **state) {
    (void)state;
    assert_int_equal(count_matches("\\s", fb_unicode_is_space), 25);
    assert_true(count_matches("(?<=x)\\p{L}", NULL) >= 141028);
    assert_true(count_matches("\\p{N}", NULL) >= 1911);
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
