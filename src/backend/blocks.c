#include "backend/blocks.h"

#include <pthread.h>
#include <stdlib.h>

#include "backend/frame.h"

/* Blocks that were allocated together. */
typedef struct slab {
    uint8_t *memory;
    struct slab *next;
    fb_block blocks[];
} slab;

struct fb_blocks {
    pthread_mutex_t lock;
    fb_device *device; /* it is counted as a user */
    int64_t limit, each, bytes;
    /* Guarded by the lock: */
    slab *slabs;
    fb_block *free;
    int64_t count, free_count;
    bool closed;
};

static void release(fb_blocks *p) {
    for (slab *s = p->slabs, *next; s; s = next) {
        next = s->next;
        p->device->backend->cache_give(p->device, s->memory);
        free(s);
    }
    fb_device_give(p->device);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* Allocates more blocks. Those that come first in memory are taken first. */
static fb_status grow(fb_blocks *p, fb_executor *e, int64_t count, fb_error *err) {
    int64_t bytes = (int64_t)sizeof(slab) + count * (int64_t)sizeof(fb_block);
    slab *s = malloc((size_t)bytes);
    if (!s) return fb_fail_memory(err, "KV cache", bytes);
    fb_status status = p->device->backend->cache_take(e, count, &s->memory, err);
    if (status != FB_OK) {
        free(s);
        return status;
    }
    s->next = p->slabs;
    p->slabs = s;
    for (int64_t i = count - 1; i >= 0; i--) {
        fb_block *b = &s->blocks[i];
        b->memory = s->memory + i * p->bytes;
        b->pool = p;
        atomic_init(&b->users, 0);
        b->next = p->free;
        p->free = b;
    }
    p->count += count;
    p->free_count += count;
    return FB_OK;
}

fb_status fb_blocks_open(fb_executor *e, int64_t limit, int64_t each, fb_blocks **out, fb_error *err) {
    *out = NULL;
    fb_device *device;
    FB_TRY(fb_device_take(e->device->backend, e->device->index, &device, err));
    fb_blocks *p = calloc(1, sizeof *p);
    if (!p) {
        fb_device_give(device);
        return fb_fail_memory(err, "KV cache", sizeof *p);
    }
    pthread_mutex_init(&p->lock, NULL);
    p->device = device;
    p->limit = limit;
    p->each = each;
    p->bytes = e->frame.block_bytes;
    fb_status status = grow(p, e, limit ? limit : each, err);
    if (status != FB_OK) {
        release(p);
        return status;
    }
    *out = p;
    return FB_OK;
}

void fb_blocks_close(fb_blocks *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    bool last = p->free_count == p->count;
    pthread_mutex_unlock(&p->lock);
    if (last) release(p);
}

static fb_status take(fb_blocks *p, fb_executor *e, fb_block **out, fb_error *err) {
    if (!p->free && p->limit)
        return fb_fail(err, FB_ERROR_MEMORY, "KV cache: all %lld blocks are in use", (long long)p->limit);
    if (!p->free) FB_TRY(grow(p, e, p->each, err));
    fb_block *b = p->free;
    p->free = b->next;
    p->free_count--;
    atomic_store(&b->users, 1);
    *out = b;
    return FB_OK;
}

fb_status fb_blocks_take(fb_blocks *p, fb_executor *e, fb_block **out, fb_error *err) {
    *out = NULL;
    pthread_mutex_lock(&p->lock);
    fb_status status = take(p, e, out, err);
    pthread_mutex_unlock(&p->lock);
    return status;
}

int64_t fb_blocks_free(fb_blocks *p) {
    pthread_mutex_lock(&p->lock);
    int64_t count = p->free_count;
    pthread_mutex_unlock(&p->lock);
    return count;
}

int64_t fb_blocks_count(fb_blocks *p) {
    pthread_mutex_lock(&p->lock);
    int64_t count = p->count;
    pthread_mutex_unlock(&p->lock);
    return count;
}

void fb_block_give(fb_block *b) {
    if (!b || atomic_fetch_sub(&b->users, 1) > 1) return;
    fb_blocks *p = b->pool;
    pthread_mutex_lock(&p->lock);
    b->next = p->free;
    p->free = b;
    p->free_count++;
    bool last = p->closed && p->free_count == p->count;
    pthread_mutex_unlock(&p->lock);
    if (last) release(p);
}
