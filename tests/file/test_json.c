#include "file/json.h"

#include <stdlib.h>
#include <string.h>

#include "file/json_build.h"
#include "support/support.h"

static fb_json *parse(const char *text) {
    fb_json *value;
    fb_error err;
    assert_ok(fb_json_parse("x.json", text, strlen(text), 1 << 20, &value, &err), &err);
    return value;
}

static void refused(const char *bytes, size_t size, const char *words) {
    fb_json *value = (fb_json *)1;
    fb_error err;
    assert_refused(fb_json_parse("x.json", bytes, size, 1 << 20, &value, &err), FB_ERROR_FILE, &err, words);
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
    fb_json *value;
    fb_error err;
    assert_ok(fb_json_parse("x", text, 7, 7, &value, &err), &err);
    fb_json_free(value);
    free(text);
}

static void integers(void **state) {
    (void)state;
    fb_json *o = parse("{\"a\": 5, \"n\": null, \"r\": 5.0, \"s\": \"5\", \"b\": true}");
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
    fb_json_free(o);
}

static void reals_bools_strings(void **state) {
    (void)state;
    fb_json *o = parse("{\"r\": 0.5, \"i\": 2, \"s\": \"x\", \"z\": \"a\\u0000b\", \"t\": true}");
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
    fb_json_free(o);
}

static void load_refuses(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x.json", dir);
    fb_json *value;
    fb_error err;
    assert_refused(fb_json_load(path, 100, &value, &err), FB_ERROR_FILE, &err, "x.json|No such file");
    fbt_text_write(path, "");
    assert_refused(fb_json_load(path, 100, &value, &err), FB_ERROR_FILE, &err, "x.json|empty");
    fbt_text_write(path, "[1]");
    assert_refused(fb_json_load(path, 100, &value, &err), FB_ERROR_FILE, &err, "x.json|not a JSON object");
    fbt_text_write(path, "{\"a\": 1}");
    assert_refused(fb_json_load(path, 7, &value, &err), FB_ERROR_FILE, &err, "x.json|8 bytes|at most 7");
    assert_ok(fb_json_load(path, 8, &value, &err), &err);
    fb_json_free(value);
    free(path);
    fbt_dir_remove(dir);
}

static void show_is_short(void **state) {
    (void)state;
    fb_json *o = parse("[1, 2, 3, 4, 5, 6, 7, 8, 9]");
    char text[12];
    assert_string_equal(fb_json_show(o, text, sizeof text), "[1,2,3,4...");
    assert_string_equal(fb_json_show(NULL, text, sizeof text), "nothing");
    fb_json_free(o);
}

static void show_cuts_no_character(void **state) {
    (void)state;
    fb_json *o = parse("[\"\u20ac\u20ac\u20ac\"]");
    char text[16];
    assert_string_equal(fb_json_show(o, text, 11), "[\"\u20ac...");
    assert_string_equal(fb_json_show(o, text, 13), "[\"\u20ac\u20ac...");
    assert_string_equal(fb_json_show(o, text, 14), "[\"\u20ac\u20ac\u20ac\"]");
    fb_json_free(o);
    assert_string_equal(fb_json_quote("a\"\n\x01", 4, text, sizeof text), "\"a\\\"\\n\\u0001\"");
}

static void no_value_is_nothing(void **state) {
    (void)state;
    fb_json *o = parse("{\"a\": [], \"b\": \"text\", \"c\": 3}");
    const fb_json *none[] = {NULL,
                             fb_json_get(o, "x"),
                             fb_json_get(fb_json_get(o, "b"), "a"),
                             fb_json_at(o, 0),
                             fb_json_at(fb_json_get(o, "a"), 0),
                             fb_json_first(fb_json_get(o, "b")),
                             fb_json_next(fb_json_get(o, "c"))};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_null(none[i]);
        assert_int_equal(fb_json_kind_of(none[i]), FB_JSON_NONE);
        assert_int_equal(fb_json_size(none[i]), 0);
        assert_int_equal(fb_json_int_of(none[i]), 0);
        assert_null(fb_json_text_of(none[i]));
        assert_null(fb_json_key(none[i]));
        assert_null(fb_json_next(none[i]));
    }
    assert_null(fb_json_text_of(fb_json_get(o, "c")));
    assert_null(fb_json_key(o));
    fb_json_free(o);
    fb_json_free(NULL);
}

static void equal_values(void **state) {
    (void)state;
    static const struct {
        const char *left, *right;
        bool same;
    } pairs[] = {
        {"{}", "{}", true},
        {"[1, null, true, \"a\", 0.5]", "[1,null,true,\"a\",5e-1]", true},
        {"{\"a\": 1, \"b\": [{}]}", "{\"b\": [{}], \"a\": 1}", true},
        {"[]", "{}", false},
        {"[1]", "[1.0]", false},
        {"[1, 2]", "[2, 1]", false},
        {"[1]", "[1, 1]", false},
        {"[true]", "[false]", false},
        {"[\"a\"]", "[\"b\"]", false},
        {"{\"a\": 1}", "{\"b\": 1}", false},
        {"[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]", "[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]", false}, /* 17 deep */
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        fb_json *left = parse(pairs[i].left), *right = parse(pairs[i].right);
        assert_int_equal(fb_json_equal(left, right), pairs[i].same);
        assert_int_equal(fb_json_equal(right, left), pairs[i].same);
        assert_true(fb_json_equal(left, left));
        assert_false(fb_json_equal(left, NULL));
        fb_json_free(left);
        fb_json_free(right);
    }
}

/* What is built is what would be read. */
static void build_an_object(void **state) {
    (void)state;
    fb_error err;
    fb_json_builder b = {0};
    fb_json *built, *read = parse("{\"n\": null, \"b\": true, \"i\": -5, \"r\": 2.0, \"t\": \"a\\u0000b\","
                                  "\"o\": {\"x\": 1, \"e\": {}}, \"c\": \"a\\u0000b\", \"c2\": true, "
                                  "\"c3\": 2.0}");
    fb_json_put_null(&b, "n");
    fb_json_put_bool(&b, "b", true);
    fb_json_put_int(&b, "i", -5);
    fb_json_put_real(&b, "r", 2);
    fb_json_put_text(&b, "t", "a\0b", 3);
    fb_json_open_object(&b, "o");
    fb_json_put_int(&b, "x", 1);
    fb_json_open_object(&b, "e");
    fb_json_close(&b);
    fb_json_close(&b);
    fb_json_put_copy(&b, "c", fb_json_get(read, "t"));
    fb_json_put_copy(&b, "c2", fb_json_get(read, "b"));
    fb_json_put_copy(&b, "c3", fb_json_get(read, "r"));
    assert_ok(fb_json_finish(&b, "x", &built, &err), &err);
    char left[256], right[256];
    assert_string_equal(fb_json_show(built, left, sizeof left), fb_json_show(read, right, sizeof right));
    assert_true(fb_json_equal(built, read));
    fb_json_free(built);
    fb_json_free(read);
    assert_ok(fb_json_finish(&b, "x", &built, &err), &err); /* empty again */
    assert_string_equal(fb_json_show(built, left, sizeof left), "{}");
    fb_json_free(built);
    for (int i = 0; i < 20; i++) fb_json_put_int(&b, i == 9 ? "3" : (char[]){(char)('0' + i), 0}, i);
    assert_refused(fb_json_finish(&b, "x", &built, &err), FB_ERROR_FILE, &err, "x: 3: duplicate key");
    assert_null(built);
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
        cmocka_unit_test(show_cuts_no_character),
        cmocka_unit_test(no_value_is_nothing),
        cmocka_unit_test(equal_values),
        cmocka_unit_test(build_an_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
