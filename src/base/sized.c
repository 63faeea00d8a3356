#include "base/sized.h"

#include <string.h>

/* No struct of any version is longer. A larger value cannot be a size, and is refused before anything is
 * read. */
#define MOST 65536

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* Copies `from` [known] to `out` [size]. */
static void copy(void *out, size_t size, const void *from, size_t known) {
    size_t common = smaller(size, known);
    memcpy(out, from, common);
    memset((char *)out + common, 0, size - common);
    memcpy(out, &size, sizeof size);
}

void fb_sized_init(const fb_sized *type, void *out, size_t size) {
    if (size >= sizeof size && size <= MOST) copy(out, size, type->defaults, type->size);
}

fb_status fb_sized_take(const fb_sized *type, const void *given, void *out, fb_error *err) {
    size_t size = type->size;
    memcpy(out, type->defaults, type->size);
    if (given) memcpy(&size, given, sizeof size);
    if (size < type->least || size > MOST)
        return fb_fail(err, FB_ERROR_USAGE, "%s: size: %zu (%zu to %d; %s_default sets it)", type->name, size,
                       type->least, MOST, type->name);
    for (size_t i = type->size; i < size; i++)
        if (((const char *)given)[i])
            return fb_fail(
                err, FB_ERROR_USAGE,
                "%s: size: %zu (this library knows %zu bytes, and the bytes after them are not all zero)",
                type->name, size, type->size);
    if (given) memcpy(out, given, smaller(size, type->size));
    memcpy(out, &type->size, sizeof type->size);
    return FB_OK;
}

bool fb_sized_give(const void *from, size_t known, void *out) {
    size_t size;
    memcpy(&size, out, sizeof size);
    if (size < sizeof size || size > MOST) return false;
    copy(out, size, from, known);
    return true;
}
