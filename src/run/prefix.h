/* The prefix cache: full blocks of tokens that sequences have computed, to be found again by their tokens.
 *
 * An entry is a block of tokens after a given entry, and the blocks of the cache (one for each group of
 * layers) that hold their keys and values. Entries form a tree; its root is the empty text. An entry keeps
 * its blocks in use.
 *
 * An entry consists of parts. Part 0 is the entry itself, with the blocks of layers that see all tokens. Each
 * other part has the blocks of layers that see a window. Once the window is past them, nobody needs them to
 * go on with the text, so they may be evicted while the entry stays. A text can be gone on with if the blocks
 * are there that a token after it sees.
 *
 * When memory is needed, the part that was used least recently is evicted. An entry that others follow stays.
 */
#ifndef FB_RUN_PREFIX_H
#define FB_RUN_PREFIX_H

#include "backend/blocks.h"
#include "backend/frame.h"

typedef struct fb_prefix fb_prefix;
typedef struct fb_prefix_entry fb_prefix_entry;

/* For caches of a frame that has blocks, from a pool of so many. */
fb_status fb_prefix_open(const fb_frame *frame, int64_t blocks, fb_prefix **out, fb_error *err);
void fb_prefix_close(fb_prefix *prefix);

/* The tokens before an entry; up to its end (NULL: 0). And up to the end of any entry after it. */
int64_t fb_prefix_begin(const fb_prefix_entry *entry);
int64_t fb_prefix_end(const fb_prefix_entry *entry);
int64_t fb_prefix_next_end(const fb_prefix *prefix, const fb_prefix_entry *entry);
fb_prefix_entry *fb_prefix_before(const fb_prefix_entry *entry);
/* Whether a token at `position` or a later one sees what the entry's block of a group holds. */
bool fb_prefix_sees(const fb_prefix *prefix, const fb_prefix_entry *entry, int32_t group, int64_t position);
/* The entry's block of a group of layers; NULL: it was evicted, or never there. */
fb_block *fb_prefix_block(const fb_prefix_entry *entry, int32_t group);

/* The last entry of the longest beginning of `ids`, of at most `most` tokens, that can be gone on with; NULL:
 * there is none. It is found by hash, then compared token by token. It is not held yet. */
fb_prefix_entry *fb_prefix_find(const fb_prefix *prefix, const int32_t *ids, int64_t most);

/* Who uses a text holds its last entry and all entries before; of their other parts, those that a token at
 * `position` sees. What is held is not evicted. NULL: nothing. */
void fb_prefix_hold(fb_prefix *prefix, fb_prefix_entry *entry, int64_t position);
void fb_prefix_release(fb_prefix *prefix, fb_prefix_entry *entry, int64_t position);
/* Who held for position `from` holds for `to` from now on, which is no less. */
void fb_prefix_advance(fb_prefix *prefix, fb_prefix_entry *entry, int64_t from, int64_t to);
/* Gives its caller, who holds `before` for `position`, the entry of `ids` after it, held too; makes it if
 * there is none. It gets the blocks that it lacks and that a token at `position` sees. NULL: there is no
 * memory, or all entries are held; the caller still holds `before`. */
fb_prefix_entry *fb_prefix_add(fb_prefix *prefix, fb_prefix_entry *before, const int32_t *ids,
                               fb_block *const *blocks, int64_t position);

/* Evicts a part of an entry; false: nobody holds none. */
bool fb_prefix_evict(fb_prefix *prefix);
int64_t fb_prefix_idle(const fb_prefix *prefix); /* blocks in parts that nobody holds */

#endif
