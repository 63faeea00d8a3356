/* Calls: functions, methods, macros, filters and tests. */
#include <stdio.h>
#include <string.h>

#include "chat/eval.h"

#define PARAMS_LIMIT 8

fb_status fb_jinja_eval_arguments(fb_jinja_run *run, const fb_jinja_node *list, fb_jinja_arguments *out) {
    fb_jinja_list values = {0};
    *out = (fb_jinja_arguments){0};
    for (; list; list = list->next) {
        fb_jinja_value value;
        bool named = list->kind == FB_NODE_KEYWORD;
        FB_TRY(fb_jinja_eval(run, named ? list->left : list, &value));
        if (!named) {
            FB_TRY(fb_jinja_append(run, &values, value));
            continue;
        }
        if (fb_jinja_dict_named(&out->named, list->name))
            return fb_jinja_fail(&run->base, "argument '%.*s' is given twice", (int)list->name.size,
                                 list->name.bytes);
        FB_TRY(fb_jinja_dict_set(run, &out->named, fb_jinja_string(list->name), value));
    }
    out->values = values.items;
    out->count = values.count;
    return FB_OK;
}

const fb_jinja_callable *fb_jinja_find_callable(const fb_jinja_callable *table, fb_jinja_text name) {
    for (; table->name; table++)
        if (fb_jinja_is(name, table->name)) return table;
    return NULL;
}

/* The names of "a b? c?" one by one. */
static bool next_param(const char **params, fb_jinja_text *name, bool *optional) {
    while (**params == ' ') (*params)++;
    if (!**params) return false;
    size_t size = strcspn(*params, " ?");
    *name = (fb_jinja_text){*params, NULL, (int64_t)size};
    *params += size;
    *optional = **params == '?';
    *params += *optional;
    return true;
}

static fb_status bind(fb_jinja_run *run, const char *what, const fb_jinja_callable *callable,
                      const fb_jinja_arguments *args, fb_jinja_value slots[PARAMS_LIMIT], int64_t *count) {
    const char *params = callable->params;
    fb_jinja_text name;
    bool optional;
    int64_t named = 0;
    for (*count = 0; next_param(&params, &name, &optional); (*count)++) {
        const fb_jinja_value *given = fb_jinja_dict_named(&args->named, name);
        named += given != NULL;
        if (given && *count < args->count)
            return fb_jinja_fail(&run->base, "%s %s: argument '%.*s' is given twice", what, callable->name,
                                 (int)name.size, name.bytes);
        slots[*count] = given                  ? *given
                        : *count < args->count ? args->values[*count]
                                               : (fb_jinja_value){.kind = FB_JINJA_ABSENT};
        if (slots[*count].kind == FB_JINJA_ABSENT && !optional)
            return fb_jinja_fail(&run->base, "%s %s: argument '%.*s' is missing", what, callable->name,
                                 (int)name.size, name.bytes);
    }
    if (args->count > *count)
        return fb_jinja_fail(&run->base, "%s %s: %lld arguments (at most %lld)", what, callable->name,
                             (long long)args->count, (long long)*count);
    if (named < args->named.count)
        return fb_jinja_fail(&run->base, "%s %s: unknown argument (known: %s)", what, callable->name,
                             *callable->params ? callable->params : "none");
    return FB_OK;
}

fb_status fb_jinja_invoke(fb_jinja_run *run, const char *what, const fb_jinja_callable *callable,
                          const fb_jinja_value *self, const fb_jinja_arguments *args, fb_jinja_value *out) {
    fb_jinja_value slots[PARAMS_LIMIT];
    fb_jinja_arguments bound = {.values = slots};
    if (!callable->params) return callable->call(run, self, args, out);
    FB_TRY(bind(run, what, callable, args, slots, &bound.count));
    return callable->call(run, self, &bound, out);
}

fb_status fb_jinja_apply_filter(fb_jinja_run *run, fb_jinja_text name, const fb_jinja_value *input,
                                const fb_jinja_arguments *args, fb_jinja_value *out) {
    const fb_jinja_callable *filter = fb_jinja_find_callable(fb_jinja_text_filters, name);
    if (!filter) filter = fb_jinja_find_callable(fb_jinja_list_filters, name);
    if (!filter)
        return fb_jinja_fail(&run->base, "no filter named '%.*s'", (int)(name.size < 60 ? name.size : 60),
                             name.bytes);
    FB_TRY(fb_jinja_enter(run));
    FB_TRY(fb_jinja_invoke(run, "filter", filter, input, args, out));
    fb_jinja_leave(run);
    return FB_OK;
}

fb_status fb_jinja_apply_test(fb_jinja_run *run, fb_jinja_text name, const fb_jinja_value *input,
                              const fb_jinja_arguments *args, bool *out) {
    const fb_jinja_callable *test = fb_jinja_find_callable(fb_jinja_tests, name);
    fb_jinja_value result;
    if (!test)
        return fb_jinja_fail(&run->base, "no test named '%.*s'", (int)(name.size < 60 ? name.size : 60),
                             name.bytes);
    FB_TRY(fb_jinja_invoke(run, "test", test, input, args, &result));
    *out = fb_jinja_truth(&result);
    return FB_OK;
}

/* ---- macros ---- */

/* The value of one parameter: given by position, by name, by default, or undefined. */
static fb_status bind_param(fb_jinja_run *run, const fb_jinja_node *param, const fb_jinja_arguments *args,
                            int64_t index, int64_t *named) {
    fb_jinja_value value = fb_jinja_undefined(param->name);
    const fb_jinja_value *given = fb_jinja_dict_named(&args->named, param->name);
    *named += given != NULL;
    if (given && index < args->count)
        return fb_jinja_fail(&run->base, "argument '%.*s' is given twice", (int)param->name.size,
                             param->name.bytes);
    if (index < args->count)
        value = args->values[index];
    else if (given)
        value = *given;
    else if (param->left)
        FB_TRY(fb_jinja_eval(run, param->left, &value));
    return fb_jinja_assign(run, param->name, value);
}

/* varargs, kwargs and caller, for a macro that reads them. What it does not read may not be given. */
static fb_status bind_rest(fb_jinja_run *run, const fb_jinja_node *node, const fb_jinja_arguments *args,
                           int64_t params, int64_t named) {
    fb_jinja_value list, dict;
    fb_jinja_text caller = fb_jinja_literal("caller");
    const fb_jinja_value *given = fb_jinja_dict_named(&args->named, caller);
    if (node->op & FB_MACRO_CALLER) {
        named += given != NULL;
        FB_TRY(fb_jinja_assign(run, caller, given ? *given : fb_jinja_undefined(caller)));
    }
    if (node->op & FB_MACRO_VARARGS) {
        FB_TRY(fb_jinja_new_list(run, FB_JINJA_TUPLE, 0, &list));
        for (int64_t i = params; i < args->count; i++)
            FB_TRY(fb_jinja_append(run, list.list, args->values[i]));
        FB_TRY(fb_jinja_assign(run, fb_jinja_literal("varargs"), list));
    } else if (args->count > params) {
        return fb_jinja_fail(&run->base, "macro '%.*s': %lld arguments (at most %lld)", (int)node->name.size,
                             node->name.bytes, (long long)args->count, (long long)params);
    }
    if (node->op & FB_MACRO_KWARGS) {
        FB_TRY(fb_jinja_new_dict(run, FB_JINJA_DICT, &dict));
        for (int64_t i = 0; i < args->named.count; i++) {
            const fb_jinja_entry *entry = &args->named.entries[i];
            bool taken = (node->op & FB_MACRO_CALLER) && fb_jinja_same(entry->key.text, caller);
            for (const fb_jinja_node *p = node->orelse; p; p = p->next)
                taken = taken || fb_jinja_same(entry->key.text, p->name);
            if (!taken) FB_TRY(fb_jinja_dict_set(run, dict.dict, entry->key, entry->value));
        }
        return fb_jinja_assign(run, fb_jinja_literal("kwargs"), dict);
    }
    if (named < args->named.count)
        return fb_jinja_fail(&run->base, "macro '%.*s': unknown argument", (int)node->name.size,
                             node->name.bytes);
    return FB_OK;
}

fb_status fb_jinja_call_macro(fb_jinja_run *run, const fb_jinja_macro *macro, const fb_jinja_arguments *args,
                              fb_jinja_value *out) {
    fb_jinja_scope *before = run->scope;
    int64_t params = 0, named = 0;
    FB_TRY(fb_jinja_enter(run));
    FB_TRY(fb_jinja_scope_push(run, macro->scope));
    for (const fb_jinja_node *p = macro->node->orelse; p; p = p->next)
        FB_TRY(bind_param(run, p, args, params++, &named));
    FB_TRY(bind_rest(run, macro->node, args, params, named));
    fb_jinja_text text;
    FB_TRY(fb_jinja_capture(run, macro->node->list, &text));
    *out = fb_jinja_string(text);
    run->scope = before;
    fb_jinja_leave(run);
    return FB_OK;
}

fb_status fb_jinja_call(fb_jinja_run *run, const fb_jinja_value *callee, const fb_jinja_arguments *args,
                        fb_jinja_value *out) {
    FB_TRY(fb_jinja_need(run, callee));
    switch (callee->kind) {
    case FB_JINJA_FUNCTION:
        return fb_jinja_invoke(run, "function", callee->function, NULL, args, out);
    case FB_JINJA_METHOD:
        return fb_jinja_invoke(run, "method", callee->method->callable, callee->method->self, args, out);
    case FB_JINJA_MACRO:
        return fb_jinja_call_macro(run, callee->macro, args, out);
    default:
        return fb_jinja_fail(&run->base, "'%s' is not callable", fb_jinja_type_name(callee));
    }
}
