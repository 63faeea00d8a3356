#include "text/unicode.h"
#include "text/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

/* Every character reads back, and each of its proper prefixes is an incomplete one. */
static void test_every_character(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xD800 && code <= 0xDFFF) continue;
        char text[8] = "\xFF";
        int size = fb_utf8_write(code, text + 1);
        fb_utf8_char c = fb_utf8_read(text + 1, size);
        assert_int_equal(c.kind, FB_UTF8_VALID);
        assert_int_equal(c.code, code);
        assert_int_equal(c.size, size);
        assert_int_equal(fb_utf8_length(text[1]), size);
        assert_true(fb_utf8_valid(text + 1, size));
        assert_int_equal(fb_utf8_ascii(text + 1, size), code < 0x80);
        assert_int_equal(fb_utf8_incomplete(text, size + 1), 0);
        for (int cut = 1; cut < size; cut++) {
            assert_int_equal(fb_utf8_incomplete(text, cut + 1), cut);
            assert_false(fb_utf8_valid(text + 1, cut));
        }
    }
}

static void test_lossy(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *expected;
        int64_t incomplete;
    } cases[] = {
        {"", "", 0},
        {"plain ASCII of some length", "plain ASCII of some length", 0},
        {"\xC2", "\uFFFD", 1},
        {"\xC1\xBF", "\uFFFD\uFFFD", 0},
        {"\xE0\x9F\xBF", "\uFFFD\uFFFD\uFFFD", 0},
        {"\xE0\xA0", "\uFFFD", 2},
        {"\xED\x9F\xBF", "\uD7FF", 0},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD", 0},
        {"\xF0\x8F\xBF\xBF", "\uFFFD\uFFFD\uFFFD\uFFFD", 0},
        {"\xF0\x9F\x99", "\uFFFD", 3},
        {"\xF0\x9F\x99z", "\uFFFDz", 0},
        {"\xF4\x8F\xBF\xBF", "\U0010FFFF", 0},
        {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD", 0},
        {"\xF5", "\uFFFD", 0},
        {"a\x80\x80\x80\x80", "a\uFFFD\uFFFD\uFFFD\uFFFD", 0},
        {"\xE2\x82\xC3\xA9", "\uFFFD\u00E9", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fb_bytes out = {0};
        int64_t size = (int64_t)strlen(cases[i].bytes);
        assert_int_equal(fb_utf8_append_lossy(&out, cases[i].bytes, size, NULL), FB_OK);
        assert_int_equal(out.size, strlen(cases[i].expected));
        assert_memory_equal(out.data, cases[i].expected, (size_t)out.size);
        assert_true(fb_utf8_valid(out.data, out.size));
        assert_int_equal(fb_utf8_incomplete(cases[i].bytes, size), cases[i].incomplete);
        fb_bytes_free(&out);
    }
}

static void test_properties(void **state) {
    (void)state;
    static const uint32_t words[] = {'a',    'Z',    '0',    '_',    0xE9,    0x301,
                                     0x203F, 0x2160, 0x24B6, 0x4E00, 0x1F130, 0x200D};
    static const uint32_t others[] = {' ', '-', '.', 0xA0, 0xBD, 0x200B, 0x2014, 0x1F642, 0x10FFFF};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) assert_true(fb_unicode_is_word(words[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_false(fb_unicode_is_word(others[i]));
    assert_true(fb_unicode_is_space(0x85) && fb_unicode_is_space(0x3000) && fb_unicode_is_space('\v'));
    assert_false(fb_unicode_is_space(0x180E) || fb_unicode_is_space(0x200B) || fb_unicode_is_space(0x1C));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_character),
        cmocka_unit_test(test_lossy),
        cmocka_unit_test(test_properties),
    };
    return cmocka_run_group_tests_name("utf8", tests, NULL, NULL);
}
