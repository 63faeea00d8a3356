#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/stats.h"
#include "bench/bench.h"
#include "fuse/fuse.h"
#include "fuse/tolerance.h"
#include "model/model.h"

#define MAX_REPS 100000

fb_status fb_bench_check(const fb_model *model, int64_t prompt, int64_t gen, int64_t reps, fb_error *err) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    if (prompt < 1) return fb_fail(err, FB_ERROR_USAGE, "prompt: %lld (at least 1)", (long long)prompt);
    if (gen < 1) return fb_fail(err, FB_ERROR_USAGE, "gen: %lld (at least 1)", (long long)gen);
    if (prompt > info.context || gen > info.context - prompt)
        return fb_fail(err, FB_ERROR_USAGE,
                       "prompt and gen: %lld and %lld tokens (the model's context is %lld)",
                       (long long)prompt, (long long)gen, (long long)info.context);
    if (reps < 1 || reps > MAX_REPS)
        return fb_fail(err, FB_ERROR_USAGE, "reps: %lld (1 to %d)", (long long)reps, MAX_REPS);
    return FB_OK;
}

/* A multiplicative congruential sequence (Lehmer's, modulus 2^31 - 1): random enough that no two prompts have
 * equal rows. */
void fb_bench_ids(const fb_model *model, int32_t *ids, int64_t count) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    uint64_t state = 20011;
    for (int64_t i = 0; i < count; i++) {
        state = state * 48271 % 2147483647;
        ids[i] = (int32_t)((int64_t)state % info.vocab);
    }
}

int32_t fb_bench_argmax(const float *logits, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

void fb_bench_compare(fb_bench_difference *d, const float *a, const float *b, int64_t count) {
    if (memcmp(a, b, (size_t)count * sizeof *a) != 0) d->bit_identical = false;
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        if (!(difference <= d->max_abs)) d->max_abs = isnan(d->max_abs) ? d->max_abs : difference;
        d->largest = fmax(d->largest, fabs((double)a[i]));
    }
}

void fb_bench_compare_best(fb_bench_difference *d, const float *logits, int32_t a, int32_t b) {
    double gap = a == b ? 0 : (double)logits[a] - (double)logits[b];
    if (a != b) d->bit_identical = false;
    if (!(gap <= d->gap)) d->gap = isnan(d->gap) ? d->gap : gap;
}

bool fb_bench_agrees(const fb_bench_difference *d, bool bits, double tolerance) {
    if (isnan(d->max_abs)) return false;
    if (bits) return d->bit_identical;
    double limit = tolerance * d->largest;
    return d->max_abs <= limit && d->gap <= 2 * limit;
}

double fb_bench_tolerance(const fb_model *model, const fb_session_options *options) {
    fb_dtype kv;
    if (fb_dtype_parse_kv(options->kv, options->act, &kv, NULL) != FB_OK) return 0;
    return fb_fuse_tolerance(options->act, kv,
                             fb_program_quantizes(&model->spec->program) && !options->float_dot &&
                                 options->act != FB_F64,
                             model->spec->program.layers);
}

fb_status fb_bench_spread(const double *samples, int64_t count, fb_spread *out, fb_error *err) {
    int64_t bytes = count * (int64_t)sizeof *samples;
    double *copy = malloc((size_t)bytes);
    if (!copy) return fb_fail_memory(err, "samples", bytes);
    memcpy(copy, samples, (size_t)bytes);
    *out = fb_stats_spread(copy, count);
    free(copy);
    return FB_OK;
}

fb_status fb_bench_ratio(const double *a, const double *b, int64_t count, fb_spread *out, fb_error *err) {
    int64_t bytes = count * (int64_t)sizeof *a;
    double *ratios = malloc((size_t)bytes);
    if (!ratios) return fb_fail_memory(err, "samples", bytes);
    for (int64_t i = 0; i < count; i++) ratios[i] = a[i] / b[i];
    *out = fb_stats_spread(ratios, count);
    free(ratios);
    return FB_OK;
}

fb_status fb_bench_progress(fb_progress_fn on_progress, void *user, int64_t done, int64_t total,
                            fb_error *err) {
    if (!on_progress || on_progress(user, done, total)) return FB_OK;
    return fb_fail(err, FB_ERROR_STOPPED, "bench: stopped after %lld of %lld repetitions", (long long)done,
                   (long long)total);
}
