/* Large allocations, refused when the machine has no room for them: an operating system that overcommits
 * would grant them and kill the process later. */
#ifndef FB_BASE_MEMORY_H
#define FB_BASE_MEMORY_H

#include "base/status.h"

/* 64-byte aligned, at least 64 bytes, released with free. `what` is named in the error. */
fb_status fb_memory_take(const char *what, int64_t bytes, void **out, fb_error *err);

/* Bytes that could be used without swapping; INT64_MAX where the system does not tell. */
int64_t fb_memory_available(void);

/* An array of pointers to `count` structs of `size` bytes, all zero, in one allocation: free releases it.
 * NULL: no memory. */
void *fb_memory_structs(int64_t count, size_t size);

#endif
