/* A file mapped read-only into memory. */
#ifndef FB_FILE_MAP_H
#define FB_FILE_MAP_H

#include "base/status.h"

typedef struct fb_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;         /* when it was opened */
    char *path;          /* of the file, which stays open at `fd`; NULL: the bytes are the caller's */
    int fd;
} fb_map;

/* Fails for anything but a readable regular file. */
fb_status fb_map_open(const char *path, fb_map *out, fb_error *err);
void fb_map_close(fb_map *map);

/* Copies bytes of the file, all of which lay in it when it was opened. Others may change a mapped file at any
 * time: what is checked before it is used must be a copy. `what` names the file in errors. */
fb_status fb_map_copy(const fb_map *map, const char *what, size_t at, size_t size, uint8_t *to,
                      fb_error *err);

/* Refuses a file whose size is no longer that of its map: to read what was cut off would be a SIGBUS. */
fb_status fb_map_check(const fb_map *map, fb_error *err);

/* Tells the system that these mapped bytes will not be read again soon: they leave this process's memory, and
 * come back from the file if they are read after all. */
void fb_map_release(const void *data, size_t size);

/* Whether nothing has the name `path`: what is there and cannot be read is not missing, nor is a link to
 * nothing. */
bool fb_map_missing(const char *path);

#endif
