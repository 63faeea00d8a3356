/* Added tokens: texts that are cut out, whole, before anything else looks at them. */
#ifndef FB_TEXT_ADDED_H
#define FB_TEXT_ADDED_H

#include "text/bytes.h"

typedef struct fb_added_token {
    int32_t id;
    bool single_word;    /* only where no word character touches it */
    bool lstrip, rstrip; /* takes the white space on that side with it */
} fb_added_token;

typedef struct fb_trie_node {
    int32_t child, sibling; /* -1: none */
    int32_t token;          /* in fb_added.tokens; -1: none ends here */
    unsigned char byte;
} fb_trie_node;

/* A set of added tokens and a trie of their texts. There are two in a tokenizer: one looks at the text as it
 * came, one at the normalised text. */
typedef struct fb_added {
    fb_added_token *tokens;
    int64_t count, capacity;
    fb_trie_node *nodes;
    int64_t node_count, node_capacity;
    int32_t roots[256]; /* by first byte; valid once count > 0 */
} fb_added;

fb_status fb_added_insert(fb_added *added, fb_added_token token, const char *text, int64_t size,
                          fb_error *err);
void fb_added_free(fb_added *added);

/* A part of a text: an added token, or what is between two of them. */
typedef struct fb_part {
    fb_span span;
    int32_t id; /* -1: text */
} fb_part;

typedef struct fb_parts {
    fb_part *data;
    int64_t size, capacity;
} fb_parts;

/* Cuts `text`, valid UTF-8, into `parts`, which are replaced. The leftmost token counts, and of those the
 * longest. */
fb_status fb_added_cut(const fb_added *added, const char *text, int64_t size, fb_parts *parts, fb_error *err);
void fb_parts_free(fb_parts *parts);

#endif
