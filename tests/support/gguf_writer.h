/* GGUF files piece by piece, also wrong ones: nothing is checked, and counts are what the test says. */
#ifndef FB_TESTS_GGUF_WRITER_H
#define FB_TESTS_GGUF_WRITER_H

#include "file/gguf.h"
#include "support/support.h"

typedef struct fbt_bytes {
    uint8_t *data; /* released with free */
    size_t size;
} fbt_bytes;

void fbt_put(fbt_bytes *bytes, const void *data, size_t size);
void fbt_put_u32(fbt_bytes *bytes, uint32_t value);
void fbt_put_u64(fbt_bytes *bytes, uint64_t value);
void fbt_put_text(fbt_bytes *bytes, const char *text);

void fbt_gguf_start(fbt_bytes *bytes, uint32_t version, uint64_t tensors, uint64_t values);

/* Values: a key with its type, to be followed by the value; then both together for some types. */
void fbt_gguf_key(fbt_bytes *bytes, const char *key, fb_gguf_type type);
void fbt_gguf_u32(fbt_bytes *bytes, const char *key, uint32_t value);
void fbt_gguf_f32(fbt_bytes *bytes, const char *key, float value);
void fbt_gguf_bool(fbt_bytes *bytes, const char *key, uint8_t value);
void fbt_gguf_text(fbt_bytes *bytes, const char *key, const char *value);
void fbt_gguf_array(fbt_bytes *bytes, const char *key, fb_gguf_type type, uint64_t count);
void fbt_gguf_texts(fbt_bytes *bytes, const char *key, const char *const *texts, uint64_t count);

/* A tensor's info: sizes in the order of the file, the type's number. */
void fbt_gguf_tensor(fbt_bytes *bytes, const char *name, uint32_t dims, const uint64_t *sizes, uint32_t type,
                     uint64_t offset);
/* Padding, then `size` bytes 0, 1, 2, … */
void fbt_gguf_data(fbt_bytes *bytes, size_t alignment, size_t size);

#endif
