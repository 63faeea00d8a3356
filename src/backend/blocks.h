/* The memory of caches: a pool of blocks of one size. Sequences share blocks, and count their users.
 *
 * Threads: all functions may be called from several threads at once. */
#ifndef FB_BACKEND_BLOCKS_H
#define FB_BACKEND_BLOCKS_H

#include <stdatomic.h>

#include "backend/backend.h"

typedef struct fb_blocks fb_blocks;

typedef struct fb_block {
    uint8_t *memory; /* the device's */
    fb_blocks *pool;
    atomic_int users;      /* 0: it is free */
    struct fb_block *next; /* the next free one */
} fb_block;

/* A pool for caches of an executor, and of every other one with the same layout of blocks. With a `limit` it
 * allocates so many blocks at once and has never more. Without one (0) it allocates `each` blocks at a time,
 * as they are needed. */
fb_status fb_blocks_open(fb_executor *executor, int64_t limit, int64_t each, fb_blocks **out, fb_error *err);
/* Its owner leaves. The memory is freed once the last block is free. */
void fb_blocks_close(fb_blocks *pool);

/* A block with one user. FB_ERROR_MEMORY: the pool is full, or the device has no more memory. The executor is
 * the one that the pool was opened with, or has the same layout. */
fb_status fb_blocks_take(fb_blocks *pool, fb_executor *executor, fb_block **out, fb_error *err);
int64_t fb_blocks_free(fb_blocks *pool); /* of the blocks that are allocated */
int64_t fb_blocks_count(fb_blocks *pool);

static inline fb_block *fb_block_share(fb_block *block) {
    atomic_fetch_add(&block->users, 1);
    return block;
}
static inline bool fb_block_shared(fb_block *block) { return atomic_load(&block->users) > 1; }
void fb_block_give(fb_block *block); /* NULL: nothing */

#endif
