/* How far words are from each other, and which one was meant. */
#include "cli/nearest.h"

#include <limits.h>
#include <string.h>

#include "support/support.h"

static int distance(const char *a, const char *b) { return cli_distance(a, strlen(a), b, strlen(b)); }

static void distances(void **state) {
    (void)state;
    assert_int_equal(distance("", ""), 0);
    assert_int_equal(distance("", "abc"), 3);
    assert_int_equal(distance("abc", ""), 3);
    assert_int_equal(distance("seed", "seed"), 0);
    assert_int_equal(distance("sed", "seed"), 1);   /* one more */
    assert_int_equal(distance("seeed", "seed"), 1); /* one less */
    assert_int_equal(distance("sead", "seed"), 1);  /* another one */
    assert_int_equal(distance("sede", "seed"), 1);  /* neighbours swapped */
    assert_int_equal(distance("kitten", "sitting"), 3);
    assert_int_equal(distance("ab", "ba"), 1);
    assert_int_equal(distance("abcdef", "badcfe"), 3);
    char longest[34];
    memset(longest, 'x', 33);
    assert_int_equal(cli_distance(longest, 32, longest, 32), 0);
    assert_int_equal(cli_distance(longest, 33, longest, 33), INT_MAX);
}

static const char *nearest(const char *word) {
    static const char *const words[] = {"temp", "tokens", "top-k", "top-p", "repeat-penalty", "seed", "run"};
    cli_nearest n = {.word = word, .bytes = strlen(word)};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) cli_nearest_offer(&n, words[i], words[i]);
    return n.meaning ? n.meaning : "none";
}

static void the_nearest_word(void **state) {
    (void)state;
    assert_string_equal(nearest("tepm"), "temp");
    assert_string_equal(nearest("tokns"), "tokens");
    assert_string_equal(nearest("top-kk"), "top-k");
    assert_string_equal(nearest("repeat"), "repeat-penalty"); /* a beginning */
    assert_string_equal(nearest("rnu"), "run");
    assert_string_equal(nearest("se"), "none"); /* too little to say */
    assert_string_equal(nearest(""), "none");
    assert_string_equal(nearest("walk"), "none");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(distances), cmocka_unit_test(the_nearest_word)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
