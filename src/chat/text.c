/* Texts with marks: how they are built, cut and searched. */
#include <string.h>

#include "chat/value.h"
#include "text/unicode.h"
#include "text/utf8.h"

fb_jinja_text fb_jinja_literal(const char *text) {
    return (fb_jinja_text){text, NULL, (int64_t)strlen(text)};
}

bool fb_jinja_same(fb_jinja_text a, fb_jinja_text b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.bytes, b.bytes, (size_t)a.size) == 0);
}

bool fb_jinja_is(fb_jinja_text text, const char *constant) {
    return fb_jinja_same(text, fb_jinja_literal(constant));
}

/* ---- building ---- */

static fb_status reserve(fb_jinja_run *run, fb_jinja_builder *b, int64_t more, bool marks) {
    fb_jinja_arena *arena = &run->base.arena;
    if (b->room - b->size < more) {
        int64_t room = b->size + more < 64 ? 64 : 2 * (b->size + more);
        char *bytes = fb_jinja_arena_take(arena, room);
        unsigned char *larger = b->marks ? fb_jinja_arena_take(arena, room) : NULL;
        if (!bytes || (b->marks && !larger)) return fb_jinja_fail_memory(&run->base);
        if (b->size > 0) memcpy(bytes, b->bytes, (size_t)b->size);
        if (b->size > 0 && larger) memcpy(larger, b->marks, (size_t)b->size);
        b->bytes = bytes;
        b->marks = larger;
        b->room = room;
    }
    if (marks && !b->marks) {
        b->marks = fb_jinja_arena_take(arena, b->room); /* zeroes: what is there has no mark */
        if (!b->marks) return fb_jinja_fail_memory(&run->base);
    }
    return FB_OK;
}

fb_status fb_jinja_put(fb_jinja_run *run, fb_jinja_builder *b, fb_jinja_text text) {
    if (text.size == 0) return FB_OK;
    FB_TRY(fb_jinja_work_bytes(run, text.size));
    FB_TRY(reserve(run, b, text.size, text.marks != NULL));
    memcpy(b->bytes + b->size, text.bytes, (size_t)text.size);
    if (text.marks)
        memcpy(b->marks + b->size, text.marks, (size_t)text.size);
    else if (b->marks)
        memset(b->marks + b->size, 0, (size_t)text.size);
    b->size += text.size;
    return FB_OK;
}

fb_status fb_jinja_put_string(fb_jinja_run *run, fb_jinja_builder *b, const char *text) {
    return fb_jinja_put(run, b, fb_jinja_literal(text));
}

fb_status fb_jinja_put_marked(fb_jinja_run *run, fb_jinja_builder *b, const char *bytes, int64_t size,
                              unsigned char mark) {
    FB_TRY(fb_jinja_put(run, b, (fb_jinja_text){bytes, NULL, size}));
    if (!mark || size == 0) return FB_OK;
    FB_TRY(reserve(run, b, 0, true));
    memset(b->marks + b->size - size, mark, (size_t)size);
    return FB_OK;
}

fb_status fb_jinja_put_code(fb_jinja_run *run, fb_jinja_builder *b, uint32_t code, unsigned char mark) {
    char bytes[4];
    return fb_jinja_put_marked(run, b, bytes, fb_utf8_write(code, bytes), mark);
}

fb_status fb_jinja_concat(fb_jinja_run *run, fb_jinja_text left, fb_jinja_text right, fb_jinja_value *out) {
    fb_jinja_builder b = {0};
    FB_TRY(reserve(run, &b, left.size + right.size, left.marks || right.marks));
    FB_TRY(fb_jinja_put(run, &b, left));
    FB_TRY(fb_jinja_put(run, &b, right));
    *out = fb_jinja_string(fb_jinja_built(&b));
    return FB_OK;
}

/* ---- characters ---- */

static bool continues(char byte) { return ((unsigned char)byte & 0xC0) == 0x80; }

int64_t fb_jinja_characters(fb_jinja_text text) {
    int64_t count = 0;
    for (int64_t i = 0; i < text.size; i++) count += !continues(text.bytes[i]);
    return count;
}

int64_t fb_jinja_offset(fb_jinja_text text, int64_t index) {
    int64_t at = 0;
    while (at < text.size && index > 0) {
        at += fb_utf8_length(text.bytes[at]);
        index--;
    }
    return at;
}

bool fb_jinja_is_space(uint32_t code) { return (code >= 0x1c && code <= 0x1f) || fb_unicode_is_space(code); }

static bool is_in(fb_jinja_text character, const fb_jinja_text *set) {
    if (!set) return fb_jinja_is_space(fb_utf8_read(character.bytes, character.size).code);
    /* A character of UTF-8 is found only where one begins. */
    return fb_jinja_find(*set, character, 0, set->size, false) >= 0;
}

fb_jinja_text fb_jinja_strip(fb_jinja_text text, const fb_jinja_text *set, bool left, bool right) {
    int64_t start = 0, end = text.size;
    while (left && start < end) {
        int64_t size = fb_utf8_length(text.bytes[start]);
        if (!is_in(fb_jinja_part(text, start, start + size), set)) break;
        start += size;
    }
    while (right && end > start) {
        int64_t at = end - 1;
        while (at > start && continues(text.bytes[at])) at--;
        if (!is_in(fb_jinja_part(text, at, end), set)) break;
        end = at;
    }
    return fb_jinja_part(text, start, end);
}

int64_t fb_jinja_find(fb_jinja_text text, fb_jinja_text part, int64_t start, int64_t end, bool last) {
    if (start > end || part.size > end - start) return -1;
    if (part.size == 0) return last ? end : start;
    if (!last) {
        const char *found = memmem(text.bytes + start, (size_t)(end - start), part.bytes, (size_t)part.size);
        return found ? found - text.bytes : -1;
    }
    for (int64_t at = end - part.size; at >= start; at--)
        if (text.bytes[at] == part.bytes[0] && memcmp(text.bytes + at, part.bytes, (size_t)part.size) == 0)
            return at;
    return -1;
}
