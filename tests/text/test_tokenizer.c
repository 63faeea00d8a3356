/* Encoding, decoding and streaming against what Hugging Face `tokenizers` gave
 * (tests/data/tokenizer/make_cases.py). */
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "file/json.h"
#include "support/support.h"

#define DATA "tests/data/tokenizer/"

static fb_tokenizer *open_tokenizer(const char *path) {
    fb_error err = {0};
    fb_tokenizer *tokenizer;
    if (fb_tokenizer_open(path, &tokenizer, &err) != FB_OK) fail_msg("%s", err.message);
    return tokenizer;
}

static fb_tokenizer *open_style(const char *name) {
    char path[128];
    snprintf(path, sizeof path, DATA "%s.json", name);
    return open_tokenizer(path);
}

static fb_json *load_cases(const char *path) {
    fb_json *cases;
    fb_error err;
    size_t size;
    char *text = fbt_file_read(path, &size);
    assert_ok(fb_json_parse(path, text, size, 1 << 24, &cases, &err), &err);
    assert_true(fb_json_is(cases, FB_JSON_ARRAY));
    free(text);
    return cases;
}

/* ---- the comparison ------------------------------------------------------------------------------------ */

static void expect_ids(const fb_tokenizer *tokenizer, const fb_json *text, bool special,
                       const fb_json *expected) {
    fb_error err = {0};
    int32_t *ids;
    int64_t count;
    fb_status status = fb_tokenizer_encode(tokenizer, fb_json_text_of(text), fb_json_size(text), special,
                                           &ids, &count, &err);
    if (status != FB_OK) fail_msg("%s", err.message);
    if (count != (int64_t)fb_json_size(expected))
        fail_msg("\"%s\": %lld ids, expected %zu", fb_json_text_of(text), (long long)count,
                 fb_json_size(expected));
    const fb_json *id = fb_json_first(expected);
    for (int64_t i = 0; i < count; i++, id = fb_json_next(id))
        if (ids[i] != fb_json_int_of(id))
            fail_msg("\"%s\": ids[%lld] is %d, expected %lld", fb_json_text_of(text), (long long)i,
                     (int)ids[i], (long long)fb_json_int_of(id));
    fb_free(ids);
}

static void expect_text(const fb_tokenizer *tokenizer, const int32_t *ids, int64_t count, bool special,
                        const fb_json *expected) {
    fb_error err = {0};
    char *text;
    size_t bytes;
    if (fb_tokenizer_decode(tokenizer, ids, count, special, &text, &bytes, &err) != FB_OK)
        fail_msg("%s", err.message);
    if (bytes != fb_json_size(expected) || memcmp(text, fb_json_text_of(expected), bytes) != 0)
        fail_msg("decoded \"%s\", expected \"%s\"", text, fb_json_text_of(expected));
    assert_int_equal(text[bytes], 0);
    fb_free(text);
}

/* No piece may end inside a character, and all together are the text. */
static void expect_stream(fb_text_stream *stream, const int32_t *ids, int64_t count,
                          const fb_json *expected) {
    const char *whole = fb_json_text_of(expected);
    size_t at = 0;
    for (int64_t i = 0; i <= count; i++) {
        fb_error err = {0};
        const char *piece;
        size_t bytes;
        fb_status status = i < count ? fb_text_push(stream, ids[i], &piece, &bytes, &err)
                                     : fb_text_flush(stream, &piece, &bytes, &err);
        if (status != FB_OK) fail_msg("%s", err.message);
        assert_int_equal(piece[bytes], 0);
        assert_true(bytes <= fb_json_size(expected) - at);
        assert_memory_equal(piece, whole + at, bytes);
        at += bytes;
        assert_int_not_equal((unsigned char)whole[at] & 0xC0, 0x80);
    }
    assert_int_equal(at, fb_json_size(expected));
}

static void check_case(const fb_tokenizer *tokenizer, fb_text_stream *stream, const fb_json *item) {
    const fb_json *text = fb_json_get(item, "text"), *plain_ids = fb_json_get(item, "plain_ids");
    const fb_json *expected = fb_json_get(item, "ids"), *plain = fb_json_get(item, "plain_decoded");
    assert_true(fb_json_is(expected, FB_JSON_ARRAY));
    if (text) expect_ids(tokenizer, text, true, expected);
    if (plain_ids) expect_ids(tokenizer, text, false, plain_ids);

    int64_t count = (int64_t)fb_json_size(expected);
    int32_t *ids = calloc((size_t)count + 1, sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)fb_json_int_of(fb_json_at(expected, (size_t)i));
    expect_text(tokenizer, ids, count, true, fb_json_get(item, "decoded"));
    if (plain) expect_text(tokenizer, ids, count, false, plain);
    if (plain) expect_stream(stream, ids, count, plain);
    free(ids);
}

static void check_cases(const char *tokenizer_path, const char *cases_path, size_t at_least) {
    fb_tokenizer *tokenizer = open_tokenizer(tokenizer_path);
    fb_text_stream *stream;
    assert_int_equal(fb_tokenizer_stream(tokenizer, &stream, NULL), FB_OK);
    fb_json *cases = load_cases(cases_path);
    assert_true(fb_json_size(cases) >= at_least);
    for (size_t i = 0; i < fb_json_size(cases); i++) check_case(tokenizer, stream, fb_json_at(cases, i));
    fb_json_free(cases);
    fb_text_free(stream);
    fb_tokenizer_free(tokenizer);
}

static void test_storyteller(void **state) {
    (void)state;
    check_cases("models/storyteller/tokenizer.json", DATA "storyteller_cases.json", 16);
}

static void test_style(void **state) {
    char tokenizer[128], cases[128];
    snprintf(tokenizer, sizeof tokenizer, DATA "%s.json", (const char *)*state);
    snprintf(cases, sizeof cases, DATA "%s.cases.json", (const char *)*state);
    check_cases(tokenizer, cases, 80);
}

/* ---- bytes that are not UTF-8 -------------------------------------------------------------------------- */

static void test_invalid_utf8(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *same_as;
    } cases[] = {
        {"a\xFFz", "a\uFFFDz"},
        {"\xC3", "\uFFFD"},
        {"\xE2\x82", "\uFFFD"},
        {"\xE2\x82\xE2\x82\xAC", "\uFFFD\u20AC"},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xF0\x9F\x99 \xF4\x90\x80\x80", "\uFFFD \uFFFD\uFFFD\uFFFD\uFFFD"},
        {"\xC0\xAF\xFE", "\uFFFD\uFFFD\uFFFD"},
    };
    fb_tokenizer *tokenizer = open_style("qwen2");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *ids, *same;
        int64_t count, same_count;
        assert_int_equal(
            fb_tokenizer_encode(tokenizer, cases[i].bytes, strlen(cases[i].bytes), true, &ids, &count, NULL),
            FB_OK);
        assert_int_equal(fb_tokenizer_encode(tokenizer, cases[i].same_as, strlen(cases[i].same_as), true,
                                             &same, &same_count, NULL),
                         FB_OK);
        assert_int_equal(count, same_count);
        assert_memory_equal(ids, same, (size_t)count * sizeof *ids);
        fb_free(ids);
        fb_free(same);
    }
    fb_tokenizer_free(tokenizer);
}

/* ---- ids that do not exist ----------------------------------------------------------------------------- */

static void test_bad_ids(void **state) {
    (void)state;
    fb_tokenizer *tokenizer = open_style("gpt2");
    fb_text_stream *stream;
    assert_int_equal(fb_tokenizer_stream(tokenizer, &stream, NULL), FB_OK);
    const int32_t bad[] = {-1, INT32_MIN, INT32_MAX, (int32_t)fb_tokenizer_vocab(tokenizer)};
    for (size_t i = 0; i < 4; i++) {
        fb_error err = {0};
        char *text = (char *)1, value[32];
        const char *piece = "";
        size_t bytes = 1;
        assert_int_equal(fb_tokenizer_decode(tokenizer, &bad[i], 1, false, &text, &bytes, &err),
                         FB_ERROR_USAGE);
        assert_null(text);
        assert_int_equal(bytes, 0);
        snprintf(value, sizeof value, "%d", (int)bad[i]);
        assert_non_null(strstr(err.message, value));
        assert_non_null(strstr(err.message, "(0 to 486)"));
        assert_int_equal(fb_text_push(stream, bad[i], &piece, &bytes, &err), FB_ERROR_USAGE);
        assert_null(piece);
    }
    fb_text_free(stream);
    fb_tokenizer_free(tokenizer);
}

/* ---- streaming ----------------------------------------------------------------------------------------- */

/* The euro sign as three tokens of one byte each: nothing, nothing, all of it. */
static void test_stream_waits(void **state) {
    (void)state;
    fb_tokenizer *tokenizer = open_style("gpt2");
    fb_text_stream *stream;
    int32_t *ids;
    int64_t count;
    const char *piece;
    size_t bytes;
    assert_int_equal(fb_tokenizer_encode(tokenizer, "\u20AC", 3, false, &ids, &count, NULL), FB_OK);
    assert_int_equal(count, 3);
    assert_int_equal(fb_tokenizer_stream(tokenizer, &stream, NULL), FB_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fb_text_push(stream, ids[i], &piece, &bytes, NULL), FB_OK);
        assert_int_equal(bytes, i == 2 ? 3 : 0);
    }
    assert_string_equal(piece, "\u20AC");
    assert_int_equal(fb_text_push(stream, ids[0], &piece, &bytes, NULL), FB_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(fb_text_flush(stream, &piece, &bytes, NULL), FB_OK);
    assert_string_equal(piece, "\uFFFD");
    assert_int_equal(fb_text_flush(stream, &piece, &bytes, NULL), FB_OK);
    assert_int_equal(bytes, 0);
    fb_free(ids);
    fb_text_free(stream);
    fb_tokenizer_free(tokenizer);
}

/* ---- time ---------------------------------------------------------------------------------------------- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* About 200 KB of `unit` again and again. Twice that may take at most three times as long (and a little
 * noise). */
static void check_speed(const fb_tokenizer *tokenizer, const char *unit) {
    size_t length = strlen(unit), bytes = 400000 / length * length;
    char *text = malloc(bytes);
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i += length) memcpy(text + i, unit, length);
    double taken[2];
    for (int i = 0; i < 2; i++) {
        int32_t *ids;
        int64_t count;
        double start = seconds();
        assert_int_equal(fb_tokenizer_encode(tokenizer, text, i ? bytes : bytes / 2 / length * length, true,
                                             &ids, &count, NULL),
                         FB_OK);
        taken[i] = seconds() - start;
        fb_free(ids);
    }
    free(text);
    double limit = FBT_SANITIZED ? 2.0 : 0.2;
    if (taken[0] > limit || taken[1] > 3 * taken[0] + limit / 2)
        fail_msg("\"%.20s\": %.3f s, twice as much: %.3f s (at most %.1f s)", unit, taken[0], taken[1],
                 limit);
}

static void test_speed(void **state) {
    (void)state;
    static const char *const units[] = {
        "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals, when it "
        "was checked "
        "by a violent gust of wind which swept up the streets (for it is in London that our scene lies).\n",
        "a",
        " ",
        "\n ",
        "ab",
        "\u0323\u0301\u0323",
        "<|endoftext|",
        "'s",
        "1",
        "\U0001F642",
        "\xFF",
        "<longe",
    };
    static const char *const styles[] = {"gpt2", "llama3", "qwen2", "llama2", "metaspace", "storyteller"};
    for (size_t s = 0; s < sizeof styles / sizeof *styles; s++) {
        fb_tokenizer *tokenizer = strcmp(styles[s], "storyteller") == 0
                                      ? open_tokenizer("models/storyteller/tokenizer.json")
                                      : open_style(styles[s]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) check_speed(tokenizer, units[u]);
        fb_tokenizer_free(tokenizer);
    }
}

/* ---- one tokenizer, many threads ----------------------------------------------------------------------- */

static void *encode_often(void *argument) {
    const fb_tokenizer *tokenizer = argument;
    static const char text[] = "It's 1234 o'clock \u2014 caf\u00e9 e\u0301 \U0001F642 <|im_start|>  x\n\n";
    uintptr_t sum = 0;
    for (int i = 0; i < 200; i++) {
        int32_t *ids;
        int64_t count;
        if (fb_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &ids, &count, NULL) != FB_OK)
            return NULL;
        for (int64_t k = 0; k < count; k++) sum = sum * 31 + (uintptr_t)ids[k];
        fb_free(ids);
    }
    return (void *)(sum | 1);
}

static void test_threads(void **state) {
    (void)state;
    fb_tokenizer *tokenizer = open_style("qwen2");
    pthread_t threads[4];
    void *expected = encode_often(tokenizer), *sum;
    assert_non_null(expected);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, tokenizer), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], &sum), 0);
        assert_ptr_equal(sum, expected);
    }
    fb_tokenizer_free(tokenizer);
}

int main(void) {
    static char gpt2[] = "gpt2", prefix[] = "prefix", llama3[] = "llama3", qwen2[] = "qwen2",
                llama2[] = "llama2", metaspace[] = "metaspace";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_storyteller),
        {"test_gpt2", test_style, NULL, NULL, gpt2},
        {"test_prefix", test_style, NULL, NULL, prefix},
        {"test_llama3", test_style, NULL, NULL, llama3},
        {"test_qwen2", test_style, NULL, NULL, qwen2},
        {"test_llama2", test_style, NULL, NULL, llama2},
        {"test_metaspace", test_style, NULL, NULL, metaspace},
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_bad_ids),
        cmocka_unit_test(test_stream_waits),
        cmocka_unit_test(test_speed),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
