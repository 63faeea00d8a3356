/* The memory of a sequence's cache: one allocation. */
#include <stdlib.h>

#include "backend/cpu/host/host.h"
#include "base/memory.h"

/* The memory is not cleared: pages that nobody writes to then cost nothing. */
fb_status fb_cpu_cache_take(fb_executor *e, uint8_t **out, fb_error *err) {
    char what[64];
    void *memory;
    fb_frame_cache_name(&e->frame, what, sizeof what);
    FB_TRY(fb_memory_take(what, fb_frame_cache_bytes(&e->frame), &memory, err));
    *out = memory;
    return FB_OK;
}

void fb_cpu_cache_give(fb_executor *e, uint8_t *memory) {
    (void)e;
    free(memory);
}

/* Copies only the slots that tokens before `position` wrote. */
fb_status fb_cpu_cache_copy(fb_executor *e, uint8_t *to, const uint8_t *from, int64_t position,
                            fb_error *err) {
    (void)err;
    const fb_frame *f = &e->frame;
    for (int64_t layer = 0; layer < f->bound.program->layers; layer++) {
        fb_kv old = fb_frame_cache(f, (uint8_t *)(uintptr_t)from, layer), copy = fb_frame_cache(f, to, layer);
        int64_t slots = position ? fb_ring_count(&old.ring, position - 1) : 0;
        slots = (slots + FB_KV_GROUP - 1) / FB_KV_GROUP * FB_KV_GROUP; /* keys are interleaved in groups */
        size_t bytes = (size_t)(slots * old.width * fb_dtype_size(old.dtype));
        for (int64_t head = 0; head < old.heads; head++) {
            memcpy(fb_key_at(&copy, head, 0), fb_key_at(&old, head, 0), bytes);
            memcpy(fb_value_at(&copy, head, 0), fb_value_at(&old, head, 0), bytes);
        }
    }
    return FB_OK;
}
