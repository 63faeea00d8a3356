#include "text/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

static void test_growth(void **state) {
    (void)state;
    fb_bytes bytes = {0};
    fb_ids ids = {0};
    fb_spans spans = {0};
    for (int32_t i = 0; i < 1000; i++) {
        assert_int_equal(fb_bytes_append(&bytes, &(char){(char)i}, 1, NULL), FB_OK);
        assert_int_equal(fb_ids_append(&ids, &i, 1, NULL), FB_OK);
        assert_int_equal(fb_spans_add(&spans, i, i + 1, NULL), FB_OK);
        assert_int_equal(fb_spans_add(&spans, i, i, NULL), FB_OK); /* empty: not there */
    }
    assert_int_equal(bytes.size, 1000);
    assert_int_equal(ids.size, 1000);
    assert_int_equal(spans.size, 1000);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(bytes.data[i], (char)i);
        assert_int_equal(ids.data[i], i);
        assert_int_equal(spans.data[i].start, i);
    }
    assert_int_equal(fb_bytes_append(&bytes, NULL, 0, NULL), FB_OK);
    fb_bytes_free(&bytes);
    fb_ids_free(&ids);
    fb_spans_free(&spans);
    assert_null(bytes.data);
}

/* Refused before any memory is asked for. */
static void test_limit(void **state) {
    (void)state;
    char full[1];
    fb_bytes bytes = {full, FB_TEXT_LIMIT - 1, FB_TEXT_LIMIT};
    fb_error err = {0};
    assert_int_equal(fb_bytes_reserve(&bytes, 1, &err), FB_OK);
    assert_int_equal(fb_bytes_reserve(&bytes, 2, &err), FB_ERROR_USAGE);
    assert_non_null(strstr(err.message, "(at most 268435456)"));
    assert_int_equal(fb_bytes_reserve(&bytes, INT64_MAX, &err), FB_ERROR_USAGE);
    int64_t capacity = 0;
    assert_null(fb_array_grow(NULL, 0, &capacity, INT64_MAX / 2, 16));
    assert_int_equal(capacity, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_growth), cmocka_unit_test(test_limit)};
    return cmocka_run_group_tests_name("bytes", tests, NULL, NULL);
}
