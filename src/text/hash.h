/* Hashes of tables whose keys come from a file. They are keyed with random numbers: who writes a file cannot
 * choose tokens or merges that collide. No result depends on the numbers. */
#ifndef FB_TEXT_HASH_H
#define FB_TEXT_HASH_H

#include <stdint.h>

typedef struct fb_hash_key {
    uint64_t base;            /* of the polynomial of a text's bytes */
    uint64_t add, multiplier; /* for numbers */
} fb_hash_key;

void fb_hash_key_create(fb_hash_key *key);

#define FB_HASH_PRIME ((UINT64_C(1) << 61) - 1)

__extension__ typedef unsigned __int128 fb_uint128;

/* The product modulo 2^61 - 1 of two numbers below that. */
static inline uint64_t fb_hash_multiply(uint64_t a, uint64_t b) {
    fb_uint128 product = (fb_uint128)a * b;
    uint64_t sum = (uint64_t)(product & FB_HASH_PRIME) + (uint64_t)(product >> 61);
    return sum >= FB_HASH_PRIME ? sum - FB_HASH_PRIME : sum;
}

/* A text's polynomial, byte by byte, from 0. Two texts of n bytes have the same one with a probability of at
 * most n / 2^61. That of a part follows from those of what ends where it starts and where it ends:
 * fb_hash_part. */
static inline uint64_t fb_hash_byte(const fb_hash_key *key, uint64_t hash, char byte) {
    uint64_t sum = fb_hash_multiply(hash, key->base) + (unsigned char)byte + 1;
    return sum >= FB_HASH_PRIME ? sum - FB_HASH_PRIME : sum;
}

/* `power` is the key's base to the power of the part's size. */
static inline uint64_t fb_hash_part(uint64_t to_start, uint64_t to_end, uint64_t power) {
    uint64_t before = fb_hash_multiply(to_start, power);
    return to_end >= before ? to_end - before : to_end + FB_HASH_PRIME - before;
}

static inline uint64_t fb_hash_text(const fb_hash_key *key, const char *text, int64_t size) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < size; i++) hash = fb_hash_byte(key, hash, text[i]);
    return hash;
}

/* A polynomial as the number of a slot: neighbouring texts must not lie side by side. */
static inline uint32_t fb_hash_slot(uint64_t hash) {
    return (uint32_t)(hash * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

static inline uint32_t fb_hash_number(const fb_hash_key *key, uint64_t number) {
    fb_uint128 product = (fb_uint128)(number ^ key->add) * key->multiplier;
    return (uint32_t)((uint64_t)product ^ (uint64_t)(product >> 64));
}

#endif
