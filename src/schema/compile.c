/* From JSON schemas to rules: values, and what is common to all rules. */
#include "schema/compile.h"

#include <stdlib.h>
#include <string.h>

#define MOST_VALUES 100000
/* Steps to look at the keywords of one of the schemas of a value. */
#define VALUE_STEPS 300

/* ---- rules that wait ---- */

fb_status fb_compile_shape(fb_compiler *c, const fb_shape *shape, int32_t *rule, fb_error *err) {
    if (c->source_count == c->source_room) {
        int32_t room = c->source_room ? 2 * c->source_room : 16;
        fb_shape *sources = realloc(c->sources, (size_t)room * sizeof *sources);
        if (sources) c->sources = sources;
        int32_t *waiting = realloc(c->waiting, (size_t)room * sizeof *waiting);
        if (waiting) c->waiting = waiting;
        if (!sources || !waiting) return fb_fail_memory(err, "schema", room * (int64_t)sizeof *sources);
        c->source_room = room;
    }
    FB_TRY(fb_machine_add_rule(&c->machine, rule, err));
    c->sources[c->source_count] = *shape;
    c->waiting[c->source_count++] = *rule;
    return FB_OK;
}

static fb_rule_memo *find_memo(fb_rule_memo *memo, int32_t slots, const fb_json *schema) {
    uint32_t at = (uint32_t)(((uintptr_t)schema >> 3) * 0x9e3779b1u) & (uint32_t)(slots - 1);
    while (memo[at].schema && memo[at].schema != schema) at = (at + 1) & (uint32_t)(slots - 1);
    return &memo[at];
}

static fb_status grow_memo(fb_compiler *c, fb_error *err) {
    if (2 * c->memo_count < c->memo_slots) return FB_OK;
    int32_t slots = c->memo_slots ? 2 * c->memo_slots : 64;
    fb_rule_memo *memo = calloc((size_t)slots, sizeof *memo);
    if (!memo) return fb_fail_memory(err, "schema", slots * (int64_t)sizeof *memo);
    for (int32_t i = 0; i < c->memo_slots; i++)
        if (c->memo[i].schema) *find_memo(memo, slots, c->memo[i].schema) = c->memo[i];
    free(c->memo);
    c->memo = memo;
    c->memo_slots = slots;
    return FB_OK;
}

/* A base rule that is exactly what the shape allows; -1: none. */
static fb_status find_base(fb_shape *shape, int32_t *rule, fb_error *err) {
    static const char *const others[] = {"enum", "const", NULL};
    unsigned types;
    bool *taken;
    *rule = -1;
    if (shape->never || fb_shape_union(shape, &taken) || fb_shape_has(shape, others)) return FB_OK;
    FB_TRY(fb_shape_types(shape, &types, err));
    const bool strings = fb_shape_has(shape, fb_shape_of_strings),
               numbers = fb_shape_has(shape, fb_shape_of_numbers);
    if (types == FB_SHAPE_STRING && !strings) *rule = FB_RULE_STRING;
    if (types == FB_SHAPE_INTEGER && !numbers) *rule = FB_RULE_INTEGER;
    if (types == (FB_SHAPE_INTEGER | FB_SHAPE_NUMBER) && !numbers) *rule = FB_RULE_NUMBER;
    if (types == FB_SHAPE_OBJECT && !fb_shape_has(shape, fb_shape_of_objects)) *rule = FB_RULE_OBJECT;
    if (types == FB_SHAPE_ANY && !strings && !numbers && !fb_shape_has(shape, fb_shape_of_objects) &&
        !fb_shape_has(shape, fb_shape_of_arrays))
        *rule = FB_RULE_ANY;
    return FB_OK;
}

fb_status fb_compile_rule(fb_compiler *c, const fb_json *schema, int32_t *rule, fb_error *err) {
    FB_TRY(grow_memo(c, err));
    fb_rule_memo *memo = find_memo(c->memo, c->memo_slots, schema);
    if (!memo->schema) {
        fb_shape shape = {.root = c->root, .work = &c->work};
        FB_TRY(fb_shape_add(&shape, schema, err));
        FB_TRY(fb_work_add(&c->work, VALUE_STEPS * (int64_t)shape.count, err));
        FB_TRY(find_base(&shape, rule, err));
        if (*rule < 0) FB_TRY(fb_compile_shape(c, &shape, rule, err));
        *memo = (fb_rule_memo){schema, *rule};
        c->memo_count++;
    }
    *rule = memo->rule;
    return FB_OK;
}

/* ---- values ---- */

fb_status fb_compile_literal(fb_compiler *c, int32_t from, const fb_json *value, int32_t to, fb_error *err) {
    c->text.size = 0;
    FB_TRY(fb_shape_spell(value, &c->text, err));
    return fb_nfa_text(&c->nfa, from, c->text.data, (size_t)c->text.size, to, err);
}

static unsigned type_of(const fb_json *value) {
    const double real = fb_json_real_of(value);
    switch (fb_json_kind_of(value)) {
    case FB_JSON_NULL:
        return FB_SHAPE_NULL;
    case FB_JSON_BOOL:
        return FB_SHAPE_BOOL;
    case FB_JSON_INT:
        return FB_SHAPE_INTEGER;
    case FB_JSON_REAL:
        return real > -1e15 && real < 1e15 && real == (double)(int64_t)real ? FB_SHAPE_INTEGER
                                                                            : FB_SHAPE_NUMBER;
    case FB_JSON_STRING:
        return FB_SHAPE_STRING;
    case FB_JSON_ARRAY:
        return FB_SHAPE_ARRAY;
    default:
        return FB_SHAPE_OBJECT;
    }
}

/* The values of enum and const that have one of the types. */
static fb_status compile_values(fb_compiler *c, const fb_shape *shape, unsigned types, int32_t from,
                                int32_t to, fb_error *err) {
    static const char *const *const others[] = {fb_shape_of_strings, fb_shape_of_numbers, fb_shape_of_arrays,
                                                fb_shape_of_objects};
    const fb_json *values, *constant;
    FB_TRY(fb_shape_get(shape, "enum", &values, err));
    FB_TRY(fb_shape_get(shape, "const", &constant, err));
    for (int i = 0; i < 4; i++)
        if (fb_shape_has(shape, others[i]))
            return fb_fail(err, FB_ERROR_USAGE, "schema: %s with %s or a like keyword: not supported",
                           values ? "enum" : "const", others[i][0]);
    if (values && !fb_json_is(values, FB_JSON_ARRAY))
        return fb_fail(err, FB_ERROR_USAGE, "schema: enum: not an array");
    if (constant && values) {
        bool found = false;
        for (const fb_json *v = fb_json_first(values); v && !found; v = fb_json_next(v)) {
            FB_TRY(fb_shape_compare(shape, v, constant, err));
            found = fb_json_equal(v, constant);
        }
        if (!found) return FB_OK;
    }
    if (constant) return type_of(constant) & types ? fb_compile_literal(c, from, constant, to, err) : FB_OK;
    for (const fb_json *v = fb_json_first(values); v; v = fb_json_next(v)) {
        FB_TRY(fb_work_add(&c->work, FB_VALUE_STEPS, err));
        if (type_of(v) & types) FB_TRY(fb_compile_literal(c, from, v, to, err));
    }
    return FB_OK;
}

static fb_status compile_types(fb_compiler *c, const fb_shape *shape, unsigned types, int32_t from,
                               int32_t to, fb_error *err) {
    if (types & FB_SHAPE_NULL) FB_TRY(fb_nfa_text(&c->nfa, from, "null", 4, to, err));
    if (types & FB_SHAPE_BOOL) {
        FB_TRY(fb_nfa_text(&c->nfa, from, "true", 4, to, err));
        FB_TRY(fb_nfa_text(&c->nfa, from, "false", 5, to, err));
    }
    if (types & (FB_SHAPE_INTEGER | FB_SHAPE_NUMBER))
        FB_TRY(fb_compile_number(c, shape, (types & FB_SHAPE_NUMBER) != 0, from, to, err));
    if (types & FB_SHAPE_STRING) FB_TRY(fb_compile_string(c, shape, from, to, err));
    if (types & FB_SHAPE_ARRAY) FB_TRY(fb_compile_array(c, shape, from, to, err));
    if (types & FB_SHAPE_OBJECT) FB_TRY(fb_compile_object(c, shape, from, to, err));
    return FB_OK;
}

static fb_status compile_value(fb_compiler *c, fb_shape *shape, int32_t from, int32_t to, fb_error *err);

static fb_status compile_union(fb_compiler *c, const fb_shape *shape, const fb_json *all, int32_t from,
                               int32_t to, fb_error *err) {
    if (!fb_json_is(all, FB_JSON_ARRAY))
        return fb_fail(err, FB_ERROR_USAGE, "schema: %s: not an array", fb_json_key(all));
    for (const fb_json *one = fb_json_first(all); one; one = fb_json_next(one)) {
        fb_shape with = *shape;
        FB_TRY(fb_shape_add(&with, one, err));
        FB_TRY(compile_value(c, &with, from, to, err));
    }
    return FB_OK;
}

static fb_status compile_value(fb_compiler *c, fb_shape *shape, int32_t from, int32_t to, fb_error *err) {
    static const char *const literals[] = {"enum", "const", NULL};
    bool *taken;
    const fb_json *all = fb_shape_union(shape, &taken);
    unsigned types;
    int32_t base;
    if (++c->values > MOST_VALUES)
        return fb_fail(err, FB_ERROR_USAGE, "schema: too large: more than %d values and alternatives",
                       MOST_VALUES);
    FB_TRY(fb_work_add(&c->work, VALUE_STEPS * (int64_t)(1 + shape->count), err));
    if (shape->never) return FB_OK;
    if (all) {
        *taken = true;
        return compile_union(c, shape, all, from, to, err);
    }
    FB_TRY(find_base(shape, &base, err));
    if (base >= 0) return fb_nfa_call(&c->nfa, from, base, to, err);
    FB_TRY(fb_shape_types(shape, &types, err));
    if (fb_shape_has(shape, literals)) return compile_values(c, shape, types, from, to, err);
    return compile_types(c, shape, types, from, to, err);
}

/* ---- all of it ---- */

static fb_status compile_waiting(fb_compiler *c, int32_t number, fb_error *err) {
    fb_shape shape = c->sources[number];
    int32_t from, to;
    fb_nfa_clear(&c->nfa);
    FB_TRY(fb_nfa_node_add(&c->nfa, &from, err));
    FB_TRY(fb_nfa_node_add(&c->nfa, &to, err));
    FB_TRY(compile_value(c, &shape, from, to, err));
    return fb_nfa_compile(&c->nfa, from, to, &c->machine, c->waiting[number], err);
}

/* A space or a line end, then the value. */
static fb_status compile_document(fb_compiler *c, int32_t value, int32_t *first, fb_error *err) {
    int32_t from, begin, to;
    fb_nfa_clear(&c->nfa);
    FB_TRY(fb_machine_add_rule(&c->machine, first, err));
    FB_TRY(fb_nfa_node_add(&c->nfa, &from, err));
    FB_TRY(fb_nfa_node_add(&c->nfa, &begin, err));
    FB_TRY(fb_nfa_node_add(&c->nfa, &to, err));
    FB_TRY(fb_nfa_skip(&c->nfa, from, begin, err));
    FB_TRY(fb_nfa_bytes(&c->nfa, from, ' ', ' ', begin, err));
    FB_TRY(fb_nfa_bytes(&c->nfa, from, '\n', '\n', begin, err));
    FB_TRY(fb_nfa_call(&c->nfa, begin, value, to, err));
    return fb_nfa_compile(&c->nfa, from, to, &c->machine, *first, err);
}

static fb_status compile_all(fb_compiler *c, int32_t *first, fb_error *err) {
    int32_t value = FB_RULE_OBJECT, from = c->machine.state_count;
    if (c->root) FB_TRY(fb_compile_rule(c, c->root, &value, err));
    for (int32_t i = 0; i < c->source_count; i++) FB_TRY(compile_waiting(c, i, err));
    FB_TRY(compile_document(c, value, first, err));
    FB_TRY(fb_machine_finish(&c->machine, from, &c->work, err));
    const int height = c->machine.states[c->machine.rules[*first]].height;
    if (height == FB_MACHINE_NEVER)
        return fb_fail(err, FB_ERROR_USAGE, "schema: no document fits, or none that ends within %d levels",
                       FB_MACHINE_DEPTH);
    return FB_OK;
}

fb_status fb_compile_schema(const fb_machine *base, int32_t string_end, const fb_json *schema,
                            fb_machine *out, int32_t *first, fb_error *err) {
    fb_compiler c = {.root = schema, .string_end = string_end};
    c.nfa.work = c.leaf.work = &c.work;
    fb_status status = fb_machine_copy(base, &c.machine, err);
    if (status == FB_OK) status = compile_all(&c, first, err);
    fb_nfa_free(&c.nfa);
    fb_nfa_free(&c.leaf);
    fb_bytes_free(&c.text);
    free(c.sources);
    free(c.waiting);
    free(c.memo);
    free(c.strings);
    if (status != FB_OK) fb_machine_free(&c.machine);
    *out = c.machine;
    return status;
}
