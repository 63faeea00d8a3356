#include "chat/eval.h"

#include <string.h>

/* ---- scopes ---- */

fb_status fb_jinja_scope_push(fb_jinja_run *run, fb_jinja_scope *parent) {
    fb_jinja_scope *scope = fb_jinja_arena_take(&run->base.arena, sizeof *scope);
    if (!scope) return fb_jinja_fail_memory(&run->base);
    scope->parent = parent;
    run->scope = scope;
    return FB_OK;
}

fb_status fb_jinja_assign(fb_jinja_run *run, fb_jinja_text name, fb_jinja_value value) {
    return fb_jinja_dict_set(run, &run->scope->names, fb_jinja_string(name), value);
}

static fb_status eval_name(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    for (const fb_jinja_scope *scope = run->scope; scope; scope = scope->parent) {
        FB_TRY(fb_jinja_work(run, scope->names.count / 8));
        const fb_jinja_value *found = fb_jinja_dict_named(&scope->names, node->name);
        if (!found) continue;
        *out = *found;
        return FB_OK;
    }
    const fb_jinja_callable *function = fb_jinja_find_callable(fb_jinja_functions, node->name);
    *out = function ? (fb_jinja_value){.kind = FB_JINJA_FUNCTION, .function = function}
                    : fb_jinja_undefined(node->name);
    return FB_OK;
}

/* ---- expressions ---- */

static fb_status eval_list(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    FB_TRY(fb_jinja_new_list(run, node->kind == FB_NODE_TUPLE ? FB_JINJA_TUPLE : FB_JINJA_LIST, 0, out));
    for (const fb_jinja_node *n = node->list; n; n = n->next) {
        fb_jinja_value item;
        FB_TRY(fb_jinja_eval(run, n, &item));
        FB_TRY(fb_jinja_append(run, out->list, item));
    }
    return FB_OK;
}

static fb_status eval_dict(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    FB_TRY(fb_jinja_new_dict(run, FB_JINJA_DICT, out));
    for (const fb_jinja_node *n = node->list; n; n = n->next->next) {
        fb_jinja_value key, value;
        FB_TRY(fb_jinja_eval(run, n, &key));
        FB_TRY(fb_jinja_eval(run, n->next, &value));
        FB_TRY(fb_jinja_dict_set(run, out->dict, key, value));
    }
    return FB_OK;
}

static fb_status eval_item(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    fb_jinja_value object, key, bounds[3] = {fb_jinja_none(), fb_jinja_none(), fb_jinja_none()};
    FB_TRY(fb_jinja_eval(run, node->left, &object));
    if (node->right->kind != FB_NODE_SLICE) {
        FB_TRY(fb_jinja_eval(run, node->right, &key));
        return fb_jinja_item(run, &object, &key, out);
    }
    const fb_jinja_node *parts[] = {node->right->left, node->right->right, node->right->other};
    for (int i = 0; i < 3; i++)
        if (parts[i]) FB_TRY(fb_jinja_eval(run, parts[i], &bounds[i]));
    return fb_jinja_slice(run, &object, bounds, out);
}

static fb_status compare_one(fb_jinja_run *run, int32_t op, const fb_jinja_value *a, const fb_jinja_value *b,
                             bool *out) {
    int order;
    switch (op) {
    case FB_JINJA_EQ:
        return fb_jinja_equal(run, a, b, out);
    case FB_JINJA_NE:
        FB_TRY(fb_jinja_equal(run, a, b, out));
        *out = !*out;
        return FB_OK;
    case FB_JINJA_IN:
        return fb_jinja_contains(run, b, a, out);
    case FB_JINJA_NOT_IN:
        FB_TRY(fb_jinja_contains(run, b, a, out));
        *out = !*out;
        return FB_OK;
    default:
        break;
    }
    /* Nothing is less or more than NaN, nor equal to it. */
    bool nan = (a->kind == FB_JINJA_FLOAT && a->real != a->real) ||
               (b->kind == FB_JINJA_FLOAT && b->real != b->real);
    FB_TRY(fb_jinja_compare(run, a, b, &order));
    *out = !nan && (op == FB_JINJA_LT   ? order < 0
                    : op == FB_JINJA_LE ? order <= 0
                    : op == FB_JINJA_GT ? order > 0
                                        : order >= 0);
    return FB_OK;
}

static fb_status eval_compare(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    fb_jinja_value left, right;
    bool holds = true;
    FB_TRY(fb_jinja_eval(run, node->left, &left));
    for (const fb_jinja_node *n = node->list; n && holds; n = n->next) {
        FB_TRY(fb_jinja_eval(run, n->left, &right));
        FB_TRY(compare_one(run, n->op, &left, &right, &holds));
        left = right;
    }
    *out = fb_jinja_bool(holds);
    return FB_OK;
}

static fb_status eval_binary(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    fb_jinja_value left, right;
    FB_TRY(fb_jinja_eval(run, node->left, &left));
    FB_TRY(fb_jinja_eval(run, node->right, &right));
    run->base.line = node->line;
    return fb_jinja_binary(run, (fb_jinja_op)node->op, &left, &right, out);
}

static fb_status eval_sign(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    fb_jinja_value v;
    FB_TRY(fb_jinja_eval(run, node->left, &v));
    FB_TRY(fb_jinja_need(run, &v));
    if (!fb_jinja_is_number(&v)) return fb_jinja_fail(&run->base, "a sign before %s", fb_jinja_type_name(&v));
    if (node->kind == FB_NODE_PLUS)
        *out = v.kind == FB_JINJA_FLOAT ? v : fb_jinja_int(fb_jinja_int_of(&v));
    else if (v.kind == FB_JINJA_FLOAT)
        *out = fb_jinja_float(-v.real);
    else if (fb_jinja_int_of(&v) == INT64_MIN)
        return fb_jinja_fail(&run->base, "number beyond 64 bits");
    else
        *out = fb_jinja_int(-fb_jinja_int_of(&v));
    return FB_OK;
}

/* `and` and `or` give one of their operands. */
static fb_status eval_logic(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    FB_TRY(fb_jinja_eval(run, node->left, out));
    if (fb_jinja_truth(out) == (node->kind == FB_NODE_OR)) return FB_OK;
    return fb_jinja_eval(run, node->right, out);
}

static fb_status eval_conditional(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    fb_jinja_value condition;
    FB_TRY(fb_jinja_eval(run, node->left, &condition));
    if (fb_jinja_truth(&condition)) return fb_jinja_eval(run, node->right, out);
    if (node->other) return fb_jinja_eval(run, node->other, out);
    *out = fb_jinja_undefined(fb_jinja_literal("the inline if-expression without else"));
    return FB_OK;
}

static fb_status eval_call(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    fb_jinja_value callee;
    fb_jinja_arguments args;
    FB_TRY(fb_jinja_eval(run, node->left, &callee));
    FB_TRY(fb_jinja_eval_arguments(run, node->list, &args));
    run->base.line = node->line;
    return fb_jinja_call(run, &callee, &args, out);
}

static fb_status eval_filter(fb_jinja_run *run, const fb_jinja_node *node, const fb_jinja_text *block,
                             fb_jinja_value *out) {
    fb_jinja_value input;
    fb_jinja_arguments args;
    if (!node->left && block)
        input = fb_jinja_string(*block);
    else if (block)
        FB_TRY(fb_jinja_eval_filters(run, node->left, *block, &input));
    else
        FB_TRY(fb_jinja_eval(run, node->left, &input));
    FB_TRY(fb_jinja_eval_arguments(run, node->list, &args));
    run->base.line = node->line;
    return fb_jinja_apply_filter(run, node->name, &input, &args, out);
}

fb_status fb_jinja_eval_filters(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_text text,
                                fb_jinja_value *out) {
    FB_TRY(fb_jinja_enter(run));
    FB_TRY(eval_filter(run, node, &text, out));
    fb_jinja_leave(run);
    return FB_OK;
}

static fb_status eval_test(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    fb_jinja_value input;
    fb_jinja_arguments args;
    bool holds;
    FB_TRY(fb_jinja_eval(run, node->left, &input));
    FB_TRY(fb_jinja_eval_arguments(run, node->list, &args));
    run->base.line = node->line;
    FB_TRY(fb_jinja_apply_test(run, node->name, &input, &args, &holds));
    *out = fb_jinja_bool(holds);
    return FB_OK;
}

static fb_status eval_attribute(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    fb_jinja_value object;
    FB_TRY(fb_jinja_eval(run, node->left, &object));
    run->base.line = node->line;
    return fb_jinja_attribute(run, &object, node->name, out);
}

static fb_status eval_node(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    switch (node->kind) {
    case FB_NODE_CONST:
        *out = node->value;
        return FB_OK;
    case FB_NODE_NAME:
        return eval_name(run, node, out);
    case FB_NODE_LIST:
    case FB_NODE_TUPLE:
        return eval_list(run, node, out);
    case FB_NODE_DICT:
        return eval_dict(run, node, out);
    case FB_NODE_ATTRIBUTE:
        return eval_attribute(run, node, out);
    case FB_NODE_ITEM:
        return eval_item(run, node, out);
    case FB_NODE_CALL:
        return eval_call(run, node, out);
    case FB_NODE_FILTER:
        return eval_filter(run, node, NULL, out);
    case FB_NODE_TEST:
        return eval_test(run, node, out);
    case FB_NODE_NOT:
        FB_TRY(fb_jinja_eval(run, node->left, out));
        *out = fb_jinja_bool(!fb_jinja_truth(out));
        return FB_OK;
    case FB_NODE_NEGATE:
    case FB_NODE_PLUS:
        return eval_sign(run, node, out);
    case FB_NODE_BINARY:
        return eval_binary(run, node, out);
    case FB_NODE_COMPARE:
        return eval_compare(run, node, out);
    case FB_NODE_AND:
    case FB_NODE_OR:
        return eval_logic(run, node, out);
    case FB_NODE_CONDITIONAL:
        return eval_conditional(run, node, out);
    default:
        return fb_jinja_fail(&run->base, "not an expression");
    }
}

fb_status fb_jinja_eval(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    run->base.line = node->line;
    FB_TRY(fb_jinja_enter(run));
    FB_TRY(eval_node(run, node, out));
    fb_jinja_leave(run);
    return FB_OK;
}
