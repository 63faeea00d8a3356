#include "file/json.h"

#include <stdlib.h>
#include <string.h>

#include "support/support.h"

static json_t *parse(const char *text) {
    json_t *value;
    fb_error err;
    assert_ok(fb_json_parse("x.json", text, strlen(text), &value, &err), &err);
    return value;
}

static void refused(const char *bytes, size_t size, const char *words) {
    json_t *value = (json_t *)1;
    fb_error err;
    assert_refused(fb_json_parse("x.json", bytes, size, &value, &err), FB_ERROR_FILE, &err, words);
    assert_null(value);
}

static void parse_refuses(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"", "x.json|not JSON"},
        {"{", "x.json|not JSON|line 1"},
        {"{\"a\": 1} x", "x.json|end of file"},
        {"{\"a\": 1, \"a\": 2}", "x.json|duplicate"},
        {"{\"a\": \"\xff\xfe\"}", "x.json|unable to decode byte"},
        {"{\"a\": \"\xed\xa0\x80\"}", "x.json|unable to decode byte"}, /* a surrogate */
        {"{\"a\": NaN}", "x.json|NaN"},
        {"{\"a\": 1e999}", "x.json|real number overflow"},
        {"{\"a\": 99999999999999999999}", "x.json|too big integer"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(rows[i].text, strlen(rows[i].text), rows[i].words);
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    enum { DEEP = 1000000 };
    char *text = malloc(DEEP);
    assert_non_null(text);
    memset(text, '[', DEEP);
    refused(text, DEEP, "x.json|depth");
    free(text);
}

static void bytes_need_no_terminator(void **state) {
    (void)state;
    char *text = malloc(7); /* exactly: a read beyond it is seen by the sanitizer */
    assert_non_null(text);
    memcpy(text, "{\"a\":1}", 7);
    json_t *value;
    fb_error err;
    assert_ok(fb_json_parse("x", text, 7, &value, &err), &err);
    json_decref(value);
    free(text);
}

static void integers(void **state) {
    (void)state;
    json_t *o = parse("{\"a\": 5, \"n\": null, \"r\": 5.0, \"s\": \"5\", \"b\": true}");
    fb_error err;
    int64_t v;
    assert_ok(fb_json_int("c", o, "a", 0, 5, 9, &v, &err), &err);
    assert_int_equal(v, 5);
    assert_ok(fb_json_int("c", o, "n", 0, 5, 9, &v, &err), &err);
    assert_int_equal(v, 9);
    assert_ok(fb_json_int("c", o, "none", 0, 5, 9, &v, &err), &err);
    assert_int_equal(v, 9);
    assert_refused(fb_json_int("c", o, "a", 6, 9, 9, &v, &err), FB_ERROR_FILE, &err, "c: a: 5 (6 to 9)");
    assert_refused(fb_json_int("c", o, "a", 0, 4, 9, &v, &err), FB_ERROR_FILE, &err, "c: a: 5 (0 to 4)");
    assert_refused(fb_json_int("c", o, "r", 0, 5, 9, &v, &err), FB_ERROR_FILE, &err, "r|5.0|integer");
    assert_refused(fb_json_int("c", o, "s", 0, 5, 9, &v, &err), FB_ERROR_FILE, &err, "s|\"5\"|integer");
    assert_refused(fb_json_int("c", o, "b", 0, 5, 9, &v, &err), FB_ERROR_FILE, &err, "b|true|integer");
    assert_refused(fb_json_need_int("c", o, "n", 0, 5, &v, &err), FB_ERROR_FILE, &err, "c: n: missing");
    assert_refused(fb_json_need_int("c", o, "none", 0, 5, &v, &err), FB_ERROR_FILE, &err, "c: none: missing");
    json_decref(o);
}

static void reals_bools_strings(void **state) {
    (void)state;
    json_t *o = parse("{\"r\": 0.5, \"i\": 2, \"s\": \"x\", \"z\": \"a\\u0000b\", \"t\": true}");
    fb_error err;
    double r;
    bool b;
    const char *s;
    assert_ok(fb_json_real("c", o, "r", 0, 1, 9, &r, &err), &err);
    assert_true(r == 0.5);
    assert_ok(fb_json_real("c", o, "i", 0, 2, 9, &r, &err), &err);
    assert_true(r == 2);
    assert_ok(fb_json_real("c", o, "none", 0, 1, 9, &r, &err), &err);
    assert_true(r == 9);
    assert_refused(fb_json_real("c", o, "r", 0.6, 1, 9, &r, &err), FB_ERROR_FILE, &err,
                   "c: r: 0.5 (0.6 to 1)");
    assert_refused(fb_json_real("c", o, "s", 0, 1, 9, &r, &err), FB_ERROR_FILE, &err, "s|number");
    assert_ok(fb_json_bool("c", o, "t", false, &b, &err), &err);
    assert_true(b);
    assert_refused(fb_json_bool("c", o, "i", false, &b, &err), FB_ERROR_FILE, &err, "i|2|true or false");
    assert_ok(fb_json_string("c", o, "s", NULL, &s, &err), &err);
    assert_string_equal(s, "x");
    assert_ok(fb_json_string("c", o, "none", "y", &s, &err), &err);
    assert_string_equal(s, "y");
    assert_refused(fb_json_string("c", o, "i", NULL, &s, &err), FB_ERROR_FILE, &err, "i|2|string");
    assert_refused(fb_json_string("c", o, "z", NULL, &s, &err), FB_ERROR_FILE, &err, "z|string");
    assert_refused(fb_json_need_string("c", o, "none", &s, &err), FB_ERROR_FILE, &err, "none|missing");
    json_decref(o);
}

static void load_refuses(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x.json", dir);
    json_t *value;
    fb_error err;
    assert_refused(fb_json_load(path, 100, &value, &err), FB_ERROR_FILE, &err, "x.json|No such file");
    fbt_text_write(path, "");
    assert_refused(fb_json_load(path, 100, &value, &err), FB_ERROR_FILE, &err, "x.json|empty");
    fbt_text_write(path, "[1]");
    assert_refused(fb_json_load(path, 100, &value, &err), FB_ERROR_FILE, &err, "x.json|not a JSON object");
    fbt_text_write(path, "{\"a\": 1}");
    assert_refused(fb_json_load(path, 7, &value, &err), FB_ERROR_FILE, &err, "x.json|8 bytes|at most 7");
    assert_ok(fb_json_load(path, 8, &value, &err), &err);
    json_decref(value);
    free(path);
    fbt_dir_remove(dir);
}

static void show_is_short(void **state) {
    (void)state;
    json_t *o = parse("[1, 2, 3, 4, 5, 6, 7, 8, 9]");
    char text[12];
    assert_string_equal(fb_json_show(o, text, sizeof text), "[1,2,3,4...");
    assert_string_equal(fb_json_show(NULL, text, sizeof text), "nothing");
    json_decref(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse_refuses),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(integers),
        cmocka_unit_test(bytes_need_no_terminator),
        cmocka_unit_test(reals_bools_strings),
        cmocka_unit_test(load_refuses),
        cmocka_unit_test(show_is_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
