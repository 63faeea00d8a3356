/* The prefix cache: full blocks of tokens that sequences have computed, to be found again by their tokens.
 *
 * An entry is a block of tokens after a given entry, and the blocks of the cache (one for each group of
 * layers) that hold their keys and values. Entries form a tree; its root is the empty text. An entry keeps
 * its blocks in use. Entries whose blocks nobody else uses are evicted when memory is needed: the least
 * recently used one first, and never one that others follow. */
#ifndef FB_RUN_PREFIX_H
#define FB_RUN_PREFIX_H

#include "backend/blocks.h"

typedef struct fb_prefix fb_prefix;
typedef struct fb_prefix_entry fb_prefix_entry;

/* `tokens` of a block, and its blocks of the cache; at most `most` entries. */
fb_status fb_prefix_open(int64_t tokens, int32_t groups, int64_t most, fb_prefix **out, fb_error *err);
void fb_prefix_close(fb_prefix *prefix);

/* Who uses a text holds its last entry, and with it all entries before; what is held is not evicted. These
 * two give their caller, who holds `before` (NULL: the beginning of a text), the entry of `ids`, a block of
 * tokens, after it. It is found by hash, then compared token by token.
 *
 * find: NULL if there is none. */
fb_prefix_entry *fb_prefix_find(fb_prefix *prefix, fb_prefix_entry *before, const int32_t *ids);
/* add: makes it if there is none. NULL: there is no memory, or all entries are held; the caller still holds
 * `before`. */
fb_prefix_entry *fb_prefix_add(fb_prefix *prefix, fb_prefix_entry *before, const int32_t *ids,
                               fb_block *const *blocks);
/* One more who holds the entry and those before it; and one less. NULL: nothing. */
void fb_prefix_hold(fb_prefix *prefix, fb_prefix_entry *entry);
void fb_prefix_release(fb_prefix *prefix, fb_prefix_entry *entry);

/* The entry's block of a group of layers. */
fb_block *fb_prefix_block(const fb_prefix_entry *entry, int32_t group);

/* Evicts one entry; false: there is none that nobody holds. */
bool fb_prefix_evict(fb_prefix *prefix);
int64_t fb_prefix_idle(const fb_prefix *prefix); /* entries that nobody holds */

#endif
