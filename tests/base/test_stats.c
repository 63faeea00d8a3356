#include "base/stats.h"

#include <math.h>

#include "support/support.h"

static void near(double a, double b) { assert_true(fabs(a - b) <= 1e-12 * fabs(b)); }

static void sorted_with_nan_last(void **state) {
    (void)state;
    double values[] = {3, NAN, -1, 2, NAN, 0};
    fb_stats_sort(values, 6);
    const double wanted[] = {-1, 0, 2, 3};
    for (int i = 0; i < 4; i++) assert_true(values[i] == wanted[i]);
    assert_true(isnan(values[4]) && isnan(values[5]));
}

static void quantiles(void **state) {
    (void)state;
    const double values[] = {1, 2, 4, 8, 16};
    near(fb_stats_quantile(values, 5, 0), 1);
    near(fb_stats_quantile(values, 5, 0.1), 1.4);
    near(fb_stats_quantile(values, 5, 0.5), 4);
    near(fb_stats_quantile(values, 5, 0.9), 12.8);
    near(fb_stats_quantile(values, 5, 1), 16);
    assert_true(isnan(fb_stats_quantile(values, 0, 0.5)));
}

static void medians(void **state) {
    (void)state;
    double odd[] = {9, 1, 5}, even[] = {4, 1, 3, 2}, one[] = {7};
    near(fb_stats_median(odd, 3), 5);
    near(fb_stats_median(even, 4), 2.5);
    near(fb_stats_median(one, 1), 7);
    assert_true(isnan(fb_stats_median(one, 0)));
}

/* The textbook's intervals for the median: count, first rank, last rank, confidence. */
static void intervals_of_order_statistics(void **state) {
    (void)state;
    static const struct {
        int count, low, high;
        double confidence;
    } known[] = {
        {1, 1, 1, 0},           {2, 1, 2, 0.5},          {3, 1, 3, 0.75},         {5, 1, 5, 0.9375},
        {6, 1, 6, 0.96875},     {8, 1, 8, 0.9921875},    {9, 2, 8, 0.9609375},    {10, 2, 9, 0.978515625},
        {12, 3, 10, 0.9614258}, {15, 4, 12, 0.96484375}, {20, 6, 15, 0.95861053}, {25, 8, 18, 0.9567147},
    };
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        double values[25];
        for (int i = 0; i < known[k].count; i++) values[i] = known[k].count - i; /* rank r has value r */
        fb_spread s = fb_stats_spread(values, known[k].count);
        assert_true(s.low == known[k].low);
        assert_true(s.high == known[k].high);
        assert_true(fabs(s.confidence - known[k].confidence) < 1e-6);
        near(s.median, (known[k].count + 1) / 2.0);
    }
}

static void spread_of_none(void **state) {
    (void)state;
    fb_spread s = fb_stats_spread(NULL, 0);
    assert_true(isnan(s.median) && isnan(s.low) && s.confidence == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sorted_with_nan_last),
        cmocka_unit_test(quantiles),
        cmocka_unit_test(medians),
        cmocka_unit_test(intervals_of_order_statistics),
        cmocka_unit_test(spread_of_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
