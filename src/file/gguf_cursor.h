/* Reading a GGUF file from front to back, never beyond its end. Each byte is copied from the file once, and
 * only the copy is read: others may change the file meanwhile. */
#ifndef FB_FILE_GGUF_CURSOR_H
#define FB_FILE_GGUF_CURSOR_H

#include "file/gguf.h"
#include "file/map.h"

typedef struct fb_gguf_cursor {
    const char *what;
    const fb_map *file;
    uint8_t *bytes;          /* [copied]: the front of the file; moves as more is copied */
    size_t size, at, copied; /* size: of the file; at <= copied <= size */
} fb_gguf_cursor;

/* The next bytes, number or string; `part` says in errors what it is. What `out` points to stays until the
 * next call. */
fb_status fb_gguf_take(fb_gguf_cursor *c, const char *part, uint64_t size, const uint8_t **out,
                       fb_error *err);
fb_status fb_gguf_take_u32(fb_gguf_cursor *c, const char *part, uint32_t *out, fb_error *err);
fb_status fb_gguf_take_u64(fb_gguf_cursor *c, const char *part, uint64_t *out, fb_error *err);
fb_status fb_gguf_take_text(fb_gguf_cursor *c, const char *part, fb_gguf_text *out, fb_error *err);

/* A string that names something, "`kind` `index`" until it is known: less than `size` bytes, not empty,
 * without control characters. */
fb_status fb_gguf_take_name(fb_gguf_cursor *c, const char *kind, uint64_t index, char *name, size_t size,
                            fb_error *err);

/* Tensor infos from the cursor on, `count` of them, and the data behind them, into gguf->tensors. */
fb_status fb_gguf_read_tensors(fb_gguf_cursor *c, fb_gguf *gguf, uint64_t count, fb_error *err);

/* Maps and parses one file, which may be one of several. */
fb_status fb_gguf_open_part(const char *path, fb_gguf **out, fb_error *err);

/* Refuses two tensors of the same name; the table is in order of name. */
fb_status fb_gguf_check_names(const char *what, const fb_tensor_table *table, fb_error *err);

#endif
