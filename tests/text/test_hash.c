/* Keyed hashes: a part's follows from those of two beginnings, and no two keys agree on what collides. */
#include "text/hash.h"

#include <string.h>

#include "support/support.h"

static void test_parts(void **state) {
    (void)state;
    static const char text[] = "It was a dark and stormy night\xff\x00\x7f; the rain fell";
    enum { SIZE = sizeof text - 1 };
    fb_hash_key key;
    uint64_t hashes[SIZE + 1] = {0}, powers[SIZE + 1] = {1};
    fb_hash_key_create(&key);
    for (int i = 0; i < SIZE; i++) {
        hashes[i + 1] = fb_hash_byte(&key, hashes[i], text[i]);
        powers[i + 1] = fb_hash_multiply(powers[i], key.base);
        assert_true(hashes[i + 1] < FB_HASH_PRIME && powers[i + 1] < FB_HASH_PRIME);
    }
    for (int start = 0; start <= SIZE; start++)
        for (int end = start; end <= SIZE; end++)
            assert_int_equal(fb_hash_part(hashes[start], hashes[end], powers[end - start]),
                             fb_hash_text(&key, text + start, end - start));
}

static void test_products(void **state) {
    (void)state;
    const uint64_t most = FB_HASH_PRIME - 1; /* -1 */
    assert_int_equal(fb_hash_multiply(most, most), 1);
    assert_int_equal(fb_hash_multiply(most, 2), most - 1);
    assert_int_equal(fb_hash_multiply(UINT64_C(1) << 60, 2), 1);
    assert_int_equal(fb_hash_multiply(0, most), 0);
}

/* What falls into one of 1,024 slots with one key is spread by another. */
static void test_keys(void **state) {
    (void)state;
    fb_hash_key first, second;
    int numbers[1024] = {0}, texts[1024] = {0};
    fb_hash_key_create(&first);
    fb_hash_key_create(&second);
    for (uint64_t i = 0; i < 1 << 20; i++) {
        uint64_t pair = (i >> 10) << 32 | (i & 1023);
        char text[8];
        memcpy(text, &pair, sizeof text);
        if (fb_hash_number(&first, pair) % 1024 == 5) numbers[fb_hash_number(&second, pair) % 1024]++;
        if (fb_hash_slot(fb_hash_text(&first, text, 8)) % 1024 == 5)
            texts[fb_hash_slot(fb_hash_text(&second, text, 8)) % 1024]++;
    }
    for (int i = 0; i < 1024; i++) assert_true(numbers[i] < 64 && texts[i] < 64); /* about 1,024 in all */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}
