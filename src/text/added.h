/* Added tokens: texts that are cut out, whole, before anything else looks at them. */
#ifndef FB_TEXT_ADDED_H
#define FB_TEXT_ADDED_H

#include "text/bytes.h"

/* Bytes of all texts of a set. Building takes 30 times that. Published sets have at most some 100 KB. */
#define FB_ADDED_LIMIT (INT64_C(1) << 22)

typedef struct fb_added_token {
    int32_t id;
    int32_t size;        /* bytes of its text; fb_added_insert sets it */
    bool single_word;    /* only where no word character touches it */
    bool lstrip, rstrip; /* takes the white space on that side with it */
} fb_added_token;

/* A node of the automaton stands for a text: the end of a token. */
typedef struct fb_added_node {
    int32_t first; /* its children are the nodes from here up to the next node's `first`, by their bytes */
    int32_t fail;  /* the longest other node that its text starts with; 0, the root: none */
    int32_t token; /* the longest of fb_added.tokens that its text starts with; -1: none */
} fb_added_node;

/* A set of added tokens and an automaton (Aho and Corasick's) of their texts, read from the end: going
 * through a text backwards it knows the longest token that starts at each byte. There are two sets in a
 * tokenizer: one looks at the text as it came, one at the normalised text. */
typedef struct fb_added {
    fb_added_token *tokens;
    int64_t count, capacity;
    fb_bytes texts;       /* reversed, one behind the other; until the automaton is built */
    fb_added_node *nodes; /* [node_count + 1], the root first, then by size; NULL: no tokens */
    unsigned char
        *bytes; /* [node_count], by which a node is reached from its parent: the first of its text */
    int64_t node_count;
    int32_t roots[256]; /* the root's children by byte; 0: none */
} fb_added;

fb_status fb_added_insert(fb_added *added, fb_added_token token, const char *text, int64_t size,
                          fb_error *err);
/* After the last token, and before the first cut. */
fb_status fb_added_build(fb_added *added, fb_error *err);
void fb_added_free(fb_added *added);

/* A part of a text: an added token, or what is between two of them. */
typedef struct fb_part {
    fb_span span;
    int32_t id; /* -1: text */
} fb_part;

/* Where a token could be cut out. */
typedef struct fb_added_match {
    int32_t start;
    int32_t token; /* in fb_added.tokens */
} fb_added_match;

typedef struct fb_parts {
    fb_part *data;
    int64_t size, capacity;
    fb_added_match *matches; /* room */
    int64_t match_count, match_capacity;
} fb_parts;

/* Which tokens may be cut out where. Texts of users must not become special tokens. */
typedef struct fb_added_filter {
    const unsigned char *marks; /* [size of the text]; not 0: a user wrote the byte */
    const bool *guarded;        /* by id: this token may be made of bytes without a mark only */
} fb_added_filter;

/* Cuts `text`, valid UTF-8, into `parts`, which are replaced. The leftmost token counts, and of those the
 * longest. O(n), whatever the tokens are. */
fb_status fb_added_cut(const fb_added *added, const char *text, int64_t size, fb_parts *parts, fb_error *err);
/* The same with a filter, which may be NULL. */
fb_status fb_added_cut_filtered(const fb_added *added, const char *text, int64_t size,
                                const fb_added_filter *filter, fb_parts *parts, fb_error *err);
void fb_parts_free(fb_parts *parts);

#endif
