#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "support/support.h"

bool fbt_passes_over(int every) {
    static int cases;
    return FBT_SANITIZED && cases++ % every != 0;
}

bool fbt_emulated_passes_over(int every) {
    static int cases[32]; /* by `every`: loops within loops do not count each other's cases */
    return FBT_EMULATED && cases[every]++ % every != 0;
}

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

void fbt_random_blocks(fbt_random *random, fb_dtype dtype, int64_t count, double deviation, void *blocks) {
    /* Where a block's float16 numbers are: its scale and, where it has one, its offset's, -1 for none. What
     * is left is integers, for which any bytes will do: `range` is about their deviation, `shift` puts their
     * mean at zero. */
    static const struct {
        int scale, offset;
        double range, shift;
    } types[FB_DTYPE_COUNT] = {
        [FB_Q8_0] = {0, -1, 74, 0},    [FB_Q4_0] = {0, -1, 4.6, 0},    [FB_Q4_1] = {0, 2, 4.6, -7.5},
        [FB_Q5_0] = {0, -1, 9.2, 0},   [FB_Q5_1] = {0, 2, 9.2, -15.5}, [FB_Q4_K] = {0, 2, 250, 7.5},
        [FB_Q5_K] = {0, 2, 500, 15.5}, [FB_Q6_K] = {208, -1, 1300, 0}, [FB_Q2_K] = {80, 82, 15, 1.5},
        [FB_Q3_K] = {108, -1, 42, 0},  [FB_IQ4_NL] = {0, -1, 73, 0},   [FB_IQ4_XS] = {0, -1, 1350, 0},
        [FB_MXFP4] = {-1, -1, 5.5, 0},
    };
    int64_t block = fb_dtype_block(dtype), bytes = fb_dtype_bytes(dtype, block);
    uint8_t *at = blocks;
    for (int64_t i = 0; i < count; i += block, at += bytes) {
        for (int64_t b = 0; b < bytes; b++) at[b] = (uint8_t)fbt_random_bits(random);
        double scale = deviation / types[dtype].range * (0.5 + (double)fbt_random_below(random, 100) / 100);
        if (types[dtype].scale >= 0)
            fb_dtype_set(FB_F16, at + types[dtype].scale, 0, scale);
        else
            at[0] = (uint8_t)(128 + (int)floor(log2(scale))); /* a power of two */
        if (types[dtype].offset >= 0)
            fb_dtype_set(FB_F16, at + types[dtype].offset, 0, scale * types[dtype].shift);
    }
}
