#include "text/hash.h"

#include <sys/random.h>
#include <time.h>

/* SplitMix64's finaliser. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

void fb_hash_key_create(fb_hash_key *key) {
    uint64_t random[3];
    if (getrandom(random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random) {
        /* A system that has no random numbers yet: the clock and the place of the stack are hard to guess. */
        struct timespec now = {0};
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t seed = mix((uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec) ^ (uint64_t)(uintptr_t)&now;
        for (int i = 0; i < 3; i++) random[i] = mix(seed += UINT64_C(0x9E3779B97F4A7C15));
    }
    key->base = (random[0] % (FB_HASH_PRIME - 512)) + 511; /* above all digits, which are bytes + 1 */
    key->add = random[1];
    key->multiplier = random[2] | 1;
}
