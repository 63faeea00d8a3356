/* The tests' own tools: a guard that does not notice proves nothing. */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void guard_notices(void **state) {
    (void)state;
    for (size_t offset = 0; offset < 64; offset += 7) {
        fbt_guard guard = fbt_guard_create(40, offset);
        uint8_t *data = guard.data;
        assert_int_equal((uintptr_t)data % 64, offset);
        assert_true(fbt_guard_intact(&guard));
        assert_int_equal(fbt_count_nan(guard.data, 10), 10);
        memset(data, 0, 40);
        assert_true(fbt_guard_intact(&guard));
        static const int strays[] = {-1000, -32, -1, 40, 41, 72, 1000};
        for (size_t i = 0; i < sizeof strays / sizeof *strays; i++) {
            uint8_t before = data[strays[i]];
            data[strays[i]] = 0;
            assert_false(fbt_guard_intact(&guard));
            data[strays[i]] = 0xff;
            assert_false(fbt_guard_intact(&guard));
            data[strays[i]] = before;
        }
        fbt_guard_free(&guard);
    }
}

static void random_repeats(void **state) {
    (void)state;
    fbt_random a = {7}, b = {7}, c = {8};
    double mean = 0, square = 0;
    for (int i = 0; i < 10000; i++) {
        uint64_t bits = fbt_random_bits(&a);
        assert_true(bits == fbt_random_bits(&b) && bits != fbt_random_bits(&c));
        double x = fbt_random_normal(&a);
        mean += x / 10000;
        square += x * x / 10000;
        fbt_random_normal(&b);
        int64_t n = fbt_random_below(&c, 3);
        assert_true(n >= 0 && n < 3);
        double u = fbt_random_uniform(&c, -2, 5);
        assert_true(u >= -2 && u < 5);
    }
    assert_true(fabs(mean) < 0.05 && fabs(square - 1) < 0.05);
}

static void process_is_heard(void **state) {
    (void)state;
    fbt_process p = fbt_process_run((const char *[]){"sh", "-c", "cat; echo no >&2; exit 3", NULL}, "in\n");
    assert_int_equal(p.status, 3);
    assert_string_equal(p.out, "in\n");
    assert_string_equal(p.err, "no\n");
    assert_int_equal(p.out_size, 3);
    fbt_process_free(&p);
    p = fbt_process_run((const char *[]){"sh", "-c", "kill -9 $$", NULL}, NULL);
    assert_int_equal(p.status, 128 + 9);
    assert_int_equal(p.err_size, 0);
    fbt_process_free(&p);
}

static void directory_goes_away(void **state) {
    (void)state;
    char *dir = fbt_dir_from_golden("gpt2"), *name = fbt_format("%s", dir),
         *path = fbt_format("%s/config.json", dir);
    fbt_json_set(path, "vocab_size", "7");
    fbt_json_set(path, "n_inner", NULL);
    char *text = fbt_file_read(path, NULL);
    assert_non_null(strstr(text, "\"vocab_size\": 7"));
    assert_null(strstr(text, "n_inner"));
    free(text);
    fbt_dir_remove(dir);
    assert_int_not_equal(access(name, F_OK), 0);
    free(path);
    free(name);
}

static void json_is_edited(void **state) {
    (void)state;
    static const struct {
        const char *text, *key, *json, *edited;
    } edits[] = {
        {"{\"a\": 1, \"b\": 2}", "a", "[3, {}]", "{\"a\": [3, {}], \"b\": 2}"},
        {"{\"a\": 1, \"b\": 2}", "c", "null", "{\"a\": 1, \"b\": 2, \"c\": null}"},
        {"{ }", "a", "1", "{\"a\": 1 }"},
        {"{\"a\": 1, \"b\": 2}", "a", NULL, "{ \"b\": 2}"},
        {"{\"a\": 1,\n\"b\": 2}", "b", NULL, "{\"a\": 1}"},
        {"{\"a\": \"}\\\"\"}", "a", NULL, "{}"},
        {"{\"a\": {\"b\": {\"c\": 1}}, \"c\": 2}", "a.b.c", "3", "{\"a\": {\"b\": {\"c\": 3}}, \"c\": 2}"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *edited = fbt_json_with(edits[i].text, edits[i].key, edits[i].json);
        assert_string_equal(edited, edits[i].edited);
        free(edited);
    }
    char *merged = fbt_json_merge("{\"a\": 1, \"b\": 2}", "{\"b\": null, \"c\": [4], \"d\": null}");
    assert_string_equal(merged, "{\"a\": 1, \"c\": [4]}");
    free(merged);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guard_notices),    cmocka_unit_test(random_repeats),
        cmocka_unit_test(process_is_heard), cmocka_unit_test(directory_goes_away),
        cmocka_unit_test(json_is_edited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
