#include <stdlib.h>

#include "backend/cpu/host/host.h"

static void pass_turn(void *arg) { fb_turn_pass(&((fb_cpu_device *)arg)->base.turn); }

static fb_status device_open(int32_t index, fb_device **out, fb_error *err) {
    (void)index;
    *out = NULL;
    fb_cpu_device *d = calloc(1, sizeof *d);
    if (!d) return fb_fail_memory(err, "cpu device", sizeof *d);
    fb_status status = fb_pool_create(1, &d->pool, err);
    if (status != FB_OK) {
        free(d);
        return status;
    }
    fb_turn_init(&d->base.turn);
    fb_pool_on_idle(d->pool, pass_turn, d);
    d->base.watching = fb_pool_watching(d->pool);
    *out = &d->base;
    return FB_OK;
}

static void device_close(fb_device *device) {
    fb_cpu_device *d = (fb_cpu_device *)device;
    fb_pool_free(d->pool);
    fb_turn_end(&d->base.turn);
    free(d->workspace);
    free(d);
}

fb_status fb_cpu_threads(fb_cpu_device *d, int32_t threads, int32_t *out, fb_error *err) {
    *out = threads ? threads : fb_pool_cores();
    return fb_pool_grow(d->pool, *out, err);
}

const fb_backend fb_backend_cpu = {
    .name = "cpu",
    .device_open = device_open,
    .device_close = device_close,
    .load = fb_cpu_load,
    .unload = fb_cpu_unload,
    .screen = fb_cpu_screen,
    .open = fb_cpu_open,
    .close = fb_cpu_close,
    .run = fb_cpu_run,
    .variant = fb_cpu_variant,
    .threads = fb_cpu_thread_count,
    .holds = true,
    .session_block = 128, /* as many positions as attention reads at a time */
    .cache_take = fb_cpu_cache_take,
    .cache_give = fb_cpu_cache_give,
    .cache_copy = fb_cpu_cache_copy,
};
