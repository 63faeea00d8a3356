#include "base/show.h"

#include <string.h>

#include "support/support.h"

static void shows(const char *text, const char *wanted) {
    char out[256];
    fb_show(text, out, sizeof out);
    assert_string_equal(out, wanted);
}

static void steering_characters_are_escaped(void **state) {
    (void)state;
    shows("a\x1b[31m\n\t\r\x7f", "a\\x1b[31m\\x0a\\x09\\x0d\\x7f");
    shows("\xc2\x80\xc2\x9b\xc2\x9f", "\\u0080\\u009b\\u009f");                                /* C1 */
    shows("\xd8\x9c\xe2\x80\x8e\xe2\x80\x8f", "\\u061c\\u200e\\u200f");                        /* marks */
    shows("\xe2\x80\xaa\xe2\x80\xae\xe2\x81\xa6\xe2\x81\xa9", "\\u202a\\u202e\\u2066\\u2069"); /* overrides */
}

static void other_characters_stay(void **state) {
    (void)state;
    const char *text =
        " ~\\ "
        "\xc2\xa0\xc3\xa9\xd8\x9b\xe2\x80\x8d\xe2\x80\x90\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa\xef\xbf\xbd"
        "\xf0\x9f\x99\x82\xf4\x8f\xbf\xbf";
    shows(text, text);
}

/* Bytes that are no character are shown one by one: some terminals take them for C1. */
static void bytes_that_are_no_utf8(void **state) {
    (void)state;
    shows("\x9b\xff", "\\x9b\\xff");
    shows("\xc0\x9b", "\\xc0\\x9b");          /* overlong ESC */
    shows("\xe0\x82\x9b", "\\xe0\\x82\\x9b"); /* overlong C1 */
    shows("\xed\xa0\x80", "\\xed\\xa0\\x80"); /* a surrogate */
    shows("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80");
    shows("a\xe2\x80", "a\\xe2\\x80"); /* cut off */
    shows("\xe2\x1b", "\\xe2\\x1b");
}

static void newline_and_tab_stay_in_lines(void **state) {
    (void)state;
    char shown[FB_SHOWN_BYTES];
    assert_int_equal(fb_show_character("\n", 1, true, shown), 1);
    assert_string_equal(shown, "\n");
    assert_int_equal(fb_show_character("\t", 1, true, shown), 1);
    assert_string_equal(shown, "\t");
    assert_int_equal(fb_show_character("\r", 1, true, shown), 1);
    assert_string_equal(shown, "\\x0d");
    assert_int_equal(fb_show_character("", 1, true, shown), 1); /* the byte 0 */
    assert_string_equal(shown, "\\x00");
    assert_int_equal(fb_show_character("\xe2\x80\xae!", 4, true, shown), 3);
    assert_string_equal(shown, "\\u202e");
    assert_int_equal(fb_show_character("\xe2\x80\xae", 2, true, shown), 1); /* no byte beyond is read */
    assert_string_equal(shown, "\\xe2");
}

static void cut_between_characters(void **state) {
    (void)state;
    char out[8];
    fb_show("ab\xe2\x80\xae"
            "c",
            out, sizeof out);
    assert_string_equal(out, "ab");
    fb_show("abcde\xc3\xa9x", out, sizeof out);
    assert_string_equal(out, "abcde\xc3\xa9");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steering_characters_are_escaped), cmocka_unit_test(other_characters_stay),
        cmocka_unit_test(bytes_that_are_no_utf8),          cmocka_unit_test(newline_and_tab_stay_in_lines),
        cmocka_unit_test(cut_between_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
