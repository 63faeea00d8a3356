/* The CUDA backend's device, and its table of functions. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/host/host.h"
#include "backend/cuda/plugin.h"
#include "base/pack.h"

/* "sm_90". A constant string, because reports still use it after the device is closed. */
static const char *isa_of(const fb_cuda_limits *limits) {
    static const char *const names[] = {"sm_80",  "sm_86",  "sm_87",  "sm_88",  "sm_89",  "sm_90",
                                        "sm_100", "sm_101", "sm_103", "sm_110", "sm_120", "sm_121"};
    char name[32];
    snprintf(name, sizeof name, "sm_%d%d", limits->major, limits->minor);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return names[i];
    return "sm_new";
}

static fb_status device_open(int32_t index, fb_device **out, fb_error *err) {
    *out = NULL;
    fb_cuda_device *d = calloc(1, sizeof *d);
    if (!d) return fb_fail_memory(err, "cuda device", sizeof *d);
    fb_status status = fb_gpu_open(index, &d->gpu, err);
    if (status != FB_OK) {
        free(d);
        return status;
    }
    fb_turn_init(&d->base.turn);
    d->isa = isa_of(fb_gpu_limits(d->gpu));
    *out = &d->base;
    return FB_OK;
}

static void device_close(fb_device *device) {
    fb_cuda_device *d = (fb_cuda_device *)device;
    fb_cuda_workspace_leave(d->gpu, d->workspace);
    fb_gpu_close(d->gpu);
    fb_turn_end(&d->base.turn);
    free(d);
}

static const char *variant(const fb_executor *e) { return ((const fb_cuda_device *)e->device)->isa; }
static int32_t threads(const fb_executor *e) {
    (void)e;
    return 0;
}

static const fb_backend backend = {
    .name = "cuda",
    .graphs = true,
    .chooses = true,
    .roles = true,
    .device_open = device_open,
    .device_close = device_close,
    .load = fb_cuda_load,
    .unload = fb_cuda_unload,
    .step_why_not = fb_cuda_persistent_why_not,
    .open = fb_cuda_open,
    .close = fb_cuda_close,
    .run = fb_cuda_run,
    .variant = variant,
    .threads = threads,
    .cache_take = fb_cuda_cache_take,
    .cache_give = fb_cuda_cache_give,
    .cache_copy = fb_cuda_cache_copy,
};

const fb_cuda_plugin *fb_cuda_plugin_get(void) {
    static const fb_cuda_plugin plugin = {FB_VERSION,   FB_CUDA_LAYOUT,  &backend,
                                          fb_gpu_count, fb_gpu_describe, &fb_cuda_ops_functions};
    return &plugin;
}
