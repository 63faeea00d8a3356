#include "schema/machine.h"

#include <stdlib.h>
#include <string.h>

void fb_machine_free(fb_machine *m) {
    free(m->states);
    free(m->edges);
    free(m->calls);
    free(m->limits);
    free(m->rules);
    *m = (fb_machine){0};
}

/* ---- growing ---- */

#define MOST_EDGES (1 << 24)

static fb_status grow(void **array, int32_t count, int32_t *room, size_t element, int32_t most,
                      const char *what, fb_error *err) {
    if (count < *room) return FB_OK;
    if (count >= most)
        return fb_fail(err, FB_ERROR_USAGE, "schema: too large: more than %d %s", (int)most, what);
    int32_t next = *room ? 2 * *room : 64;
    void *grown = realloc(*array, (size_t)next * element);
    if (!grown) return fb_fail_memory(err, "schema", (int64_t)next * (int64_t)element);
    *array = grown;
    *room = next;
    return FB_OK;
}

#define GROW(array, number, room, most, what)                                                                \
    FB_TRY(grow((void **)&m->array, m->number, &m->room, sizeof *m->array, most, what, err))

fb_status fb_machine_add_rule(fb_machine *m, int32_t *rule, fb_error *err) {
    GROW(rules, rule_count, rule_room, FB_MACHINE_RULES, "parts");
    m->rules[ *rule = m->rule_count++] = -1;
    return FB_OK;
}

fb_status fb_machine_add_state(fb_machine *m, int32_t *state, fb_error *err) {
    GROW(states, state_count, state_room, FB_MACHINE_STATES, "states");
    *state = m->state_count++;
    m->states[*state] = (fb_machine_state){.edges = m->edge_count,
                                           .edges_end = m->edge_count,
                                           .calls = m->call_count,
                                           .calls_end = m->call_count,
                                           .limits = -1,
                                           .like = -1,
                                           .scope = -1,
                                           .height = FB_MACHINE_NEVER};
    return FB_OK;
}

fb_status fb_machine_add_edge(fb_machine *m, int32_t state, int low, int high, int32_t to, fb_error *err) {
    fb_machine_state *s = &m->states[state];
    if (s->edges == s->edges_end) s->edges = s->edges_end = m->edge_count;
    fb_machine_edge *last = s->edges_end > s->edges ? &m->edges[s->edges_end - 1] : NULL;
    if (last && last->to == to && last->high + 1 == low) {
        last->high = (uint8_t)high;
        return FB_OK;
    }
    GROW(edges, edge_count, edge_room, MOST_EDGES, "edges");
    m->edges[m->edge_count++] = (fb_machine_edge){to, (uint8_t)low, (uint8_t)high};
    m->states[state].edges_end = m->edge_count;
    return FB_OK;
}

fb_status fb_machine_add_call(fb_machine *m, int32_t state, int32_t rule, int32_t back, fb_error *err) {
    fb_machine_state *s = &m->states[state];
    if (s->calls == s->calls_end) s->calls = s->calls_end = m->call_count;
    GROW(calls, call_count, call_room, MOST_EDGES, "calls");
    m->calls[m->call_count++] = (fb_machine_call){rule, back};
    s->calls_end = m->call_count;
    return FB_OK;
}

fb_status fb_machine_add_limits(fb_machine *m, int32_t min, int32_t max, int32_t *limits, fb_error *err) {
    GROW(limits, limit_count, limit_room, FB_MACHINE_STATES, "limits");
    m->limits[ *limits = m->limit_count++] = (fb_machine_limits){min, max};
    return FB_OK;
}

/* ---- copies ---- */

static void *copy_array(const void *from, int32_t count, size_t element) {
    void *copy = malloc((size_t)(count ? count : 1) * element);
    if (copy && count) memcpy(copy, from, (size_t)count * element);
    return copy;
}

fb_status fb_machine_copy(const fb_machine *from, fb_machine *out, fb_error *err) {
    fb_machine m = *from;
    m.state_room = m.state_count;
    m.edge_room = m.edge_count;
    m.call_room = m.call_count;
    m.limit_room = m.limit_count;
    m.rule_room = m.rule_count;
    m.states = copy_array(from->states, m.state_count, sizeof *m.states);
    m.edges = copy_array(from->edges, m.edge_count, sizeof *m.edges);
    m.calls = copy_array(from->calls, m.call_count, sizeof *m.calls);
    m.limits = copy_array(from->limits, m.limit_count, sizeof *m.limits);
    m.rules = copy_array(from->rules, m.rule_count, sizeof *m.rules);
    *out = m;
    if (m.states && m.edges && m.calls && m.limits && m.rules) return FB_OK;
    fb_machine_free(out);
    return fb_fail_memory(err, "schema", (int64_t)from->state_count * (int64_t)sizeof *from->states);
}

fb_status fb_machine_clone_rule(fb_machine *m, int32_t rule, int32_t end, int32_t limits, int32_t *clone,
                                fb_error *err) {
    const int32_t first = m->rules[rule], shift = m->state_count - first;
    for (int32_t from = first; from < end; from++) {
        int32_t to;
        FB_TRY(fb_machine_add_state(m, &to, err));
        fb_machine_state *s = &m->states[to];
        *s = m->states[from];
        s->like = from;
        s->scope = limits;
        if (s->limits >= 0) s->limits = limits;
        const int32_t edges = s->edges, edges_end = s->edges_end;
        s->edges = s->edges_end = m->edge_count;
        for (int32_t i = edges; i < edges_end; i++)
            FB_TRY(
                fb_machine_add_edge(m, to, m->edges[i].low, m->edges[i].high, m->edges[i].to + shift, err));
    }
    FB_TRY(fb_machine_add_rule(m, clone, err));
    m->rules[*clone] = first + shift;
    return FB_OK;
}

/* ---- heights ---- */

/* A count does not change it: what it asks for again was there once before, at the same depth. */
static int height_of(const fb_machine *m, const fb_machine_state *s) {
    int height = s->end ? 0 : FB_MACHINE_NEVER;
    for (int32_t i = s->edges; i < s->edges_end; i++) {
        const int after = m->states[m->edges[i].to].height;
        if (after < height) height = after;
    }
    for (int32_t i = s->calls; i < s->calls_end; i++) {
        const int inside = m->states[m->rules[m->calls[i].rule]].height,
                  after = m->states[m->calls[i].back].height;
        if (inside >= FB_MACHINE_DEPTH || after == FB_MACHINE_NEVER) continue;
        const int both = inside + 1 > after ? inside + 1 : after;
        if (both < height) height = both;
    }
    return height;
}

/* Successors have higher numbers but for loops and calls of earlier rules, so few passes are needed, unless a
 * schema is made to need many. */
fb_status fb_machine_finish(fb_machine *m, int32_t from, fb_work *work, fb_error *err) {
    for (int32_t i = from; i < m->state_count; i++)
        m->states[i].leaf = m->states[i].calls == m->states[i].calls_end;
    for (bool changed = true; changed;) {
        changed = false;
        FB_TRY(fb_work_add(work, 4 * (int64_t)(m->state_count - from) + m->edge_count + m->call_count, err));
        for (int32_t i = m->state_count; i-- > from;) {
            fb_machine_state *s = &m->states[i];
            int height = height_of(m, s);
            if (height < s->height) {
                s->height = (int16_t)height;
                changed = true;
            }
            bool leaf = s->leaf;
            for (int32_t e = s->edges; leaf && e < s->edges_end; e++) leaf = m->states[m->edges[e].to].leaf;
            changed = changed || leaf != s->leaf;
            s->leaf = leaf;
        }
    }
    return FB_OK;
}
