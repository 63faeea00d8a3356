/* Filters on lists and dicts. */
#include <string.h>

#include "chat/call.h"
#include "text/utf8.h"

FB_JINJA_CALL(filter_default) {
    bool falsy = fb_jinja_given(args, 1) && fb_jinja_truth(&args->values[1]);
    (void)run;
    *out = *self;
    if (self->kind == FB_JINJA_UNDEFINED || (falsy && !fb_jinja_truth(self)))
        *out = fb_jinja_given(args, 0) ? args->values[0] : fb_jinja_string((fb_jinja_text){"", NULL, 0});
    return FB_OK;
}

FB_JINJA_CALL(filter_length) {
    int64_t length;
    (void)args;
    FB_TRY(fb_jinja_length(run, self, &length));
    *out = fb_jinja_int(length);
    return FB_OK;
}

/* Undefined if there is none. */
static fb_status edge(fb_jinja_run *run, const fb_jinja_value *self, bool last, fb_jinja_value *out) {
    fb_jinja_list *items;
    if (last && self->kind == FB_JINJA_ITERATOR)
        return fb_jinja_fail(&run->base, "last: a generator cannot be read from its end");
    FB_TRY(fb_jinja_items(run, self, &items));
    if (items->count == 0)
        *out = fb_jinja_undefined(fb_jinja_literal("an item of an empty sequence"));
    else
        *out = items->items[last ? items->count - 1 : 0];
    return FB_OK;
}
FB_JINJA_CALL(filter_first) {
    (void)args;
    return edge(run, self, false, out);
}
FB_JINJA_CALL(filter_last) {
    (void)args;
    return edge(run, self, true, out);
}

FB_JINJA_CALL(filter_list) {
    fb_jinja_list *items;
    (void)args;
    FB_TRY(fb_jinja_items(run, self, &items));
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_LIST, items->count, out));
    for (int64_t i = 0; i < items->count; i++) FB_TRY(fb_jinja_append(run, out->list, items->items[i]));
    return FB_OK;
}

FB_JINJA_CALL(filter_items) {
    (void)args;
    if (self->kind == FB_JINJA_UNDEFINED) return fb_jinja_new_list(run, FB_JINJA_ITERATOR, 0, out);
    if (self->kind != FB_JINJA_DICT)
        return fb_jinja_fail(&run->base, "items: %s (expected dict)", fb_jinja_type_name(self));
    FB_TRY(fb_jinja_pairs(run, self->dict, out));
    out->kind = FB_JINJA_ITERATOR;
    return FB_OK;
}

FB_JINJA_CALL(filter_reverse) {
    fb_jinja_list *items;
    (void)args;
    if (self->kind == FB_JINJA_STRING) {
        fb_jinja_value bounds[3] = {fb_jinja_none(), fb_jinja_none(), fb_jinja_int(-1)};
        return fb_jinja_slice(run, self, bounds, out);
    }
    FB_TRY(fb_jinja_items(run, self, &items));
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_ITERATOR, items->count, out));
    for (int64_t i = items->count; i > 0; i--) FB_TRY(fb_jinja_append(run, out->list, items->items[i - 1]));
    return FB_OK;
}

FB_JINJA_CALL(filter_join) {
    fb_jinja_list *items;
    fb_jinja_text between = {"", NULL, 0};
    fb_jinja_builder b = {0};
    if (fb_jinja_given(args, 0)) FB_TRY(fb_jinja_to_str(run, &args->values[0], &between));
    FB_TRY(fb_jinja_items(run, self, &items));
    for (int64_t i = 0; i < items->count; i++) {
        fb_jinja_value item = items->items[i];
        if (fb_jinja_given(args, 1))
            FB_TRY(fb_jinja_path(run, &items->items[i], &args->values[1], NULL, &item));
        if (i > 0) FB_TRY(fb_jinja_put(run, &b, between));
        FB_TRY(fb_jinja_put_str(run, &b, &item));
    }
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

FB_JINJA_CALL(filter_attr) {
    fb_jinja_text name;
    FB_TRY(fb_jinja_need_text(run, "attr", &args->values[0], &name));
    /* Not an item: those of a dict are not its attributes. */
    if (self->kind == FB_JINJA_DICT && !fb_jinja_find_callable(fb_jinja_dict_methods, name)) {
        *out = fb_jinja_undefined(name);
        return FB_OK;
    }
    return fb_jinja_attribute(run, self, name, out);
}

FB_JINJA_CALL(filter_batch) {
    fb_jinja_list *items;
    int64_t size;
    fb_jinja_value batch = {.kind = FB_JINJA_NONE};
    FB_TRY(fb_jinja_need_int(run, "batch", &args->values[0], &size));
    if (size < 1) return fb_jinja_fail(&run->base, "batch: %lld items (at least 1)", (long long)size);
    FB_TRY(fb_jinja_items(run, self, &items));
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_ITERATOR, 0, out));
    for (int64_t i = 0; i < items->count; i++) {
        if (i % size == 0) {
            FB_TRY(fb_jinja_new_list(run, FB_JINJA_LIST, 0, &batch));
            FB_TRY(fb_jinja_append(run, out->list, batch));
        }
        FB_TRY(fb_jinja_append(run, batch.list, items->items[i]));
    }
    bool fill = fb_jinja_given(args, 1) && args->values[1].kind != FB_JINJA_NONE;
    while (fill && batch.kind == FB_JINJA_LIST && batch.list->count < size)
        FB_TRY(fb_jinja_append(run, batch.list, args->values[1]));
    return FB_OK;
}

/* So many lists that are as long as each other, or one longer; the shorter ones get `fill_with`. */
FB_JINJA_CALL(filter_slice) {
    fb_jinja_list *items;
    int64_t slices, at = 0;
    bool fill = fb_jinja_given(args, 1) && args->values[1].kind != FB_JINJA_NONE;
    FB_TRY(fb_jinja_need_int(run, "slice", &args->values[0], &slices));
    if (slices == 0) return fb_jinja_fail(&run->base, "slice: 0 slices (at least 1)");
    FB_TRY(fb_jinja_items(run, self, &items));
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_ITERATOR, 0, out));
    for (int64_t i = 0; i < slices; i++) {
        fb_jinja_value slice;
        int64_t end = at + items->count / slices + (i < items->count % slices);
        FB_TRY(fb_jinja_new_list(run, FB_JINJA_LIST, end - at, &slice));
        while (at < end) FB_TRY(fb_jinja_append(run, slice.list, items->items[at++]));
        if (fill && i >= items->count % slices) FB_TRY(fb_jinja_append(run, slice.list, args->values[1]));
        FB_TRY(fb_jinja_append(run, out->list, slice));
    }
    return FB_OK;
}

/* ---- map, select, reject ---- */

static fb_jinja_arguments rest_of(const fb_jinja_arguments *args, int64_t from) {
    fb_jinja_arguments rest = *args;
    int64_t skip = from < args->count ? from : args->count;
    rest.values = args->values ? args->values + skip : NULL;
    rest.count = args->count - skip;
    return rest;
}

/* map(attribute="a", default=b) */
static fb_status map_attribute(fb_jinja_run *run, const fb_jinja_list *items, const fb_jinja_arguments *args,
                               const fb_jinja_value *attribute, fb_jinja_list *out) {
    const fb_jinja_value *fallback = fb_jinja_dict_named(&args->named, fb_jinja_literal("default"));
    if (args->named.count > (fallback ? 2 : 1) || args->count > 0)
        return fb_jinja_fail(&run->base, "map: unexpected arguments (attribute, default)");
    for (int64_t i = 0; i < items->count; i++) {
        fb_jinja_value item;
        FB_TRY(fb_jinja_path(run, &items->items[i], attribute, fallback, &item));
        FB_TRY(fb_jinja_append(run, out, item));
    }
    return FB_OK;
}

FB_JINJA_CALL(filter_map) {
    fb_jinja_list *items;
    fb_jinja_text name;
    const fb_jinja_value *attribute = fb_jinja_dict_named(&args->named, fb_jinja_literal("attribute"));
    FB_TRY(fb_jinja_items(run, self, &items));
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_ITERATOR, items->count, out));
    if (attribute) return map_attribute(run, items, args, attribute, out->list);
    if (args->count == 0) return fb_jinja_fail(&run->base, "map: needs the name of a filter or attribute=");
    FB_TRY(fb_jinja_need_text(run, "map", &args->values[0], &name));
    fb_jinja_arguments rest = rest_of(args, 1);
    for (int64_t i = 0; i < items->count; i++) {
        fb_jinja_value item;
        FB_TRY(fb_jinja_apply_filter(run, name, &items->items[i], &rest, &item));
        FB_TRY(fb_jinja_append(run, out->list, item));
    }
    return FB_OK;
}

/* select, reject (attribute is false), selectattr, rejectattr. */
static fb_status choose(fb_jinja_run *run, const fb_jinja_value *self, const fb_jinja_arguments *args,
                        bool attribute, bool wanted, fb_jinja_value *out) {
    fb_jinja_list *items;
    fb_jinja_text name = {0};
    int64_t first = attribute ? 1 : 0;
    FB_TRY(fb_jinja_items(run, self, &items));
    if (args->count < first) return fb_jinja_fail(&run->base, "selectattr: needs the name of an attribute");
    if (args->count > first) FB_TRY(fb_jinja_need_text(run, "test", &args->values[first], &name));
    fb_jinja_arguments rest = rest_of(args, first + 1);
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_ITERATOR, 0, out));
    for (int64_t i = 0; i < items->count; i++) {
        fb_jinja_value item = items->items[i];
        if (attribute) FB_TRY(fb_jinja_path(run, &items->items[i], &args->values[0], NULL, &item));
        bool holds = fb_jinja_truth(&item);
        if (args->count > first) FB_TRY(fb_jinja_apply_test(run, name, &item, &rest, &holds));
        if (holds == wanted) FB_TRY(fb_jinja_append(run, out->list, items->items[i]));
    }
    return FB_OK;
}
FB_JINJA_CALL(filter_select) { return choose(run, self, args, false, true, out); }
FB_JINJA_CALL(filter_reject) { return choose(run, self, args, false, false, out); }
FB_JINJA_CALL(filter_selectattr) { return choose(run, self, args, true, true, out); }
FB_JINJA_CALL(filter_rejectattr) { return choose(run, self, args, true, false, out); }

/* ---- order ---- */

/* What an item is compared by: itself or its attribute, in lower case unless case counts. */
static fb_status key_of(fb_jinja_run *run, const fb_jinja_value *item, const fb_jinja_value *attribute,
                        bool case_counts, fb_jinja_value *out) {
    *out = *item;
    if (attribute && attribute->kind != FB_JINJA_NONE) FB_TRY(fb_jinja_path(run, item, attribute, NULL, out));
    if (case_counts || out->kind != FB_JINJA_STRING) return FB_OK;
    return fb_jinja_change_case(run, out->text, FB_JINJA_LOWER, out);
}

/* Merges two sorted halves; equal ones keep their order, also in reverse. */
static fb_status merge(fb_jinja_run *run, const fb_jinja_entry *from, fb_jinja_entry *to, int64_t start,
                       int64_t middle, int64_t end, bool reverse) {
    int64_t left = start, right = middle;
    for (int64_t at = start; at < end; at++) {
        int order = left == middle ? 1 : -1;
        if (left < middle && right < end)
            FB_TRY(fb_jinja_compare(run, &from[left].key, &from[right].key, &order));
        if (left < middle && right < end && reverse) order = -order;
        to[at] = order <= 0 ? from[left++] : from[right++];
    }
    return FB_OK;
}

/* Sorts the entries by their keys. */
static fb_status sort_entries(fb_jinja_run *run, fb_jinja_entry **entries, int64_t count, bool reverse) {
    fb_jinja_entry *room = fb_jinja_arena_take(&run->base.arena, (count + 1) * (int64_t)sizeof *room);
    if (!room) return fb_jinja_fail_memory(&run->base);
    for (int64_t width = 1; width < count; width *= 2) {
        for (int64_t start = 0; start < count; start += 2 * width) {
            int64_t middle = start + width < count ? start + width : count;
            int64_t end = start + 2 * width < count ? start + 2 * width : count;
            FB_TRY(merge(run, *entries, room, start, middle, end, reverse));
        }
        fb_jinja_entry *sorted = room;
        room = *entries;
        *entries = sorted;
    }
    return FB_OK;
}

static fb_status sort_list(fb_jinja_run *run, const fb_jinja_list *items, const fb_jinja_value *attribute,
                           bool case_counts, bool reverse, fb_jinja_value *out) {
    fb_jinja_entry *entries =
        fb_jinja_arena_take(&run->base.arena, (items->count + 1) * (int64_t)sizeof *entries);
    if (!entries) return fb_jinja_fail_memory(&run->base);
    for (int64_t i = 0; i < items->count; i++) {
        entries[i].value = items->items[i];
        FB_TRY(key_of(run, &items->items[i], attribute, case_counts, &entries[i].key));
    }
    FB_TRY(sort_entries(run, &entries, items->count, reverse));
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_LIST, items->count, out));
    for (int64_t i = 0; i < items->count; i++) FB_TRY(fb_jinja_append(run, out->list, entries[i].value));
    return FB_OK;
}

static bool is_set(const fb_jinja_arguments *args, int64_t index) {
    return fb_jinja_given(args, index) && fb_jinja_truth(&args->values[index]);
}
static const fb_jinja_value *argument(const fb_jinja_arguments *args, int64_t index) {
    return fb_jinja_given(args, index) ? &args->values[index] : NULL;
}

FB_JINJA_CALL(filter_sort) {
    fb_jinja_list *items;
    FB_TRY(fb_jinja_items(run, self, &items));
    return sort_list(run, items, argument(args, 2), is_set(args, 1), is_set(args, 0), out);
}

/* dictsort(case_sensitive, by, reverse) */
FB_JINJA_CALL(filter_dictsort) {
    fb_jinja_value pairs, by = fb_jinja_int(0);
    fb_jinja_text name = fb_jinja_literal("key");
    if (self->kind != FB_JINJA_DICT)
        return fb_jinja_fail(&run->base, "dictsort: %s (expected dict)", fb_jinja_type_name(self));
    if (fb_jinja_given(args, 1)) FB_TRY(fb_jinja_need_text(run, "by", &args->values[1], &name));
    if (fb_jinja_is(name, "value"))
        by.integer = 1;
    else if (!fb_jinja_is(name, "key"))
        return fb_jinja_fail(&run->base, "dictsort: by: expected 'key' or 'value'");
    FB_TRY(fb_jinja_pairs(run, self->dict, &pairs));
    return sort_list(run, pairs.list, &by, is_set(args, 0), is_set(args, 2), out);
}

/* groupby(attribute, default, case_sensitive): sorted; a group has the key of its first item. */
FB_JINJA_CALL(filter_groupby) {
    fb_jinja_list *items;
    const fb_jinja_value *fallback = argument(args, 1);
    bool case_counts = is_set(args, 2);
    FB_TRY(fb_jinja_items(run, self, &items));
    fb_jinja_entry *entries =
        fb_jinja_arena_take(&run->base.arena, (items->count + 1) * (int64_t)sizeof *entries);
    if (!entries) return fb_jinja_fail_memory(&run->base);
    if (fallback && fallback->kind == FB_JINJA_NONE) fallback = NULL;
    for (int64_t i = 0; i < items->count; i++) {
        entries[i].value = items->items[i];
        FB_TRY(fb_jinja_path(run, &items->items[i], &args->values[0], fallback, &entries[i].key));
        FB_TRY(key_of(run, &entries[i].key, NULL, case_counts, &entries[i].key));
    }
    FB_TRY(sort_entries(run, &entries, items->count, false));
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_LIST, 0, out));
    fb_jinja_value members = {.kind = FB_JINJA_NONE};
    for (int64_t i = 0; i < items->count; i++) {
        bool same = false;
        if (i > 0) FB_TRY(fb_jinja_equal(run, &entries[i - 1].key, &entries[i].key, &same));
        if (!same) {
            fb_jinja_value group, key;
            FB_TRY(fb_jinja_path(run, &entries[i].value, &args->values[0], fallback, &key));
            FB_TRY(fb_jinja_new_list(run, FB_JINJA_LIST, 0, &members));
            FB_TRY(fb_jinja_new_list(run, FB_JINJA_TUPLE, 2, &group));
            FB_TRY(fb_jinja_append(run, group.list, key));
            FB_TRY(fb_jinja_append(run, group.list, members));
            group.group = true;
            FB_TRY(fb_jinja_append(run, out->list, group));
        }
        FB_TRY(fb_jinja_append(run, members.list, entries[i].value));
    }
    return FB_OK;
}

FB_JINJA_CALL(filter_unique) {
    fb_jinja_list *items;
    fb_jinja_dict seen = {0};
    FB_TRY(fb_jinja_items(run, self, &items));
    FB_TRY(fb_jinja_new_list(run, FB_JINJA_ITERATOR, 0, out));
    for (int64_t i = 0; i < items->count; i++) {
        fb_jinja_value key, *known;
        FB_TRY(key_of(run, &items->items[i], argument(args, 1), is_set(args, 0), &key));
        FB_TRY(fb_jinja_dict_find(run, &seen, &key, &known));
        if (known) continue;
        FB_TRY(fb_jinja_dict_set(run, &seen, key, fb_jinja_none()));
        FB_TRY(fb_jinja_append(run, out->list, items->items[i]));
    }
    return FB_OK;
}

static fb_status extreme(fb_jinja_run *run, const fb_jinja_value *self, const fb_jinja_arguments *args,
                         int sign, fb_jinja_value *out) {
    fb_jinja_list *items;
    fb_jinja_value best = fb_jinja_none(), key;
    FB_TRY(fb_jinja_items(run, self, &items));
    *out = fb_jinja_undefined(fb_jinja_literal("the extreme of an empty sequence"));
    for (int64_t i = 0; i < items->count; i++) {
        int order = -sign;
        FB_TRY(key_of(run, &items->items[i], argument(args, 1), is_set(args, 0), &key));
        if (i > 0) FB_TRY(fb_jinja_compare(run, &best, &key, &order));
        if (i > 0 && order * sign >= 0) continue;
        best = key;
        *out = items->items[i];
    }
    return FB_OK;
}
FB_JINJA_CALL(filter_max) { return extreme(run, self, args, 1, out); }
FB_JINJA_CALL(filter_min) { return extreme(run, self, args, -1, out); }

FB_JINJA_CALL(filter_sum) {
    fb_jinja_list *items;
    FB_TRY(fb_jinja_items(run, self, &items));
    *out = fb_jinja_given(args, 1) ? args->values[1] : fb_jinja_int(0);
    if (out->kind == FB_JINJA_STRING) return fb_jinja_fail(&run->base, "sum: cannot sum strings (use join)");
    for (int64_t i = 0; i < items->count; i++) {
        fb_jinja_value item = items->items[i], sum = *out;
        const fb_jinja_value *attribute = argument(args, 0);
        if (attribute && attribute->kind != FB_JINJA_NONE)
            FB_TRY(fb_jinja_path(run, &items->items[i], attribute, NULL, &item));
        FB_TRY(fb_jinja_binary(run, FB_JINJA_ADD, &sum, &item, out));
    }
    return FB_OK;
}

const fb_jinja_callable fb_jinja_list_filters[] = {
    {"default", "default_value? boolean?", filter_default},
    {"d", "default_value? boolean?", filter_default},
    {"length", "", filter_length},
    {"count", "", filter_length},
    {"first", "", filter_first},
    {"last", "", filter_last},
    {"list", "", filter_list},
    {"items", "", filter_items},
    {"reverse", "", filter_reverse},
    {"join", "d? attribute?", filter_join},
    {"attr", "name", filter_attr},
    {"batch", "linecount fill_with?", filter_batch},
    {"slice", "slices fill_with?", filter_slice},
    {"groupby", "attribute default? case_sensitive?", filter_groupby},
    {"map", NULL, filter_map},
    {"select", NULL, filter_select},
    {"reject", NULL, filter_reject},
    {"selectattr", NULL, filter_selectattr},
    {"rejectattr", NULL, filter_rejectattr},
    {"sort", "reverse? case_sensitive? attribute?", filter_sort},
    {"dictsort", "case_sensitive? by? reverse?", filter_dictsort},
    {"unique", "case_sensitive? attribute?", filter_unique},
    {"max", "case_sensitive? attribute?", filter_max},
    {"min", "case_sensitive? attribute?", filter_min},
    {"sum", "attribute? start?", filter_sum},
    {0},
};
