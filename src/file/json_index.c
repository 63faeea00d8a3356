/* Members of objects by their keys, and keys that are there twice. */
#include "file/json_tree.h"

/* FNV-1a. */
static uint32_t hash_key(const char *text, size_t size) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ (uint8_t)text[i]) * 16777619u;
    return hash;
}

static int compare_keys(const char *left, size_t left_size, const char *right, size_t right_size) {
    if (left_size != right_size) return left_size < right_size ? -1 : 1;
    return memcmp(left, right, left_size);
}

/* Equal keys in the order of the text. */
static int compare_entries(const fb_json *object, fb_json_entry left, fb_json_entry right) {
    if (left.hash != right.hash) return left.hash < right.hash ? -1 : 1;
    const fb_json *a = object + left.key, *b = object + right.key;
    int order = compare_keys(a->text, a->size, b->text, b->size);
    return order ? order : (left.key > right.key) - (left.key < right.key);
}

/* Heap sort: no keys make it slow, and it takes no memory. */
static void sift_down(const fb_json *object, fb_json_entry *entries, size_t at, size_t count) {
    fb_json_entry moved = entries[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && compare_entries(object, entries[child], entries[child + 1]) < 0) child++;
        if (compare_entries(object, moved, entries[child]) >= 0) break;
        entries[at] = entries[child];
    }
    entries[at] = moved;
}

static void sort_entries(const fb_json *object, fb_json_entry *entries, size_t count) {
    for (size_t i = count / 2; i-- > 0;) sift_down(object, entries, i, count);
    for (size_t i = count; i-- > 1;) {
        fb_json_entry top = entries[0];
        entries[0] = entries[i];
        entries[i] = top;
        sift_down(object, entries, 0, i);
    }
}

/* ---- duplicates ---------------------------------------------------------------------------------------- */

static bool same_key(const fb_json *left, const fb_json *right) {
    return compare_keys(left->text, left->size, right->text, right->size) == 0;
}

static const fb_json *find_small_duplicate(const fb_json *object) {
    for (const fb_json *value = fb_json_first(object); value; value = fb_json_next(value))
        for (const fb_json *other = fb_json_first(object); other != value; other = fb_json_next(other))
            if (same_key(other - 1, value - 1)) return value - 1;
    return NULL;
}

static const fb_json *find_duplicate(const fb_json *object, const fb_json_entry *entries) {
    const fb_json *found = NULL;
    for (uint32_t i = 1; i < object->size; i++) {
        const fb_json *key = object + entries[i].key;
        if (entries[i].hash == entries[i - 1].hash && same_key(object + entries[i - 1].key, key) &&
            (!found || key < found))
            found = key;
    }
    return found;
}

const fb_json *fb_json_index(fb_json *object, fb_json_entry *entries) {
    if (!fb_json_entries(object->size)) return find_small_duplicate(object);
    uint32_t count = 0;
    for (const fb_json *value = fb_json_first(object); value; value = fb_json_next(value)) {
        const fb_json *key = value - 1;
        entries[count++] = (fb_json_entry){hash_key(key->text, key->size), (uint32_t)(key - object)};
    }
    sort_entries(object, entries, count);
    object->index = (uint32_t)(entries - (const fb_json_entry *)(const void *)object);
    return find_duplicate(object, entries);
}

/* ---- lookup -------------------------------------------------------------------------------------------- */

static const fb_json *find_small(const fb_json *object, const char *key, size_t size) {
    for (const fb_json *value = fb_json_first(object); value; value = fb_json_next(value))
        if (compare_keys(value[-1].text, value[-1].size, key, size) == 0) return value;
    return NULL;
}

const fb_json *fb_json_get(const fb_json *object, const char *key) {
    if (!fb_json_is(object, FB_JSON_OBJECT)) return NULL;
    size_t size = strlen(key), low = 0, high = object->size;
    if (!fb_json_entries(object->size)) return find_small(object, key, size);
    const fb_json_entry *entries = (const fb_json_entry *)(const void *)object + object->index;
    uint32_t hash = hash_key(key, size);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const fb_json *found = object + entries[middle].key;
        int order = hash != entries[middle].hash ? (hash < entries[middle].hash ? -1 : 1)
                                                 : compare_keys(key, size, found->text, found->size);
        if (order == 0) return found + 1;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}
