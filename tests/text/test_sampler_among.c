/* fb_sampler_next_among, which sees the best logits only, against fb_sampler_next, which sees all: the same
 * tokens, choice after choice, and the same errors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"
#include "text/sampler.h"

enum { MOST = 3000, MOST_BIASES = 24 };

static uint32_t state32;
static uint32_t random32(void) { return (state32 = state32 * 1664525u + 1013904223u) >> 1; }
static double between(double low, double high) { return low + (high - low) * random32() / 2147483648.0; }
static int64_t below(int64_t most) { return (int64_t)(random32() % (uint32_t)most); }

static fb_sampler *create(const fb_sampler_options *options, int64_t vocab) {
    fb_sampler *sampler = NULL;
    fb_error err;
    assert_ok(fb_sampler_create(options, vocab, &sampler, &err), &err);
    return sampler;
}

/* ---- what a device selects ---- */

static int by_rank(const void *one, const void *other) {
    const fb_candidate *a = one, *b = other;
    bool bad = !(a->logit < INFINITY);
    if (bad != !(b->logit < INFINITY)) return bad ? -1 : 1;
    if (!bad && a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

typedef struct selection {
    fb_candidate best[MOST], changed[FB_CANDIDATES];
    int64_t count, changed_count;
} selection;

static void shuffle(fb_candidate *all, int64_t count) {
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = below(i + 1);
        fb_candidate swap = all[i];
        all[i] = all[j];
        all[j] = swap;
    }
}

/* `more` than wanted, if there are as many. */
static void select_logits(const fb_sampler *sampler, const float *logits, int64_t vocab, int64_t more,
                          selection *out) {
    int32_t ids[FB_CANDIDATES];
    for (int64_t i = 0; i < vocab; i++) out->best[i] = (fb_candidate){logits[i], (int32_t)i};
    qsort(out->best, (size_t)vocab, sizeof *out->best, by_rank);
    out->count = fb_sampler_wants(sampler) + more;
    if (out->count > vocab) out->count = vocab;
    shuffle(out->best, out->count);
    out->changed_count = fb_sampler_changed(sampler, ids, FB_CANDIDATES);
    assert_in_range(out->changed_count, 0, FB_CANDIDATES);
    for (int64_t i = 0; i < out->changed_count; i++) out->changed[i] = (fb_candidate){logits[ids[i]], ids[i]};
    shuffle(out->changed, out->changed_count);
}

static fb_status next_among(fb_sampler *sampler, const selection *s, int32_t *id, fb_error *err) {
    return fb_sampler_next_among(sampler, s->best, s->count, s->changed, s->changed_count, id, err);
}

/* ---- cases ---- */

/* Peaked, flat, or with many equal logits; some are ruled out. */
static void fill(float *logits, int64_t vocab, int kind) {
    for (int64_t i = 0; i < vocab; i++) {
        double x = between(-6, 6) + between(-6, 6);
        logits[i] = (float)(kind == 0 ? x : kind == 1 ? floor(x) : x / 100);
        if (kind == 1 && random32() % 9 == 0) logits[i] = -INFINITY;
        if (kind == 1 && random32() % 9 == 0) logits[i] = random32() & 64 ? -0.0f : 0.0f;
    }
    logits[below(vocab)] = 1;
}

static void choose_options(fb_sampler_options *o, fb_logit_bias *bias, int64_t vocab, int run) {
    fb_sampler_options_default(o);
    o->seed = random32();
    o->temperature = run % 5 == 0 ? 0 : (float)between(0.05, 3);
    o->top_k = run % 7 == 0 ? 1 : 1 + below(240);
    o->top_p = run % 3 == 0 ? 1 : (float)between(0.3, 1);
    o->min_p = run % 2 ? 0 : (float)between(0, 0.3);
    o->repeat_penalty = run % 4 == 0 ? 1 : (float)between(0.5, 2);
    o->repeat_window = below(100);
    o->presence_penalty = run % 3 == 1 ? 0 : (float)between(-2, 2);
    o->frequency_penalty = run % 4 <= 1 ? 0 : (float)between(-2, 2);
    o->logit_bias = bias;
    o->logit_bias_count = run % 3 == 2 ? 0 : below(MOST_BIASES);
    if (o->logit_bias_count > vocab) o->logit_bias_count = vocab;
    for (int64_t i = 0; i < o->logit_bias_count; i++) {
        bias[i] = (fb_logit_bias){(int32_t)below(vocab), (float)between(-12, 12)};
        if (random32() % 6 == 0) bias[i].bias = -INFINITY;
        if (i > 0 && random32() % 6 == 0) bias[i] = (fb_logit_bias){bias[i - 1].id, -bias[i - 1].bias};
        if (!(bias[i].bias < INFINITY)) bias[i].bias = 0;
    }
}

static void same_choices(void **state) {
    (void)state;
    static float logits[MOST];
    static selection s;
    fb_logit_bias bias[MOST_BIASES];
    int64_t compared = 0, all_needed = 0, failed = 0;
    state32 = 1;
    for (int run = 0; run < 1500; run++) {
        fb_sampler_options options;
        int64_t vocab = run % 50 == 0 ? MOST : 1 + below(run % 3 ? 700 : 40);
        choose_options(&options, bias, vocab, run);
        fb_sampler *full = create(&options, vocab), *among = create(&options, vocab);
        for (int64_t i = below(80); i > 0; i--) {
            int32_t id = (int32_t)below(vocab);
            fb_sampler_accept(full, id);
            fb_sampler_accept(among, id);
        }
        for (int step = 0; step < 24; step++) {
            int32_t wanted, got;
            fb_error full_err = {0}, err = {0};
            fill(logits, vocab, (run + step) % 3);
            if (fb_sampler_wants(among) == 0) { /* both go on with all logits */
                all_needed++;
                assert_int_equal(fb_sampler_next(among, logits, &got, &err),
                                 fb_sampler_next(full, logits, &wanted, &full_err));
                continue;
            }
            select_logits(among, logits, vocab, step % 4 ? 0 : below(9), &s);
            fb_status status = fb_sampler_next(full, logits, &wanted, &full_err);
            if (next_among(among, &s, &got, &err) != status || got != wanted ||
                strcmp(err.message, full_err.message) != 0)
                fail_msg("run %d, choice %d: token %d %s, expected %d %s", run, step, got, err.message,
                         wanted, full_err.message);
            compared++;
            failed += status != FB_OK;
        }
        fb_sampler_free(full);
        fb_sampler_free(among);
    }
    print_message("%d choices, %d of them refused; %d more needed all logits\n", (int)compared, (int)failed,
                  (int)all_needed);
    assert_true(compared > 20000 && failed > 0 && all_needed > 0 && failed < compared / 20);
}

/* ---- draws at the edge of two candidates ---- */

/* The seed whose first draw is bits / 2^53: SplitMix64 backwards. */
static uint64_t seed_for(uint64_t bits) {
    uint64_t z = bits << 11;
    z = (z ^ z >> 31 ^ z >> 62) * 0x319642b2d24d8ec3u; /* the inverses of its factors */
    z = (z ^ z >> 27 ^ z >> 54) * 0x96de1b173f119089u;
    return (z ^ z >> 30 ^ z >> 60) - 0x9e3779b97f4a7c15u;
}

/* The random number is where one candidate ends and the next begins. If the weights were added in another
 * order, the last bit of their sum would often choose the other one. */
static void sums_of_equal_order(void **state) {
    (void)state;
    enum { VOCAB = 400, TOP = 150 };
    static float logits[VOCAB];
    static selection s, all;
    double sums[TOP];
    state32 = 9;
    for (int run = 0; run < 3000; run++) {
        fb_sampler_options options;
        int32_t wanted, got;
        fb_error err;
        fb_sampler_options_default(&options);
        options.temperature = 3;
        options.top_k = TOP;
        options.top_p = 1;
        options.min_p = 0;
        fill(logits, VOCAB, 2 * (run % 2));
        for (int i = 0; i < VOCAB; i++) all.best[i] = (fb_candidate){logits[i], i};
        qsort(all.best, VOCAB, sizeof *all.best, by_rank);
        for (int i = 0; i < TOP; i++)
            sums[i] =
                (i ? sums[i - 1] : 0) + exp(((double)all.best[i].logit - (double)all.best[0].logit) / 3);
        int32_t edge = (int32_t)below(TOP - 1);
        options.seed = seed_for((uint64_t)(sums[edge] / sums[TOP - 1] * 0x1p53) - (uint64_t)(run % 3 - 1));
        fb_sampler *full = create(&options, VOCAB), *among = create(&options, VOCAB);
        select_logits(among, logits, VOCAB, 0, &s);
        assert_ok(fb_sampler_next(full, logits, &wanted, &err), &err);
        assert_ok(next_among(among, &s, &got, &err), &err);
        assert_int_equal(got, wanted);
        assert_true(got == all.best[edge].id || got == all.best[edge + 1].id);
        fb_sampler_free(full);
        fb_sampler_free(among);
    }
}

/* ---- what a sampler asks for ---- */

static bool has_id(const int32_t *ids, int64_t count, int32_t id) {
    int found = 0;
    for (int64_t i = 0; i < count; i++) found += ids[i] == id;
    assert_true(found <= 1);
    return found == 1;
}

static void wants_and_changed(void **state) {
    (void)state;
    const fb_logit_bias bias[] = {{5, 1}, {7, 2}, {7, 3}, {9, 4}, {9, -4}, {11, -INFINITY}};
    int32_t ids[FB_CANDIDATES];
    fb_sampler_options o;
    fb_sampler_options_default(&o);
    o.repeat_window = 3;
    o.logit_bias = bias;
    o.logit_bias_count = 6;
    fb_sampler *sampler = create(&o, 1000);
    assert_int_equal(fb_sampler_wants(sampler), 40 + 3); /* 5, 7 and 11; the biases of 9 add up to 0 */
    fb_sampler_accept(sampler, 5);
    fb_sampler_accept(sampler, 9);
    fb_sampler_accept(sampler, 9);
    assert_int_equal(fb_sampler_changed(sampler, ids, FB_CANDIDATES), 4);
    assert_int_equal(fb_sampler_wants(sampler), 44);
    for (int32_t id = 0; id < 20; id++)
        assert_int_equal(has_id(ids, 4, id), id == 5 || id == 7 || id == 9 || id == 11);
    ids[2] = -7; /* no room: not written */
    assert_int_equal(fb_sampler_changed(sampler, ids, 2), 4);
    assert_int_equal(ids[2], -7);
    for (int i = 0; i < 3; i++) fb_sampler_accept(sampler, 20 + i); /* 9 is forgotten */
    assert_int_equal(fb_sampler_changed(sampler, ids, FB_CANDIDATES), 6);
    for (int32_t id = 0; id < 30; id++)
        assert_int_equal(has_id(ids, 6, id), id == 5 || id == 7 || id == 11 || (id >= 20 && id < 23));
    fb_sampler_free(sampler);

    /* Without penalties, recent tokens are not changed; at temperature 0 one logit is enough. */
    o.logit_bias_count = 0;
    for (int way = 0; way < 2; way++) {
        o.temperature = way ? 0 : 1;
        o.repeat_penalty = way ? 1.5f : 1;
        sampler = create(&o, 1000);
        fb_sampler_accept(sampler, 5);
        assert_int_equal(fb_sampler_wants(sampler), way ? 1 : 40);
        assert_int_equal(fb_sampler_changed(sampler, NULL, 0), 0);
        fb_sampler_free(sampler);
    }
}

static void all_logits_needed(void **state) {
    (void)state;
    fb_candidate none = {0};
    fb_sampler_options o;
    fb_error err;
    int32_t id = 7;
    fb_sampler_options_default(&o);
    o.repeat_window = 300;
    o.top_k = 0;
    fb_sampler *sampler = create(&o, 1000);
    assert_int_equal(fb_sampler_wants(sampler), 0);
    assert_refused(fb_sampler_next_among(sampler, &none, 1, &none, 0, &id, &err), FB_ERROR_USAGE, &err,
                   "candidates: the sampler needs all logits");
    assert_int_equal(id, 0);
    fb_sampler_free(sampler);

    sampler = create(&o, 200); /* a small vocabulary */
    assert_int_equal(fb_sampler_wants(sampler), 200);
    fb_sampler_free(sampler);

    o.top_k = 200;
    sampler = create(&o, 1000);
    for (int32_t i = 0; i < 56; i++) fb_sampler_accept(sampler, i);
    assert_int_equal(fb_sampler_wants(sampler), FB_CANDIDATES);
    fb_sampler_accept(sampler, 56);
    assert_int_equal(fb_sampler_wants(sampler), 0);
    fb_sampler_free(sampler);
}

static void bad_logits(void **state) {
    (void)state;
    enum { VOCAB = 300 };
    static float logits[VOCAB];
    static selection s;
    const float bad[] = {NAN, INFINITY};
    fb_logit_bias ban[VOCAB];
    fb_sampler_options o;
    state32 = 3;
    fb_sampler_options_default(&o);
    o.top_k = 20;
    for (int32_t i = 0; i < VOCAB; i++) ban[i] = (fb_logit_bias){i + 3, -INFINITY};
    for (int run = 0; run < 200; run++) {
        fb_error full_err, err;
        int32_t wanted, got;
        o.logit_bias = ban;
        o.logit_bias_count = run % 2 ? 10 : 0;
        fb_sampler *full = create(&o, VOCAB), *among = create(&o, VOCAB);
        fill(logits, VOCAB, 0);
        if (run % 4 < 2)
            for (int i = 0; i <= run % 3; i++) logits[below(VOCAB)] = bad[below(2)];
        else /* nothing is left, or only banned tokens */
            for (int i = 0; i < VOCAB; i++) logits[i] = run % 2 && i >= 3 && i < 8 ? 1 : -INFINITY;
        select_logits(among, logits, VOCAB, 0, &s);
        assert_int_equal(fb_sampler_next(full, logits, &wanted, &full_err), FB_ERROR_USAGE);
        assert_int_equal(next_among(among, &s, &got, &err), FB_ERROR_USAGE);
        assert_string_equal(err.message, full_err.message);
        assert_int_equal(got, 0);
        fill(logits, VOCAB, 0); /* what failed did not count */
        select_logits(among, logits, VOCAB, 0, &s);
        assert_ok(fb_sampler_next(full, logits, &wanted, &full_err), &full_err);
        assert_ok(next_among(among, &s, &got, &err), &err);
        assert_int_equal(got, wanted);
        fb_sampler_free(full);
        fb_sampler_free(among);
    }
}

static void bad_selections(void **state) {
    (void)state;
    fb_candidate best[50], changed[2] = {{1, 5}, {1, 6}};
    fb_sampler_options o;
    fb_error err;
    int32_t id;
    fb_sampler_options_default(&o);
    fb_sampler *sampler = create(&o, 1000);
    fb_sampler_accept(sampler, 5);
    for (int32_t i = 0; i < 50; i++) best[i] = (fb_candidate){3, i};
    assert_refused(fb_sampler_next_among(sampler, best, 40, changed, 1, &id, &err), FB_ERROR_USAGE, &err,
                   "candidates: 40 (41 to 1000)");
    assert_refused(fb_sampler_next_among(sampler, best, 41, changed, 2, &id, &err), FB_ERROR_USAGE, &err,
                   "changed tokens: 2 (1 to 1)");
    best[3].id = -1;
    assert_refused(fb_sampler_next_among(sampler, best, 41, changed, 1, &id, &err), FB_ERROR_USAGE, &err,
                   "candidates: token: -1 (0 to 999)");
    for (int i = 0; i < 50; i++) best[i].id = 5; /* one token, and that one is changed */
    assert_refused(fb_sampler_next_among(sampler, best, 41, changed, 1, &id, &err), FB_ERROR_USAGE, &err,
                   "candidates: different tokens: 1 (40 to 40)");
    fb_sampler_free(sampler);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_choices),      cmocka_unit_test(sums_of_equal_order),
        cmocka_unit_test(wants_and_changed), cmocka_unit_test(all_logits_needed),
        cmocka_unit_test(bad_logits),        cmocka_unit_test(bad_selections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
