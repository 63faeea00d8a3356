/* A rule while it is built: nodes with any number of edges, of which the machine's states are sets. */
#ifndef FB_SCHEMA_NFA_H
#define FB_SCHEMA_NFA_H

#include "schema/machine.h"
#include "schema/work.h"

typedef struct fb_nfa_edge {
    int32_t to, next; /* the node's next edge; -1: none */
    int32_t rule;     /* a call; -1: bytes, or nothing at all if low is above high */
    uint8_t low, high;
} fb_nfa_edge;

typedef struct fb_nfa_node {
    int32_t first;  /* edge */
    int32_t limits; /* as fb_machine_state's */
    uint8_t close;
} fb_nfa_node;

typedef struct fb_nfa {
    fb_nfa_node *nodes;
    fb_nfa_edge *edges;
    int32_t node_count, edge_count, node_room, edge_room;
    fb_work *work; /* of the whole schema */
} fb_nfa;

void fb_nfa_free(fb_nfa *nfa);
void fb_nfa_clear(fb_nfa *nfa); /* for the next rule */

fb_status fb_nfa_node_add(fb_nfa *nfa, int32_t *node, fb_error *err);
/* `count` nodes with numbers in a row. */
fb_status fb_nfa_nodes_add(fb_nfa *nfa, int32_t count, int32_t *first, fb_error *err);
fb_status fb_nfa_bytes(fb_nfa *nfa, int32_t from, int low, int high, int32_t to, fb_error *err);
fb_status fb_nfa_skip(fb_nfa *nfa, int32_t from, int32_t to, fb_error *err);
fb_status fb_nfa_call(fb_nfa *nfa, int32_t from, int32_t rule, int32_t to, fb_error *err);
/* These bytes one after the other. */
fb_status fb_nfa_text(fb_nfa *nfa, int32_t from, const char *text, size_t size, int32_t to, fb_error *err);

/* Makes states of all that is reached from `entry`; at `end` the rule ends. */
fb_status fb_nfa_compile(fb_nfa *nfa, int32_t entry, int32_t end, fb_machine *machine, int32_t rule,
                         fb_error *err);

/* ---- what rules are made of ---- */

/* Characters as a JSON string spells them: the code points from low to high. `"`, `\` and control characters
 * are escaped, in one way only. */
fb_status fb_nfa_characters(fb_nfa *nfa, int32_t from, uint32_t low, uint32_t high, int32_t to,
                            fb_error *err);

/* A string's content that matches a regular expression, which is UTF-8. */
fb_status fb_nfa_pattern(fb_nfa *nfa, int32_t from, const char *pattern, size_t size, int32_t to,
                         fb_error *err);

/* Any number. */
fb_status fb_nfa_number(fb_nfa *nfa, int32_t from, bool fraction, int32_t to, fb_error *err);
/* The integers from min to max. With `fraction`, all decimal numbers between them, and the bounds themselves
 * unless they are excluded. */
typedef struct fb_nfa_range {
    int64_t min, max;
    bool fraction, above_min, below_max;
} fb_nfa_range;
fb_status fb_nfa_between(fb_nfa *nfa, int32_t from, const fb_nfa_range *range, int32_t to, fb_error *err);

#endif
