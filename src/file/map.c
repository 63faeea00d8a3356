#include "file/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static fb_status map_fd(const char *path, int fd, fb_map *out, fb_error *err) {
    struct stat st;
    if (fstat(fd, &st)) return fb_fail(err, FB_ERROR_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return fb_fail(err, FB_ERROR_FILE, "%s: not a regular file", path);
    if (st.st_size == 0) return FB_OK;
    out->path = strdup(path);
    if (!out->path) return fb_fail_memory(err, path, (int64_t)strlen(path) + 1);
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return fb_fail(err, FB_ERROR_FILE, "%s: cannot map: %s", path, strerror(errno));
    out->data = data;
    out->size = (size_t)st.st_size;
    out->fd = fd;
    return FB_OK;
}

fb_status fb_map_open(const char *path, fb_map *out, fb_error *err) {
    *out = (fb_map){0};
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int reason = errno;
        bool link = reason == ENOENT && !fb_map_missing(path);
        return fb_fail(err, FB_ERROR_FILE, "%s: %s", path, link ? "a link to nothing" : strerror(reason));
    }
    fb_status status = map_fd(path, fd, out, err);
    if (out->data) return FB_OK;
    close(fd);
    free(out->path);
    out->path = NULL;
    return status;
}

void fb_map_close(fb_map *map) {
    if (map->path) {
        munmap((void *)(uintptr_t)map->data, map->size);
        close(map->fd);
        free(map->path);
    }
    *map = (fb_map){0};
}

fb_status fb_map_copy(const fb_map *map, const char *what, size_t at, size_t size, uint8_t *to,
                      fb_error *err) {
    if (!map->path) {
        if (size) memcpy(to, map->data + at, size);
        return FB_OK;
    }
    for (size_t done = 0; done < size;) {
        ssize_t count = pread(map->fd, to + done, size - done, (off_t)(at + done));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return fb_fail(err, FB_ERROR_FILE, "%s: %s", what, strerror(errno));
        if (count == 0)
            return fb_fail(err, FB_ERROR_FILE, "%s: %zu bytes while it is read (%zu when it was opened)",
                           what, at + done, map->size);
        done += (size_t)count;
    }
    return FB_OK;
}

fb_status fb_map_check(const fb_map *map, fb_error *err) {
    struct stat st;
    if (!map->path) return FB_OK;
    if (fstat(map->fd, &st)) return fb_fail(err, FB_ERROR_FILE, "%s: %s", map->path, strerror(errno));
    if ((size_t)st.st_size == map->size) return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: %lld bytes (%zu when it was opened: the file was changed)",
                   map->path, (long long)st.st_size, map->size);
}

bool fb_map_missing(const char *path) {
    struct stat st;
    return lstat(path, &st) != 0 && errno == ENOENT;
}

void fb_map_release(const void *data, size_t size) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)data + page - 1) / page * page,
              end = ((uintptr_t)data + size) / page * page;
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}
