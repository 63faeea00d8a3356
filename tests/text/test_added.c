/* Added tokens: the automaton against a search that tries every token at every place, and its time. */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/support.h"
#include "text/unicode.h"
#include "text/utf8.h"

#define TOKENS 12

typedef struct plain_token {
    char text[64];
    int64_t size;
    fb_added_token token;
} plain_token;

/* ---- the plain search -----------------------------------------------------------------------------------
 */

static bool is_space_at(const char *text, int64_t size, int64_t at, int *length) {
    fb_utf8_char c = fb_utf8_read(text + at, size - at);
    *length = c.size;
    return fb_unicode_is_space(c.code);
}

static int64_t char_start_before(const char *text, int64_t at) {
    do at--;
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80);
    return at;
}

static bool is_word_at(const char *text, int64_t size, int64_t at) {
    return fb_unicode_is_word(fb_utf8_read(text + at, size - at).code);
}

/* The longest token at `at`, the first of equal ones; -1: none. */
static int longest_at(const plain_token *tokens, int count, const char *text, int64_t size, int64_t at) {
    int best = -1;
    for (int i = 0; i < count; i++)
        if (tokens[i].size <= size - at && memcmp(text + at, tokens[i].text, (size_t)tokens[i].size) == 0 &&
            (best < 0 || tokens[i].size > tokens[best].size))
            best = i;
    return best;
}

static void put(fb_part *parts, int64_t *count, fb_span span, int32_t id) {
    if (id < 0 && span.start >= span.end) return;
    parts[(*count)++] = (fb_part){span, id};
}

static int64_t cut_plainly(const plain_token *tokens, int count, const char *text, int64_t size,
                           fb_part *parts) {
    int64_t parts_count = 0, done = 0;
    for (int64_t at = 0; at < size;) {
        int index = longest_at(tokens, count, text, size, at), length;
        if (index < 0) {
            at++;
            continue;
        }
        const fb_added_token *token = &tokens[index].token;
        fb_span span = {at, at + tokens[index].size};
        at = span.end;
        if (token->single_word && span.start > 0 &&
            is_word_at(text, size, char_start_before(text, span.start)))
            continue;
        if (token->single_word && span.end < size && is_word_at(text, size, span.end)) continue;
        if (token->lstrip) {
            while (span.start > done && is_space_at(text, size, char_start_before(text, span.start), &length))
                span.start = char_start_before(text, span.start);
            if (span.start < done) span.start = done;
        }
        if (token->rstrip)
            while (span.end < size && is_space_at(text, size, span.end, &length)) span.end += length;
        put(parts, &parts_count, (fb_span){done, span.start}, -1);
        put(parts, &parts_count, span, token->id);
        done = span.end;
    }
    put(parts, &parts_count, (fb_span){done, size}, -1);
    return parts_count;
}

/* ---- the comparison -------------------------------------------------------------------------------------
 */

/* Few letters, so that tokens start, end and hold one another. */
static int64_t make_text(fbt_random *random, char *text, int64_t chars) {
    static const char *const letters[] = {"a", "b", "a", "b", " ", "\t", "-", "\u00e9", "\u3000"};
    int64_t size = 0;
    for (int64_t i = 0; i < chars; i++) {
        const char *letter = letters[fbt_random_below(random, 9)];
        memcpy(text + size, letter, strlen(letter));
        size += (int64_t)strlen(letter);
    }
    return size;
}

static void compare_once(fbt_random *random) {
    plain_token tokens[TOKENS];
    fb_added added = {0};
    fb_error err = {0};
    int count = (int)fbt_random_below(random, TOKENS + 1);
    for (int i = 0; i < count; i++) {
        plain_token *token = &tokens[i];
        uint64_t bits = fbt_random_bits(random);
        token->size = make_text(random, token->text, 1 + fbt_random_below(random, 5));
        token->token = (fb_added_token){.id = i};
        token->token.single_word = (bits & 7) == 0;
        token->token.lstrip = (bits >> 3 & 3) == 0;
        token->token.rstrip = (bits >> 5 & 3) == 0;
        assert_ok(fb_added_insert(&added, token->token, token->text, token->size, &err), &err);
    }
    assert_ok(fb_added_build(&added, &err), &err);
    fb_parts parts = {0};
    for (int round = 0; round < 5; round++) {
        char text[256];
        fb_part expected[512];
        int64_t size = make_text(random, text, fbt_random_below(random, 60));
        int64_t wanted = cut_plainly(tokens, count, text, size, expected);
        assert_ok(fb_added_cut(&added, text, size, &parts, &err), &err);
        assert_int_equal(parts.size, wanted);
        for (int64_t i = 0; i < wanted; i++) {
            assert_int_equal(parts.data[i].id, expected[i].id);
            assert_int_equal(parts.data[i].span.start, expected[i].span.start);
            assert_int_equal(parts.data[i].span.end, expected[i].span.end);
        }
    }
    fb_parts_free(&parts);
    fb_added_free(&added);
}

static void test_random(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(7);
    for (int i = 0; i < (FBT_SANITIZED ? 2000 : 20000); i++) compare_once(&random);
}

/* ---- time -----------------------------------------------------------------------------------------------
 */

static double cut_seconds(const fb_added *added, const char *text, int64_t size) {
    struct timespec start, end;
    fb_parts parts = {0};
    fb_error err = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    assert_ok(fb_added_cut(added, text, size, &parts, &err), &err);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    fb_parts_free(&parts);
    return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}

/* Twice as much text may take at most three times as long (and a little noise). */
static void check_time(fb_added *added, char letter) {
    enum { SIZE = 1 << 20 };
    fb_error err = {0};
    char *text = malloc(SIZE);
    assert_non_null(text);
    memset(text, letter, SIZE);
    assert_ok(fb_added_build(added, &err), &err);
    double limit = FBT_SANITIZED ? 3.0 : 0.3;
    double half = cut_seconds(added, text, SIZE / 2), whole = cut_seconds(added, text, SIZE);
    if (half > limit || whole > 3 * half + limit / 2)
        fail_msg("%.3f s, twice as much: %.3f s (at most %.1f s)", half, whole, limit);
    free(text);
    fb_added_free(added);
}

static void insert_run(fb_added *added, fb_added_token token, char letter, int64_t size, const char *end) {
    fb_error err = {0};
    char *text = malloc((size_t)size + strlen(end));
    assert_non_null(text);
    memset(text, letter, (size_t)size);
    memcpy(text + size, end, strlen(end));
    assert_ok(fb_added_insert(added, token, text, size + (int64_t)strlen(end), &err), &err);
    free(text);
}

static void test_long_tokens(void **state) {
    (void)state;
    fb_added added = {0};
    insert_run(&added, (fb_added_token){.id = 0}, 'a', 20000, "b"); /* starts everywhere, ends nowhere */
    check_time(&added, 'a');
    insert_run(&added, (fb_added_token){.id = 0}, 'a', 1, "");
    insert_run(&added, (fb_added_token){.id = 1}, 'a', 20000, "b");
    check_time(&added, 'a');
    for (int i = 1; i <= 200; i++)
        insert_run(&added, (fb_added_token){.id = i}, 'a', 100 * i, i % 2 ? "b" : "");
    check_time(&added, 'a');
    insert_run(&added, (fb_added_token){.id = 0, .single_word = true}, 'a', 2, "");
    check_time(&added, 'a');
}

static void test_stripped_space(void **state) {
    (void)state;
    fb_added added = {0};
    insert_run(&added, (fb_added_token){.id = 0, .rstrip = true}, ' ', 1, "");
    check_time(&added, ' ');
    insert_run(&added, (fb_added_token){.id = 0, .lstrip = true}, ' ', 1, "");
    check_time(&added, ' ');
    insert_run(&added, (fb_added_token){.id = 0, .lstrip = true, .rstrip = true}, ' ', 3, "");
    check_time(&added, ' ');
}

static void test_limit(void **state) {
    (void)state;
    fb_added added = {0};
    fb_error err = {0};
    insert_run(&added, (fb_added_token){.id = 0}, 'a', FB_ADDED_LIMIT, "");
    assert_refused(fb_added_insert(&added, (fb_added_token){.id = 1}, "b", 1, &err), FB_ERROR_FILE, &err,
                   "added tokens|4194305 bytes|at most 4194304");
    check_time(&added, 'a');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_long_tokens),
        cmocka_unit_test(test_stripped_space),
        cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests_name("added", tests, NULL, NULL);
}
