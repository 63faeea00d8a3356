/* All tokens that a text starts with, found in one walk. */
#ifndef FB_TEXT_TRIE_H
#define FB_TEXT_TRIE_H

#include "base/status.h"

typedef struct fb_trie_node {
    int32_t first; /* its children are the nodes from here up to the next node's `first`, by their bytes */
    int32_t id;    /* of the token that ends here; -1: none */
} fb_trie_node;

typedef struct fb_trie {
    fb_trie_node *nodes;  /* [count + 1], the root first, then by size */
    unsigned char *bytes; /* [count], by which a node is reached from its parent */
    int64_t count;
    int32_t roots[256]; /* the root's children by byte; 0: none */
} fb_trie;

typedef struct fb_trie_token {
    const char *text;
    int32_t size, id;
} fb_trie_token;

/* Sorts the tokens, of which none is empty and no two have the same text. */
fb_status fb_trie_build(fb_trie *trie, fb_trie_token *tokens, int64_t count, fb_error *err);
void fb_trie_free(fb_trie *trie);

/* Where one more byte leads from a node, 0 being the root; 0: nowhere. */
static inline int32_t fb_trie_step(const fb_trie *trie, int32_t node, unsigned char byte) {
    if (node == 0) return trie->roots[byte];
    int32_t low = trie->nodes[node].first, high = trie->nodes[node + 1].first;
    while (high - low > 8) {
        int32_t middle = low + (high - low) / 2;
        if (trie->bytes[middle] <= byte)
            low = middle;
        else
            high = middle;
    }
    for (; low < high; low++)
        if (trie->bytes[low] == byte) return low;
    return 0;
}

#endif
