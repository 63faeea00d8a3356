/* Shared by the benchmarks: checked options, a prompt, and arrays of samples. */
#ifndef FB_BENCH_BENCH_H
#define FB_BENCH_BENCH_H

#include "base/options.h"

/* Checks that a prompt of `prompt` tokens and `gen` more fit, and that `reps` is valid. */
fb_status fb_bench_check(const fb_model *model, int64_t prompt, int64_t gen, int64_t reps, fb_error *err);

/* Pseudo-random ids of the vocabulary, the same on every call. */
void fb_bench_ids(const fb_model *model, int32_t *ids, int64_t count);

int32_t fb_bench_argmax(const float *logits, int64_t count); /* the first among equals */

/* The difference of two runs over the same ids, updated step by step. */
typedef struct fb_bench_difference {
    bool bit_identical; /* all logits */
    double max_abs;     /* of a logit; NaN if one is */
    double largest;     /* logit of the first run */
    double gap;         /* by which the first run's best logit beats the one that the other run chose */
} fb_bench_difference;

void fb_bench_compare(fb_bench_difference *difference, const float *a, const float *b, int64_t count);

/* Compares the tokens that the two runs chose. `logits` are the first run's. */
void fb_bench_compare_best(fb_bench_difference *difference, const float *logits, int32_t a, int32_t b);

/* With `bits`: all bits and tokens are equal. Without: the logits are within a fuse's tolerance, and tokens
 * differ only where the tolerance allows either. */
bool fb_bench_agrees(const fb_bench_difference *difference, bool bits, double tolerance);
/* The tolerance of this model's logits in sessions with these options, relative to the largest logit. */
double fb_bench_tolerance(const fb_model *model, const fb_session_options *options);

/* The spread of the samples, which are not changed. */
fb_status fb_bench_spread(const double *samples, int64_t count, fb_spread *out, fb_error *err);
/* The spread of a[i] / b[i]. */
fb_status fb_bench_ratio(const double *a, const double *b, int64_t count, fb_spread *out, fb_error *err);

/* Calls on_progress; FB_ERROR_STOPPED if it asks to stop. */
fb_status fb_bench_progress(fb_progress_fn on_progress, void *user, int64_t done, int64_t total,
                            fb_error *err);

/* ---- several sequences: prompts ---- */

/* Fill their parts of the report. `session` has the options' capacity; ids [prompt]. */
fb_status fb_bench_batch_cached(const fb_model *model, const fb_session_options *session, int32_t *ids,
                                fb_bench_batch_report *report, fb_error *err);
fb_status fb_bench_batch_arrival(const fb_model *model, const fb_session_options *session, const int32_t *ids,
                                 int64_t arrival, fb_bench_batch_report *report, fb_error *err);

/* ---- one stream ---- */

/* The positions at which a stream is timed: `first` times powers of two (of four and so on, if these are too
 * many) up to `last`, and `last` itself unless the `steps` timed before it reach it. Returns their number. */
#define FB_BENCH_STREAM_LINES 8
int32_t fb_bench_stream_positions(int64_t first, int64_t last, int64_t steps,
                                  int64_t positions[FB_BENCH_STREAM_LINES]);

/* Checks a stream's tokens against a dense session that reads ids[0 … prompt + steps). It must choose each of
 * the tokens ids[prompt … prompt + steps], or one that is as good within `tolerance`. */
fb_status fb_bench_stream_check(fb_session *dense, const int32_t *ids, int64_t prompt, int64_t steps,
                                double tolerance, fb_error *err);

int64_t fb_bench_resident(void); /* bytes of memory that this process holds; 0: not known */

#endif
