#include "text/trie.h"

#include <stdlib.h>
#include <string.h>

void fb_trie_free(fb_trie *trie) {
    free(trie->nodes);
    free(trie->bytes);
    *trie = (fb_trie){0};
}

static int compare_tokens(const void *left, const void *right) {
    const fb_trie_token *a = left, *b = right;
    int order = memcmp(a->text, b->text, (size_t)(a->size < b->size ? a->size : b->size));
    return order != 0 ? order : (a->size > b->size) - (a->size < b->size);
}

/* One node for each text that some token starts with, and the root. */
static int64_t count_nodes(const fb_trie_token *tokens, int64_t count) {
    int64_t nodes = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t common = 0;
        while (i > 0 && common < tokens[i].size && common < tokens[i - 1].size &&
               tokens[i].text[common] == tokens[i - 1].text[common])
            common++;
        nodes += tokens[i].size - common;
    }
    return nodes;
}

/* The sorted tokens that start with a node's text. */
typedef struct token_range {
    int32_t start, end;
} token_range;

typedef struct building {
    fb_trie *trie;
    const fb_trie_token *tokens;
    token_range *ranges; /* [nodes] */
    int32_t count;       /* nodes so far */
} building;

/* The token that ends at a node of `depth` bytes, and the node's children, which come behind all so far. */
static void expand(building *b, int32_t node, int32_t depth) {
    fb_trie *trie = b->trie;
    token_range range = b->ranges[node];
    trie->nodes[node].first = b->count;
    trie->nodes[node].id = -1;
    if (range.start < range.end && b->tokens[range.start].size == depth)
        trie->nodes[node].id = b->tokens[range.start++].id;
    while (range.start < range.end) {
        char byte = b->tokens[range.start].text[depth];
        token_range child = {range.start, range.start + 1};
        while (child.end < range.end && b->tokens[child.end].text[depth] == byte) child.end++;
        if (node == 0) trie->roots[(unsigned char)byte] = b->count;
        trie->bytes[b->count] = (unsigned char)byte;
        b->ranges[b->count++] = child;
        range.start = child.end;
    }
}

static void build_nodes(building *b, int64_t count) {
    b->ranges[0] = (token_range){0, (int32_t)count};
    b->trie->bytes[0] = 0;
    b->count = 1;
    int32_t depth = 0, level_end = 1;
    for (int32_t node = 0; node < b->trie->count; node++) {
        if (node == level_end) {
            depth++;
            level_end = b->count;
        }
        expand(b, node, depth);
    }
    b->trie->nodes[b->trie->count].first = b->count;
}

fb_status fb_trie_build(fb_trie *trie, fb_trie_token *tokens, int64_t count, fb_error *err) {
    if (count > 0) qsort(tokens, (size_t)count, sizeof *tokens, compare_tokens);
    int64_t nodes = trie->count = count_nodes(tokens, count);
    building b = {.trie = trie, .tokens = tokens};
    trie->nodes = malloc((size_t)(nodes + 1) * sizeof *trie->nodes);
    trie->bytes = malloc((size_t)nodes);
    b.ranges = malloc((size_t)nodes * sizeof *b.ranges);
    bool enough = trie->nodes && trie->bytes && b.ranges;
    if (enough) build_nodes(&b, count);
    free(b.ranges);
    return enough
               ? FB_OK
               : fb_fail_memory(err, "tokens", nodes * (int64_t)(sizeof *trie->nodes + 1 + sizeof *b.ranges));
}
