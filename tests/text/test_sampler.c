/* The sampler through its public functions: known draws, each filter against an obvious implementation, bad
 * input. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fusebox.h"

/* No filter at all: one draw from the softmax. */
static fb_sampler_options plain_options(uint64_t seed) {
    return (fb_sampler_options){.size = sizeof(fb_sampler_options),
                                .temperature = 1,
                                .top_p = 1,
                                .repeat_penalty = 1,
                                .repeat_window = 64,
                                .seed = seed};
}

static fb_sampler *create(const fb_sampler_options *options, int64_t vocab) {
    fb_sampler *sampler = NULL;
    fb_error err = {0};
    fb_status status = fb_sampler_create(options, vocab, &sampler, &err);
    if (status != FB_OK) fail_msg("fb_sampler_create: %s", err.message);
    return sampler;
}

static int32_t next(fb_sampler *sampler, const float *logits) {
    int32_t id = -1;
    fb_error err = {0};
    if (fb_sampler_next(sampler, logits, &id, &err) != FB_OK) fail_msg("fb_sampler_next: %s", err.message);
    return id;
}

/* How often each id of `vocab` comes in `draws` draws. */
static void count_draws(const fb_sampler_options *options, const float *logits, int64_t vocab, int draws,
                        int *counts) {
    memset(counts, 0, (size_t)vocab * sizeof *counts);
    fb_sampler *sampler = create(options, vocab);
    for (int i = 0; i < draws; i++) counts[next(sampler, logits)]++;
    fb_sampler_free(sampler);
}

/* Logits without structure, from a fixed congruential sequence. */
static void fill(float *logits, int64_t vocab, uint32_t seed) {
    for (int64_t i = 0; i < vocab; i++) {
        seed = seed * 1664525u + 1013904223u;
        logits[i] = (float)(int32_t)seed / 4e8f;
    }
}

/* Equal scores over 2^16 ids are drawn in the order of the ids, so a draw is the upper 16 bits of the
 * generator's output. The outputs of SplitMix64 for seed 1234567 are published: 6457827717110365317,
 * 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821. */
static void test_known_draws(void **state) {
    (void)state;
    static const uint64_t outputs[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                       4593380528125082431u, 16408922859458223821u};
    static float logits[65536];
    fb_sampler_options options = plain_options(1234567);
    fb_sampler *sampler = create(&options, 65536);
    for (int i = 0; i < 5; i++) assert_int_equal(next(sampler, logits), outputs[i] >> 48);
    fb_sampler_free(sampler);
}

/* Computed from the header's formula by another program. */
static void test_known_draws_of_sequences(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, sequence;
        int32_t draws[5];
    } rows[] = {
        {1234567, 1, {52407, 61944, 35058, 16351, 24982}},
        {1234567, 2, {47443, 25170, 32567, 18465, 58308}},
        {0, 1, {49135, 24405, 28723, 62528, 13242}},
        {UINT64_MAX, UINT64_MAX, {26323, 28901, 11301, 56805, 43047}},
    };
    static float logits[65536];
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        fb_sampler_options options = plain_options(rows[r].seed);
        options.sequence = rows[r].sequence;
        fb_sampler *sampler = create(&options, 65536);
        for (int i = 0; i < 5; i++) assert_int_equal(next(sampler, logits), rows[r].draws[i]);
        fb_sampler_free(sampler);
    }
}

/* Draws of 64 sequences of one seed: no more pairs agree than by chance (1 in 256: 63 of 16,128 expected). */
static void test_sequences_are_independent(void **state) {
    (void)state;
    enum { SEQUENCES = 64, DRAWS = 256 };
    static int32_t draws[SEQUENCES][DRAWS];
    static const float logits[256];
    for (int s = 0; s < SEQUENCES; s++) {
        fb_sampler_options options = plain_options(1);
        options.sequence = (uint64_t)s;
        fb_sampler *sampler = create(&options, 256);
        for (int i = 0; i < DRAWS; i++) draws[s][i] = next(sampler, logits);
        fb_sampler_free(sampler);
    }
    for (int lag = 0; lag < 3; lag++) {
        int equal = 0;
        for (int s = 1; s < SEQUENCES; s++)
            for (int i = lag; i < DRAWS; i++) equal += draws[s][i] == draws[s - 1][i - lag];
        assert_true(equal > 63 - 40 && equal < 63 + 40);
    }
}

/* A sampler that starts at choice n, told about the tokens before, goes on as the one that chose them. */
static void test_seek_continues(void **state) {
    (void)state;
    enum { VOCAB = 300, COUNT = 60 };
    float logits[VOCAB];
    int32_t ids[COUNT];
    fill(logits, VOCAB, 5);
    for (int greedy = 0; greedy < 2; greedy++) {
        fb_sampler_options options;
        fb_sampler_options_default(&options);
        options.seed = 11;
        options.sequence = 3;
        options.frequency_penalty = 0.5f;
        if (greedy) options.temperature = 0;
        fb_sampler *sampler = create(&options, VOCAB);
        for (int i = 0; i < COUNT; i++) ids[i] = next(sampler, logits);
        for (int from = 0; from < COUNT; from += 7) {
            fb_sampler *again = create(&options, VOCAB);
            for (int i = 0; i < from; i++) fb_sampler_accept(again, ids[i]);
            fb_sampler_seek(again, (uint64_t)from);
            for (int i = from; i < COUNT; i++) assert_int_equal(next(again, logits), ids[i]);
            fb_sampler_free(again);
        }
        fb_sampler_free(sampler);
    }
}

/* A choice that failed does not count, nor does a token that was accepted; a number may come again. */
static void test_what_counts_as_a_choice(void **state) {
    (void)state;
    static const int32_t draws[] = {22942, 11379, 34878, 16318, 58296};
    static float logits[65536];
    int32_t id;
    fb_sampler_options options = plain_options(1234567);
    fb_sampler *sampler = create(&options, 65536);
    fb_sampler_accept(sampler, 5);
    logits[7] = NAN;
    assert_int_not_equal(fb_sampler_next(sampler, logits, &id, NULL), FB_OK);
    logits[7] = 0;
    assert_int_equal(next(sampler, logits), draws[0]);
    fb_sampler_seek(sampler, 4);
    assert_int_equal(next(sampler, logits), draws[4]);
    fb_sampler_seek(sampler, 1);
    assert_int_equal(next(sampler, logits), draws[1]);
    assert_int_equal(next(sampler, logits), draws[2]);
    fb_sampler_seek(sampler, UINT64_MAX); /* the number wraps around, as the counter does */
    next(sampler, logits);
    assert_int_equal(next(sampler, logits), draws[0]);
    fb_sampler_free(sampler);
}

static void test_same_seed_same_draws(void **state) {
    (void)state;
    float logits[500];
    fill(logits, 500, 7);
    fb_sampler_options options;
    fb_sampler_options_default(&options);
    options.seed = 42;
    fb_sampler *a = create(&options, 500), *b = create(&options, 500);
    options.seed = 43;
    fb_sampler *c = create(&options, 500);
    int differ = 0;
    for (int i = 0; i < 200; i++) {
        int32_t id = next(a, logits);
        assert_int_equal(id, next(b, logits));
        differ += id != next(c, logits);
    }
    assert_true(differ > 20);
    fb_sampler_free(a);
    fb_sampler_free(b);
    fb_sampler_free(c);
}

static void test_greedy(void **state) {
    (void)state;
    float logits[] = {-3, 5, 9, 9, -INFINITY, 2};
    fb_sampler_options options = plain_options(1);
    options.temperature = 0;
    options.repeat_penalty = 100; /* must not matter */
    fb_sampler *sampler = create(&options, 6);
    for (int i = 0; i < 5; i++) assert_int_equal(next(sampler, logits), 2);
    fb_sampler_free(sampler);
}

/* 40,000 draws against the softmax: four standard deviations for each id. */
static void test_distribution(void **state) {
    (void)state;
    enum { VOCAB = 12, DRAWS = 40000 };
    float logits[VOCAB];
    int counts[VOCAB];
    fill(logits, VOCAB, 3);
    for (double temperature = 0.5; temperature < 3; temperature *= 2) {
        fb_sampler_options options = plain_options(9);
        options.temperature = (float)temperature;
        count_draws(&options, logits, VOCAB, DRAWS, counts);
        double sum = 0;
        for (int i = 0; i < VOCAB; i++) sum += exp(logits[i] / temperature);
        for (int i = 0; i < VOCAB; i++) {
            double p = exp(logits[i] / temperature) / sum;
            assert_true(fabs(counts[i] - p * DRAWS) <= 4 * sqrt(DRAWS * p * (1 - p)) + 1);
        }
    }
}

/* The probability of each id, by sorting everything. */
static void expect(const fb_sampler_options *options, const float *logits, int vocab, double *probability) {
    int order[64] = {0};
    for (int i = 0; i < vocab; i++) order[i] = i;
    for (int i = 0; i < vocab; i++)
        for (int j = i + 1; j < vocab; j++)
            if (logits[order[j]] > logits[order[i]]) {
                int swap = order[i];
                order[i] = order[j];
                order[j] = swap;
            }
    int top = options->top_k && options->top_k < vocab ? (int)options->top_k : vocab;
    double total = 0, kept = 0, best = logits[order[0]];
    for (int i = 0; i < top; i++) total += exp((logits[order[i]] - best) / options->temperature);
    for (int i = 0; i < vocab; i++) probability[i] = 0;
    for (int i = 0; i < top; i++) {
        double w = exp((logits[order[i]] - best) / options->temperature);
        if (w < options->min_p || (options->top_p < 1 && i > 0 && kept >= options->top_p * total)) break;
        probability[order[i]] = w;
        kept += w;
    }
    for (int i = 0; i < vocab; i++) probability[i] /= kept;
}

/* Every combination of filters: five standard deviations for what may come, and nothing else comes. */
static void test_filters(void **state) {
    (void)state;
    enum { VOCAB = 50, DRAWS = 4000 };
    static const int64_t top_k[] = {0, 1, 2, 7, 50, 99};
    static const float top_p[] = {0, 0.3f, 0.9f, 1}, min_p[] = {0, 0.2f, 0.6f, 1};
    float logits[VOCAB];
    int counts[VOCAB];
    double probability[VOCAB];
    for (uint32_t c = 0; c < 6 * 4 * 4; c++) {
        fb_sampler_options options = plain_options(c);
        options.temperature = 6;
        options.top_k = top_k[c / 16];
        options.top_p = top_p[c / 4 % 4];
        options.min_p = min_p[c % 4];
        fill(logits, VOCAB, c);
        expect(&options, logits, VOCAB, probability);
        count_draws(&options, logits, VOCAB, DRAWS, counts);
        for (int i = 0; i < VOCAB; i++) {
            double wanted = DRAWS * probability[i], bound = 5 * sqrt(wanted * (1 - probability[i]));
            if (probability[i] > 0 ? fabs(counts[i] - wanted) > bound : counts[i] != 0)
                fail_msg("top_k %d top_p %g min_p %g: token %d came %d times, expected %g",
                         (int)options.top_k, (double)options.top_p, (double)options.min_p, i, counts[i],
                         wanted);
        }
    }
}

static void test_ties_prefer_the_lower_id(void **state) {
    (void)state;
    float logits[] = {1, 4, 4, 4, 4, 0};
    int counts[6];
    fb_sampler_options options = plain_options(2);
    options.top_k = 2;
    count_draws(&options, logits, 6, 200, counts);
    assert_int_equal(counts[1] + counts[2], 200);
    assert_true(counts[1] > 50 && counts[2] > 50);
}

static void test_repeat_penalty(void **state) {
    (void)state;
    float logits[] = {4, 3.5f, -1, -1};
    fb_sampler_options options = plain_options(3);
    options.temperature = 0.001f; /* the highest score after the penalty */
    options.repeat_penalty = 2;
    options.repeat_window = 2;
    fb_sampler *sampler = create(&options, 4);
    assert_int_equal(next(sampler, logits), 0); /* then 4 counts as 2 */
    assert_int_equal(next(sampler, logits), 1); /* then 3.5 counts as 1.75; 0 is still recent, as 2 */
    assert_int_equal(next(sampler, logits), 0); /* recent: 1, 0 */
    fb_sampler_accept(sampler, 3);
    fb_sampler_accept(sampler, 3); /* recent: 3, 3 */
    assert_int_equal(next(sampler, logits), 0);
    fb_sampler_accept(sampler, -1); /* not in the vocabulary: no effect */
    fb_sampler_accept(sampler, 4);
    assert_int_equal(next(sampler, logits), 1);
    fb_sampler_free(sampler);

    float negative[] = {-1, -1.5f}; /* a penalised -1 counts as -2 */
    sampler = create(&options, 2);
    assert_int_equal(next(sampler, negative), 0);
    assert_int_equal(next(sampler, negative), 1);
    fb_sampler_free(sampler);
}

static void test_minus_infinity_never_comes(void **state) {
    (void)state;
    float logits[] = {-INFINITY, 0, -INFINITY, 0, -3e38f};
    int counts[5];
    fb_sampler_options options = plain_options(4);
    options.temperature = 100;
    options.top_k = 4;
    count_draws(&options, logits, 5, 1000, counts);
    assert_int_equal(counts[0] + counts[2] + counts[4], 0);
    assert_true(counts[1] > 400 && counts[3] > 400);
}

static void test_extreme_scores(void **state) {
    (void)state;
    float logits[] = {-3.4e38f, 3.4e38f, 3.3e38f};
    int counts[3];
    fb_sampler_options options = plain_options(4);
    options.repeat_penalty = 0.01f;
    count_draws(&options, logits, 3, 100, counts);
    assert_int_equal(counts[1], 100);
    options.temperature = 1e-45f;
    count_draws(&options, logits, 3, 100, counts);
    assert_int_equal(counts[1], 100);
}

static void test_bad_logits(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY};
    fb_error err;
    for (float temperature = 0; temperature <= 1; temperature++) {
        fb_sampler_options options = plain_options(5);
        options.temperature = temperature;
        fb_sampler *sampler = create(&options, 3);
        int32_t id = 7;
        for (int i = 0; i < 2; i++) {
            float logits[] = {0, 1, bad[i]};
            assert_int_not_equal(fb_sampler_next(sampler, logits, &id, &err), FB_OK);
            assert_int_equal(id, 0);
            assert_non_null(strstr(err.message, "token 2"));
        }
        float none[] = {-INFINITY, -INFINITY, -INFINITY};
        assert_int_not_equal(fb_sampler_next(sampler, none, &id, NULL), FB_OK);
        fb_sampler_free(sampler);
    }
}

static void refuse(fb_sampler_options options, int64_t vocab, const char *message) {
    fb_sampler *sampler = (fb_sampler *)&options;
    fb_error err = {0};
    assert_int_equal(fb_sampler_create(&options, vocab, &sampler, &err), FB_ERROR_USAGE);
    assert_null(sampler);
    assert_string_equal(err.message, message);
}

static void test_bad_options(void **state) {
    (void)state;
    fb_sampler_options good = plain_options(0), bad;
    refuse(good, 0, "vocab: 0 (1 to 2147483647)");
#define REFUSE(member, value, message)                                                                       \
    do {                                                                                                     \
        bad = good;                                                                                          \
        bad.member = value;                                                                                  \
        refuse(bad, 10, message);                                                                            \
    } while (0)
    REFUSE(temperature, -1, "temperature: -1 (0 to 100)");
    REFUSE(temperature, 101, "temperature: 101 (0 to 100)");
    REFUSE(temperature, NAN, "temperature: nan (0 to 100)");
    REFUSE(top_k, -1, "top_k: -1 (0 to 9223372036854775807)");
    REFUSE(top_p, 7, "top_p: 7 (0 to 1)");
    REFUSE(min_p, -0.5f, "min_p: -0.5 (0 to 1)");
    REFUSE(repeat_penalty, 0, "repeat_penalty: 0 (0.01 to 100)");
    REFUSE(repeat_window, -1, "repeat_window: -1 (0 to 1000000)");
    REFUSE(presence_penalty, 2.5f, "presence_penalty: 2.5 (-2 to 2)");
    REFUSE(presence_penalty, NAN, "presence_penalty: nan (-2 to 2)");
    REFUSE(frequency_penalty, -3, "frequency_penalty: -3 (-2 to 2)");
    REFUSE(frequency_penalty, INFINITY, "frequency_penalty: inf (-2 to 2)");
#undef REFUSE
}

static void test_no_window(void **state) {
    (void)state;
    float logits[] = {0, 1};
    fb_sampler_options options = plain_options(5);
    options.repeat_window = 0;
    options.repeat_penalty = 100;
    options.temperature = 0.01f;
    fb_sampler *sampler = create(&options, 2);
    for (int i = 0; i < 3; i++) assert_int_equal(next(sampler, logits), 1);
    fb_sampler_free(sampler);
    fb_sampler_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_draws),
        cmocka_unit_test(test_same_seed_same_draws),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_ties_prefer_the_lower_id),
        cmocka_unit_test(test_repeat_penalty),
        cmocka_unit_test(test_minus_infinity_never_comes),
        cmocka_unit_test(test_extreme_scores),
        cmocka_unit_test(test_bad_logits),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_no_window),
        cmocka_unit_test(test_known_draws_of_sequences),
        cmocka_unit_test(test_sequences_are_independent),
        cmocka_unit_test(test_seek_continues),
        cmocka_unit_test(test_what_counts_as_a_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
