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

/* Whether `path` can be opened for reading as a regular file. */
bool fb_map_exists(const char *path);

#endif
