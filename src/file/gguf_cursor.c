#include "file/gguf_cursor.h"

#include <stdio.h>
#include <string.h>

#include "file/tensors_table.h"

fb_status fb_gguf_take(fb_gguf_cursor *c, const char *part, uint64_t size, const uint8_t **out,
                       fb_error *err) {
    if (size > c->size - c->at)
        return fb_fail(err, FB_ERROR_FILE, "%s: %.100s: %llu bytes (%zu are left in the file)", c->what, part,
                       (unsigned long long)size, c->size - c->at);
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
