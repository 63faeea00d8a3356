#include "chat/value.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_LIMIT 400 /* of expressions, statements, macros and nested values together */
#define CHUNK_BYTES 65536

/* ---- arena ---- */

typedef struct fb_jinja_chunk {
    struct fb_jinja_chunk *next;
    int64_t size, used;
    max_align_t data[];
} fb_jinja_chunk;

void *fb_jinja_arena_take(fb_jinja_arena *arena, int64_t size) {
    int64_t align = (int64_t)sizeof(max_align_t);
    if (size < 0 || size > arena->limit) {
        arena->full = true;
        return NULL;
    }
    size = (size + align - 1) / align * align;
    fb_jinja_chunk *chunk = arena->chunks;
    if (!chunk || chunk->size - chunk->used < size) {
        /* A large value has a chunk of its own, behind the one that is being filled. */
        bool large = size > CHUNK_BYTES / 4;
        int64_t room = large ? size : CHUNK_BYTES;
        if (room > arena->limit - arena->used) {
            arena->full = true;
            return NULL;
        }
        fb_jinja_chunk *added = calloc(1, sizeof *added + (size_t)room);
        if (!added) return NULL;
        added->size = room;
        arena->used += room;
        if (large && chunk) {
            added->next = chunk->next;
            chunk->next = added;
        } else {
            added->next = chunk;
            arena->chunks = added;
        }
        chunk = added;
    }
    void *taken = (char *)chunk->data + chunk->used;
    chunk->used += size;
    return taken;
}

void fb_jinja_arena_free(fb_jinja_arena *arena) {
    while (arena->chunks) {
        fb_jinja_chunk *chunk = arena->chunks;
        arena->chunks = chunk->next;
        free(chunk);
    }
    arena->used = 0;
}

/* ---- a run ---- */

fb_status fb_jinja_fail(fb_jinja_shared *base, const char *format, ...) {
    char message[400];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return fb_fail(base->err, FB_ERROR_FILE, "%.80s: line %d: %s", base->name, (int)base->line, message);
}

fb_status fb_jinja_fail_memory(fb_jinja_shared *base) {
    if (base->arena.full)
        return fb_jinja_fail(base, "it takes too much memory (at most %lld bytes)",
                             (long long)base->arena.limit);
    return fb_fail(base->err, FB_ERROR_MEMORY, "%.80s: line %d: no memory (%lld bytes in use, at most %lld)",
                   base->name, (int)base->line, (long long)base->arena.used, (long long)base->arena.limit);
}

fb_status fb_jinja_enter(fb_jinja_run *run) {
    FB_TRY(fb_jinja_work(run, 1));
    if (run->depth >= DEPTH_LIMIT) return fb_jinja_fail(&run->base, "nested more than %d deep", DEPTH_LIMIT);
    run->depth++;
    return FB_OK;
}

fb_status fb_jinja_work(fb_jinja_run *run, int64_t steps) {
    if (steps > run->steps) {
        run->steps = 0;
        return fb_jinja_fail(&run->base, "it takes too long (at most %lld steps)",
                             (long long)run->step_limit);
    }
    run->steps -= steps;
    return FB_OK;
}

/* ---- lists ---- */

fb_status fb_jinja_new_list(fb_jinja_run *run, fb_jinja_kind kind, int64_t room, fb_jinja_value *out) {
    fb_jinja_list *list = fb_jinja_arena_take(&run->base.arena, sizeof *list);
    if (list && room > 0 && room < INT32_MAX)
        list->items = fb_jinja_arena_take(&run->base.arena, room * (int64_t)sizeof *list->items);
    if (!list || (room > 0 && !list->items)) return fb_jinja_fail_memory(&run->base);
    list->room = room;
    *out = (fb_jinja_value){.kind = kind, .list = list};
    return FB_OK;
}

fb_status fb_jinja_append(fb_jinja_run *run, fb_jinja_list *list, fb_jinja_value item) {
    FB_TRY(fb_jinja_work(run, 1));
    if (list->count == list->room) {
        int64_t room = list->room ? 2 * list->room : 4;
        fb_jinja_value *items = fb_jinja_arena_take(&run->base.arena, room * (int64_t)sizeof *list->items);
        if (!items) return fb_jinja_fail_memory(&run->base);
        if (list->count > 0) memcpy(items, list->items, (size_t)list->count * sizeof *items);
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = item;
    return FB_OK;
}

/* ---- dicts ---- */

fb_status fb_jinja_new_dict(fb_jinja_run *run, fb_jinja_kind kind, fb_jinja_value *out) {
    fb_jinja_dict *dict = fb_jinja_arena_take(&run->base.arena, sizeof *dict);
    if (!dict) return fb_jinja_fail_memory(&run->base);
    *out = (fb_jinja_value){.kind = kind, .dict = dict};
    return FB_OK;
}

static bool is_hashable(const fb_jinja_value *key) {
    return key->kind != FB_JINJA_LIST && key->kind != FB_JINJA_DICT;
}

fb_status fb_jinja_dict_find(fb_jinja_run *run, const fb_jinja_dict *dict, const fb_jinja_value *key,
                             fb_jinja_value **out) {
    *out = NULL;
    if (!is_hashable(key)) return fb_jinja_fail(&run->base, "unhashable type: '%s'", fb_jinja_type_name(key));
    FB_TRY(fb_jinja_work(run, dict->count / 8));
    for (int64_t i = 0; i < dict->count && key->kind == FB_JINJA_STRING; i++) {
        const fb_jinja_value *other = &dict->entries[i].key;
        if (other->kind != FB_JINJA_STRING || other->text.size != key->text.size) continue;
        FB_TRY(fb_jinja_work_bytes(run, key->text.size)); /* keys may be long, and of one length */
        if (!fb_jinja_same(other->text, key->text)) continue;
        *out = &dict->entries[i].value;
        return FB_OK;
    }
    for (int64_t i = 0; i < dict->count && key->kind != FB_JINJA_STRING; i++) {
        bool equal;
        FB_TRY(fb_jinja_equal(run, &dict->entries[i].key, key, &equal));
        if (!equal) continue;
        *out = &dict->entries[i].value;
        return FB_OK;
    }
    return FB_OK;
}

fb_jinja_value *fb_jinja_dict_named(const fb_jinja_dict *dict, fb_jinja_text name) {
    for (int64_t i = 0; i < dict->count; i++)
        if (dict->entries[i].key.kind == FB_JINJA_STRING && fb_jinja_same(dict->entries[i].key.text, name))
            return &dict->entries[i].value;
    return NULL;
}

fb_status fb_jinja_dict_set(fb_jinja_run *run, fb_jinja_dict *dict, fb_jinja_value key,
                            fb_jinja_value value) {
    fb_jinja_value *known;
    FB_TRY(fb_jinja_work(run, 1));
    FB_TRY(fb_jinja_dict_find(run, dict, &key, &known));
    if (known) {
        *known = value;
        return FB_OK;
    }
    if (dict->count == dict->room) {
        int64_t room = dict->room ? 2 * dict->room : 4;
        fb_jinja_entry *entries =
            fb_jinja_arena_take(&run->base.arena, room * (int64_t)sizeof *dict->entries);
        if (!entries) return fb_jinja_fail_memory(&run->base);
        if (dict->count > 0) memcpy(entries, dict->entries, (size_t)dict->count * sizeof *entries);
        dict->entries = entries;
        dict->room = room;
    }
    dict->entries[dict->count++] = (fb_jinja_entry){key, value};
    return FB_OK;
}

/* ---- from JSON ---- */

static const char *const roles[] = {"system",   "user",  "assistant",     "tool",      "developer",
                                    "function", "model", "tool_response", "tool_call", "ipython"};

static bool is_known_role(const fb_json *json) {
    const char *key = fb_json_key(json), *text = fb_json_text_of(json);
    if (!key || strcmp(key, "role") != 0) return false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (fb_json_size(json) == strlen(roles[i]) && strcmp(text, roles[i]) == 0) return true;
    return false;
}

static fb_status copy_text(fb_jinja_run *run, const char *from, int64_t size, bool marked,
                           fb_jinja_text *out) {
    char *bytes = fb_jinja_arena_take(&run->base.arena, size);
    unsigned char *marks = marked ? fb_jinja_arena_take(&run->base.arena, size) : NULL;
    if (!bytes || (marked && !marks)) return fb_jinja_fail_memory(&run->base);
    memcpy(bytes, from, (size_t)size);
    if (marked) memset(marks, 1, (size_t)size);
    *out = (fb_jinja_text){bytes, marks, size};
    return FB_OK;
}

static fb_status from_json_string(fb_jinja_run *run, const fb_json *json, fb_jinja_value *out) {
    *out = fb_jinja_string((fb_jinja_text){0});
    return copy_text(run, fb_json_text_of(json), (int64_t)fb_json_size(json), !is_known_role(json),
                     &out->text);
}

static fb_status from_json_children(fb_jinja_run *run, const fb_json *json, fb_jinja_value *out) {
    bool object = fb_json_is(json, FB_JSON_OBJECT);
    FB_TRY(fb_jinja_enter(run));
    FB_TRY(object ? fb_jinja_new_dict(run, FB_JINJA_DICT, out)
                  : fb_jinja_new_list(run, FB_JINJA_LIST, (int64_t)fb_json_size(json), out));
    for (const fb_json *child = fb_json_first(json); child; child = fb_json_next(child)) {
        fb_jinja_value value, key = {.kind = FB_JINJA_STRING};
        FB_TRY(fb_jinja_from_json(run, child, &value));
        if (object) {
            const char *name = fb_json_key(child);
            FB_TRY(copy_text(run, name, (int64_t)strlen(name), true, &key.text));
            FB_TRY(fb_jinja_dict_set(run, out->dict, key, value));
        } else {
            FB_TRY(fb_jinja_append(run, out->list, value));
        }
    }
    fb_jinja_leave(run);
    return FB_OK;
}

fb_status fb_jinja_from_json(fb_jinja_run *run, const fb_json *json, fb_jinja_value *out) {
    switch (fb_json_kind_of(json)) {
    case FB_JSON_NONE:
    case FB_JSON_NULL:
        *out = fb_jinja_none();
        return FB_OK;
    case FB_JSON_BOOL:
        *out = fb_jinja_bool(fb_json_bool_of(json));
        return FB_OK;
    case FB_JSON_INT:
        *out = fb_jinja_int(fb_json_int_of(json));
        return FB_OK;
    case FB_JSON_REAL:
        *out = fb_jinja_float(fb_json_real_of(json));
        return FB_OK;
    case FB_JSON_STRING:
        return from_json_string(run, json, out);
    case FB_JSON_ARRAY:
    case FB_JSON_OBJECT:
        return from_json_children(run, json, out);
    }
    return FB_OK;
}
