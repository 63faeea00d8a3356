/* Methods of list, tuple, dict and loop. What would change a list or a dict is not there: the sandbox is
 * immutable. */
#include "chat/call.h"

FB_JINJA_CALL(list_count) {
    int64_t count = 0;
    for (int64_t i = 0; i < self->list->count; i++) {
        bool equal;
        FB_TRY(fb_jinja_equal(run, &self->list->items[i], &args->values[0], &equal));
        count += equal;
    }
    *out = fb_jinja_int(count);
    return FB_OK;
}

FB_JINJA_CALL(list_index) {
    for (int64_t i = 0; i < self->list->count; i++) {
        bool equal;
        FB_TRY(fb_jinja_equal(run, &self->list->items[i], &args->values[0], &equal));
        if (!equal) continue;
        *out = fb_jinja_int(i);
        return FB_OK;
    }
    return fb_jinja_fail(&run->base, "index: the value is not in the list");
}

FB_JINJA_CALL(list_copy) {
    (void)run;
    (void)args;
    *out = *self; /* nothing can change it */
    return FB_OK;
}

const fb_jinja_callable fb_jinja_list_methods[] = {
    {"count", "value", list_count},
    {"index", "value", list_index},
    {"copy", "", list_copy},
    {0},
};

FB_JINJA_CALL(dict_get) {
    fb_jinja_value *found;
    FB_TRY(fb_jinja_dict_find(run, self->dict, &args->values[0], &found));
    *out = found ? *found : fb_jinja_given(args, 1) ? args->values[1] : fb_jinja_none();
    return FB_OK;
}

FB_JINJA_CALL(dict_keys) {
    (void)args;
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_VIEW, 0, out));
    for (int64_t i = 0; i < self->dict->count; i++)
        FB_TRY(fb_jinja_append(run, out->list, self->dict->entries[i].key));
    return FB_OK;
}

FB_JINJA_CALL(dict_values) {
    (void)args;
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_VIEW, 0, out));
    for (int64_t i = 0; i < self->dict->count; i++)
        FB_TRY(fb_jinja_append(run, out->list, self->dict->entries[i].value));
    return FB_OK;
}

fb_status fb_jinja_pairs(fb_jinja_run *run, const fb_jinja_dict *dict, fb_jinja_value *out) {
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_VIEW, dict->count, out));
    for (int64_t i = 0; i < dict->count; i++) {
        fb_jinja_value pair;
        FB_TRY(fb_jinja_new_list(run, FB_JINJA_TUPLE, 2, &pair));
        FB_TRY(fb_jinja_append(run, pair.list, dict->entries[i].key));
        FB_TRY(fb_jinja_append(run, pair.list, dict->entries[i].value));
        FB_TRY(fb_jinja_append(run, out->list, pair));
    }
    return FB_OK;
}

FB_JINJA_CALL(dict_items) {
    (void)args;
    return fb_jinja_pairs(run, self->dict, out);
}

const fb_jinja_callable fb_jinja_dict_methods[] = {
    {"get", "key default?", dict_get}, {"keys", "", dict_keys}, {"values", "", dict_values},
    {"items", "", dict_items},         {"copy", "", list_copy}, {0},
};

FB_JINJA_CALL(loop_cycle) {
    if (args->count == 0) return fb_jinja_fail(&run->base, "loop.cycle: no items");
    *out = args->values[self->loop->index % args->count];
    return FB_OK;
}

/* Whether the arguments are others than in the last call. */
FB_JINJA_CALL(loop_changed) {
    fb_jinja_loop *loop = self->loop;
    fb_jinja_value now;
    bool equal = false;
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_TUPLE, args->count, &now));
    for (int64_t i = 0; i < args->count; i++) FB_TRY(fb_jinja_append(run, now.list, args->values[i]));
    if (loop->changed.kind == FB_JINJA_TUPLE) FB_TRY(fb_jinja_equal(run, &loop->changed, &now, &equal));
    loop->changed = now;
    *out = fb_jinja_bool(!equal);
    return FB_OK;
}

const fb_jinja_callable fb_jinja_loop_methods[] = {
    {"cycle", NULL, loop_cycle},
    {"changed", NULL, loop_changed},
    {0},
};
