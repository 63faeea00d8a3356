/* A vocabulary as a tree of bytes, made once for a model, and the masks of JSON's own strings and numbers for
 * it. */
#ifndef FB_SCHEMA_TOKENS_H
#define FB_SCHEMA_TOKENS_H

#include <stdatomic.h>

#include "schema/machine.h"
#include "text/bytes.h"

#define FB_TOKEN_LONGEST 1024 /* bytes; longer ones are never allowed */

/* Where a leaf rule ends in a token: the rest of it belongs to who called. */
typedef struct fb_leaf_exit {
    int32_t node;
    int32_t counted; /* characters that the token had begun before */
} fb_leaf_exit;

/* What a state of a leaf rule allows of the whole vocabulary. */
typedef struct fb_leaf_mask {
    uint64_t *bits; /* tokens that stay inside the rule */
    fb_leaf_exit *exits;
    int32_t *by_count; /* the same tokens by how many characters they begin, … */
    int32_t *starts;   /* … those with n of them from starts[n] to starts[n + 1]; n up to `most` */
    int32_t exit_count, most;
    int64_t bytes; /* of all this */
} fb_leaf_mask;

typedef _Atomic(fb_leaf_mask *) fb_leaf_slot;

typedef struct fb_token_set {
    atomic_int users;
    int64_t vocab, words; /* ids, and words of 64 bits that hold one for each */
    fb_bytes bytes;       /* of all tokens */
    int64_t *offsets;     /* [vocab + 1], in `bytes`; a token without bytes is never allowed */
    int32_t *sorted;      /* ids by their bytes */
    /* The tree, a node before its children: its last byte, its depth, the node behind what is below it, and
     * where its tokens are in `sorted` (up to the next node's). */
    uint8_t *node_bytes;
    uint16_t *depths;
    int32_t *skips, *node_tokens;
    int32_t node_count, longest;
    int32_t *ends; /* that end an answer */
    int32_t end_count;
    uint64_t *not_first; /* tokens that cannot come first; NULL: none */
    fb_machine base;
    int32_t string_end;
    fb_leaf_slot *slots; /* [base.state_count] */
} fb_token_set;

typedef struct fb_token_source {
    int64_t vocab;
    /* Appends the token's bytes, or nothing. */
    fb_status (*bytes_of)(const void *from, int32_t id, fb_bytes *out, fb_error *err);
    bool (*is_end)(const void *from, int32_t id);
    const void *from;
    bool first_loses_spaces; /* a decoder drops all spaces of an answer's first token */
} fb_token_source;

fb_status fb_token_set_create(const fb_token_source *source, fb_token_set **out, fb_error *err);
fb_token_set *fb_token_set_hold(fb_token_set *set);
void fb_token_set_free(fb_token_set *set); /* once for each who holds it */

/* The mask of a leaf state. `*visited` counts the nodes that were looked at. NULL with FB_OK: so few that no
 * mask is worth its memory. */
fb_status fb_leaf_mask_make(const fb_token_set *set, const fb_machine *machine, int32_t state,
                            fb_leaf_mask **out, int64_t *visited, fb_error *err);
void fb_leaf_mask_free(fb_leaf_mask *mask);

/* In a slot: no mask is worth its memory. */
extern fb_leaf_mask fb_leaf_narrow;

static inline void fb_token_set_allow(const fb_token_set *set, int32_t node, uint64_t *mask) {
    for (int32_t i = set->node_tokens[node]; i < set->node_tokens[node + 1]; i++)
        mask[set->sorted[i] >> 6] |= UINT64_C(1) << (set->sorted[i] & 63);
}

#endif
