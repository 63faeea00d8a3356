/* What is JSON and what is not: RFC 8259, and what a reader may refuse besides. */
#include <float.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "file/json.h"
#include "support/support.h"

#define LIMIT (64 << 20)

/* From exactly these bytes: a read beyond them is seen by the sanitizer. */
static fb_status parse(const char *bytes, size_t size, fb_json **out, fb_error *err) {
    char *exact = malloc(size + !size);
    assert_non_null(exact);
    memcpy(exact, bytes, size);
    fb_status status = fb_json_parse("x.json", exact, size, LIMIT, out, err);
    free(exact);
    return status;
}

static fb_json *parsed(const char *text) {
    fb_json *value;
    fb_error err;
    assert_ok(parse(text, strlen(text), &value, &err), &err);
    return value;
}

static void refused(const char *bytes, size_t size, const char *words) {
    fb_json *value = (fb_json *)(uintptr_t)1;
    fb_error err;
    assert_refused(parse(bytes, size, &value, &err), FB_ERROR_FILE, &err, words);
    assert_null(value);
}

/* ---- accepted ------------------------------------------------------------------------------------------ */

static const struct {
    const char *text, *shown;
} accepted[] = {
    /* structure and white space */
    {"[]", "[]"},
    {"{}", "{}"},
    {" \t\r\n[ \t\r\n] \t\r\n", "[]"},
    {" { \"a\" : [ 1 , 2 ] , \"b\" : { } } ", "{\"a\":[1,2],\"b\":{}}"},
    {"[[],[[]],{},[{}]]", "[[],[[]],{},[{}]]"},
    {"[null,true,false]", "[null,true,false]"},
    {"{\"\":0}", "{\"\":0}"},
    {"{\"b\":1,\"a\":2,\"B\":3}", "{\"b\":1,\"a\":2,\"B\":3}"},
    {"{\"a\":{\"a\":{\"a\":1}}}", "{\"a\":{\"a\":{\"a\":1}}}"},
    /* numbers */
    {"[0,-0,1,-1,10,1234567890]", "[0,0,1,-1,10,1234567890]"},
    {"[9223372036854775807,-9223372036854775808]", "[9223372036854775807,-9223372036854775808]"},
    {"[0.5,-0.5,1.0,-0.0,1e2,1E2,1e+2,1e-2,12.5e1]", "[0.5,-0.5,1.0,-0.0,100.0,100.0,100.0,0.01,125.0]"},
    {"[1e-5,1e300,1e-300,0e0,0e+00,0.0e-0]",
     "[1.0000000000000001e-5,1.0000000000000001e300,1e-300,0.0,0.0,0.0]"},
    {"[1e-400,123456789012345678901234567890.0]", "[0.0,1.2345678901234568e29]"},
    /* strings */
    {"[\"\",\" \",\"a\"]", "[\"\",\" \",\"a\"]"},
    {"[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]", "[\"\\\"\\\\/\\b\\f\\n\\r\\t\"]"},
    {"[\"\\u0041\\u00e9\\u20AC\\ud83d\\uDE00\"]", "[\"A\u00e9\u20ac\U0001f600\"]"},
    {"[\"\u00e9\u20ac\U0001f600\"]", "[\"\u00e9\u20ac\U0001f600\"]"},
    {"[\"a\\u0000b\\u0001\"]", "[\"a\\u0000b\\u0001\"]"},
    {"[\"\x7f\xef\xbf\xbf\xf4\x8f\xbf\xbf\"]", "[\"\x7f\xef\xbf\xbf\xf4\x8f\xbf\xbf\"]"},
    {"[\"\xef\xbb\xbf\",\"[1,{:\",\"//\"]", "[\"\xef\xbb\xbf\",\"[1,{:\",\"//\"]"},
    {"{\"\\u0061\\n\":1}", "{\"a\\n\":1}"},
};

static void all_of_json_is_accepted(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        fb_json *value = parsed(accepted[i].text);
        char text[256];
        assert_string_equal(fb_json_show(value, text, sizeof text), accepted[i].shown);
        fb_json_free(value);
    }
}

/* ---- refused ------------------------------------------------------------------------------------------- */

#define ROW(text, words)                                                                                     \
    { text, sizeof(text) - 1, words }

static const struct {
    const char *text;
    size_t size;
    const char *words;
} rows[] = {
    /* structure */
    ROW("", "premature end|line 1, column 1"),
    ROW(" ", "premature end"),
    ROW("[", "premature end|column 2"),
    ROW("{", "premature end"),
    ROW("[1", "premature end"),
    ROW("[1,", "premature end"),
    ROW("[1.5", "premature end"),
    ROW("{\"a\"", "premature end"),
    ROW("{\"a\":", "premature end"),
    ROW("{\"a\":1", "premature end"),
    ROW("{\"a\":1,", "premature end"),
    ROW("]", "'[' or '{' expected"),
    ROW("1", "'[' or '{' expected"),
    ROW("\"a\"", "'[' or '{' expected"),
    ROW("null", "'[' or '{' expected"),
    ROW("\xef\xbb\xbf[]", "'[' or '{' expected"),
    ROW("[}", "invalid token near '}'"),
    ROW("{]", "string expected near ']'"),
    ROW("[1}", "',' or ']' expected near '}'"),
    ROW("{\"a\":1]", "',' or '}' expected near ']'"),
    ROW("[1,]", "invalid token near ']'"),
    ROW("[,1]", "invalid token near ',1]'"),
    ROW("[1,,2]", "invalid token"),
    ROW("[1 2]", "',' or ']' expected near '2]'"),
    ROW("[\"a\" \"b\"]", "',' or ']' expected"),
    ROW("[1:2]", "invalid token"),
    ROW("{\"a\":1,}", "string expected near '}'"),
    ROW("{,\"a\":1}", "string expected"),
    ROW("{\"a\"}", "':' expected near '}'"),
    ROW("{\"a\",1}", "':' expected"),
    ROW("{\"a\"::1}", "invalid token"),
    ROW("{\"a\":}", "invalid token"),
    ROW("{1:1}", "string expected near '1:1}'"),
    ROW("{a:1}", "string expected"),
    ROW("{'a':1}", "string expected"),
    ROW("{\"a\":1 \"b\":2}", "',' or '}' expected"),
    ROW("[] x", "end of file expected near 'x'|line 1, column 4"),
    ROW("[][]", "end of file expected"),
    ROW("{}}", "end of file expected"),
    ROW("[]\0", "end of file expected"),
    ROW("[1]\n\n  /* */", "end of file expected|line 3, column 3"),
    ROW("[//\n1]", "invalid token"),
    ROW("[\f1]", "invalid token"),
    ROW("[\xc2\xa0]", "invalid token"),
    /* words */
    ROW("[nul]", "invalid token near 'nul]'"),
    ROW("[nulll]", "invalid token"),
    ROW("[True]", "invalid token near 'True]'"),
    ROW("[truefalse]", "invalid token"),
    ROW("[true\"a\"]", "',' or ']' expected"),
    ROW("[NaN]", "NaN"),
    ROW("[Infinity]", "invalid token"),
    ROW("[-Infinity]", "invalid token"),
    ROW("[tru\0]", "invalid token"),
    /* numbers */
    ROW("[01]", "invalid token near '01]'"),
    ROW("[-01]", "invalid token"),
    ROW("[00]", "invalid token"),
    ROW("[+1]", "invalid token"),
    ROW("[.5]", "invalid token"),
    ROW("[-.5]", "invalid token"),
    ROW("[1.]", "invalid token"),
    ROW("[1.e1]", "invalid token"),
    ROW("[-]", "invalid token"),
    ROW("[--1]", "invalid token"),
    ROW("[1e]", "invalid token"),
    ROW("[1e+]", "invalid token"),
    ROW("[1e1.5]", "invalid token"),
    ROW("[0x10]", "invalid token"),
    ROW("[1_000]", "invalid token"),
    ROW("[1,5.1.2]", "invalid token"),
    ROW("[1a]", "invalid token"),
    ROW("[1\0]", "invalid token"),
    ROW("[9223372036854775808]", "too big integer near '9223372036854775808]'"),
    ROW("[-9223372036854775809]", "too big negative integer"),
    ROW("[100000000000000000000000000]", "too big integer"),
    ROW("[1e309]", "real number overflow near '1e309]'"),
    ROW("[-1e400]", "real number overflow"),
    /* strings */
    ROW("[\"", "premature end"),
    ROW("[\"a", "premature end"),
    ROW("[\"a\\", "premature end"),
    ROW("[\"a\\\"", "premature end"),
    ROW("[\"\\u00", "premature end"),
    ROW("['a']", "invalid token"),
    ROW("[\"a\nb\"]", "control character 0x0a"),
    ROW("[\"a\tb\"]", "control character 0x09"),
    ROW("[\"\x1f\"]", "control character 0x1f"),
    ROW("[\"a\0b\"]", "control character 0x00|column 4"),
    ROW("[\"\\a\"]", "invalid escape near '\\a\"]'"),
    ROW("[\"\\x41\"]", "invalid escape"),
    ROW("[\"\\U0041\"]", "invalid escape"),
    ROW("[\"\\\0\"]", "invalid escape"),
    ROW("[\"\\u12\"]", "invalid escape"),
    ROW("[\"\\u12g4\"]", "invalid escape"),
    ROW("[\"\\u-123\"]", "invalid escape"),
    ROW("[\"\\ud800\"]", "half a surrogate pair|D800"),
    ROW("[\"\\udc00\"]", "half a surrogate pair|DC00"),
    ROW("[\"\\udfff\\ud800\"]", "half a surrogate pair"),
    ROW("[\"\\ud800\\ud800\"]", "half a surrogate pair"),
    ROW("[\"\\ud800\\u0041\"]", "half a surrogate pair"),
    ROW("[\"\\ud800x\"]", "half a surrogate pair"),
    ROW("[\"\\ud800\\n\"]", "half a surrogate pair"),
    /* UTF-8 */
    ROW("[\"\xff\"]", "unable to decode byte 0xff"),
    ROW("[\"\x80\"]", "unable to decode byte 0x80"),
    ROW("[\"\xc3\"]", "unable to decode byte 0xc3"),
    ROW("[\"\xc3", "unable to decode byte 0xc3"),
    ROW("[\"\xc0\x80\"]", "unable to decode byte 0xc0"),         /* overlong */
    ROW("[\"\xe0\x80\x80\"]", "unable to decode byte 0xe0"),     /* overlong */
    ROW("[\"\xf0\x80\x80\x80\"]", "unable to decode byte 0xf0"), /* overlong */
    ROW("[\"\xed\xa0\x80\"]", "unable to decode byte 0xed"),     /* a surrogate */
    ROW("[\"\xf4\x90\x80\x80\"]", "unable to decode byte 0xf4"), /* U+110000 */
    ROW("[\"\u00e9\u00e9\xff\"]", "unable to decode byte 0xff|column 5"),
    ROW("{\"\xff\":1}", "unable to decode byte"),
    /* keys */
    ROW("{\"a\":1,\"a\":2}", "duplicate object key near '\"a\":2}'|line 1, column 8"),
    ROW("{\"a\":1,\n \"\\u0061\":2}", "duplicate|line 2, column 2"),
    ROW("{\"\":1,\"\":1}", "duplicate"),
    ROW("[{\"a\":{\"b\":1,\n\"b\":1}}]", "duplicate|line 2, column 1"),
    ROW("{\"a\\u0000\":1}", "NUL in an object key"),
};

static void the_rest_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *words = fbt_format("x.json: not JSON|%s", rows[i].words);
        refused(rows[i].text, rows[i].size, words);
        free(words);
    }
}

/* Every part of a document, cut off anywhere or with any byte damaged, is refused or read; the sanitizer sees
 * what should not be read. */
static void damage_anywhere(void **state) {
    (void)state;
    static const char text[] =
        "{\"a\": [1, -2.5e3, true, null], \"\\u00e9\\n\": {\"k\": \"\u20ac\\ud83d\\ude00\"}, "
        "\"1\":1,\"2\":2,\"3\":3,\"4\":4,\"5\":5,\"6\":6,\"7\":7,\"8\":8,\"9\":9}";
    static const char bytes[] = "\0\"\\{}[],:0-e. \n\x80\xff";
    fb_json *value;
    for (size_t cut = 0; cut < sizeof text - 1; cut++) {
        refused(text, cut, "not JSON");
        for (size_t i = 0; i < sizeof bytes - 1; i++) {
            char damaged[sizeof text];
            memcpy(damaged, text, sizeof text);
            damaged[cut] = bytes[i];
            if (parse(damaged, sizeof text - 1, &value, NULL) == FB_OK) fb_json_free(value);
        }
    }
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

static void reals_are_the_nearest(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double value;
    } reals[] = {
#define REAL(number) {"[" #number "]", number}
        REAL(0.1),
        REAL(0.30000000000000004),
        REAL(1e23),
        REAL(8.41e21),
        REAL(9007199254740993.0),
        REAL(9007199254740993.00000000000000000000000000001),
        REAL(2.2250738585072011e-308),
        REAL(2.2250738585072014e-308),
        REAL(5e-324),
        REAL(8.5e-313),
        REAL(1.7976931348623157e308),
        REAL(179769313486231570000e288),
        REAL(0.000001e6),
        REAL(3.14159265358979323846264338327950288419716939937510582097494459),
    };
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        fb_json *value = parsed(reals[i].text);
        assert_true(fb_json_real_of(fb_json_at(value, 0)) == reals[i].value);
        fb_json_free(value);
    }
}

static void numbers_of_any_length(void **state) {
    (void)state;
    enum { DIGITS = 100000 };
    char *text = malloc(DIGITS + 8);
    assert_non_null(text);
    memset(text, '0', DIGITS + 8);
    memcpy(text, "[0.", 3);
    memcpy(text + DIGITS, "1]", 3);
    fb_json *value = parsed(text); /* 0.000…1 */
    assert_true(fb_json_real_of(fb_json_at(value, 0)) == 0);
    fb_json_free(value);
    memset(text + 1, '7', DIGITS);
    refused(text, DIGITS + 2, "too big integer near '777777777777777777777777'");
    free(text);
}

/* Few machines have such a locale, but many can make one. */
static const char *make_locale(const char *dir) {
    char *path = fbt_format("%s/de_DE.UTF-8", dir);
    fbt_process made =
        fbt_process_run((const char *[]){"sh", "-c", "localedef -i de_DE -f UTF-8 \"$0\"", path, NULL}, NULL);
    fbt_process_free(&made);
    free(path);
    setenv("LOCPATH", dir, 1);
    const char *found = setlocale(LC_ALL, "de_DE.UTF-8");
    unsetenv("LOCPATH");
    return found;
}

/* A program may have any locale; a comma in a number is none of the file's. */
static void locale_does_not_matter(void **state) {
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8", "de_DE"};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) found = setlocale(LC_ALL, names[i]);
    char *dir = fbt_dir_create();
    if (!found) found = make_locale(dir);
    fbt_dir_remove(dir);
    if (!found) skip();
    assert_string_equal(localeconv()->decimal_point, ",");
    fb_json *value = parsed("[0.5,1e-7]");
    char text[64];
    fb_json_show(value, text, sizeof text);
    bool same = fb_json_real_of(fb_json_at(value, 0)) == 0.5;
    fb_json_free(value);
    setlocale(LC_ALL, "C");
    assert_true(same);
    assert_string_equal(text, "[0.5,9.9999999999999995e-8]");
}

/* ---- depth and size ------------------------------------------------------------------------------------ */

static char *nested(int depth, const char *open, const char *inner, const char *close) {
    char *text = malloc((size_t)depth * (strlen(open) + strlen(close)) + strlen(inner) + 1), *at = text;
    assert_non_null(text);
    for (int i = 0; i < depth; i++) at = stpcpy(at, open);
    at = stpcpy(at, inner);
    for (int i = 0; i < depth; i++) at = stpcpy(at, close);
    return text;
}

static void nesting_has_a_limit(void **state) {
    (void)state;
    static const struct {
        const char *open, *inner, *close;
        int depth, good;
    } deep[] = {{"[", "", "]", 2048, true},        {"[", "", "]", 2049, false},
                {"[", "1", "]", 2047, true},       {"[", "1", "]", 2048, false},
                {"{\"a\":", "1", "}", 2047, true}, {"{\"a\":", "1", "}", 2048, false},
                {"[", "", "", 1 << 20, false},     {"[{\"a\":", "", "", 1 << 18, false},
                {"[", "", "]", 1 << 20, false}};
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        char *text = nested(deep[i].depth, deep[i].open, deep[i].inner, deep[i].close);
        if (deep[i].good)
            fb_json_free(parsed(text));
        else
            refused(text, strlen(text), "not JSON|depth of more than 2048");
        free(text);
    }
}

static void size_has_a_limit(void **state) {
    (void)state;
    fb_json *value;
    fb_error err;
    assert_ok(fb_json_parse("x.json", "[1, 2]", 6, 6, &value, &err), &err);
    fb_json_free(value);
    assert_refused(fb_json_parse("x.json", "[1, 2]", 6, 5, &value, &err), FB_ERROR_FILE, &err,
                   "x.json: 6 bytes (at most 5)");
    assert_null(value);
    /* Nothing is read before the size is checked. */
    assert_refused(fb_json_parse("x.json", "[1]", (size_t)1 << 40, SIZE_MAX, &value, &err), FB_ERROR_FILE,
                   &err, "x.json: 1099511627776 bytes (at most 1073741824)");
}

/* ---- objects ------------------------------------------------------------------------------------------- */

/* `count` members "key 0", "key 1", …; those from `first` on have the key of the one at `again`. */
static char *object_of(int count, int first, int again) {
    size_t size;
    char *text = NULL;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    for (int i = 0; i < count; i++) {
        fprintf(out, "%s\"key %d\":%d", i ? "," : "{", i < first ? i : again, i);
    }
    fputs("}", out);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void members_by_key_and_in_order(void **state) {
    (void)state;
    for (int count = 1; count < 40; count++) {
        char *text = object_of(count, count, 0), key[16];
        fb_json *object = parsed(text);
        const fb_json *value = fb_json_first(object);
        assert_int_equal(fb_json_size(object), count);
        for (int i = 0; i < count; i++, value = fb_json_next(value)) {
            snprintf(key, sizeof key, "key %d", i);
            assert_string_equal(fb_json_key(value), key);
            assert_int_equal(fb_json_int_of(value), i);
            assert_ptr_equal(fb_json_get(object, key), value);
        }
        assert_null(value);
        assert_null(fb_json_get(object, "key"));
        assert_null(fb_json_get(object, ""));
        assert_null(fb_json_get(object, "key 99"));
        fb_json_free(object);
        free(text);
        for (int again = 0; again < count - 1; again++) {
            text = object_of(count, count - 1, again);
            refused(text, strlen(text), "duplicate");
            free(text);
        }
    }
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Ten million bytes of keys, which a search for each would take hours to compare; and as many of one key. */
static void many_members_in_time(void **state) {
    (void)state;
    enum { MANY = FBT_SANITIZED ? 100000 : 600000 };
    double begin = seconds();
    char *text = object_of(MANY, MANY, 0);
    fb_json *object = parsed(text);
    for (int i = 0; i < MANY; i++) {
        char key[16];
        snprintf(key, sizeof key, "key %d", i);
        assert_int_equal(fb_json_int_of(fb_json_get(object, key)), i);
    }
    fb_json_free(object);
    free(text);
    text = object_of(MANY, MANY - 1, 5);
    char *words = fbt_format("duplicate object key|line 1, column %zu",
                             strlen(text) - strlen("\"key 5\":") - (MANY == 100000 ? 5 : 6));
    refused(text, strlen(text), words);
    free(words);
    free(text);
    text = object_of(MANY, 0, 7);
    refused(text, strlen(text), "duplicate object key|line 1, column 12");
    free(text);
    assert_true(seconds() - begin < 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_json_is_accepted),
        cmocka_unit_test(the_rest_is_refused),
        cmocka_unit_test(damage_anywhere),
        cmocka_unit_test(reals_are_the_nearest),
        cmocka_unit_test(numbers_of_any_length),
        cmocka_unit_test(locale_does_not_matter),
        cmocka_unit_test(nesting_has_a_limit),
        cmocka_unit_test(size_has_a_limit),
        cmocka_unit_test(members_by_key_and_in_order),
        cmocka_unit_test(many_members_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
