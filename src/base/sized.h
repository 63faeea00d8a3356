/* Structs whose length the caller's header decides: each begins with `size_t size`. A program that was
 * compiled with an older header hands over a shorter one, one with a newer header a longer one. */
#ifndef FB_BASE_SIZED_H
#define FB_BASE_SIZED_H

#include "base/status.h"

/* A struct that the caller fills, as this library knows it. */
typedef struct fb_sized {
    const char *name; /* for messages: "fb_session_options" */
    size_t size;
    size_t least;         /* what every caller has: `size` and the first field */
    const void *defaults; /* [size] */
} fb_sized;

/* A new field must begin behind the old end: what is padding in an older header may hold anything. So the
 * last field must reach the end of the struct. */
#define FB_SIZED_ENDS_WITH(type, last)                                                                       \
    _Static_assert(offsetof(type, last) + sizeof(((type *)0)->last) == sizeof(type),                         \
                   #type ": padding at the end")

/* The fb_sized of `type`, which begins with `size` and `first`. */
#define FB_SIZED(type, first, pointer)                                                                       \
    {                                                                                                        \
        .name = #type, .size = sizeof(type), .defaults = (pointer),                                          \
        .least = offsetof(type, first) + sizeof(((type *)0)->first)                                          \
    }

/* Sets the caller's struct of `size` bytes to the defaults; what lies beyond those that are known is zero. */
void fb_sized_init(const fb_sized *type, void *out, size_t size);

/* The caller's struct, or the defaults for NULL, as a whole one at `out` [type->size]. What the caller's does
 * not have is the default. Refuses a size that cannot be, and bytes that are not zero and not known here. */
fb_status fb_sized_take(const fb_sized *type, const void *given, void *out, fb_error *err);

/* Fills the caller's struct, whose `size` is set, from a whole one of `known` bytes; what lies beyond is
 * zero. False: it has not even room for its size, and nothing was written. */
bool fb_sized_give(const void *from, size_t known, void *out);

#endif
