#include "base/stats.h"

#include <math.h>
#include <stdlib.h>

#define CONFIDENCE 0.95

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    if (isnan(x) || isnan(y)) return isnan(x) - isnan(y);
    return (x > y) - (x < y);
}

void fb_stats_sort(double *values, int64_t count) {
    if (count > 0) qsort(values, (size_t)count, sizeof *values, compare);
}

double fb_stats_quantile(const double *sorted, int64_t count, double q) {
    if (count < 1) return NAN;
    double at = q * (double)(count - 1);
    int64_t below = (int64_t)at;
    if (below + 1 >= count) return sorted[count - 1];
    double part = at - (double)below;
    return part > 0 ? sorted[below] + part * (sorted[below + 1] - sorted[below]) : sorted[below];
}

double fb_stats_median(double *values, int64_t count) {
    fb_stats_sort(values, count);
    return fb_stats_quantile(values, count, 0.5);
}

/* How many values k to drop at each end so that the rest contains the true median with the wanted confidence.
 * This holds for any distribution: the number of values below the median is binomial(count, 1/2), and the
 * interval from the (k + 1)th smallest to the (k + 1)th largest misses the median only when at most k values
 * lie on one side of it. */
static int64_t trim(int64_t count, double *confidence) {
    double term = exp2(-(double)count), tail = term; /* P(at most k) for k = 0 */
    int64_t k = 0;
    *confidence = 1 - 2 * tail;
    for (;;) {
        term *= (double)(count - k) / (double)(k + 1);
        if (k + 1 > (count - 1) / 2 || 1 - 2 * (tail + term) < CONFIDENCE) return k;
        tail += term;
        *confidence = 1 - 2 * tail;
        k++;
    }
}

fb_spread fb_stats_spread(double *values, int64_t count) {
    if (count < 1) return (fb_spread){NAN, NAN, NAN, NAN, NAN, 0};
    fb_stats_sort(values, count);
    fb_spread s = {.median = fb_stats_quantile(values, count, 0.5),
                   .p10 = fb_stats_quantile(values, count, 0.1),
                   .p90 = fb_stats_quantile(values, count, 0.9)};
    int64_t k = trim(count, &s.confidence);
    s.low = values[k];
    s.high = values[count - 1 - k];
    return s;
}
