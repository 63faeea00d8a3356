/* Summaries of repeated measurements. */
#ifndef FB_BASE_STATS_H
#define FB_BASE_STATS_H

#include "base/status.h"
#include "fusebox_tools.h"

/* Sorts in ascending order; NaN comes last. */
void fb_stats_sort(double *values, int64_t count);

/* The q-quantile (q from 0 to 1) of sorted values, interpolated linearly; NaN if there are none. */
double fb_stats_quantile(const double *sorted, int64_t count, double q);

/* The median. Sorts the values. */
double fb_stats_median(double *values, int64_t count);
fb_spread fb_stats_spread(double *values, int64_t count);

#endif
