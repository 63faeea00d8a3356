/* A file that is there whole or not at all: every file that the library writes is written with this.
 *
 * The data goes to a file without a name in the target's folder (O_TMPFILE). It gets the target's name when
 * all of it is on the disk. Whatever ends the process before that, the system frees the data. A file that
 * replaces another one has a temporary name for the instant between linkat and rename.
 *
 * Where the file system has no files without names, the data goes to a temporary name: a random one, made
 * with O_EXCL, so that no link is followed which somebody put there. fb_discard_files removes such names when
 * a signal ends the process. */
#ifndef FB_BASE_WHOLE_FILE_H
#define FB_BASE_WHOLE_FILE_H

#include <stdio.h>

#include "base/status.h"

typedef struct fb_whole_file fb_whole_file;

/* What happens to something that has the name already. */
typedef enum fb_whole_mode {
    FB_WHOLE_NEW,     /* it is refused */
    FB_WHOLE_REPLACE, /* a regular file is replaced, anything else is refused */
    FB_WHOLE_WRITE /* a regular file is replaced; a device or a link is opened and written to, not replaced */
} fb_whole_mode;

fb_status fb_whole_file_open(const char *path, fb_whole_mode mode, fb_whole_file **out, fb_error *err);

/* Nothing stays of a file that was not finished. */
void fb_whole_file_free(fb_whole_file *file);

/* Where the data goes. Errors need not be checked after each write: finish fails if there was one. */
FILE *fb_whole_file_stream(fb_whole_file *file);

/* Gives the file its name. FB_ERROR_SYSTEM if the data found no room. */
fb_status fb_whole_file_finish(fb_whole_file *file, fb_error *err);

/* The error for a system call on `path` that failed with the errno `reason`: FB_ERROR_SYSTEM if the disk or a
 * limit refused the data, FB_ERROR_FILE if the path is the wrong one. */
fb_status fb_whole_file_fail(const char *path, int reason, fb_error *err);

/* All of it for data that one function writes. */
fb_status fb_whole_file_write(const char *path, fb_whole_mode mode, void (*write)(FILE *f, const void *user),
                              const void *user, fb_error *err);

#endif
