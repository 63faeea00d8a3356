#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

/* Long enough that a kernel which overruns by a whole vector or an unrolled row of them stays inside. */
enum { BAND = 1024 };

/* No byte of it is 0xff or 0, the values that a stray store most likely writes. */
static uint8_t band_byte(size_t index) { return (uint8_t)(0x5a ^ (index % 61)); }

fbt_guard fbt_guard_create(size_t size, size_t offset) {
    assert_true(offset < 64);
    size_t total = BAND + offset + size + BAND;
    uint8_t *memory = aligned_alloc(64, (total + 63) / 64 * 64);
    assert_non_null(memory);
    fbt_guard guard = {.data = memory + BAND + offset, .size = size, .memory = memory};
    for (size_t i = 0; i < BAND + offset; i++) memory[i] = band_byte(i);
    memset(guard.data, 0xff, size);
    for (size_t i = 0; i < BAND; i++) ((uint8_t *)guard.data)[size + i] = band_byte(i);
    return guard;
}

bool fbt_guard_intact(const fbt_guard *guard) {
    const uint8_t *data = guard->data;
    size_t before = (size_t)(data - guard->memory);
    for (size_t i = 0; i < before; i++)
        if (guard->memory[i] != band_byte(i)) return false;
    for (size_t i = 0; i < BAND; i++)
        if (data[guard->size + i] != band_byte(i)) return false;
    return true;
}

void fbt_guard_free(fbt_guard *guard) {
    bool intact = fbt_guard_intact(guard);
    free(guard->memory);
    *guard = (fbt_guard){0};
    if (!intact) fail_msg("a guard band was written to");
}

int64_t fbt_count_nan(const void *values, int64_t count) {
    int64_t nans = 0;
    for (int64_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, (const uint8_t *)values + i * (int64_t)sizeof value, sizeof value);
        nans += isnan(value) != 0;
    }
    return nans;
}
