/* Structs whose length depends on the caller's header. Each begins with `size_t size`. A program compiled
 * with an older header passes a shorter struct, one compiled with a newer header a longer one. */
#ifndef FB_BASE_SIZED_H
#define FB_BASE_SIZED_H

#include "base/status.h"

/* Describes a struct that the caller fills, in this library's version. */
typedef struct fb_sized {
    const char *name; /* for messages: "fb_session_options" */
    size_t size;
    size_t least;         /* the shortest valid size: `size` and the first field */
    const void *defaults; /* [size] */
} fb_sized;

/* A new field must begin after the old end, because padding in an older header may hold any bytes. So the
 * last field must reach the end of the struct. */
#define FB_SIZED_ENDS_WITH(type, last)                                                                       \
    _Static_assert(offsetof(type, last) + sizeof(((type *)0)->last) == sizeof(type),                         \
                   #type ": padding at the end")

/* The fb_sized of `type`, whose first two fields are `size` and `first`. */
#define FB_SIZED(type, first, pointer)                                                                       \
    {                                                                                                        \
        .name = #type, .size = sizeof(type), .defaults = (pointer),                                          \
        .least = offsetof(type, first) + sizeof(((type *)0)->first)                                          \
    }

/* Sets the caller's struct of `size` bytes to the defaults. Bytes beyond the known fields become zero. */
void fb_sized_init(const fb_sized *type, void *out, size_t size);

/* Copies the caller's struct (NULL: the defaults) to `out` [type->size]. Fields that the caller's version
 * lacks get their defaults. Refuses an impossible size, and bytes that are unknown here and not zero. */
fb_status fb_sized_take(const fb_sized *type, const void *given, void *out, fb_error *err);

/* Fills the caller's struct, whose `size` is set, from `known` bytes at `from`. Bytes beyond those become
 * zero. False: the struct is too short for its `size` field, and nothing was written. */
bool fb_sized_give(const void *from, size_t known, void *out);

#endif
