/* Which positions a ring keeps, against a list of them that is written token by token. */
#include "base/tensor.h"
#include "support/support.h"

enum { SLOTS = 128 };

static fb_ring make_ring(int64_t sinks, int64_t window, int64_t chunk) {
    int64_t begin = (sinks + FB_KV_GROUP - 1) / FB_KV_GROUP * FB_KV_GROUP;
    return (fb_ring){.sinks = sinks, .window = window, .begin = begin, .size = window + chunk};
}

/* What a token at `position` should see of positions 0 to `position`. */
static bool should_see(const fb_ring *r, int64_t position, int64_t other) {
    return other <= position && (other < r->sinks || other >= position - r->window);
}

/* Writes steps of random lengths into a list of slots, and asks after each for every token of the step. */
static void check_stream(const fb_ring *r, int64_t chunk, int64_t start, int64_t end, fbt_random *random) {
    int64_t held[SLOTS];
    for (int i = 0; i < SLOTS; i++) held[i] = -1;
    assert_true(r->begin + r->size <= SLOTS);
    for (int64_t position = start; position < end;) {
        int64_t rows = 1 + (int64_t)fbt_random_below(random, (uint32_t)chunk);
        for (int64_t row = 0; row < rows; row++) {
            int64_t slot = fb_ring_slot(r, position + row);
            assert_in_range(slot, 0, r->begin + r->size - 1);
            held[slot] = position + row;
        }
        for (int64_t row = 0; row < rows; row++) {
            int64_t at = position + row, seen = 0, oldest = at - r->window < start ? start : at - r->window;
            for (int64_t slot = 0; slot < SLOTS; slot++) {
                bool sees = slot < fb_ring_count(r, at) && fb_ring_sees(r, at, slot);
                if (start == 0 || held[slot] >= 0)
                    assert_int_equal(sees, held[slot] >= 0 && should_see(r, at, held[slot]));
                seen += sees && held[slot] >= 0;
            }
            /* All that it should see is still there. */
            int64_t sinks = start > 0 ? 0 : at < r->sinks ? at + 1 : r->sinks;
            int64_t from = oldest < r->sinks ? r->sinks : oldest;
            assert_int_equal(seen, sinks + (at >= from ? at - from + 1 : 0));
        }
        position += rows;
    }
}

static void streams(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(77);
    for (int i = 0; i < 300; i++) {
        int64_t sinks = fbt_random_below(&random, 24), window = 1 + fbt_random_below(&random, 40);
        int64_t chunk = 1 + fbt_random_below(&random, 20);
        fb_ring r = make_ring(sinks, window, chunk);
        check_stream(&r, chunk, 0, 200, &random);
        check_stream(&r, chunk, (1ll << 40) + i, (1ll << 40) + i + 200, &random);
    }
}

/* Without a window, every position has the slot of its number, and sees what is before it. */
static void dense(void **state) {
    (void)state;
    fb_ring r = {0};
    for (int64_t p = 0; p < 100; p++) {
        assert_int_equal(fb_ring_slot(&r, p), p);
        assert_int_equal(fb_ring_count(&r, p), p + 1);
        for (int64_t slot = 0; slot < 120; slot++) assert_int_equal(fb_ring_sees(&r, p, slot), slot <= p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(streams), cmocka_unit_test(dense)};
    return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
