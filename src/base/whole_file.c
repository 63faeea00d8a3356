#include "base/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fusebox_tools.h"

struct fb_whole_file {
    FILE *stream;
    fb_whole_mode mode;
    bool direct;     /* the target itself is written to */
    bool named;      /* the data lies under `temporary` */
    char *path;      /* the target */
    char *temporary; /* a free name in the target's folder */
    int32_t slot;    /* of `temporary` among the names below; -1: none */
    char magic[32];  /* /proc/self/fd/N: the way to the file without a name */
};

/* ---- temporary names, for a signal handler ------------------------------------------------------------- */

/* More files than a process writes at once. A name that finds no slot is only not removed by a signal. */
#define NAMES 8

static struct {
    atomic_int state;
    char name[PATH_MAX];
} names[NAMES];

enum { FREE, TAKEN, READY };

static int32_t remember(const char *name) {
    if (strlen(name) >= PATH_MAX) return -1;
    for (int32_t i = 0; i < NAMES; i++) {
        int state = FREE;
        if (!atomic_compare_exchange_strong(&names[i].state, &state, TAKEN)) continue;
        memcpy(names[i].name, name, strlen(name) + 1);
        atomic_store(&names[i].state, READY);
        return i;
    }
    return -1;
}

static void forget(int32_t slot) {
    if (slot >= 0) atomic_store(&names[slot].state, FREE);
}

void fb_discard_files(void) {
    int before = errno;
    for (int32_t i = 0; i < NAMES; i++)
        if (atomic_load(&names[i].state) == READY) unlink(names[i].name);
    errno = before;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

fb_status fb_whole_file_fail(const char *path, int reason, fb_error *err) {
    bool no_room = reason == ENOSPC || reason == EDQUOT || reason == EFBIG || reason == EIO || reason == 0;
    return fb_fail(err, no_room ? FB_ERROR_SYSTEM : FB_ERROR_FILE, "%s: %s", path,
                   reason ? strerror(reason) : "write error");
}

/* The folder of the path: up to the last slash, or ".". */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static bool choose_name(fb_whole_file *f, const char *folder) {
    unsigned long long random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random)
        random = (unsigned long long)getpid(); /* O_EXCL does not depend on it */
    return asprintf(&f->temporary, "%s/.fusebox-%016llx.tmp", folder, random) >= 0;
}

static fb_status check_target(fb_whole_file *f, fb_error *err) {
    struct stat st;
    if (lstat(f->path, &st) != 0) return errno == ENOENT ? FB_OK : fb_whole_file_fail(f->path, errno, err);
    f->direct = f->mode == FB_WHOLE_WRITE && !S_ISREG(st.st_mode);
    if (f->direct) return FB_OK;
    if (!S_ISREG(st.st_mode)) return fb_fail(err, FB_ERROR_USAGE, "%s: not a regular file", f->path);
    if (f->mode == FB_WHOLE_NEW) return fb_fail(err, FB_ERROR_USAGE, "%s: the file exists", f->path);
    return FB_OK;
}

/* The descriptor, or -1 with errno. */
static int open_data(fb_whole_file *f, const char *folder) {
    if (f->direct) return open(f->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int fd = open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    if (fd >= 0) {
        snprintf(f->magic, sizeof f->magic, "/proc/self/fd/%d", fd);
        if (access(f->magic, F_OK) == 0) return fd;
        close(fd); /* without /proc it could never get a name */
    }
    f->slot = remember(f->temporary);
    fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    f->named = fd >= 0;
    return fd;
}

static fb_status open_stream(fb_whole_file *f, fb_error *err) {
    char *folder = folder_of(f->path);
    if (!folder || !choose_name(f, folder)) {
        f->temporary = NULL;
        free(folder);
        return fb_fail_memory(err, f->path, (int64_t)strlen(f->path));
    }
    int fd = open_data(f, folder), reason = errno;
    free(folder);
    if (fd < 0) return fb_whole_file_fail(f->path, reason, err);
    f->stream = fdopen(fd, "w");
    if (f->stream) return FB_OK;
    close(fd);
    return fb_fail_memory(err, f->path, BUFSIZ);
}

fb_status fb_whole_file_open(const char *path, fb_whole_mode mode, fb_whole_file **out, fb_error *err) {
    *out = NULL;
    fb_whole_file *f = calloc(1, sizeof *f);
    if (!f) return fb_fail_memory(err, path, sizeof *f);
    f->mode = mode;
    f->slot = -1;
    f->path = strdup(path);
    fb_status status = f->path ? check_target(f, err) : fb_fail_memory(err, path, (int64_t)strlen(path) + 1);
    if (status == FB_OK) status = open_stream(f, err);
    if (status == FB_OK)
        *out = f;
    else
        fb_whole_file_free(f);
    return status;
}

FILE *fb_whole_file_stream(fb_whole_file *f) { return f->stream; }

void fb_whole_file_free(fb_whole_file *f) {
    if (!f) return;
    if (f->stream) fclose(f->stream);
    if (f->named) unlink(f->temporary);
    forget(f->slot);
    free(f->temporary);
    free(f->path);
    free(f);
}

/* ---- finishing ----------------------------------------------------------------------------------------- */

/* From the temporary name to the target's. 0, or errno. Where the file system cannot promise that nothing is
 * replaced, the check at the start is what there is. */
static int rename_temporary(fb_whole_file *f) {
    int failed = -1;
    if (f->mode == FB_WHOLE_NEW)
        failed = renameat2(AT_FDCWD, f->temporary, AT_FDCWD, f->path, RENAME_NOREPLACE);
    if (failed && (f->mode != FB_WHOLE_NEW || errno == EINVAL || errno == ENOSYS))
        failed = rename(f->temporary, f->path);
    if (failed) return errno;
    f->named = false;
    return 0;
}

/* 0, or errno. */
static int take_name(fb_whole_file *f) {
    if (f->direct) return 0;
    if (f->named) return rename_temporary(f);
    if (linkat(AT_FDCWD, f->magic, AT_FDCWD, f->path, AT_SYMLINK_FOLLOW) == 0) return 0;
    if (errno != EEXIST || f->mode == FB_WHOLE_NEW) return errno;
    f->slot = remember(f->temporary);
    if (linkat(AT_FDCWD, f->magic, AT_FDCWD, f->temporary, AT_SYMLINK_FOLLOW) != 0) return errno;
    f->named = true;
    return rename_temporary(f);
}

fb_status fb_whole_file_finish(fb_whole_file *f, fb_error *err) {
    errno = 0;
    bool ok = fflush(f->stream) == 0 && !ferror(f->stream);
    if (ok && !f->direct) ok = fsync(fileno(f->stream)) == 0;
    int reason = errno;
    if (ok) ok = (reason = take_name(f)) == 0;
    bool closed = fclose(f->stream) == 0; /* says nothing new after fsync */
    if (ok && f->direct && !closed) ok = false, reason = errno;
    f->stream = NULL;
    return ok ? FB_OK : fb_whole_file_fail(f->path, reason, err);
}

fb_status fb_whole_file_write(const char *path, fb_whole_mode mode, void (*write)(FILE *f, const void *user),
                              const void *user, fb_error *err) {
    fb_whole_file *f;
    FB_TRY(fb_whole_file_open(path, mode, &f, err));
    write(f->stream, user);
    fb_status status = fb_whole_file_finish(f, err);
    fb_whole_file_free(f);
    return status;
}
