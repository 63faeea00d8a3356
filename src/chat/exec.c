/* Statements. */
#include "chat/eval.h"

/* ---- assignment ---- */

static fb_status assign_target(fb_jinja_run *run, const fb_jinja_node *target, const fb_jinja_value *value);

static fb_status assign_tuple(fb_jinja_run *run, const fb_jinja_node *target, const fb_jinja_value *value) {
    fb_jinja_list *items;
    int64_t wanted = 0, i = 0;
    FB_TRY(fb_jinja_need(run, value));
    FB_TRY(fb_jinja_items(run, value, &items));
    for (const fb_jinja_node *n = target->list; n; n = n->next) wanted++;
    if (items->count != wanted)
        return fb_jinja_fail(&run->base, "%lld values for %lld names", (long long)items->count,
                             (long long)wanted);
    FB_TRY(fb_jinja_enter(run));
    for (const fb_jinja_node *n = target->list; n; n = n->next)
        FB_TRY(assign_target(run, n, &items->items[i++]));
    fb_jinja_leave(run);
    return FB_OK;
}

static fb_status assign_target(fb_jinja_run *run, const fb_jinja_node *target, const fb_jinja_value *value) {
    if (target->kind == FB_NODE_NAME) return fb_jinja_assign(run, target->name, *value);
    if (target->kind == FB_NODE_TUPLE) return assign_tuple(run, target, value);
    fb_jinja_value object;
    FB_TRY(fb_jinja_eval(run, target->left, &object));
    if (object.kind != FB_JINJA_NAMESPACE)
        return fb_jinja_fail(&run->base, "cannot assign attribute '%.*s' on %s (only on a namespace)",
                             (int)target->name.size, target->name.bytes, fb_jinja_type_name(&object));
    return fb_jinja_dict_set(run, object.dict, fb_jinja_string(target->name), *value);
}

static fb_status exec_set(fb_jinja_run *run, const fb_jinja_node *node) {
    fb_jinja_value value;
    FB_TRY(fb_jinja_eval(run, node->right, &value));
    return assign_target(run, node->left, &value);
}

static fb_status exec_set_block(fb_jinja_run *run, const fb_jinja_node *node) {
    fb_jinja_scope *scope = run->scope;
    fb_jinja_text text;
    FB_TRY(fb_jinja_scope_push(run, scope));
    FB_TRY(fb_jinja_capture(run, node->list, &text));
    run->scope = scope;
    fb_jinja_value value = fb_jinja_string(text);
    if (node->right) FB_TRY(fb_jinja_eval_filters(run, node->right, text, &value));
    return assign_target(run, node->left, &value);
}

/* ---- loops ---- */

/* Those items that the loop's condition lets through. */
static fb_status filter_items(fb_jinja_run *run, const fb_jinja_node *node, const fb_jinja_list *from,
                              fb_jinja_list *to) {
    fb_jinja_scope *scope = run->scope;
    for (int64_t i = 0; i < from->count; i++) {
        fb_jinja_value keep = fb_jinja_bool(true);
        if (node->other) {
            FB_TRY(fb_jinja_scope_push(run, scope));
            FB_TRY(assign_target(run, node->left, &from->items[i]));
            FB_TRY(fb_jinja_eval(run, node->other, &keep));
            run->scope = scope;
        }
        if (fb_jinja_truth(&keep)) FB_TRY(fb_jinja_append(run, to, from->items[i]));
    }
    return FB_OK;
}

static fb_status run_loop(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_loop *loop) {
    fb_jinja_scope *scope = run->scope;
    fb_jinja_value value = {.kind = FB_JINJA_LOOP, .loop = loop};
    for (loop->index = 0; loop->index < loop->items->count; loop->index++) {
        FB_TRY(fb_jinja_scope_push(run, scope));
        FB_TRY(fb_jinja_assign(run, fb_jinja_literal("loop"), value));
        FB_TRY(assign_target(run, node->left, &loop->items->items[loop->index]));
        FB_TRY(fb_jinja_exec(run, node->list));
        run->scope = scope;
        bool stop = run->leave == FB_JINJA_LEAVE_BREAK;
        run->leave = FB_JINJA_STAY;
        if (stop) break;
    }
    return FB_OK;
}

static fb_status exec_for(fb_jinja_run *run, const fb_jinja_node *node) {
    fb_jinja_value value;
    fb_jinja_list *items;
    FB_TRY(fb_jinja_eval(run, node->right, &value));
    FB_TRY(fb_jinja_items(run, &value, &items));
    fb_jinja_loop *loop = fb_jinja_arena_take(&run->base.arena, sizeof *loop);
    fb_jinja_list *kept = fb_jinja_arena_take(&run->base.arena, sizeof *kept);
    if (!loop || !kept) return fb_jinja_fail_memory(&run->base);
    loop->items = items;
    if (node->other) {
        FB_TRY(filter_items(run, node, items, kept));
        loop->items = kept;
    }
    if (loop->items->count == 0) {
        fb_jinja_scope *scope = run->scope;
        FB_TRY(fb_jinja_scope_push(run, scope));
        FB_TRY(fb_jinja_exec(run, node->orelse));
        run->scope = scope;
        return FB_OK;
    }
    return run_loop(run, node, loop);
}

/* ---- the rest ---- */

static fb_status exec_if(fb_jinja_run *run, const fb_jinja_node *node) {
    for (const fb_jinja_node *branch = node->list; branch; branch = branch->next) {
        fb_jinja_value condition = fb_jinja_bool(true);
        if (branch->left) FB_TRY(fb_jinja_eval(run, branch->left, &condition));
        if (fb_jinja_truth(&condition)) return fb_jinja_exec(run, branch->list);
    }
    return FB_OK;
}

static fb_status new_macro(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out) {
    fb_jinja_macro *macro = fb_jinja_arena_take(&run->base.arena, sizeof *macro);
    if (!macro) return fb_jinja_fail_memory(&run->base);
    *macro = (fb_jinja_macro){node, run->scope};
    *out = (fb_jinja_value){.kind = FB_JINJA_MACRO, .macro = macro};
    return FB_OK;
}

static fb_status exec_macro(fb_jinja_run *run, const fb_jinja_node *node) {
    fb_jinja_value macro;
    FB_TRY(new_macro(run, node, &macro));
    return fb_jinja_assign(run, node->name, macro);
}

static fb_status exec_call_block(fb_jinja_run *run, const fb_jinja_node *node) {
    fb_jinja_value callee, caller, result;
    fb_jinja_arguments args;
    FB_TRY(new_macro(run, node->other, &caller));
    FB_TRY(fb_jinja_eval(run, node->left->left, &callee));
    FB_TRY(fb_jinja_eval_arguments(run, node->left->list, &args));
    FB_TRY(fb_jinja_dict_set(run, &args.named, fb_jinja_string(fb_jinja_literal("caller")), caller));
    FB_TRY(fb_jinja_call(run, &callee, &args, &result));
    return fb_jinja_put_str(run, run->out, &result);
}

static fb_status exec_filter_block(fb_jinja_run *run, const fb_jinja_node *node) {
    fb_jinja_scope *scope = run->scope;
    fb_jinja_text text;
    fb_jinja_value value;
    FB_TRY(fb_jinja_scope_push(run, scope));
    FB_TRY(fb_jinja_capture(run, node->list, &text));
    run->scope = scope;
    FB_TRY(fb_jinja_eval_filters(run, node->left, text, &value));
    return fb_jinja_put_str(run, run->out, &value);
}

/* The values are those of the scope around it. */
static fb_status exec_with(fb_jinja_run *run, const fb_jinja_node *node) {
    fb_jinja_scope *scope = run->scope, *inner;
    FB_TRY(fb_jinja_scope_push(run, scope));
    inner = run->scope;
    for (const fb_jinja_node *n = node->orelse; n; n = n->next) {
        fb_jinja_value value;
        run->scope = scope;
        FB_TRY(fb_jinja_eval(run, n->right, &value));
        run->scope = inner;
        FB_TRY(assign_target(run, n->left, &value));
    }
    FB_TRY(fb_jinja_exec(run, node->list));
    run->scope = scope;
    return FB_OK;
}

static fb_status exec_output(fb_jinja_run *run, const fb_jinja_node *node) {
    fb_jinja_value value;
    FB_TRY(fb_jinja_eval(run, node->left, &value));
    return fb_jinja_put_str(run, run->out, &value);
}

static fb_status exec_one(fb_jinja_run *run, const fb_jinja_node *node) {
    switch (node->kind) {
    case FB_NODE_DATA:
        return fb_jinja_put(run, run->out, node->value.text);
    case FB_NODE_OUTPUT:
        return exec_output(run, node);
    case FB_NODE_FOR:
        return exec_for(run, node);
    case FB_NODE_IF:
        return exec_if(run, node);
    case FB_NODE_SET:
        return exec_set(run, node);
    case FB_NODE_SET_BLOCK:
        return exec_set_block(run, node);
    case FB_NODE_MACRO:
        return exec_macro(run, node);
    case FB_NODE_CALL_BLOCK:
        return exec_call_block(run, node);
    case FB_NODE_FILTER_BLOCK:
        return exec_filter_block(run, node);
    case FB_NODE_WITH:
        return exec_with(run, node);
    case FB_NODE_SCOPE:
        return fb_jinja_exec(run, node->list);
    case FB_NODE_BREAK:
        run->leave = FB_JINJA_LEAVE_BREAK;
        return FB_OK;
    case FB_NODE_CONTINUE:
        run->leave = FB_JINJA_LEAVE_CONTINUE;
        return FB_OK;
    default:
        return fb_jinja_fail(&run->base, "not a statement");
    }
}

fb_status fb_jinja_exec(fb_jinja_run *run, const fb_jinja_node *list) {
    FB_TRY(fb_jinja_enter(run));
    for (; list && run->leave == FB_JINJA_STAY; list = list->next) {
        run->base.line = list->line;
        FB_TRY(fb_jinja_work(run, 1));
        FB_TRY(exec_one(run, list));
    }
    fb_jinja_leave(run);
    return FB_OK;
}

fb_status fb_jinja_capture(fb_jinja_run *run, const fb_jinja_node *list, fb_jinja_text *out) {
    fb_jinja_builder *text = fb_jinja_arena_take(&run->base.arena, sizeof *text), *before = run->out;
    if (!text) return fb_jinja_fail_memory(&run->base);
    run->out = text;
    FB_TRY(fb_jinja_exec(run, list));
    run->out = before;
    *out = fb_jinja_built(text);
    return FB_OK;
}
