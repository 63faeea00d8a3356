/* Sets of nodes become states (the subset construction). */
#include "schema/nfa.h"

#include <stdlib.h>
#include <string.h>

#define MOST_NODES 1000000

/* Steps that a state costs besides its edges, and a place in a sorted set. */
#define STATE_STEPS 100
#define SORT_STEPS  2

void fb_nfa_free(fb_nfa *nfa) {
    free(nfa->nodes);
    free(nfa->edges);
    *nfa = (fb_nfa){.work = nfa->work};
}

void fb_nfa_clear(fb_nfa *nfa) { nfa->node_count = nfa->edge_count = 0; }

/* ---- nodes and edges ---- */

static fb_status fail_size(fb_error *err) {
    return fb_fail(err, FB_ERROR_USAGE, "schema: too large: a part of it has more than %d nodes", MOST_NODES);
}

static fb_status grow(void **array, int32_t count, int32_t *room, size_t element, fb_error *err) {
    if (count < *room) return FB_OK;
    if (count >= MOST_NODES) return fail_size(err);
    int32_t next = *room ? 2 * *room : 256;
    void *grown = realloc(*array, (size_t)next * element);
    if (!grown) return fb_fail_memory(err, "schema", (int64_t)next * (int64_t)element);
    *array = grown;
    *room = next;
    return FB_OK;
}

fb_status fb_nfa_node_add(fb_nfa *nfa, int32_t *node, fb_error *err) {
    FB_TRY(fb_work_add(nfa->work, 1, err));
    FB_TRY(grow((void **)&nfa->nodes, nfa->node_count, &nfa->node_room, sizeof *nfa->nodes, err));
    nfa->nodes[ *node = nfa->node_count++] = (fb_nfa_node){.first = -1, .limits = -1};
    return FB_OK;
}

fb_status fb_nfa_nodes_add(fb_nfa *nfa, int32_t count, int32_t *first, fb_error *err) {
    int32_t node;
    *first = nfa->node_count;
    for (int32_t i = 0; i < count; i++) FB_TRY(fb_nfa_node_add(nfa, &node, err));
    return FB_OK;
}

static fb_status add_edge(fb_nfa *nfa, int32_t from, fb_nfa_edge edge, fb_error *err) {
    FB_TRY(fb_work_add(nfa->work, 1, err));
    FB_TRY(grow((void **)&nfa->edges, nfa->edge_count, &nfa->edge_room, sizeof *nfa->edges, err));
    edge.next = nfa->nodes[from].first;
    nfa->nodes[from].first = nfa->edge_count;
    nfa->edges[nfa->edge_count++] = edge;
    return FB_OK;
}

fb_status fb_nfa_bytes(fb_nfa *nfa, int32_t from, int low, int high, int32_t to, fb_error *err) {
    return add_edge(nfa, from,
                    (fb_nfa_edge){.to = to, .rule = -1, .low = (uint8_t)low, .high = (uint8_t)high}, err);
}

fb_status fb_nfa_skip(fb_nfa *nfa, int32_t from, int32_t to, fb_error *err) {
    return add_edge(nfa, from, (fb_nfa_edge){.to = to, .rule = -1, .low = 1, .high = 0}, err);
}

fb_status fb_nfa_call(fb_nfa *nfa, int32_t from, int32_t rule, int32_t to, fb_error *err) {
    return add_edge(nfa, from, (fb_nfa_edge){.to = to, .rule = rule, .low = 1, .high = 0}, err);
}

fb_status fb_nfa_text(fb_nfa *nfa, int32_t from, const char *text, size_t size, int32_t to, fb_error *err) {
    for (size_t i = 0; i + 1 < size; i++) {
        int32_t next;
        FB_TRY(fb_nfa_node_add(nfa, &next, err));
        FB_TRY(fb_nfa_bytes(nfa, from, (uint8_t)text[i], (uint8_t)text[i], next, err));
        from = next;
    }
    if (size == 0) return fb_nfa_skip(nfa, from, to, err);
    return fb_nfa_bytes(nfa, from, (uint8_t)text[size - 1], (uint8_t)text[size - 1], to, err);
}

/* ---- sets ---- */

typedef struct node_set {
    int64_t at; /* in `members`, in order */
    int32_t count, state;
    uint64_t hash;
} node_set;

typedef struct subsets {
    fb_nfa *nfa;
    fb_machine *machine;
    int32_t end;
    int32_t *members;
    int64_t member_count, member_room;
    node_set *sets; /* by state, less the first one's number */
    int32_t set_count, set_room;
    int32_t *slots; /* a hash table of sets */
    int32_t slot_count;
    int32_t *seen; /* [nodes]: the closure that met it last */
    int32_t closure;
    int32_t *work; /* [nodes]: what a closure has found */
    int32_t found;
} subsets;

static void free_subsets(subsets *s) {
    free(s->members);
    free(s->sets);
    free(s->slots);
    free(s->seen);
    free(s->work);
}

static fb_status prepare(subsets *s, fb_error *err) {
    size_t nodes = (size_t)s->nfa->node_count;
    FB_TRY(fb_work_add(s->nfa->work, s->nfa->node_count + STATE_STEPS, err));
    s->seen = calloc(nodes, sizeof *s->seen);
    s->work = malloc(nodes * sizeof *s->work);
    if (s->seen && s->work) return FB_OK;
    return fb_fail_memory(err, "schema", 2 * (int64_t)(nodes * sizeof *s->work));
}

static void start_closure(subsets *s) {
    s->closure++;
    s->found = 0;
}

static void put(subsets *s, int32_t node) {
    if (s->seen[node] == s->closure) return;
    s->seen[node] = s->closure;
    s->work[s->found++] = node;
}

static int compare(const void *left, const void *right) {
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

/* Sorts what a closure has found, which it often is. Returns the steps that this took. */
static int64_t sort_found(subsets *s) {
    int64_t steps = 0;
    int32_t sorted = 1;
    while (sorted < s->found && s->work[sorted - 1] < s->work[sorted]) sorted++;
    if (sorted >= s->found) return 0;
    qsort(s->work, (size_t)s->found, sizeof *s->work, compare);
    for (int32_t part = 1; part < s->found; part *= 2) steps += (int64_t)SORT_STEPS * s->found;
    return steps;
}

static bool same_set(const subsets *s, const node_set *set, uint64_t hash) {
    return set->hash == hash && set->count == s->found &&
           memcmp(s->members + set->at, s->work, (size_t)s->found * sizeof *s->work) == 0;
}

static fb_status grow_slots(subsets *s, fb_error *err) {
    if (2 * s->set_count < s->slot_count) return FB_OK;
    int32_t count = s->slot_count ? 2 * s->slot_count : 64;
    int32_t *slots = malloc((size_t)count * sizeof *slots);
    if (!slots) return fb_fail_memory(err, "schema", count * (int64_t)sizeof *slots);
    for (int32_t i = 0; i < count; i++) slots[i] = -1;
    for (int32_t i = 0; i < s->set_count; i++) {
        uint32_t at = (uint32_t)s->sets[i].hash & (uint32_t)(count - 1);
        while (slots[at] >= 0) at = (at + 1) & (uint32_t)(count - 1);
        slots[at] = i;
    }
    free(s->slots);
    s->slots = slots;
    s->slot_count = count;
    return FB_OK;
}

static fb_status keep_members(subsets *s, fb_error *err) {
    if (s->member_count + s->found > s->member_room) {
        int64_t room = 2 * (s->member_count + s->found);
        int32_t *members = realloc(s->members, (size_t)room * sizeof *members);
        if (!members) return fb_fail_memory(err, "schema", room * (int64_t)sizeof *members);
        s->members = members;
        s->member_room = room;
    }
    memcpy(s->members + s->member_count, s->work, (size_t)s->found * sizeof *s->work);
    return FB_OK;
}

/* The state of a set that is new. */
static fb_status add_set(subsets *s, uint64_t hash, int32_t *state, fb_error *err) {
    FB_TRY(keep_members(s, err));
    if (s->set_count == s->set_room) {
        int32_t room = s->set_room ? 2 * s->set_room : 64;
        node_set *sets = realloc(s->sets, (size_t)room * sizeof *sets);
        if (!sets) return fb_fail_memory(err, "schema", room * (int64_t)sizeof *sets);
        s->sets = sets;
        s->set_room = room;
    }
    FB_TRY(fb_machine_add_state(s->machine, state, err));
    s->sets[s->set_count++] = (node_set){s->member_count, s->found, *state, hash};
    fb_machine_state *made = &s->machine->states[*state];
    for (int32_t i = 0; i < s->found; i++) {
        const fb_nfa_node *node = &s->nfa->nodes[s->work[i]];
        made->end = made->end || s->work[i] == s->end;
        if (node->limits < 0) continue;
        made->limits = node->limits; /* at most one node of a set counts */
        made->close = node->close;
    }
    s->member_count += s->found;
    return FB_OK;
}

/* The state of what the closure was started with, and what is reached from there without a byte. */
static fb_status end_closure(subsets *s, int32_t *state, fb_error *err) {
    int64_t steps = 1;
    for (int32_t i = 0; i < s->found; i++)
        for (int32_t e = s->nfa->nodes[s->work[i]].first; e >= 0; e = s->nfa->edges[e].next, steps++) {
            const fb_nfa_edge *edge = &s->nfa->edges[e];
            if (edge->rule < 0 && edge->low > edge->high) put(s, edge->to);
        }
    FB_TRY(fb_work_add(s->nfa->work, steps + s->found + sort_found(s), err));
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t i = 0; i < s->found; i++) hash = (hash ^ (uint32_t)s->work[i]) * 0x100000001b3u;
    hash ^= hash >> 29;
    FB_TRY(grow_slots(s, err));
    uint32_t mask = (uint32_t)(s->slot_count - 1), at = (uint32_t)hash & mask;
    for (; s->slots[at] >= 0; at = (at + 1) & mask) {
        FB_TRY(fb_work_add(s->nfa->work, 1, err));
        if (same_set(s, &s->sets[s->slots[at]], hash)) {
            *state = s->sets[s->slots[at]].state;
            return FB_OK;
        }
    }
    s->slots[at] = s->set_count;
    return add_set(s, hash, state, err);
}

/* ---- states ---- */

/* Where a set's byte edges begin or end: between two such bytes all lead to the same set. */
static void find_borders(const subsets *s, const node_set *set, bool borders[257]) {
    memset(borders, 0, 257);
    borders[0] = borders[256] = true;
    for (int32_t i = 0; i < set->count; i++)
        for (int32_t e = s->nfa->nodes[s->members[set->at + i]].first; e >= 0; e = s->nfa->edges[e].next) {
            const fb_nfa_edge *edge = &s->nfa->edges[e];
            if (edge->rule >= 0 || edge->low > edge->high) continue;
            borders[edge->low] = borders[edge->high + 1] = true;
        }
}

static fb_status add_byte(subsets *s, const node_set *set, int low, int high, fb_error *err) {
    int32_t to;
    int64_t steps = 1;
    start_closure(s);
    for (int32_t i = 0; i < set->count; i++)
        for (int32_t e = s->nfa->nodes[s->members[set->at + i]].first; e >= 0;
             e = s->nfa->edges[e].next, steps++) {
            const fb_nfa_edge *edge = &s->nfa->edges[e];
            if (edge->rule < 0 && edge->low <= low && low <= edge->high) put(s, edge->to);
        }
    FB_TRY(fb_work_add(s->nfa->work, steps, err));
    if (s->found == 0) return FB_OK;
    FB_TRY(end_closure(s, &to, err));
    return fb_machine_add_edge(s->machine, set->state, low, high, to, err);
}

typedef struct called {
    int32_t rule, back;
} called;

static int compare_calls(const void *left, const void *right) {
    const called *a = left, *b = right;
    return (a->rule > b->rule) - (a->rule < b->rule);
}

/* Each rule that the set calls once, with all places to come back to. */
static fb_status add_calls(subsets *s, const node_set *set, fb_error *err) {
    int32_t count = 0;
    int64_t steps = 0;
    for (int32_t i = 0; i < set->count; i++)
        for (int32_t e = s->nfa->nodes[s->members[set->at + i]].first; e >= 0;
             e = s->nfa->edges[e].next, steps++)
            count += s->nfa->edges[e].rule >= 0;
    FB_TRY(fb_work_add(s->nfa->work, 2 * steps, err));
    if (count == 0) return FB_OK;
    called *calls = malloc((size_t)count * sizeof *calls);
    if (!calls) return fb_fail_memory(err, "schema", count * (int64_t)sizeof *calls);
    count = 0;
    for (int32_t i = 0; i < set->count; i++)
        for (int32_t e = s->nfa->nodes[s->members[set->at + i]].first; e >= 0; e = s->nfa->edges[e].next)
            if (s->nfa->edges[e].rule >= 0)
                calls[count++] = (called){s->nfa->edges[e].rule, s->nfa->edges[e].to};
    qsort(calls, (size_t)count, sizeof *calls, compare_calls);
    fb_status status = FB_OK;
    for (int32_t i = 0, end; i < count && status == FB_OK; i = end) {
        int32_t back = 0;
        start_closure(s);
        for (end = i; end < count && calls[end].rule == calls[i].rule; end++) put(s, calls[end].back);
        status = end_closure(s, &back, err);
        if (status == FB_OK) status = fb_machine_add_call(s->machine, set->state, calls[i].rule, back, err);
    }
    free(calls);
    return status;
}

static fb_status expand(subsets *s, int32_t number, fb_error *err) {
    const node_set set = s->sets[number];
    bool borders[257];
    FB_TRY(fb_work_add(s->nfa->work, STATE_STEPS, err));
    find_borders(s, &set, borders);
    for (int low = 0, high = 0; low < 256; low = high) {
        do high++;
        while (!borders[high]);
        FB_TRY(add_byte(s, &set, low, high - 1, err));
    }
    return add_calls(s, &set, err);
}

fb_status fb_nfa_compile(fb_nfa *nfa, int32_t entry, int32_t end, fb_machine *machine, int32_t rule,
                         fb_error *err) {
    subsets s = {.nfa = nfa, .machine = machine, .end = end};
    fb_status status = prepare(&s, err);
    if (status == FB_OK) {
        start_closure(&s);
        put(&s, entry);
        status = end_closure(&s, &machine->rules[rule], err);
    }
    for (int32_t i = 0; i < s.set_count && status == FB_OK; i++) status = expand(&s, i, err);
    free_subsets(&s);
    return status;
}
