/* A file mapped read-only into memory. */
#ifndef FB_FILE_MAP_H
#define FB_FILE_MAP_H

#include "base/status.h"

typedef struct fb_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
} fb_map;

/* Fails for anything but a readable regular file. */
fb_status fb_map_open(const char *path, fb_map *out, fb_error *err);
void fb_map_close(fb_map *map);

/* Tells the system that these mapped bytes will not be read again soon: they leave this process's memory, and
 * come back from the file if they are read after all. */
void fb_map_release(const void *data, size_t size);

/* Whether `path` can be opened for reading as a regular file. */
bool fb_map_exists(const char *path);

#endif
