/* What a schema compiles to: rules over bytes that call each other, as the procedures of a parser do. The
 * states of a rule are deterministic; a state may call rules before its next byte, several where a schema has
 * alternatives. A rule reads at least one byte. */
#ifndef FB_SCHEMA_MACHINE_H
#define FB_SCHEMA_MACHINE_H

#include "schema/work.h"

#define FB_MACHINE_STATES 200000
#define FB_MACHINE_RULES  20000
#define FB_MACHINE_DEPTH  256 /* calls that are open at once */
#define FB_MACHINE_NEVER  INT16_MAX

typedef struct fb_machine_edge {
    int32_t to;
    uint8_t low, high; /* bytes, both included */
} fb_machine_edge;

typedef struct fb_machine_call {
    int32_t rule, back; /* the state after it */
} fb_machine_call;

/* Counts of a rule that holds so many commas or characters. */
typedef struct fb_machine_limits {
    int32_t min, max;
} fb_machine_limits;

typedef struct fb_machine_state {
    int32_t edges, edges_end; /* in fb_machine.edges, by their bytes */
    int32_t calls, calls_end;
    int32_t limits; /* -1: none. Else the byte `close` needs a count of `min`, and so do calls; another byte
                       needs less than `max`, and counts */
    int32_t like;   /* a state with the same masks but for the count, which is in `scope`; -1: none */
    int32_t scope;  /* the limits of the rule that the state is in, if it is like another */
    int16_t height; /* calls that must be open at once to end the rule from here; NEVER: it cannot end */
    uint8_t close;
    bool end;  /* the rule may end here */
    bool leaf; /* nothing that is reached from here within the rule calls */
} fb_machine_state;

typedef struct fb_machine {
    fb_machine_state *states;
    fb_machine_edge *edges;
    fb_machine_call *calls;
    fb_machine_limits *limits;
    int32_t *rules; /* the first state of each */
    int32_t state_count, edge_count, call_count, limit_count, rule_count;
    int32_t state_room, edge_room, call_room, limit_room, rule_room;
} fb_machine;

void fb_machine_free(fb_machine *machine);
/* `out` is all zero. */
fb_status fb_machine_copy(const fb_machine *from, fb_machine *out, fb_error *err);

/* Append; the edges and calls of a state follow it. */
fb_status fb_machine_add_rule(fb_machine *machine, int32_t *rule, fb_error *err);
fb_status fb_machine_add_state(fb_machine *machine, int32_t *state, fb_error *err);
fb_status fb_machine_add_edge(fb_machine *machine, int32_t state, int low, int high, int32_t to,
                              fb_error *err);
fb_status fb_machine_add_call(fb_machine *machine, int32_t state, int32_t rule, int32_t back, fb_error *err);
fb_status fb_machine_add_limits(fb_machine *machine, int32_t min, int32_t max, int32_t *limits,
                                fb_error *err);

/* The same states again with other limits, as a rule of their own. */
fb_status fb_machine_clone_rule(fb_machine *machine, int32_t rule, int32_t end, int32_t limits,
                                int32_t *clone, fb_error *err);

/* Once all states from `from` on are there: which are leaves, and how high each is. */
fb_status fb_machine_finish(fb_machine *machine, int32_t from, fb_work *work, fb_error *err);

/* The edge for a byte, or NULL. */
static inline const fb_machine_edge *fb_machine_edge_of(const fb_machine *machine,
                                                        const fb_machine_state *state, uint8_t byte) {
    const fb_machine_edge *edge = machine->edges + state->edges, *end = machine->edges + state->edges_end;
    while (end - edge > 4) {
        const fb_machine_edge *middle = edge + (end - edge) / 2;
        if (middle->low <= byte)
            edge = middle;
        else
            end = middle;
    }
    for (; edge < end; edge++)
        if (byte <= edge->high) return byte >= edge->low ? edge : NULL;
    return NULL;
}

#endif
