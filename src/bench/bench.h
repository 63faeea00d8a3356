/* What the benchmarks share: checked options, a prompt, and arrays of samples. */
#ifndef FB_BENCH_BENCH_H
#define FB_BENCH_BENCH_H

#include "base/options.h"

/* Whether a prompt of `prompt` tokens and `gen` after it fit, and `reps` is a number of repetitions. */
fb_status fb_bench_check(const fb_model *model, int64_t prompt, int64_t gen, int64_t reps, fb_error *err);

/* Ids of the vocabulary in no order, the same ones every time. */
void fb_bench_ids(const fb_model *model, int32_t *ids, int64_t count);

int32_t fb_bench_argmax(const float *logits, int64_t count); /* the first among equals */

/* Two runs, step by step, over the same ids. */
typedef struct fb_bench_difference {
    bool bit_identical; /* all logits */
    double max_abs;     /* of a logit; NaN if one is */
    double largest;     /* logit of the first run */
    double gap;         /* by which the first run's best logit beats the one that the other run chose */
} fb_bench_difference;

void fb_bench_compare(fb_bench_difference *difference, const float *a, const float *b, int64_t count);

/* The tokens that the two chose from the first run's logits. */
void fb_bench_compare_best(fb_bench_difference *difference, const float *logits, int32_t a, int32_t b);

/* With `bits`: all bits and tokens are equal. Without: the logits are within the tolerance of a fuse, and
 * tokens differ only where it makes them interchangeable. */
bool fb_bench_agrees(const fb_bench_difference *difference, bool bits, double tolerance);
/* Of this model's logits in sessions with these options, relative to the largest. */
double fb_bench_tolerance(const fb_model *model, const fb_session_options *options);

/* Of a copy of the samples. */
fb_status fb_bench_spread(const double *samples, int64_t count, fb_spread *out, fb_error *err);
/* Of a[i] / b[i]. */
fb_status fb_bench_ratio(const double *a, const double *b, int64_t count, fb_spread *out, fb_error *err);

/* Calls the owner; FB_ERROR_STOPPED: it asks to stop. */
fb_status fb_bench_progress(fb_progress_fn on_progress, void *user, int64_t done, int64_t total,
                            fb_error *err);

/* ---- one stream ---- */

/* Where a stream is looked at: `first` and its multiples by powers of two (of four and so on, where these are
 * too many) up to `last`, and `last` itself unless the `steps` timed before reach it. Returns how many. */
#define FB_BENCH_STREAM_LINES 8
int32_t fb_bench_stream_positions(int64_t first, int64_t last, int64_t steps,
                                  int64_t positions[FB_BENCH_STREAM_LINES]);

/* Whether a dense session that reads ids[0 … prompt + steps) would have said each of the tokens after the
 * prompt, ids[prompt … prompt + steps], or another that is as good within `tolerance`. */
fb_status fb_bench_stream_check(fb_session *dense, const int32_t *ids, int64_t prompt, int64_t steps,
                                double tolerance, fb_error *err);

int64_t fb_bench_resident(void); /* bytes of memory that this process holds; 0: not known */

#endif
