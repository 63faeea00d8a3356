/* What changes a score (bias, penalties) and log-probabilities, each against an obvious implementation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fusebox.h"
#include "support/support.h"

enum { MOST = 700, HISTORY = 400 };

static uint32_t state32;
static uint32_t random32(void) { return state32 = state32 * 1664525u + 1013904223u; }
static double between(double low, double high) { return low + (high - low) * random32() / 4294967296.0; }

static fb_sampler *create(const fb_sampler_options *options, int64_t vocab) {
    fb_sampler *sampler = NULL;
    fb_error err;
    assert_ok(fb_sampler_create(options, vocab, &sampler, &err), &err);
    return sampler;
}

static int32_t next(fb_sampler *sampler, const float *logits) {
    int32_t id = -1;
    fb_error err;
    assert_ok(fb_sampler_next(sampler, logits, &id, &err), &err);
    return id;
}

/* ---- the obvious sampler: the whole history, all scores, everything sorted ---- */

typedef struct naive {
    const fb_sampler_options *options;
    int vocab;
    int32_t history[HISTORY];
    int length;
    uint64_t number;
} naive;

static double naive_score(const naive *n, const float *logits, int id) {
    const fb_sampler_options *o = n->options;
    double score = logits[id];
    int count = 0;
    for (int64_t i = 0; i < o->logit_bias_count; i++)
        if (o->logit_bias[i].id == id) score += o->logit_bias[i].bias;
    for (int64_t i = 1; i <= o->repeat_window && i <= n->length; i++)
        count += n->history[n->length - i] == id;
    if (count > 0 && o->temperature > 0)
        score = score > 0 ? score / (double)o->repeat_penalty : score * (double)o->repeat_penalty;
    if (count > 0) score -= o->presence_penalty;
    for (int i = 0; i < count; i++) score -= o->frequency_penalty;
    return score;
}

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static const double *sorted_scores;
static int by_score(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    if (sorted_scores[x] != sorted_scores[y]) return sorted_scores[x] > sorted_scores[y] ? -1 : 1;
    return x - y;
}

/* The ids, the best score first. */
static void sort_ids(const double *scores, int vocab, int *order) {
    for (int i = 0; i < vocab; i++) order[i] = i;
    sorted_scores = scores;
    qsort(order, (size_t)vocab, sizeof *order, by_score);
}

static int32_t naive_draw(const naive *n, const double *scores, const int *order) {
    const fb_sampler_options *o = n->options;
    double weights[MOST], total = 0, kept = 0, reached = 0;
    int top = o->top_k && o->top_k < n->vocab ? (int)o->top_k : n->vocab, count = 0;
    for (int i = 0; i < top; i++) {
        weights[i] = exp((scores[order[i]] - scores[order[0]]) / (double)o->temperature);
        total += weights[i];
    }
    for (; count < top && weights[count] >= (double)o->min_p && weights[count] > 0; count++) {
        if (o->top_p < 1 && count > 0 && kept >= (double)o->top_p * total) break;
        kept += weights[count];
    }
    uint64_t bits = mix(o->seed + mix(o->sequence) + (n->number + 1) * 0x9e3779b97f4a7c15u);
    double unit = (double)(bits >> 11) / 9007199254740992.0;
    for (int i = 0; i < count; i++)
        if ((reached += weights[i]) > unit * kept) return order[i];
    return order[count - 1];
}

static void naive_accept(naive *n, int32_t id) { n->history[n->length++] = id; }

static int32_t naive_next(naive *n, const float *logits) {
    double scores[MOST];
    int order[MOST];
    for (int i = 0; i < n->vocab; i++) scores[i] = naive_score(n, logits, i);
    sort_ids(scores, n->vocab, order);
    int32_t id = n->options->temperature > 0 ? naive_draw(n, scores, order) : order[0];
    n->number++;
    naive_accept(n, id);
    return id;
}

/* Some logits are equal, some minus infinity. */
static void fill(float *logits, int vocab) {
    for (int i = 0; i < vocab; i++) {
        double value = between(-8, 8);
        logits[i] = (float)(random32() >> 31 ? value : floor(value));
        if (random32() >> 28 == 0) logits[i] = -INFINITY;
    }
    logits[random32() % (uint32_t)vocab] = 3;
}

static void choose_options(fb_sampler_options *o, fb_logit_bias *bias, int vocab, int run) {
    fb_sampler_options_default(o);
    o->seed = random32();
    o->sequence = run % 3 ? random32() : 0;
    o->temperature = run % 4 == 0 ? 0 : (float)between(0.05, 2);
    o->top_k = random32() % 60;
    o->top_p = run % 5 == 0 ? 1 : (float)between(0.5, 1);
    o->min_p = run % 2 ? 0 : (float)between(0, 0.2);
    o->repeat_penalty = (float)between(0.5, 2);
    o->repeat_window = random32() % 100;
    if (run % 3 != 1) o->presence_penalty = (float)between(-2, 2);
    if (run % 3 != 2) o->frequency_penalty = (float)between(-2, 2);
    if (run % 7 == 0) return;
    o->logit_bias = bias;
    o->logit_bias_count = random32() % 20;
    if (o->logit_bias_count > vocab) o->logit_bias_count = vocab;
    for (int64_t i = 0; i < o->logit_bias_count; i++)
        bias[i] = (fb_logit_bias){(int32_t)(random32() % (uint32_t)vocab), (float)between(-12, 12)};
}

static void choices_as_the_obvious_ones(void **state) {
    (void)state;
    float logits[MOST];
    fb_logit_bias bias[20];
    state32 = 1;
    for (int run = 0; run < 300; run++) {
        fb_sampler_options options;
        naive n = {.options = &options, .vocab = 1 + (int)(random32() % (run % 2 ? MOST : 80))};
        choose_options(&options, bias, n.vocab, run);
        fb_sampler *sampler = create(&options, n.vocab);
        for (int i = 0; i < 30; i++) {
            int32_t id = (int32_t)(random32() % (uint32_t)n.vocab);
            fb_sampler_accept(sampler, id);
            naive_accept(&n, id);
        }
        for (int i = 0; i < 40; i++) {
            fill(logits, n.vocab);
            int32_t got = next(sampler, logits), wanted = naive_next(&n, logits);
            if (got != wanted) fail_msg("run %d, choice %d: token %d, expected %d", run, i, got, wanted);
        }
        fb_sampler_free(sampler);
    }
}

/* ---- bias ---- */

static void the_bias_is_copied(void **state) {
    (void)state;
    const float logits[] = {1, 2, 3};
    fb_logit_bias bias[] = {{0, 50}, {0, 60}, {2, -100}};
    fb_sampler_options options;
    fb_sampler_options_default(&options);
    options.temperature = 0;
    options.logit_bias = bias;
    options.logit_bias_count = 3;
    fb_sampler *sampler = create(&options, 3);
    memset(bias, 0xff, sizeof bias);
    assert_int_equal(next(sampler, logits), 0);
    fb_sampler_free(sampler);
}

static void banned_tokens_never_come(void **state) {
    (void)state;
    enum { VOCAB = 100 };
    float logits[VOCAB];
    fb_logit_bias bias[VOCAB];
    fb_sampler_options options;
    fb_error err;
    int32_t id;
    fb_sampler_options_default(&options);
    for (int i = 0; i < VOCAB; i++) bias[i] = (fb_logit_bias){i, i % 2 ? -INFINITY : 0};
    options.logit_bias = bias;
    options.logit_bias_count = VOCAB;
    options.top_k = 0;
    options.top_p = 1;
    options.min_p = 0;
    for (float temperature = 0; temperature <= 100; temperature += 50) {
        options.temperature = temperature;
        fb_sampler *sampler = create(&options, VOCAB);
        for (int i = 0; i < 300; i++) {
            fill(logits, VOCAB);
            logits[i % 50 * 2] = 1;
            assert_int_equal(next(sampler, logits) % 2, 0);
        }
        for (int i = 0; i < VOCAB; i++) logits[i] = i % 2 ? 1 : -INFINITY;
        assert_refused(fb_sampler_next(sampler, logits, &id, &err), FB_ERROR_USAGE, &err,
                       "logit_bias: bans all 50 tokens with a finite logit");
        assert_int_equal(id, 0);
        fb_sampler_free(sampler);
    }
}

static void refuse_bias(fb_logit_bias bias, const char *message) {
    fb_logit_bias list[] = {{0, 1}, bias};
    fb_sampler_options options;
    fb_sampler *sampler;
    fb_error err;
    fb_sampler_options_default(&options);
    options.logit_bias = list;
    options.logit_bias_count = 2;
    assert_int_equal(fb_sampler_create(&options, 10, &sampler, &err), FB_ERROR_USAGE);
    assert_null(sampler);
    assert_string_equal(err.message, message);
}

static void bad_biases(void **state) {
    (void)state;
    fb_sampler_options options;
    fb_sampler *sampler;
    fb_error err;
    refuse_bias((fb_logit_bias){10, 1}, "logit_bias: token: 10 (0 to 9)");
    refuse_bias((fb_logit_bias){-1, 1}, "logit_bias: token: -1 (0 to 9)");
    refuse_bias((fb_logit_bias){INT32_MIN, 1}, "logit_bias: token: -2147483648 (0 to 9)");
    refuse_bias((fb_logit_bias){3, 100.5f}, "logit_bias: 100.5 for token 3 (-100 to 100, or -inf)");
    refuse_bias((fb_logit_bias){3, -101}, "logit_bias: -101 for token 3 (-100 to 100, or -inf)");
    refuse_bias((fb_logit_bias){3, INFINITY}, "logit_bias: inf for token 3 (-100 to 100, or -inf)");
    refuse_bias((fb_logit_bias){3, NAN}, "logit_bias: nan for token 3 (-100 to 100, or -inf)");
    fb_sampler_options_default(&options);
    options.logit_bias_count = 3;
    assert_refused(fb_sampler_create(&options, 10, &sampler, &err), FB_ERROR_USAGE, &err,
                   "logit_bias: NULL (3 of them");
    options.logit_bias_count = 11;
    assert_refused(fb_sampler_create(&options, 10, &sampler, &err), FB_ERROR_USAGE, &err,
                   "logit_bias_count: 11 (0 to 10)");
    options.logit_bias_count = -1;
    assert_refused(fb_sampler_create(&options, 10, &sampler, &err), FB_ERROR_USAGE, &err,
                   "logit_bias_count: -1 (0 to 10)");
}

/* ---- penalties ---- */

static void penalties_at_temperature_0(void **state) {
    (void)state;
    const float logits[] = {3, 2, 1.25f};
    fb_sampler_options options;
    fb_sampler_options_default(&options);
    options.temperature = 0;
    options.repeat_penalty = 100; /* not at temperature 0 */
    options.repeat_window = 3;
    options.frequency_penalty = 1;
    fb_sampler *sampler = create(&options, 3);
    assert_int_equal(next(sampler, logits), 0);
    assert_int_equal(next(sampler, logits), 0); /* 2, as much as token 1, which has the higher id */
    assert_int_equal(next(sampler, logits), 1); /* 1, 2, 1.25 */
    assert_int_equal(next(sampler, logits), 2); /* 1, 1, 1.25 */
    assert_int_equal(next(sampler, logits), 0); /* 2, 1, 0.25: the first is not recent any more */
    fb_sampler_free(sampler);
    options.frequency_penalty = 0;
    options.presence_penalty = 1.5f;
    sampler = create(&options, 3);
    fb_sampler_accept(sampler, 0);
    fb_sampler_accept(sampler, 0);              /* counts once */
    assert_int_equal(next(sampler, logits), 1); /* 1.5, 2, 1.25 */
    assert_int_equal(next(sampler, logits), 0); /* 1.5, 0.5, 1.25 */
    fb_sampler_free(sampler);
    options.repeat_window = 0;
    sampler = create(&options, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(next(sampler, logits), 0);
    fb_sampler_free(sampler);
}

/* A penalised score lies between two floats. A later logit, one of these two, is compared with it exactly. */
static void scores_between_floats(void **state) {
    (void)state;
    float logits[96];
    int above = 0;
    fb_sampler_options options;
    fb_sampler_options_default(&options);
    options.temperature = 0;
    options.presence_penalty = 0.1f;
    for (int run = 0; run < 200; run++) {
        for (int i = 0; i < 96; i++) logits[i] = -10;
        logits[1] = 1 + 0.01f * (float)run;
        double score = (double)logits[1] - (double)options.presence_penalty;
        logits[70] = (float)score;
        fb_sampler *sampler = create(&options, 96);
        fb_sampler_accept(sampler, 1);
        assert_int_equal(next(sampler, logits), (double)logits[70] > score ? 70 : 1);
        above += (double)logits[70] > score;
        fb_sampler_free(sampler);
    }
    assert_true(above > 50 && above < 150);
}

/* ---- log-probabilities ---- */

static void naive_logprobs(const float *logits, int vocab, double *logprobs) {
    long double sum = 0;
    float best = -INFINITY;
    for (int i = 0; i < vocab; i++) best = logits[i] > best ? logits[i] : best;
    for (int i = 0; i < vocab; i++) sum += expl((long double)logits[i] - best);
    for (int i = 0; i < vocab; i++) logprobs[i] = (double)((long double)logits[i] - best - logl(sum));
}

static void near(double got, double wanted) {
    if (got == wanted) return; /* both -inf */
    if (!(fabs(got - wanted) <= 1e-12 * (1 + fabs(wanted)))) fail_msg("%.17g, expected %.17g", got, wanted);
}

/* Of a sampler with every option on: none may matter. */
static void logprobs_as_the_obvious_ones(void **state) {
    (void)state;
    float logits[MOST];
    double wanted[MOST], scores[MOST];
    int order[MOST];
    fb_logit_bias bias[20];
    fb_error err;
    state32 = 2;
    for (int run = 0; run < 200; run++) {
        fb_sampler_options options;
        int vocab = 1 + (int)(random32() % (run % 2 ? MOST : 40));
        choose_options(&options, bias, vocab, run);
        fb_sampler *sampler = create(&options, vocab);
        fill(logits, vocab);
        int32_t chosen = next(sampler, logits);
        naive_logprobs(logits, vocab, wanted);
        for (int i = 0; i < vocab; i++) scores[i] = logits[i];
        sort_ids(scores, vocab, order);
        for (int64_t count = 0; count <= FB_MAX_LOGPROBS && count <= vocab; count++) {
            fb_logprob top[FB_MAX_LOGPROBS + 1];
            double logprob;
            memset(top, 0x5a, sizeof top);
            fb_logprob guard = top[count];
            assert_ok(fb_sampler_logprobs(sampler, logits, chosen, &logprob, count ? top : NULL, count, &err),
                      &err);
            near(logprob, wanted[chosen]);
            for (int i = 0; i < count; i++) {
                assert_int_equal(top[i].id, order[i]);
                near(top[i].logprob, wanted[order[i]]);
            }
            assert_memory_equal(&top[count], &guard, sizeof guard);
        }
        fb_sampler_free(sampler);
    }
}

static void extreme_logprobs(void **state) {
    (void)state;
    const float logits[] = {3.4e38f, -INFINITY, 3.4e38f, -3.4e38f};
    fb_logprob top[4];
    fb_error err;
    double logprob;
    fb_sampler *sampler = create(NULL, 4);
    assert_ok(fb_sampler_logprobs(sampler, logits, 1, &logprob, top, 4, &err), &err);
    assert_true(isinf(logprob) && logprob < 0);
    assert_true(top[0].id == 0 && top[1].id == 2 && top[2].id == 3 && top[3].id == 1);
    near(top[0].logprob, -log(2));
    near(top[1].logprob, -log(2));
    assert_true(top[2].logprob < -6e38 && isfinite(top[2].logprob));
    assert_true(isinf(top[3].logprob) && top[3].logprob < 0);
    fb_sampler_free(sampler);
}

static void bad_logprobs(void **state) {
    (void)state;
    float logits[40] = {0};
    fb_logprob top[40];
    fb_error err;
    double logprob = 1;
    fb_sampler *sampler = create(NULL, 40), *small = create(NULL, 3);
    static const struct {
        bool small;
        int32_t chosen;
        int64_t count;
        float logit;
        const char *message;
    } rows[] = {
        {false, 0, 21, 0, "logprobs: 21 (0 to 20)"},
        {false, 0, -1, 0, "logprobs: -1 (0 to 20)"},
        {true, 0, 4, 0, "logprobs: 4 (0 to 3)"},
        {true, 3, 3, 0, "token: 3 (0 to 2)"},
        {false, -1, 3, 0, "token: -1 (0 to 39)"},
        {false, 0, 3, NAN, "logits: nan for token 2 (finite or -inf)"},
        {false, 0, 0, INFINITY, "logits: inf for token 2 (finite or -inf)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memset(top, 0x5a, sizeof top);
        logits[2] = rows[i].logit;
        assert_int_equal(fb_sampler_logprobs(rows[i].small ? small : sampler, logits, rows[i].chosen,
                                             &logprob, top, rows[i].count, &err),
                         FB_ERROR_USAGE);
        assert_string_equal(err.message, rows[i].message);
        assert_true(logprob == 0);
        if (rows[i].count == 3) assert_true(top[2].id == 0 && top[2].logprob == 0);
    }
    for (int i = 0; i < 40; i++) logits[i] = -INFINITY;
    assert_refused(fb_sampler_logprobs(sampler, logits, 0, &logprob, top, 2, &err), FB_ERROR_USAGE, &err,
                   "logits: all 40 are -inf");
    fb_sampler_free(sampler);
    fb_sampler_free(small);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_as_the_obvious_ones),
        cmocka_unit_test(the_bias_is_copied),
        cmocka_unit_test(banned_tokens_never_come),
        cmocka_unit_test(bad_biases),
        cmocka_unit_test(penalties_at_temperature_0),
        cmocka_unit_test(scores_between_floats),
        cmocka_unit_test(logprobs_as_the_obvious_ones),
        cmocka_unit_test(extreme_logprobs),
        cmocka_unit_test(bad_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
