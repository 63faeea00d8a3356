/* A model in several GGUF files, NAME-00001-of-00003.gguf and so on: the metadata is in the first, and each
 * has some of the tensors. */
#ifndef FB_FILE_GGUF_SPLIT_H
#define FB_FILE_GGUF_SPLIT_H

#include "file/gguf.h"

/* How many files a model is in: split.count, 1 without it. */
fb_status fb_gguf_split_count(const char *what, const fb_gguf *gguf, int64_t *out, fb_error *err);

/* The name of part `index` of `count`, from 0, of the model that `path` is some part of; released with free.
 * NULL if `path` does not end as the name of a part of `count` does, or without memory. */
char *fb_gguf_split_path(const char *path, int64_t index, int64_t count);

/* `*gguf` was read from `path`, one of several files: opens the others, and makes it all of the model. What
 * is there afterwards is the caller's to free, also after a failure; it may be NULL then. */
fb_status fb_gguf_join(const char *path, fb_gguf **gguf, fb_error *err);

#endif
