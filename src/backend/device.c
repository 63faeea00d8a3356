/* Shared by all backends: the list of open devices, loaded weights, turns and steps. */
#include <stdlib.h>

#include "backend/frame.h"
#include "backend/sequence.h"

/* Guards the list of open devices and their user counts. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fb_device *devices;

/* ---- devices ---- */

static fb_status find_or_open(const fb_backend *backend, int32_t index, fb_device **out, fb_error *err) {
    for (fb_device *d = devices; d; d = d->next)
        if (d->backend == backend && d->index == index) {
            d->users++;
            *out = d;
            return FB_OK;
        }
    FB_TRY(backend->device_open(index, out, err));
    fb_device *d = *out;
    d->backend = backend;
    d->index = index;
    d->users = 1;
    d->loaded = NULL;
    d->next = devices;
    devices = d;
    return FB_OK;
}

fb_status fb_device_take(const fb_backend *backend, int32_t index, fb_device **out, fb_error *err) {
    *out = NULL;
    pthread_mutex_lock(&lock);
    fb_status status = find_or_open(backend, index, out, err);
    pthread_mutex_unlock(&lock);
    return status;
}

void fb_device_give(fb_device *device) {
    if (!device) return;
    pthread_mutex_lock(&lock);
    if (--device->users == 0) {
        fb_device **at = &devices;
        while (*at != device) at = &(*at)->next;
        *at = device->next;
        device->backend->device_close(device);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- weights ---- */

static fb_status find_or_load(fb_device *d, const fb_bound *file, int32_t threads, fb_loaded **out,
                              bool *first, fb_error *err) {
    *first = false;
    for (fb_loaded *l = d->loaded; l; l = l->next)
        if (l->file == file->weights) {
            l->users++;
            *out = l;
            return FB_OK;
        }
    FB_TRY(d->backend->load(d, file, threads, out, err));
    *first = true;
    fb_loaded *l = *out;
    l->file = file->weights;
    l->users = 1;
    l->next = d->loaded;
    d->loaded = l;
    return FB_OK;
}

fb_status fb_device_load(fb_device *device, const fb_bound *file, int32_t threads, fb_loaded **out,
                         bool *first, fb_error *err) {
    *out = NULL;
    fb_turn_take(&device->turn);
    fb_status status = find_or_load(device, file, threads, out, first, err);
    fb_turn_give(&device->turn);
    return status;
}

void fb_device_unload(fb_device *device, fb_loaded *loaded) {
    if (!loaded) return;
    fb_turn_take(&device->turn);
    if (--loaded->users == 0) {
        fb_loaded **at = &device->loaded;
        while (*at != loaded) at = &(*at)->next;
        *at = loaded->next;
        device->backend->unload(device, loaded);
    }
    fb_turn_give(&device->turn);
}

fb_status fb_device_screen(fb_device *device, const fb_bound *bound, int32_t threads, const char *isa,
                           bool *ready) {
    *ready = false;
    if (!device->backend->screen) return FB_OK;
    fb_turn_take(&device->turn);
    fb_status status = device->backend->screen(device, bound, threads, isa, ready);
    fb_turn_give(&device->turn);
    return status;
}

const char *fb_device_step_why_not(fb_device *device, const fb_bound *bound,
                                   const fb_executor_options *options) {
    if (!device->backend->step_why_not) return "only on the cuda backend";
    fb_turn_take(&device->turn);
    const char *why = device->backend->step_why_not(device, bound, options);
    fb_turn_give(&device->turn);
    return why;
}

/* ---- executors ---- */

fb_status fb_executor_open(fb_device *device, const fb_bound *bound, const fb_executor_options *options,
                           fb_executor **out, fb_error *err) {
    *out = NULL;
    fb_turn_take(&device->turn);
    fb_status status = device->backend->open(device, bound, options, out, err);
    fb_turn_give(&device->turn);
    return status;
}

void fb_executor_close(fb_executor *executor) {
    if (!executor) return;
    fb_device *device = executor->device;
    fb_turn_take(&device->turn);
    device->backend->close(executor);
    fb_turn_give(&device->turn);
}

const char *fb_executor_variant(const fb_executor *executor) {
    return executor->device->backend->variant(executor);
}

int32_t fb_executor_threads(const fb_executor *executor) {
    return executor->device->backend->threads(executor);
}

/* ---- steps ---- */

static bool cancelled(const fb_batch *batch) { return batch->cancel && atomic_load(batch->cancel); }

/* Gives each sequence blocks of its own for the positions of its rows. */
static fb_status own_blocks(const fb_batch *batch, fb_error *err) {
    for (int64_t i = 0, next; i < batch->count; i = next) {
        const fb_row *row = &batch->rows[i];
        for (next = i + 1; next < batch->count && batch->rows[next].sequence == row->sequence &&
                           batch->rows[next].position == batch->rows[next - 1].position + 1;)
            next++;
        FB_TRY(
            fb_sequence_own(batch->sequences[row->sequence], row->position, row->position + next - i, err));
    }
    return FB_OK;
}

static fb_status run(fb_executor *e, const fb_batch *batch, fb_trace *trace, fb_error *err) {
    if (cancelled(batch)) return fb_fail(err, FB_ERROR_STOPPED, "run: cancelled");
    FB_TRY(own_blocks(batch, err));
    FB_TRY(e->device->backend->run(e, batch, trace, err));
    trace->steps++;
    return FB_OK;
}

fb_status fb_executor_run(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err) {
    fb_turn_take(&executor->device->turn);
    fb_status status = run(executor, batch, trace, err);
    if (executor->device->watching)
        fb_turn_give_for_now(&executor->device->turn, executor->device->watching);
    else
        fb_turn_give(&executor->device->turn);
    return status;
}
