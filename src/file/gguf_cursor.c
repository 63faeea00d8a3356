#include "file/gguf_cursor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/tensors_table.h"

#define FIRST_COPY 65536     /* bytes; as many again, and more, whenever they do not suffice */
#define MOST       (1 << 30) /* bytes of metadata. The largest published tokenizers take 32 MB */

/* Copies more of the file, so that the next `size` bytes, which it has, are there. */
static fb_status copy_more(fb_gguf_cursor *c, size_t size, fb_error *err) {
    size_t wanted = c->copied ? 2 * c->copied : FIRST_COPY;
    if (wanted < c->at + size) wanted = c->at + size;
    if (c->at + size > MOST)
        return fb_fail(err, FB_ERROR_FILE, "%s: metadata: %zu bytes and more (at most %d)", c->what,
                       c->at + size, MOST);
    if (wanted > c->size) wanted = c->size;
    uint8_t *bytes = realloc(c->bytes, wanted);
    if (!bytes) return fb_fail_memory(err, c->what, (int64_t)wanted);
    c->bytes = bytes;
    FB_TRY(fb_map_copy(c->file, c->what, c->copied, wanted - c->copied, bytes + c->copied, err));
    c->copied = wanted;
    return FB_OK;
}

fb_status fb_gguf_take(fb_gguf_cursor *c, const char *part, uint64_t size, const uint8_t **out,
                       fb_error *err) {
    if (size > c->size - c->at)
        return fb_fail(err, FB_ERROR_FILE, "%s: %.100s: %llu bytes (%zu are left in the file)", c->what, part,
                       (unsigned long long)size, c->size - c->at);
    if (size > c->copied - c->at) FB_TRY(copy_more(c, (size_t)size, err));
    *out = c->bytes + c->at;
    c->at += (size_t)size;
    return FB_OK;
}

/* Numbers are little endian, as is every machine that this runs on. */
static fb_status take_number(fb_gguf_cursor *c, const char *part, size_t size, void *out, fb_error *err) {
    const uint8_t *at = NULL;
    FB_TRY(fb_gguf_take(c, part, size, &at, err));
    memcpy(out, at, size);
    return FB_OK;
}

fb_status fb_gguf_take_u32(fb_gguf_cursor *c, const char *part, uint32_t *out, fb_error *err) {
    return take_number(c, part, sizeof *out, out, err);
}

fb_status fb_gguf_take_u64(fb_gguf_cursor *c, const char *part, uint64_t *out, fb_error *err) {
    return take_number(c, part, sizeof *out, out, err);
}

fb_status fb_gguf_take_text(fb_gguf_cursor *c, const char *part, fb_gguf_text *out, fb_error *err) {
    uint64_t length = 0;
    const uint8_t *at = NULL;
    FB_TRY(fb_gguf_take_u64(c, part, &length, err));
    if (length > MOST && length <= c->size - c->at)
        return fb_fail(err, FB_ERROR_FILE, "%s: %.100s: string of %llu bytes (at most %d)", c->what, part,
                       (unsigned long long)length, MOST);
    FB_TRY(fb_gguf_take(c, part, length, &at, err));
    *out = (fb_gguf_text){(const char *)at, (int64_t)length};
    return FB_OK;
}

fb_status fb_gguf_take_name(fb_gguf_cursor *c, const char *kind, uint64_t index, char *name, size_t size,
                            fb_error *err) {
    char part[64];
    fb_gguf_text text = {0};
    snprintf(part, sizeof part, "%s %llu", kind, (unsigned long long)index);
    FB_TRY(fb_gguf_take_text(c, part, &text, err));
    if ((uint64_t)text.size >= size)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: name of %lld bytes (at most %zu)", c->what, part,
                       (long long)text.size, size - 1);
    memcpy(name, text.data, (size_t)text.size);
    name[text.size] = 0;
    if (memchr(name, 0, (size_t)text.size) || !fb_tensors_good_name(name))
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: name: %s", c->what, part,
                       text.size ? "control character in it" : "empty");
    return FB_OK;
}
