/* Writing a GGUF file (version 3): metadata, then the list of tensors, then their data as it comes.
 *
 * Under the target's name there is the whole file or what was there before (base/whole_file.h). A failure to
 * put metadata is remembered, and reported by fb_gguf_writer_begin, so that metadata can be written as a
 * list.
 */
#ifndef FB_FILE_GGUF_WRITE_H
#define FB_FILE_GGUF_WRITE_H

#include "base/dtype.h"
#include "file/gguf.h"

typedef struct fb_gguf_writer fb_gguf_writer;

/* `replace`: a regular file that has this name may be replaced. Anything else that has it is refused. */
fb_status fb_gguf_writer_create(const char *path, bool replace, fb_gguf_writer **out, fb_error *err);
/* Of a file that is not finished, nothing stays. */
void fb_gguf_writer_free(fb_gguf_writer *writer);

/* Metadata. */
void fb_gguf_put_u32(fb_gguf_writer *writer, const char *key, int64_t value);
void fb_gguf_put_f32(fb_gguf_writer *writer, const char *key, double value);
void fb_gguf_put_bool(fb_gguf_writer *writer, const char *key, bool value);
void fb_gguf_put_string(fb_gguf_writer *writer, const char *key, const char *text);

/* What another file has under the keys that start so, but for the keys of a list that ends with NULL. NULL:
 * no such list. */
void fb_gguf_copy(fb_gguf_writer *writer, const fb_gguf *from, const char *prefix, const char *const *but);

/* An array: its key and size, then as many items. */
void fb_gguf_put_strings(fb_gguf_writer *writer, const char *key, int64_t count);
void fb_gguf_put_i32s(fb_gguf_writer *writer, const char *key, int64_t count);
void fb_gguf_item_string(fb_gguf_writer *writer, const char *text, int64_t size);
void fb_gguf_item_i32(fb_gguf_writer *writer, int32_t value);

/* A tensor of [rows, cols], or a vector of cols if rows is 0; of whole blocks in a row. `experts`: the rows
 * are those of so many matrices, [experts, rows / experts, cols]; 0: of one. */
void fb_gguf_put_tensor(fb_gguf_writer *writer, const char *name, fb_dtype dtype, int64_t experts,
                        int64_t rows, int64_t cols);

/* Writes all that; then comes the data of each tensor, in the order of the list and in parts of any size. */
fb_status fb_gguf_writer_begin(fb_gguf_writer *writer, fb_error *err);
fb_status fb_gguf_writer_data(fb_gguf_writer *writer, const void *data, int64_t size, fb_error *err);

/* Fails if data is missing. `size`: bytes of the file. */
fb_status fb_gguf_writer_finish(fb_gguf_writer *writer, int64_t *size, fb_error *err);

#endif
