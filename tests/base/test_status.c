#include "base/status.h"

#include <string.h>

#include "support/support.h"

static void names(void **state) {
    (void)state;
    assert_string_equal(fb_status_name(FB_OK), "ok");
    assert_string_equal(fb_status_name(FB_ERROR_STOPPED), "stopped");
    assert_string_equal(fb_status_name((fb_status)99), "unknown");
    assert_string_equal(fb_status_name((fb_status)-1), "unknown");
}

static void fail_fills_the_error(void **state) {
    (void)state;
    fb_error err = {0};
    fb_status status = fb_fail(&err, FB_ERROR_USAGE, "%s: %d (0 to %d)", "top-k", -3, 9);
    assert_int_equal(status, FB_ERROR_USAGE);
    assert_int_equal(err.status, FB_ERROR_USAGE);
    assert_string_equal(err.message, "top-k: -3 (0 to 9)");
}

static void fail_without_an_error(void **state) {
    (void)state;
    assert_int_equal(fb_fail(NULL, FB_ERROR_FILE, "%s", "x"), FB_ERROR_FILE);
    assert_int_equal(fb_fail_memory(NULL, "x", 1), FB_ERROR_MEMORY);
}

static void message_is_one_harmless_line(void **state) {
    (void)state;
    fb_error err = {0};
    fb_fail(&err, FB_ERROR_FILE, "a\nb\x1b[31m\x7f\t%s", "\r");
    assert_string_equal(err.message, "a\\x0ab\\x1b[31m\\x7f\\x09\\x0d");
}

static void long_message_is_cut(void **state) {
    (void)state;
    fb_error err;
    memset(&err, 'x', sizeof err);
    char text[2000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    fb_fail(&err, FB_ERROR_FILE, "%s", text);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
}

static void memory_says_how_much(void **state) {
    (void)state;
    fb_error err = {0};
    assert_refused(fb_fail_memory(&err, "KV cache", 1234567), FB_ERROR_MEMORY, &err, "KV cache|1234567");
}

static fb_status try_twice(fb_status first, int *reached) {
    FB_TRY(first);
    *reached = 1;
    return FB_OK;
}

static void try_returns_at_once(void **state) {
    (void)state;
    int reached = 0;
    assert_int_equal(try_twice(FB_ERROR_SYSTEM, &reached), FB_ERROR_SYSTEM);
    assert_int_equal(reached, 0);
    assert_int_equal(try_twice(FB_OK, &reached), FB_OK);
    assert_int_equal(reached, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(fail_fills_the_error),
        cmocka_unit_test(fail_without_an_error),
        cmocka_unit_test(message_is_one_harmless_line),
        cmocka_unit_test(long_message_is_cut),
        cmocka_unit_test(memory_says_how_much),
        cmocka_unit_test(try_returns_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
