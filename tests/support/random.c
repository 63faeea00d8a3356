#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "support/support.h"

fbt_random fbt_random_start(uint64_t seed) {
    const char *text = getenv("FUSEBOX_SEED");
    if (text && *text) seed = strtoull(text, NULL, 0);
    print_message("# random seed: FUSEBOX_SEED=%llu\n", (unsigned long long)seed);
    return (fbt_random){seed};
}

/* splitmix64: any seed is a good one. */
uint64_t fbt_random_bits(fbt_random *random) {
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t fbt_random_below(fbt_random *random, int64_t limit) {
    return (int64_t)(fbt_random_bits(random) % (uint64_t)limit);
}

double fbt_random_uniform(fbt_random *random, double low, double high) {
    return low + (high - low) * ((double)(fbt_random_bits(random) >> 11) * 0x1p-53);
}

double fbt_random_normal(fbt_random *random) {
    double radius = sqrt(-2 * log(1 - fbt_random_uniform(random, 0, 1)));
    return radius * cos(6.283185307179586 * fbt_random_uniform(random, 0, 1));
}
