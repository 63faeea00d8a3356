/* Large allocations. They are refused when the machine has too little memory: an operating system that
 * overcommits would grant them and kill the process later. */
#ifndef FB_BASE_MEMORY_H
#define FB_BASE_MEMORY_H

#include "base/status.h"

/* Returns at least 64 bytes, aligned to 64 bytes; release with free. The error names `what`. */
fb_status fb_memory_take(const char *what, int64_t bytes, void **out, fb_error *err);

/* Bytes that can be used without swapping; INT64_MAX if the system does not say. */
int64_t fb_memory_available(void);

/* An array of pointers to `count` structs of `size` bytes, all zero, in one allocation: free releases it.
 * NULL: no memory. */
void *fb_memory_structs(int64_t count, size_t size);

#endif
