#include "file/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static fb_status map_fd(const char *path, int fd, fb_map *out, fb_error *err) {
    struct stat st;
    if (fstat(fd, &st)) return fb_fail(err, FB_ERROR_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return fb_fail(err, FB_ERROR_FILE, "%s: not a regular file", path);
    if (st.st_size == 0) return FB_OK;
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return fb_fail(err, FB_ERROR_FILE, "%s: cannot map: %s", path, strerror(errno));
    out->data = data;
    out->size = (size_t)st.st_size;
    return FB_OK;
}

fb_status fb_map_open(const char *path, fb_map *out, fb_error *err) {
    *out = (fb_map){0};
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fb_fail(err, FB_ERROR_FILE, "%s: %s", path, strerror(errno));
    fb_status status = map_fd(path, fd, out, err);
    close(fd);
    return status;
}

void fb_map_close(fb_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->size);
    *map = (fb_map){0};
}

bool fb_map_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, R_OK) == 0;
}

void fb_map_release(const void *data, size_t size) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)data + page - 1) / page * page,
              end = ((uintptr_t)data + size) / page * page;
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}
