#include "backend/sequence.h"

#include <stdlib.h>

#include "backend/frame.h"

static const fb_frame *frame_of(const fb_sequence *s) { return &s->executor->frame; }
static const fb_ring *ring_of(const fb_frame *f, int32_t group) {
    return &f->cache[f->group[group].kind].ring;
}

static fb_status open_tables(fb_executor *executor, fb_blocks *pool, fb_sequence *out, fb_error *err) {
    *out = (fb_sequence){.executor = executor, .pool = pool, .entries = executor->frame.entries};
    size_t entries = (size_t)out->entries;
    out->blocks = calloc(entries, sizeof *out->blocks);
    out->table = calloc(entries, sizeof *out->table);
    if (out->blocks && out->table) return FB_OK;
    fb_sequence_close(out);
    return fb_fail_memory(err, "table of the KV cache",
                          (int64_t)(entries * (sizeof *out->blocks + sizeof *out->table)));
}

/* A pool for the blocks of one sequence. It grows if forks keep blocks that the sequence has left. */
static fb_status open_pool(fb_sequence *s, fb_error *err) {
    FB_TRY(fb_blocks_open(s->executor, 0, s->entries, &s->pool, err));
    s->owns_pool = true;
    return FB_OK;
}

fb_status fb_sequence_open(fb_executor *executor, fb_blocks *pool, fb_sequence *out, fb_error *err) {
    FB_TRY(open_tables(executor, pool, out, err));
    fb_status status = pool ? FB_OK : open_pool(out, err);
    if (status != FB_OK) fb_sequence_close(out);
    return status;
}

void fb_sequence_put(fb_sequence *s, int64_t entry, fb_block *block) {
    s->blocks[entry] = fb_block_share(block);
    s->table[entry] = block->memory;
}

fb_status fb_sequence_fork(const fb_sequence *from, fb_sequence *out, fb_error *err) {
    FB_TRY(open_tables(from->executor, from->owns_pool ? NULL : from->pool, out, err));
    for (int64_t i = 0; i < from->entries; i++)
        if (from->blocks[i]) fb_sequence_put(out, i, from->blocks[i]);
    return FB_OK;
}

void fb_sequence_close(fb_sequence *s) {
    for (int64_t i = 0; s->blocks && i < s->entries; i++) fb_block_give(s->blocks[i]);
    if (s->owns_pool) fb_blocks_close(s->pool);
    free(s->blocks);
    free(s->table);
    *s = (fb_sequence){0};
}

/* Whether the entry lacks a block, or shares it. */
static bool lacks(const fb_sequence *s, int64_t entry) {
    return !s->blocks[entry] || fb_block_shared(s->blocks[entry]);
}

/* While a block has several users nobody writes to it. Each user leaves it only after its copy is complete.
 */
static fb_status own_entry(fb_sequence *s, int64_t entry, int64_t position, fb_error *err) {
    if (!s->pool) FB_TRY(open_pool(s, err));
    fb_block *own;
    FB_TRY(fb_blocks_take(s->pool, s->executor, &own, err));
    if (s->blocks[entry]) {
        fb_status status = s->executor->device->backend->cache_copy(s->executor, own->memory,
                                                                    s->blocks[entry]->memory, position, err);
        if (status != FB_OK) {
            fb_block_give(own);
            return status;
        }
        fb_block_give(s->blocks[entry]);
    }
    s->blocks[entry] = own;
    s->table[entry] = own->memory;
    return FB_OK;
}

/* The first position after `position` that lies in another block of the group. */
static int64_t next_block(const fb_frame *f, int32_t group, int64_t position) {
    const fb_ring *r = ring_of(f, group);
    if (f->shift >= 62) return INT64_MAX;
    int64_t size = (int64_t)1 << f->shift, slot = fb_ring_slot(r, position);
    int64_t next = position + size - (slot & (size - 1));
    /* The sinks end, or the ring does, before the block ends. */
    int64_t border = INT64_MAX;
    if (r->window) border = position < r->sinks ? r->sinks : position + r->size - (slot - r->begin);
    return next < border ? next : border;
}

fb_status fb_sequence_own(fb_sequence *s, int64_t from, int64_t to, fb_error *err) {
    const fb_frame *f = frame_of(s);
    for (int32_t group = 0; group < f->groups; group++)
        for (int64_t at = from; at < to; at = next_block(f, group, at)) {
            int64_t entry = fb_frame_entry(f, group, at);
            if (lacks(s, entry)) FB_TRY(own_entry(s, entry, from, err));
        }
    return FB_OK;
}

int64_t fb_sequence_needs(const fb_sequence *s, int64_t from, int64_t to) {
    const fb_frame *f = frame_of(s);
    int64_t count = 0;
    for (int32_t group = 0; group < f->groups; group++)
        for (int64_t at = from; at < to; at = next_block(f, group, at))
            count += lacks(s, fb_frame_entry(f, group, at));
    return count;
}

void fb_sequence_forget(fb_sequence *s, int64_t from, int64_t to) {
    const fb_frame *f = frame_of(s);
    for (int32_t group = 0; group < f->groups; group++) {
        const fb_ring *r = ring_of(f, group);
        int64_t at = from - r->window, next;
        if (at < r->sinks) at = r->sinks;
        for (; r->window && (next = next_block(f, group, at)) <= to - r->window; at = next) {
            int64_t entry = fb_frame_entry(f, group, at);
            fb_block_give(s->blocks[entry]);
            s->blocks[entry] = NULL;
            s->table[entry] = NULL;
        }
    }
}
