/* The memory of caches. */
#include <stdlib.h>

#include "backend/cpu/host/host.h"
#include "base/memory.h"

/* The memory is not cleared: pages that nobody writes to then cost nothing. */
fb_status fb_cpu_cache_take(fb_executor *e, int64_t count, uint8_t **out, fb_error *err) {
    char what[64];
    void *memory;
    fb_frame_cache_name(&e->frame, what, sizeof what);
    FB_TRY(fb_memory_take(what, count * e->frame.block_bytes, &memory, err));
    *out = memory;
    return FB_OK;
}

void fb_cpu_cache_give(fb_device *device, uint8_t *memory) {
    (void)device;
    free(memory);
}

/* A whole block: what tokens from `position` on left in it is overwritten before it is read. */
fb_status fb_cpu_cache_copy(fb_executor *e, uint8_t *to, const uint8_t *from, int64_t position,
                            fb_error *err) {
    (void)position;
    (void)err;
    memcpy(to, from, (size_t)e->frame.block_bytes);
    return FB_OK;
}
