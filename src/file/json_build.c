#include "file/json_build.h"

#include <stdlib.h>

#include "base/memory.h"
#include "file/json_tree.h"

#define FIRST_NODES 32 /* room to begin with */
#define FIRST_TEXT  512

static fb_json *add_node(fb_json_builder *b, uint8_t kind) {
    if (b->count == b->room) {
        uint32_t room = b->room ? 2 * b->room : FIRST_NODES;
        fb_json *nodes = b->full || room > FB_JSON_MAX_NODES ? NULL : realloc(b->nodes, room * sizeof *nodes);
        if (!nodes) {
            b->full = true;
            return NULL;
        }
        b->nodes = nodes;
        b->room = room;
    }
    fb_json *node = &b->nodes[b->count++];
    *node = (fb_json){.kind = kind};
    return node;
}

/* The text with a NUL behind it; where it is. */
static int64_t add_text(fb_json_builder *b, const char *text, size_t size) {
    int64_t at = b->used, end = at + (int64_t)size + 1, room = b->text_room ? b->text_room : FIRST_TEXT;
    while (room < end) room *= 2;
    if (size > FB_JSON_MAX_NODES || b->full) {
        b->full = true;
        return 0;
    }
    if (room > b->text_room) {
        char *grown = realloc(b->text, (size_t)room);
        b->full = !grown;
        if (!grown) return 0;
        b->text = grown;
        b->text_room = room;
    }
    memcpy(b->text + at, text, size);
    b->text[at + (int64_t)size] = 0;
    b->used = end;
    return at;
}

static void add_string(fb_json_builder *b, uint8_t kind, const char *text, size_t size) {
    int64_t at = add_text(b, text, size);
    fb_json *node = add_node(b, kind);
    if (!node) return;
    node->size = (uint32_t)size;
    node->integer = at;
}

/* A member of the open object: its key; then its value, which is returned, or NULL without memory. Of an open
 * array: only the value. */
static fb_json *add_member(fb_json_builder *b, const char *key, uint8_t kind) {
    if (b->count == 0 && !add_node(b, FB_JSON_OBJECT)) return NULL;
    if (key) add_string(b, FB_JSON_KEY, key, strlen(key));
    fb_json *node = b->full ? NULL : add_node(b, kind);
    if (!node) return NULL;
    node->keyed = key != NULL;
    b->nodes[b->open].size++;
    b->done = b->count - 1;
    return node;
}

void fb_json_put_null(fb_json_builder *b, const char *key) { add_member(b, key, FB_JSON_NULL); }

void fb_json_put_bool(fb_json_builder *b, const char *key, bool value) {
    fb_json *node = add_member(b, key, FB_JSON_BOOL);
    if (node) node->truth = value;
}

void fb_json_put_int(fb_json_builder *b, const char *key, int64_t value) {
    fb_json *node = add_member(b, key, FB_JSON_INT);
    if (node) node->integer = value;
}

void fb_json_put_real(fb_json_builder *b, const char *key, double value) {
    fb_json *node = add_member(b, key, FB_JSON_REAL);
    if (node) node->real = value;
}

void fb_json_put_text(fb_json_builder *b, const char *key, const char *text, size_t size) {
    int64_t at = add_text(b, text, size);
    fb_json *node = b->full ? NULL : add_member(b, key, FB_JSON_STRING);
    if (!node) return;
    node->size = (uint32_t)size;
    node->integer = at;
}

void fb_json_put_copy(fb_json_builder *b, const char *key, const fb_json *value) {
    if (value->kind == FB_JSON_STRING) {
        fb_json_put_text(b, key, value->text, value->size);
        return;
    }
    fb_json *node = add_member(b, key, value->kind);
    if (!node) return;
    *node = *value;
    node->keyed = true;
    node->last = false;
}

static void open_container(fb_json_builder *b, const char *key, uint8_t kind) {
    uint32_t parent = b->open;
    fb_json *node = add_member(b, key, kind);
    if (!node) return;
    node->nodes = parent;
    b->open = b->count - 1;
}

void fb_json_open_object(fb_json_builder *b, const char *key) { open_container(b, key, FB_JSON_OBJECT); }
void fb_json_open_array(fb_json_builder *b, const char *key) { open_container(b, key, FB_JSON_ARRAY); }

void fb_json_close(fb_json_builder *b) {
    if (b->full) return;
    fb_json *node = &b->nodes[b->open];
    if (node->size > 0) b->nodes[b->done].last = true;
    b->done = b->open;
    b->open = node->nodes;
    node->nodes = b->count - b->done;
}

/* ---- the document -------------------------------------------------------------------------------------- */

/* Copies the nodes and strings to where they stay, and makes the indexes. */
static const fb_json *settle(const fb_json_builder *b, fb_json *nodes, size_t entry_count) {
    fb_json_entry *entries = (fb_json_entry *)(void *)(nodes + b->count);
    char *text = (char *)(entries + entry_count);
    const fb_json *duplicate = NULL;
    memcpy(nodes, b->nodes, b->count * sizeof *nodes);
    if (b->used) memcpy(text, b->text, (size_t)b->used);
    for (uint32_t i = 0; i < b->count; i++)
        if (nodes[i].kind == FB_JSON_STRING || nodes[i].kind == FB_JSON_KEY)
            nodes[i].text = text + nodes[i].integer;
    for (uint32_t i = 0; i < b->count && !duplicate; i++) {
        if (nodes[i].kind != FB_JSON_OBJECT) continue;
        duplicate = fb_json_index(&nodes[i], entries);
        entries += fb_json_entries(nodes[i].size);
    }
    return duplicate;
}

static fb_status finish(fb_json_builder *b, const char *what, fb_json **out, fb_error *err) {
    if (b->count == 0) add_node(b, FB_JSON_OBJECT);
    fb_json_close(b);
    size_t entries = 0;
    for (uint32_t i = 0; i < b->count; i++)
        if (b->nodes[i].kind == FB_JSON_OBJECT) entries += fb_json_entries(b->nodes[i].size);
    int64_t bytes = (int64_t)(b->count * sizeof(fb_json) + entries * sizeof(fb_json_entry)) + b->used;
    if (b->full) return fb_fail_memory(err, what, bytes);
    void *memory;
    FB_TRY(fb_memory_take(what, bytes, &memory, err));
    const fb_json *duplicate = settle(b, memory, entries);
    if (!duplicate) {
        *out = memory;
        return FB_OK;
    }
    fb_status status = fb_fail(err, FB_ERROR_FILE, "%s: %.256s: duplicate key", what, duplicate->text);
    free(memory);
    return status;
}

fb_status fb_json_finish(fb_json_builder *b, const char *what, fb_json **out, fb_error *err) {
    *out = NULL;
    fb_status status = finish(b, what, out, err);
    fb_json_builder_free(b);
    return status;
}

void fb_json_builder_free(fb_json_builder *b) {
    free(b->nodes);
    free(b->text);
    *b = (fb_json_builder){0};
}
