/* The steps that split patterns take: patterns that go over a text again and again are stopped, published
 * ones stay far below the limit on every text. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/support.h"
#include "text/gguf_pre.h"
#include "text/pattern.h"

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static fb_pattern *compile(const char *source) {
    fb_error err = {0};
    fb_pattern *pattern;
    assert_ok(fb_pattern_compile("t", source, (int64_t)strlen(source), false, &pattern, &err), &err);
    return pattern;
}

static char *repeat(const char *unit, size_t *size) {
    size_t length = strlen(unit);
    *size = *size / length * length;
    char *text = malloc(*size);
    assert_non_null(text);
    for (size_t i = 0; i < *size; i += length) memcpy(text + i, unit, length);
    return text;
}

/* ---- patterns made to be slow ---------------------------------------------------------------------------
 */

/* A megabyte of `unit` is refused, and soon. */
static void check_expensive(const char *source, const char *unit) {
    size_t size = 1000000;
    char *text = repeat(unit, &size);
    fb_pattern *pattern = compile(source);
    fb_pattern_work work = {0};
    fb_spans spans = {0};
    fb_error err = {0};
    double start = seconds();
    fb_status status = fb_pattern_split(pattern, &work, text, (int64_t)size, 0, &spans, &err);
    double taken = seconds() - start;
    assert_refused(status, FB_ERROR_UNSUPPORTED, &err,
                   "split pattern|too expensive for this text|at most 24");
    if (taken > (FBT_SANITIZED ? 30 : 8)) fail_msg("%s: %.1f s", source, taken);
    fb_spans_free(&spans);
    fb_pattern_work_free(&work);
    fb_pattern_free(pattern);
    free(text);
}

static void test_expensive(void **state) {
    (void)state;
    check_expensive("a*b|.", "a");
    check_expensive("a*[bc]", "a"); /* one match that starts everywhere */
    check_expensive("(?=a*+b)a|.", "a");
    check_expensive("(?:a|b){1,99}x|.", "a");
    check_expensive("[^b]*?b|.", "a");
    check_expensive("(?<=a{30000})b|.", "a"); /* goes back before the first item of it */
    check_expensive("a{60000}b|.", "a");
    if (!fbt_passes_over(2)) check_expensive("[\u0400\u0402\u0404\u0406\u0408\u040a]*x|.", "\u0406");
}

/* Every character of a class is compared: one of 4,000 may not take the time of 4,000 steps. */
static void test_large_class(void **state) {
    (void)state;
    fb_bytes source = {0};
    assert_int_equal(fb_bytes_append(&source, "[", 1, NULL), FB_OK);
    for (int i = 0; i < 4000; i++) {
        int code = 0x3400 + 2 * i;
        char utf8[3] = {(char)(0xE0 | code >> 12), (char)(0x80 | (code >> 6 & 0x3F)),
                        (char)(0x80 | (code & 0x3F))};
        assert_int_equal(fb_bytes_append(&source, utf8, 3, NULL), FB_OK);
    }
    assert_int_equal(fb_bytes_append(&source, "]+x|.", 6, NULL), FB_OK);
    check_expensive(source.data, "\u533e");
    fb_bytes_free(&source);
}

/* Many parts of a text have one limit. */
static void test_parts(void **state) {
    (void)state;
    fb_pattern *pattern = compile("a*b|.");
    fb_pattern_work work = {0};
    fb_spans spans = {0};
    fb_error err = {0};
    size_t size = 2000; /* 4e6 steps */
    char *text = repeat("a", &size);
    int parts = 0;
    fb_pattern_work_start(&work, 100 * (int64_t)size);
    while (parts < 100 && fb_pattern_split(pattern, &work, text, (int64_t)size, 0, &spans, &err) == FB_OK)
        parts++;
    assert_in_range(parts, 10, 25);
    assert_refused(FB_ERROR_UNSUPPORTED, FB_ERROR_UNSUPPORTED, &err, "a*b|too expensive|at most 88400000");
    fb_spans_free(&spans);
    fb_pattern_work_free(&work);
    fb_pattern_free(pattern);
    free(text);
}

/* ---- published patterns ---------------------------------------------------------------------------------
 */

/* A known pattern, whose steps are not counted, cuts a text in the same places. */
static void compare_spans(const char *source, const char *text, size_t size, const fb_spans *expected) {
    fb_pattern *pattern = compile(source);
    fb_pattern_work work = {0};
    fb_spans spans = {0};
    assert_int_equal(fb_pattern_split(pattern, &work, text, (int64_t)size, 0, &spans, NULL), FB_OK);
    assert_int_equal(spans.size, expected->size);
    assert_memory_equal(spans.data, expected->data, (size_t)spans.size * sizeof *spans.data);
    fb_spans_free(&spans);
    fb_pattern_work_free(&work);
    fb_pattern_free(pattern);
}

/* Steps for each byte; in a group, so that the pattern is not known and its steps are counted. */
static double count_steps(const char *source, const char *text, size_t size) {
    char *group = fbt_format("(?:%s)", source);
    fb_pattern *pattern = compile(group);
    fb_pattern_work work = {0};
    fb_spans spans = {0};
    fb_error err = {0};
    fb_pattern_work_start(&work, (int64_t)size);
    assert_ok(fb_pattern_split(pattern, &work, text, (int64_t)size, 0, &spans, &err), &err);
    double steps = (double)work.steps / (double)size;
    compare_spans(source, text, size, &spans);
    fb_spans_free(&spans);
    fb_pattern_work_free(&work);
    fb_pattern_free(pattern);
    free(group);
    return steps;
}

static const char *const published[] = {"default", "gpt-2", "smollm", "llama-bpe", "qwen2", "falcon"};

static double most_steps(const char *text, size_t size) {
    double most = 0;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        double steps = 0; /* of all its patterns, one after the other */
        for (const char *const *source = fb_gguf_pre_find(published[i])->patterns; *source; source++) {
            assert_true(fb_gguf_pre_has(*source));
            steps += count_steps(*source, text, size);
        }
        if (steps > most) most = steps;
    }
    return most;
}

/* An English book. Each pattern of a list sees all of it; a list has up to four. */
static void test_published_on_a_book(void **state) {
    (void)state;
    size_t size;
    char *book = fbt_file_read("tests/data/oz_book.txt", &size);
    double steps = most_steps(book, size);
    print_message("at most %.1f steps for each byte of English (limit: %d)\n", steps,
                  FB_PATTERN_STEPS_PER_BYTE);
    assert_true(steps < FB_PATTERN_STEPS_PER_BYTE / 6.0);
    assert_true(count_steps(*fb_gguf_pre_find("gpt-2")->patterns, book, size) <
                FB_PATTERN_STEPS_PER_BYTE / 16.0);
    assert_true(count_steps(*fb_gguf_pre_find("qwen2")->patterns, book, size) <
                FB_PATTERN_STEPS_PER_BYTE / 24.0);
    free(book);
}

/* What no pattern of them may do is go over a run again and again: 50,000 bytes would be 50,000 steps each.
 */
static void test_published_on_runs(void **state) {
    (void)state;
    static const char *const units[] = {" ",   "a",    "A",  "1",       "'",         "\n", "\r\n",
                                        " \n", "\n  ", "'s", "\u4e00",  "a ",        "- ", "a1 ",
                                        "'l",  "_\n",  "\t", "e\u0301", "\U0001F642"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t size = 50000;
        char *text = repeat(units[u], &size);
        double steps = most_steps(text, size);
        if (steps > FB_PATTERN_STEPS_PER_BYTE / 2.0)
            fail_msg("\"%s\": %.1f steps for each byte", units[u], steps);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expensive),
        cmocka_unit_test(test_large_class),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_published_on_a_book),
        cmocka_unit_test(test_published_on_runs),
    };
    return cmocka_run_group_tests_name("pattern_steps", tests, NULL, NULL);
}
