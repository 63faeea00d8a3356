/* Arrays and objects of a schema. */
#include <stdlib.h>
#include <string.h>

#include "schema/compile.h"

/* ---- arrays ---- */

typedef struct array_parts {
    const fb_json *prefix; /* or NULL */
    int64_t prefix_count, min, max;
    int32_t rule; /* of the items behind the prefix; -1: there are none */
} array_parts;

static fb_status take_array(fb_compiler *c, const fb_shape *shape, array_parts *a, fb_error *err) {
    const fb_json *items;
    FB_TRY(fb_shape_count(shape, "minItems", 0, &a->min, err));
    FB_TRY(fb_shape_count(shape, "maxItems", INT32_MAX, &a->max, err));
    FB_TRY(fb_shape_get(shape, "prefixItems", &a->prefix, err));
    FB_TRY(fb_shape_get(shape, "items", &items, err));
    if (a->prefix && !fb_json_is(a->prefix, FB_JSON_ARRAY))
        return fb_fail(err, FB_ERROR_USAGE, "schema: prefixItems: not an array");
    if (fb_json_is(items, FB_JSON_ARRAY))
        return fb_fail(err, FB_ERROR_USAGE,
                       "schema: items: an array: not supported (prefixItems has the same meaning)");
    a->prefix_count = (int64_t)fb_json_size(a->prefix);
    a->rule = FB_RULE_ANY;
    if (items) return fb_compile_rule(c, items, &a->rule, err);
    if (a->prefix && a->min <= a->prefix_count) a->rule = -1;
    return FB_OK;
}

/* Between the items from `begin` on and the bracket: the rest of the array, whose items all have one rule. */
static fb_status add_rest(fb_compiler *c, const array_parts *a, int32_t begin, int32_t close, fb_error *err) {
    fb_nfa *nfa = &c->nfa;
    const int64_t min = a->min - a->prefix_count - 1, max = a->max - a->prefix_count - 1; /* commas */
    int32_t after, comma, last = close;
    if (a->rule < 0 || max < 0) return FB_OK;
    FB_TRY(fb_nfa_node_add(nfa, &after, err));
    FB_TRY(fb_nfa_node_add(nfa, &comma, err));
    FB_TRY(fb_nfa_call(nfa, begin, a->rule, after, err));
    FB_TRY(fb_nfa_bytes(nfa, after, ',', ',', comma, err));
    FB_TRY(fb_compile_space(nfa, comma, begin, err));
    if (min > 0 || a->max < INT32_MAX) { /* the bracket itself is here: only these nodes count */
        int32_t limits;
        FB_TRY(fb_machine_add_limits(&c->machine, min > 0 ? (int32_t)min : 0, (int32_t)max, &limits, err));
        FB_TRY(fb_nfa_node_add(nfa, &last, err));
        nfa->nodes[after].limits = nfa->nodes[last].limits = limits;
        nfa->nodes[after].close = nfa->nodes[last].close = ']';
        FB_TRY(fb_nfa_bytes(nfa, after, ']', ']', close, err));
        FB_TRY(fb_nfa_bytes(nfa, last, ']', ']', close, err));
        return fb_nfa_call(nfa, after, FB_RULE_LINE, last, err);
    }
    FB_TRY(fb_nfa_node_add(nfa, &last, err));
    FB_TRY(fb_compile_space(nfa, after, last, err));
    return fb_nfa_bytes(nfa, last, ']', ']', close, err);
}

static fb_status add_array(fb_compiler *c, const array_parts *a, int32_t from, int32_t to, fb_error *err) {
    fb_nfa *nfa = &c->nfa;
    int32_t open, item, after, comma, close;
    FB_TRY(fb_nfa_node_add(nfa, &open, err));
    FB_TRY(fb_nfa_node_add(nfa, &item, err));
    FB_TRY(fb_nfa_bytes(nfa, from, '[', '[', open, err));
    if (a->min == 0) FB_TRY(fb_nfa_bytes(nfa, open, ']', ']', to, err));
    if (a->max == 0) return FB_OK;
    FB_TRY(fb_compile_space(nfa, open, item, err));
    int64_t i = 1; /* items, with the next one */
    for (const fb_json *p = fb_json_first(a->prefix); p && i <= a->max; p = fb_json_next(p), i++) {
        int32_t rule;
        FB_TRY(fb_compile_rule(c, p, &rule, err));
        FB_TRY(fb_nfa_node_add(nfa, &after, err));
        FB_TRY(fb_nfa_node_add(nfa, &comma, err));
        FB_TRY(fb_nfa_node_add(nfa, &close, err));
        FB_TRY(fb_nfa_call(nfa, item, rule, after, err));
        if (i >= a->min) {
            FB_TRY(fb_compile_space(nfa, after, close, err));
            FB_TRY(fb_nfa_bytes(nfa, close, ']', ']', to, err));
        }
        if (i == a->max) return FB_OK;
        FB_TRY(fb_nfa_bytes(nfa, after, ',', ',', comma, err));
        FB_TRY(fb_nfa_node_add(nfa, &item, err));
        FB_TRY(fb_compile_space(nfa, comma, item, err));
    }
    return add_rest(c, a, item, to, err);
}

/* An array that counts is a rule of its own, so that no state counts for two. */
fb_status fb_compile_array(fb_compiler *c, const fb_shape *shape, int32_t from, int32_t to, fb_error *err) {
    array_parts a;
    int32_t rule;
    FB_TRY(take_array(c, shape, &a, err));
    if (a.min > a.max) return FB_OK;
    const bool counts = a.min - a.prefix_count > 1 || a.max < INT32_MAX;
    if (!counts || shape->arrays_only) return add_array(c, &a, from, to, err);
    fb_shape only = *shape;
    only.arrays_only = true;
    FB_TRY(fb_compile_shape(c, &only, &rule, err));
    return fb_nfa_call(&c->nfa, from, rule, to, err);
}

/* ---- objects ---- */

typedef struct member {
    const char *name;
    int64_t at; /* its key as JSON, in the compiler's text */
    int64_t size;
    int32_t rule;
    bool required;
} member;

typedef struct object_parts {
    member *members;
    int32_t count, room;
    int32_t *slots; /* [slot_count]: members by their names' hashes; -1: free */
    int32_t slot_count;
    fb_work *work;
    fb_bytes keys;
    int32_t others; /* the rule of members without a name; -1: there are none */
    int32_t other_key;
} object_parts;

#define MOST_MEMBERS 5000
#define GET_STEPS    20 /* to find a key in an object of JSON */

/* The slot of a member of this name, or the free one where it would be. */
static fb_status find_slot(const object_parts *o, const char *name, int32_t **slot, fb_error *err) {
    const uint32_t mask = (uint32_t)o->slot_count - 1;
    uint64_t hash = 0xcbf29ce484222325u;
    int64_t steps = 2;
    for (const char *c = name; *c; c++, steps++) hash = (hash ^ (uint8_t)*c) * 0x100000001b3u;
    uint32_t at = (uint32_t)(hash ^ hash >> 32) & mask;
    while (o->slots[at] >= 0 && strcmp(o->members[o->slots[at]].name, name) != 0) {
        at = (at + 1) & mask;
        steps += 2;
    }
    *slot = &o->slots[at];
    return fb_work_add(o->work, steps, err);
}

/* NULL: there is none. */
static fb_status find_member(const object_parts *o, const char *name, member **found, fb_error *err) {
    int32_t *slot;
    *found = NULL;
    if (o->count == 0) return FB_OK;
    FB_TRY(find_slot(o, name, &slot, err));
    if (*slot >= 0) *found = &o->members[*slot];
    return FB_OK;
}

static fb_status grow_slots(object_parts *o, fb_error *err) {
    if (2 * o->count < o->slot_count) return FB_OK;
    const int32_t count = o->slot_count ? 2 * o->slot_count : 32;
    int32_t *slots = malloc((size_t)count * sizeof *slots);
    if (!slots) return fb_fail_memory(err, "schema", count * (int64_t)sizeof *slots);
    for (int32_t i = 0; i < count; i++) slots[i] = -1;
    free(o->slots);
    o->slots = slots;
    o->slot_count = count;
    for (int32_t i = 0; i < o->count; i++) {
        int32_t *slot;
        FB_TRY(find_slot(o, o->members[i].name, &slot, err));
        *slot = i;
    }
    return FB_OK;
}

static fb_status add_member(object_parts *o, const char *name, int32_t rule, fb_error *err) {
    if (o->count == MOST_MEMBERS)
        return fb_fail(err, FB_ERROR_USAGE, "schema: an object with more than %d properties", MOST_MEMBERS);
    if (o->count == o->room) {
        int32_t room = o->room ? 2 * o->room : 16;
        member *members = realloc(o->members, (size_t)room * sizeof *members);
        if (!members) return fb_fail_memory(err, "schema", room * (int64_t)sizeof *members);
        o->members = members;
        o->room = room;
    }
    member *m = &o->members[o->count];
    *m = (member){.name = name, .at = o->keys.size, .rule = rule};
    FB_TRY(fb_shape_spell_text(name, strlen(name), &o->keys, err));
    m->size = o->keys.size - m->at;
    int32_t *slot;
    FB_TRY(grow_slots(o, err));
    FB_TRY(find_slot(o, name, &slot, err));
    *slot = o->count++;
    return FB_OK;
}

/* The rule of a property that several schemas have. */
static fb_status property_rule(fb_compiler *c, const fb_shape *shape, const char *name, int32_t *rule,
                               fb_error *err) {
    fb_shape both = {.root = c->root, .work = &c->work};
    const fb_json *only = NULL;
    int found = 0;
    FB_TRY(fb_work_add(&c->work, GET_STEPS * (int64_t)shape->count, err));
    for (int i = 0; i < shape->count; i++) {
        const fb_json *one = fb_json_get(fb_json_get(shape->objects[i], "properties"), name);
        if (!one) continue;
        only = one;
        found++;
        FB_TRY(fb_shape_add(&both, one, err));
    }
    return found == 1 ? fb_compile_rule(c, only, rule, err) : fb_compile_shape(c, &both, rule, err);
}

static fb_status take_properties(fb_compiler *c, const fb_shape *shape, object_parts *o, fb_error *err) {
    for (int i = 0; i < shape->count; i++) {
        const fb_json *properties = fb_json_get(shape->objects[i], "properties");
        if (properties && !fb_json_is(properties, FB_JSON_OBJECT))
            return fb_fail(err, FB_ERROR_USAGE, "schema: properties: not an object");
        for (const fb_json *p = fb_json_first(properties); p; p = fb_json_next(p)) {
            int32_t rule;
            member *known = NULL;
            if (i > 0) FB_TRY(find_member(o, fb_json_key(p), &known, err));
            if (known) continue;
            FB_TRY(property_rule(c, shape, fb_json_key(p), &rule, err));
            FB_TRY(add_member(o, fb_json_key(p), rule, err));
        }
    }
    return FB_OK;
}

/* Those without a property come last, as others would. */
static fb_status take_required(const fb_shape *shape, object_parts *o, fb_error *err) {
    for (int i = 0; i < shape->count; i++) {
        const fb_json *required = fb_json_get(shape->objects[i], "required");
        for (const fb_json *r = fb_json_first(required); r; r = fb_json_next(r)) {
            const char *name = fb_json_text_of(r);
            if (!name || strlen(name) != fb_json_size(r))
                return fb_fail(err, FB_ERROR_USAGE, "schema: required: not an array of names");
            member *m;
            FB_TRY(find_member(o, name, &m, err));
            if (!m) {
                if (o->others < 0)
                    return fb_fail(err, FB_ERROR_USAGE,
                                   "schema: required: \"%.64s\" is no property, and others are not allowed",
                                   name);
                FB_TRY(add_member(o, name, o->others, err));
                m = &o->members[o->count - 1];
            }
            m->required = true;
        }
        if (required && !fb_json_is(required, FB_JSON_ARRAY))
            return fb_fail(err, FB_ERROR_USAGE, "schema: required: not an array of names");
    }
    return FB_OK;
}

/* additionalProperties holds for what is not beside it in the same schema. */
static fb_status check_additional(const fb_shape *shape, const fb_json *owner, fb_error *err) {
    for (int i = 0; i < shape->count; i++)
        for (const fb_json *p = fb_json_first(fb_json_get(shape->objects[i], "properties")); p;
             p = fb_json_next(p)) {
            FB_TRY(fb_work_add(shape->work, GET_STEPS, err));
            if (!fb_json_get(fb_json_get(owner, "properties"), fb_json_key(p)))
                return fb_fail(err, FB_ERROR_USAGE,
                               "schema: additionalProperties beside a property \"%.64s\" of another schema: "
                               "not supported",
                               fb_json_key(p));
        }
    return FB_OK;
}

static fb_status take_others(fb_compiler *c, const fb_shape *shape, object_parts *o, fb_error *err) {
    static const char *const properties[] = {"properties", NULL};
    const fb_json *additional;
    FB_TRY(fb_shape_get(shape, "additionalProperties", &additional, err));
    o->others = fb_shape_has(shape, properties) ? -1 : FB_RULE_ANY;
    if (!additional) return FB_OK;
    o->others = -1;
    const bool free_form = fb_json_is(additional, FB_JSON_BOOL) && fb_json_bool_of(additional);
    for (int i = 0; i < shape->count && !free_form; i++)
        if (fb_json_get(shape->objects[i], "additionalProperties"))
            FB_TRY(check_additional(shape, shape->objects[i], err));
    if (free_form) o->others = FB_RULE_ANY;
    if (fb_json_is(additional, FB_JSON_BOOL)) return FB_OK;
    return fb_compile_rule(c, additional, &o->others, err);
}

/* ---- keys of other members: any but those that have a name ---- */

typedef struct sorted_key {
    const char *text;
    int64_t size;
} sorted_key;

static int compare_keys(const void *left, const void *right) {
    const sorted_key *a = left, *b = right;
    const int order = memcmp(a->text, b->text, (size_t)(a->size < b->size ? a->size : b->size));
    return order != 0 ? order : (a->size > b->size) - (a->size < b->size);
}

#define AVOID_STEPS 30 /* for a state, besides its keys and edges */

/* Where `state` stands in FB_RULE_KEY, having read `depth` bytes that all the keys begin with, `made` does
 * too, until it reads what no key goes on with. Key by key, as far as they differ. */
static fb_status avoid(fb_machine *m, int32_t made, int32_t state, const sorted_key *keys, int32_t count,
                       int64_t depth, fb_work *work, fb_error *err) {
    const int32_t first_edge = m->states[state].edges, last_edge = m->states[state].edges_end;
    FB_TRY(fb_work_add(work, AVOID_STEPS + count + last_edge - first_edge, err));
    int32_t next = 0;
    struct branch {
        int32_t begin, end, made, state;
    } *branches = malloc((size_t)count * sizeof *branches);
    int32_t branch_count = 0;
    if (!branches) return fb_fail_memory(err, "schema", count * (int64_t)sizeof *branches);
    fb_status status = FB_OK;
    while (next < count && status == FB_OK) { /* a state for each byte that a key goes on with */
        struct branch *b = &branches[branch_count++];
        *b = (struct branch){.begin = next, .made = -1};
        while (next < count && keys[next].text[depth] == keys[b->begin].text[depth]) next++;
        b->end = next;
        const fb_machine_edge *edge =
            fb_machine_edge_of(m, &m->states[state], (uint8_t)keys[b->begin].text[depth]);
        b->state = edge ? edge->to : -1;
        if (keys[b->begin].size > depth + 1 && edge) status = fb_machine_add_state(m, &b->made, err);
    }
    int32_t at = 0;
    for (int32_t e = first_edge; e < last_edge && status == FB_OK; e++) {
        const fb_machine_edge edge = m->edges[e];
        int low = edge.low;
        for (; at < branch_count && status == FB_OK; at++) {
            const int byte = (uint8_t)keys[branches[at].begin].text[depth];
            if (byte > edge.high) break;
            if (low < byte) status = fb_machine_add_edge(m, made, low, byte - 1, edge.to, err);
            if (status == FB_OK && branches[at].made >= 0)
                status = fb_machine_add_edge(m, made, byte, byte, branches[at].made, err);
            low = byte + 1;
        }
        if (status == FB_OK && low <= edge.high)
            status = fb_machine_add_edge(m, made, low, edge.high, edge.to, err);
    }
    for (int32_t i = 0; i < branch_count && status == FB_OK; i++)
        if (branches[i].made >= 0)
            status = avoid(m, branches[i].made, branches[i].state, keys + branches[i].begin,
                           branches[i].end - branches[i].begin, depth + 1, work, err);
    free(branches);
    return status;
}

#define LONGEST_KEY 1024 /* bytes: avoid() is as deep */
#define SORT_STEPS  200  /* for a key, besides its bytes */

static fb_status make_other_key(fb_compiler *c, object_parts *o, fb_error *err) {
    o->other_key = FB_RULE_STRING;
    if (o->count == 0) return FB_OK;
    FB_TRY(fb_work_add(&c->work, SORT_STEPS * (int64_t)o->count + o->keys.size, err));
    sorted_key *keys = malloc((size_t)o->count * sizeof *keys);
    if (!keys) return fb_fail_memory(err, "schema", o->count * (int64_t)sizeof *keys);
    fb_status status = FB_OK;
    for (int32_t i = 0; i < o->count; i++) {
        keys[i] = (sorted_key){o->keys.data + o->members[i].at, o->members[i].size};
        if (keys[i].size > LONGEST_KEY)
            status = fb_fail(err, FB_ERROR_USAGE,
                             "schema: a property's name of %lld bytes as JSON (at most %d beside others)",
                             (long long)keys[i].size, LONGEST_KEY);
    }
    qsort(keys, (size_t)o->count, sizeof *keys, compare_keys);
    int32_t made;
    if (status == FB_OK) status = fb_machine_add_rule(&c->machine, &o->other_key, err);
    if (status == FB_OK) status = fb_machine_add_state(&c->machine, &made, err);
    if (status == FB_OK) {
        c->machine.rules[o->other_key] = made;
        status = avoid(&c->machine, made, c->machine.rules[FB_RULE_KEY], keys, o->count, 0, &c->work, err);
    }
    free(keys);
    return status;
}

/* ---- the object itself ---- */

static fb_status add_colon(fb_nfa *nfa, int32_t from, int32_t to, fb_error *err) {
    int32_t space;
    FB_TRY(fb_nfa_node_add(nfa, &space, err));
    FB_TRY(fb_nfa_bytes(nfa, from, ':', ':', space, err));
    FB_TRY(fb_nfa_bytes(nfa, space, ' ', ' ', to, err));
    return fb_nfa_skip(nfa, space, to, err);
}

/* Member i between the node where keys from i on may come and the one behind its value. */
static fb_status add_pair(fb_compiler *c, const object_parts *o, int32_t i, int32_t from, int32_t to,
                          fb_error *err) {
    fb_nfa *nfa = &c->nfa;
    int32_t colon, value;
    FB_TRY(fb_nfa_node_add(nfa, &colon, err));
    FB_TRY(fb_nfa_node_add(nfa, &value, err));
    FB_TRY(add_colon(nfa, colon, value, err));
    if (i == o->count) {
        FB_TRY(fb_nfa_call(nfa, from, o->other_key, colon, err));
        return fb_nfa_call(nfa, value, o->others, to, err);
    }
    const member *m = &o->members[i];
    FB_TRY(fb_nfa_text(nfa, from, o->keys.data + m->at, (size_t)m->size, colon, err));
    return fb_nfa_call(nfa, value, m->rule, to, err);
}

/* `key` is where members from i on may come, `done` lies behind member i. Members without a name come last,
 * any number of them. */
static fb_status add_object(fb_compiler *c, const object_parts *o, int32_t from, int32_t to, fb_error *err) {
    fb_nfa *nfa = &c->nfa;
    const int32_t ends = o->others >= 0 ? o->count + 1 : o->count;
    int32_t open, key, close;
    bool needed = false;
    FB_TRY(fb_nfa_node_add(nfa, &open, err));
    FB_TRY(fb_nfa_node_add(nfa, &close, err));
    FB_TRY(fb_nfa_node_add(nfa, &key, err));
    FB_TRY(fb_nfa_bytes(nfa, from, '{', '{', open, err));
    FB_TRY(fb_compile_space(nfa, open, key, err));
    FB_TRY(fb_nfa_bytes(nfa, close, '}', '}', to, err));
    for (int32_t i = 0; i < o->count; i++) needed = needed || o->members[i].required;
    if (!needed) FB_TRY(fb_nfa_bytes(nfa, open, '}', '}', to, err));
    int32_t last = -1; /* that is required */
    for (int32_t i = 0; i < o->count; i++)
        if (o->members[i].required) last = i;
    for (int32_t i = 0; i < ends; i++) {
        int32_t done, comma, next;
        FB_TRY(fb_nfa_node_add(nfa, &done, err));
        FB_TRY(fb_nfa_node_add(nfa, &comma, err));
        FB_TRY(fb_nfa_node_add(nfa, &next, err));
        FB_TRY(add_pair(c, o, i, key, done, err));
        if (i >= last) FB_TRY(fb_compile_space(nfa, done, close, err));
        FB_TRY(fb_nfa_bytes(nfa, done, ',', ',', comma, err));
        FB_TRY(fb_compile_space(nfa, comma, i == o->count ? key : next, err));
        if (i < o->count && !o->members[i].required) FB_TRY(fb_nfa_skip(nfa, key, next, err));
        key = next;
    }
    return FB_OK;
}

fb_status fb_compile_object(fb_compiler *c, const fb_shape *shape, int32_t from, int32_t to, fb_error *err) {
    object_parts o = {.others = -1, .work = &c->work};
    fb_status status = take_others(c, shape, &o, err);
    if (status == FB_OK) status = take_properties(c, shape, &o, err);
    if (status == FB_OK) status = take_required(shape, &o, err);
    if (status == FB_OK && o.others >= 0) status = make_other_key(c, &o, err);
    if (status == FB_OK) status = add_object(c, &o, from, to, err);
    free(o.members);
    free(o.slots);
    fb_bytes_free(&o.keys);
    return status;
}
