#include "support/gguf_writer.h"

#include <stdlib.h>
#include <string.h>

void fbt_put(fbt_bytes *bytes, const void *data, size_t size) {
    bytes->data = realloc(bytes->data, bytes->size + size + 1);
    assert_non_null(bytes->data);
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

void fbt_put_u32(fbt_bytes *bytes, uint32_t value) { fbt_put(bytes, &value, sizeof value); }
void fbt_put_u64(fbt_bytes *bytes, uint64_t value) { fbt_put(bytes, &value, sizeof value); }

void fbt_put_text(fbt_bytes *bytes, const char *text) {
    fbt_put_u64(bytes, strlen(text));
    fbt_put(bytes, text, strlen(text));
}

void fbt_gguf_start(fbt_bytes *bytes, uint32_t version, uint64_t tensors, uint64_t values) {
    fbt_put(bytes, "GGUF", 4);
    fbt_put_u32(bytes, version);
    fbt_put_u64(bytes, tensors);
    fbt_put_u64(bytes, values);
}

void fbt_gguf_key(fbt_bytes *bytes, const char *key, fb_gguf_type type) {
    fbt_put_text(bytes, key);
    fbt_put_u32(bytes, type);
}

void fbt_gguf_u32(fbt_bytes *bytes, const char *key, uint32_t value) {
    fbt_gguf_key(bytes, key, FB_GGUF_U32);
    fbt_put_u32(bytes, value);
}

void fbt_gguf_f32(fbt_bytes *bytes, const char *key, float value) {
    fbt_gguf_key(bytes, key, FB_GGUF_F32);
    fbt_put(bytes, &value, sizeof value);
}

void fbt_gguf_bool(fbt_bytes *bytes, const char *key, uint8_t value) {
    fbt_gguf_key(bytes, key, FB_GGUF_BOOL);
    fbt_put(bytes, &value, 1);
}

void fbt_gguf_text(fbt_bytes *bytes, const char *key, const char *value) {
    fbt_gguf_key(bytes, key, FB_GGUF_STRING);
    fbt_put_text(bytes, value);
}

void fbt_gguf_array(fbt_bytes *bytes, const char *key, fb_gguf_type type, uint64_t count) {
    fbt_gguf_key(bytes, key, FB_GGUF_ARRAY);
    fbt_put_u32(bytes, type);
    fbt_put_u64(bytes, count);
}

void fbt_gguf_texts(fbt_bytes *bytes, const char *key, const char *const *texts, uint64_t count) {
    fbt_gguf_array(bytes, key, FB_GGUF_STRING, count);
    for (uint64_t i = 0; i < count; i++) fbt_put_text(bytes, texts[i]);
}

void fbt_gguf_tensor(fbt_bytes *bytes, const char *name, uint32_t dims, const uint64_t *sizes, uint32_t type,
                     uint64_t offset) {
    fbt_put_text(bytes, name);
    fbt_put_u32(bytes, dims);
    for (uint32_t d = 0; d < dims; d++) fbt_put_u64(bytes, sizes[d]);
    fbt_put_u32(bytes, type);
    fbt_put_u64(bytes, offset);
}

void fbt_gguf_data(fbt_bytes *bytes, size_t alignment, size_t size) {
    size_t padding = (alignment - bytes->size % alignment) % alignment;
    uint8_t *data = calloc(1, padding + size + 1);
    assert_non_null(data);
    for (size_t i = 0; i < size; i++) data[padding + i] = (uint8_t)i;
    fbt_put(bytes, data, padding + size);
    free(data);
}
