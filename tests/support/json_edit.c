/* Changes to JSON as text, so that a test can make what no reader accepts. The text itself is well formed. */
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

static const char *skip_space(const char *at) { return at + strspn(at, " \t\r\n"); }

static const char *skip_string(const char *at) {
    for (at++; *at != '"'; at++) {
        if (*at == '\\') at++;
        if (!*at) fail_msg("a string without an end");
    }
    return at + 1;
}

/* Behind the value at `at`. */
static const char *skip_value(const char *at) {
    if (*at == '"') return skip_string(at);
    if (*at != '[' && *at != '{') return at + strcspn(at, ",]} \t\r\n");
    int depth = 0;
    do {
        if (!*at) fail_msg("an array or object without an end");
        depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
        at = *at == '"' ? skip_string(at) : at + 1;
    } while (depth > 0);
    return at;
}

typedef struct member {
    const char *begin, *key, *value, *end; /* of the whole, of the key's text, of the value */
    size_t key_size;
} member;

/* The member at `at`, which is behind a '{' or a ','. False at the object's end. */
static bool next_member(const char **at, member *m) {
    m->begin = skip_space(*at + (**at == ','));
    if (*m->begin != '"') return false;
    const char *behind = skip_string(m->begin);
    m->key = m->begin + 1;
    m->key_size = (size_t)(behind - m->key) - 1;
    m->value = skip_space(skip_space(behind) + 1);
    m->end = skip_value(m->value);
    *at = skip_space(m->end);
    return true;
}

/* The object's member of this name; if there is none, `m` is empty at the object's end. */
static bool find_member(const char *object, const char *name, size_t size, member *m) {
    const char *at = skip_space(object);
    if (*at++ != '{') fail_msg("not an object: %.40s", object);
    while (next_member(&at, m))
        if (m->key_size == size && memcmp(m->key, name, size) == 0) return true;
    *m = (member){.begin = at, .end = at};
    return false;
}

static char *without(const char *text, const char *begin, const char *end) {
    const char *behind = skip_space(end), *before = begin;
    while (before > text && strchr(" \t\r\n", before[-1])) before--;
    if (*behind == ',') /* one comma goes along */
        end = behind + 1;
    else if (before > text && before[-1] == ',')
        begin = before - 1;
    return fbt_format("%.*s%s", (int)(begin - text), text, end);
}

char *fbt_json_with(const char *text, const char *key, const char *json) {
    const char *object = text, *dot;
    member m;
    for (; (dot = strchr(key, '.')); key = dot + 1) {
        if (!find_member(object, key, (size_t)(dot - key), &m)) fail_msg("no object for %s", key);
        object = m.value;
    }
    bool found = find_member(object, key, strlen(key), &m);
    if (!json && !found) fail_msg("no member %s", key);
    if (!json) return without(text, m.begin, m.end);
    if (found) return fbt_format("%.*s%s%s", (int)(m.value - text), text, json, m.end);
    bool first = skip_space(skip_space(object) + 1) == skip_space(m.begin);
    return fbt_format("%.*s%s\"%s\": %s%s", (int)(m.begin - text), text, first ? "" : ", ", key, json,
                      m.begin);
}

char *fbt_json_merge(const char *base, const char *changes) {
    char *text = fbt_format("%s", base);
    const char *at = skip_space(changes) + 1;
    member m, old;
    while (next_member(&at, &m)) {
        bool null = strncmp(m.value, "null", 4) == 0;
        if (null && !find_member(text, m.key, m.key_size, &old)) continue;
        char *key = fbt_format("%.*s", (int)m.key_size, m.key),
             *value = fbt_format("%.*s", (int)(m.end - m.value), m.value);
        char *changed = fbt_json_with(text, key, null ? NULL : value);
        free(key);
        free(value);
        free(text);
        text = changed;
    }
    return text;
}

void fbt_json_set(const char *path, const char *key, const char *json) {
    char *old = fbt_file_read(path, NULL), *text = fbt_json_with(old, key, json);
    fbt_text_write(path, text);
    free(old);
    free(text);
}
