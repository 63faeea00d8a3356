#include "backend/single.h"

static fb_status open_single(const fb_backend *backend, int32_t index, const fb_bound *file,
                             const fb_executor_options *options, fb_single *s, fb_error *err) {
    bool first;
    FB_TRY(fb_device_take(backend, index, &s->device, err));
    FB_TRY(fb_device_load(s->device, file, options->threads, &s->loaded, &first, err));
    fb_bound bound = {file->program, s->loaded->table};
    FB_TRY(fb_executor_open(s->device, &bound, options, &s->executor, err));
    return fb_sequence_open(s->executor, NULL, &s->sequence, err);
}

fb_status fb_single_open(const fb_backend *backend, int32_t index, const fb_bound *file,
                         const fb_executor_options *options, fb_single *out, fb_error *err) {
    *out = (fb_single){0};
    fb_status status = open_single(backend, index, file, options, out, err);
    if (status != FB_OK) fb_single_close(out);
    return status;
}

void fb_single_close(fb_single *s) {
    fb_sequence_close(&s->sequence);
    fb_executor_close(s->executor);
    if (s->loaded) fb_device_unload(s->device, s->loaded);
    fb_device_give(s->device);
    *s = (fb_single){0};
}

fb_status fb_single_run(fb_single *s, const fb_row *rows, int64_t count, int64_t wanted, float *logits,
                        int32_t *best, fb_error *err) {
    fb_sequence *sequence = &s->sequence;
    fb_batch batch = {.rows = rows,
                      .count = count,
                      .wanted = wanted,
                      .sequences = &sequence,
                      .sequence_count = 1,
                      .logits = logits,
                      .best = best};
    return fb_executor_run(s->executor, &batch, &s->trace, err);
}
