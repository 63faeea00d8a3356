/* A stream of tokens on an executor: its cache, as a table of blocks.
 *
 * Threads: one thread at a time uses a sequence. Sequences that share blocks may be used at the same time. */
#ifndef FB_BACKEND_SEQUENCE_H
#define FB_BACKEND_SEQUENCE_H

#include "backend/blocks.h"

struct fb_sequence {
    fb_executor *executor;
    fb_blocks *pool; /* where its blocks come from; NULL: a fork that has not written yet */
    bool owns_pool;
    int64_t entries;   /* of the table: fb_frame.entries */
    fb_block **blocks; /* [entries]; NULL: nothing was written there */
    uint8_t **table;   /* [entries]: their memory, which kernels read; NULL where there is no block */
};

/* Opens an empty sequence. `pool` NULL: it gets one of its own, with memory for all its blocks. */
fb_status fb_sequence_open(fb_executor *executor, fb_blocks *pool, fb_sequence *out, fb_error *err);
/* Opens a sequence that shares all blocks of another, each until one of them writes to it. If the other has a
 * pool of its own, so will this one, once it needs a block. */
fb_status fb_sequence_fork(const fb_sequence *from, fb_sequence *out, fb_error *err);
void fb_sequence_close(fb_sequence *sequence);

/* Gives the sequence blocks of its own for positions [from, to): new ones, and copies of those that it
 * shares. FB_ERROR_MEMORY: there are not enough; then it may have some of them. The caller holds the device's
 * turn. */
fb_status fb_sequence_own(fb_sequence *sequence, int64_t from, int64_t to, fb_error *err);
/* How many blocks that takes from the pool. */
int64_t fb_sequence_needs(const fb_sequence *sequence, int64_t from, int64_t to);
/* Puts a block that another sequence has filled into an empty entry; the sequence becomes one of its users.
 */
void fb_sequence_put(fb_sequence *sequence, int64_t entry, fb_block *block);

/* Where layers forget: gives back the blocks that a token at `from` sees, and none at `to` or later. They may
 * be another sequence's next: no kernel reads a slot that none of its tokens sees. */
void fb_sequence_forget(fb_sequence *sequence, int64_t from, int64_t to);

#endif
